//! Quotients, rounding, `CASE` and other choices, and lists of many numbers.

use super::data::Sizes;
use super::{Fixture, emulated};

/// Queries whose aggregates a kernel computes.
pub(super) const QUERIES: &[&str] = &[
    // Integers.
    "SELECT sum(b / 3), sum(b % 12), min(a / 2), max(a % -3), min(-b / 5), count(*) FILTER (WHERE b / -7 < -3),
        count(*) FILTER (WHERE b % -9 < 0) FROM t",
    "SELECT quantity / 8, a % quantity, count(*), sum(b) FROM t GROUP BY 1, 2",
    "SELECT b % 1000, count(*), min(quantity) FROM t GROUP BY 1",
    // Divisors that are never 0.
    "SELECT sum(quantity / nullif(a, 0)), max(b % nullif(tiny, 0)), sum(nullif(b, 0)), count(nullif(a, 3)),
        sum(nullif(quantity % 3, tiny)) FROM t",
    "SELECT sum(CASE WHEN a <> 0 THEN quantity / a END),
        sum(CASE WHEN tiny = 0 OR a > 9 THEN 0 WHEN b > 5 THEN b / tiny ELSE b % tiny END),
        sum(CASE a WHEN 0 THEN -1 ELSE quantity % a END) FROM t WHERE quantity > 1",
    // Decimals.
    "SELECT sum(round(price / quantity, 2)), min(round(price / 3, 1)), max(CAST(-price / 7 AS DECIMAL(18, 4))),
        sum(round(price / nullif(discount, 0))) FROM t",
    "SELECT sum(price % 7), min(price % 0.3), max(-price % quantity), sum(wide % 1000), sum(price % nullif(discount, 0))
        FROM t WHERE a > 1",
    "SELECT count(*) FROM t WHERE price / quantity > 2500.25 OR price / -7 > -400",
    // Numbers of more than 64 bits.
    "SELECT count(*) FILTER (WHERE CAST(wide AS DECIMAL(38, 15)) / 7 < 0.5), count(*) FILTER (WHERE wide / price > -2.5) FROM t",
    "SELECT flag, count(*) FILTER (WHERE wide / 3 > 1000000), sum(round(wide / 7)) FROM t GROUP BY flag",
    "SELECT max(CAST(wide AS DECIMAL(38, 15)) / 7), sum(wide * price), avg(wide * price) FROM t WHERE a > 3",
    // Casts and rounding.
    "SELECT sum(CAST(price AS DECIMAL(18, 1))) AS c0, max(CAST(-price AS DECIMAL(12, 0))) AS c1, max(CAST(price AS BIGINT)) AS c2,
        min(CAST(-price AS INT)) AS c3, sum(CAST(ok AS INT)) AS c4 FROM t WHERE b < 0",
    "SELECT sum(round(price)), sum(round(price, 1)), min(round(-price, -2)), sum(floor(price)), sum(ceil(price)),
        min(floor(-price)), max(ceil(-price)) FROM t",
    "SELECT sum(trunc(price)), max(trunc(-price, 1)), min(trunc(price, -2)), sum(round(b, -2)), max(round(a, -1)) FROM t",
    // Functions.
    "SELECT sum(abs(a)), max(abs(b)), min(abs(-price)), sum(greatest(a, tiny, 4)), min(least(b, quantity)),
        max(greatest(price, discount)), max(greatest(a, nothing)), count(least(nothing, a - 5)) FROM t",
    "SELECT sum(signum(a)), min(signum(b)), count(*) FILTER (WHERE signum(fare - 50000) < 0) FROM t",
    // CASE with a value.
    "SELECT sum(CASE a WHEN 1 THEN 10 WHEN 2 THEN quantity WHEN tiny THEN 7 ELSE b END),
        sum(CASE quantity % 3 WHEN a THEN 1 WHEN 0 THEN 2 END), sum(CASE ok WHEN true THEN 1 WHEN false THEN 2 ELSE 3 END),
        sum(CASE day WHEN DATE '1994-01-01' THEN 1 ELSE 0 END), sum(CASE a WHEN nothing THEN 1 ELSE 2 END) FROM t",
    // Comparisons of NULL.
    "SELECT count(*) FILTER (WHERE a IS DISTINCT FROM tiny), count(*) FILTER (WHERE a IS NOT DISTINCT FROM nothing),
        count(*) FILTER (WHERE ok IS DISTINCT FROM (a > 3)), count(*) FILTER (WHERE fare IS NOT DISTINCT FROM ratio),
        count(*) FILTER (WHERE price IS DISTINCT FROM discount) FROM t WHERE strange IS DISTINCT FROM ratio",
    "SELECT flag, count(*) FROM t WHERE (a IS DISTINCT FROM quantity) AND (b IS NOT DISTINCT FROM abs(b)) GROUP BY flag",
    // Lists.
    "SELECT count(*) FILTER (WHERE b IN (-1999, -1700, -1501, -999, -640, -77, -3, 0, 5, 12, 400, 401, 402, 997, 1313, 1999, 77777777777)),
        count(*) FILTER (WHERE b % 97 NOT IN (-90, -71, -60, -50, -49, -40, -33, -8, -1, 0, 2, 13, 20, 34, 55, 89, 96)),
        count(*) FILTER (WHERE (b % 97 IN (-90, -71, -60, -50, -49, -40, -33, -8, -1, 0, 2, 13, 20, 34, 55, 89, NULL)) IS NULL) FROM t",
    "SELECT a * 100 + quantity IN (105, 210, 315, 420, 525, 630, 735, 840, 945, 1050, 1101, 7, 12, 33, -155, -90, 1149),
        count(*), sum(b) FROM t GROUP BY 1",
    "SELECT count(*) FROM t WHERE price % 10 NOT IN (0.5, 1.25, 1.26, 2, 2.02, 3.33, 3.5, 4.04, 4.75, 5, 6.6, 7.01, 7.02, 8, 8.99, 9, 9.9)",
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT sum(b / (quantity * 2 - 51)) FROM t WHERE a > 3",
        "may be 0",
    ),
    (
        "SELECT sum(price % (discount * 2 - 0.07)) FROM t",
        "may be 0",
    ),
    (
        "SELECT sum(CAST(b AS INT)) FROM t WHERE b BETWEEN -2000 AND 2000",
        "may fail",
    ),
    ("SELECT sum(fare % 7::double) FROM t", "% of floats"),
    ("SELECT max(greatest(fare, ratio)) FROM t", "greatest"),
    (
        "SELECT count(*) FROM t WHERE spread IN (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17)",
        "a list of 17 elements",
    ),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lists_are_searched() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[2000])).await;
    let queries = [17, 1000, 5000].map(|count: i64| {
        let numbers = (0..count).map(|number| (number * number % 4001 - 2000).to_string());
        let list: Vec<_> = numbers.collect();
        format!(
            "SELECT count(*), sum(quantity) FROM t WHERE b IN ({})",
            list.join(", ")
        )
    });
    let queries: Vec<&str> = queries.iter().map(String::as_str).collect();
    fixture.compare(&queries).await;
}
