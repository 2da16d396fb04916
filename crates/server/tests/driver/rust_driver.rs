//! The official Rust driver with its default settings, as an application uses it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Result, bail};
use bson::{Bson, Document, doc};
use forebay_peers::client::{Plan, count, declare_cache, explain};
use forebay_peers::ferretdb::FerretDb;
use forebay_testkit::Server;
use futures_util::TryStreamExt;
use mongodb::error::{ErrorKind, WriteFailure};
use mongodb::event::EventHandler;
use mongodb::event::command::CommandEvent;
use mongodb::options::{ClientOptions, IndexOptions};
use mongodb::{Client, Collection, IndexModel};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// Number of documents in the search test.
const DOCUMENTS: i32 = 5_000;

#[tokio::test]
async fn a_session_on_our_own_store() -> Result<()> {
    let server = Server::start(BINARY, &[])?;
    sessions(server.uri()).await?;
    server.stop()
}

#[tokio::test]
async fn a_session_through_a_proxy() -> Result<()> {
    let store = FerretDb::start()?;
    let server = Server::start(BINARY, &["--upstream", store.uri()])?;
    sessions(server.uri()).await?;
    server.stop()
}

/// Runs a session with each compressor.
async fn sessions(uri: &str) -> Result<()> {
    for compressor in ["", "zlib", "snappy", "zstd"] {
        let options = match compressor {
            "" => uri.to_owned(),
            some => format!("{uri}/?compressors={some}"),
        };
        let mut options = ClientOptions::parse(options).await?;
        let batches = Arc::new(AtomicUsize::new(0));
        options.command_event_handler = Some(count_batches(batches.clone()));
        let client = Client::with_options(options)?;
        let db = client.database(&format!("rust{compressor}"));
        crud(&db.collection("crud")).await?;
        cursor(&db.collection("cursor")).await?;
        assert_eq!(batches.load(Ordering::Relaxed), 12);
        aggregation(&db.collection("aggregation")).await?;
        indexes(&db.collection("indexes")).await?;
        explicit_session(&client, &db.collection("sessions")).await?;
        client.shutdown().await;
    }
    Ok(())
}

/// Counts the batches that cursors fetch after their first batch.
fn count_batches(batches: Arc<AtomicUsize>) -> EventHandler<CommandEvent> {
    EventHandler::callback(move |event| {
        if matches!(event, CommandEvent::Started(started) if started.command_name == "getMore") {
            batches.fetch_add(1, Ordering::Relaxed);
        }
    })
}

async fn crud(things: &Collection<Document>) -> Result<()> {
    things
        .insert_many((0..10).map(|id| doc! { "_id": id, "n": id % 3 }))
        .await?;
    let updated = things
        .update_many(doc! { "n": 1 }, doc! { "$inc": { "n": 10 } })
        .await?;
    assert_eq!((updated.matched_count, updated.modified_count), (3, 3));
    let found = things.find(doc! { "n": 11 }).sort(doc! { "_id": -1 });
    let found: Vec<Document> = found.await?.try_collect().await?;
    assert_eq!(found, [7, 4, 1].map(|id| doc! { "_id": id, "n": 11 }));
    assert_eq!(things.delete_many(doc! { "n": 0 }).await?.deleted_count, 4);
    assert_eq!(things.count_documents(doc! {}).await?, 6);
    let replaced = things.replace_one(doc! { "_id": 99 }, doc! { "n": 9 });
    let upserted = replaced.upsert(true).await?.upserted_id;
    assert_eq!(upserted, Some(Bson::Int32(99)));
    let before = things
        .find_one_and_update(doc! { "_id": 99 }, doc! { "$set": { "n": 0 } })
        .await?;
    assert_eq!(before, Some(doc! { "_id": 99, "n": 9 }));
    let again = things.insert_many([doc! { "_id": 99 }, doc! { "_id": 100 }]);
    let error = again.ordered(false).await.expect_err("one exists");
    let ErrorKind::InsertMany(failed) = &*error.kind else {
        bail!("expected a bulk error, got {error}");
    };
    let codes = failed
        .write_errors
        .iter()
        .flatten()
        .map(|failure| failure.code);
    assert_eq!(codes.collect::<Vec<_>>(), [11000]);
    assert_eq!(things.count_documents(doc! { "_id": 100 }).await?, 1);
    Ok(())
}

async fn cursor(things: &Collection<Document>) -> Result<()> {
    let documents: Vec<Document> = (0..1_234)
        .map(|id| doc! { "_id": id, "text": format!("text {id}") })
        .collect();
    things.insert_many(&documents).await?;
    let found = things.find(doc! {}).sort(doc! { "_id": 1 }).batch_size(100);
    assert_eq!(found.await?.try_collect::<Vec<_>>().await?, documents);
    let ends = doc! { "text": { "$regex": "99$" } };
    assert_eq!(things.count_documents(ends).await?, 12);
    Ok(())
}

async fn aggregation(things: &Collection<Document>) -> Result<()> {
    let documents =
        [("a", 1), ("b", 2), ("a", 3)].map(|(kind, value)| doc! { "k": kind, "v": value });
    things.insert_many(documents).await?;
    let groups = things.aggregate([
        doc! { "$group": { "_id": "$k", "sum": { "$sum": "$v" } } },
        doc! { "$sort": { "_id": 1 } },
    ]);
    let groups: Vec<Document> = groups.await?.try_collect().await?;
    assert_eq!(
        groups,
        [doc! { "_id": "a", "sum": 4 }, doc! { "_id": "b", "sum": 2 }]
    );
    let kinds = things.distinct("k", doc! {}).await?;
    assert_eq!(kinds, [Bson::from("a"), Bson::from("b")]);
    Ok(())
}

async fn indexes(things: &Collection<Document>) -> Result<()> {
    let options = IndexOptions::builder().unique(true).build();
    let index = IndexModel::builder()
        .keys(doc! { "name": 1 })
        .options(options);
    let made = things.create_index(index.build()).await?;
    assert_eq!(made.index_name, "name_1");
    things.insert_one(doc! { "name": "x" }).await?;
    let error = things.insert_one(doc! { "name": "x" }).await;
    let error = error.expect_err("the name is taken");
    assert!(
        matches!(&*error.kind, ErrorKind::Write(WriteFailure::WriteError(failed)) if failed.code == 11000),
        "{error}"
    );
    assert_eq!(things.list_index_names().await?, ["_id_", "name_1"]);
    things.drop_index("name_1").await?;
    Ok(())
}

async fn explicit_session(client: &Client, things: &Collection<Document>) -> Result<()> {
    let mut session = client.start_session().await?;
    things
        .insert_one(doc! { "_id": 1 })
        .session(&mut session)
        .await?;
    let found = things.find_one(doc! { "_id": 1 }).session(&mut session);
    assert_eq!(found.await?, Some(doc! { "_id": 1 }));
    Ok(())
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
async fn data_and_caches_survive_a_restart() -> Result<()> {
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
    forebay_peers::client::caches_are_built(&db, "names").await?;
    assert_eq!(count(&db, "names", &filter, Plan::Chosen).await?, before);
    assert_ne!(explain(&db, "names", &filter).await?.tier, "scan");
    server.stop()
}
