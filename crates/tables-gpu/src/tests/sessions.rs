//! Sessions of the SQL engine with an engine of kernels: plans that are kept, and tables that change.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::scalar::ScalarValue;
use forebay_memory::Account;
use forebay_tables::{GpuColumn, Outcome, Paths, Session, Settings, Source, Tables, parse};
use tempfile::TempDir;

use super::data::{Sizes, write};
use super::emulated::{self, Emulated};
use super::floats::{self, are_alike};
use super::{QUERIES, arithmetic, joins, lists, times};
use crate::columns::Columns;
use crate::disk::Disk;
use crate::engine::Engine;
use crate::giving_way::Freeing;
use crate::rule::Fragments;

pub(super) struct Fixture {
    folder: Arc<TempDir>,
    pub(super) tables: Arc<Tables>,
    pub(super) freeing: Freeing,
    pub(super) columns: Arc<Columns>,
    pub(super) emulated: Arc<Emulated>,
}

impl Fixture {
    pub(super) fn new(sizes: Sizes) -> Fixture {
        let folder = TempDir::new().expect("room");
        let files = folder.path().join("files");
        write(&files.join("t"), sizes);
        joins::write_all(&files);
        let emulated = Emulated::new();
        let engines = emulated::devices(&emulated, 1);
        Fixture::over(Arc::new(folder), (emulated, engines), None)
    }

    /// Returns an engine that has just started over the same tables, with at most this many bytes of column files.
    pub(super) fn started_again(&self, column_files_bytes: u64) -> Fixture {
        self.started_with(1, column_files_bytes)
    }

    /// Returns the same with this many devices.
    pub(super) fn started_with(&self, devices: usize, column_files_bytes: u64) -> Fixture {
        let disk = Disk::open(self.column_files(), column_files_bytes).expect("a folder");
        let emulated = Arc::clone(&self.emulated);
        emulated.free_bytes.store(u64::MAX, Ordering::Relaxed);
        emulated.is_host_full.store(false, Ordering::Relaxed);
        let engines = emulated::devices(&emulated, devices);
        Fixture::over(Arc::clone(&self.folder), (emulated, engines), Some(disk))
    }

    /// Returns the same on other devices.
    pub(super) fn started_on(
        &self,
        engines: Vec<Arc<dyn Engine>>,
        column_files_bytes: u64,
    ) -> Fixture {
        let disk = Disk::open(self.column_files(), column_files_bytes).expect("a folder");
        let emulated = Arc::clone(&self.emulated);
        Fixture::over(Arc::clone(&self.folder), (emulated, engines), Some(disk))
    }

    pub(super) fn over(
        folder: Arc<TempDir>,
        (emulated, engines): (Arc<Emulated>, Vec<Arc<dyn Engine>>),
        disk: Option<Disk>,
    ) -> Fixture {
        Fixture::open(folder, (emulated, engines), disk, None)
    }

    /// Returns an engine with tables of a source.
    pub(super) fn with_source(source: Arc<dyn Source>) -> Fixture {
        let folder = TempDir::new().expect("room");
        std::fs::create_dir(folder.path().join("files")).expect("room");
        let emulated = Emulated::new();
        let engines = emulated::devices(&emulated, 1);
        Fixture::open(Arc::new(folder), (emulated, engines), None, Some(source))
    }

    /// Returns an engine that has just started over the same tables, and those of a source.
    pub(super) fn started_with_source(&self, source: Arc<dyn Source>) -> Fixture {
        let emulated = Arc::clone(&self.emulated);
        let engines = emulated::devices(&emulated, 1);
        let folder = Arc::clone(&self.folder);
        Fixture::open(folder, (emulated, engines), None, Some(source))
    }

    fn open(
        folder: Arc<TempDir>,
        (emulated, engines): (Arc<Emulated>, Vec<Arc<dyn Engine>>),
        disk: Option<Disk>,
        source: Option<Arc<dyn Source>>,
    ) -> Fixture {
        let files = folder.path().join("files");
        let freeing = Freeing::default();
        let columns = Columns::new(engines, &freeing, disk);
        let tables = Tables::open(Settings {
            folder: Some(folder.path().join("data")),
            tables: Some(files),
            source,
            gpu_rules: vec![Arc::new(Fragments(Arc::clone(&columns)))],
            paths: Paths::Any,
            memory: Account::new(4 << 30),
            memory_bytes_max: 256 << 20,
            spill_bytes_max: 1 << 30,
            threads: 2,
            slow_statement: Duration::MAX,
        });
        Fixture {
            folder,
            tables: tables.expect("an engine"),
            freeing,
            columns,
            emulated,
        }
    }

    pub(super) fn files(&self) -> PathBuf {
        self.folder.path().join("files")
    }

    pub(super) fn column_files(&self) -> PathBuf {
        self.folder.path().join("columns")
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Returns a session with these settings.
    pub(super) async fn session(&self, settings: &str) -> Session {
        let mut session = self.tables.session("ada");
        done(&mut session, settings).await;
        session
    }

    /// Returns the number of queries that ran with a kept physical plan.
    pub(super) fn runs_again(&self) -> u64 {
        self.tables.figures().plans_run_again
    }
}

pub(super) const ON: &str = "SET forebay.gpu = on; SET forebay.compile = wait";

pub(super) async fn done(session: &mut Session, text: &str) {
    for parsed in parse(text).expect("statements") {
        session.run(parsed).await.expect(text);
    }
}

/// Returns the sorted lines of the rows.
pub(super) async fn lines(outcome: Outcome) -> Result<Vec<String>, String> {
    let Outcome::Rows(mut rows) = outcome else {
        return Err("no rows".to_owned());
    };
    let mut batches: Vec<RecordBatch> = Vec::new();
    while let Some(batch) = rows.next().await.map_err(|it| it.to_string())? {
        batches.push(batch);
    }
    // Without rows, some operators return a batch, and others none.
    batches.retain(|it| it.num_rows() > 0);
    let text = pretty_format_batches(&batches).map_err(|it| it.to_string())?;
    let text = text.to_string();
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

pub(super) async fn rows(session: &mut Session, query: &str) -> Result<Vec<String>, String> {
    let parsed = parse(query).expect("a query").remove(0);
    let outcome = session.run(parsed).await.map_err(|it| it.to_string())?;
    lines(outcome).await
}

/// Returns the lines of the physical plan that an `EXPLAIN` prints, in their order.
pub(super) async fn plan_lines(session: &mut Session, explain: &str) -> Vec<String> {
    let parsed = parse(explain).expect("a query").remove(0);
    let Ok(Outcome::Rows(mut rows)) = session.run(parsed).await else {
        panic!("no plan: {explain}");
    };
    let mut lines = Vec::new();
    while let Some(batch) = rows.next().await.expect("a plan") {
        let text = |column: usize, row: usize| {
            array_value_to_string(batch.column(column), row).expect("a text")
        };
        for row in (0..batch.num_rows()).filter(|row| text(0, *row) != "logical_plan") {
            lines.extend(text(1, row).lines().map(str::to_owned));
        }
    }
    lines
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_of_sessions_give_the_rows_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut with = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    // Sessions of the SQL engine rewrite plans in their own way, and some then stay on the CPU.
    let mut on_engine = 0;
    let queries: Vec<_> = QUERIES
        .iter()
        .chain(floats::QUERIES)
        .chain(arithmetic::QUERIES)
        .chain(times::OF_SESSIONS)
        .chain(joins::QUERIES)
        .chain(lists::QUERIES)
        .collect();
    for query in &queries {
        let wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{query}: {wanted:?}");
        let before = fixture.runs_again();
        for _ in 0..3 {
            let found = rows(&mut with, query).await;
            let are_alike = are_alike(query, &found, &wanted);
            assert!(are_alike, "{query}\n{found:?}\n{wanted:?}");
        }
        match fixture.runs_again() - before {
            2 => on_engine += 1,
            runs => println!("{runs} times with a kept plan: {query}"),
        }
    }
    println!("{on_engine} of {} queries ran on the engine", queries.len());
    // An aggregate on the CPU over one on the engine is kept too.
    let query = "SELECT median(s), count(*) FROM (SELECT day, flag, sum(b) AS s FROM t GROUP BY 1, 2) AS n WHERE s > 0";
    let before = fixture.runs_again();
    for _ in 0..3 {
        assert_eq!(
            rows(&mut with, query).await,
            rows(&mut without, query).await
        );
    }
    assert_eq!(fixture.runs_again() - before, 2);
    let figures = fixture.tables.gpu_figures().remove(0);
    assert!(figures.aggregates >= 3 * on_engine as u64, "{figures:?}");
    assert!(
        figures.columns > 0 && figures.column_bytes > 0,
        "{figures:?}"
    );
    largest_are_told(&fixture, figures.columns);
    let mut reasons = figures.on_cpu.iter().map(|(reason, _)| reason);
    assert!(reasons.any(|it| it.starts_with("median")), "{figures:?}");
    let on_cpu: u64 = figures.on_cpu.iter().map(|(_, count)| count).sum();
    let kinds: HashMap<_, _> = figures.on_cpu_kinds.into_iter().collect();
    assert_eq!(kinds.values().sum::<u64>(), on_cpu);
    assert!(kinds["unsupported"] > 0, "{kinds:?}");
    assert!(on_engine * 10 > queries.len() * 9);
}

/// Checks what is told of the largest columns, of this many in all.
fn largest_are_told(fixture: &Fixture, columns: usize) {
    let told = |limit| fixture.tables.gpu_columns(limit).remove(0);
    let (few, all) = (told(3), told(usize::MAX));
    let bytes = |it: &GpuColumn| it.device_bytes + it.host_bytes + it.disk_bytes;
    assert_eq!((all.largest.len(), all.left_out), (columns, (0, 0)));
    assert!(all.largest.is_sorted_by_key(|it| Reverse(bytes(it))));
    let left_out = all.largest[3..].iter().map(bytes).sum();
    assert_eq!(
        (few.largest.len(), few.left_out),
        (3, (columns - 3, left_out))
    );
    assert_eq!(
        few.largest.iter().map(bytes).max(),
        all.largest.iter().map(bytes).max()
    );
    let price = all
        .largest
        .iter()
        .find(|it| it.name == "price" && it.rows == 700);
    let price = price.expect("the column of the first file");
    assert!(
        price.file.ends_with("/files/t/0.parquet") && price.table.is_none(),
        "{price:?}"
    );
    assert!(price.device_bytes > 0 && price.unused < Duration::from_secs(3600));
}

/// Joins of the CPU over fragments, and scalar subqueries.
const OF_FRAGMENTS: [&str; 7] = [
    "SELECT * FROM (SELECT a, count(*) FROM t GROUP BY a) AS x
        FULL JOIN (SELECT a AS k, max(b) FROM t WHERE b > 0 GROUP BY 1) AS y ON a = k + 1",
    "SELECT a, k FROM (SELECT a, count(*) AS c FROM t GROUP BY a) AS x
        JOIN (SELECT a AS k, sum(quantity) AS s FROM t GROUP BY 1) AS y ON c < s AND a > k",
    "SELECT a, c FROM (SELECT a, count(*) AS c FROM t GROUP BY a) AS x, (SELECT max(b) AS m FROM t) AS y
        WHERE a + m > 3 ORDER BY 1",
    "SELECT flag, count(*) FROM t WHERE b > (SELECT avg(b) FROM t WHERE a > (SELECT min(a) FROM t)) GROUP BY flag",
    "SELECT b, sum(price) FROM t GROUP BY b HAVING sum(price) > (SELECT sum(price) * 0.0015 FROM t) ORDER BY 2 LIMIT 5",
    "SELECT (SELECT count(*) FROM t WHERE a = 2), max(day) FROM t",
    "SELECT flag, count(DISTINCT a), count(DISTINCT quantity), count(*) FROM t GROUP BY flag",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plans_of_several_fragments_are_kept() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut with = fixture.session(ON).await;
    let mut lazy = fixture.session("SET forebay.gpu = auto").await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    for query in OF_FRAGMENTS {
        let wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{query}: {wanted:?}");
        let before = fixture.runs_again();
        for _ in 0..3 {
            assert_eq!(rows(&mut with, query).await, wanted, "{query}");
        }
        assert_eq!(fixture.runs_again() - before, 2, "{query}");
        // The GPU does not compute one of the fragments of the plan: all is planned again.
        for _ in 0..3 {
            assert_eq!(rows(&mut lazy, query).await, wanted, "{query}");
            fixture.freeing.free(0, u64::MAX);
        }
    }
    // Another value of a subquery.
    replace(&fixture.files().join("t"), Sizes(&[500]));
    for query in OF_FRAGMENTS {
        let wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{query}: {wanted:?}");
        for _ in 0..2 {
            assert_eq!(rows(&mut with, query).await, wanted, "{query}");
        }
    }
}

/// The values of subqueries lie in the expressions of a plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_with_subqueries_is_that_of_one_run() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700]));
    let mut session = fixture.session(ON).await;
    let mut other = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    // More rows than are computed before they are read.
    let query = "SELECT x.b, y.b FROM (SELECT b, count(*) FROM t GROUP BY b) AS x, (SELECT b, count(*) FROM t GROUP BY b) AS y
        WHERE x.b + y.b > (SELECT avg(b) FROM t)";
    let wanted = rows(&mut without, query).await;
    assert!(wanted.as_ref().is_ok_and(|it| it.len() > 100_000));
    let mut before = fixture.runs_again();
    let mut again = || {
        let now = fixture.runs_again();
        let runs = now - before;
        before = now;
        runs
    };
    for wanted_again in [0, 1] {
        assert_eq!(rows(&mut session, query).await, wanted);
        assert_eq!(again(), wanted_again);
    }
    let begin = async |session: &mut Session| {
        let parsed = parse(query).expect("a query").remove(0);
        let Outcome::Rows(mut rows) = session.run(parsed).await.expect("rows") else {
            panic!("no rows");
        };
        let first = rows.next().await.expect("rows").expect("a batch");
        (first.num_rows() + 4, rows)
    };
    let (mut lines, mut running) = begin(&mut session).await;
    assert_eq!(again(), 1);
    // Another run has a plan of its own, which is kept.
    for wanted_again in [0, 1] {
        assert_eq!(rows(&mut other, query).await, wanted);
        assert_eq!(again(), wanted_again);
    }
    while let Some(batch) = running.next().await.expect("rows") {
        lines += batch.num_rows();
    }
    assert_eq!(lines, wanted.as_ref().expect("rows").len());
    drop(running);
    assert_eq!(rows(&mut session, query).await, wanted);
    assert_eq!(again(), 1);
    // A run that did not end does not give its plan back.
    drop(begin(&mut session).await);
    assert_eq!(again(), 1);
    for wanted_again in [0, 1] {
        assert_eq!(rows(&mut session, query).await, wanted);
        assert_eq!(again(), wanted_again);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_plans_follow_the_tables() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(ON).await;
    let mut other = fixture.session("SET forebay.gpu = off").await;
    done(
        &mut session,
        "CREATE TABLE m (k int, v int); INSERT INTO m SELECT value % 5, value FROM generate_series(1, 1000) AS s(value)",
    )
    .await;
    let managed = "SELECT k, count(*), sum(v) FROM m WHERE v > 10 GROUP BY k";
    let of_files = "SELECT flag, count(*), sum(b) FROM t WHERE a > 3 GROUP BY flag";
    let changes = [
        "INSERT INTO m VALUES (7, 77)",
        "UPDATE m SET v = v + 1 WHERE k = 2",
        "DELETE FROM m WHERE k = 7",
        "TRUNCATE m",
        "INSERT INTO m VALUES (1, 11), (1, 12), (2, 2)",
        "",
    ];
    for change in changes {
        for (query, runs) in [(managed, 0), (managed, 1), (of_files, 1)] {
            let before = fixture.runs_again();
            let wanted = rows(&mut other, query).await;
            assert_eq!(rows(&mut session, query).await, wanted, "before {change}");
            // A table without files has no column to read on the engine.
            let is_empty = change.starts_with("INSERT INTO m VALUES (1");
            let is_first = query == of_files && change.contains("(7, 77)");
            let wanted = match is_empty && query == managed || is_first {
                true => 0,
                false => runs,
            };
            assert_eq!(
                fixture.runs_again() - before,
                wanted,
                "before {change}: {query}"
            );
        }
        if !change.is_empty() {
            done(&mut other, change).await;
        }
    }
    // A file that is replaced, and another one.
    replace(&fixture.files().join("t"), Sizes(&[200]));
    let wanted = rows(&mut other, of_files).await;
    assert_eq!(rows(&mut session, of_files).await, wanted);
    replace(&fixture.files().join("t"), Sizes(&[200, 100]));
    let again = rows(&mut other, of_files).await;
    assert_ne!(again, wanted);
    assert_eq!(rows(&mut session, of_files).await, again);
}

/// Writes the files of a table beside it, and moves them there.
pub(super) fn replace(folder: &Path, sizes: Sizes) {
    let beside = folder.with_extension("new");
    write(&beside, sizes);
    for entry in std::fs::read_dir(&beside).expect("files") {
        let file = entry.expect("a file").path();
        std::fs::rename(&file, folder.join(file.file_name().expect("a name"))).expect("a file");
    }
    std::fs::remove_dir_all(beside).expect("a folder");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_plans_are_those_of_their_parameters_and_settings() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut session = fixture.session(ON).await;
    let mut other = fixture.session("SET forebay.gpu = off").await;
    let text = "SELECT flag, count(*) FROM t WHERE a > $1 AND b < $2 GROUP BY flag ORDER BY 2 DESC, 1 LIMIT 2";
    let prepare = || parse(text).expect("a statement").remove(0);
    let prepared = session.prepare(prepare(), &[]).await.expect("a plan");
    let of_other = other.prepare(prepare(), &[]).await.expect("a plan");
    for round in 0..2 {
        let before = fixture.runs_again();
        // More values than plans that are kept of a statement.
        for value in 0..12_i64 {
            let values = vec![ScalarValue::from(value % 9), ScalarValue::from(500 + value)];
            let outcome = session.execute(&prepared, values.clone()).await;
            let with = lines(outcome.expect("rows")).await;
            let outcome = other.execute(&of_other, values).await;
            let without = lines(outcome.expect("rows")).await;
            assert_eq!(with, without, "round {round}, value {value}");
        }
        assert_eq!(fixture.runs_again() - before, 0);
    }
    for _ in 0..3 {
        let values = vec![ScalarValue::from(4_i64), ScalarValue::from(500_i64)];
        let outcome = session.execute(&prepared, values).await;
        lines(outcome.expect("rows")).await.expect("rows");
    }
    assert_eq!(fixture.runs_again(), 2);
    // A session that does not use the engine has a plan of its own.
    let query = "SELECT count(*) FROM t WHERE a > 2";
    for _ in 0..2 {
        rows(&mut session, query).await.expect("rows");
        let plan = rows(&mut other, &format!("EXPLAIN {query}")).await;
        assert!(!plan.expect("a plan").concat().contains("Gpu"));
        rows(&mut other, query).await.expect("rows");
    }
    assert_eq!(fixture.runs_again(), 3);
    // Columns that are gone are read by the CPU, and nothing fails.
    let mut lazy = fixture.session("SET forebay.gpu = auto").await;
    let wanted = rows(&mut other, query).await;
    for _ in 0..2 {
        assert_eq!(rows(&mut lazy, query).await, wanted);
        fixture.freeing.free(0, u64::MAX);
    }
    for _ in 0..2 {
        fixture.freeing.free(0, u64::MAX);
        assert_eq!(rows(&mut session, query).await, wanted);
    }
}

/// The kernel that adds totals runs with those of joins if the last run tells the groups.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_of_the_last_run_are_compared_with_those_of_this_one() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let mut session = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let launches = || fixture.emulated.launches.load(Ordering::Relaxed);
    let by_label = "SELECT label, count(*), sum(b) FROM t JOIN d ON a = k GROUP BY 1";
    for (query, of_first) in [
        (by_label, 2),
        ("SELECT count(*), sum(b) FROM t JOIN d ON a = k", 1),
    ] {
        let wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok(), "{wanted:?}");
        for of_run in [of_first, 1, 1] {
            let before = launches();
            assert_eq!(rows(&mut session, query).await, wanted);
            assert_eq!(launches() - before, of_run, "{query}");
        }
    }
    let all = fixture.columns.written.all();
    let with_marks = all.iter().filter(|it| it.mark_words > 0);
    let with_marks: Vec<_> = with_marks.collect();
    assert_eq!(with_marks.len(), 1);
    let (marks, _) = with_marks[0].last_marked.get().expect("marks");
    let wanted = rows(&mut without, by_label).await;
    for wrong in [vec![0; marks.len()], vec![u32::MAX; marks.len()]] {
        let groups = with_marks[0].groups(Some(&wrong)).expect("groups");
        with_marks[0].last_marked.put(&wrong, &Arc::new(groups));
        let before = launches();
        assert_eq!(rows(&mut session, by_label).await, wanted);
        assert_eq!(launches() - before, 2);
        assert_eq!(rows(&mut session, by_label).await, wanted);
        assert_eq!(launches() - before, 3);
        let (found, _) = with_marks[0].last_marked.get().expect("marks");
        assert_eq!(found, marks);
    }
}

/// What DataFusion resets for each step of a recursive query is no kept plan.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recursive_queries_and_time_zones() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[300]));
    let mut other = fixture.session("SET forebay.gpu = off").await;
    let recursive = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT r.n + 1 FROM r
        JOIN (SELECT a, count(*) AS c FROM t GROUP BY a) g ON g.a = r.n WHERE r.n < 5) SELECT * FROM r";
    let wanted = rows(&mut other, recursive).await;
    assert!(wanted.is_ok());
    for settings in ["SET forebay.gpu = auto", ON] {
        let mut session = fixture.session(settings).await;
        for _ in 0..3 {
            assert_eq!(rows(&mut session, recursive).await, wanted, "{settings}");
        }
    }
    // A statement that was prepared in another time zone than it ran in.
    let query = "SELECT name, to_unixtime('2026-01-01T00:00:00'), count(*) FROM t GROUP BY name";
    let wanted = rows(&mut other, query).await;
    assert!(wanted.is_ok(), "{wanted:?}");
    let mut moved = fixture.session(ON).await;
    let parsed = parse(query).expect("a query").remove(0);
    let prepared = moved.prepare(parsed, &[]).await.expect("a plan");
    done(&mut moved, "SET TimeZone = 'Asia/Tokyo'").await;
    let outcome = moved.execute(&prepared, Vec::new()).await.expect("rows");
    lines(outcome).await.expect("rows");
    let mut session = fixture.session(ON).await;
    for _ in 0..2 {
        assert_eq!(rows(&mut session, query).await, wanted);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_without_room_on_the_device_are_read_from_the_host() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    fixture.emulated.free_bytes.store(0, Ordering::Relaxed);
    let mut session = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let queries = [
        "SELECT flag, sum(quantity), max(wide) FROM t GROUP BY flag",
        "SELECT label, count(*), sum(price) FROM t JOIN d ON a = k GROUP BY label",
    ];
    let mut same_rows = async |session: &mut Session| {
        for query in queries {
            let wanted = rows(&mut without, query).await;
            assert!(wanted.is_ok());
            assert_eq!(rows(session, query).await, wanted, "{query}");
        }
    };
    let bytes = || {
        let figures = fixture.tables.gpu_figures().remove(0);
        (figures.column_bytes, figures.host_bytes)
    };
    same_rows(&mut session).await;
    let (on_device, on_host) = bytes();
    assert!(on_device == 0 && on_host > 0);
    let explain = format!("EXPLAIN ANALYZE {}", queries[1]);
    let plan = rows(&mut session, &explain)
        .await
        .expect("a plan")
        .join("\n");
    assert!(plan.contains("on the device (0.0 %) and "), "{plan}");
    // When there is room, the columns that are read often are brought to the device.
    fixture
        .emulated
        .free_bytes
        .store(u64::MAX, Ordering::Relaxed);
    let began = Instant::now();
    while bytes().1 > 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", bytes());
        same_rows(&mut session).await;
    }
    assert_eq!(bytes(), (on_host, 0));
    same_rows(&mut session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn texts_without_room_are_searched_by_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[3000]));
    let free = |bytes| fixture.emulated.free_bytes.store(bytes, Ordering::Relaxed);
    let searches = || fixture.emulated.searches.load(Ordering::Relaxed);
    let mut session = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let mut same_rows = async |query: &str| {
        let wanted = rows(&mut without, query).await;
        assert!(wanted.is_ok());
        assert_eq!(rows(&mut session, query).await, wanted, "{query}");
    };
    free(0);
    same_rows("SELECT count(*) FROM t WHERE note LIKE '%7%3%'").await;
    assert_eq!(searches(), 0);
    // When there is room, the texts are tried again after a hundred reads.
    free(u64::MAX);
    for number in 100..300 {
        let query = format!("SELECT count(*) FROM t WHERE note LIKE '%{number}%'");
        same_rows(&query).await;
        if searches() > 0 {
            break;
        }
    }
    assert_eq!(searches(), 1);
    // The same pattern is not searched again, another one is.
    same_rows("SELECT flag, count(*) FROM t WHERE note NOT LIKE '%77%' GROUP BY flag").await;
    same_rows("SELECT flag, count(*) FROM t WHERE note LIKE '%77%' GROUP BY flag").await;
    assert_eq!(searches(), 2);
    // A text is too long for the device.
    let create = "CREATE TABLE long AS SELECT value % 2 AS half,
        CASE WHEN value = 77 THEN repeat('x', 5000) ELSE 'n' || value END AS note FROM generate_series(1, 3000)";
    done(&mut fixture.session(ON).await, create).await;
    same_rows(
        "SELECT half, count(*) FROM long WHERE note LIKE '%x%' OR note LIKE '%3' GROUP BY half",
    )
    .await;
    assert_eq!(searches(), 2);
}

/// A dropped table leaves no file, also if a kept plan read it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kept_plans_keep_no_files_of_dropped_tables() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[1]));
    let mut session = fixture.session(ON).await;
    done(
        &mut session,
        "CREATE TABLE m (k int); INSERT INTO m SELECT value % 5 FROM generate_series(1, 100) AS s(value)",
    )
    .await;
    for _ in 0..2 {
        rows(&mut session, "SELECT k, count(*) FROM m GROUP BY k")
            .await
            .expect("rows");
    }
    assert_eq!(fixture.runs_again(), 1);
    assert!(!parquet_files(&fixture.data()).is_empty());
    done(&mut session, "DROP TABLE m").await;
    assert_eq!(parquet_files(&fixture.data()), Vec::<PathBuf>::new());
}

/// Returns the Parquet files in a folder and its folders.
fn parquet_files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|it| it.expect("an entry").path());
    let files = paths.flat_map(|path| match path.is_dir() {
        true => parquet_files(&path),
        false => vec![path],
    });
    let is_parquet = |path: &PathBuf| path.extension().is_some_and(|it| it == "parquet");
    files.filter(is_parquet).collect()
}
