//! Queries over dates, timestamps and durations with many different values.

/// Queries whose aggregates a kernel computes.
pub(super) const QUERIES: &[&str] = &[
    "SELECT date_trunc('hour', moment), count(*), sum(b) FROM t WHERE quantity > 20 GROUP BY 1",
    "SELECT date_trunc('month', moment), flag, count(*) FROM t GROUP BY 1, 2",
    "SELECT date_trunc('week', zoned), date_trunc('quarter', until), count(*) FROM t GROUP BY 1, 2",
    "SELECT date_trunc('year', night), max(until), min(zoned), max(date_trunc('minute', until)), min(date_trunc('second', zoned))
        FROM t GROUP BY 1",
    "SELECT extract(hour FROM moment), extract(dow FROM zoned), count(*) FROM t GROUP BY 1, 2",
    "SELECT extract(year FROM moment), extract(month FROM until), extract(day FROM night), count(*) FROM t GROUP BY 1, 2, 3",
    "SELECT count(*) FROM t WHERE extract(minute FROM moment) < 30 AND extract(doy FROM zoned) > 100
        AND (extract(week FROM until) < 40 OR until IS NULL) AND extract(quarter FROM night) <> 2",
    "SELECT date_part('isoyear', zoned), date_part('isodow', until), max(date_part('epoch', zoned)), min(date_part('epoch', night)),
        count(*) FROM t GROUP BY 1, 2",
    "SELECT sum(date_part('second', zoned)), sum(date_part('millisecond', moment)), max(date_part('microsecond', until)),
        sum(date_part('minute', night)), sum(date_part('hour', zoned)) FROM t",
    "SELECT CAST(moment AS DATE), count(*), max(CAST(night AS DATE)) FROM t GROUP BY 1",
    "SELECT count(*) FROM t WHERE CAST(day AS TIMESTAMP) > moment OR CAST(zoned AS DATE) < day",
    "SELECT min(until - moment), max(until - moment), count(until - moment) FROM t WHERE a > 2",
    "SELECT max(moment + INTERVAL '1 month 3 days'), min(until - INTERVAL '13 months'), max(day + INTERVAL '2 years'),
        min(zoned + INTERVAL '90 minutes'), max(night - INTERVAL '1 month 1 second') FROM t",
    "SELECT count(*) FROM t WHERE moment + INTERVAL '1 month' < until AND INTERVAL '1 day' + night > moment - INTERVAL '30 years'",
    "SELECT date_bin(INTERVAL '15 minutes', moment), count(*) FROM t WHERE b > 0 GROUP BY 1",
    "SELECT date_bin(INTERVAL '7 days', until, TIMESTAMP '2001-01-01 00:00:00'), min(date_bin(INTERVAL '1 hour', zoned)) FROM t GROUP BY 1",
    "SELECT date_trunc('day', moment) AS d, sum(quantity) FROM t GROUP BY 1 ORDER BY d DESC LIMIT 5",
    "SELECT max(n), min(m), max(m) FROM (SELECT date_trunc('hour', moment) AS m, count(*) AS n FROM t GROUP BY 1)",
    "SELECT m, count(*) FROM (SELECT date_trunc('month', until) AS m, a, count(*) AS n FROM t GROUP BY 1, 2) GROUP BY 1",
    "SELECT count(DISTINCT date_trunc('day', moment)), count(DISTINCT date_trunc('month', until)) FROM t",
    "SELECT date_trunc('month', moment), label, count(*) FROM t JOIN d ON a = k GROUP BY 1, 2",
    "SELECT date_trunc('millisecond', early), count(*), min(date_trunc('minute', early)) FROM t GROUP BY 1",
    "SELECT min(took), max(took), count(*) FROM t WHERE took IS NOT NULL AND a > 1",
    "SELECT took, count(*) FROM t GROUP BY took",
];

/// Queries that sessions alone can plan.
pub(super) const OF_SESSIONS: &[&str] = &[
    "SELECT count(*) FROM t WHERE until - moment < INTERVAL '10 days'",
    "SELECT flag, count(*) FILTER (WHERE until - moment BETWEEN INTERVAL '1 day' AND INTERVAL '3 weeks') FROM t GROUP BY flag",
    "SELECT count(*) FROM t WHERE moment - zoned > INTERVAL '1 month' OR moment < until - INTERVAL '1 hour'",
    "SELECT max(until - moment), min(until - moment) FROM t WHERE until - moment > INTERVAL '2 hours'",
    "SELECT extract(second FROM moment), count(*) FROM t WHERE extract(epoch FROM moment) > 1000000000 GROUP BY 1",
];

/// Queries that the CPU computes, and a part of the reason.
pub(super) const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT count(*) FROM t WHERE date_bin(INTERVAL '2 months', moment) > TIMESTAMP '2000-01-01 00:00:00'",
        "date_bin by months",
    ),
    (
        "SELECT count(*) FROM t WHERE extract(hour FROM arrow_cast(moment, 'Timestamp(Microsecond, Some(\"+02:00\"))')) = 3",
        "days and hours of",
    ),
    (
        "SELECT min(date_trunc('hour', arrow_cast(moment, 'Timestamp(Microsecond, Some(\"+02:00\"))'))) FROM t",
        "days and hours of",
    ),
];
