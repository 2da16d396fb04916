//! Shadows of the store's collections: what is cached of a store that is not ours.
//!
//! A shadow is a collection of [`Documents`] in memory, with the `_id` and the cached top-level fields of every
//! document of the store's collection. It has the cache indexes, so that searches, counts and distinct values are those
//! of the documents door, and finds the `_id`s by which the store is asked for the rest. [`load`] copies it. What keeps
//! it equal is [`stream`], the store's change stream, or, where all writes come through us, [`follow`].

mod declarations;
mod events;
mod follow;
pub mod kept;
mod load;
mod mirror;
pub mod pace;
mod place;
mod store_run;
mod stream;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use bson::{Document, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{ClientContext, Command, Documents, Namespace};
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, ReadConcern};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tokio::time::timeout;

pub use follow::Effect;
pub use mirror::{Mirror, Ready};
use store_run::StoreRun;

use crate::upstream::Upstream;

/// How long the store may take to be found, for what we ask it ourselves.
const STORE_SELECTION_TIMEOUT: Duration = Duration::from_secs(10);
const SHARED_WRITES: &str = "the store has no change stream, by which writes past Forebay could be followed: start Forebay \
    with --upstream-writes exclusive if there are none";
const HAS_STREAMS: &str = "the store has transactions, which cannot be followed one by one, and change streams, which tell of \
    them: leave --upstream-writes at shared";
/// How often a store that is away is looked for, and one that is there is asked for a sign of life where caches answer
/// without it.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long a store that is there may take to answer a ping. One that takes longer hangs: it may hold connections
/// open for ever.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// What the store says of a collection that it does not have.
const NAMESPACE_NOT_FOUND: i32 = 26;

/// Why a shadow cannot be filled or followed.
#[derive(Debug, thiserror::Error)]
pub enum ShadowError {
    /// The store does not answer, or refuses.
    #[error("the store: {0}")]
    Store(#[from] mongodb::error::Error),
    /// A command on the shadow failed.
    #[error("the shadow: {0}")]
    Shadow(String),
    /// The list of caches cannot be read or written.
    #[error("the list of caches: {0}")]
    Declarations(#[from] std::io::Error),
    /// The store may no longer have the documents that the shadow was made of.
    #[error(
        "the store has another primary, which may have been restored from a backup, and no event tells"
    )]
    Lost,
    /// The collection is another one now: it was dropped or renamed.
    #[error("the collection is not what it was: {0}")]
    Changed(String),
    /// The collection is not one whose answers a shadow can give.
    #[error("{0}")]
    Unsuitable(String),
}

/// All shadows.
#[derive(Debug)]
pub struct Shadow {
    documents: Arc<Documents>,
    upstream: Arc<Upstream>,
    store: Client,
    /// Do all writes come through us?
    pub exclusive: bool,
    /// The most documents that a load copies in a second; 0 for no limit.
    load_rate: u64,
    /// Where the declared caches are kept; nowhere if they are gone with the process.
    file: Option<PathBuf>,
    /// Of a hundred cached answers, how many are compared with the store's.
    pub compare_percent: u8,
    /// Do cached answers go on while the store cannot be reached?
    pub serve_stale: bool,
    /// Since when the store cannot be reached; a task waits until it can.
    lost_at: watch::Sender<Option<Instant>>,
    /// Whether a task is checking the store, because it has closed a connection.
    looking: AtomicBool,
    /// What every client with a connection to the store holds.
    present: AsyncMutex<Arc<()>>,
    /// The run of the store that the shadows were loaded from; none if that is not known.
    run: Mutex<Option<StoreRun>>,
    /// Says once that the store does not tell.
    untold: Once,
    /// The store's last reply to a hello, for clients that come while it is away.
    pub hello: Mutex<Option<RawDocumentBuf>>,
    /// Held while the file is written.
    recording: Mutex<()>,
    mirrors: Mutex<HashMap<Namespace, Arc<Mirror>>>,
    /// What became of reads on collections with caches.
    pub counters: Counters,
}

/// A client has a connection to the store for as long as this is there.
#[derive(Debug)]
pub struct Arrived(#[expect(dead_code, reason = "it is there to be counted")] Arc<()>);

/// What shadows are told by the settings.
#[derive(Debug, Clone)]
pub struct ShadowSettings {
    /// Do all writes come through us?
    pub exclusive: bool,
    /// The most documents that a load copies in a second; 0 for no limit.
    pub load_rate: u64,
    /// The file of the declared caches.
    pub file: Option<PathBuf>,
    /// Of a hundred cached answers, how many are compared with the store's.
    pub compare_percent: u8,
    /// Do cached answers go on while the store cannot be reached?
    pub serve_stale: bool,
}

impl Shadow {
    /// The shadows of a store, with user and password of its connection string. The caches that were declared before
    /// begin to load.
    ///
    /// # Errors
    /// If the connection string is wrong, or the list of caches cannot be read.
    pub async fn open(
        documents: Arc<Documents>,
        (upstream, uri): (Arc<Upstream>, &str),
        settings: ShadowSettings,
    ) -> Result<Arc<Shadow>, ShadowError> {
        let mut options = ClientOptions::parse(uri).await?;
        options.app_name = Some("forebay".to_owned());
        options.direct_connection = Some(true);
        // A shadow is made of what the writers see.
        options.selection_criteria = None;
        options.read_concern = Some(ReadConcern::local());
        options.server_selection_timeout = Some(STORE_SELECTION_TIMEOUT);
        let shadow = Arc::new(Shadow {
            documents,
            upstream,
            store: Client::with_options(options)?,
            exclusive: settings.exclusive,
            load_rate: settings.load_rate,
            file: settings.file,
            compare_percent: settings.compare_percent,
            serve_stale: settings.serve_stale,
            lost_at: watch::Sender::new(None),
            looking: AtomicBool::new(false),
            present: AsyncMutex::default(),
            run: Mutex::default(),
            untold: Once::new(),
            hello: Mutex::default(),
            recording: Mutex::default(),
            mirrors: Mutex::default(),
            counters: Counters::default(),
        });
        for (namespace, definitions) in shadow.recorded()? {
            let mirror = shadow.mirror(&namespace);
            mirror.declare(definitions);
            mirror.set_resumable();
            shadow.reload(&mirror, "it was declared before the start");
        }
        shadow.warn_if_away();
        if shadow.serve_stale {
            shadow.watch();
        }
        Ok(shadow)
    }

    /// Is a search of a cached field refused that the cache does not answer?
    pub fn is_strict(&self) -> bool {
        self.documents.settings().strict
    }

    /// Is it known that the store cannot be reached?
    pub fn is_away(&self) -> bool {
        self.lost_at().is_some()
    }

    /// Since when the store cannot be reached; `None` as far as it is known to be there.
    pub fn lost_at(&self) -> Option<Instant> {
        *self.lost_at.borrow()
    }

    /// Waits until the store cannot be reached.
    pub async fn goes_away(&self) {
        // The sender is ours.
        let _ = self
            .lost_at
            .subscribe()
            .wait_for(|lost_at| lost_at.is_some())
            .await;
    }

    /// Asks the store for signs of life for as long as there are clients to serve, so that one that hangs is found to
    /// be away: its connections stay open, and a command on them would wait without an end.
    fn watch(self: &Arc<Self>) {
        let shadow = Arc::downgrade(self);
        tokio::spawn(async move {
            while let Some(shadow) = shadow.upgrade() {
                if !shadow.is_away() && !shadow.answers_ping().await {
                    shadow.lost();
                }
                drop(shadow);
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
        });
    }

    async fn answers_ping(&self) -> bool {
        match timeout(PING_TIMEOUT, self.store_time()).await {
            // A refusal is an answer.
            Ok(Err(ShadowError::Store(error))) => matches!(*error.kind, ErrorKind::Command(_)),
            Ok(answered) => answered.is_ok(),
            Err(_) => false,
        }
    }

    /// Warns at the start if nothing listens where the store should be, rather than with the first client.
    fn warn_if_away(self: &Arc<Self>) {
        let shadow = Arc::clone(self);
        tokio::spawn(async move {
            if let Err(error) = shadow.upstream.connect().await {
                let upstream = &shadow.upstream;
                tracing::warn!(%upstream, %error, "no store can be reached there: clients get an error until one can");
                shadow.lost();
            }
        });
    }

    /// The store cannot be reached: looks for it until it can. Shadows that follow no stream are loaded again then, as
    /// the store may have changed.
    pub fn lost(self: &Arc<Self>) {
        let is_new = self.lost_at.send_if_modified(|lost_at| {
            let is_new = lost_at.is_none();
            lost_at.get_or_insert_with(Instant::now);
            is_new
        });
        if !is_new {
            return;
        }
        tracing::warn!("the store cannot be reached");
        let shadow = Arc::clone(self);
        tokio::spawn(async move {
            while !shadow.is_back().await {
                tokio::time::sleep(LOOK_INTERVAL).await;
            }
            tracing::info!("the store can be reached again");
            shadow.forget_open();
            if shadow.exclusive {
                let run = shadow.store_run().await.unwrap_or(None);
                *shadow.run.lock() = run;
                shadow.reload_all("the store was away");
            }
            shadow.lost_at.send_replace(None);
        });
    }

    /// Whether the store answers clients that come now, and us.
    async fn is_back(&self) -> bool {
        let pinged = || timeout(PING_TIMEOUT, self.store_time());
        self.upstream.is_there().await && pinged().await.is_ok_and(|time| time.is_ok())
    }

    /// Forgets which collections the store lets unauthenticated clients read: it may have other rules now.
    fn forget_open(&self) {
        for mirror in self.mirrors.lock().values() {
            mirror.set_open(None);
        }
    }

    /// The store has closed a connection.
    pub fn left(self: &Arc<Self>) {
        let concerns = self.exclusive || self.serve_stale;
        if concerns && !self.looking.swap(true, Ordering::AcqRel) {
            let shadow = Arc::clone(self);
            tokio::spawn(async move {
                if shadow.serve_stale && shadow.upstream.is_there().await {
                    shadow.forget_open();
                }
                shadow.check_run().await;
                shadow.looking.store(false, Ordering::Release);
            });
        }
    }

    /// A client has a connection to the store. If it is the only one, a restart of the store may have gone unnoticed.
    pub async fn arrives(self: &Arc<Self>) -> Arrived {
        let present = self.present.lock().await;
        if Arc::strong_count(&present) == 1 {
            self.forget_open();
            tokio::select! {
                () = self.check_run() => {}
                // It hangs.
                () = self.goes_away() => {}
            }
        }
        Arrived(Arc::clone(&present))
    }

    /// Loads all shadows again.
    fn reload_all(self: &Arc<Self>, why: &str) {
        for mirror in self.declared() {
            self.reload_kept(&mirror, why);
        }
    }

    /// The collection of this name, if it has caches.
    pub fn find(&self, namespace: &Namespace) -> Option<Arc<Mirror>> {
        let mirror = self.mirrors.lock().get(namespace).cloned();
        mirror.filter(|mirror| mirror.is_declared())
    }

    /// Forgets a collection without caches that is not in use elsewhere: clients can name any number of them.
    pub fn release(&self, mirror: Arc<Mirror>) {
        let mut mirrors = self.mirrors.lock();
        // Ours and the table's: nobody can take another while the table is locked.
        if Arc::strong_count(&mirror) == 2 && !mirror.is_declared() {
            mirrors.remove(&mirror.namespace);
        }
    }

    /// The collection of this name, to write to it or to declare caches.
    pub fn mirror(&self, namespace: &Namespace) -> Arc<Mirror> {
        let mut mirrors = self.mirrors.lock();
        if let Some(mirror) = mirrors.get(namespace) {
            return mirror.clone();
        }
        let mirror = Arc::new(Mirror::new(namespace.clone()));
        mirrors.insert(namespace.clone(), mirror.clone());
        mirror
    }

    /// The collections with caches, by name.
    pub fn declared(&self) -> Vec<Arc<Mirror>> {
        let mirrors = self.mirrors.lock();
        let declared = mirrors.values().filter(|mirror| mirror.is_declared());
        let mut declared: Vec<_> = declared.cloned().collect();
        declared.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        declared
    }

    /// Runs a `find` of a client over documents that the store gave by their `_id`s.
    pub async fn find_among(
        &self,
        client: &ClientContext,
        db: &str,
        mut find: RawDocumentBuf,
        fetched: Vec<RawDocumentBuf>,
    ) -> RawDocumentBuf {
        find.append(bson::cstr!("$db"), db);
        let command = Command::from_body(find);
        self.documents.find_among(client, command, fetched).await
    }

    /// Which part of a collection a search that ends at the document with this `_id` has read, as far as a shadow can
    /// tell.
    pub fn place_of(&self, namespace: &Namespace, id: &RawBson) -> Option<f64> {
        let id = id.as_raw_bson_ref();
        self.documents.place_of(namespace, id)
    }

    /// How many documents a search of the store reads that finds none, as far as a shadow can tell.
    pub fn scanned_in_all(&self, namespace: &Namespace) -> Option<u64> {
        self.documents.scanned_in_all(namespace)
    }

    /// How many documents a search of the store reads until it has found `count` that match, as far as a shadow can
    /// tell, if those are at most `documents_max`.
    pub fn scanned_until(
        &self,
        namespace: &Namespace,
        filter: &RawDocument,
        count: usize,
        documents_max: u64,
    ) -> Option<u64> {
        self.documents
            .scanned_until(namespace, filter, count, documents_max)
    }

    /// Runs a command of our own on the shadow of its namespace.
    async fn run(&self, db: &str, body: RawDocumentBuf) -> RawDocumentBuf {
        self.run_for(&ClientContext::default(), db, body).await
    }

    /// Runs a command on the shadow of its namespace for a client; a read ends when the client leaves.
    pub async fn run_for(
        &self,
        client: &ClientContext,
        db: &str,
        mut body: RawDocumentBuf,
    ) -> RawDocumentBuf {
        body.append(bson::cstr!("$db"), db);
        let command = Command::from_body(body);
        self.documents.run(client, command).await
    }

    /// Runs a command on the shadow that has to succeed.
    async fn demand(&self, db: &str, body: RawDocumentBuf) -> Result<RawDocumentBuf, ShadowError> {
        let reply = self.run(db, body).await;
        match succeeded(&reply) {
            true => Ok(reply),
            false => Err(ShadowError::Shadow(message(&reply))),
        }
    }

    /// Declares caches, by a `createIndexes` of definitions of cache indexes alone, and begins to load them. Gives the
    /// reply. Waits for in-flight writes: those started before the declaration are not followed.
    ///
    /// # Errors
    /// If the collection is a view or has a collation, the store does not answer, or the list of caches cannot be
    /// written. A definition that is wrong is told by the reply.
    pub async fn create_caches(
        self: &Arc<Self>,
        mirror: &Arc<Mirror>,
        indexes: RawArrayBuf,
    ) -> Result<RawDocumentBuf, ShadowError> {
        self.check_suitable(mirror).await?;
        let _alone = mirror.gate.write().await;
        let Namespace { db, collection } = &mirror.namespace;
        let command = rawdoc! { "createIndexes": collection.as_str(), "indexes": indexes };
        let reply = self.run(db, command).await;
        if succeeded(&reply) {
            self.declare(mirror).await?;
        }
        Ok(reply)
    }

    /// Drops caches by a `dropIndexes` on the shadow. Gives the reply.
    ///
    /// # Errors
    /// If the list of caches cannot be written.
    pub async fn drop_caches(
        self: &Arc<Self>,
        mirror: &Arc<Mirror>,
        index: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, ShadowError> {
        let _alone = mirror.gate.write().await;
        let reply = self.run(&mirror.namespace.db, index).await;
        if succeeded(&reply) {
            self.declare(mirror).await?;
        }
        Ok(reply)
    }

    /// Takes what the shadow's indexes are as declared, and begins to load it. The caller holds the gate alone.
    async fn declare(self: &Arc<Self>, mirror: &Arc<Mirror>) -> Result<(), ShadowError> {
        let definitions = self.cache_definitions(&mirror.namespace).await?;
        if definitions.is_empty() {
            return self.forget(mirror).await;
        }
        mirror.declare(definitions);
        self.record()?;
        self.reload(mirror, "it is declared");
        Ok(())
    }

    /// Forgets the caches of a collection and frees their memory. The caller holds the gate alone.
    ///
    /// # Errors
    /// If the list of caches cannot be written.
    pub async fn forget(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        mirror.declare(Vec::new());
        for Namespace { db, collection } in [&mirror.namespace, &mirror.beside] {
            self.demand(db, rawdoc! { "drop": collection.as_str() })
                .await?;
        }
        self.record()
    }

    /// The definitions of the cache indexes on the shadow.
    async fn cache_definitions(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<RawDocumentBuf>, ShadowError> {
        let command = rawdoc! { "listIndexes": namespace.collection.as_str() };
        let reply = self.demand(&namespace.db, command).await?;
        let batch = first_batch(&reply);
        Ok(batch
            .filter(|definition| kept::is_cache(definition))
            .map(RawDocument::to_owned)
            .collect())
    }

    /// Views, collections that compare strings by other rules, and those of which the store deletes documents by itself
    /// give other answers than a shadow.
    async fn check_suitable(&self, mirror: &Mirror) -> Result<(), ShadowError> {
        let namespace = &mirror.namespace;
        if self.exclusive && self.has_transactions().await? {
            return Err(ShadowError::Unsuitable(HAS_STREAMS.to_owned()));
        }
        let filter = rawdoc! { "name": namespace.collection.as_str() };
        let list = rawdoc! { "listCollections": 1, "filter": filter };
        let reply = self.ask_store(&namespace.db, list).await?;
        let Some(found) = first_batch(&reply).next() else {
            mirror.set_identity(None);
            return Ok(());
        };
        let info = found.get_document("info");
        let identity = info.and_then(|info| info.get("uuid")).ok().flatten();
        mirror.set_identity(identity.map(RawBson::from));
        let list = rawdoc! { "listIndexes": namespace.collection.as_str() };
        let indexes = match self.ask_store(&namespace.db, list).await {
            Err(ShadowError::Store(error)) if is_code(&error, NAMESPACE_NOT_FOUND) => {
                RawDocumentBuf::new()
            }
            reply => reply?,
        };
        match unsuitable(found, first_batch(&indexes), self.exclusive) {
            None => Ok(()),
            Some(why) => Err(ShadowError::Unsuitable(format!("{namespace} {why}"))),
        }
    }

    /// Whether the store is a member of a replica set or a router: then it has transactions, which change nothing
    /// before they end, and change streams, which tell when that is. A Forebay has no transactions, whatever it calls
    /// itself.
    async fn has_transactions(&self) -> Result<bool, ShadowError> {
        let hello = self.ask_store("admin", rawdoc! { "hello": 1 }).await?;
        let is_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        if !is_router && matches!(hello.get("setName"), Ok(None)) {
            return Ok(false);
        }
        let build = self.ask_store("admin", rawdoc! { "buildInfo": 1 }).await?;
        Ok(matches!(build.get("forebay"), Ok(None)))
    }

    /// The cluster time that the store is at, if it tells.
    async fn store_time(&self) -> Result<Option<u64>, ShadowError> {
        let reply = self.ask_store("admin", rawdoc! { "ping": 1 }).await?;
        Ok(operation_time(&reply))
    }

    /// Runs a command on the store, with the rights of the connection string.
    async fn ask_store(
        &self,
        db: &str,
        command: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, ShadowError> {
        let command = Document::try_from(command).map_err(unreadable)?;
        let reply = self.store.database(db).run_command(command).await?;
        RawDocumentBuf::try_from(&reply).map_err(unreadable)
    }
}

/// Why a collection with these indexes cannot be cached.
fn unsuitable<'a>(
    collection: &RawDocument,
    mut indexes: impl Iterator<Item = &'a RawDocument>,
    exclusive: bool,
) -> Option<String> {
    let kind = collection.get_str("type").unwrap_or("collection");
    let options = collection.get_document("options").ok();
    let collation = options.and_then(|options| options.get_document("collation").ok());
    let is_simple = |it: &RawDocument| it.get_str("locale").is_ok_and(|it| it == "simple");
    let is_capped = options.is_some_and(|options| options.get_bool("capped").unwrap_or(false));
    if kind != "collection" {
        return Some(format!("is a {kind}, and not a collection"));
    }
    if !collation.is_none_or(is_simple) {
        return Some("has a collation, and a cache compares strings byte by byte".to_owned());
    }
    let expires = |index: &RawDocument| !matches!(index.get("expireAfterSeconds"), Ok(None));
    // No event tells of what goes because a collection is full; of what expires, one does.
    (is_capped || exclusive && indexes.any(expires)).then(|| {
        "is capped or has a TTL index: the store deletes documents that no cache would miss"
            .to_owned()
    })
}

fn is_code(error: &mongodb::error::Error, code: i32) -> bool {
    matches!(&*error.kind, ErrorKind::Command(error) if error.code == code)
}

/// Counts up; for people who watch.
#[derive(Debug, Default)]
pub struct Counters {
    /// Reads that the shadow answered by itself.
    pub answered: AtomicU64,
    /// Of these, while the store was away.
    pub stale: AtomicU64,
    /// Reads whose documents the shadow found and the store showed.
    pub narrowed: AtomicU64,
    /// Reads on collections with caches that went to the store as they were.
    pub forwarded: AtomicU64,
    /// Of these, those that the store answers faster by a search than by the `_id`s that the shadow found.
    pub slower: AtomicU64,
    /// Answers that were compared with the store's.
    pub compared: AtomicU64,
    /// Those that differed.
    pub differed: AtomicU64,
    /// Those that could not be judged, as their documents were written meanwhile.
    pub undecided: AtomicU64,
}

impl Counters {
    /// All of them by name.
    pub fn document(&self) -> RawDocumentBuf {
        let told = |counter: &AtomicU64| counter.load(Ordering::Relaxed) as i64;
        rawdoc! {
            "answered": told(&self.answered), "stale": told(&self.stale), "narrowed": told(&self.narrowed), "forwarded": told(&self.forwarded),
            "slower": told(&self.slower),
            "compared": told(&self.compared), "differed": told(&self.differed),
            "undecided": told(&self.undecided),
        }
    }
}

fn refused(error: forebay_documents::CommandError) -> ShadowError {
    ShadowError::Shadow(error.to_string())
}

fn unreadable(error: impl std::fmt::Display) -> ShadowError {
    ShadowError::Shadow(error.to_string())
}

/// When the store had done what this is the reply to, as a cluster time.
pub fn operation_time(reply: &RawDocument) -> Option<u64> {
    let time = reply.get_timestamp("operationTime").ok()?;
    Some(u64::from(time.time) << 32 | u64::from(time.increment))
}

/// A cluster time as stores write it.
fn timestamp(at: u64) -> bson::Timestamp {
    bson::Timestamp {
        time: (at >> 32) as u32,
        increment: at as u32,
    }
}

/// A field that is a number of any type.
pub fn number(document: &RawDocument, name: &str) -> Option<f64> {
    let number = document.get(name).ok().flatten()?;
    let small = number.as_i32().map(f64::from).or(number.as_f64());
    small.or(number.as_i64().map(|number| number as f64))
}

/// Is this the reply of a command that succeeded?
pub fn succeeded(reply: &RawDocument) -> bool {
    match reply.get("ok") {
        Ok(Some(ok)) => {
            ok.as_f64() == Some(1.0) || ok.as_i32() == Some(1) || ok.as_i64() == Some(1)
        }
        _ => false,
    }
}

fn message(reply: &RawDocument) -> String {
    reply
        .get_str("errmsg")
        .unwrap_or("no reason was given")
        .to_owned()
}

/// The documents of the first batch in a reply.
pub fn first_batch(reply: &RawDocument) -> impl Iterator<Item = &RawDocument> {
    let batch = reply
        .get_document("cursor")
        .and_then(|cursor| cursor.get_array("firstBatch"));
    let batch = batch
        .ok()
        .into_iter()
        .flat_map(|batch| batch.into_iter().flatten());
    batch.filter_map(|document| document.as_document())
}
