//! Queries over floats.

use super::data::Sizes;
use super::emulated::{self, Emulated};
use super::{Fixture, compile_longest};

/// Queries whose aggregates a kernel computes.
pub(super) const QUERIES: &[&str] = &[
    "SELECT count(*) FROM t WHERE fare > 50000.5::double AND ratio < 1.7::double",
    "SELECT count(*) FROM t WHERE fare BETWEEN 1000 AND 60000.25::double OR tip = 0.3::real OR tip IS NULL",
    "SELECT count(*), count(fare), count(third) FROM t WHERE fare IS NOT NULL OR third IS NULL",
    "SELECT count(*) FILTER (WHERE strange > 0), count(*) FILTER (WHERE strange = 0), count(*) FILTER (WHERE strange <= 'NaN'::double),
        count(*) FILTER (WHERE strange < '-Infinity'::double), count(*) FILTER (WHERE strange >= 'Infinity'::double) FROM t",
    "SELECT count(*) FROM t WHERE strange < -0.0::double",
    "SELECT count(*) FROM t WHERE strange = strange AND strange <> ratio",
    "SELECT count(*) FROM t WHERE fare IN (50000.5::double, 60000.25::double, 9999.99::double) OR ratio IN (1, 2, 3, 1.5::double)",
    "SELECT min(fare), max(fare), min(ratio), max(ratio), min(third), max(third), max(tip), min(spread) FROM t WHERE quantity > 2",
    "SELECT flag, min(fare), max(-fare), min(third), max(tip), max(ratio * 3) FROM t WHERE a > 2 GROUP BY flag",
    "SELECT sum(fare), avg(fare), sum(ratio), avg(ratio), count(*) FROM t",
    "SELECT flag, name, sum(fare), avg(fare), sum(tip), avg(third) FROM t WHERE b > 0 GROUP BY flag, name",
    "SELECT b, sum(fare), max(fare) FROM t GROUP BY b",
    "SELECT day, sum(fare * (1 - ratio / 100)) FROM t GROUP BY day",
    "SELECT sum(fare * quantity), sum(fare * ratio - fare / 3), sum(CASE WHEN ok THEN fare ELSE 0 END),
        sum(CASE WHEN ok THEN fare END), avg(fare) FILTER (WHERE a > 3) FROM t",
    "SELECT tip, count(*), sum(quantity) FROM t GROUP BY tip",
    "SELECT fare, count(*) FROM t GROUP BY fare",
    "SELECT fare / 3 + 1, count(*), max(tip) FROM t WHERE fare > 0::double GROUP BY 1",
    "SELECT fare, tip, max(b) FROM t WHERE quantity < 9 GROUP BY 1, 2",
    "SELECT floor(tip * 2), count(*) FROM t GROUP BY 1",
    "SELECT CAST(floor(fare / 1000) AS INT), count(*), avg(fare) FROM t GROUP BY 1",
    "SELECT count(*) FROM t WHERE abs(ratio - 1) < 0.5::double AND ceil(fare) > 5000 AND CAST(fare AS BIGINT) * 2 > 90000",
    "SELECT count(*) FROM t WHERE CAST(price AS DOUBLE) = fare OR CAST(quantity AS DOUBLE) > fare / 1000",
    "SELECT CAST(fare / 100 AS INT), count(*) FROM t WHERE third < 7 GROUP BY 1",
    "SELECT stddev(fare), var_samp(quantity), var_pop(price), stddev_pop(a), avg(fare) FROM t",
    "SELECT flag, name, stddev(fare), var_pop(a) FILTER (WHERE ok), stddev_samp(discount) FROM t GROUP BY flag, name",
    "SELECT label, sum(fare), min(ratio) FROM t JOIN d ON a = k WHERE ratio > 0.5::double GROUP BY label",
    "SELECT flag, max(fare) AS m, sum(b) FROM t GROUP BY flag ORDER BY m DESC LIMIT 2",
    "SELECT day, flag, max(fare) AS m FROM t GROUP BY 1, 2 ORDER BY m DESC NULLS LAST, 1, 2 LIMIT 9",
    "SELECT day, flag, avg(fare) AS m FROM t GROUP BY 1, 2 HAVING max(fare) > 80000 ORDER BY m DESC NULLS LAST, 1, 2 LIMIT 9",
    "SELECT day, flag, sum(fare) AS s FROM t GROUP BY 1, 2 ORDER BY s DESC NULLS LAST, 1, 2 LIMIT 7",
    "SELECT day, flag, sum(fare * quantity - ratio) AS s, avg(ratio) FROM t GROUP BY 1, 2 ORDER BY s NULLS FIRST, 1, 2 LIMIT 30",
    "SELECT b, flag, sum(ratio) AS s FROM t GROUP BY 1, 2 ORDER BY s DESC NULLS LAST, 1, 2 LIMIT 12",
    "SELECT flag, max(s), count(*) FROM (SELECT day, flag, sum(fare) AS s FROM t GROUP BY 1, 2) GROUP BY flag",
];

/// Joins by floats: by their bits, or if all are decimals or integers, by these.
pub(super) const JOINS: &[&str] = &[
    "SELECT count(*), sum(v), min(v) FROM t JOIN f ON strange = x",
    // Which zero a row has is its own.
    "SELECT strange, y, v FROM t JOIN f ON strange = y WHERE b > 0",
    "SELECT v, count(*), sum(b) FROM t LEFT JOIN f ON ratio = z GROUP BY v",
    "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM f WHERE x = strange)",
    "SELECT count(*), sum(b) FROM t WHERE a IN (SELECT y FROM f)",
    "SELECT count(*), sum(b) FROM t WHERE strange IN (SELECT x FROM f WHERE v > 3) OR quantity < 10",
    "SELECT count(*), count(tenth) FROM t WHERE tenth NOT IN (SELECT cents FROM f WHERE cents IS NOT NULL)",
    "SELECT flag, count(*), sum(v) FROM t JOIN f ON tenth = cents GROUP BY flag",
    "SELECT count(*), sum(v) FROM t JOIN f ON tip = single",
    "SELECT v, count(*), min(b) FROM t JOIN f ON a = n GROUP BY v",
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    ("SELECT sum(strange) FROM t", "infinite or NaN"),
    ("SELECT max(strange) FROM t WHERE a > 3", "infinite or NaN"),
    (
        "SELECT sum(nan + 1), sum(negative_nan + 1) FROM t",
        "infinite or NaN",
    ),
    ("SELECT sum(abs(nan)) FROM t", "infinite or NaN"),
    ("SELECT sum(negative_nan * 0) FROM t", "infinite or NaN"),
    ("SELECT sum(1 / negative_nan) FROM t", "infinite or NaN"),
    ("SELECT infinite * 0, count(*) FROM t GROUP BY 1", ""),
    ("SELECT abs(nan), count(*) FROM t GROUP BY 1", ""),
    ("SELECT ceil(tenth), count(*) FROM t GROUP BY 1", ""),
    ("SELECT sum(spread) FROM t", "far apart"),
    ("SELECT sum(fare / ratio) FROM t", "may be 0"),
    (
        "SELECT strange, count(*) FROM t GROUP BY strange",
        "too many different values",
    ),
    (
        "SELECT count(*) FROM t WHERE fare IN (1, 2, 3, 4, 0)",
        "with 0",
    ),
    (
        "SELECT count(*) FROM t WHERE third * third > 0.5::double",
        "Float32",
    ),
    ("SELECT stddev(ratio) FROM t", "a variance of"),
    ("SELECT var_pop(wide) FROM t WHERE a > 3", "far apart"),
    ("SELECT sum(exp(fare)) FROM t", ""),
];

/// Returns whether two results are the same. Sums of floats may differ in the last digits: the CPU rounds after each
/// row. Its variance loses as many digits more as the mean is larger than the deviation: with values of 88,000 and a
/// deviation of 1.6, Welford's method, which is the CPU's, is wrong by up to 7e-11.
pub(super) fn are_alike(
    query: &str,
    one: &Result<Vec<String>, String>,
    other: &Result<Vec<String>, String>,
) -> bool {
    let (Ok(lines), Ok(others)) = (one, other) else {
        return one == other;
    };
    let is_rounded = ["sum(", "avg(", "var_", "stddev"]
        .iter()
        .any(|it| query.contains(it));
    if lines == others || !is_rounded {
        return lines == others;
    }
    let cells = |lines: &[String]| -> Vec<String> {
        // Not the lines around rows, which are as long as the cells.
        let rows = lines.iter().filter(|line| line.starts_with('|'));
        let cells = rows.flat_map(|row| row.split('|').map(|cell| cell.trim().to_owned()));
        cells.collect()
    };
    let (cells, others) = (cells(lines), cells(others));
    let is_variance = query.contains("var_") || query.contains("stddev");
    let tolerance = if is_variance { 1e-10 } else { 1e-12 };
    let are_near = |(one, other): (&String, &String)| {
        let both = one.parse::<f64>().ok().zip(other.parse::<f64>().ok());
        let is_near =
            |(one, other): (f64, f64)| (one - other).abs() <= tolerance * one.abs().max(1.0);
        one == other || one.contains(['.', 'e']) && both.is_some_and(is_near)
    };
    cells.len() == others.len() && cells.iter().zip(&others).all(are_near)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_joins_that_are_floats_are_equal_as_on_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 2), Sizes(&[900, 60])).await;
    fixture.compare(JOINS).await;
    compile_longest(&emulated, |_| true, [1; 3]);
}
