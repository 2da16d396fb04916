//! Rows of full joins: in any order, sorted, the first of them, and below window functions.

use datafusion::prelude::SessionConfig;

use super::Fixture;
use super::data::Sizes;
use super::emulated::{self, Emulated};
use super::lists::in_their_order;

/// Queries of several rows.
pub(super) const QUERIES: &[&str] = &[
    "SELECT a, k, label, quantity FROM t FULL JOIN d ON a = k",
    "SELECT coalesce(a, k) AS n, upper(label) AS l FROM t FULL JOIN d ON a = k AND odd > quantity
        WHERE label IS NULL OR quantity > 30",
    // Several rows of a key on both sides, and NULL as a key.
    "SELECT one, two, k, v FROM p FULL JOIN m ON one = k",
    "SELECT one, two, v FROM p FULL JOIN m ON one = k AND v < two",
    // A side without rows.
    "SELECT * FROM m FULL JOIN e ON m.k = e.k",
    // A window function.
    "SELECT k, b, rank() OVER (PARTITION BY odd ORDER BY b) FROM t FULL JOIN d ON a = k WHERE quantity < 20 OR odd < 9",
];

/// Queries whose rows have an order in which equal rows are alike.
const ORDERED: [&str; 3] = [
    // In each part, a column of the order is NULL.
    "SELECT label, b, k FROM t FULL JOIN d ON a = k ORDER BY label DESC, b NULLS FIRST, k",
    "SELECT b, k, a FROM t FULL JOIN d ON a = k ORDER BY b NULLS FIRST, k, a LIMIT 9",
    "SELECT b, k, a FROM t FULL JOIN d ON a = k ORDER BY b NULLS LAST, k DESC, a LIMIT 90",
];

/// Queries that the device gives up when they run, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[(
    "SELECT k, b * quantity * 200000 AS x FROM t FULL JOIN d ON a = k WHERE b < 5000 OR b IS NULL",
    "",
)];

/// Returns the head and the rows of a query, without the spaces that make cells equally long.
async fn cells(fixture: &Fixture, query: &str) -> Vec<String> {
    let (rows, has_operator) = Fixture::rows(&fixture.with, query).await;
    assert!(has_operator, "{query}");
    let lines = rows.expect(query).into_iter();
    let lines = lines.filter(|line| line.starts_with('|'));
    lines.map(|line| line.replace(' ', "")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_full_joins_have_orders_and_limits() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for partitions in [1, 3] {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let engines = emulated::devices(&emulated, 2);
        let fixture = Fixture::with_config(engines, Sizes(&[700, 30]), &config).await;
        for query in ORDERED {
            let (_, has_operator) = Fixture::rows(&fixture.with, query).await;
            let with = in_their_order(&fixture, query, true).await;
            let without = in_their_order(&fixture, query, false).await;
            assert!(
                has_operator && with == without,
                "{query}\n{with}\n{without}"
            );
        }
        let query = "SELECT a, k FROM t FULL JOIN d ON a = k";
        let all = cells(&fixture, query).await;
        for (limit, rows) in [(5, 5), (800, all.len() - 1), (all.len() - 2, all.len() - 2)] {
            let some = cells(&fixture, &format!("{query} LIMIT {limit}")).await;
            assert_eq!(some.len() - 1, rows, "{limit}: {some:?}");
            assert!(
                some.iter().all(|row| all.contains(row)),
                "{limit}: {some:?}"
            );
        }
    }
}
