//! Names of columns and values of expressions. All expectations are answers of PostgreSQL 15.

use std::sync::Arc;
use std::time::Duration;

use datafusion::arrow::util::display::array_value_to_string;
use forebay_memory::Account;
use forebay_tables::{Code, Outcome, Paths, Session, Settings, SqlError, Tables, parse};

#[path = "semantics/answers.rs"]
mod answers;

use answers::ANSWERS;

/// Tables with NULLs.
const TABLES: &str = "\
    CREATE VIEW n AS SELECT * FROM (VALUES (1, 1, 1), (2, 2, NULL), (3, 2, 3), (4, NULL, 1), (5, NULL, NULL), \
        (6, 9, 2)) v(id, a, b); \
    CREATE VIEW m AS SELECT * FROM (VALUES (1, 2), (1, NULL), (2, 2), (NULL, 4)) v(a, b)";

fn engine() -> Arc<Tables> {
    let settings = Settings {
        folder: None,
        source: None,
        gpu_rules: Vec::new(),
        tables: None,
        paths: Paths::Inside(Vec::new()),
        memory: Account::new(256 << 20),
        memory_bytes_max: 128 << 20,
        spill_bytes_max: 1 << 30,
        slow_statement: Duration::MAX,
        threads: 2,
    };
    Tables::open(settings).expect("an engine")
}

/// Runs statements. Returns the names of the last one's columns, and its rows.
async fn run(session: &mut Session, text: &str) -> Result<(String, Vec<String>), SqlError> {
    let mut last = (String::new(), Vec::new());
    for parsed in parse(text)? {
        let prepared = session.prepare(parsed, &[]).await?;
        let mut names = Vec::new();
        if let Some(columns) = prepared.columns() {
            names.extend(columns.fields().iter().map(|field| field.name().clone()));
        }
        let outcome = session.execute(&prepared, Vec::new()).await?;
        last = (names.join("|"), rows(outcome, &names).await?);
    }
    Ok(last)
}

async fn rows(outcome: Outcome, names: &[String]) -> Result<Vec<String>, SqlError> {
    let Outcome::Rows(mut rows) = outcome else {
        return Ok(Vec::new());
    };
    let mut texts = Vec::new();
    while let Some(batch) = rows.next().await? {
        let schema = batch.schema();
        assert!(schema.fields().iter().map(|field| field.name()).eq(names));
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

#[tokio::test]
async fn columns_have_the_names_of_postgresql() {
    let mut session = engine().session("ada");
    for (text, names, expected) in NAMED {
        let (found, rows) = run(&mut session, text).await.expect(text);
        assert_eq!(found, *names, "{text}");
        assert_eq!(rows, *expected, "{text}");
    }
}

#[tokio::test]
async fn values_are_those_of_postgresql() {
    let mut session = engine().session("ada");
    run(&mut session, TABLES).await.expect("tables");
    let mut wrong = Vec::new();
    for (text, expected) in ANSWERS {
        match run(&mut session, text).await {
            Ok((_, rows)) if rows == *expected => {}
            other => wrong.push(format!("{text}: {other:?}, not {expected:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_postgresql_refuses_is_refused() {
    let mut session = engine().session("ada");
    run(&mut session, TABLES).await.expect("tables");
    for (text, code) in REFUSED {
        let found = run(&mut session, text).await;
        assert_eq!(found.map_err(|error| error.code), Err(*code), "{text}");
    }
}

#[tokio::test]
async fn sums_of_numerics_do_not_wrap() {
    let mut session = engine().session("ada");
    // The sum of two `x` needs more than 128 bits, that of two `y` has 39 digits.
    let (nines, y) = ("9".repeat(38), format!("6{}", "0".repeat(37)));
    let row = |id, sign| format!("({id}, {sign}{nines}::numeric(38, 0), {y}::numeric(38, 0))");
    let rows = [row(1, ""), row(2, ""), row(3, "-")].join(", ");
    let view = format!("CREATE VIEW large AS SELECT * FROM (VALUES {rows}) v(id, x, y)");
    run(&mut session, &view).await.expect("a view");
    for text in [
        "SELECT sum(x) FROM large WHERE id < 3",
        "SELECT sum(y) FROM large WHERE id < 3",
        "SELECT id < 3, sum(x) FROM large GROUP BY 1",
        "SELECT id < 3, sum(y) FROM large GROUP BY 1",
        "SELECT sum(x) FILTER (WHERE id < 3) FROM large",
        "SELECT sum(DISTINCT x - id) FROM large WHERE id < 3",
        "SELECT id < 3, sum(DISTINCT x - id) FROM large GROUP BY 1",
        "SELECT sum(x) OVER (ORDER BY id) FROM large",
        "SELECT sum(y) OVER (ORDER BY id ROWS 1 PRECEDING) FROM large",
    ] {
        let error = run(&mut session, text).await.expect_err(text);
        assert_eq!(error.code, Code::NumericValueOutOfRange, "{text}: {error}");
        assert_eq!(error.message, "numeric field overflow", "{text}");
        let hint = error.hint.expect(text);
        assert!(hint.ends_with("cast what is added to double precision"));
    }
    let (negative, even) = (format!("-{nines}"), format!("0|{nines}"));
    let answers: [(&str, &[&str]); 5] = [
        ("SELECT sum(x) FROM large", &[nines.as_str()]),
        ("SELECT sum(DISTINCT x) FROM large", &["0"]),
        (
            "SELECT id % 2, sum(x) FROM large GROUP BY 1 ORDER BY 1",
            &[even.as_str(), "1|0"],
        ),
        (
            "SELECT sum(x) OVER (ORDER BY id ROWS BETWEEN CURRENT ROW AND CURRENT ROW) FROM large",
            &[nines.as_str(), nines.as_str(), negative.as_str()],
        ),
        // The count of rows has more digits than 1.5.
        (
            "SELECT sum(g + 1.5), sum(g + 2.5) FROM generate_series(1, 20) g",
            &["240.0|260.0"],
        ),
    ];
    for (text, expected) in answers {
        let (_, rows) = run(&mut session, text).await.expect(text);
        assert_eq!(rows, expected, "{text}");
    }
}

#[tokio::test]
async fn long_lists_are_of_constants() {
    let mut session = engine().session("ada");
    let listed = |item: fn(i32) -> String, count| {
        let items: Vec<String> = (0..count).map(item).collect();
        format!(
            "SELECT count(*) FROM (VALUES (7)) v(a) WHERE a IN ({})",
            items.join(", ")
        )
    };
    let constants = run(&mut session, &listed(|n| n.to_string(), 20_000)).await;
    assert_eq!(constants.expect("a count").1, ["1"]);
    let computed = run(&mut session, &listed(|n| format!("a + {n}"), 2_000)).await;
    let code = computed.map_err(|error| error.code);
    assert_eq!(code, Err(Code::StatementTooComplex));
}

#[tokio::test]
async fn views_have_the_names_of_postgresql() {
    let mut session = engine().session("ada");
    let text = "CREATE VIEW v AS SELECT count(*), upper('a'), 1 FROM (VALUES (1)) t; \
                SELECT count, upper, \"?column?\", * FROM v";
    let (names, rows) = run(&mut session, text).await.expect("a view");
    assert_eq!(names, "count|upper|?column?|count|upper|?column?");
    assert_eq!(rows, ["1|A|1|1|A|1"]);
}

/// Statements, the names of their columns, and their rows.
const NAMED: &[(&str, &str, &[&str])] = &[
    ("SELECT 1", "?column?", &["1"]),
    ("SELECT 1, 1", "?column?|?column?", &["1|1"]),
    (
        "SELECT count(*), count(*) FROM (VALUES (1)) v",
        "count|count",
        &["1|1"],
    ),
    (
        "SELECT upper('a'), 'a'::text, true, null, -1, 1 + 1, 2.5::int, date '2020-01-01', \
        '1'::varchar(2), interval '2 days'",
        "upper|text|?column?|?column?|?column?|?column?|int4|date|varchar|interval",
        &["A|a|true||-1|2|3|2020-01-01|1|2 days"],
    ),
    (
        "SELECT a, a, a::int, b AS a FROM (VALUES (1, 2)) v(a, b)",
        "a|a|a|a",
        &["1|1|1|2"],
    ),
    (
        "SELECT CASE WHEN true THEN 1 END, CASE WHEN true THEN 1 ELSE a END, EXISTS (SELECT 1), (SELECT \
        1 AS m), (SELECT 1 + 1), ARRAY[1], coalesce(a, 1), nullif(a, 2), greatest(a, 1) FROM (VALUES \
        (1)) v(a)",
        "case|a|exists|m|?column?|array|coalesce|nullif|greatest",
        &["1|1|true|1|2|[1]|1|1|1"],
    ),
    (
        "SELECT extract(year FROM date '2020-01-01'), position('a' in 'ba'), substring('abc' from 2), \
        trim('x'), a IS NULL, a IN (1), NOT true, a BETWEEN 1 AND 2, a = 1, (a) FROM (VALUES (1)) v(a)",
        "extract|position|substring|btrim|?column?|?column?|?column?|?column?|?column?|a",
        &["2020|2|bc|x|false|true|false|true|true|1"],
    ),
    (
        "SELECT count FROM (SELECT count(*) FROM (VALUES (1)) v) s",
        "count",
        &["1"],
    ),
    (
        "SELECT s.* FROM (SELECT count(*), upper('a'), 1 FROM (VALUES (1)) v) s",
        "count|upper|?column?",
        &["1|A|1"],
    ),
    (
        "SELECT *, 1, a FROM (VALUES (1, 2)) v(a, b)",
        "a|b|?column?|a",
        &["1|2|1|1"],
    ),
    (
        "SELECT * FROM (SELECT 1, 2) s",
        "?column?|?column?",
        &["1|2"],
    ),
    (
        "SELECT 1, 1 UNION ALL SELECT 2, 3 ORDER BY 1",
        "?column?|?column?",
        &["1|1", "2|3"],
    ),
    (
        "SELECT a + 1 FROM (VALUES (1), (2)) v(a) UNION SELECT 5 ORDER BY 1 DESC",
        "?column?",
        &["5", "3", "2"],
    ),
    (
        "WITH c AS (SELECT max(a), min(a) FROM (VALUES (1), (3)) v(a)) SELECT max - min, max FROM c",
        "?column?|max",
        &["2|3"],
    ),
    (
        "SELECT upper(a) FROM (VALUES ('b'), ('a')) v(a) ORDER BY upper",
        "upper",
        &["A", "B"],
    ),
    (
        "SELECT upper(a), upper(a) FROM (VALUES ('b'), ('a')) v(a) ORDER BY upper",
        "upper|upper",
        &["A|A", "B|B"],
    ),
    (
        "SELECT DISTINCT upper(a) FROM (VALUES ('b'), ('a'), ('B')) v(a) ORDER BY upper(a)",
        "upper",
        &["A", "B"],
    ),
    (
        "SELECT DISTINCT ON (upper(a)) upper(a), a FROM (VALUES ('b'), ('a'), ('B')) v(a) ORDER BY \
        upper(a), a",
        "upper|a",
        &["A|a", "B|B"],
    ),
    (
        "SELECT -a FROM (VALUES (1), (2)) v(a) ORDER BY a",
        "?column?",
        &["-1", "-2"],
    ),
    (
        "SELECT -a AS a FROM (VALUES (1), (2)) v(a) ORDER BY a",
        "a",
        &["-2", "-1"],
    ),
    (
        "SELECT a::text FROM (VALUES (9), (10)) v(a) ORDER BY a",
        "a",
        &["10", "9"],
    ),
    (
        "SELECT a::text FROM (VALUES (9), (10)) v(a) ORDER BY a + 0",
        "a",
        &["9", "10"],
    ),
    (
        "SELECT a % 2, count(*) FROM (VALUES (1), (2), (3)) v(a) GROUP BY a % 2 ORDER BY count(*) DESC",
        "?column?|count",
        &["1|2", "0|1"],
    ),
    (
        "SELECT a % 2, count(*) FROM (VALUES (1), (2), (3)) v(a) GROUP BY 1 ORDER BY count",
        "?column?|count",
        &["0|1", "1|2"],
    ),
    (
        "SELECT upper(a), count(*) FROM (VALUES ('b'), ('B')) v(a) GROUP BY upper",
        "upper|count",
        &["B|2"],
    ),
    (
        "SELECT a::int, count(*) FROM (VALUES (1.2), (1.4)) v(a) GROUP BY a ORDER BY 1, 2",
        "a|count",
        &["1|1", "1|1"],
    ),
    (
        "SELECT max(a) FROM (VALUES (1), (2)) v(a) HAVING max(a) > 1",
        "max",
        &["2"],
    ),
    (
        "SELECT t.a, u.a FROM (VALUES (1)) t(a), (VALUES (2)) u(a)",
        "a|a",
        &["1|2"],
    ),
    (
        "SELECT t.*, u.a FROM (VALUES (1)) t(a), (VALUES (2)) u(a) ORDER BY u.a",
        "a|a",
        &["1|2"],
    ),
    ("VALUES (1, 'a')", "column1|column2", &["1|a"]),
    (
        "SELECT \"A\", \"A\" || 'x' AS \"B c\" FROM (VALUES ('q')) v(\"A\")",
        "A|B c",
        &["q|qx"],
    ),
    (
        "SELECT row_number() OVER (ORDER BY a), sum(a) OVER () FROM (VALUES (1), (2)) v(a)",
        "row_number|sum",
        &["1|3", "2|3"],
    ),
    (
        "SELECT (ARRAY[1,2])[1], a[1] FROM (SELECT ARRAY[7] AS a) v",
        "array|a",
        &["1|7"],
    ),
    (
        "SELECT t.x FROM (SELECT 1 AS x, 2 AS x2) t ORDER BY x",
        "x",
        &["1"],
    ),
    (
        "SELECT x AS y, x AS z FROM (SELECT 1 AS x) t ORDER BY y, z",
        "y|z",
        &["1|1"],
    ),
    (
        "SELECT generate_series(1, 2)",
        "generate_series",
        &["1", "2"],
    ),
    ("SELECT unnest(ARRAY[1, 2])", "unnest", &["1", "2"]),
    (
        "SELECT sum(a::int) / count(*) FROM (VALUES (1), (2)) v(a)",
        "?column?",
        &["1"],
    ),
];

/// Statements that fail, and the codes of their errors.
const REFUSED: &[(&str, Code)] = &[
    (
        "SELECT 2147483647::int + 1::int",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT (-2147483648)::int - 1::int",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT 100000::int * 100000::int",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT 9223372036854775807 + 1",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT 9223372036854775807 * 2",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT 32767::smallint + 1::smallint",
        Code::NumericValueOutOfRange,
    ),
    ("SELECT 1e10::int", Code::NumericValueOutOfRange),
    ("SELECT 3000000000::int", Code::NumericValueOutOfRange),
    ("SELECT 1.0::float8 / 0", Code::DivisionByZero),
    ("SELECT 0::float8 / 0::float8", Code::DivisionByZero),
    ("SELECT 1.5 / 0", Code::DivisionByZero),
    ("SELECT 1 / 0", Code::DivisionByZero),
    (
        "SELECT a FROM n INTERSECT ALL SELECT a FROM m",
        Code::FeatureNotSupported,
    ),
    (
        "SELECT - (id * 0 - 2147483648)::int FROM n",
        Code::NumericValueOutOfRange,
    ),
    (
        "SELECT sum(b) OVER (w ORDER BY id) FROM n",
        Code::UndefinedObject,
    ),
    (
        "SELECT a FROM n NATURAL FULL JOIN m",
        Code::FeatureNotSupported,
    ),
    ("SELECT 1 AS a, 2 AS a ORDER BY a", Code::AmbiguousColumn),
    (
        "CREATE VIEW twice AS SELECT 1 AS a, 2 AS a",
        Code::DuplicateColumn,
    ),
];
