//! The reference page of what runs where. `FOREBAY_WRITE_REFERENCE=1` writes it.

use std::fmt::Write;
use std::path::Path;

use forebay_tables::Session;

use super::data::Sizes;
use super::sessions::{Fixture, ON, done, rows};

/// The table of the page: a column of each type.
const TABLE: &str = "CREATE TABLE s (ok boolean, i2 smallint, i4 integer, i8 bigint, r4 real, r8 double precision,
    price numeric(12, 2), wide numeric(38, 10), day date, moment timestamp, zoned timestamptz, name text, raw bytea,
    list integer[]);
    INSERT INTO s VALUES (true, 1, 2, 3, 0.5, 0.25, 1.5, 2.5, DATE '2026-01-02', TIMESTAMP '2026-01-02 03:04:05',
    TIMESTAMP '2026-01-02 03:04:05', 'a', 'a', ARRAY[1])";

/// Columns, their types, and two values of them.
const COLUMNS: &[(&str, &str, [&str; 2])] = &[
    ("ok", "boolean", ["true", "false"]),
    (
        "i2",
        "smallint",
        ["CAST(1 AS smallint)", "CAST(3 AS smallint)"],
    ),
    ("i4", "integer", ["1", "3"]),
    ("i8", "bigint", ["1", "3"]),
    ("r4", "real", ["CAST(1.5 AS real)", "CAST(3 AS real)"]),
    ("r8", "double precision", ["1.5", "3"]),
    ("price", "numeric(12, 2)", ["1.5", "3"]),
    ("wide", "numeric(38, 10)", ["1.5", "3"]),
    ("day", "date", ["DATE '2026-01-01'", "DATE '2026-02-01'"]),
    (
        "moment",
        "timestamp",
        [
            "TIMESTAMP '2026-01-01 00:00:00'",
            "TIMESTAMP '2026-02-01 00:00:00'",
        ],
    ),
    (
        "zoned",
        "timestamptz",
        [
            "TIMESTAMPTZ '2026-01-01 00:00:00Z'",
            "TIMESTAMPTZ '2026-02-01 00:00:00Z'",
        ],
    ),
    ("name", "text", ["'b'", "'c'"]),
    ("raw", "bytea", ["CAST('b' AS bytea)", "CAST('c' AS bytea)"]),
    ("list", "integer[]", ["ARRAY[1]", "ARRAY[3]"]),
];

/// Uses of a column `$c` with the values `$v` and `$w`.
const USES: &[(&str, &str)] = &[
    ("=", "SELECT count(*) FROM s WHERE $c = $v"),
    ("<", "SELECT count(*) FROM s WHERE $c < $v"),
    ("IN", "SELECT count(*) FROM s WHERE $c IN ($v, $w)"),
    ("IS NULL", "SELECT count(*) FROM s WHERE $c IS NULL"),
    ("GROUP BY", "SELECT $c, count(*) FROM s GROUP BY $c"),
    (
        "JOIN",
        "SELECT count(*) FROM s AS one JOIN s AS other ON one.$c = other.$c",
    ),
    ("count", "SELECT count($c) FROM s WHERE i8 > 0"),
    ("min, max", "SELECT min($c), max($c) FROM s WHERE i8 > 0"),
    ("sum", "SELECT sum($c) FROM s WHERE i8 > 0"),
    ("avg", "SELECT avg($c) FROM s WHERE i8 > 0"),
    ("stddev", "SELECT stddev($c) FROM s WHERE i8 > 0"),
];

/// Conditions.
const CONDITIONS: &[&str] = &[
    "i4 + i8 > 5",
    "i4 - 1 = 2",
    "price * i4 > 5",
    "i4 / 2 = 1",
    "price / 2 > 1",
    "i4 % 2 = 0",
    "-i4 < 3",
    "abs(i4) = 3",
    "round(price) = 2",
    "r8 * 2 + 1 > 3",
    "r8 / 2 > 1",
    "floor(r8) = 1",
    "sqrt(r8) > 1",
    "CAST(i4 AS bigint) = 3",
    "CAST(price AS double precision) > 1",
    "CAST(r8 AS integer) = 1",
    "CAST(i8 AS integer) = 1",
    "i4 > i8",
    "i4 > price",
    "i4 BETWEEN 1 AND 3",
    "i4 IS DISTINCT FROM 3",
    "ok AND NOT i4 = 3 OR price < 5",
    "CASE WHEN ok THEN i4 ELSE 0 END = 3",
    "coalesce(i4, 0) = 3",
    "nullif(i4, 3) = 2",
    "greatest(i4, i8) > 2",
    "name LIKE 'a%'",
    "name ILIKE '%b'",
    "name ~ '^a+$'",
    "upper(name) = 'A'",
    "length(name) = 3",
    "name || 'x' = 'ax'",
    "substr(name, 1, 1) = 'a'",
    "name = upper(name)",
    "extract(year FROM day) = 2026",
    "date_trunc('month', moment) = TIMESTAMP '2026-01-01 00:00:00'",
    "day + INTERVAL '1 month' < DATE '2026-03-01'",
    "moment - zoned < INTERVAL '1 day'",
    "random() < 0.5",
    "i4 > (SELECT avg(i8) FROM s)",
];

/// Aggregates.
const AGGREGATES: &[&str] = &[
    "count(*)",
    "count(DISTINCT i4)",
    "sum(DISTINCT i4)",
    "count(DISTINCT i4), count(DISTINCT i8), sum(i8)",
    "count(DISTINCT name), sum(DISTINCT price) FILTER (WHERE ok), avg(price)",
    "sum(i4) FILTER (WHERE ok)",
    "sum(price * (1 - wide))",
    "sum(CASE WHEN ok THEN price END)",
    "sum(i4 + i8)",
    "avg(price)",
    "var_pop(price)",
    "median(i4)",
    "bool_and(ok)",
    "string_agg(name, ',')",
    "array_agg(i4)",
    "corr(r8, r4)",
    "percentile_cont(0.5) WITHIN GROUP (ORDER BY r8)",
];

/// Joins of `s` with `other`.
const JOINS: &[&str] = &[
    "JOIN s AS other ON s.i4 = other.i8",
    "JOIN s AS other ON s.i4 = other.i4 AND s.day = other.day",
    "JOIN s AS other ON s.i4 = other.i4 AND s.price < other.price",
    "JOIN s AS other ON s.i4 + 1 = other.i4",
    "JOIN s AS other ON upper(s.name) = other.name",
    "JOIN s AS other ON s.i4 < other.i4",
    "LEFT JOIN s AS other ON s.i4 = other.i4",
    "LEFT JOIN s AS other ON s.i4 = other.i4 AND s.price < other.price",
    "LEFT JOIN s AS other ON s.i4 < other.i4",
    "RIGHT JOIN s AS other ON s.i4 = other.i4",
    "FULL JOIN s AS other ON s.i4 = other.i4",
    "FULL JOIN s AS other ON s.i4 = other.i4 AND s.price < other.price",
    "CROSS JOIN s AS other",
    "WHERE i4 IN (SELECT i4 FROM s WHERE ok)",
    "WHERE i4 NOT IN (SELECT i4 FROM s WHERE ok)",
    "WHERE EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4)",
    "WHERE NOT EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4 AND other.i8 <> s.i8)",
    "WHERE ok OR EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4)",
    "WHERE EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4 AND other.i8 > s.i8)",
    "WHERE NOT EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4 AND other.r8 < s.r8 * 2)",
    "WHERE ok OR EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4 AND other.day > s.day)",
    "WHERE EXISTS (SELECT 1 FROM s AS other WHERE other.i4 = s.i4 AND other.name < s.name)",
    "WHERE EXISTS (SELECT 1 FROM s AS other WHERE other.i8 > s.i4)",
    "WHERE ok OR i4 NOT IN (SELECT i2 FROM s)",
    "JOIN (SELECT i4, sum(i8) AS n FROM s GROUP BY i4) AS other ON s.i4 = other.i4",
    "JOIN (SELECT DISTINCT name, i4 FROM s) AS other ON s.i4 = other.i4",
];

/// Whole queries.
const QUERIES: &[&str] = &[
    "SELECT day, name, count(*) FROM s GROUP BY day, name",
    "SELECT extract(year FROM day), count(*) FROM s GROUP BY 1",
    "SELECT i4 > i8, count(*) FROM s GROUP BY 1",
    "SELECT i4 + i8, count(*) FROM s GROUP BY 1",
    "SELECT name, sum(i4) FROM s GROUP BY name HAVING sum(i4) > 3",
    "SELECT name, sum(i4) FROM s GROUP BY name ORDER BY 2 DESC LIMIT 10",
    "SELECT day, name, count(*) FROM s GROUP BY ROLLUP (day, name)",
    "SELECT DISTINCT i4 FROM s",
    "SELECT avg(n) FROM (SELECT name, count(*) AS n FROM s GROUP BY name) AS x",
    "SELECT sum(n) FROM (SELECT i4 AS n FROM s UNION ALL SELECT i2 FROM s) AS x",
    "SELECT i4 FROM s UNION SELECT i2 FROM s",
    "SELECT sum(i4) FROM (SELECT i4 FROM s LIMIT 10) AS x",
    "SELECT one.name, other.day FROM s AS one JOIN s AS other ON one.i4 = other.i4",
    "SELECT sum(i4) OVER (PARTITION BY name) FROM s",
    "SELECT i4, sum(i8) OVER (PARTITION BY name ORDER BY day) FROM s",
    "SELECT i4 FROM (SELECT i4, row_number() OVER (PARTITION BY name ORDER BY day) AS n FROM s) AS x WHERE n <= 3",
    "SELECT n, count(*) FROM (SELECT rank() OVER (ORDER BY day) AS n FROM s) AS x GROUP BY n",
    "SELECT lag(i4) OVER (ORDER BY day) FROM s",
    "SELECT sum(i4) OVER (ORDER BY day ROWS 6 PRECEDING) FROM s",
    "SELECT i4, name FROM s WHERE i4 > 3",
    "SELECT i4, name FROM s WHERE i4 > 3 ORDER BY name",
    "SELECT i4, name FROM s WHERE name LIKE '%a%' LIMIT 10",
    "SELECT i4, name FROM s ORDER BY i4 DESC, name LIMIT 10",
    "SELECT one.i4, other.r8 FROM s AS one JOIN s AS other ON one.i4 = other.i4 ORDER BY other.r8 LIMIT 10",
    "SELECT one.name, other.day FROM s AS one FULL JOIN s AS other ON one.i4 = other.i4",
    "SELECT one.i4, other.r8 FROM s AS one FULL JOIN s AS other ON one.i4 = other.i4 ORDER BY other.r8 LIMIT 10",
    "SELECT sum(one.i8) OVER (PARTITION BY other.day) FROM s AS one FULL JOIN s AS other ON one.i4 = other.i4",
    "SELECT i4 FROM s",
    "SELECT i4 FROM s LIMIT 10",
    "SELECT i4 FROM s ORDER BY i4",
];

/// Where a query runs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Place {
    Gpu,
    /// On the CPU for this reason, or a part of it.
    Cpu(String),
    Both(String),
    /// The query is an error.
    Refused,
}

/// Returns where the aggregate or the joins of a query run, as the plan tells.
async fn place(session: &mut Session, query: &str) -> Place {
    let Ok(lines) = rows(session, &format!("EXPLAIN {query}")).await else {
        return Place::Refused;
    };
    let reason = lines.iter().find_map(|line| {
        let (_, reason) = line.split_once("OnCpuExec: ")?;
        Some(reason.trim_end_matches([' ', '|']).to_owned())
    });
    let has_fragment = lines.iter().any(|line| line.contains("GpuFragmentExec"));
    match (reason, has_fragment) {
        (Some(reason), false) => Place::Cpu(reason),
        (Some(reason), true) => Place::Both(reason),
        (None, true) => Place::Gpu,
        (None, false) => {
            Place::Cpu("it has no aggregate, join, condition or limited sort".to_owned())
        }
    }
}

const HEAD: &str = "\
# What of SQL runs on a GPU

A test of `crates/tables-gpu` writes this page with `FOREBAY_WRITE_REFERENCE=1`, and compares it otherwise. It plans a query for each row, with
`forebay.gpu = on`, over a table with a column of each type, and tells where its aggregate or its joins run. The reasons are those of `EXPLAIN`.
The planner knows no data: [what runs there](../gpu-sql.md#what-runs-there) tells what the numbers and texts of columns decide when a query runs.

A number behind `CPU` is that of the reason below the table. A cell is empty if SQL has no such use.
";

/// Returns a text as a cell of a table in Markdown.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

/// Adds a table of what runs where.
async fn add_table(page: &mut String, session: &mut Session, head: &str, all: &[(&str, String)]) {
    let _ = writeln!(page, "\n## {head}\n\n| | runs on | reason |\n|---|---|---|");
    for (what, query) in all {
        let (place, reason) = match place(session, query).await {
            Place::Gpu => ("GPU", String::new()),
            Place::Cpu(reason) => ("CPU", reason),
            Place::Both(reason) => ("GPU and CPU", reason),
            Place::Refused => panic!("{query} is no query"),
        };
        let _ = writeln!(page, "| `{}` | {place} | {} |", cell(what), cell(&reason));
    }
}

/// Returns the number of a reason among those of the page, counted from 1.
fn number_of(reason: String, reasons: &mut Vec<String>) -> usize {
    let known = reasons.iter().position(|it| *it == reason);
    let index = known.unwrap_or(reasons.len());
    if known.is_none() {
        reasons.push(reason);
    }
    index + 1
}

/// Adds the table of types, whose cells are `GPU`, the numbers of reasons, or nothing if SQL has no such use.
async fn add_types(page: &mut String, session: &mut Session) {
    let uses: Vec<_> = USES.iter().map(|(name, _)| format!("`{name}`")).collect();
    let _ = writeln!(page, "\n## Types\n\n| | {} |", uses.join(" | "));
    let _ = writeln!(page, "|---|{}", "---|".repeat(USES.len()));
    let mut reasons: Vec<String> = Vec::new();
    for (index, (column, name, [value, another])) in COLUMNS.iter().enumerate() {
        let mut cells = format!("| {name} |");
        for (_, query) in USES {
            let query = query.replace("$c", column).replace("$v", value);
            let place = place(session, &query.replace("$w", another)).await;
            cells += &match place {
                Place::Gpu => " GPU |".to_owned(),
                Place::Refused => " |".to_owned(),
                Place::Cpu(reason) | Place::Both(reason) => {
                    let reason = reason.replace(&format!("the column {column}"), "the column");
                    let reason = reason.replace(&format!("{column}@{index}"), "the column");
                    format!(" CPU ({}) |", number_of(reason, &mut reasons))
                }
            };
        }
        let _ = writeln!(page, "{cells}");
    }
    page.push('\n');
    for (index, reason) in reasons.iter().enumerate() {
        let _ = writeln!(page, "{}. {reason}", index + 1);
    }
}

/// Returns the page.
async fn page(session: &mut Session) -> String {
    let mut page = HEAD.to_owned();
    add_types(&mut page, session).await;
    let tables = [
        ("Conditions", CONDITIONS, "SELECT count(*) FROM s WHERE "),
        ("Aggregates", AGGREGATES, "SELECT $ FROM s WHERE i8 > 0"),
        ("Joins", JOINS, "SELECT sum(s.i8) FROM s "),
        ("Queries", QUERIES, ""),
    ];
    for (head, all, query) in tables {
        let all = all.iter().map(|what| match query.contains('$') {
            true => (*what, query.replace('$', what)),
            false => (*what, format!("{query}{what}")),
        });
        let all: Vec<_> = all.collect();
        add_table(&mut page, session, head, &all).await;
    }
    page
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reference_page_is_what_the_planner_does() {
    let fixture = Fixture::new(Sizes(&[1]));
    let mut session = fixture.session(ON).await;
    done(&mut session, TABLE).await;
    let page = page(&mut session).await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/gpu-sql.md");
    if std::env::var_os("FOREBAY_WRITE_REFERENCE").is_some_and(|value| value == "1") {
        std::fs::write(&file, &page).expect("room");
    }
    let known = std::fs::read_to_string(&file).unwrap_or_default();
    let hint = "write docs/reference/gpu-sql.md again with FOREBAY_WRITE_REFERENCE=1";
    assert!(page == known, "{hint}\n{page}");
}
