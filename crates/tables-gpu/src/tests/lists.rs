//! Rows of one table: those that conditions keep, in the order of the table or of a sort, all or some.

use datafusion::prelude::SessionConfig;

use super::chunks::in_order;
use super::data::Sizes;
use super::emulated::{self, Emulated};
use super::{Fixture, is_full};

/// Queries whose rows kernels list. Those of a sort with a limit have the columns of the sort alone, as rows that are
/// equal by these are any.
pub(super) const QUERIES: &[&str] = &[
    "SELECT a, b, name, price FROM t WHERE a > 5 AND b < 100",
    "SELECT day, note, a FROM t WHERE note LIKE '%7%3%' OR name = 'ab'",
    "SELECT note FROM t WHERE regexp_like(note, '7.*3$')",
    "SELECT a + 1, upper(name), b FROM t WHERE ok AND a IS NOT NULL",
    "SELECT fare, tip, third, ratio, spread FROM t WHERE NOT ok",
    "SELECT strange, nan, negative_nan, infinite, a FROM t WHERE quantity < 30",
    "SELECT nan FROM t ORDER BY nan DESC LIMIT 9",
    "SELECT infinite, b FROM t ORDER BY infinite DESC, b LIMIT 90",
    "SELECT third, label FROM t LEFT JOIN d ON a = k WHERE quantity < 30",
    "SELECT 1 AS one, quantity FROM t WHERE quantity BETWEEN 3 AND 9",
    "SELECT a FROM t WHERE b > 0 AND a > 100",
    "SELECT a FROM t WHERE a > 3 UNION ALL SELECT quantity FROM t WHERE b < 0",
    "SELECT a, sum(b) OVER (PARTITION BY a) FROM t WHERE quantity = 7",
    "SELECT count(*), x.a FROM (SELECT a, b FROM t WHERE a > 5 ORDER BY b) AS x GROUP BY x.a",
    "SELECT a, b FROM t WHERE quantity < 10 ORDER BY b, a",
    // The first of an order.
    "SELECT b FROM t ORDER BY b LIMIT 10",
    "SELECT b FROM t ORDER BY b DESC LIMIT 1",
    "SELECT b FROM t WHERE quantity > 3 ORDER BY b DESC LIMIT 10",
    "SELECT b FROM t ORDER BY b LIMIT 5000",
    "SELECT b FROM t ORDER BY b LIMIT 100000",
    "SELECT a FROM t ORDER BY a LIMIT 25",
    "SELECT a, b FROM t ORDER BY a NULLS FIRST, b LIMIT 25",
    "SELECT a, b FROM t ORDER BY a DESC NULLS LAST, b DESC LIMIT 25",
    "SELECT a, b FROM t ORDER BY a DESC NULLS FIRST, b LIMIT 600",
    "SELECT ok, a, day FROM t ORDER BY ok NULLS FIRST, a, day DESC LIMIT 40",
    "SELECT ok, b FROM t WHERE a > 2 ORDER BY ok DESC, b LIMIT 40",
    "SELECT name, b FROM t WHERE a > 2 ORDER BY name DESC, b LIMIT 33",
    "SELECT name, flag, day FROM t ORDER BY name NULLS FIRST, flag DESC, day LIMIT 50",
    "SELECT upper(name) AS n, a FROM t ORDER BY n, a LIMIT 20",
    "SELECT ratio, fare FROM t ORDER BY ratio DESC, fare LIMIT 9",
    "SELECT fare FROM t ORDER BY fare NULLS FIRST LIMIT 300",
    "SELECT spread, b FROM t WHERE a < 9 ORDER BY spread, b LIMIT 12",
    "SELECT third FROM t ORDER BY third DESC NULLS LAST LIMIT 12",
    "SELECT wide, price FROM t WHERE quantity > 3 ORDER BY wide DESC, price LIMIT 12",
    "SELECT moment FROM t ORDER BY moment DESC LIMIT 5 OFFSET 7",
    "SELECT price * (1 - discount) AS p, day FROM t ORDER BY p DESC, day LIMIT 10",
    "SELECT nothing, b FROM t ORDER BY nothing, b LIMIT 10",
    "SELECT tiny, tip FROM t WHERE note LIKE '%1%' ORDER BY tiny, tip LIMIT 30",
    // The first of joins.
    "SELECT b, weight FROM t JOIN d ON a = k WHERE quantity > 5 ORDER BY b DESC, weight LIMIT 10",
    "SELECT weight, b FROM t LEFT JOIN d ON a = k ORDER BY weight NULLS FIRST, b LIMIT 10",
    "SELECT b, remark FROM (SELECT b, 'x' AS remark FROM t WHERE a IN (SELECT k FROM m)) ORDER BY b LIMIT 4",
    // Any.
    "SELECT a FROM t WHERE a = 3 LIMIT 4",
    "SELECT a FROM t WHERE a = 3 LIMIT 100000",
    "SELECT a FROM t WHERE a = 3 LIMIT 3500",
    "SELECT a FROM t WHERE a = 3 LIMIT 7 OFFSET 5",
    "SELECT a, one FROM (SELECT a, 1 AS one FROM t WHERE a = 3 LIMIT 50) LIMIT 7",
    // All columns.
    "SELECT * FROM t WHERE a = 3",
    "SELECT * FROM t JOIN d ON a = k WHERE b < -900",
    "SELECT * FROM t LEFT JOIN d ON a = k WHERE b < -1900 AND quantity < 20",
    "SELECT d.*, t.* FROM t LEFT JOIN d ON a = k AND weight > quantity WHERE b < -1900 AND ok",
    "SELECT a + 1 FROM (SELECT a FROM t WHERE a = 3 LIMIT 7) LIMIT 50",
    "SELECT a FROM t WHERE a = 3 AND quantity IN (SELECT v FROM m) LIMIT 5",
];

/// The same, which kernels do not list.
const REFUSED: &[&str] = &[
    "SELECT a, b FROM t",
    "SELECT a FROM t LIMIT 1000000",
    "SELECT note FROM t ORDER BY note LIMIT 3",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_a_table_are_those_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for (sizes, devices) in [
        (Sizes(&[1]), 1),
        (Sizes(&[7, 8, 9]), 3),
        (Sizes(&[3000, 1, 512, 513]), 2),
    ] {
        let fixture = Fixture::new(emulated::devices(&emulated, devices), sizes).await;
        // Each size has kernels of its own.
        let step = if is_full() || sizes.0[0] > 9 { 1 } else { 3 };
        fixture.compare(QUERIES.iter().step_by(step)).await;
        for query in REFUSED {
            let (with, has_operator) = Fixture::rows(&fixture.lenient, query).await;
            let (without, _) = Fixture::rows(&fixture.without, query).await;
            let is_any = query.contains("LIMIT 1000000");
            assert!(is_any || without.is_ok() && with == without, "{query}");
            // It is known only when they run that texts have too many values.
            assert!(!has_operator || query.contains("ORDER BY"), "{query}");
        }
    }
    super::compile_all(&emulated);
}

/// What columns of a table are, one after the other; `#` is the number of the column.
const COLUMNS: [&str; 9] = [
    "a + #",
    "b - #",
    "concat(name, '#')",
    "price + #",
    "CASE WHEN quantity < # THEN day END",
    "ok AND b > #",
    "ratio * #",
    "note || '#'",
    "CASE WHEN quantity < # THEN moment END",
];

/// Rows that are wider than what a thread keeps in registers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wide_rows_are_those_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 2), Sizes(&[700, 30])).await;
    let columns = (0..129).map(|index| {
        let column = COLUMNS[index % COLUMNS.len()].replace('#', &index.to_string());
        format!("{column} AS c{index}")
    });
    let columns: Vec<_> = columns.collect();
    let folder = fixture._folder.path().join("w");
    for (file, rows) in [("a", "b < 0"), ("b", "b >= 0")] {
        let copy = format!(
            "COPY (SELECT CAST(row_number() OVER () AS bigint) AS n, {} FROM t WHERE {rows}) TO '{}/{file}.parquet'",
            columns.join(", "),
            folder.display()
        );
        fixture.copy(&copy).await;
    }
    fixture.register("w").await;
    let names = |range: std::ops::Range<usize>| {
        let names = range.map(|index| format!("c{index}"));
        names.collect::<Vec<_>>().join(", ")
    };
    let (some, most, all) = (names(0..17), names(0..127), names(0..129));
    let queries = [
        format!("SELECT {some} FROM w WHERE n < 40"),
        format!("SELECT {most} FROM w WHERE n < 50"),
        format!("SELECT {most} FROM w WHERE n = 7 LIMIT 3"),
        format!("SELECT n, {some} FROM w ORDER BY n DESC, c1, c0 NULLS FIRST LIMIT 33"),
        format!("SELECT {most}, label FROM w JOIN d ON c0 = k WHERE n > 330"),
    ];
    let told = async |columns: &str| {
        let query = format!("EXPLAIN SELECT {columns} FROM w WHERE n < 40");
        let (plan, _) = Fixture::rows(&fixture.lenient, &query).await;
        plan.expect("a plan").join("\n")
    };
    let plan = told(&some).await;
    assert!(plan.contains("GpuFragmentExec"), "{plan}");
    let plan = told(&all).await;
    assert!(
        plan.contains("OnCpuExec: the plan reads more than 128 columns"),
        "{plan}"
    );
    fixture
        .compare(&queries.each_ref().map(String::as_str))
        .await;
    super::compile_those(&emulated, |it| {
        it.name == "tables/merge.cu" || it.source.contains("found_cursor<126>")
    });
}

/// Returns the rows of a query in their order.
pub(super) async fn in_their_order(fixture: &Fixture, query: &str, is_on: bool) -> String {
    let context = if is_on {
        &fixture.with
    } else {
        &fixture.without
    };
    let frame = context.sql(query).await.expect("a plan");
    let rows = frame.to_string().await;
    rows.expect("rows")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_have_the_order_of_the_table() {
    if !emulated::has_compiler() {
        return;
    }
    let config = SessionConfig::new().with_target_partitions(1);
    for devices in [1, 3] {
        let engines = emulated::devices(&Emulated::new(), devices);
        let fixture = Fixture::with_config(engines, Sizes(&[2500, 7, 600]), &config).await;
        for query in [
            "SELECT a, b, note FROM t WHERE quantity < 30",
            "SELECT b FROM t WHERE ok OR name = 'ab'",
        ] {
            let with = in_their_order(&fixture, query, true).await;
            assert_eq!(
                with,
                in_their_order(&fixture, query, false).await,
                "{query}"
            );
        }
    }
}

/// Returns how many rows the operator of a device returned.
async fn returned(fixture: &Fixture, query: &str) -> usize {
    let (plan, _) = Fixture::rows(&fixture.with, &format!("EXPLAIN ANALYZE {query}")).await;
    let plan = plan.expect("a plan").concat();
    let returned = plan.split_once("GpuFragmentExec").and_then(|(_, plan)| {
        let (_, rows) = plan.split_once("output_rows=")?;
        let end = rows.find(|it: char| !it.is_ascii_digit())?;
        rows[..end].parse().ok()
    });
    returned.expect("an operator of a device")
}

/// Kernels return few more rows than the sort above keeps, and as many as a limit has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn few_rows_leave_the_device() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = in_order().await;
    for (query, rows) in [
        (
            "SELECT n FROM s ORDER BY n DESC NULLS LAST LIMIT 10",
            10..=18,
        ),
        ("SELECT n, name FROM s ORDER BY n LIMIT 1", 1..=9),
        (
            "SELECT n, price FROM s WHERE k < 4 ORDER BY price LIMIT 5",
            5..=13,
        ),
        // All rows of the last key.
        ("SELECT k, name FROM s ORDER BY k DESC LIMIT 5", 500..=500),
        ("SELECT k, n FROM s ORDER BY k DESC, n LIMIT 5", 5..=13),
        (
            "SELECT name, n FROM s ORDER BY name, n DESC NULLS LAST LIMIT 7",
            7..=15,
        ),
        ("SELECT n FROM s WHERE k = 3 LIMIT 5", 5..=5),
        ("SELECT n FROM s WHERE k = 3 LIMIT 7 OFFSET 2", 9..=9),
        ("SELECT n FROM s WHERE n < 4 LIMIT 100", 3..=3),
    ] {
        let count = returned(&fixture, query).await;
        assert!(rows.contains(&count), "{query}: {count}");
    }
}
