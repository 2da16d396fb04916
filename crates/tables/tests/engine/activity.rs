//! Plans that are kept, statements that run, and tables, as the engine tells of them.

use super::*;

#[tokio::test]
async fn a_statement_that_was_seen_before_is_planned_again_only_if_its_tables_changed() {
    let fixture = Fixture::new();
    let tables = &fixture.tables;
    let (mut session, mut other) = (fixture.session(), fixture.session());
    // Returns the rows, and whether the plan was found.
    let seen = async |session: &mut Session, text: &str| {
        let before = tables.figures();
        let rows = run(session, text).await.expect(text);
        let after = tables.figures();
        assert_eq!(
            after.plans_found + after.plans_made,
            before.plans_found + before.plans_made + 1,
            "{text}"
        );
        (rows.join(","), after.plans_found > before.plans_found)
    };
    let found = |text: &str| (text.to_owned(), true);
    let made = |text: &str| (text.to_owned(), false);
    let count = "SELECT count(*) FROM people";
    assert_eq!(seen(&mut session, count).await, made("3"));
    assert_eq!(seen(&mut session, count).await, found("3"));
    assert_eq!(seen(&mut other, count).await, found("3"));
    assert_eq!(seen(&mut tables.session("grace"), count).await, made("3"));
    // A file that changed, with the same columns or others.
    let path = fixture.root().join("files/people.csv");
    fs::write(&path, "name,age\nAda,36\n").expect("room");
    assert_eq!(seen(&mut session, count).await, made("1"));
    let all = "SELECT * FROM people";
    assert_eq!(seen(&mut session, all).await, made("Ada|36"));
    fs::write(&path, "city\nLondon\n").expect("room");
    assert_eq!(seen(&mut session, all).await, made("London"));
    assert_eq!(seen(&mut session, all).await, found("London"));
    // A view that was replaced, and one that hides a file.
    run(&mut session, "CREATE VIEW v AS SELECT 1 AS one")
        .await
        .expect("a view");
    assert_eq!(seen(&mut session, "SELECT * FROM v").await, made("1"));
    assert_eq!(seen(&mut session, "SELECT * FROM v").await, found("1"));
    let replace = "CREATE OR REPLACE VIEW v AS SELECT 2 AS one";
    run(&mut session, replace).await.expect("a view");
    assert_eq!(seen(&mut other, "SELECT * FROM v").await, made("2"));
    run(&mut session, "CREATE VIEW people AS SELECT 'a view'")
        .await
        .expect("a view");
    assert_eq!(seen(&mut session, all).await, made("a view"));
    run(&mut session, "DROP VIEW people")
        .await
        .expect("it is there");
    assert_eq!(seen(&mut session, all).await, made("London"));
    // What a session set.
    let zoned = "SELECT count(*) FROM people WHERE TIMESTAMPTZ '2026-01-01 00:00:00' < TIMESTAMPTZ '2026-01-01 00:00:00+00'";
    run(&mut session, "SET timezone = 'Asia/Tokyo'")
        .await
        .expect("a zone");
    assert_eq!(seen(&mut session, zoned).await, made("1"));
    assert_eq!(seen(&mut other, zoned).await, made("0"));
    assert_eq!(seen(&mut session, zoned).await, found("1"));
    // What may differ between runs, and the catalogue.
    for text in [
        "SELECT count(*) FROM people WHERE now() > TIMESTAMPTZ '2026-01-01'",
        "SELECT count(*) FROM people WHERE random() >= 0",
        "SELECT count(*) FROM people WHERE current_setting('timezone') <> ''",
        "SELECT count(*) > 0 FROM pg_catalog.pg_class",
        "EXPLAIN SELECT count(*) FROM people",
    ] {
        seen(&mut session, text).await;
        assert!(!seen(&mut session, text).await.1, "{text}");
    }
}

#[tokio::test]
async fn a_prepared_statement_finds_its_plan_and_sees_changes() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    let parsed = parse("SELECT count(*) FROM people WHERE age > $1")
        .expect("SQL")
        .remove(0);
    let prepared = session.prepare(parsed, &[]).await.expect("a query");
    let mut above = async |age: i64| {
        let outcome = session
            .execute(&prepared, vec![ScalarValue::Int64(Some(age))])
            .await;
        rows(outcome.expect("a query"))
            .await
            .expect("rows")
            .join(",")
    };
    assert_eq!(above(40).await, "1");
    assert_eq!(above(30).await, "2");
    // Later runs ask for the types of the parameters that the first plan told.
    assert_eq!(above(30).await, "2");
    let figures = fixture.tables.figures();
    assert_eq!((figures.plans_made, figures.plans_found), (2, 1));
    let path = fixture.root().join("files/people.csv");
    fs::write(path, "name,age\nAda,36\nBob,50\nEve,60\n").expect("room");
    assert_eq!(above(40).await, "2");
}

#[tokio::test]
async fn a_prepared_statement_over_a_view_without_tables_sees_that_it_was_replaced() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    run(&mut session, "CREATE VIEW v AS SELECT 1 AS one")
        .await
        .expect("a view");
    let parsed = parse("SELECT one FROM v").expect("SQL").remove(0);
    let prepared = session.prepare(parsed, &[]).await.expect("a query");
    let answer = async |session: &mut Session| {
        let outcome = session.execute(&prepared, Vec::new()).await;
        rows(outcome.expect("a query")).await.expect("rows")
    };
    assert_eq!(answer(&mut session).await, ["1"]);
    assert_eq!(answer(&mut session).await, ["1"]);
    run(&mut session, "CREATE OR REPLACE VIEW v AS SELECT 2 AS one")
        .await
        .expect("a view");
    assert_eq!(answer(&mut session).await, ["2"]);
}

#[tokio::test]
async fn statements_that_run_are_listed_and_cancelled() {
    let fixture = Fixture::new();
    let tables = Arc::clone(&fixture.tables);
    let text = "SELECT count(*) FROM generate_series(1, 1000000000000)";
    let mut session = fixture.session();
    let running = tokio::spawn(async move { run(&mut session, text).await });
    let reads = async || Ok(tables.running(9).into_iter().find(|it| it.rows_read > 0));
    let listed = wait_for("rows are read", Duration::from_secs(30), reads).await;
    let listed = listed.expect("it runs");
    assert_eq!((&*listed.text, &*listed.user), (text, "ada"));
    assert!(tables.cancel(listed.number));
    let error = running.await.expect("no panic").expect_err("cancelled");
    assert_eq!(error.code, Code::QueryCanceled);
    assert!(tables.running(9).is_empty());
    let mut session = fixture.session();
    run(&mut session, "SELECT name FROM people")
        .await
        .expect("it goes on");
    code(&mut session, "SELECT 1 / (id - 1) FROM events").await;
    let figures = tables.figures();
    assert_eq!(
        (figures.statements, figures.rows, figures.sessions),
        ([1, 1, 1], 3, 1)
    );
}

#[tokio::test]
async fn tables_are_listed_with_their_sizes() {
    let fixture = Fixture::new();
    let mut session = fixture.session();
    run(&mut session, "CREATE VIEW v AS SELECT 1 AS one")
        .await
        .expect("a view");
    let (listed, left_out) = fixture.tables.listed(3).await.expect("a list");
    let listed: Vec<_> = listed
        .iter()
        .map(|it| (&*it.schema, &*it.name, it.is_view, it.rows, it.bytes))
        .collect();
    assert_eq!(
        listed,
        [
            ("public", "events", false, None, Some(45)),
            ("public", "people", false, None, Some(31)),
            ("public", "sales", false, None, Some(21)),
        ]
    );
    assert_eq!(left_out, 1);
}
