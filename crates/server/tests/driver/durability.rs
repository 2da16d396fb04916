//! Acknowledged writes survive `kill -9`. The server is killed many times under load. After each start, all documents
//! and all answers of the cache are compared with the acknowledged writes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use bson::{Document, doc};
use forebay_peers::client::{Plan, caches_are_built, count, declare_cache, explain};
use forebay_testkit::{Model, Server, is_full, seed};
use futures_util::TryStreamExt;
use futures_util::future::{join_all, select_all};
use mongodb::options::{Acknowledgment, CollectionOptions, WriteConcern};
use mongodb::{Collection, Database};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::ids::matching_ids;

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Number of writers, each with its own `_id`s.
const WRITERS: usize = 4;
/// Number of distinct `_id`s of a writer.
const IDS: i32 = 2_000;
/// Maximum documents of an insert.
const BATCH_COUNT_MAX: usize = 40;
/// A write without `j` must survive a kill that comes more than this time after the acknowledgement, as documented.
const LOSS_MAX: Duration = Duration::from_millis(100);
/// Patterns whose answers are compared after each start. They have the same meaning in PCRE2 and in Rust's regex crate.
const PATTERNS: [&str; 5] = ["^a", "b$", "ab", "[0-9]{3}", "a.*b"];

/// A writer's acknowledged writes, and its last write if that write's outcome is unknown.
#[derive(Debug, Default)]
struct Acknowledged {
    model: Model,
    /// What the unacknowledged last write may have changed: each `_id`, with the name that the write sets, or `None` if
    /// the write deletes the document.
    in_doubt: Vec<(i32, Option<String>)>,
    /// Error of the last write; `None` if the test killed the server before the write returned.
    refusal: Option<mongodb::error::Error>,
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_writes_survive_kills_under_load() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed("durability"));
    let mut server = Server::start(BINARY, &["--devices", "host:2"])?;
    declare(&server).await?;
    let mut writers: Vec<Acknowledged> = (0..WRITERS).map(|_| Acknowledged::default()).collect();
    for round in 0..if is_full() { 100 } else { 12 } {
        let writes = random.u64(1..400);
        writers = load_until_killed(&mut server, writers, writes, &mut random).await?;
        server
            .restart()
            .with_context(|| format!("the start after kill {round}"))?;
        let db = database(&server).await?;
        for told in &mut writers {
            settle(&db, told)
                .await
                .with_context(|| format!("after kill {round}"))?;
        }
        compare_answers(&db, &writers)
            .await
            .with_context(|| format!("after kill {round}"))?;
    }
    server.stop()
}

async fn declare(server: &Server) -> Result<()> {
    let db = database(server).await?;
    db.create_collection("names").await?;
    declare_cache(&db, "names", "name").await
}

/// Connects a new client with long timeouts, because a new server takes seconds to answer on a busy machine.
async fn database(server: &Server) -> Result<Database> {
    Ok(server.client().await?.database("durability"))
}

fn journalled(db: &Database) -> Collection<Document> {
    let concern = WriteConcern::builder()
        .w(Acknowledgment::Nodes(1))
        .journal(true)
        .build();
    db.collection_with_options(
        "names",
        CollectionOptions::builder().write_concern(concern).build(),
    )
}

/// Runs the writers until `writes` are acknowledged, and kills the server during later writes.
async fn load_until_killed(
    server: &mut Server,
    writers: Vec<Acknowledged>,
    writes: u64,
    random: &mut fastrand::Rng,
) -> Result<Vec<Acknowledged>> {
    let db = database(server).await?;
    let progress = Arc::new(Progress {
        left: AtomicU64::new(writes),
        reached: Notify::new(),
    });
    let (kill, killed) = watch::channel(false);
    let mut tasks: Vec<_> = writers
        .into_iter()
        .enumerate()
        .map(|(number, told)| {
            let first = i32::try_from(number).expect("few writers") * IDS;
            tokio::spawn(write_until_killed(
                journalled(&db),
                told,
                first,
                random.fork(),
                progress.clone(),
                killed.clone(),
            ))
        })
        .collect();
    enough_written(&progress, &mut tasks).await?;
    server.kill();
    kill.send_replace(true);
    join_all(tasks)
        .await
        .into_iter()
        .map(|task| Ok(task?))
        .collect()
}

/// Waits until enough writes are acknowledged for the test to kill the server. Fails if the server refuses a write
/// before that.
async fn enough_written(progress: &Progress, tasks: &mut [JoinHandle<Acknowledged>]) -> Result<()> {
    tokio::select! {
        () = progress.reached.notified() => Ok(()),
        (ended, ..) = select_all(tasks) => {
            bail!("a writer ended before the kill: {:?}", ended?.refusal)
        }
    }
}

/// Counts down acknowledged writes until the kill.
#[derive(Debug)]
struct Progress {
    left: AtomicU64,
    reached: Notify,
}

impl Progress {
    fn acknowledged(&self) {
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                left.checked_sub(1)
            });
        if before == Ok(1) {
            self.reached.notify_one();
        }
    }
}

/// Writes until a write fails, or until `killed` says that the test killed the server. The driver alone would notice
/// the kill late.
async fn write_until_killed(
    collection: Collection<Document>,
    mut told: Acknowledged,
    first: i32,
    mut random: fastrand::Rng,
    progress: Arc<Progress>,
    mut killed: watch::Receiver<bool>,
) -> Acknowledged {
    loop {
        let change = Change::random(&told.model, first, &mut random);
        let effects = change.effects();
        let outcome = tokio::select! {
            biased;
            outcome = change.send(&collection) => outcome.map_err(Some),
            _ = killed.wait_for(|killed| *killed) => Err(None),
        };
        if let Err(refusal) = outcome {
            (told.in_doubt, told.refusal) = (effects, refusal);
            return told;
        }
        for (id, name) in effects {
            apply(&mut told.model, id, name);
        }
        progress.acknowledged();
    }
}

fn apply(model: &mut Model, id: i32, name: Option<String>) {
    match name {
        Some(name) => model.put(id, Some(name)),
        None => model.remove(id),
    }
}

/// A random write.
#[derive(Debug)]
enum Change {
    Insert(Vec<(i32, String)>),
    Update(i32, String),
    Delete(i32),
}

impl Change {
    fn random(model: &Model, first: i32, random: &mut fastrand::Rng) -> Change {
        let id = first + random.i32(0..IDS);
        match (model.get(id).is_some(), random.u8(..3)) {
            (true, 0) => Change::Delete(id),
            (true, _) => Change::Update(id, random_name(random)),
            (false, _) => Change::insert(model, id, first + IDS, random),
        }
    }

    /// Inserts documents from `id` upwards, up to the next existing `_id`.
    fn insert(model: &Model, id: i32, end: i32, random: &mut fastrand::Rng) -> Change {
        let count = random.usize(1..=BATCH_COUNT_MAX);
        let free = (id..end)
            .take_while(|id| model.get(*id).is_none())
            .take(count);
        Change::Insert(free.map(|id| (id, random_name(random))).collect())
    }

    /// Returns the `_id` of each changed document, and its name after the change (`None` if it is deleted).
    fn effects(&self) -> Vec<(i32, Option<String>)> {
        match self {
            Change::Insert(documents) => documents
                .iter()
                .map(|(id, name)| (*id, Some(name.clone())))
                .collect(),
            Change::Update(id, name) => vec![(*id, Some(name.clone()))],
            Change::Delete(id) => vec![(*id, None)],
        }
    }

    async fn send(self, collection: &Collection<Document>) -> mongodb::error::Result<()> {
        match self {
            Change::Insert(documents) => {
                let documents = documents
                    .into_iter()
                    .map(|(id, name)| doc! { "_id": id, "name": name });
                collection.insert_many(documents).await.map(drop)
            }
            Change::Update(id, name) => collection
                .update_one(doc! { "_id": id }, doc! { "$set": { "name": name } })
                .await
                .map(drop),
            Change::Delete(id) => collection.delete_one(doc! { "_id": id }).await.map(drop),
        }
    }
}

/// Makes a short name of few distinct letters, so that patterns match some names.
fn random_name(random: &mut fastrand::Rng) -> String {
    (0..random.usize(..12))
        .map(|_| random.choice(*b"aab0129-").map_or('-', char::from))
        .collect()
}

/// Checks each document that the unacknowledged write concerns: it must be as before the write, or as after the write.
/// The model then gets the state that was found.
async fn settle(db: &Database, told: &mut Acknowledged) -> Result<()> {
    let collection = journalled(db);
    for (id, after) in std::mem::take(&mut told.in_doubt) {
        let found = name_of(&collection, id).await?;
        let before = told.model.get(id).cloned().flatten();
        ensure!(
            found == before || found == after,
            "{id} is {found:?}, was {before:?}, was to become {after:?}"
        );
        apply(&mut told.model, id, found);
    }
    Ok(())
}

async fn name_of(collection: &Collection<Document>, id: i32) -> Result<Option<String>> {
    let document = collection.find_one(doc! { "_id": id }).await?;
    Ok(document
        .map(|document| document.get_str("name").map(str::to_owned))
        .transpose()?)
}

/// Compares the models with all documents, which a scan reads, and with all answers of the cache.
async fn compare_answers(db: &Database, writers: &[Acknowledged]) -> Result<()> {
    caches_are_built(db, "names").await?;
    let mut expected = Model::default();
    for (id, name) in writers.iter().flat_map(|told| told.model.iter()) {
        expected.put(id, name.map(str::to_owned));
    }
    ensure!(
        scan(db).await? == expected,
        "the documents differ from the acknowledged writes"
    );
    let names = db.collection("names");
    for pattern in PATTERNS {
        let matching = matching_ids(&names, doc! { "name": { "$regex": pattern } }).await?;
        ensure!(
            matching == expected.matching(pattern),
            "{pattern}: the answer of the cache differs"
        );
        let others =
            matching_ids(&names, doc! { "name": { "$not": { "$regex": pattern } } }).await?;
        ensure!(
            others == expected.not_matching(pattern),
            "not {pattern}: the answer of the cache differs"
        );
    }
    let explanation = explain(db, "names", &doc! { "name": { "$regex": "ab" } }).await?;
    ensure!(explanation.tier != "scan", "the cache did not answer");
    Ok(())
}

async fn scan(db: &Database) -> Result<Model> {
    let mut model = Model::default();
    let mut cursor = db
        .collection::<Document>("names")
        .find(doc! {})
        .hint(natural())
        .await?;
    while let Some(document) = cursor.try_next().await? {
        model.put(
            document.get_i32("_id")?,
            Some(document.get_str("name")?.to_owned()),
        );
    }
    Ok(model)
}

fn natural() -> mongodb::options::Hint {
    mongodb::options::Hint::Keys(doc! { "$natural": 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_journal_only_the_last_moment_is_lost() -> Result<()> {
    let mut server = Server::start(BINARY, &[])?;
    let things = database(&server).await?.collection::<Document>("things");
    let mut acknowledged = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < 4 * LOSS_MAX {
        let id = i32::try_from(acknowledged.len())?;
        things.insert_one(doc! { "_id": id }).await?;
        acknowledged.push(Instant::now());
    }
    let killed = Instant::now();
    server.kill();
    server.restart()?;
    let safe = acknowledged
        .iter()
        .filter(|time| killed - **time > LOSS_MAX)
        .count() as u64;
    let db = database(&server).await?;
    let kept = count(&db, "things", &doc! {}, Plan::Chosen).await?;
    ensure!(
        kept >= safe,
        "{kept} documents are left of {safe} older than {LOSS_MAX:?}"
    );
    server.stop()
}
