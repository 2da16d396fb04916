//! Declared tables: their columns come without a query, follow the table, and give way last.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_tables::{Code, Session, TableName, parse};
use tokio::sync::{mpsc, oneshot};

use super::data::{Sizes, write};
use super::emulated;
use super::sessions::{Fixture, done, replace, rows};
use crate::declared::DECLARED_MAX;

pub(super) const AUTO: &str = "SET forebay.gpu = auto; SET forebay.compile = wait";
const TABLE: &str = "CREATE TABLE m (k int, v bigint, name text, raw bytea); \
     INSERT INTO m (k, v, name) SELECT value % 5, value, 'n' || value % 3 FROM generate_series(1, 1000) AS s(value)";
const ESTIMATED: &str = "OnCpuExec: the CPU is estimated at 0.20 ms, the GPU at 0.80 ms";
const QUERY: &str = "SELECT k, count(*), sum(v) FROM m WHERE v > 10 GROUP BY k";

fn columns(fixture: &Fixture) -> usize {
    fixture.tables.gpu_figures()[0].columns
}

/// Returns the names of the columns that are there and declared, in order.
fn declared(fixture: &Fixture) -> Vec<String> {
    let all = fixture.tables.gpu_columns(usize::MAX).remove(0).largest;
    let declared = all.into_iter().filter(|it| it.is_declared);
    let mut names: Vec<String> = declared.map(|it| it.name).collect();
    names.sort();
    names
}

/// Waits until columns of these names are there and declared, and no others.
pub(super) async fn until(fixture: &Fixture, wanted: &[&str]) {
    let began = Instant::now();
    while declared(fixture) != wanted {
        let found = declared(fixture);
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{found:?}, not {wanted:?}"
        );
        tokio::task::yield_now().await;
    }
}

pub(super) async fn failed(session: &mut Session, text: &str) -> Code {
    let parsed = match parse(text) {
        Ok(mut parsed) => parsed.remove(0),
        Err(error) => return error.code,
    };
    session.run(parsed).await.expect_err(text).code
}

/// Returns what `EXPLAIN ANALYZE` tells of a query, after its rows were compared with those of the CPU.
pub(super) async fn plan(fixture: &Fixture, settings: &str, query: &str) -> String {
    let mut with = fixture.session(settings).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let wanted = rows(&mut without, query).await;
    assert_eq!(rows(&mut with, query).await, wanted, "{query}");
    let plan = rows(&mut with, &format!("EXPLAIN ANALYZE {query}")).await;
    plan.expect(query).join("\n")
}

/// Checks that a plan ran on the GPU.
pub(super) fn assert_ran(plan: &str) {
    assert!(plan.contains("ran there"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_tables_come_without_a_query_and_follow_changes() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    // The CPU is estimated to be faster.
    assert!(plan(&fixture, AUTO, QUERY).await.contains(ESTIMATED));
    done(&mut session, "ALTER TABLE m SET (gpu = on)").await;
    until(&fixture, &["k", "name", "v"]).await;
    assert_ran(&plan(&fixture, AUTO, QUERY).await);
    // Another file has columns of its own.
    done(&mut session, "INSERT INTO m (k, v) VALUES (7, 77)").await;
    until(&fixture, &["k", "k", "name", "name", "v", "v"]).await;
    assert_ran(&plan(&fixture, AUTO, QUERY).await);
    // A file that is written again has new columns, and those of the old one are forgotten.
    done(&mut session, "UPDATE m SET v = v + 1 WHERE k = 7").await;
    // The old ones have the same names.
    let began = Instant::now();
    while let plan = plan(&fixture, AUTO, QUERY).await
        && !plan.contains("ran there")
    {
        assert!(began.elapsed() < Duration::from_secs(60), "{plan}");
    }
    until(&fixture, &["k", "k", "name", "name", "v", "v"]).await;
    done(&mut session, "TRUNCATE m").await;
    until(&fixture, &[]).await;
    assert_eq!(columns(&fixture), 0);
    done(&mut session, "INSERT INTO m (k, v) VALUES (1, 11)").await;
    until(&fixture, &["k", "name", "v"]).await;
    // After a start.
    let again = fixture.started_again(1 << 30);
    until(&again, &["k", "name", "v"]).await;
    assert_ran(&plan(&again, AUTO, QUERY).await);
    let mut session = again.session(AUTO).await;
    done(&mut session, "DROP TABLE m").await;
    until(&again, &[]).await;
    done(
        &mut session,
        "CREATE TABLE m (k int); INSERT INTO m VALUES (1)",
    )
    .await;
    let options = "SELECT count(*) AS n FROM pg_class WHERE reloptions IS NOT NULL";
    let listed = rows(&mut session, options).await.expect("rows");
    assert!(listed.contains(&"| 0 |".to_owned()), "{listed:?}");
    until(&again.started_again(1 << 30), &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_files_come_without_a_query_and_follow_changes() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    let folder = fixture.files().join("t");
    let table = format!(
        "CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{}/'",
        folder.display()
    );
    done(&mut session, &table).await;
    done(&mut session, "ALTER TABLE e SET (gpu = 'b, FLAG')").await;
    until(&fixture, &["b", "flag"]).await;
    let query = "SELECT flag, count(*), sum(b) FROM e GROUP BY flag";
    assert!(plan(&fixture, AUTO, query).await.contains("ran there"));
    let other = "SELECT flag, sum(quantity) FROM e GROUP BY flag";
    assert!(plan(&fixture, AUTO, other).await.contains(ESTIMATED));
    replace(&folder, Sizes(&[200, 100]));
    until(&fixture, &["b", "b", "flag", "flag"]).await;
    assert!(plan(&fixture, AUTO, query).await.contains("ran there"));
    let again = fixture.started_again(1 << 30);
    until(&again, &["b", "b", "flag", "flag"]).await;
    // All that can be packed, then nothing.
    let mut session = again.session(AUTO).await;
    done(&mut session, "ALTER TABLE e SET (gpu)").await;
    let began = Instant::now();
    while declared(&again).len() < 40 {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::task::yield_now().await;
    }
    done(&mut session, "ALTER TABLE e RESET (gpu)").await;
    until(&again, &[]).await;
    assert_eq!(columns(&again), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_are_off_are_left_to_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    let file = fixture.files().join("t/0.parquet");
    let table = format!(
        "CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{}'",
        file.display()
    );
    done(&mut session, &table).await;
    let off = "a table is declared with gpu = off";
    let of_file = "SELECT flag, count(*), sum(b) FROM e GROUP BY flag";
    for (table, query) in [("m", QUERY), ("e", of_file)] {
        done(&mut session, &format!("ALTER TABLE {table} SET (gpu = on)")).await;
        while declared(&fixture).is_empty() {
            tokio::task::yield_now().await;
        }
        assert!(plan(&fixture, AUTO, query).await.contains("ran there"));
        done(
            &mut session,
            &format!("ALTER TABLE {table} SET (gpu = off)"),
        )
        .await;
        assert!(plan(&fixture, AUTO, query).await.contains(off), "{query}");
        until(&fixture, &[]).await;
        // A session that asks for it has it.
        let on = "SET forebay.gpu = on; SET forebay.compile = wait";
        assert!(plan(&fixture, on, query).await.contains("ran there"));
        assert!(plan(&fixture, AUTO, query).await.contains(off), "{query}");
    }
    let again = fixture.started_again(1 << 30);
    for query in [QUERY, of_file] {
        assert!(plan(&again, AUTO, query).await.contains(off), "{query}");
    }
    let mut session = again.session(AUTO).await;
    done(
        &mut session,
        "ALTER TABLE m RESET (gpu); ALTER TABLE IF EXISTS nothing SET (gpu = off)",
    )
    .await;
    assert_eq!(session.take_notices().len(), 1);
    assert!(!plan(&again, AUTO, QUERY).await.contains(off));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_load_ends_with_its_declaration() {
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    // The load waits as for one of a query.
    let loading = fixture.columns.loading.lock().await;
    for end in [
        "ALTER TABLE m SET (gpu = off)",
        "ALTER TABLE m RESET (gpu)",
        "DROP TABLE m",
    ] {
        done(&mut session, "ALTER TABLE m SET (gpu = on)").await;
        until_brought(&fixture, true).await;
        done(&mut session, end).await;
        until_brought(&fixture, false).await;
    }
    done(
        &mut session,
        "CREATE TABLE m AS SELECT 1 AS a; ALTER TABLE m SET (gpu = on)",
    )
    .await;
    drop(loading);
    until(&fixture, &["a"]).await;
}

/// Waits until a load of the declared table `m` asks for its turn, or none does and it is not declared.
async fn until_brought(fixture: &Fixture, is_brought: bool) {
    let began = Instant::now();
    let is_brought_now =
        || fixture.columns.bringing.try_lock().is_err() || fixture.columns.is_declared(&table("m"));
    while is_brought_now() != is_brought {
        let most = match is_brought {
            true => Duration::from_secs(60),
            false => Duration::from_secs(1),
        };
        assert!(began.elapsed() < most, "{is_brought}");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_that_cannot_be_listed_hold_back_no_other() {
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    for name in ["a", "z"] {
        let folder = fixture.files().join(name);
        write(&folder, Sizes(&[1]));
        let place = folder.display();
        let table = format!(
            "CREATE EXTERNAL TABLE {name} STORED AS PARQUET LOCATION '{place}/';
             ALTER TABLE {name} SET (gpu = b)"
        );
        done(&mut session, &table).await;
        until(&fixture, &["b"]).await;
        std::fs::rename(&folder, fixture.files().join("gone")).expect("a folder");
        done(&mut session, "ALTER TABLE m SET (gpu = k)").await;
        let both = ["b", "k"];
        until(&fixture, &both).await;
        let again = fixture.started_again(1 << 30);
        until(&again, &["k"]).await;
        done(&mut session, "ALTER TABLE m RESET (gpu)").await;
        std::fs::rename(fixture.files().join("gone"), &folder).expect("a folder");
        done(&mut session, &format!("DROP TABLE {name}")).await;
        until(&fixture, &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_ends_no_declaration() {
    let fixture = Fixture::new(Sizes(&[300])).started_again(1 << 30);
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    done(&mut session, "ALTER TABLE m SET (gpu = on)").await;
    until(&fixture, &["k", "name", "v"]).await;
    let are_written = || {
        let files = std::fs::read_dir(fixture.column_files()).expect("a folder");
        let names = files.map(|it| it.expect("an entry").path());
        names.filter(|it| it.extension().is_some()).count() == 3
    };
    while !are_written() {
        tokio::task::yield_now().await;
    }
    fixture.emulated.panics.store(true, Ordering::Relaxed);
    let again = fixture.started_again(1 << 30);
    until(&again, &["k", "name", "v"]).await;
    assert!(!fixture.emulated.panics.load(Ordering::Relaxed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_columns_of_files_are_limited() {
    let fixture = Fixture::new(Sizes(&[1; 9]));
    let mut session = fixture.session(AUTO).await;
    let folder = fixture.files().join("t");
    let place = folder.display();
    let table = format!(
        "CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{place}/';
         ALTER TABLE e SET (gpu = on); {TABLE}"
    );
    done(&mut session, &table).await;
    let began = Instant::now();
    while declared(&fixture).len() < DECLARED_MAX {
        assert!(began.elapsed() < Duration::from_secs(60));
        tokio::task::yield_now().await;
    }
    assert_eq!(columns(&fixture), DECLARED_MAX);
    // There is room for those of another table when these have ended.
    done(&mut session, "ALTER TABLE m SET (gpu = on)").await;
    done(&mut session, "ALTER TABLE e SET (gpu = b)").await;
    until(&fixture, &[&["b"; 9][..], &["k", "name", "v"]].concat()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_columns_give_way_to_queries_but_not_to_each_other() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture
        .session("SET forebay.gpu = on; SET forebay.compile = wait")
        .await;
    done(&mut session, TABLE).await;
    done(&mut session, "CREATE TABLE n AS SELECT 1 AS a").await;
    // The room of the device is for totals, and then the host has none.
    let few = 1 << 20;
    fixture.emulated.free_bytes.store(few, Ordering::Relaxed);
    done(&mut session, "ALTER TABLE m SET (gpu = 'k, v')").await;
    until(&fixture, &["k", "v"]).await;
    fixture.emulated.is_host_full.store(true, Ordering::Relaxed);
    done(&mut session, "ALTER TABLE n SET (gpu = on)").await;
    until(&fixture, &["a", "k", "v"]).await;
    let others = "SELECT flag, count(*), sum(b) FROM t GROUP BY flag";
    assert!(rows(&mut session, others).await.is_ok());
    let largest = fixture.tables.gpu_columns(usize::MAX).remove(0).largest;
    let mut names: Vec<_> = largest.into_iter().map(|it| it.name).collect();
    names.sort();
    assert!(names.contains(&"flag".to_owned()), "{names:?}");
    let are_here = ["k", "v"].map(|name| names.contains(&name.to_owned()));
    assert_ne!(are_here, [true; 2], "{names:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_of_a_table_that_is_off_meanwhile_are_not_kept() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[3000]));
    let mut session = fixture
        .session("SET forebay.gpu = on; SET forebay.compile = wait")
        .await;
    let file = fixture.files().join("t/0.parquet");
    let table = format!(
        "CREATE EXTERNAL TABLE e STORED AS PARQUET LOCATION '{}'",
        file.display()
    );
    done(&mut session, &table).await;
    let query = |text| format!("SELECT count(*) FROM e WHERE note LIKE '%{text}%'");
    let searches = || fixture.emulated.searches.load(Ordering::Relaxed);
    assert!(rows(&mut session, &query("7%3")).await.is_ok());
    assert_eq!(searches(), 1);
    let (send, waits) = oneshot::channel();
    *fixture.emulated.search_waits.lock() = Some(waits);
    let mut other = fixture.session("").await;
    let text = query("1%2");
    let searched = tokio::spawn(async move { rows(&mut session, &text).await });
    while fixture.emulated.search_waits.lock().is_some() {
        tokio::task::yield_now().await;
    }
    done(&mut other, "ALTER TABLE e SET (gpu = off)").await;
    assert_eq!(columns(&fixture), 0);
    send.send(()).expect("a search");
    // The session asks for a GPU: the texts are brought, and searched, again.
    assert!(searched.await.expect("no panic").is_ok());
    assert_eq!(searches(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loads_take_turns() {
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    let loading = fixture.columns.loading.lock().await;
    // A load of a declared table waits, then one that no session waits for, and another one is left out.
    done(&mut session, "ALTER TABLE m SET (gpu = k)").await;
    until_brought(&fixture, true).await;
    let (send, mut ended) = mpsc::unbounded_channel();
    for number in 0..2 {
        let send = send.clone();
        fixture.columns.unawaited(move |loading| async move {
            send.send(number).expect("a receiver");
            drop(loading);
        });
    }
    drop((loading, send));
    assert_eq!((ended.recv().await, ended.recv().await), (Some(0), None));
    until(&fixture, &["k"]).await;
}

/// Returns the name of a table.
pub(super) fn table(name: &str) -> TableName {
    TableName {
        catalog: "forebay".into(),
        schema: "public".into(),
        table: name.into(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_gpu_cannot_keep_is_refused() {
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(AUTO).await;
    done(&mut session, TABLE).await;
    let csv = fixture.files().join("c.csv");
    std::fs::write(&csv, "a\n1\n").expect("room");
    let table = format!(
        "CREATE EXTERNAL TABLE c STORED AS CSV LOCATION '{}'",
        csv.display()
    );
    done(&mut session, &table).await;
    done(&mut session, "CREATE VIEW w AS SELECT k FROM m").await;
    for (text, code) in [
        (
            "ALTER TABLE m SET (gpu = 'k, nothing')",
            Code::UndefinedColumn,
        ),
        ("ALTER TABLE m SET (gpu = '\"K\"')", Code::UndefinedColumn),
        ("ALTER TABLE m SET (gpu = raw)", Code::InvalidParameterValue),
        (
            "ALTER TABLE m SET (color = red)",
            Code::InvalidParameterValue,
        ),
        ("ALTER TABLE nothing SET (gpu = on)", Code::UndefinedTable),
        ("ALTER TABLE other.m SET (gpu = on)", Code::UndefinedTable),
        ("ALTER TABLE w SET (gpu = on)", Code::WrongObjectType),
        // A file of the folder, without a declaration.
        ("ALTER TABLE t SET (gpu = on)", Code::WrongObjectType),
        ("ALTER TABLE c SET (gpu = on)", Code::FeatureNotSupported),
        ("ALTER TABLE m ADD COLUMN z int", Code::FeatureNotSupported),
    ] {
        assert_eq!(failed(&mut session, text).await, code, "{text}");
    }
    done(&mut session, "ALTER TABLE c SET (gpu = off)").await;
    let set = "ALTER TABLE m SET (gpu = v)";
    session.set_read_only(true);
    assert_eq!(failed(&mut session, set).await, Code::InsufficientPrivilege);
    session.set_read_only(false);
    done(&mut session, "BEGIN").await;
    assert_eq!(failed(&mut session, set).await, Code::ReadOnlyTransaction);
    done(&mut session, "ROLLBACK").await;
    done(&mut session, set).await;
    assert_eq!(session.take_notices(), []);
    until(&fixture, &["v"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn declared_columns_give_way_last() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture
        .session("SET forebay.gpu = on; SET forebay.compile = wait")
        .await;
    done(&mut session, TABLE).await;
    done(&mut session, "ALTER TABLE m SET (gpu = 'k, v')").await;
    until(&fixture, &["k", "v"]).await;
    let others = "SELECT flag, count(*), sum(b) FROM t GROUP BY flag";
    rows(&mut session, others).await.expect("rows");
    assert_eq!(columns(&fixture), 4);
    // The declared ones were used longest ago, and yet the others go first.
    let largest = fixture.tables.gpu_columns(usize::MAX).remove(0).largest;
    let of_others = largest.iter().filter(|it| !it.is_declared);
    fixture
        .freeing
        .free(0, of_others.map(|it| it.device_bytes).sum());
    assert_eq!(
        (columns(&fixture), declared(&fixture)),
        (2, vec!["k".into(), "v".into()])
    );
    fixture.freeing.free(0, u64::MAX);
    assert_eq!(columns(&fixture), 0);
    // They are not brought back at once, and a query that waits for them brings them.
    assert!(rows(&mut session, QUERY).await.is_ok());
    until(&fixture, &["k", "v"]).await;
}
