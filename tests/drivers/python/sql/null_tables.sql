-- Tables of the NULL cases, in SQL that PostgreSQL and DuckDB share.
CREATE TABLE n (id int, a int, b int, s text, f float8, d numeric(10, 2), day date, ok boolean);
INSERT INTO n VALUES
    (1, 1, 1, 'x', 1.5, 1.50, '2020-01-01', true),
    (2, 1, NULL, 'x', NULL, 2.50, NULL, false),
    (3, 2, 5, NULL, 2.5, NULL, '2020-01-03', NULL),
    (4, NULL, 4, 'y', -0.5, 0.00, '2020-01-02', true),
    (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (6, 3, 3, '', 0.0, -7.25, '1999-12-31', false),
    (7, 2, 2, 'NULL', 100.0, 1.50, '2020-01-01', NULL);
CREATE TABLE m (a int, c int, s text);
INSERT INTO m VALUES (1, 10, 'x'), (2, NULL, 'y'), (NULL, 30, NULL), (2, 20, 'x'), (9, 90, '');
CREATE TABLE e (a int, b int, s text);
CREATE TABLE g (k int, x int, y float8, z numeric(10, 2), t text, o boolean);
INSERT INTO g VALUES
    (1, NULL, NULL, NULL, NULL, NULL),
    (1, NULL, NULL, NULL, NULL, NULL),
    (2, 4, 1.5, 2.25, 'b', true),
    (2, NULL, NULL, NULL, NULL, NULL),
    (2, 6, 2.5, 3.25, 'a', false),
    (NULL, 7, 0.5, 1.00, 'c', true),
    (NULL, NULL, NULL, NULL, NULL, NULL),
    (3, 5, -1.0, NULL, NULL, true);
CREATE TABLE tri (p boolean, q boolean);
INSERT INTO tri VALUES
    (true, true), (true, false), (true, NULL), (false, true), (false, false), (false, NULL),
    (NULL, true), (NULL, false), (NULL, NULL);
CREATE TABLE v (
    id int, i2 smallint, i4 int, i8 bigint, r real, f double precision, d numeric(10, 2), w numeric(38, 10), t varchar,
    day date, ts timestamp, b boolean
);
INSERT INTO v VALUES
    (1, 1, 1, 1, 1.5, 1.5, 1.50, 1.5, 'a', '2020-02-29', '2020-02-29 10:11:12.5', true),
    (2, 32767, 2147483647, 9223372036854775807, 0.1, 0.1, 99999999.99, 12345678901234567890.0123456789, 'abc%',
        '1999-12-31', '1999-12-31 23:59:59.999999', false),
    (3, -32768, -2147483648, -9223372036854775808, -2.5, -2.5, -2.50, -0.0000000001, 'É_x', '0001-01-01',
        '1969-12-31 23:59:59', NULL),
    (4, 0, 0, 0, 0, 0, 0.00, 0, '', '1970-01-01', '1970-01-01 00:00:00', true),
    (5, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (6, 7, -7, 7, 3.5, 1e300, 2.50, 2.5, ' pad ', '2024-12-30', '2024-12-30 00:00:00', false);
CREATE TABLE parts AS SELECT * FROM n;
