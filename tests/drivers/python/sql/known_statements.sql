-- Known differences from PostgreSQL: a reason, and the statements that differ for it, as in their case files.
-- A test fails when the servers agree on one: it is then removed from here.
-- Refused: TABLE, FETCH FIRST, COLLATE, rows of tables, EXCLUDE of frames, names for some columns, LIMIT in LATERAL.
TABLE m
SELECT n.id, l.c FROM n, LATERAL (SELECT c FROM m WHERE m.a = n.a ORDER BY c LIMIT 1) l
SELECT n.id, l.c FROM n LEFT JOIN LATERAL (SELECT c FROM m WHERE m.a >= n.a ORDER BY c LIMIT 1) l ON true ORDER BY 1
SELECT a FROM n ORDER BY a FETCH FIRST 2 ROWS WITH TIES
SELECT count(n) FROM n
SELECT count(*) FROM n WHERE n.s COLLATE "C" < 'y'
SELECT id FROM n ORDER BY s COLLATE "C", id
SELECT id, sum(b) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW) FROM n
SELECT x.id FROM n AS x (id, z) WHERE z = 1
-- Another code: negative LIMIT and OFFSET are 42000 (2201W, 2201X), windows in WHERE 0A000 (42P20).
SELECT row_number() OVER (ORDER BY id) FROM n WHERE row_number() OVER () > 1
SELECT id FROM n LIMIT -1
SELECT id FROM n OFFSET -1
-- Wrong: floats beside numerics are cast to numeric(30, 15), so small ones are 0 and large ones an error.
SELECT nullif(f, -f) FROM n WHERE f = 0
-- Refused: dates beside timestamps and now() are cast to nanoseconds, which end in 1677 and 2262.
SELECT date_trunc('month', timestamp '9999-12-31')
-- Wrong: the smallest integer negated is itself, and literals of integers are int8.
SELECT i4 + 1 FROM v WHERE id = 2
-- Refused: numerics of more than 38 digits, and ceil and floor of those with all their digits.
SELECT w * w FROM v WHERE id = 2
SELECT sum(x) FROM (SELECT repeat('9', 38)::numeric(38, 0) AS x FROM generate_series(1, 2)) q
-- Wrong: the merged column of USING and NATURAL is the left one, ambiguous after FULL joins, and not first in *.
SELECT a FROM n NATURAL RIGHT JOIN m
-- Wrong: comparisons of rows take NULL as a value, and subqueries of several columns are refused.
SELECT id FROM n WHERE (a, s) IN (SELECT a, s FROM m)
SELECT id FROM n WHERE (a, s) NOT IN (SELECT a, s FROM m)
-- Wrong in the last digits: the average of numerics has four digits more than they have.
SELECT round(avg(z), 6) FROM g
-- Refused: INTERSECT ALL and EXCEPT ALL.
SELECT a FROM n INTERSECT ALL SELECT a FROM m
SELECT a FROM n EXCEPT ALL SELECT a FROM m
-- Refused: TABLESAMPLE, which had no effect.
SELECT count(*) FROM n TABLESAMPLE BERNOULLI (100)
-- Refused: an expression beside the same one of a cast column.
SELECT b AS k, b::bigint AS j FROM n GROUP BY 1, 2
-- Refused: a list that begins with a subquery.
SELECT id FROM n WHERE a IN ((SELECT max(a) FROM m), 1)
-- Refused: GROUP BY () and a HAVING that has only constants.
SELECT sum(b) FROM e GROUP BY ()
SELECT 1 FROM e HAVING true
-- Another code: a scalar subquery with several rows is 22000, PostgreSQL's 21000.
SELECT id FROM n WHERE a = (SELECT a FROM m)
-- PostgreSQL refuses these, Forebay answers.
SELECT n.id, m.c FROM n FULL JOIN m ON n.a IS NOT DISTINCT FROM m.a
SELECT id FROM n ORDER BY NULL, id
SELECT id, -id AS x FROM n ORDER BY -x LIMIT 2
SELECT 1 UNION SELECT 'a'
-- Refused: scalar subqueries without aggregates, with other correlations than equality, in GROUP BY or windows.
SELECT id, a > ALL (SELECT c FROM m WHERE m.a = n.a) FROM n ORDER BY id
SELECT id, (SELECT c FROM m WHERE m.a = n.a ORDER BY c LIMIT 1) FROM n ORDER BY id
SELECT id FROM n x WHERE b > (SELECT avg(b) FROM n y WHERE y.a IS NOT DISTINCT FROM x.a) ORDER BY id
SELECT id, (SELECT c FROM m WHERE m.a = n.a AND c > 15) FROM n
SELECT x.id, (SELECT count(*) FROM n y WHERE y.a = x.a AND y.id <> x.id) FROM n x
SELECT (SELECT min(c) FROM m WHERE m.a = n.a) AS k0, count(*) FROM n GROUP BY 1
SELECT id, sum((SELECT min(c) FROM m WHERE m.a = n.a)) OVER () FROM n
SELECT id, min(CASE WHEN EXISTS (SELECT 1 FROM m WHERE m.a = n.a) THEN 1 ELSE 2 END) OVER () FROM n
SELECT id FROM n ORDER BY (SELECT min(c) FROM m WHERE m.a = n.a), id
SELECT id, (SELECT max(a) FROM m WHERE m.s = n.s) NOT IN (SELECT c FROM m) FROM n
