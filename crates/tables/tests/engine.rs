//! Sessions on the engine, as the doors use them.

#[path = "engine/activity.rs"]
mod activity;
#[path = "engine/nan.rs"]
mod nan;
#[path = "engine/plans.rs"]
mod plans;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::util::display::array_value_to_string;
use datafusion::scalar::ScalarValue;
use forebay_memory::Account;
use forebay_tables::{
    Code, Outcome, Paths, Session, Settings, SqlError, Tables, TransactionStatus, parse,
};
use forebay_testkit::wait_for;
use tempfile::TempDir;

/// An engine with two files, and a folder of partitions.
struct Fixture {
    folder: TempDir,
    tables: Arc<Tables>,
}

impl Fixture {
    fn new() -> Fixture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path();
        let files = root.join("files");
        fs::create_dir_all(files.join("sales/year=2024")).expect("room");
        fs::create_dir_all(files.join("sales/year=2025")).expect("room");
        fs::write(
            files.join("people.csv"),
            "name,age\nAda,36\nAlan,41\nGrace,\n",
        )
        .expect("room");
        fs::write(
            files.join("events.jsonl"),
            "{\"id\":1,\"tags\":[\"a\",\"b\"]}\n{\"id\":2,\"tags\":[]}\n",
        )
        .expect("room");
        fs::write(files.join("sales/year=2024/a.csv"), "amount\n1\n2\n").expect("room");
        fs::write(files.join("sales/year=2025/b.csv"), "amount\n10\n").expect("room");
        let tables = Tables::open(settings(root)).expect("an engine");
        Fixture { folder, tables }
    }

    fn root(&self) -> &Path {
        self.folder.path()
    }

    fn session(&self) -> Session {
        self.tables.session("ada")
    }

    fn reopened(&self) -> Arc<Tables> {
        Tables::open(settings(self.root())).expect("an engine")
    }
}

fn settings(root: &Path) -> Settings {
    Settings {
        folder: Some(root.join("data")),
        source: None,
        gpu_rules: Vec::new(),
        tables: Some(root.join("files")),
        paths: Paths::Inside(vec![root.join("files")]),
        memory: Account::new(256 << 20),
        memory_bytes_max: 128 << 20,
        spill_bytes_max: 1 << 30,
        slow_statement: Duration::MAX,
        threads: 2,
    }
}

/// Runs statements, and returns the rows of the last as texts, or its tag.
async fn run(session: &mut Session, text: &str) -> Result<Vec<String>, SqlError> {
    let mut last = Vec::new();
    for parsed in parse(text)? {
        last = rows(session.run(parsed).await?).await?;
    }
    Ok(last)
}

async fn rows(outcome: Outcome) -> Result<Vec<String>, SqlError> {
    let mut rows = match outcome {
        Outcome::Done(tag) => return Ok(vec![tag]),
        Outcome::Rows(rows) => rows,
        Outcome::CopyIn(copied) => panic!("rows for {} are wanted", copied.table()),
    };
    let mut texts = Vec::new();
    while let Some(batch) = rows.next().await? {
        for row in 0..batch.num_rows() {
            let cells = batch
                .columns()
                .iter()
                .map(|column| array_value_to_string(column, row).expect("all values have a text"));
            texts.push(cells.collect::<Vec<_>>().join("|"));
        }
    }
    Ok(texts)
}

async fn code(session: &mut Session, text: &str) -> Code {
    run(session, text).await.expect_err(text).code
}

#[tokio::test]
async fn files_and_folders_are_tables() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let mut is = async |text: &str, expected: &[&str]| {
        assert_eq!(
            run(&mut session, text).await.expect(text),
            expected,
            "{text}"
        );
    };
    is("SELECT name FROM people WHERE age > 40", &["Alan"]).await;
    is("SELECT count(*), sum(id) FROM events", &["2|3"]).await;
    is(
        "SELECT year, sum(amount) FROM sales GROUP BY year ORDER BY year",
        &["2024|3", "2025|10"],
    )
    .await;
    let path = fixture.root().join("files/people.csv");
    let of_path = format!("SELECT count(*) FROM '{}'", path.display());
    is(&of_path, &["3"]).await;
    let glob = format!(
        "SELECT sum(amount) FROM '{}/files/sales/*/*.csv'",
        fixture.root().display()
    );
    is(&glob, &["13"]).await;
    // What other tools keep in a folder of theirs.
    for (name, text) in [
        ("_delta_log/0.json", "{\"amount\": 5}\n"),
        (".c.csv", "amount\n100\n"),
        ("_c.csv", "amount\n100\n"),
    ] {
        let file = fixture.root().join("files/sales").join(name);
        fs::create_dir_all(file.parent().expect("a folder")).expect("room");
        fs::write(file, text).expect("room");
    }
    is("SELECT sum(amount) FROM sales", &["13"]).await;
    fs::write(&path, "name,age,city\nAda,36,London\n").expect("room");
    is("SELECT * FROM people", &["Ada|36|London"]).await;
    is(
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1",
        &["events", "people", "sales"],
    )
    .await;
    is(
        "SELECT relname FROM pg_catalog.pg_class WHERE relname = 'people'",
        &["people"],
    )
    .await;
}

#[tokio::test]
async fn declarations_last_and_are_seen_whole() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let location = fixture.root().join("files/people.csv");
    let create = format!(
        "CREATE EXTERNAL TABLE p STORED AS CSV LOCATION '{}' OPTIONS ('format.has_header' 'true')",
        location.display()
    );
    assert_eq!(
        run(&mut session, &create).await.expect("a table"),
        ["CREATE TABLE"]
    );
    assert_eq!(code(&mut session, &create).await, Code::DuplicateTable);
    run(
        &mut session,
        "CREATE SCHEMA s; CREATE VIEW s.old AS SELECT name FROM p WHERE age > 40",
    )
    .await
    .expect("a view");
    let mut again = fixture.reopened().session("ada");
    assert_eq!(
        run(&mut again, "SELECT * FROM s.old")
            .await
            .expect("it lasts"),
        ["Alan"]
    );
    assert_eq!(
        run(&mut again, "DROP TABLE p").await.expect("it is there"),
        ["DROP TABLE"]
    );
    assert_eq!(
        code(&mut again, "SELECT * FROM s.old").await,
        Code::UndefinedTable
    );
    assert_eq!(code(&mut again, "DROP TABLE p").await, Code::UndefinedTable);
    run(&mut again, "DROP TABLE IF EXISTS p")
        .await
        .expect("a notice");
    assert_eq!(again.take_notices().len(), 1);
    let missing = "CREATE EXTERNAL TABLE m STORED AS CSV LOCATION '/nowhere/x.csv'";
    assert_eq!(code(&mut again, missing).await, Code::InsufficientPrivilege);
}

#[tokio::test]
async fn views_of_themselves_are_an_error() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let text = "CREATE VIEW a AS SELECT 1 AS x; CREATE VIEW b AS SELECT * FROM a; \
                CREATE OR REPLACE VIEW a AS SELECT * FROM b";
    run(&mut session, text).await.expect("each alone is right");
    assert_eq!(
        code(&mut session, "SELECT * FROM a").await,
        Code::StatementTooComplex
    );
    run(&mut session, "CREATE OR REPLACE VIEW b AS SELECT 1 AS x")
        .await
        .expect("it mends this");
    assert_eq!(
        run(&mut session, "SELECT * FROM a").await.expect("mended"),
        ["1"]
    );
}

#[tokio::test]
async fn parameters_have_types_and_values() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let text = "SELECT name, $2 AS more FROM people WHERE age > $1";
    let parsed = parse(text).expect("a statement").remove(0);
    let declared = [None, Some(DataType::Int32)];
    let prepared = session.prepare(parsed, &declared).await.expect("a plan");
    assert_eq!(
        prepared.parameters(),
        [Some(DataType::Int64), Some(DataType::Int32)]
    );
    let columns = prepared.columns().expect("rows");
    assert_eq!(columns.field(1).data_type(), &DataType::Int32);
    for (age, expected) in [(40, vec!["Alan|7"]), (36, vec!["Alan|7"]), (50, vec![])] {
        let values = vec![ScalarValue::from(age as i64), ScalarValue::from(7_i32)];
        let outcome = session.execute(&prepared, values).await.expect("rows");
        assert_eq!(rows(outcome).await.expect("rows"), expected);
    }
    let error = session
        .execute(&prepared, Vec::new())
        .await
        .expect_err("no values");
    assert_eq!(error.code, Code::ProtocolViolation);
    let text = "PREPARE q(bigint) AS SELECT $1 + 1; EXECUTE q(41)";
    assert_eq!(run(&mut session, text).await.expect("rows"), ["42"]);
    assert_eq!(
        code(&mut session, "EXECUTE q(1, 2)").await,
        Code::SyntaxError
    );
}

#[tokio::test]
async fn cursors_go_on_and_back() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    assert_eq!(
        code(&mut session, "DECLARE c CURSOR FOR SELECT 1").await,
        Code::NoActiveTransaction
    );
    let rows = "SELECT * FROM generate_series(1, 5)";
    for (options, steps) in [
        (
            "SCROLL",
            vec![
                ("FETCH 2 FROM c", vec!["1", "2"]),
                ("FETCH c", vec!["3"]),
                ("FETCH 0 FROM c", vec!["3"]),
                ("FETCH PRIOR c", vec!["2"]),
                ("FETCH ALL c", vec!["3", "4", "5"]),
                ("FETCH c", vec![]),
                ("FETCH BACKWARD 2 c", vec!["5", "4"]),
                ("FETCH BACKWARD ALL c", vec!["3", "2", "1"]),
                ("FETCH PRIOR c", vec![]),
                ("FETCH ABSOLUTE 4 c", vec!["4"]),
                ("FETCH ABSOLUTE -5 c", vec!["1"]),
                ("FETCH LAST c", vec!["5"]),
                ("FETCH RELATIVE -2 c", vec!["3"]),
                ("FETCH RELATIVE 1 c", vec!["4"]),
                ("MOVE FIRST c", vec!["MOVE 1"]),
                ("FETCH c", vec!["2"]),
                ("MOVE BACKWARD ALL c", vec!["MOVE 1"]),
                ("FETCH c", vec!["1"]),
            ],
        ),
        (
            "NO SCROLL",
            vec![
                ("FETCH 2 FROM c", vec!["1", "2"]),
                ("MOVE ALL c", vec!["MOVE 3"]),
            ],
        ),
    ] {
        let declare = format!("BEGIN; DECLARE c {options} CURSOR FOR {rows}");
        run(&mut session, &declare).await.expect(&declare);
        for (step, expected) in steps {
            assert_eq!(
                run(&mut session, step).await.expect(step),
                expected,
                "{step}"
            );
        }
        let back = run(&mut session, "FETCH PRIOR c").await;
        assert_eq!(back.is_ok(), options == "SCROLL", "{options}");
        run(&mut session, "ROLLBACK").await.expect("the end");
        assert_eq!(code(&mut session, "FETCH c").await, Code::InvalidCursorName);
    }
    let text = format!("BEGIN; DECLARE h CURSOR WITH HOLD FOR {rows}; FETCH 2 h; COMMIT; FETCH h");
    assert_eq!(run(&mut session, &text).await.expect("it is held"), ["3"]);
}

#[tokio::test]
async fn a_cursor_without_scroll_begins_again_after_many_rows() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let text =
        "BEGIN; DECLARE c CURSOR FOR SELECT * FROM generate_series(1, 3000000); MOVE 2500000 c";
    assert_eq!(
        run(&mut session, text).await.expect("rows"),
        ["MOVE 2500000"]
    );
    assert_eq!(
        run(&mut session, "FETCH c").await.expect("rows"),
        ["2500001"]
    );
    run(&mut session, "MOVE BACKWARD ALL IN c")
        .await
        .expect("it runs again");
    assert_eq!(
        run(&mut session, "FETCH 2 c").await.expect("rows"),
        ["1", "2"]
    );
}

#[tokio::test]
async fn transactions_fail_and_recover_as_in_postgresql() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    run(&mut session, "BEGIN; SAVEPOINT a; SELECT 1")
        .await
        .expect("all is right");
    assert_eq!(
        code(&mut session, "SELECT * FROM missing").await,
        Code::UndefinedTable
    );
    assert_eq!(session.transaction_status(), TransactionStatus::Failed);
    assert_eq!(
        code(&mut session, "SELECT 1").await,
        Code::FailedTransaction
    );
    run(&mut session, "ROLLBACK TO SAVEPOINT a; RELEASE a; SELECT 1")
        .await
        .expect("recovered");
    assert_eq!(session.transaction_status(), TransactionStatus::Active);
    assert_eq!(
        code(&mut session, "CREATE VIEW v AS SELECT 1").await,
        Code::ReadOnlyTransaction
    );
    assert_eq!(
        run(&mut session, "COMMIT").await.expect("an end"),
        ["ROLLBACK"]
    );
    assert_eq!(session.transaction_status(), TransactionStatus::Idle);
    run(&mut session, "COMMIT").await.expect("a warning");
    assert_eq!(session.take_notices().len(), 1);
}

#[tokio::test]
async fn settings_are_kept_and_used() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let mut is = async |text: &str, expected: &[&str]| {
        assert_eq!(
            run(&mut session, text).await.expect(text),
            expected,
            "{text}"
        );
    };
    is("SET application_name = 'x'; SHOW application_name", &["x"]).await;
    is("SELECT current_setting('application_name')", &["x"]).await;
    is(
        "SET TIME ZONE 'Europe/Vienna'; SHOW TIME ZONE",
        &["Europe/Vienna"],
    )
    .await;
    is("RESET ALL; SHOW TimeZone", &["UTC"]).await;
    is("SHOW TRANSACTION ISOLATION LEVEL", &["read committed"]).await;
    is(
        "SELECT session_user, current_database(), current_schema()",
        &["ada|forebay|public"],
    )
    .await;
    is("SELECT 0.1 + 0.2 = 0.3", &["true"]).await;
    is(
        "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
        &["SET"],
    )
    .await;
    assert_eq!(
        code(&mut session, "SET datafusion.execution.batch_size = 1").await,
        Code::InsufficientPrivilege
    );
    assert_eq!(
        code(&mut session, "SET nothing = 1").await,
        Code::UndefinedObject
    );
}

#[tokio::test]
async fn a_timeout_ends_a_query() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let endless =
        "SELECT count(*) FROM generate_series(1, 10000000) a, generate_series(1, 10000000) b";
    run(&mut session, "SET statement_timeout = 200")
        .await
        .expect("a setting");
    let error = run(&mut session, endless)
        .await
        .expect_err("it takes hours");
    assert_eq!(error.code, Code::QueryCanceled);
    run(&mut session, "RESET statement_timeout")
        .await
        .expect("a setting");
    assert_eq!(
        run(&mut session, "SELECT 1")
            .await
            .expect("the session goes on"),
        ["1"]
    );
}

#[tokio::test]
async fn errors_name_what_is_wrong() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    fs::write(
        fixture.root().join("files/broken.parquet"),
        "PAR1 no footer",
    )
    .expect("room");
    fs::write(fixture.root().join("files/ragged.csv"), "a,b\n1,2\n1,2,3\n").expect("room");
    for (text, expected, part) in [
        ("SELECT * FROM missing", Code::UndefinedTable, "missing"),
        ("SELECT nme FROM people", Code::UndefinedColumn, "nme"),
        (
            "SELECT lenght(name) FROM people",
            Code::UndefinedFunction,
            "lenght",
        ),
        ("SELECT 1/0", Code::DivisionByZero, "zero"),
        (
            "SELECT CAST('x' AS int)",
            Code::InvalidTextRepresentation,
            "x",
        ),
        ("SELEC 1", Code::SyntaxError, "SELEC"),
        (
            "SELECT name, count(*) FROM people",
            Code::GroupingError,
            "name",
        ),
        ("SELECT * FROM broken", Code::DataCorrupted, "Parquet"),
        ("SELECT * FROM ragged", Code::BadCopyFileFormat, "3"),
        (
            "SELECT * FROM '/etc/passwd.csv'",
            Code::InsufficientPrivilege,
            "/etc/passwd.csv",
        ),
        (
            "CREATE TABLE t (a int PRIMARY KEY)",
            Code::FeatureNotSupported,
            "PRIMARY KEY",
        ),
        (
            "INSERT INTO people VALUES (1)",
            Code::WrongObjectType,
            "people",
        ),
        (
            "COPY people TO '/tmp/x.csv'",
            Code::FeatureNotSupported,
            "COPY",
        ),
        (
            "EXPLAIN ANALYZE INSERT INTO people VALUES ('x', 1)",
            Code::FeatureNotSupported,
            "",
        ),
    ] {
        let error = run(&mut session, text).await.expect_err(text);
        assert_eq!(error.code, expected, "{text}: {error}");
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
    let error = run(&mut session, "SELECT name,\n  nme FROM people")
        .await
        .expect_err("no column");
    assert_eq!(
        error.position("SELECT name,\n  nme FROM people"),
        Some(16),
        "{error}"
    );
}

#[tokio::test]
async fn errors_of_alter_table_tell_what_there_is() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    for (text, part) in [
        (
            "ALTER TABLE people ADD COLUMN a int",
            "ALTER TABLE is not supported, except SET (gpu = ...) and RESET (gpu)",
        ),
        (
            "ALTER TABLE people SET (gpu = on)",
            "CREATE EXTERNAL TABLE n STORED AS PARQUET LOCATION '...'",
        ),
    ] {
        let error = run(&mut session, text).await.expect_err(text).to_string();
        assert!(error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn errors_of_content_name_the_file() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let files = fixture.root().join("files");
    fs::create_dir(files.join("mixed")).expect("room");
    for name in ["broken.parquet", "mixed/short.parquet"] {
        fs::write(files.join(name), "PAR1").expect("room");
    }
    for (table, part) in [
        ("broken", "files/broken.parquet: Parquet"),
        ("mixed", "files/mixed/short.parquet: Parquet"),
    ] {
        let text = format!("SELECT * FROM {table}");
        let error = run(&mut session, &text).await.expect_err(table);
        assert_eq!(error.code, Code::DataCorrupted, "{error}");
        assert!(error.message.contains(part), "{error}");
    }
}

#[tokio::test]
async fn kernels_need_a_gpu() {
    let fixture = Fixture::new();
    let text = "EXPLAIN (FORMAT kernel) SELECT count(*) FROM people";
    let error = run(&mut fixture.session(), text).await.expect_err(text);
    assert_eq!(error.code, Code::ObjectNotInState);
    let error = error.to_string();
    assert!(error.contains("this process has no GPU") && error.contains("forebay doctor"));
}

#[tokio::test]
async fn memory_is_given_back_and_its_lack_is_an_error() {
    let fixture = Fixture::new();
    let memory = Account::new(64 << 20);
    let mut settings = settings(fixture.root());
    settings.folder = None;
    settings.memory = memory.clone();
    settings.memory_bytes_max = 16 << 20;
    settings.spill_bytes_max = 1 << 20;
    let tables = Tables::open(settings).expect("an engine");
    let mut session = tables.session("ada");
    let big = "SELECT count(*) FROM (SELECT DISTINCT value * 7919 % 20000003 FROM generate_series(1, 20000000))";
    let error = run(&mut session, big).await.expect_err("it needs more");
    assert!(
        matches!(error.code, Code::OutOfMemory | Code::DiskFull),
        "{error:?}"
    );
    assert_eq!(
        run(&mut session, "SELECT 1")
            .await
            .expect("the session goes on"),
        ["1"]
    );
    // Plans are kept.
    let given_back = async || Ok((memory.figures().used_bytes <= 1 << 20).then_some(()));
    wait_for(
        "queries give their memory back",
        Duration::from_secs(10),
        given_back,
    )
    .await
    .expect("it is given back");
}
