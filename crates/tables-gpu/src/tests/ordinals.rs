//! Texts that are compared by their ordinals, and truths.

/// Queries of all sizes.
pub(super) const QUERIES: &[&str] = &[
    "SELECT min(name), max(name), min(flag), max(flag) FROM t WHERE quantity > 1",
    "SELECT max(name), min(upper(name)) FROM t WHERE a > 1000",
    "SELECT flag, min(name), max(upper(name)), count(name), max(a) FROM t WHERE a > 3 GROUP BY flag",
    "SELECT flag, max(name) FROM t WHERE a > 1000 GROUP BY flag",
    "SELECT flag, min(name) FILTER (WHERE ok), max(name) FILTER (WHERE b > 0) FROM t GROUP BY flag HAVING max(name) > 'b'",
    "SELECT name, min(flag), max(substr(name, 2)) FROM t GROUP BY name",
    "SELECT b, min(substr(name, 1, 2)), max(name) FROM t GROUP BY b",
    "SELECT day, max(name) FROM t GROUP BY day ORDER BY 2 DESC NULLS LAST, 1 LIMIT 9",
    "SELECT day, flag, min(name) AS m FROM t GROUP BY 1, 2 ORDER BY m NULLS FIRST, 1, 2 LIMIT 20",
    "SELECT flag, ok, max(name) FROM t GROUP BY ROLLUP (flag, ok)",
    "SELECT min(label), max(label), max(upper(label)) FROM t JOIN d ON a = k",
    "SELECT flag, min(label), max(title), max(name) FROM t LEFT JOIN d ON a = d.k LEFT JOIN r ON d.r = r.r GROUP BY flag",
    "SELECT flag, max(title) FROM t JOIN (SELECT k, title FROM d JOIN r ON d.r = r.r) n ON a = n.k GROUP BY flag",
    "SELECT d.k, min(name), max(flag) FROM d LEFT JOIN t ON a = d.k GROUP BY d.k",
    // Groups that are grouped again.
    "SELECT m, count(*) FROM (SELECT a, flag, min(name) AS m FROM t GROUP BY 1, 2) GROUP BY m",
    "SELECT max(m), min(m), count(*) FROM (SELECT day, max(name) AS m FROM t GROUP BY day)",
    "SELECT m, count(*) FROM (SELECT a, quantity, bool_or(ok) AS m FROM t GROUP BY 1, 2) GROUP BY m",
    // Truths.
    "SELECT bool_and(ok), bool_or(ok), min(ok), max(ok), bool_or(a > 3) FROM t WHERE quantity > 1",
    "SELECT flag, bool_and(ok), bool_or(ok AND b > 0), max(ok) FILTER (WHERE a > 3), min(name LIKE 'a%') FROM t GROUP BY flag",
    "SELECT b, bool_and(quantity < 9), bool_or(weight > 5) FROM t LEFT JOIN d ON a = k GROUP BY b",
];

/// The first rows in an order of texts of joins.
pub(super) const LISTS: &[&str] = &[
    "SELECT label, b FROM t JOIN d ON a = k ORDER BY label DESC, b LIMIT 12",
    "SELECT label, b FROM t LEFT JOIN d ON a = k ORDER BY label NULLS FIRST, b LIMIT 30",
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[(
    "SELECT flag, max(coalesce(label, 'none')) FROM t LEFT JOIN d ON a = k GROUP BY flag",
    "",
)];
