//! Plans of queries that DataFusion answers wrongly, the order of conditions, and what is refused.

use super::*;

#[tokio::test]
async fn tables_with_one_name_are_different() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    run(
        &mut session,
        "CREATE SCHEMA s; CREATE TABLE t (n int); INSERT INTO t VALUES (1); CREATE TABLE s.t (n int);
         INSERT INTO s.t VALUES (20); CREATE VIEW v AS SELECT sum(n) AS total FROM t; SET search_path TO s",
    )
    .await
    .expect("tables");
    for (query, answer) in [
        (
            "SELECT (SELECT sum(value) FROM generate_series(1, 10)), (SELECT sum(value) FROM generate_series(1, 20))",
            "55|210",
        ),
        (
            "SELECT count(*) FROM generate_series(1, 30) t(x)
             WHERE x IN (SELECT value FROM generate_series(1, 10)) OR x IN (SELECT value FROM generate_series(1, 20))",
            "20",
        ),
        (
            "SELECT sum(a), sum(b) FROM generate_series(1, 2) a JOIN generate_series(2, 4) b ON a = b",
            "2|2",
        ),
        ("SELECT (SELECT total FROM public.v), (SELECT sum(n) FROM t)", "1|20"),
        ("SELECT a.n, b.n FROM t a, public.t b", "20|1"),
    ] {
        assert_eq!(run(&mut session, query).await.expect(query), [answer], "{query}");
    }
}

/// The filter of the one key would leave out the other zero at the scan.
#[tokio::test]
async fn both_zeros_are_one_key_of_a_join() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let query = "CREATE TABLE one (x double precision); INSERT INTO one VALUES (0);
        CREATE TABLE many (x double precision); INSERT INTO many
        SELECT CASE WHEN value = 5 THEN '-0'::double precision ELSE value END FROM generate_series(1, 8000) AS s(value);
        SELECT count(*) FROM one JOIN many ON one.x = many.x";
    assert_eq!(run(&mut session, query).await.expect(query), ["1"]);
}

#[tokio::test]
async fn conditions_have_their_meaning_in_any_order() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let numbers =
        "(SELECT CASE WHEN value % 7 <> 0 THEN value END AS n, value % 10 AS d, 'v' || value AS t
        FROM generate_series(1, 20000)) s";
    for (conditions, answer) in [
        ("n > 100 AND n < 200 AND d <> 3 AND d >= 0", "76"),
        ("n > 100 AND d = 3 AND n < 200", "9"),
        ("(n IS NULL OR n > 19990) AND d < 5 AND d > 0", "1146"),
        ("n IS NOT NULL AND d > 8 AND t LIKE 'v1%' AND n <= 150", "5"),
        ("n IS NULL AND n > 5", "0"),
        ("d > 100 AND d < 200 AND 1 / (d - 5) > 0", "0"),
        ("n > NULL AND d > 3", "0"),
        ("NOT (n > 100 AND d < 5)", "10043"),
    ] {
        let query = format!("SELECT count(*) FROM {numbers} WHERE {conditions}");
        assert_eq!(
            run(&mut session, &query).await.expect(&query),
            [answer],
            "{conditions}"
        );
    }
}

#[tokio::test]
async fn what_would_have_no_effect_is_refused() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    for (clause, name) in [
        ("FOR UPDATE", "FOR UPDATE"),
        ("FOR SHARE", "FOR SHARE"),
        ("TABLESAMPLE SYSTEM (10)", "TABLESAMPLE"),
    ] {
        let query = format!("SELECT name FROM people {clause}");
        let error = run(&mut session, &query).await.expect_err(&query);
        assert_eq!(error.code, Code::FeatureNotSupported, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

/// The bounds of files are cast as well, and these casts do not keep their order or their number.
#[tokio::test]
async fn casts_are_not_those_of_the_bounds_of_files() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    run(
        &mut session,
        "CREATE TABLE c AS SELECT value % 3 - 1 AS sign, CAST(to_timestamp(1767308400 + value * 60) AS timestamp) AS ts
         FROM generate_series(1, 120) AS s(value)",
    )
    .await
    .expect("a table");
    for (condition, answer) in [
        ("sign::boolean IS FALSE", "40"),
        ("NOT sign::boolean", "40"),
        ("sign::boolean IS NOT TRUE", "40"),
        ("ts::time < TIME '00:30:00'", "30"),
        ("ts::time >= TIME '23:00:00'", "59"),
        ("ts::date < DATE '2026-01-02'", "59"),
        ("ts::date <= DATE '2026-01-01'", "59"),
        ("ts::date > DATE '2026-01-01'", "61"),
        ("ts::date >= DATE '2026-01-02'", "61"),
        ("ts::date = DATE '2026-01-02'", "61"),
        ("ts::date <> DATE '2026-01-02'", "59"),
        ("DATE '2026-01-02' <= ts::date", "61"),
        ("DATE '2026-01-02' > ts::date", "59"),
        ("ts::date = '2026-01-02'", "61"),
        (
            "ts::date BETWEEN DATE '2026-01-01' AND DATE '2026-01-01'",
            "59",
        ),
        ("ts::date IN (DATE '2026-01-01', DATE '2026-01-03')", "59"),
        ("ts::date + 1 = DATE '2026-01-03'", "61"),
    ] {
        let query = format!("SELECT count(*) FROM c WHERE {condition}");
        let found = run(&mut session, &query).await.expect(&query);
        assert_eq!(found, [answer], "{condition}");
    }
    let query =
        "SELECT (TIMESTAMP '1969-12-31 12:00:00')::date, min(ts::date), max(ts::time) FROM c";
    let found = run(&mut session, query).await.expect(query);
    assert_eq!(found, ["1969-12-31|2026-01-01|23:59:00"]);
}
