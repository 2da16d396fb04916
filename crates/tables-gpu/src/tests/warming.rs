//! Queries that run so that their kernels are compiled.

use forebay_tables::{Code, Warmed, Warming};

use super::data::Sizes;
use super::emulated;
use super::sessions::{Fixture, rows};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kernels_are_there_before_a_client_asks() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let warming = Warming::start(&fixture.tables).await.expect("an engine");
    let query = "SELECT sum(b), count(*) FROM t WHERE a > 2";
    assert_eq!(warming.run(query).await, Warmed::Ran);
    let count = || fixture.emulated.kernels.lock().len();
    let made = count();
    assert!(made > 0);
    let settings = "SET forebay.gpu = on; SET forebay.strict = on";
    let mut session = fixture.session(settings).await;
    let found = rows(&mut session, query).await;
    assert!(found.is_ok(), "{found:?}");
    assert_eq!(count(), made);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_fails_tells_why_and_the_next_one_runs() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[700, 1]));
    let warming = Warming::start(&fixture.tables).await.expect("an engine");
    for (query, code) in [
        ("SELECT missing FROM t", Code::UndefinedColumn),
        ("SELECT 1 +", Code::SyntaxError),
        ("CREATE TABLE u AS SELECT 1", Code::InsufficientPrivilege),
    ] {
        match warming.run(query).await {
            Warmed::Failed(error) => assert_eq!(error.code, code, "{query}: {error}"),
            other => panic!("{query}: {other:?}"),
        }
    }
    let partly = "SELECT median(b) FROM t";
    let Warmed::OnCpu(reason) = warming.run(partly).await else {
        panic!("{partly} has no reason");
    };
    assert!(reason.message.contains("median"), "{reason}");
    let query = "SELECT count(*) FROM t WHERE a > 5";
    assert_eq!(warming.run(query).await, Warmed::Ran);
}
