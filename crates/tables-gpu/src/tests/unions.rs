//! Aggregates of rows of several plans, and of all pairs of rows.

/// Queries of all sizes.
pub(super) const QUERIES: &[&str] = &[
    // Unions.
    "SELECT count(*), sum(b), min(a), max(price), avg(quantity), stddev(quantity) FROM (SELECT a, b, price, quantity FROM t
        UNION ALL SELECT a, b, price, quantity FROM t WHERE a > 3)",
    "SELECT flag, count(*), sum(n), avg(n), min(n) FROM (SELECT flag, b AS n FROM t WHERE ok
        UNION ALL SELECT label, k FROM d UNION ALL SELECT code, n FROM c) GROUP BY flag",
    "SELECT n, count(*) FROM (SELECT a AS n, ok FROM t UNION ALL SELECT k, NULL FROM m) WHERE n > 2 GROUP BY n HAVING count(*) > 2",
    "SELECT name, sum(v) FILTER (WHERE v > 1), bool_or(v > 7), max(day) FROM (SELECT name, quantity AS v, day FROM t
        UNION ALL SELECT name, v, day FROM t JOIN m ON a = k) GROUP BY name",
    "SELECT count(*), sum(b) FROM (SELECT b FROM t WHERE a > 1000 UNION ALL SELECT b FROM t WHERE a < -1000)",
    "SELECT a, flag FROM t UNION SELECT k, label FROM d",
    "SELECT flag, ok, count(*) FROM (SELECT flag, ok FROM t UNION ALL SELECT name, a > 3 FROM t) GROUP BY flag, ok",
    "SELECT n, count(*) FROM (SELECT flag, count(*) AS n FROM t GROUP BY flag UNION ALL SELECT name, count(*) FROM t GROUP BY name) GROUP BY n",
    // Full joins.
    "SELECT count(*), count(a), count(k), sum(b), sum(weight) FROM t FULL JOIN d ON a = k",
    "SELECT flag, label, count(*), sum(b), min(weight) FROM t FULL JOIN d ON a = k GROUP BY flag, label",
    "SELECT coalesce(a, k) AS n, count(*) FROM t FULL JOIN d ON a = k GROUP BY 1",
    "SELECT v, count(*), max(b) FROM t FULL JOIN m ON a = k GROUP BY v",
    "SELECT label, count(*) FROM t FULL JOIN d ON a = k WHERE flag IS NULL OR b > 0 GROUP BY label",
    "SELECT count(*), count(v), sum(one) FROM p FULL JOIN m ON one = k",
    "SELECT count(*), count(a), count(k), sum(quantity), max(weight) FROM t FULL JOIN d ON a = k AND odd > quantity",
    "SELECT count(*), count(v), sum(one) FROM p FULL JOIN m ON one = k AND v < two",
    // All pairs.
    "SELECT count(*) FROM c, m WHERE n > 3",
    "SELECT count(*), sum(b), max(v) FROM t CROSS JOIN m",
    "SELECT flag, count(*), sum(v * quantity) FROM t CROSS JOIN m WHERE v > 3 GROUP BY flag",
    "SELECT count(*), sum(b) FROM t JOIN m ON a < v",
    "SELECT flag, v, count(*), min(a) FROM t JOIN m ON quantity BETWEEN v AND v + 2 GROUP BY flag, v",
    "SELECT title, count(*) FROM t JOIN r ON a > r.r AND b > 0 GROUP BY title",
    "SELECT flag, sum(b), max(most) FROM t CROSS JOIN (SELECT max(v) AS most FROM m) AS o WHERE a < most GROUP BY flag",
    "SELECT flag, count(*) FROM t JOIN (SELECT avg(v) AS mean, min(k) AS least FROM m) AS o ON a > mean AND a > least GROUP BY flag",
    "SELECT l, count(*), sum(b) FROM t CROSS JOIN (SELECT label AS l, avg(odd) AS mean FROM d GROUP BY label) AS o
        WHERE quantity > mean GROUP BY l",
    "SELECT count(*), sum(one.v) FROM m AS one, m AS other WHERE one.v < other.v",
    "SELECT one.a, count(*) FROM t AS one JOIN m ON one.a <> m.k JOIN d ON one.a = d.k GROUP BY one.a",
    "SELECT count(*) FROM t CROSS JOIN e WHERE b > 0",
    "SELECT flag, count(*) FROM t JOIN (SELECT max(v) AS most FROM m WHERE k > 2) AS o ON a < most GROUP BY flag",
    // Rows without an aggregate.
    "SELECT b, v FROM t JOIN m ON a + 10 < v ORDER BY b, v LIMIT 40",
    "SELECT b, v FROM t CROSS JOIN m ORDER BY b, v DESC LIMIT 9",
    "SELECT quantity, most FROM t CROSS JOIN (SELECT max(v) AS most FROM m) AS o WHERE a = most",
];
