//! Follows change streams while clients write at random and the server is killed repeatedly. Each follower applies all
//! events to an empty model. In the end the model equals the collections, so no event was missing or repeated.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, bail, ensure};
use bson::{Bson, Document, Timestamp, doc};
use forebay_testkit::{Server, is_full, seed};
use futures_util::TryStreamExt;
use futures_util::future::try_join_all;
use mongodb::change_stream::ChangeStream;
use mongodb::change_stream::event::{ChangeStreamEvent, OperationType, ResumeToken};
use mongodb::error::ErrorKind;
use mongodb::{Client, Collection, Database};
use tokio::sync::{Notify, Semaphore, watch};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");
/// Arguments of the server: a history of changes that is long enough for each test.
const ARGUMENTS: [&str; 4] = [
    "--devices",
    "host:1",
    "--documents-change-history-bytes-max",
    "1GiB",
];
const COLLECTIONS: [&str; 2] = ["a", "b"];
const WRITERS: i32 = 3;
/// Number of distinct `_id`s of a writer.
const IDS: i32 = 200;
/// `_id` of the document that marks the end of a round.
const MARK: i32 = -1;

/// Documents by collection and `_id`.
type Model = BTreeMap<(String, i32), Document>;

/// The scope of a change stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scope {
    Collection,
    Database,
    Everything,
}

/// A follower of a change stream: its model and its position.
#[derive(Debug)]
struct Follower {
    scope: Scope,
    model: Model,
    token: Option<ResumeToken>,
    last: Option<Timestamp>,
}

impl Follower {
    fn new(scope: Scope) -> Follower {
        Follower {
            scope,
            model: Model::new(),
            token: None,
            last: None,
        }
    }

    /// Opens the stream at the follower's position.
    async fn open(&mut self, client: &Client) -> Result<ChangeStream<ChangeStreamEvent<Document>>> {
        let db = client.database("streams");
        let collection = db.collection::<Document>(COLLECTIONS[0]);
        let watching = match self.scope {
            Scope::Collection => collection.watch(),
            Scope::Database => db.watch(),
            Scope::Everything => client.watch(),
        };
        let token = self.token.take();
        let stream = watching.resume_after(token).await?;
        self.token = stream.resume_token();
        ensure!(self.token.is_some(), "the first batch has a token");
        Ok(stream)
    }

    /// Follows until the mark of this round, or until the server is killed. Returns whether it reached the mark.
    async fn follow(
        &mut self,
        client: &Client,
        round: i32,
        mut killed: watch::Receiver<bool>,
        opened: Arc<Semaphore>,
    ) -> Result<bool> {
        let mut stream = self.open(client).await?;
        opened.add_permits(1);
        let mut marks = 0;
        while marks < self.marks() {
            let event = tokio::select! {
                biased;
                event = stream.try_next() => event,
                _ = killed.wait_for(|killed| *killed) => return Ok(false),
            };
            match event {
                Ok(Some(event)) => marks += usize::from(self.apply(event, round)?),
                Ok(None) => bail!("the stream of {:?} ended", self.scope),
                Err(_) if *killed.borrow() => return Ok(false),
                Err(error) if is_lost(&error) => {
                    killed.wait_for(|killed| *killed).await?;
                    return Ok(false);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Returns the number of marks in a round: one for each followed collection.
    fn marks(&self) -> usize {
        match self.scope {
            Scope::Collection => 1,
            Scope::Database | Scope::Everything => COLLECTIONS.len(),
        }
    }

    /// Applies an event to the model. Returns whether it is a mark of this round.
    fn apply(&mut self, event: ChangeStreamEvent<Document>, round: i32) -> Result<bool> {
        ensure!(
            event.cluster_time > self.last,
            "an event is out of order or repeated"
        );
        self.last = event.cluster_time;
        self.token = Some(event.id);
        let collection = event.ns.and_then(|ns| ns.coll).context("a collection")?;
        let key = event.document_key.context("a key")?.get_i32("_id")?;
        let key = (collection, key);
        let before = match event.operation_type {
            OperationType::Insert => {
                let document = event.full_document.context("a document")?;
                ensure!(
                    self.model.insert(key.clone(), document).is_none(),
                    "{key:?} was there"
                );
                return Ok(key.1 == MARK && self.model[&key].get_i32("round")? == round);
            }
            OperationType::Delete => self.model.remove(&key),
            OperationType::Replace => {
                let document = event.full_document.context("a document")?;
                self.model.insert(key.clone(), document)
            }
            OperationType::Update => {
                let description = event.update_description.context("a description")?;
                let document = self
                    .model
                    .get_mut(&key)
                    .context("an update of an unknown document")?;
                for path in description.removed_fields {
                    document.remove(path);
                }
                document.extend(description.updated_fields);
                return Ok(key.1 == MARK && document.get_i32("round")? == round);
            }
            other => bail!("nobody did {other:?}"),
        };
        ensure!(before.is_some(), "{key:?} did not exist");
        Ok(false)
    }

    /// Compares the model with the collections.
    async fn compare(&self, db: &Database) -> Result<()> {
        let watched = match self.scope {
            Scope::Collection => &COLLECTIONS[..1],
            Scope::Database | Scope::Everything => &COLLECTIONS[..],
        };
        let mut contents = Model::new();
        for name in watched {
            let documents: Vec<Document> = db
                .collection(name)
                .find(doc! {})
                .await?
                .try_collect()
                .await?;
            for document in documents {
                contents.insert(((*name).to_owned(), document.get_i32("_id")?), document);
            }
        }
        ensure!(
            self.model == contents,
            "the model of {:?} differs from the collections",
            self.scope
        );
        Ok(())
    }
}

/// Returns whether the connection broke; false if the server replied with an error.
fn is_lost(error: &mongodb::error::Error) -> bool {
    matches!(
        *error.kind,
        ErrorKind::Io(_)
            | ErrorKind::ConnectionPoolCleared { .. }
            | ErrorKind::ServerSelection { .. }
    )
}

/// Makes random writes to `_id`s of this writer, until a write is not acknowledged.
async fn write_until_killed(
    db: Database,
    first: i32,
    mut random: fastrand::Rng,
    left: Arc<AtomicU64>,
    enough: Arc<Notify>,
    mut killed: watch::Receiver<bool>,
) {
    loop {
        let collection = db.collection(COLLECTIONS[random.usize(..COLLECTIONS.len())]);
        let outcome = tokio::select! {
            biased;
            outcome = write(&collection, first, &mut random) => outcome,
            _ = killed.wait_for(|killed| *killed) => return,
        };
        if outcome.is_err() {
            return;
        }
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            enough.notify_one();
        }
    }
}

async fn write(
    collection: &Collection<Document>,
    first: i32,
    random: &mut fastrand::Rng,
) -> mongodb::error::Result<()> {
    let id = first + random.i32(0..IDS);
    let key = doc! { "_id": id };
    let value = random.i32(0..1_000);
    match random.u8(..5) {
        0 => {
            let change = doc! { "$set": { "v": value }, "$unset": { "w": 1 } };
            let all = doc! { "_id": { "$gte": id, "$lt": (id + 20).min(first + IDS) } };
            collection.update_many(all, change).await.map(drop)
        }
        1 => collection.delete_one(key).await.map(drop),
        2 => {
            let replacement = doc! { "v": value, "w": "x".repeat(random.usize(..50)) };
            collection
                .replace_one(key, replacement)
                .upsert(true)
                .await
                .map(drop)
        }
        _ => {
            let change = doc! { "$set": { "v": value, "w": Bson::Null } };
            collection
                .update_one(key, change)
                .upsert(true)
                .await
                .map(drop)
        }
    }
}

/// Marks the end of a round in each collection.
async fn mark(db: &Database, round: i32) -> Result<()> {
    for name in COLLECTIONS {
        let change = doc! { "$set": { "round": round } };
        let collection = db.collection::<Document>(name);
        collection
            .update_one(doc! { "_id": MARK }, change)
            .upsert(true)
            .await?;
    }
    Ok(())
}

/// Runs followers and writers concurrently, and kills the server after a random number of writes.
async fn load_until_killed(
    server: &mut Server,
    followers: &mut [Follower],
    round: i32,
    random: &mut fastrand::Rng,
) -> Result<()> {
    let client = server.client().await?;
    let (kill, killed) = watch::channel(false);
    let opened = Arc::new(Semaphore::new(0));
    let (left, enough) = (
        Arc::new(AtomicU64::new(random.u64(1..400))),
        Arc::new(Notify::new()),
    );
    let count = u32::try_from(followers.len())?;
    let following = followers
        .iter_mut()
        .map(|follower| follower.follow(&client, round, killed.clone(), opened.clone()));
    let writing = async {
        let _opened = opened.acquire_many(count).await?;
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                tokio::spawn(write_until_killed(
                    client.database("streams"),
                    writer * IDS,
                    random.fork(),
                    left.clone(),
                    enough.clone(),
                    killed.clone(),
                ))
            })
            .collect();
        enough.notified().await;
        server.kill();
        kill.send_replace(true);
        try_join_all(writers).await?;
        anyhow::Ok(())
    };
    let (marks, ()) = tokio::try_join!(try_join_all(following), writing)?;
    ensure!(
        marks.iter().all(|mark| !mark),
        "a mark was seen before it was written"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn followers_see_every_change_once_over_kills() -> Result<()> {
    let mut random = fastrand::Rng::with_seed(seed("change_streams"));
    let mut server = Server::start(BINARY, &ARGUMENTS)?;
    let scopes = [Scope::Collection, Scope::Database, Scope::Everything];
    let mut followers = scopes.map(Follower::new);
    for round in 0..if is_full() { 60 } else { 6 } {
        load_until_killed(&mut server, &mut followers, round, &mut random).await?;
        server
            .restart()
            .with_context(|| format!("the start after kill {round}"))?;
        let client = server.client().await?;
        let db = client.database("streams");
        mark(&db, round).await?;
        let (_kill, killed) = watch::channel(false);
        for follower in &mut followers {
            let opened = Arc::new(Semaphore::new(0));
            let marked = follower
                .follow(&client, round, killed.clone(), opened)
                .await?;
            ensure!(marked, "the follower missed the mark");
            follower
                .compare(&db)
                .await
                .with_context(|| format!("after kill {round}"))?;
        }
    }
    server.stop()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_the_server_and_resumes_after_a_restart() -> Result<()> {
    let mut server = Server::start(BINARY, &ARGUMENTS)?;
    let mut follower = Follower::new(Scope::Collection);
    let client = server.client().await?;
    drop(follower.open(&client).await?);
    mark(&client.database("streams"), 1).await?;
    // A cursor belongs to the session that opened it.
    let mut session = client.start_session().await?;
    let db = client.database("streams");
    let open = doc! { "aggregate": "a", "pipeline": [{ "$changeStream": {} }], "cursor": {} };
    let reply = db.run_command(open).session(&mut session).await?;
    let cursor = reply.get_document("cursor")?.get_i64("id")?;
    let wait = doc! { "getMore": cursor, "collection": "a", "maxTimeMS": 600_000 };
    let waiting = tokio::spawn(async move { db.run_command(wait).session(&mut session).await });
    while !is_waiting(&client).await? {
        ensure!(!waiting.is_finished(), "there is no change yet");
    }
    // The restart takes at most the shutdown timeout, which is much shorter than the time for which the `getMore` would
    // wait.
    server.shutdown_and_restart()?;
    let batch = waiting.await??;
    ensure!(
        batch
            .get_document("cursor")?
            .get_array("nextBatch")?
            .is_empty()
    );
    let client = server.client().await?;
    let (_kill, killed) = watch::channel(false);
    let opened = Arc::new(Semaphore::new(0));
    let marked = follower.follow(&client, 1, killed, opened).await?;
    ensure!(marked);
    server.stop()
}

/// Returns whether a `getMore` is in progress.
async fn is_waiting(client: &Client) -> Result<bool> {
    let operations = client
        .database("admin")
        .run_command(doc! { "currentOp": 1 })
        .await?;
    let running = operations.get_array("inprog")?.iter();
    Ok(running
        .filter_map(Bson::as_document)
        .filter_map(|operation| operation.get_document("command").ok())
        .any(|command| command.contains_key("getMore")))
}
