//! Runs searches and writes on several connections while devices join and leave: no search fails or returns a wrong
//! result.
//!
//! Each writer's values begin with a prefix of its own, so the writer knows what searches for its values must return.
//! Readers search values that do not change.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bson::{Bson, Document, RawDocumentBuf, doc, rawdoc};
use forebay_peers::client::{Plan, count, declare_cache, insert_all};
use forebay_testkit::{Model, Server, is_full, seed};
use futures_util::future::try_join_all;
use indicatif::ProgressBar;
use mongodb::{Client, Collection, Database};

use crate::ids::matching_ids;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Number of connections that search the unchanging values.
const READERS: usize = 3;
/// Number of connections that write and search their own values.
const WRITERS: usize = 3;
/// Number of devices at the start.
const DEVICES: usize = 3;
/// Patterns that match some of the unchanging values. They have the same meaning in PCRE2 and in Rust's regex crate.
const PATTERNS: [&str; 6] = [
    "^s-1",
    "77$",
    "9-0",
    "(12|34).*5$",
    "[05]{3}",
    "^s-[0-9]+-7",
];

/// The size of the test.
#[derive(Clone, Copy, Debug)]
struct Size {
    documents: i32,
    writes: usize,
    joins: usize,
}

fn size() -> Size {
    if is_full() {
        Size {
            documents: 10_000_000,
            writes: 3_000,
            joins: 40,
        }
    } else {
        Size {
            documents: 60_000,
            writes: 250,
            joins: 10,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_storm_gives_no_failed_search_and_no_wrong_answer() -> Result<()> {
    let seed = seed("storm");
    let size = size();
    // Small buckets, which split and merge often.
    let values_max = if is_full() { "131072" } else { "2000" };
    let server = Server::start(
        BINARY,
        &[
            "--devices",
            "host:3",
            "--documents-bucket-values-max",
            values_max,
        ],
    )?;
    let client = server.client().await?;
    let still = prepare(&client.database("storm"), size.documents).await?;
    let storm = Arc::new(Storm {
        still,
        running: AtomicBool::new(true),
        searches: AtomicU64::new(0),
    });
    let readers = (0..READERS).map(|number| read(&server, storm.clone(), seed + number as u64));
    let work = async {
        let writers = (0..WRITERS)
            .map(|number| write(&server, number, seed + 100 + number as u64, size.writes));
        tokio::try_join!(try_join_all(writers), join_and_leave(&client, size.joins))?;
        storm.running.store(false, Ordering::Relaxed);
        anyhow::Ok(())
    };
    tokio::try_join!(work, try_join_all(readers))?;
    let searches = storm.searches.load(Ordering::Relaxed);
    println!("storm: {searches} searches of readers");
    ensure!(searches > 0, "the readers never searched");
    server.stop()
}

/// The expected results for the readers.
#[derive(Debug)]
struct Storm {
    still: Vec<(&'static str, u64)>,
    running: AtomicBool,
    searches: AtomicU64,
}

/// Returns the value of an unchanging document.
fn still_name(id: i32) -> String {
    format!(
        "s-{}-{}",
        id.wrapping_mul(7_919).rem_euclid(100_003),
        id % 1_000
    )
}

/// Inserts the unchanging documents. Returns the expected count of each pattern.
async fn prepare(db: &Database, documents: i32) -> Result<Vec<(&'static str, u64)>> {
    let raw = (0..documents).map(|id| rawdoc! { "_id": id, "name": still_name(id) });
    let collection: Collection<RawDocumentBuf> = db.collection("names");
    insert_all(&collection, raw, &ProgressBar::hidden()).await?;
    declare_cache(db, "names", "name").await?;
    PATTERNS
        .iter()
        .map(|pattern| Ok((*pattern, matching_count(pattern, documents)?)))
        .collect()
}

fn matching_count(pattern: &str, documents: i32) -> Result<u64> {
    let regex = regex_automata::meta::Regex::new(pattern)?;
    Ok((0..documents)
        .filter(|id| regex.is_match(&still_name(*id)))
        .count() as u64)
}

async fn read(server: &Server, storm: Arc<Storm>, seed: u64) -> Result<()> {
    let db = server.client().await?.database("storm");
    let mut random = fastrand::Rng::with_seed(seed);
    while storm.running.load(Ordering::Relaxed) {
        let (pattern, expected) = storm.still[random.usize(..storm.still.len())];
        // The second condition excludes the writers' values, which begin with another letter.
        let filter =
            doc! { "$and": [{ "name": { "$regex": pattern } }, { "name": { "$regex": "^s-" } }] };
        let found = count(&db, "names", &filter, Plan::Chosen)
            .await
            .with_context(|| pattern.to_owned())?;
        ensure!(
            found == expected,
            "{pattern}: {found} instead of {expected}"
        );
        storm.searches.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Writes values `w<number>-…`, and searches for them between the writes.
async fn write(server: &Server, number: usize, seed: u64, writes: usize) -> Result<()> {
    let collection = server
        .client()
        .await?
        .database("storm")
        .collection::<Document>("names");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = Model::default();
    let first = -1_000_000 * i32::try_from(number + 1)?;
    for step in 0..writes {
        change(&collection, &mut model, number, first, &mut random)
            .await
            .with_context(|| format!("write {step}"))?;
        if step % 5 == 0 {
            check_own(&collection, &model, number, &mut random)
                .await
                .with_context(|| format!("after {step}"))?;
        }
    }
    Ok(())
}

async fn change(
    collection: &Collection<Document>,
    model: &mut Model,
    number: usize,
    first: i32,
    random: &mut fastrand::Rng,
) -> Result<()> {
    let id = first + random.i32(0..2_000);
    let name = format!("w{number}-{:04}", random.u32(..10_000));
    match (model.get(id).is_some(), random.u8(..4)) {
        (true, 0) => {
            collection.delete_one(doc! { "_id": id }).await?;
            model.remove(id);
        }
        (true, _) => {
            collection
                .update_one(doc! { "_id": id }, doc! { "$set": { "name": &name } })
                .await?;
            model.put(id, Some(name));
        }
        (false, _) => {
            let free: Vec<i32> = (id..id + 50)
                .take_while(|id| model.get(*id).is_none())
                .collect();
            collection
                .insert_many(free.iter().map(|id| doc! { "_id": *id, "name": &name }))
                .await?;
            free.into_iter()
                .for_each(|id| model.put(id, Some(name.clone())));
        }
    }
    Ok(())
}

/// Searches the writer's own values, and compares the result with the writer's model of them.
async fn check_own(
    collection: &Collection<Document>,
    model: &Model,
    number: usize,
    random: &mut fastrand::Rng,
) -> Result<()> {
    let digit = random.u8(..10);
    let patterns = [
        format!("^w{number}-{digit}"),
        format!("^w{number}-.*{digit}$"),
        format!("^w{number}-.*{digit}.*7"),
    ];
    let pattern = &patterns[random.usize(..patterns.len())];
    let ids = matching_ids(collection, doc! { "name": { "$regex": pattern } }).await?;
    let expected = model.matching(pattern);
    ensure!(
        ids == expected,
        "{pattern}: {} documents instead of {}",
        ids.len(),
        expected.len()
    );
    Ok(())
}

/// Adds and removes a device, repeatedly.
async fn join_and_leave(client: &Client, joins: usize) -> Result<()> {
    let admin = client.database("admin");
    for _ in 0..joins {
        admin
            .run_command(doc! { "forebayDevices": 1, "add": "host:1" })
            .await?;
        let ids = device_ids(&admin).await?;
        ensure!(
            ids.len() == DEVICES + 1,
            "{} devices instead of {DEVICES} and one that joined",
            ids.len()
        );
        admin
            .run_command(doc! { "forebayDevices": 1, "remove": &ids[0] })
            .await?;
        ensure!(
            device_ids(&admin).await?.len() == DEVICES,
            "a device did not leave"
        );
    }
    Ok(())
}

async fn device_ids(admin: &Database) -> Result<Vec<Bson>> {
    let reply = admin.run_command(doc! { "forebayDevices": 1 }).await?;
    let devices = reply
        .get_array("devices")
        .context("a list of devices")?
        .iter();
    devices
        .map(|device| {
            device
                .as_document()
                .and_then(|found| found.get("id"))
                .cloned()
                .context("an id")
        })
        .collect()
}
