//! Statements and their rows in PostgreSQL 15.

/// Statements and their rows.
pub const ANSWERS: &[(&str, &[&str])] = &[
    (
        "SELECT x FROM (VALUES (0), (2), (NULL), (1)) v(x) WHERE x <> 0 AND 4 / x = 2",
        &["2"],
    ),
    (
        "SELECT x FROM (VALUES (0.0), (0.5)) v(x) WHERE x::float8 <> 0 AND 1 / x::float8 > 1",
        &["0.5"],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (SELECT a FROM m) ORDER BY id",
        &[],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (SELECT a FROM m WHERE a IS NOT NULL) ORDER BY id",
        &["6"],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (SELECT a FROM m WHERE m.a = n.a) ORDER BY id",
        &["4", "5", "6"],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (SELECT b FROM m WHERE m.a = n.a) ORDER BY id",
        &["4", "5", "6"],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (SELECT a FROM m) OR id = 5 ORDER BY id",
        &["5"],
    ),
    (
        "SELECT id FROM n WHERE NOT (a IN (SELECT a FROM m) AND id < 100) ORDER BY id",
        &[],
    ),
    (
        "SELECT id FROM n WHERE (a IN (SELECT a FROM m)) IS NULL ORDER BY id",
        &["4", "5", "6"],
    ),
    (
        "SELECT id FROM n WHERE NOT a IN (SELECT b FROM m WHERE b > 0) ORDER BY id",
        &["1", "6"],
    ),
    (
        "SELECT id FROM n WHERE a IN (SELECT a FROM m) OR id = 5 ORDER BY id",
        &["1", "2", "3", "5"],
    ),
    ("SELECT 7 WHERE 7 NOT IN (SELECT a FROM m)", &[]),
    (
        "SELECT id FROM n ORDER BY id FETCH FIRST 2 ROWS ONLY",
        &["1", "2"],
    ),
    (
        "SELECT id FROM (SELECT id FROM n ORDER BY id OFFSET 1 ROW FETCH NEXT ROW ONLY) q",
        &["2"],
    ),
    (
        "SELECT DISTINCT pg_typeof(x), pg_typeof(y) \
        FROM (SELECT row_number() OVER (ORDER BY id) AS x, rank() OVER (ORDER BY a) AS y FROM n) q",
        &["bigint|bigint"],
    ),
    (
        "SELECT 7 WHERE 7 NOT IN (SELECT a FROM m WHERE a IS NOT NULL)",
        &["7"],
    ),
    (
        "SELECT 7 WHERE NULL NOT IN (SELECT a FROM m WHERE false)",
        &["7"],
    ),
    (
        "SELECT id, (a IN (SELECT a FROM m))::text FROM n ORDER BY id",
        &["1|true", "2|true", "3|true", "4|", "5|", "6|"],
    ),
    (
        "SELECT id, (a NOT IN (SELECT b FROM m WHERE b > 0))::text FROM n ORDER BY id",
        &["1|true", "2|false", "3|false", "4|", "5|", "6|true"],
    ),
    (
        "SELECT id, (EXISTS (SELECT 1 FROM m WHERE m.a = n.a))::text FROM n ORDER BY id",
        &[
            "1|true", "2|true", "3|true", "4|false", "5|false", "6|false",
        ],
    ),
    (
        "SELECT id, CASE WHEN NOT EXISTS (SELECT * FROM m WHERE m.a = n.a) THEN 'none' END FROM n ORDER \
        BY id",
        &["1|", "2|", "3|", "4|none", "5|none", "6|none"],
    ),
    (
        "SELECT sum(CASE WHEN a IN (SELECT a FROM m) THEN 1 END) FROM n",
        &["3"],
    ),
    (
        "SELECT id FROM n WHERE CASE WHEN a IN (SELECT a FROM m) THEN false ELSE true END ORDER BY id",
        &["4", "5", "6"],
    ),
    (
        "SELECT n.id FROM n JOIN m ON n.a = m.a AND n.id NOT IN (SELECT b FROM m WHERE b IS NOT NULL) \
        ORDER BY 1",
        &["1", "1", "3"],
    ),
    (
        "SELECT count(*) FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a WHERE n.a = m.a",
        &["4"],
    ),
    (
        "SELECT count(*) FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a AND n.b = m.b",
        &["0"],
    ),
    (
        "SELECT count(*) FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a",
        &["6"],
    ),
    (
        "SELECT (a IS DISTINCT FROM 1 OR true)::text FROM n WHERE id = 1",
        &["true"],
    ),
    (
        "SELECT count(*) FROM n WHERE a IS NOT DISTINCT FROM a AND false",
        &["0"],
    ),
    (
        "SELECT id FROM n WHERE a NOT IN (CASE WHEN b = 1 THEN 5 END, 7, 8, 9, 10) ORDER BY id",
        &["1"],
    ),
    (
        "SELECT id FROM n WHERE a IN (b, 7, 8, 9, 10) ORDER BY id",
        &["1", "6"],
    ),
    (
        "SELECT count(*) FROM n HAVING count(*) NOT IN (SELECT b FROM m WHERE b IS NOT NULL)",
        &["6"],
    ),
    (
        "SELECT sum(x) FROM (VALUES (9223372036854775807), (1)) v(x)",
        &["9223372036854775808"],
    ),
    (
        "SELECT sum(x) OVER () FROM (VALUES (9223372036854775807), (1)) v(x)",
        &["9223372036854775808", "9223372036854775808"],
    ),
    (
        "SELECT 2.5::int, 3.5::int, (-2.5)::int, 2.4::int, 0.5::bigint",
        &["3|4|-3|2|1"],
    ),
    (
        "SELECT 2.5::float8::int, 3.5::float8::int, (-2.5)::float8::int, 2.7::float8::bigint",
        &["2|4|-2|3"],
    ),
    (
        "SELECT id FROM (VALUES (1, 2.5), (2, 3.4)) v(id, x) WHERE x::int = 3 ORDER BY id",
        &["1", "2"],
    ),
    (
        "SELECT round(2.5), round(-2.5), round(2.5::float8)::text, round(3.5::float8)::text",
        &["3|-3|2|4"],
    ),
    ("SELECT NULL::float8 / 0", &[""]),
    (
        "SELECT 'abc'::varchar(2), 'abc'::char(2), 'abc'::char, 12345::varchar(3)",
        &["ab|ab|a|123"],
    ),
    (
        "SELECT ('ab'::char(5) = 'ab')::text, length('ab'::char(5)), 'ab'::char(5) || 'c'",
        &["true|2|abc"],
    ),
    (
        "SELECT (timestamp '2020-01-01 10:00:00' AT TIME ZONE 'Europe/Vienna')::text",
        &["2020-01-01 09:00:00+00"],
    ),
    (
        "SELECT (timestamptz '2020-01-01 10:00:00+00' AT TIME ZONE 'Europe/Vienna')::text",
        &["2020-01-01 11:00:00"],
    ),
    (
        "SELECT (timestamptz '2020-07-01 10:00:00+00' AT TIME ZONE 'America/New_York')::text",
        &["2020-07-01 06:00:00"],
    ),
    (
        "SELECT to_char(timestamp '2020-01-05 15:04:09.0123', 'YYYY-MM-DD HH24:MI:SS.US Day FMMonth \
        Dth')",
        &["2020-01-05 15:04:09.012300 Sunday    January 1st"],
    ),
    (
        "SELECT to_char(date '2020-01-05', 'DD Mon YYYY'), to_char(1234.5, 'FM9,999.00'), to_char(-7, \
        '000')",
        &["05 Jan 2020|1,234.50|-007"],
    ),
    (
        "SELECT (date '2020-01-31' + interval '1 month')::text, (date '2020-01-31' + interval '1 \
        hour')::text",
        &["2020-02-29 00:00:00|2020-01-31 01:00:00"],
    ),
    (
        "SELECT (date '2020-01-31' + 1)::text, date '2020-01-31' - date '2020-01-01', (date '2020-01-31' \
        - 1)::text",
        &["2020-02-01|30|2020-01-30"],
    ),
    (
        "SELECT (timestamp '2020-01-31' - timestamp '2020-01-01')::text, (timestamp '2020-01-31 \
        10:00:00' - date '2020-01-31')::text",
        &["30 days|10:00:00"],
    ),
    (
        "SELECT (timestamp '2020-01-31' - timestamp '2020-01-01' > interval '1 day')::text",
        &["true"],
    ),
    (
        "SELECT (interval '1 month' > interval '31 days')::text, (interval '24 hours' = interval '1 \
        day')::text",
        &["false|true"],
    ),
    (
        "SELECT '{1,2}'::int[] = ARRAY[1,2], '{}'::int[] IS NULL",
        &["true|false"],
    ),
    (
        "SELECT (timestamp '2020-01-01 10:00')::text, ('2020-01-01 10:00+02'::timestamptz)::text",
        &["2020-01-01 10:00:00|2020-01-01 08:00:00+00"],
    ),
    (
        "SELECT (timestamp '3000-01-01 00:00:00')::text",
        &["3000-01-01 00:00:00"],
    ),
    (
        "SELECT variance(x)::float8::text, every(x > 0)::text FROM (VALUES (1), (2)) v(x)",
        &["0.5|true"],
    ),
    (
        "SELECT age(timestamp '2020-03-01', timestamp '2019-01-31')::text",
        &["1 year 1 mon 1 day"],
    ),
    (
        "SELECT age(timestamp '2019-01-31', timestamp '2020-03-01 10:00:00')::text",
        &["-1 years -1 mons -1 days -10:00:00"],
    ),
    (
        "SELECT pg_typeof(1.5), pg_typeof('a'::text), pg_typeof(date '2020-01-01'), pg_typeof(now()), \
        pg_typeof(ARRAY[1::int])",
        &["numeric|text|date|timestamp with time zone|integer[]"],
    ),
    (
        "SELECT ('abc' SIMILAR TO '(a|b)%')::text, ('abc' SIMILAR TO 'a')::text, ('abc' NOT SIMILAR TO \
        '_b_')::text",
        &["true|false|false"],
    ),
    (
        "SELECT extract(second FROM timestamp '2020-01-01 00:00:01.5')::text",
        &["1.500000"],
    ),
    (
        "SELECT 10.0 / 3, 7.0 / 2, 20.00 / 3",
        &["3.3333333333333333|3.5000000000000000|6.6666666666666667"],
    ),
    (
        "SELECT 0.1::float8::text, 1e20::float8::text, 100::float8::text, 1e-7::float8::text, \
        (1.0::float8 / 3)::text",
        &["0.1|1e+20|100|1e-07|0.3333333333333333"],
    ),
    (
        "SELECT (interval '1 year 2 months 3 days 04:05:06.7')::text, ('-01:30'::interval)::text",
        &["1 year 2 mons 3 days 04:05:06.7|-01:30:00"],
    ),
    (
        "SELECT 'a' || timestamp '2020-01-01 10:00:00', 'a' || 1.5::float8",
        &["a2020-01-01 10:00:00|a1.5"],
    ),
    (
        "SELECT mod(7, 3), mod(-7, 3), ~5, 'abc' ^@ 'ab'",
        &["1|-1|-6|true"],
    ),
    ("SELECT generate_series(1, 3)", &["1", "2", "3"]),
    (
        "SELECT count(*) FROM (SELECT 1 AS x UNION SELECT CASE WHEN a > 1 THEN 2 END FROM n) s",
        &["3"],
    ),
    (
        "SELECT date '1998-12-01' - interval '90' day > date '1998-09-01'",
        &["true"],
    ),
    (
        "SELECT id FROM n WHERE EXISTS (SELECT 1, 1 FROM m WHERE m.a = n.a) ORDER BY id",
        &["1", "2", "3"],
    ),
    (
        "SELECT x.c, n.id FROM n LEFT JOIN (SELECT a AS c FROM n WHERE a = 1) x ON x.c = n.a ORDER BY \
        x.c, n.id LIMIT 3",
        &["1|1", "|2", "|3"],
    ),
    (
        "SELECT c, id FROM (SELECT 9 AS c) x RIGHT JOIN n ON x.c = n.a ORDER BY c, id",
        &["9|6", "|1", "|2", "|3", "|4", "|5"],
    ),
    (
        "SELECT id FROM n WHERE (a, b) <> (1, 1) ORDER BY id",
        &["2", "3", "6"],
    ),
    (
        "SELECT id FROM n WHERE (a, b) NOT IN ((1, 1), (2, NULL)) ORDER BY id",
        &["6"],
    ),
    ("SELECT id FROM n WHERE (a, b) IS NULL ORDER BY id", &["5"]),
    ("SELECT id FROM n WHERE (a, b) < (2, 3) ORDER BY id", &["1"]),
    (
        "SELECT ((SELECT a FROM n WHERE false) IS NULL)::text, coalesce((SELECT 1 FROM n WHERE id = \
        100), 5)",
        &["true|5"],
    ),
    ("SELECT (SELECT 1 WHERE false)", &[""]),
    ("SELECT count(*) FROM n HAVING NULL", &[]),
    (
        "SELECT k FROM (SELECT count(b) AS k FROM n) r WHERE NULL AND k >= 0",
        &[],
    ),
    (
        "SELECT count(*) FROM n HAVING (SELECT max(a) FROM m) = 1",
        &[],
    ),
    (
        "SELECT max(b::float8)::int, max(b), max(b::text) FROM n",
        &["3|3|3"],
    ),
    ("SELECT g FROM generate_series(1, 3) g", &["1", "2", "3"]),
    ("SELECT sum(u) FROM unnest(ARRAY[1,2,3]) u", &["6"]),
    (
        "SELECT a, count(DISTINCT b), sum(id::numeric(10,2)) FROM n GROUP BY a HAVING \
        sum(id::numeric(10,2)) >= 2 ORDER BY a",
        &["2|1|5.00", "9|1|6.00", "|1|9.00"],
    ),
    (
        "SELECT id FROM n WHERE b::text::bigint <= a ORDER BY id",
        &["1", "6"],
    ),
    ("SELECT (E'a\\nb' ~ 'a.b')::text", &["true"]),
    (
        "SELECT count(*) FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a CROSS JOIN (VALUES (1), (2)) g",
        &["12"],
    ),
    (
        "SELECT count(*) FROM n x RIGHT JOIN n y ON x.a = y.b WHERE coalesce(x.id, 0) < y.id",
        &["6"],
    ),
    (
        "SELECT id FROM n WHERE 1 IN (6, (SELECT count(*) FROM m WHERE m.a = n.a), 0, 9) ORDER BY id",
        &["2", "3"],
    ),
    (
        "SELECT id FROM n WHERE EXISTS (SELECT sum(b) FROM m WHERE m.a = n.a AND m.b > 9) ORDER BY id",
        &["1", "2", "3", "4", "5", "6"],
    ),
    (
        "SELECT count(x.k) FROM m LEFT JOIN (SELECT count(a) AS k FROM n) x ON false",
        &["0"],
    ),
    (
        "SELECT 0.1::real = 0.1, 1e-20::float8 > 0.0, 1e300::float8 IN (0.5)",
        &["false|true|false"],
    ),
    (
        "SELECT greatest(1e300::float8, 0.5) > 1e299::float8",
        &["true"],
    ),
    ("SELECT 0.5 AS x UNION SELECT 0.5::float8", &["0.5"]),
    (
        "SELECT date '9999-12-31' > now(), date '9999-12-31' = timestamp '9999-12-31'",
        &["true|true"],
    ),
    (
        "SELECT coalesce(NULL::date, timestamp '9999-12-31')::text",
        &["9999-12-31 00:00:00"],
    ),
    (
        "SELECT ceil(99999999.99::numeric(10, 2)) = 100000000",
        &["true"],
    ),
    (
        "SELECT id, sum(b) OVER (w ORDER BY id) FROM n WINDOW w AS (PARTITION BY a) ORDER BY id",
        &["1|1", "2|", "3|3", "4|1", "5|1", "6|2"],
    ),
    (
        "SELECT id, sum(b) OVER v FROM n WINDOW w AS (PARTITION BY a), v AS (w ORDER BY id DESC) ORDER BY id",
        &["1|1", "2|3", "3|3", "4|1", "5|", "6|2"],
    ),
    (
        "SELECT a FROM n RIGHT JOIN m USING (a) ORDER BY a",
        &["1", "1", "2", "2", ""],
    ),
    (
        "SELECT a, id, m.b FROM n FULL JOIN m USING (a) WHERE a IS NULL OR a > 2 ORDER BY id, m.b",
        &["|4|", "|5|", "9|6|", "||4"],
    ),
    (
        "SELECT a, count(*) FROM n FULL JOIN m USING (a) GROUP BY a HAVING a > 1 ORDER BY a DESC",
        &["9|1", "2|2"],
    ),
    (
        "SELECT * FROM n RIGHT JOIN m USING (a) WHERE a = 2 ORDER BY id",
        &["2|2||2", "2|3|3|2"],
    ),
    (
        "SELECT * FROM n JOIN m USING (a) WHERE id = 3",
        &["2|3|3|2"],
    ),
    (
        "SELECT count(*) FROM (SELECT count(*) AS k FROM n) x LEFT JOIN n y ON x.k = y.id CROSS JOIN m \
        WHERE NULL AND m.a = 1",
        &["0"],
    ),
    (
        "SELECT count(*) FROM (SELECT 0.5 AS a UNION SELECT 1e300::float8 UNION SELECT 0.5::float8) q WHERE a > 0.1",
        &["2"],
    ),
];
