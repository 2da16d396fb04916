-- integers
1 + 1
7 / 2
-7 / 2
7 % 3
-7 % 3
7 % -3
mod(-7, 3)
div(7, 2)
2 ^ 10
2 ^ 0.5
2147483647 + 1
2147483647::int4 + 1::int4
-2147483648::int4 - 1::int4
2147483647::int4 * 2::int4
(-2147483648)::int4 / (-1)::int4
abs((-2147483648)::int4)
-((-2147483648)::int4)
9223372036854775807 + 1
9223372036854775807::int8 * 2
(-9223372036854775808)::int8 - 1
abs((-9223372036854775808)::int8)
32767::int2 + 1::int2
32767::int2 * 2::int2
32768::int2
2147483648::int4
9223372036854775808::int8
9223372036854775808
1 / 0
1 % 0
0 / 5
5 & 3
5 | 3
5 # 3
~5
1 << 4
16 >> 2
-16 >> 2
@ -5
abs(-5)
sign(-5)
sign(0)
gcd(12, 18)
lcm(4, 6)
factorial(5)
+5
- 5
-(-5)
10 - 2 - 3
2 + 3 * 4
(2 + 3) * 4
100 / 10 / 2
-2 ^ 2
1::int8 + 1::int2
5 / 2::int8
NULL::int + 1
1 = 1
1 <> 2
1 != 2
1 < 2
2 BETWEEN 1 AND 3
2 NOT BETWEEN 1 AND 3
2 BETWEEN 3 AND 1
2 BETWEEN SYMMETRIC 3 AND 1
'12'::int
' 12 '::int
'+12'::int
'-12'::int
'12.5'::int
'1e3'::int
''::int
'abc'::int
'99999999999'::int
CAST('42' AS bigint)
'0x1F'::int
'1_000'::int
true::int
false::int
2::bool
0::bool
-- numeric
1.5 + 1
0.1 + 0.2
0.1 + 0.2 = 0.3
1.50
1.50 + 0.25
1.5 * 1.5
1.25 * 1.250
1.0 / 3
1 / 3.0
10.0 / 4
1.5 / 2
2 / 1.5
7.5 % 2
-7.5 % 2
1.0 / 0
1 / 0.0
1.0 % 0
2.5::int
3.5::int
-2.5::int
(-2.5)::int
0.5::int
1.5::int8
2.4999::int
2.5::numeric::int
2.5::float8::int
3.5::float8::int
2.5::float4::int
-0.5::float8::int
1e10::int
1e20::int8
round(2.5)
round(3.5)
round(-2.5)
round(2.567, 2)
round(2.565, 2)
round(1234.567, -2)
round(2.5::float8)
round(3.5::float8)
round(-2.5::float8)
trunc(2.567)
trunc(-2.567)
trunc(2.567, 1)
trunc(1234.567, -2)
ceil(2.1)
ceil(-2.1)
ceiling(2.1)
floor(2.9)
floor(-2.1)
floor(2.5::float8)
abs(-1.5)
sign(-1.5)
sqrt(2.0)
sqrt(4)
sqrt(-1)
power(2, 3)
power(2.0, 0.5)
power(0, -1)
exp(1.0)
exp(0)
ln(2.718281828)
ln(0)
ln(-1)
log(100)
log(100.0)
log(2.0, 64.0)
log10(1000)
cbrt(27.0)
mod(7.5, 2)
1.005::numeric(10,2)
1.995::numeric(10,1)
-1.005::numeric(10,2)
123456.789::numeric(5,2)
99.995::numeric(4,2)
'1.5'::numeric
'1e5'::numeric
'abc'::numeric
'1.50'::numeric(10,3)
1.5::text
1.50::text
100::numeric::text
1e3
1e-3
12345678901234567890
12345678901234567890 + 1
123456789012345678901234567890.123456789
0.1::numeric * 0.1::numeric * 0.1::numeric
1.0 = 1
1.10 = 1.1
1.5 > 1
1 = 1.0::float8
1.5::numeric(10,2) + 1.25::numeric(10,3)
10::numeric(10,2) / 3::numeric(10,2)
1::numeric / 3
100000::numeric / 3
2::numeric ^ 3
width_bucket(5.35, 0.024, 10.06, 5)
-- floats
0.1::float8 + 0.2::float8
1::float8 / 3
1.0::float4 / 3
1::float8 / 0
0::float8 / 0
1e308::float8 * 10
1e-320::float8 / 1e10
'NaN'::float8
'Infinity'::float8
'-Infinity'::float8
'inf'::float8
'NaN'::float8 = 'NaN'::float8
'NaN'::float8 > 'Infinity'::float8
'NaN'::float8 + 1
'Infinity'::float8 - 'Infinity'::float8
-0.0::float8
0.0::float8 = -0.0::float8
1e15::float8
1e16::float8
123456789.123::float8
1.5::float8::text
100::float8::text
1e20::float8::text
0.1::float4
0.1::float4::float8
16777217::float4
3.4e38::float4 * 10
1e40::float4
'abc'::float8
'1.5 '::float8
1e10::float8::int
'NaN'::float8::int
2.5::float8::numeric
0.1::float8::numeric
7.5::float8 % 2
sqrt(2::float8)
sqrt(-1::float8)
exp(1000::float8)
ln(0::float8)
power(2::float8, 3)
power(-8::float8, 1.0/3)
sin(1)
cos(1)
tan(1)
asin(2)
acos(2)
atan(1)
atan2(1, 2)
degrees(pi())
radians(180)
pi()
cot(1)
sinh(1)
tanh(1)
asinh(1)
round(2.567::float8, 2)
trunc(-2.567::float8)
-- logic
true AND NULL
false AND NULL
true OR NULL
false OR NULL
NOT NULL::bool
NULL AND NULL
NULL OR NULL
NULL = NULL
NULL <> NULL
NULL IS NULL
NULL IS NOT NULL
NULL IS DISTINCT FROM NULL
NULL IS DISTINCT FROM 1
1 IS NOT DISTINCT FROM NULL
1 IS DISTINCT FROM 1
NULL::bool IS TRUE
NULL::bool IS NOT TRUE
NULL::bool IS FALSE
NULL::bool IS NOT FALSE
NULL::bool IS UNKNOWN
true IS UNKNOWN
true IS NOT UNKNOWN
1 IN (1, NULL)
2 IN (1, NULL)
2 NOT IN (1, NULL)
1 NOT IN (1, NULL)
NULL IN (1, 2)
NULL NOT IN (1, 2)
1 IN (1, 2, 3)
1 = ANY (ARRAY[1, NULL])
2 = ANY (ARRAY[1, NULL])
2 <> ALL (ARRAY[1, NULL])
2 <> ALL (ARRAY[1, 3])
1 = ALL (ARRAY[1, 1])
1 < ANY (ARRAY[0, 2])
1 = ANY ('{1,2}'::int[])
1 = ANY ('{1,2}')
NULL = ANY (ARRAY[1])
1 = ANY (ARRAY[]::int[])
1 = ALL (ARRAY[]::int[])
NULL BETWEEN 1 AND 2
1 BETWEEN NULL AND 0
1 BETWEEN NULL AND 2
true > false
true = 't'::bool
'yes'::bool
'off'::bool
'1'::bool
'maybe'::bool
true::text
false::text
true AND 1 = 1
NOT true AND false
NOT (true AND false)
true OR true AND false
-- conditionals
CASE WHEN NULL THEN 1 ELSE 2 END
CASE NULL WHEN NULL THEN 1 ELSE 2 END
CASE 1 WHEN 1 THEN 'a' WHEN 2 THEN 'b' END
CASE 3 WHEN 1 THEN 'a' WHEN 2 THEN 'b' END
CASE WHEN true THEN 1 ELSE 1.5 END
CASE WHEN false THEN 1 ELSE 1.5 END
CASE WHEN 1 = 0 THEN 1 / 0 ELSE 0 END
CASE WHEN true THEN 1 ELSE 'a' END
coalesce(NULL, NULL, 3)
coalesce(NULL, 1, 2.5)
coalesce(NULL::int, NULL::int)
coalesce('a', NULL)
coalesce(1, 'a')
nullif(1, 1)
nullif(1, 2)
nullif(NULL, 1)
nullif(1, NULL)
greatest(1, 2, 3)
greatest(1, NULL, 3)
greatest(NULL, NULL)
least(1, NULL, 3)
least(3, 2.5)
greatest('a', 'b')
least(date '2020-01-01', date '2019-01-01')
num_nulls(1, NULL, 2)
num_nonnulls(1, NULL, 2)
-- strings
'a' || 'b'
'a' || NULL
'a' || 1
1 || 'a'
'a' || true
concat('a', NULL, 'b')
concat(1, 2.5, true)
concat(NULL)
concat_ws(',', 'a', NULL, 'b')
concat_ws(NULL, 'a', 'b')
length('héllo')
length('')
char_length('héllo')
character_length('abc')
octet_length('héllo')
bit_length('abc')
upper('héllo')
lower('HÉLLO')
initcap('hello wORLD foo-bar o''neil')
substring('hello' from 2 for 3)
substring('hello' from 2)
substring('hello' for 3)
substring('hello', 0, 3)
substring('hello', -1, 4)
substring('hello', 2, -1)
substring('hello', 10)
substr('hello', 2, 3)
substr('hello', -2)
substring('foobar' from 'o.b')
substring('foobar' from 'o(.)b')
substring('foobar' similar '%#"o_b#"%' escape '#')
left('hello', 2)
left('hello', -2)
left('hello', 0)
right('hello', 2)
right('hello', -2)
position('l' in 'hello')
position('' in 'hello')
position('z' in 'hello')
strpos('hello', 'l')
overlay('hello' placing 'XX' from 2 for 3)
overlay('hello' placing 'XX' from 2)
trim('  a  ')
trim(both 'x' from 'xxaxx')
trim(leading 'x' from 'xxaxx')
trim(trailing 'x' from 'xxaxx')
trim(from '  a ')
ltrim('  a  ')
rtrim('  a  ')
ltrim('xyxa', 'xy')
rtrim('axyx', 'xy')
btrim('xyxaxyx', 'xy')
btrim(' a ')
lpad('hi', 5)
lpad('hi', 5, 'xy')
lpad('hello', 2)
lpad('hi', -1)
lpad('hi', 5, '')
rpad('hi', 5, 'xy')
rpad('hello', 2)
repeat('ab', 3)
repeat('ab', 0)
repeat('ab', -1)
reverse('héllo')
replace('hello', 'l', 'L')
replace('hello', '', 'x')
translate('hello', 'el', 'ip')
translate('hello', 'elo', 'i')
split_part('a,b,c', ',', 2)
split_part('a,b,c', ',', 4)
split_part('a,b,c', ',', -1)
split_part('a,b,c', ',', 0)
split_part('a,b,c', '', 1)
ascii('a')
ascii('é')
ascii('')
chr(65)
chr(233)
chr(0)
to_hex(255)
to_hex(-1)
md5('a')
md5('')
encode('abc'::bytea, 'hex')
encode('abc'::bytea, 'base64')
decode('616263', 'hex')
quote_literal('it''s')
quote_ident('a b')
quote_nullable(NULL)
starts_with('hello', 'he')
'hello' ^@ 'he'
format('%s and %s', 'a', 'b')
format('%I', 'a b')
string_to_array('a,b,c', ',')
string_to_array('a,,c', ',', '')
string_to_array('abc', NULL)
string_to_array('', ',')
array_to_string(ARRAY['a', NULL, 'b'], ',')
array_to_string(ARRAY['a', NULL, 'b'], ',', '*')
regexp_replace('foobar', 'o', 'x')
regexp_replace('foobar', 'o', 'x', 'g')
regexp_replace('foobar', '(o+)', '[\1]')
regexp_replace('foobar', '(o+)', '[\&]')
regexp_replace('FOObar', 'o', 'x', 'gi')
regexp_match('foobar', 'o(.)b')
regexp_match('foobar', 'z')
regexp_count('foobar', 'o')
regexp_like('foobar', 'O', 'i')
regexp_substr('foobar', 'o+')
regexp_instr('foobar', 'o')
regexp_split_to_array('a1b2c', '\d')
'abc'::varchar(2)
'abc'::char(5)
'abc'::char(2)
length('ab'::char(5))
'ab'::char(5) = 'ab'
'ab'::char(5) || 'c'
'abc'::char
'abc'::varchar
'a'::text = 'a '::text
'a'::char(3) = 'a  '::char(5)
'a' < 'b'
'a' < 'B'
'é' > 'z'
'abc' < 'abd'
'' < 'a'
'10' < '9'
E'a\nb'
E'a\\b'
'a\nb'
E'\x41'
U&'\0041'
$$it's$$
'a' 'b'
B'101'
X'1F'
'\x6162'::bytea
'abc'::bytea
'abc'::bytea || 'd'::bytea
length('abc'::bytea)
'12' + 1
'12' || 1
1 + '2'
'a' = 1
soundex('hello')
unistr('\0041')
parse_ident('a.b')
-- patterns
'hello' LIKE 'h%'
'hello' LIKE 'H%'
'hello' ILIKE 'H%'
'hello' LIKE 'h_llo'
'hello' NOT LIKE 'h%'
'hello' LIKE NULL
NULL LIKE 'a'
'a%b' LIKE 'a\%b'
'axb' LIKE 'a\%b'
'a_b' LIKE 'a\_b'
'axb' LIKE 'a\_b'
'a%b' LIKE 'a!%b' ESCAPE '!'
'axb' LIKE 'a!%b' ESCAPE '!'
'a!b' LIKE 'a!!b' ESCAPE '!'
'a\b' LIKE 'a\b'
'a\b' LIKE 'a\\b'
'a\b' LIKE 'a\b' ESCAPE ''
'abc' LIKE 'abc\'
'' LIKE '%'
'' LIKE ''
'' LIKE '_'
'héllo' LIKE 'h_llo'
E'a\nb' LIKE 'a%b'
E'a\nb' LIKE 'a_b'
E'a\nb' ILIKE 'A_B'
'a.c' LIKE 'a.c'
'abc' LIKE 'a.c'
'abc' LIKE '%b%'
'abc' LIKE '%%'
'aXc' ILIKE '%x%'
'ÉA' ILIKE 'éa'
'abc' SIMILAR TO 'abc'
'abc' SIMILAR TO 'a'
'abc' SIMILAR TO '%(b|d)%'
'abc' SIMILAR TO '(b|c)%'
'abc' SIMILAR TO 'a_c'
'abc' NOT SIMILAR TO 'a%'
'a.c' SIMILAR TO 'a.c'
'abc' SIMILAR TO 'a.c'
'aab' SIMILAR TO 'a{2}b'
'abc' SIMILAR TO '[a-c]+'
'a|b' SIMILAR TO 'a\|b'
'abc' ~ 'b'
'abc' ~ '^b'
'abc' ~ 'B'
'abc' ~* 'B'
'abc' !~ 'b'
'abc' !~* 'B'
'abc' ~ NULL
E'a\nb' ~ 'a.b'
E'a\nb' ~ '^b'
E'a\nb' ~ 'a$'
'abc' ~ '\w+'
'a1' ~ '\d'
'abc' ~ '['
'abab' ~ '(ab)\1'
'foo bar' ~ '\mbar'
'foo bar' ~ '\yfoo\y'
'abc' ~ '(?i)ABC'
'abc' ~ 'a(?=b)'
'abc' ~~ 'a%'
'abc' ~~* 'A%'
'abc' !~~ 'a%'
'abc' LIKE ANY (ARRAY['a%', 'b%'])
'abc' LIKE ALL (ARRAY['a%', 'b%'])
-- dates and times
date '2020-02-29'
date '2020-02-30'
'2020-1-5'::date
'20200105'::date
'Jan 5, 2020'::date
'01/05/2020'::date
'abc'::date
date '2020-01-31' + 1
date '2020-01-31' - 1
1 + date '2020-01-31'
date '2020-03-01' - date '2020-02-01'
date '2020-01-31' + interval '1 month'
date '2020-01-31' - interval '1 day'
date '2020-01-31' + interval '1 hour'
date '2020-01-31' + time '10:00'
timestamp '2020-01-31 10:00:00' + interval '1 month'
timestamp '2020-03-31 10:00:00' - interval '1 month'
timestamp '2020-01-31 10:00:00' - timestamp '2020-01-30 09:00:00'
timestamp '2020-01-31 10:00:00' - timestamp '2019-01-30 12:00:00'
timestamp '2020-01-31 10:00' + 1
timestamp '2020-01-31 10:00'
timestamp '2020-01-31'
timestamp '2020-01-31T10:00:00'
timestamp '2020-01-31 10:00:00.123456'
timestamp '2020-01-31 10:00:00.1234567'
timestamp '2020-01-31 25:00:00'
timestamp '2020-01-31 10:00:00'::date
timestamp '2020-01-31 10:11:12'::time
date '2020-01-31'::timestamp
timestamp(0) '2020-01-31 10:00:00.6'
'2020-01-31 10:00:00.6'::timestamp(0)
timestamptz '2020-01-31 10:00:00+02'
timestamptz '2020-01-31 10:00:00'
timestamptz '2020-01-31 10:00:00Z'
timestamptz '2020-01-31 10:00:00 America/New_York'
timestamp '2020-01-31 10:00:00' AT TIME ZONE 'UTC'
timestamp '2020-07-31 10:00:00' AT TIME ZONE 'America/New_York'
timestamptz '2020-07-31 10:00:00+00' AT TIME ZONE 'America/New_York'
timestamptz '2020-07-31 10:00:00+00' AT TIME ZONE 'UTC'
timestamptz '2020-07-31 10:00:00+00'::timestamp
timestamptz '2020-07-31 10:00:00+00'::date
timestamptz '2020-07-31 10:00:00+00' + interval '1 day'
timezone('UTC', timestamp '2020-01-31 10:00:00')
time '10:11:12'
time '10:11:12.5'
time '10:11'
time '25:00'
time '10:11:12' + interval '1 hour'
time '23:11:12' + interval '1 hour'
time '10:11:12' - time '09:00:00'
extract(year from date '2020-02-29')
extract(month from date '2020-02-29')
extract(day from date '2020-02-29')
extract(dow from date '2020-02-29')
extract(isodow from date '2020-03-01')
extract(doy from date '2020-02-29')
extract(week from date '2021-01-01')
extract(isoyear from date '2021-01-01')
extract(quarter from date '2020-02-29')
extract(century from date '2020-02-29')
extract(decade from date '2020-02-29')
extract(epoch from date '2020-02-29')
extract(epoch from timestamp '2020-02-29 10:11:12.5')
extract(hour from timestamp '2020-02-29 10:11:12.5')
extract(minute from timestamp '2020-02-29 10:11:12.5')
extract(second from timestamp '2020-02-29 10:11:12.5')
extract(milliseconds from timestamp '2020-02-29 10:11:12.5')
extract(microseconds from timestamp '2020-02-29 10:11:12.5')
extract(hour from date '2020-02-29')
extract(hour from time '10:11:12')
extract(day from interval '3 days 4 hours')
extract(hour from interval '3 days 4 hours')
extract(epoch from interval '1 day 2 hours')
extract(month from interval '14 months')
extract(year from interval '14 months')
extract(foo from date '2020-02-29')
date_part('year', date '2020-02-29')
date_part('second', timestamp '2020-02-29 10:11:12.5')
date_trunc('month', timestamp '2020-02-29 10:11:12')
date_trunc('month', date '2020-02-29')
date_trunc('week', timestamp '2020-02-29 10:11:12')
date_trunc('hour', timestamp '2020-02-29 10:11:12')
date_trunc('quarter', timestamp '2020-02-29 10:11:12')
date_trunc('day', timestamptz '2020-02-29 10:11:12+00')
date_trunc('day', timestamptz '2020-02-29 22:11:12+00', 'America/New_York')
date_trunc('hour', interval '3 days 04:05:06')
date_trunc('foo', timestamp '2020-02-29 10:11:12')
date_bin('15 minutes', timestamp '2020-02-11 15:44:17', timestamp '2001-01-01')
age(timestamp '2020-04-10', timestamp '1957-06-13')
age(date '2020-04-10', date '2020-03-31')
justify_days(interval '35 days')
justify_hours(interval '27 hours')
justify_interval(interval '1 mon -1 hour')
interval '1 day'
interval '1 month 2 days 03:04:05'
interval '1 year 2 months'
interval '1.5 days'
interval '1.5 hours'
interval '-1 day'
interval '1 day ago'
interval 'P1Y2M3DT4H5M6S'
interval '1' day
interval '2' month
interval '1-2' year to month
interval '1 week'
interval '90 minutes'
interval '0 seconds'
interval '1 day' + interval '2 hours'
interval '1 day' - interval '2 hours'
interval '1 day' * 2
interval '1 day' * 1.5
2 * interval '1 hour'
interval '1 day' / 2
-interval '1 day'
interval '1 day' = interval '24 hours'
interval '1 month' > interval '29 days'
interval '1 day'::text
'2 days'::interval
'abc'::interval
make_date(2020, 2, 29)
make_date(2020, 2, 30)
make_time(10, 11, 12.5)
make_timestamp(2020, 2, 29, 10, 11, 12.5)
make_interval(days => 3)
to_date('29 Feb 2020', 'DD Mon YYYY')
to_date('20200229', 'YYYYMMDD')
to_timestamp('2020-02-29 10:11:12', 'YYYY-MM-DD HH24:MI:SS')
to_timestamp(1582971072)
to_timestamp(1582971072.5)
to_char(timestamp '2020-02-29 10:11:12', 'YYYY-MM-DD HH24:MI:SS')
to_char(timestamp '2020-02-09 15:01:02', 'FMDD Mon YYYY HH12:MI AM')
to_char(timestamp '2020-02-29 10:11:12', 'Day, DD Month YYYY')
to_char(date '2020-02-29', 'YYYY-MM')
to_char(date '2020-02-29', 'IYYY-IW')
to_char(date '2020-02-29', 'Q "quarter"')
to_char(timestamp '2020-02-29 10:11:12.345', 'MS US')
to_char(1234.5, '9,999.99')
to_char(1234.5, 'FM9999.00')
to_char(-12, '999')
to_char(12, '0000')
to_char(0.5, '0.99')
to_char(12, 'RN')
to_char(interval '3 hours 4 minutes', 'HH24:MI')
to_number('1,234.5', '9,999.9')
date '2020-01-01' < date '2020-01-02'
date '2020-01-01' = timestamp '2020-01-01 00:00:00'
date '2020-01-01' < '2020-01-02'
timestamp '2020-01-01 00:00:00' > '2019-01-01'
date '2020-01-01' BETWEEN '2019-12-31' AND '2020-01-02'
date 'infinity'
'infinity'::timestamp
date '0001-01-01'
date '9999-12-31' + 1
date '0044-03-15 BC'
'epoch'::timestamp
isfinite(date '2020-01-01')
(date '2020-01-01', date '2020-01-10') OVERLAPS (date '2020-01-05', date '2020-01-20')
date '2020-02-29'::text
timestamp '2020-02-29 10:11:12'::text
timestamp '2020-02-29 10:11:12.500'::text
timestamptz '2020-02-29 10:11:12+00'::text
time '10:11:12'::text
-- arrays
ARRAY[1, 2, 3]
ARRAY[1, NULL, 3]
ARRAY['a', 'b c', 'd"e', NULL, 'NULL', '']
ARRAY[[1, 2], [3, 4]]
ARRAY[1, 2.5]
ARRAY[]::int[]
'{1,2,3}'::int[]
'{a,"b c",NULL}'::text[]
'{1,a}'::int[]
(ARRAY[1, 2, 3])[1]
(ARRAY[1, 2, 3])[0]
(ARRAY[1, 2, 3])[4]
(ARRAY[1, 2, 3])[-1]
(ARRAY[1, 2, 3])[2:3]
(ARRAY[1, 2, 3])[:2]
(ARRAY[1, 2, 3])[2:]
(ARRAY[1, 2, 3])[3:2]
(ARRAY[[1, 2], [3, 4]])[2][1]
array_length(ARRAY[1, 2, 3], 1)
array_length(ARRAY[]::int[], 1)
array_length(ARRAY[1], 2)
cardinality(ARRAY[1, 2, 3])
cardinality(ARRAY[[1, 2], [3, 4]])
cardinality(ARRAY[]::int[])
array_upper(ARRAY[1, 2, 3], 1)
array_lower(ARRAY[1, 2, 3], 1)
array_ndims(ARRAY[[1], [2]])
array_dims(ARRAY[[1], [2]])
array_append(ARRAY[1], 2)
array_prepend(1, ARRAY[2])
array_cat(ARRAY[1], ARRAY[2])
ARRAY[1] || 2
1 || ARRAY[2]
ARRAY[1] || ARRAY[2]
ARRAY[1] || NULL
array_position(ARRAY['a', 'b'], 'b')
array_position(ARRAY['a', 'b'], 'c')
array_positions(ARRAY[1, 2, 1], 1)
array_remove(ARRAY[1, 2, 1], 1)
array_replace(ARRAY[1, 2, 1], 1, 9)
array_fill(7, ARRAY[3])
ARRAY[1, 2] = ARRAY[1, 2]
ARRAY[1, 2] < ARRAY[1, 3]
ARRAY[1, 2] @> ARRAY[1]
ARRAY[1] <@ ARRAY[1, 2]
ARRAY[1, 2] && ARRAY[2, 3]
ARRAY[1, NULL] = ARRAY[1, NULL]
trim_array(ARRAY[1, 2, 3], 1)
ARRAY(SELECT 1)
ARRAY(SELECT g FROM generate_series(1, 3) g ORDER BY g DESC)
ARRAY[1, 2]::text
ARRAY[1, 2]::text[]
(SELECT array_agg(g) FROM generate_series(1, 3) g)
(SELECT string_agg(g::text, ',') FROM generate_series(1, 3) g)
(SELECT sum(u) FROM unnest(ARRAY[1, 2, 3]) u)
(SELECT count(*) FROM unnest(ARRAY[]::int[]) u)
(SELECT sum(g) FROM generate_series(1, 10, 3) g)
(SELECT count(*) FROM generate_series(5, 1) g)
(SELECT sum(g) FROM generate_series(5, 1, -2) g)
(SELECT count(*) FROM generate_series(1, 5, 0) g)
(SELECT max(g) FROM generate_series(timestamp '2020-01-01', timestamp '2020-01-05', interval '1 day') g)
(SELECT count(*) FROM generate_series(1, NULL) g)
-- rows and subqueries
(1, 2) = (1, 2)
(1, 2) < (1, 3)
(1, NULL) = (1, 2)
(1, NULL) = (2, 2)
(1, NULL) IS NULL
ROW(1, NULL) IS NOT NULL
(1, 2) IN ((1, 2), (3, 4))
ROW(1, 'a')
(SELECT 1)
(SELECT 1 WHERE false)
(SELECT g FROM generate_series(1, 2) g)
EXISTS (SELECT 1)
EXISTS (SELECT 1 WHERE false)
EXISTS (SELECT NULL)
1 IN (SELECT 1)
2 IN (SELECT NULL::int)
2 NOT IN (SELECT NULL::int)
2 NOT IN (SELECT 1 WHERE false)
NULL IN (SELECT 1 WHERE false)
NULL NOT IN (SELECT 1 WHERE false)
1 = ANY (SELECT 1)
1 < ALL (SELECT 2)
1 > ALL (SELECT 1 WHERE false)
1 > ANY (SELECT 1 WHERE false)
-- json
'{"a": 1}'::json
'{"a": 1}'::jsonb
'{"b": 1,  "a": 2}'::jsonb
'{"a": {"b": 2}}'::json -> 'a'
'{"a": {"b": 2}}'::json -> 'a' ->> 'b'
'{"a": 1}'::json ->> 'a'
'{"a": 1}'::json ->> 'z'
'{"a": null}'::json ->> 'a'
'[1, 2, 3]'::json -> 1
'[1, 2, 3]'::json ->> -1
'{"a": {"b": 2}}'::json #> '{a,b}'
'{"a": {"b": 2}}'::json #>> '{a,b}'
'{"a": 1}'::jsonb @> '{"a": 1}'
'{"a": 1}'::jsonb ? 'a'
'{a'::json
json_array_length('[1, 2]')
json_typeof('[1]')
jsonb_typeof('1')
json_build_object('a', 1)
to_json('a'::text)
jsonb_build_array(1, 'a')
-- aggregates without rows
(SELECT count(*) FROM generate_series(1, 0) g)
(SELECT sum(g) FROM generate_series(1, 0) g)
(SELECT avg(g) FROM generate_series(1, 0) g)
(SELECT max(g) FROM generate_series(1, 0) g)
(SELECT array_agg(g) FROM generate_series(1, 0) g)
(SELECT string_agg(g::text, ',') FROM generate_series(1, 0) g)
(SELECT bool_and(g > 0) FROM generate_series(1, 0) g)
(SELECT stddev(g) FROM generate_series(1, 1) g)
(SELECT variance(g) FROM generate_series(1, 3) g)
(SELECT stddev_pop(g) FROM generate_series(1, 3) g)
(SELECT var_samp(g) FROM generate_series(1, 1) g)
-- aggregates
(SELECT sum(g) FROM generate_series(1, 3) g)
(SELECT avg(g) FROM generate_series(1, 4) g)
(SELECT avg(g::int8) FROM generate_series(1, 2) g)
(SELECT avg(g::numeric) FROM generate_series(1, 3) g)
(SELECT avg(g::float8) FROM generate_series(1, 2) g)
(SELECT sum(g::int8) FROM generate_series(1, 3) g)
(SELECT sum(9223372036854775807) FROM generate_series(1, 2) g)
(SELECT sum(g::numeric(10, 2)) FROM generate_series(1, 3) g)
(SELECT sum(0.1) FROM generate_series(1, 3) g)
(SELECT sum(0.1::float8) FROM generate_series(1, 3) g)
(SELECT count(DISTINCT g % 2) FROM generate_series(1, 3) g)
(SELECT sum(DISTINCT g % 2) FROM generate_series(1, 4) g)
(SELECT sum(g) FILTER (WHERE g > 1) FROM generate_series(1, 3) g)
(SELECT count(*) FILTER (WHERE NULL) FROM generate_series(1, 3) g)
(SELECT bool_and(g > 1) FROM generate_series(1, 3) g)
(SELECT bool_or(g > 1) FROM generate_series(1, 3) g)
(SELECT every(g > 0) FROM generate_series(1, 3) g)
(SELECT bit_and(g) FROM generate_series(1, 3) g)
(SELECT bit_or(g) FROM generate_series(1, 3) g)
(SELECT bit_xor(g) FROM generate_series(1, 3) g)
(SELECT corr(g, g * 2) FROM generate_series(1, 3) g)
(SELECT covar_pop(g, g * 2) FROM generate_series(1, 3) g)
(SELECT regr_slope(g, g * 2) FROM generate_series(1, 3) g)
(SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY g) FROM generate_series(1, 4) g)
(SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY g) FROM generate_series(1, 4) g)
(SELECT mode() WITHIN GROUP (ORDER BY g % 2) FROM generate_series(1, 3) g)
(SELECT string_agg(g::text, ',' ORDER BY g DESC) FROM generate_series(1, 3) g)
(SELECT array_agg(g ORDER BY g DESC) FROM generate_series(1, 3) g)
(SELECT array_agg(DISTINCT g % 2 ORDER BY g % 2) FROM generate_series(1, 3) g)
(SELECT max(g::text) FROM generate_series(9, 10) g)
(SELECT min(true) FROM generate_series(1, 3) g)
(SELECT count(g, g) FROM generate_series(1, 3) g)
(SELECT json_agg(g) FROM generate_series(1, 3) g)
-- types and casts
pg_typeof(1)
pg_typeof(1.5)
pg_typeof('a')
pg_typeof('a'::text)
pg_typeof(now())
pg_typeof(1::int8 + 1)
pg_typeof(ARRAY[1])
pg_typeof(NULL)
1::text
1::varchar(10)
12345::varchar(3)
1::char(3)
1::float8::text
'1'::int + 1
1::int::bool
'a'::int::text
now()::date::text::date = now()::date
CAST(1 AS text) || 'a'
int4 '5'
float8 '1.5'
bool 'true'
text 'a'
'5'::int2
70000::int2
(-1)::text
'{}'::text
1.5::int2
'a'::name
'1 2'::int
'2020-01-01'::timestamp::date
date '2020-01-01'::int
1::date
1::timestamp
'7d444840-9dc0-11d1-b245-5ffdce74fad2'::uuid
'1'::oid
'pg_class'::regclass
-- session
current_schema
current_schema()
current_database() IS NOT NULL
current_catalog = current_database()
current_user = session_user
now() = current_timestamp
current_date = now()::date
now() = transaction_timestamp()
localtimestamp IS NOT NULL
clock_timestamp() >= now()
current_setting('TimeZone')
current_setting('nothing.here')
current_setting('nothing.here', true)
version() LIKE 'PostgreSQL 15%'
pg_backend_pid() > 0
has_table_privilege('pg_class', 'select')
nofunction(1)
nocolumn
random() BETWEEN 0 AND 1
length(gen_random_uuid()::text)
log(1000)
encode('ab', 'base64')
encode('abcd', 'base64')

-- ARRAY of a subquery, and sizes.
ARRAY(SELECT 1)
ARRAY(SELECT a || 'x' FROM (VALUES ('a'), ('b'), (NULL)) AS v (a) ORDER BY 1 DESC NULLS LAST)
ARRAY(SELECT max(a) FROM (VALUES ('a'), ('b')) AS v (a))
cardinality(ARRAY(SELECT 1 WHERE false))
pg_size_pretty(10239::bigint)
pg_size_pretty(10240::bigint)
pg_size_pretty(10751::bigint)
pg_size_pretty(10752::bigint)
pg_size_pretty(10485247::bigint)
pg_size_pretty(10485248::bigint)
pg_size_pretty(-20000::bigint)
pg_size_pretty(123456789::bigint)
pg_size_pretty(9223372036854775807)
'2024-01-02 3:04'::timestamp
'2024-01-02 03:04:05+02'::timestamp
'2024-01-02 03:04+02'::timestamptz
