//! Columns of many different texts. In the larger files, `note` has more than the CPU computes expressions of.

use super::data::Sizes;
use super::{Fixture, emulated};

/// Queries of several rows.
pub(super) const QUERIES: &[&str] = &[
    "SELECT note, count(*) FROM t GROUP BY note",
    "SELECT note, count(*) AS n, sum(b) FROM t WHERE quantity < 30 GROUP BY note ORDER BY n DESC, note LIMIT 5",
    "SELECT note, flag, min(b) FROM t GROUP BY 1, 2 HAVING count(*) > 1",
    "SELECT count(DISTINCT note), count(note), count(DISTINCT name) FROM t",
    "SELECT flag, count(DISTINCT note) FROM t GROUP BY flag",
    "SELECT DISTINCT note FROM t WHERE b > 0",
    // What is computed of each text is a column beside, which may have as many values.
    "SELECT upper(note), count(*) FROM t GROUP BY 1",
    "SELECT substr(note, 2), max(price), count(DISTINCT note) FROM t GROUP BY 1 ORDER BY 2, 1 LIMIT 7",
    "SELECT note, upper(note), count(*) FROM t WHERE note LIKE '%1%' GROUP BY 1, 2",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_texts_than_a_dictionary_has_are_left_to_the_cpu() {
    let fixture = Fixture::new(emulated::device(), Sizes(&[10_000])).await;
    let queries = [
        (
            "SELECT note, count(*) FROM t GROUP BY note",
            "different texts",
        ),
        (
            "SELECT upper(note), count(*) FROM t GROUP BY 1",
            "different texts",
        ),
    ];
    fixture.compare_refused(&queries).await;
}
