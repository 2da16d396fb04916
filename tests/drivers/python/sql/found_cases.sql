-- Statements that random queries found to be answered wrongly, or not at all, by some version of Forebay or DataFusion.
-- Joins and filters.
SELECT n.id, m.a FROM n RIGHT JOIN m ON n.b = m.a WHERE n.s IS DISTINCT FROM m.s;
SELECT n.id, m.c FROM n RIGHT JOIN m ON n.b = m.a WHERE coalesce(n.s, 'q') <> coalesce(m.s, 'r');
SELECT n.id, m.a FROM n RIGHT JOIN m ON n.b = m.a WHERE n.a IS DISTINCT FROM m.a;
SELECT x.id, y.id FROM n x RIGHT JOIN n y ON x.a = y.b WHERE x.id IS DISTINCT FROM y.id;
SELECT x.id, y.id FROM n x RIGHT JOIN n y ON x.a = y.b WHERE coalesce(x.id, 0) < y.id;
SELECT x.id, y.id FROM n x LEFT JOIN n y ON x.a = y.b WHERE x.id IS DISTINCT FROM y.id;
SELECT x.id, y.id FROM n x LEFT JOIN n y ON x.a = y.b WHERE coalesce(y.id, 0) < x.id;
SELECT count(*) FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a CROSS JOIN g;
SELECT n.id FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a WHERE n.a = m.a;
SELECT n.id FROM n RIGHT JOIN m ON n.a IS NOT DISTINCT FROM m.a WHERE NOT (NOT (n.a = m.a));
SELECT n.id FROM n JOIN m ON n.a IS NOT DISTINCT FROM m.a AND n.s = m.s;
SELECT id FROM n WHERE a IS NOT DISTINCT FROM b AND b = 1;
SELECT id FROM n WHERE ok IS NOT DISTINCT FROM ok AND false;
SELECT ok IS DISTINCT FROM true OR true FROM n WHERE id = 1;
SELECT x.k, m.c FROM m LEFT JOIN (SELECT count(a) AS k FROM n) x ON false;
SELECT x.k, m.c FROM (SELECT count(a) FILTER (WHERE false) AS k FROM n) x RIGHT JOIN m ON 1 > 2;
SELECT n.id FROM n LEFT JOIN m USING (a) JOIN g ON g.k = a;
SELECT a FROM n NATURAL RIGHT JOIN m;
SELECT * FROM n JOIN m USING (a);
SELECT * FROM n FULL JOIN m USING (a) WHERE a = 9;
-- Order after outer joins.
SELECT x.c, n.id FROM n LEFT JOIN (SELECT a AS c FROM n WHERE a = 3) x ON x.c = n.a ORDER BY x.c, n.id LIMIT 3;
SELECT n.id, m.a FROM n LEFT JOIN m ON n.a = m.a AND m.a = 2 ORDER BY m.a, n.id;
SELECT x.c, n.id FROM (SELECT max(a) AS c FROM n) x RIGHT JOIN n ON x.c = n.a ORDER BY x.c, n.id;
SELECT x.c, n.id FROM (SELECT max(a) AS c FROM n) x FULL JOIN n ON x.c = n.a ORDER BY x.c DESC NULLS FIRST, n.id;
SELECT x.c, n.id FROM n LEFT JOIN (SELECT 3 AS c) x ON x.c = n.a ORDER BY x.c, n.id;
SELECT id, rank() OVER (ORDER BY x.c) FROM n LEFT JOIN (SELECT a AS c FROM n WHERE a = 3) x ON x.c = n.a;
-- Subqueries.
SELECT id FROM n WHERE a NOT IN (SELECT a FROM m WHERE m.a = n.a);
SELECT id FROM n WHERE s NOT IN (SELECT s FROM m) OR id = 77;
SELECT id FROM n WHERE NOT (a IN (SELECT a FROM m) AND id < 100);
SELECT id FROM n WHERE NOT (9 IN (SELECT b FROM n) AND id < 100);
SELECT id FROM n WHERE (a IN (SELECT a FROM m)) IS DISTINCT FROM ok;
SELECT n.id, m.c FROM n FULL JOIN m ON n.a = m.a WHERE NOT (m.a IN (SELECT a FROM n) AND n.id < 100);
SELECT id FROM n WHERE a NOT IN (CASE WHEN b = 1 THEN 5 END, 7, 8, 9, 10);
SELECT id FROM n WHERE a IN ((SELECT max(a) FROM m), 1);
SELECT id FROM n WHERE coalesce((SELECT 1 FROM e), 0) = 0;
SELECT coalesce((SELECT 1 FROM n WHERE id = 100), 5);
SELECT (SELECT 1 FROM n WHERE id = 100) IS NULL;
SELECT CASE WHEN (SELECT 1 FROM e) IS NULL THEN 'none' ELSE 'some' END;
SELECT (SELECT count(*) FROM n GROUP BY a HAVING a = 77) IS NULL;
SELECT id, (SELECT c FROM m WHERE m.a = n.a AND c > 15) FROM n;
SELECT x.id, (SELECT count(*) FROM n y WHERE y.a = x.a AND y.id <> x.id) FROM n x;
SELECT (SELECT min(c) FROM m WHERE m.a = n.a) AS k0, count(*) FROM n GROUP BY 1;
SELECT id, sum((SELECT min(c) FROM m WHERE m.a = n.a)) OVER () FROM n;
SELECT id, min(CASE WHEN EXISTS (SELECT 1 FROM m WHERE m.a = n.a) THEN 1 ELSE 2 END) OVER () FROM n;
SELECT id FROM n ORDER BY (SELECT min(c) FROM m WHERE m.a = n.a), id;
SELECT id, (SELECT max(a) FROM m WHERE m.s = n.s) NOT IN (SELECT c FROM m) FROM n;
SELECT id, CASE WHEN EXISTS (SELECT 1 FROM m WHERE m.a = n.a) THEN 'y' ELSE 'n' END FROM n;
SELECT sum(CASE WHEN EXISTS (SELECT 1 FROM m WHERE m.a = n.a) THEN 1 ELSE 0 END) FROM n;
SELECT count(*) FILTER (WHERE a IN (SELECT a FROM m)) FROM n;
-- Aggregates.
SELECT count(*) FROM n HAVING (SELECT max(a) FROM m) = 1;
SELECT count(b) FROM n HAVING NULL AND count(b) >= 0;
SELECT k FROM (SELECT count(b) AS k FROM n) r WHERE NULL AND k >= 0;
SELECT k FROM (SELECT count(b) AS k FROM n) r WHERE (SELECT max(a) FROM m) = 1 AND k >= 0;
SELECT max(b::float8), max(b) FROM n;
SELECT b AS k, b::bigint AS j FROM n GROUP BY 1, 2;
SELECT a, sum(id::bigint) FROM n GROUP BY a HAVING sum(id) > 3;
SELECT a, count(DISTINCT b), sum(d) FROM n GROUP BY a HAVING sum(d) >= 0;
SELECT a, count(DISTINCT b), sum(id::bigint) FROM n GROUP BY a HAVING sum(id::bigint) >= 9;
SELECT x.k1 FROM (SELECT count(a), count(a) FROM n) x (k1, k2);
SELECT count(DISTINCT 'a'), count('b') FROM (SELECT count(*) AS k FROM e WHERE a > 0) r HAVING min(-r.k) IS NULL;
SELECT a, avg(d), round(avg(d), 4) FROM n GROUP BY a;
SELECT count(DISTINCT a) FROM n HAVING sum(id::bigint) <> 10;
SELECT count(*) FROM n HAVING count(1::float8) > 0;
-- Expressions.
SELECT nullif(f, -f) FROM n WHERE f = 0;
SELECT count(*) FROM n x JOIN n y ON x.f = -y.f;
SELECT id FROM n WHERE (id + 5)::text::bigint <= 9;
SELECT concat('', CASE WHEN false THEN s END) FROM n;
SELECT coalesce(true, false) FROM n UNION SELECT CASE WHEN s LIKE '%c' THEN false ELSE true END FROM n;
-- Several files, each with a row of n.
SELECT min(id), max(id + 0) FROM parts;
SELECT min(id), max(id + 0), count(*) FROM parts;
-- Items of lists that are computed.
SELECT id FROM n WHERE 1 IN (6, (SELECT count(*) FROM m WHERE m.a = n.a), 0, 9, 10);
SELECT id FROM n WHERE 0 IN (6, (SELECT count(*) FROM m WHERE m.a = n.a));
-- Floats beside numerics, and dates beside timestamps.
SELECT x FROM (VALUES (1e-20::float8), (3::float8), (0::float8)) v (x) WHERE x > 0.0;
SELECT id FROM v WHERE f / 1e25 > 0.0 ORDER BY id;
SELECT id FROM v WHERE f > 0.05 ORDER BY id;
SELECT id FROM v WHERE f IN (0.1, 1.5) ORDER BY id;
SELECT id FROM v WHERE f BETWEEN 0.05 AND 1.6 ORDER BY id;
SELECT coalesce(f, 0.5), greatest(f, 0.5) FROM v ORDER BY id;
SELECT CASE WHEN id = 1 THEN f ELSE 0.5 END FROM v ORDER BY id;
SELECT d FROM v UNION ALL SELECT f FROM v ORDER BY 1;
SELECT date '9999-12-31' > timestamp '2020-01-01', date '9999-12-31' = timestamp '9999-12-31';
SELECT id FROM v WHERE day < now() ORDER BY id;
SELECT id FROM v WHERE ts < now() ORDER BY id;
SELECT id FROM v WHERE day <= timestamp '9999-12-31' ORDER BY id;
SELECT coalesce(day, timestamp '9999-12-31') FROM v ORDER BY id;
SELECT timestamptz '9999-12-31 00:00:00+00' > now();
SELECT date_trunc('month', timestamp '9999-12-31');
