//! Chunks that are not read, because none of their rows can count.

use super::data::Sizes;
use super::{Fixture, emulated};

/// Returns a fixture with a table `s` of five files of a chunk each, whose numbers follow each other.
pub(super) async fn in_order() -> Fixture {
    let fixture = Fixture::new(emulated::device(), Sizes(&[1])).await;
    let folder = fixture._folder.path().join("s");
    for file in 0..5 {
        // The last file has NULL alone.
        let copy = format!(
            "COPY (SELECT CASE WHEN {file} < 4 THEN {file} * 1000 + value END AS n, value % 7 AS k,
                {file} = 3 AS is_late, CAST({file} * 1000 + value AS DECIMAL(12, 2)) AS price,
                DATE '2026-01-01' + {file} AS day, 't' || {file} AS name FROM generate_series(1, 700))
                TO '{}/{file}.parquet'",
            folder.display()
        );
        fixture.copy(&copy).await;
    }
    fixture.register("s").await;
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_skipped_by_their_numbers() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = in_order().await;
    for (condition, read) in [
        ("n > 2500", "1400 of 3500"),
        ("n BETWEEN 1100 AND 1200", "700 of 3500"),
        ("n = 1701", "0 of 3500"),
        ("n IS NULL", "700 of 3500"),
        ("n IS NOT NULL", "2800 of 3500"),
        ("day = DATE '2026-01-03' OR n < 5", "1400 of 3500"),
        (
            "CAST(n AS DECIMAL(20, 2)) < 700.5 AND name <> 't9'",
            "700 of 3500",
        ),
        ("n + k > 3000", "3500"),
        ("name = 't1'", "3500"),
        ("n IN (5, 3005)", "1400 of 3500"),
        ("price >= 1000.5 AND price < 2000", "700 of 3500"),
        ("is_late AND k > 3", "700 of 3500"),
    ] {
        let query =
            format!("SELECT k, count(*), sum(n), max(day) FROM s WHERE {condition} GROUP BY k");
        let (with, has_operator) = Fixture::rows(&fixture.with, &query).await;
        let (without, _) = Fixture::rows(&fixture.without, &query).await;
        assert!(has_operator && without.is_ok());
        assert_eq!(with, without, "{condition}");
        let (plan, _) = Fixture::rows(&fixture.with, &format!("EXPLAIN ANALYZE {query}")).await;
        let plan = plan.expect("a plan").concat();
        assert!(
            plan.contains(&format!("ran there: {read} rows")),
            "{condition}: {plan}"
        );
    }
}

/// A condition on a row of a join is none on rows without a match.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_of_joins_are_skipped_by_their_numbers() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = in_order().await;
    for query in [
        "SELECT count(*), count(n) FROM d LEFT JOIN s ON d.k = n AND n > 3000",
        "SELECT s.k, count(*) FROM s JOIN d ON s.k = d.k WHERE n > 2500 GROUP BY s.k",
        "SELECT count(*), sum(b) FROM t WHERE a IN (SELECT n FROM s WHERE n < 800 AND name <> 'x')",
        "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE n = a AND n > 9000)",
        "SELECT label, count(*) FROM s JOIN d ON s.k = d.k WHERE n > 9000 GROUP BY label",
    ] {
        let (with, has_operator) = Fixture::rows(&fixture.with, query).await;
        let (without, _) = Fixture::rows(&fixture.without, query).await;
        assert!(has_operator && without.is_ok(), "{query}: {with:?}");
        assert_eq!(with, without, "{query}");
        let (plan, _) = Fixture::rows(&fixture.with, &format!("EXPLAIN ANALYZE {query}")).await;
        let plan = plan.expect("a plan").concat();
        let ran = plan.split("ran there: ").nth(1).expect("the engine");
        let are_skipped = ran
            .split(" rows")
            .next()
            .is_some_and(|it| it.contains(" of "));
        assert!(are_skipped, "{query}: {plan}");
    }
}
