//! Joins that repeat rows: several rows of both sides have the same keys.

use std::sync::atomic::Ordering;

use super::Fixture;
use super::data::Sizes;
use super::devices::explained;
use super::emulated;

/// Queries of all sizes. `m` has several rows for a key, `d` for a label.
pub(super) const QUERIES: &[&str] = &[
    "SELECT count(*) FROM t JOIN m ON a = k",
    "SELECT flag, count(*), sum(v), sum(b), min(v), max(quantity * v), avg(price), stddev(v) FROM t JOIN m ON a = k GROUP BY flag",
    "SELECT v, count(*), max(name) FROM t JOIN m ON a = k WHERE b > 0 AND v > 1 GROUP BY v",
    "SELECT v, label, count(*), sum(b) FROM t JOIN m ON a = m.k JOIN d ON a = d.k GROUP BY 1, 2",
    "SELECT one.v, other.v, count(*) FROM t JOIN m one ON a = one.k JOIN m other ON tiny = other.k WHERE quantity < 20 GROUP BY 1, 2",
    "SELECT count(*), sum(v) FROM t JOIN m ON a = k AND v < quantity",
    // Sums of 128 bits.
    "SELECT sum(wide), max(v) FROM t JOIN m ON a = k",
    "SELECT flag, sum(wide), sum(ratio), min(v) FROM t JOIN m ON a = k GROUP BY flag",
    "SELECT count(*) FROM t JOIN d ON b * 1000000 = weight",
    "SELECT odd, count(*), sum(quantity) FROM t JOIN d ON name = label GROUP BY odd",
    "SELECT day, count(*), sum(v) FROM t JOIN m ON a = k GROUP BY day",
    "SELECT b, v, count(*) FROM t JOIN m ON a = k GROUP BY b, v",
    "SELECT v, count(*) AS n FROM t JOIN m ON a = k GROUP BY v HAVING count(*) > 3 ORDER BY n DESC, v LIMIT 4",
    "SELECT count(*) FROM t JOIN m ON a = k WHERE a > 1000",
    // Rows without a match.
    "SELECT flag, count(*), count(v), sum(v) FROM t LEFT JOIN m ON a = k GROUP BY flag",
    "SELECT count(*), sum(coalesce(v, 7)) FROM t LEFT JOIN m ON a = k WHERE v IS NULL OR v > 2",
    "SELECT d.k, count(coalesce(b, 1)), sum(CASE WHEN b IS NULL THEN 1 ELSE 2 END) FROM d LEFT JOIN t ON d.k = t.a
        GROUP BY d.k",
    "SELECT d.k, count(*), max(b) FROM d LEFT JOIN t ON d.k = t.a GROUP BY d.k",
    // Some matches, all or none of a row meet the condition, which may be NULL.
    "SELECT flag, count(*), count(v), sum(v), sum(b), max(quantity * v) FROM t LEFT JOIN m ON a = k AND quantity < v * 4 GROUP BY flag",
    "SELECT count(*), count(v), sum(coalesce(v, 70)) FROM t LEFT JOIN m ON a = k AND CASE WHEN v <> 3 THEN v * 9 END > quantity
        WHERE v IS NULL OR v > 4 AND b > 0",
    "SELECT one.v, count(*), count(other.v), sum(quantity) FROM t LEFT JOIN m AS one ON a = one.k AND quantity > one.v * 4
        LEFT JOIN m AS other ON tiny = other.k AND other.v > one.v GROUP BY one.v",
    "SELECT count(*), count(n.k), sum(h.v) FROM h LEFT JOIN (SELECT x.far, one.k FROM h AS x JOIN m AS one ON x.v = one.v) AS n
        ON h.far = n.far AND pieces < n.k",
    "SELECT count(*), sum(b), sum(n) FROM t LEFT JOIN (SELECT k, v, count(*) AS n FROM m GROUP BY k, v) AS g ON a = g.k AND quantity < v * 4",
    "SELECT a, v FROM t LEFT JOIN m ON a = k AND v > quantity WHERE quantity < 9 AND b > 0",
    // All pairs.
    "SELECT flag, count(*), count(v), sum(v) FROM t LEFT JOIN m ON a + 3 < v GROUP BY flag",
    "SELECT v, count(*), count(b), max(b) FROM t RIGHT JOIN m ON quantity > v + 40 AND ok GROUP BY v",
    "SELECT count(*), count(e.v), sum(b) FROM t LEFT JOIN e ON a < e.v",
    // Other rows that are repeated themselves.
    "SELECT count(*), sum(quantity), sum(w) FROM t JOIN (SELECT one.k, one.v, other.v AS w FROM m AS one JOIN m AS other ON one.k = other.k) AS n
        ON a = n.k",
    "SELECT flag, w, count(*), min(n.v) FROM t JOIN (SELECT one.k, one.v, other.v AS w FROM m AS one JOIN m AS other ON one.k = other.k
        WHERE other.v > 2) AS n ON a = n.k WHERE b > 0 GROUP BY flag, w",
    "SELECT n.w, count(*), count(n.v) FROM t LEFT JOIN (SELECT one.k, one.v, other.v AS w FROM m AS one JOIN m AS other ON one.k = other.k) AS n
        ON a = n.k GROUP BY n.w",
    "SELECT label, count(*), sum(w) FROM t JOIN (SELECT one.v AS u, one.k, other.k AS w FROM m AS one JOIN m AS other ON one.v = other.v) AS n
        ON quantity = n.u JOIN d ON n.k = d.k GROUP BY label",
    "SELECT count(*), sum(b) FROM t WHERE a IN (SELECT one.k FROM m AS one JOIN m AS other ON one.v = other.v WHERE other.k > 6)",
    // In a hash table.
    "SELECT count(*), sum(h.v), max(n.k) FROM h JOIN (SELECT x.far, one.k FROM h AS x JOIN m AS one ON x.v = one.v JOIN m AS other
        ON one.k = other.k) AS n ON h.far = n.far",
    "SELECT count(*), min(label), max(n.w) FROM t JOIN (SELECT one.k, x.w FROM m AS one JOIN (SELECT p.v, q.k AS w FROM m AS p JOIN m AS q
        ON p.k = q.k) AS x ON one.v = x.v) AS n ON a = n.k JOIN d ON a = d.k WHERE quantity < 9",
    // The other rows are those of a plan.
    "SELECT flag, count(*), sum(n) FROM t JOIN (SELECT k, v, count(*) AS n FROM m GROUP BY k, v) AS g ON a = g.k GROUP BY flag",
    // Rows without an aggregate.
    "SELECT a, v, b FROM t JOIN m ON a = k WHERE quantity = 7",
    "SELECT v, b FROM t JOIN m ON a = k ORDER BY v DESC, b LIMIT 11",
    "SELECT a, v FROM t LEFT JOIN m ON a = k WHERE quantity = 9 AND b > 0",
    // A search for a row that meets a condition, which may be NULL.
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > quantity - 20)",
    "SELECT flag, count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND CASE WHEN v <> 3 THEN v * 9 END > quantity)
        GROUP BY flag",
    "SELECT count(*), count(a) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v < quantity AND v + quantity > 12) OR ok",
    "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity) OR a IN (SELECT k FROM d)",
    "SELECT count(*), sum(quantity) FROM t WHERE EXISTS (SELECT 1 FROM t AS other WHERE other.a = t.a AND other.quantity = t.quantity
        AND other.b > t.b)",
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM d WHERE label = name AND odd > quantity)",
    "SELECT v, count(*) FROM t JOIN m ON a = k WHERE NOT EXISTS (SELECT 1 FROM m AS other WHERE other.k = tiny AND other.v > m.v) GROUP BY v",
    "SELECT count(*), sum(b) FROM t WHERE a IN (SELECT one.k FROM m AS one WHERE EXISTS
        (SELECT 1 FROM m AS other WHERE other.k = one.k AND other.v > one.v + 3))",
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM (SELECT k, v, count(*) AS n FROM m GROUP BY k, v) AS g
        WHERE g.k = a AND g.v + n > quantity)",
    "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE k IS NOT NULL AND v * 9 > quantity)",
    "SELECT a, quantity, b FROM t WHERE quantity < 20 AND EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > quantity - 9)",
    // Floats, and numbers that are far apart.
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM t AS other WHERE other.a = t.a AND other.quantity = t.quantity
        AND other.fare <> t.fare)",
    "SELECT count(*), sum(quantity) FROM t WHERE NOT EXISTS (SELECT 1 FROM h WHERE h.v = a AND far <> b)",
    // In a hash table, and without an equality.
    "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM h WHERE far = a * 1000000000007 AND pieces > quantity)",
    "SELECT flag, count(*) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE v > quantity) GROUP BY flag",
    "SELECT count(*), count(a) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE (k = a OR k IS NULL OR a IS NULL) AND v > 3) OR b > 1000",
    "SELECT count(*), sum(b) FROM t WHERE ok OR EXISTS (SELECT 1 FROM m WHERE v > 7)",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_run_finds_all_joins_that_repeat_rows() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = emulated::Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 1), Sizes(&[900])).await;
    let query = "SELECT count(*), sum(one.v), max(other.v) FROM t JOIN m AS one ON a = one.k JOIN m AS other ON tiny = other.k
        JOIN d ON name = label WHERE quantity < 20";
    fixture.compare([query].iter()).await;
    // One marks the joins, and the other computes the query.
    assert_eq!(emulated.launches.load(Ordering::Relaxed), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn repeated_rows_are_counted() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = emulated::Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 2), Sizes(&[900, 700])).await;
    let query = "SELECT count(*), min(one.b) FROM t AS one JOIN t AS other ON one.a = other.a WHERE other.quantity = 3";
    // The second run begins with what the first has found.
    fixture.compare([query, query].iter()).await;
    let plan = explained(&fixture, query).await;
    assert!(plan.contains("ran there"), "{plan}");
    // Other queries would wait for the kernels.
    let query =
        "SELECT count(*), min(one.b) FROM t AS one JOIN t AS other ON one.flag = other.flag";
    fixture
        .compare_refused([&(query, "too many matches")])
        .await;
}
