//! The official Rust driver with its default settings, as an application uses it.

use anyhow::Result;
use bson::{Document, doc};
use forebay_bench::client::{Plan, count, declare_cache, explain};
use forebay_testkit::Server;
use futures_util::TryStreamExt;
use mongodb::error::ErrorKind;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// Documents of the search test.
const DOCUMENTS: i32 = 5_000;

#[tokio::test]
async fn an_application_writes_and_reads() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let things = server
        .client()
        .await?
        .database("rust")
        .collection::<Document>("things");
    things
        .insert_many((0..10).map(|id| doc! { "_id": id, "n": id % 3 }))
        .await?;
    let updated = things
        .update_many(doc! { "n": 1 }, doc! { "$inc": { "n": 10 } })
        .await?;
    assert_eq!((updated.matched_count, updated.modified_count), (3, 3));
    let found: Vec<Document> = things
        .find(doc! { "n": 11 })
        .sort(doc! { "_id": -1 })
        .await?
        .try_collect()
        .await?;
    assert_eq!(found, [7, 4, 1].map(|id| doc! { "_id": id, "n": 11 }));
    assert_eq!(things.delete_many(doc! { "n": 0 }).await?.deleted_count, 4);
    assert_eq!(things.count_documents(doc! {}).await?, 6);
    server.stop()
}

#[tokio::test]
async fn a_search_is_answered_by_the_cache_and_equals_the_scan() -> Result<()> {
    let server = Server::start(BINARY, &["--devices", "host:3"])?;
    let db = server.client().await?.database("rust");
    let names = db.collection::<Document>("names");
    names
        .insert_many(
            (0..DOCUMENTS).map(|id| doc! { "_id": id, "name": format!("pkg-{}", id % 1_000) }),
        )
        .await?;
    declare_cache(&db, "names", "name").await?;
    for pattern in ["^pkg-1", "9$", "kg-12", "[37]{2}", "^(?!pkg-[1-9])"] {
        let filter = doc! { "name": { "$regex": pattern } };
        let cached = count(&db, "names", &filter, Plan::Chosen).await?;
        assert_eq!(
            cached,
            count(&db, "names", &filter, Plan::Scan).await?,
            "{pattern}"
        );
        assert_ne!(
            explain(&db, "names", &filter).await?.tier,
            "scan",
            "{pattern}"
        );
    }
    server.stop()
}

#[tokio::test]
async fn errors_carry_mongodbs_codes() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    let things = server
        .client()
        .await?
        .database("rust")
        .collection::<Document>("things");
    things.insert_one(doc! { "_id": 1 }).await?;
    let error = things
        .insert_one(doc! { "_id": 1 })
        .await
        .expect_err("the second of its kind");
    assert!(matches!(*error.kind, ErrorKind::Write(_)), "{error}");
    let error = things
        .find_one(doc! { "a": { "$regex": "(" } })
        .await
        .expect_err("no pattern");
    assert!(
        matches!(*error.kind, ErrorKind::Command(ref command) if command.code == 51091),
        "{error}"
    );
    server.stop()
}

#[tokio::test]
async fn data_and_caches_are_there_after_a_restart() -> Result<()> {
    let mut server = Server::start(BINARY, &[])?;
    let db = server.client().await?.database("rust");
    let names = db.collection::<Document>("names");
    names
        .insert_many((0..DOCUMENTS).map(|id| doc! { "_id": id, "name": format!("name {id}") }))
        .await?;
    declare_cache(&db, "names", "name").await?;
    let filter = doc! { "name": { "$regex": "99" } };
    let before = count(&db, "names", &filter, Plan::Chosen).await?;
    server.shutdown_and_restart()?;
    let db = server.client().await?.database("rust");
    forebay_bench::client::caches_are_built(&db, "names").await?;
    assert_eq!(count(&db, "names", &filter, Plan::Chosen).await?, before);
    assert_ne!(explain(&db, "names", &filter).await?.tier, "scan");
    server.stop()
}
