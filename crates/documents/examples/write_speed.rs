//! Times inserts and finds by `_id` that run as commands in this process, without a network:
//! `cargo run --release --example write_speed -- 300000`.

use std::sync::Arc;
use std::time::Instant;

use bson::{RawDocumentBuf, doc, rawdoc};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{ClientContext, Command, Documents, Location, Settings};

/// Documents in each insert command.
const BATCH: i32 = 1000;
/// Number of finds to time.
const FINDS: u32 = 50_000;

async fn insert(documents: &Arc<Documents>, collection: &str, first: i32) {
    let batch = (first..first + BATCH)
        .map(|id| rawdoc! { "_id": id, "name": format!("name-of-a-package-{id}") });
    let command = Command {
        name: "insert".to_owned(),
        db: "speed".to_owned(),
        body: rawdoc! { "insert": collection, "ordered": false },
        sequences: vec![("documents".to_owned(), batch.collect())],
    };
    let reply = documents.run(&ClientContext::default(), command).await;
    assert_eq!(reply.get_i32("n").ok(), Some(BATCH));
}

async fn inserts_per_second(documents: &Arc<Documents>, collection: &str, count: i32) -> f64 {
    let started = Instant::now();
    for first in (0..count).step_by(BATCH as usize) {
        insert(documents, collection, first).await;
    }
    f64::from(count) / started.elapsed().as_secs_f64()
}

async fn find_us(documents: &Arc<Documents>, collection: &str, count: i32) -> f64 {
    let client = ClientContext::default();
    let started = Instant::now();
    for round in 0..FINDS {
        let id = (round as i32).wrapping_mul(7919).rem_euclid(count);
        let body = rawdoc! { "find": collection, "filter": { "_id": id }, "$db": "speed" };
        documents.run(&client, Command::from_body(body)).await;
    }
    started.elapsed().as_secs_f64() * 1e6 / f64::from(FINDS)
}

async fn cache(documents: &Arc<Documents>, collection: &str) {
    let command = doc! {
        "createIndexes": collection, "$db": "speed",
        "indexes": [{ "key": { "name": "cache" }, "name": "name_cache" }],
    };
    let body = RawDocumentBuf::try_from(&command).expect("the command holds no NUL");
    documents
        .run(&ClientContext::default(), Command::from_body(body))
        .await;
}

#[tokio::main]
async fn main() {
    let count: i32 = std::env::args()
        .nth(1)
        .and_then(|count| count.parse().ok())
        .unwrap_or(300_000);
    let directory = tempfile::tempdir().expect("a directory can be made");
    let devices =
        Devices::new(&DeviceSpec::auto(), DeviceOptions::default()).expect("devices start");
    let settings = Settings {
        location: Location::Directory(directory.path().to_owned()),
        ..Settings::default()
    };
    let documents = Documents::open(settings, Arc::new(devices)).expect("the store opens");
    println!(
        "inserts/s without a cache: {:.0}",
        inserts_per_second(&documents, "plain", count).await
    );
    cache(&documents, "cached").await;
    println!(
        "inserts/s with one cached field: {:.0}",
        inserts_per_second(&documents, "cached", count).await
    );
    println!(
        "find by _id: {:.1} us",
        find_us(&documents, "plain", count).await
    );
    documents.shutdown().expect("the store syncs");
}
