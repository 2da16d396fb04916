//! Replicas of the upstream's collections: their `_id`s and cached fields.
//!
//! A [`Replica`] is an in-memory collection of [`Documents`] with cache indexes. It holds the `_id` and the cached
//! top-level fields of every document of one upstream collection. The replica runs searches, counts and distinct values
//! as any collection does, and finds the `_id`s of documents that have to be read from the upstream.
//!
//! [`load`] copies the collection. Afterwards, [`stream`] applies the upstream's change stream to the replica. If all
//! writes come through the proxy, [`apply`] applies each write to the replica instead. [`life`] is a replica's state
//! machine.

mod apply;
mod availability;
mod caches;
mod counters;
mod declarations;
mod events;
pub mod fields;
mod incarnation;
mod life;
mod load;
pub mod pace;
mod pause;
mod position;
mod replica;
mod reply;
mod stream;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use bson::{Document, RawDocumentBuf, rawdoc};
use forebay_documents::{ClientContext, Command, Documents, Namespace};
use mongodb::Client;
use mongodb::error::ErrorKind;
use mongodb::options::{ClientOptions, ReadConcern};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, watch};

use incarnation::Incarnation;
use reply::message;

pub use apply::Effect;
pub use counters::Counters;
pub use life::View;
pub use replica::{Answering, Replica};
pub use reply::{first_batch, number, operation_time, succeeded};

use crate::upstream::Upstream;

/// Server selection timeout for commands that the proxy itself sends.
const SELECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a replica cannot be loaded or follow the upstream.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaError {
    /// The upstream does not answer, or refuses a command.
    #[error("the upstream: {0}")]
    Upstream(#[from] mongodb::error::Error),
    /// A command on the replica failed.
    #[error("the replica: {0}")]
    Replica(String),
    /// The list of caches cannot be read or written.
    #[error("the list of caches: {0}")]
    Declarations(#[from] std::io::Error),
    /// The upstream may have lost documents that the replica holds.
    #[error(
        "the upstream has a different primary than before, which may have been restored from a backup; no earlier event is known that could show whether it was"
    )]
    Lost,
    /// The name now belongs to another collection or to none: the collection was dropped or renamed.
    #[error("the collection was dropped, renamed or replaced: {0}")]
    Changed(String),
    /// A replica cannot answer for this collection.
    #[error("{0}")]
    Unsuitable(String),
}

/// All replicas of an upstream, and whether the upstream can be reached.
#[derive(Debug)]
pub struct Replicas {
    /// Holds the replicas as in-memory collections.
    pub documents: Arc<Documents>,
    upstream: Arc<Upstream>,
    /// Sends the proxy's own commands, with the user of the connection string.
    client: Client,
    /// Do all writes come through the proxy?
    pub exclusive: bool,
    /// Maximum documents/s that a load copies; 0 for no limit.
    load_rate: u64,
    /// File with the list of declared caches; `None` if declarations are lost at the end of the process.
    file: Option<PathBuf>,
    /// Percentage of the replicas' answers that are compared with the upstream's answers.
    pub compare_percent: u8,
    /// Whether complete copies may answer while the upstream cannot be reached.
    pub serve_stale: bool,
    /// When the upstream became unreachable; `None` while it can be reached. A task then retries until the upstream
    /// answers.
    lost_at: watch::Sender<Option<Instant>>,
    /// Is a task checking the upstream because the upstream closed a connection?
    is_checking: AtomicBool,
    /// The last check of whether the upstream hangs: when it ended, and its result.
    checked: AsyncMutex<Option<(Instant, bool)>>,
    /// Each client with a connection to the upstream holds a reference to this `Arc`. The reference count shows whether
    /// there are such clients.
    clients: AsyncMutex<Arc<()>>,
    /// Incarnation of the upstream that the replicas were loaded from; `None` if unknown.
    incarnation: Mutex<Option<Incarnation>>,
    /// Ensures that the log says only once that the upstream does not report its start time.
    said_no_start: Once,
    /// The upstream's last reply to a hello, for clients that connect while the upstream is away.
    pub hello: Mutex<Option<RawDocumentBuf>>,
    /// Held while the list of declared caches is written.
    recording: Mutex<()>,
    replicas: Mutex<HashMap<Namespace, Arc<Replica>>>,
    /// Counters of reads on collections with caches, by outcome.
    pub counters: Counters,
}

/// Settings of replicas.
#[derive(Debug, Clone)]
pub struct ReplicaSettings {
    /// Do all writes come through the proxy?
    pub exclusive: bool,
    /// Maximum documents/s that a load copies; 0 for no limit.
    pub load_documents_per_second: u64,
    /// File with the list of declared caches; `None` if declarations are lost at the end of the process.
    pub file: Option<PathBuf>,
    /// Percentage of the replicas' answers that are compared with the upstream's answers.
    pub compare_percent: u8,
    /// Whether complete copies may answer while the upstream cannot be reached.
    pub serve_stale: bool,
}

impl Replicas {
    /// Opens the replicas of an upstream, with the user and password of its connection string. Starts to resume or load
    /// the caches declared before a restart.
    ///
    /// # Errors
    /// If the connection string is wrong, or the list of caches cannot be read.
    pub async fn open(
        documents: Arc<Documents>,
        (upstream, uri): (Arc<Upstream>, &str),
        settings: ReplicaSettings,
    ) -> Result<Arc<Replicas>, ReplicaError> {
        let mut options = ClientOptions::parse(uri).await?;
        options.app_name = Some("forebay".to_owned());
        options.direct_connection = Some(true);
        // Replicas must hold all acknowledged writes, so read from the primary, with read concern `local`.
        options.selection_criteria = None;
        options.read_concern = Some(ReadConcern::local());
        options.server_selection_timeout = Some(SELECTION_TIMEOUT);
        let replicas = Arc::new(Replicas {
            documents,
            upstream,
            client: Client::with_options(options)?,
            exclusive: settings.exclusive,
            load_rate: settings.load_documents_per_second,
            file: settings.file,
            compare_percent: settings.compare_percent,
            serve_stale: settings.serve_stale,
            lost_at: watch::Sender::new(None),
            is_checking: AtomicBool::new(false),
            checked: AsyncMutex::default(),
            clients: AsyncMutex::default(),
            incarnation: Mutex::default(),
            said_no_start: Once::new(),
            hello: Mutex::default(),
            recording: Mutex::default(),
            replicas: Mutex::default(),
            counters: Counters::default(),
        });
        for (namespace, definitions) in replicas.recorded()? {
            let replica = replicas.replica(&namespace);
            replica.declare(definitions);
            replicas.resume_or_load(&replica, "caches were declared before the start");
        }
        replicas.warn_if_away();
        if replicas.serve_stale {
            replicas.start_pings();
        }
        Ok(replicas)
    }

    /// Returns whether searches of a cached field are refused if the cache cannot answer them.
    pub fn is_strict(&self) -> bool {
        self.documents.settings().strict
    }

    /// Returns the replica of a collection, if the collection has caches.
    pub fn find(&self, namespace: &Namespace) -> Option<Arc<Replica>> {
        let replica = self.replicas.lock().get(namespace).cloned();
        replica.filter(|replica| replica.is_declared())
    }

    /// Drops the state of a collection without caches if nothing else uses the state. Otherwise clients could fill
    /// memory by naming many collections.
    pub fn release(&self, replica: Arc<Replica>) {
        let mut replicas = self.replicas.lock();
        // The caller and the table hold a reference each. No other caller can take one while the table is locked.
        if Arc::strong_count(&replica) == 2 && !replica.is_declared() {
            replicas.remove(&replica.namespace);
        }
    }

    /// Returns the replica of a collection, to write to the collection or to declare caches. Creates the replica
    /// if it is missing.
    pub fn replica(&self, namespace: &Namespace) -> Arc<Replica> {
        let mut replicas = self.replicas.lock();
        if let Some(replica) = replicas.get(namespace) {
            return replica.clone();
        }
        let replica = Arc::new(Replica::new(namespace.clone()));
        replicas.insert(namespace.clone(), replica.clone());
        replica
    }

    /// Returns the replicas with caches, sorted by namespace.
    pub fn declared(&self) -> Vec<Arc<Replica>> {
        let replicas = self.replicas.lock();
        let declared = replicas.values().filter(|replica| replica.is_declared());
        let mut declared: Vec<_> = declared.cloned().collect();
        declared.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        declared
    }

    /// Runs a client's `find` over documents that the upstream returned for a query by `_id`.
    pub async fn find_among(
        &self,
        client: &ClientContext,
        db: &str,
        find: RawDocumentBuf,
        fetched: Vec<RawDocumentBuf>,
    ) -> RawDocumentBuf {
        let find = command(db, find);
        self.documents.find_among(client, find, fetched).await
    }

    /// Runs a command that the proxy issues by itself, on the replica of the command's namespace.
    async fn run(&self, db: &str, body: RawDocumentBuf) -> RawDocumentBuf {
        self.run_for(&ClientContext::default(), db, body).await
    }

    /// Runs a client's command on the replica of the command's namespace. A read ends when the client disconnects.
    pub async fn run_for(
        &self,
        client: &ClientContext,
        db: &str,
        body: RawDocumentBuf,
    ) -> RawDocumentBuf {
        self.documents.run(client, command(db, body)).await
    }

    /// Runs a command that the proxy issues by itself, on a replica. Turns an error reply into a [`ReplicaError`].
    async fn demand(&self, db: &str, body: RawDocumentBuf) -> Result<RawDocumentBuf, ReplicaError> {
        let reply = self.run(db, body).await;
        if succeeded(&reply) {
            Ok(reply)
        } else {
            Err(ReplicaError::Replica(message(&reply)))
        }
    }

    /// Returns the upstream's current cluster time; `None` if it has no cluster time.
    async fn upstream_time(&self) -> Result<Option<u64>, ReplicaError> {
        let reply = self.ask_upstream("admin", rawdoc! { "ping": 1 }).await?;
        Ok(operation_time(&reply))
    }

    /// Runs a command on the upstream, with the user of the connection string.
    async fn ask_upstream(
        &self,
        db: &str,
        command: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, ReplicaError> {
        let command = Document::try_from(command).map_err(unreadable)?;
        let db = self.client.database(db);
        let reply = self.unless_hung(db.run_command(command).into_future());
        let reply = reply.await??;
        RawDocumentBuf::try_from(&reply).map_err(unreadable)
    }
}

/// Builds a command on database `db`, for the proxy's replicas.
fn command(db: &str, mut body: RawDocumentBuf) -> Command {
    body.append(bson::cstr!("$db"), db);
    Command::from_body(body)
}

fn is_code(error: &mongodb::error::Error, code: i32) -> bool {
    matches!(&*error.kind, ErrorKind::Command(error) if error.code == code)
}

fn refused(error: forebay_documents::CommandError) -> ReplicaError {
    ReplicaError::Replica(error.to_string())
}

fn unreadable(error: impl std::fmt::Display) -> ReplicaError {
    ReplicaError::Replica(error.to_string())
}
