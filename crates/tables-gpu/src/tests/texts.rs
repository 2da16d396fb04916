//! Columns of many different texts. In the larger files, `note` has more than the CPU computes expressions of.

/// Queries of several rows.
pub(super) const QUERIES: &[&str] = &[
    "SELECT note, count(*) FROM t GROUP BY note",
    "SELECT note, count(*) AS n, sum(b) FROM t WHERE quantity < 30 GROUP BY note ORDER BY n DESC, note LIMIT 5",
    "SELECT note, flag, min(b) FROM t GROUP BY 1, 2 HAVING count(*) > 1",
    "SELECT count(DISTINCT note), count(note), count(DISTINCT name) FROM t",
    "SELECT flag, count(DISTINCT note) FROM t GROUP BY flag",
    "SELECT DISTINCT note FROM t WHERE b > 0",
    // What is computed of each text is a column beside.
    "SELECT note, upper(note), count(*) FROM t WHERE note LIKE '%1%' GROUP BY 1, 2",
];
