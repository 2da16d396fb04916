//! Aggregates of distinct values.

/// Queries of several rows.
pub(super) const QUERIES: &[&str] = &[
    "SELECT flag, count(DISTINCT a), count(DISTINCT quantity), sum(b), count(*) FROM t GROUP BY flag",
    "SELECT count(DISTINCT a), count(DISTINCT b), count(*), min(day) FROM t",
    "SELECT name, avg(price), count(DISTINCT a) FROM t GROUP BY name",
    // Keys and values that are NULL.
    "SELECT a, name, count(DISTINCT ok), count(DISTINCT tiny), max(price) FROM t GROUP BY a, name",
    "SELECT count(DISTINCT nothing), sum(DISTINCT nothing), count(DISTINCT name) FROM t",
    // Sums of decimals, and other functions.
    "SELECT flag, sum(DISTINCT price), min(DISTINCT a), max(price), count(DISTINCT price) FROM t GROUP BY flag",
    // No rows.
    "SELECT count(*), count(DISTINCT a), sum(DISTINCT quantity), max(price) FROM t WHERE a > 1000",
    "SELECT flag, count(DISTINCT a), count(DISTINCT b) FROM t WHERE a > 1000 GROUP BY flag",
    // Conditions of aggregates, also those that leave groups without rows.
    "SELECT flag, count(DISTINCT a) FILTER (WHERE b > 0), count(DISTINCT a), sum(DISTINCT quantity) FILTER (WHERE ok),
        count(*) FILTER (WHERE a > 3) FROM t GROUP BY flag",
    "SELECT name, count(DISTINCT a) FILTER (WHERE a > 1000), count(DISTINCT day) FROM t GROUP BY name",
    // Joins, and what is above.
    "SELECT flag, count(DISTINCT label), count(DISTINCT b) FROM t JOIN d ON a = k GROUP BY flag",
    "SELECT flag, count(DISTINCT a) AS n, count(DISTINCT quantity) FROM t GROUP BY flag HAVING count(DISTINCT quantity) > 1
        ORDER BY n DESC, flag LIMIT 2",
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT flag, count(DISTINCT a), count(DISTINCT quantity), sum(b * quantity * 200000) FROM t WHERE b < 5000 GROUP BY flag",
        "leave the range",
    ),
    // Known when the fragments run.
    (
        "SELECT sum(b * quantity * 200000), count(DISTINCT a) FROM t WHERE b < 5000",
        "leave the range",
    ),
    (
        "SELECT flag, count(DISTINCT a), count(DISTINCT s) FROM (SELECT flag, a, sum(b) AS s FROM t GROUP BY 1, 2) GROUP BY flag",
        "rows of a plan",
    ),
];
