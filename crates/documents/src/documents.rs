//! The documents server: collections on the embedded store, searched through the cache of field values.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use bson::spec::BinarySubtype;
use bson::{Binary, RawBsonRef, RawDocumentBuf, Timestamp, cstr, rawdoc};
use forebay_cancel::{Stop, StopReason};
use forebay_device::Devices;
use forebay_documents_cache::{Cache, CacheSettings};
use forebay_documents_query::Code;
use forebay_documents_query::filter::Programs;
use forebay_documents_store::{Store, StoreError, StoreOptions, Users};
use tokio::sync::watch;

use crate::collections::Collections;
use crate::command::{ClientContext, Command, User};
use crate::cursors::Cursors;
use crate::dispatch;
use crate::error::CommandError;
use crate::metrics::Metrics;
use crate::namespace::{self, Namespace};
use crate::operations::Operations;
use crate::places::{self, Places, blocking};
use crate::retry;
use crate::scope::CommandScope;
use crate::settings::Settings;

/// Maximum threads that wait for the disk at the same time.
const SYNCS_MAX: usize = 64;

/// The reason why the documents server could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The store cannot be opened: another server uses it, it is damaged, or the directory is not writable.
    #[error("{0}")]
    Store(#[from] StoreError),
}

/// Execution counts of commands, by name.
#[derive(Debug)]
pub struct Counters {
    commands: HashMap<&'static str, AtomicU64>,
}

impl Counters {
    fn new() -> Counters {
        Counters {
            commands: crate::commands::COMMANDS
                .iter()
                .map(|spec| (spec.name, AtomicU64::new(0)))
                .collect(),
        }
    }

    /// Counts one execution of a command.
    pub fn count(&self, name: &str) {
        if let Some(counter) = self.commands.get(name) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of executions of a command.
    pub fn of(&self, name: &str) -> u64 {
        self.commands
            .get(name)
            .map_or(0, |counter| counter.load(Ordering::Relaxed))
    }

    /// Returns the names and execution counts of the commands that have run.
    pub fn all(&self) -> Vec<(&'static str, u64)> {
        let mut all: Vec<_> = self
            .commands
            .iter()
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .collect();
        all.sort_unstable();
        all
    }
}

/// The documents server: the store, the cache, and the commands on them.
pub struct Documents {
    settings: Settings,
    devices: Arc<Devices>,
    cache: Arc<Cache>,
    store: Arc<Store>,
    collections: Collections,
    cursors: Arc<Cursors>,
    operations: Arc<Operations>,
    counters: Counters,
    metrics: Metrics,
    programs: Arc<Programs>,
    /// Bounds the commands that wait for the disk. One sync of the disk serves all waiting commands.
    syncs: Places,
    /// Number of refused memory requests, as of the last call of [`Documents::kill_abandoned`].
    memory_refused: AtomicU64,
    /// True once the server begins to stop.
    stopping: watch::Sender<bool>,
    started: Instant,
}

impl std::fmt::Debug for Documents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Documents")
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}

impl Documents {
    /// Opens the store, and starts building the caches that its catalogue records. Blocks on the disk.
    ///
    /// # Errors
    /// The store's error.
    pub fn open(settings: Settings, devices: Arc<Devices>) -> Result<Arc<Documents>, OpenError> {
        places::reserve_from(&settings.memory);
        let store = Arc::new(Store::open(store_options(&settings))?);
        let cache = Cache::new(devices.clone(), cache_settings(&settings));
        let collections = Collections::open(store.clone(), cache.clone());
        Ok(Arc::new(Documents {
            devices,
            cache,
            store,
            collections,
            cursors: Arc::new(Cursors::new(settings.cursor_timeout)),
            operations: Arc::default(),
            counters: Counters::new(),
            metrics: Metrics::default(),
            programs: Arc::new(Programs::new(settings.pattern_cache_bytes)),
            syncs: Places::new(SYNCS_MAX),
            memory_refused: AtomicU64::new(0),
            stopping: watch::Sender::new(false),
            started: Instant::now(),
            settings,
        }))
    }

    /// Runs one command. Always returns a reply: `{ok: 1, …}`, or `{ok: 0, errmsg, code, codeName}`.
    ///
    /// Before a long read of the store, a multi-thread runtime moves the thread's other tasks to other threads.
    pub async fn run(self: &Arc<Self>, client: &ClientContext, command: Command) -> RawDocumentBuf {
        self.run_over(client, command, None).await
    }

    /// Runs a `find` over documents that the caller supplies, instead of the collection's documents. The command's
    /// filter, sort, skip, limit, projection and batch size apply.
    pub async fn find_among(
        self: &Arc<Self>,
        client: &ClientContext,
        find: Command,
        fetched: Vec<RawDocumentBuf>,
    ) -> RawDocumentBuf {
        self.run_over(client, find, Some(fetched)).await
    }

    async fn run_over(
        self: &Arc<Self>,
        client: &ClientContext,
        command: Command,
        given: Option<Vec<RawDocumentBuf>>,
    ) -> RawDocumentBuf {
        let command = Arc::new(command);
        let scope = CommandScope::new(self, client, &command);
        let run = dispatch::run(self, client, command.clone(), given);
        let reply = match scope.run(run).await {
            Ok(reply) => reply,
            Err(error) => self.refusal(&error, &command),
        };
        self.with_operation_time(reply)
    }

    /// Returns the reply of a command that failed.
    fn refusal(&self, error: &CommandError, command: &Command) -> RawDocumentBuf {
        let mut reply = match error {
            CommandError::Stopped(StopReason::Cancelled) if self.is_stopping() => {
                let message = "interrupted at shutdown";
                CommandError::refused(Code::InterruptedAtShutdown, message).to_reply()
            }
            error => error.to_reply(),
        };
        retry::append_label(&mut reply, command);
        reply
    }

    /// Returns the position of a document in its collection, in insertion order, as a fraction: 0 for the first
    /// document, 1 for the last. Returns `None` if the document does not exist or the store cannot be read.
    pub fn place_of(&self, namespace: &Namespace, id: RawBsonRef<'_>) -> Option<f64> {
        let collection = self.collections.get(namespace)?;
        let number = collection.store.number_by_id(id).ok()??;
        Some((number + 1) as f64 / collection.store.next_number() as f64)
    }

    /// Returns the number of documents ever inserted into a collection, deleted ones included. A scan reads at most
    /// this many documents.
    pub fn scanned_in_all(&self, namespace: &Namespace) -> Option<u64> {
        Some(self.collections.get(namespace)?.store.next_number())
    }

    /// Adds to a reply the cluster time of the last change, if the store keeps a change history. A client that reads a
    /// change stream up to that time sees the command's effect.
    fn with_operation_time(&self, mut reply: RawDocumentBuf) -> RawDocumentBuf {
        if let Some(history) = self.store.history() {
            let time = Timestamp::from(history.last());
            if self.settings.retryable_writes {
                reply.append(cstr!("$clusterTime"), cluster_time(time));
            }
            reply.append(cstr!("operationTime"), time);
        }
        reply
    }

    /// Returns the names of all collections that clients may read, in order.
    pub fn namespaces(&self) -> Vec<Namespace> {
        let collections = self.collections.all().into_iter();
        collections
            .map(|collection| collection.namespace.clone())
            .filter(|namespace| !namespace::is_reserved(namespace))
            .collect()
    }

    /// Returns the UUID of a collection and a number that grows with each change of its documents; `None` if it does
    /// not exist, or is one of the server's own. The number begins again when the server does.
    pub fn version(&self, namespace: &Namespace) -> Option<(bson::Uuid, u64)> {
        if namespace::is_reserved(namespace) {
            return None;
        }
        let collection = self.collections.get(namespace)?;
        Some((collection.store.uuid(), collection.store.version()))
    }

    /// Returns whether a collection has the version that [`Documents::version`] returned, and no change of its
    /// documents is being committed. Scans between two calls that return true return the documents of the version.
    pub fn has_version(&self, namespace: &Namespace, (uuid, version): (bson::Uuid, u64)) -> bool {
        let collection = self.collections.get(namespace);
        collection.is_some_and(|it| it.store.uuid() == uuid && it.store.has_version(version))
    }

    /// Returns the total bytes of the documents of a collection; 0 if it does not exist.
    pub fn document_bytes(&self, namespace: &Namespace) -> u64 {
        let collection = self.collections.get(namespace);
        collection.map_or(0, |collection| collection.store.document_bytes())
    }

    /// Returns the cached fields of a collection in which each document has a string or null, or which it lacks.
    pub fn string_fields(&self, namespace: &Namespace) -> Vec<String> {
        let collection = self.collections.get(namespace);
        collection.map_or_else(Vec::new, |collection| collection.search.string_fields())
    }

    /// Returns the users that may authenticate.
    pub fn users(&self) -> Users<'_> {
        self.store.users()
    }

    /// Stops a user's operations and closes the user's cursors, after the user was removed or lost privileges.
    pub fn end_user(&self, user: &User) {
        self.operations.kill_user(user);
        self.cursors.kill_user(user);
    }

    /// Returns the devices that hold the cache.
    pub fn devices(&self) -> &Arc<Devices> {
        &self.devices
    }

    /// Returns the cache of field values.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Returns the settings given to [`Documents::open`].
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Stops the operations of disconnected clients, as `killOp` does. Stops reads at once. Stops writes if the
    /// disconnection was noticed at least [`DEPARTED_WRITE_TIME`](crate::DEPARTED_WRITE_TIME) before `now`. If memory
    /// was refused since the last call, also closes the cursors of disconnected clients. The caller calls this function
    /// periodically, with the current time.
    pub fn kill_abandoned(&self, now: Instant) {
        self.operations.kill_abandoned(now);
        let refused = self.settings.memory.figures().refused;
        if self.memory_refused.swap(refused, Ordering::Relaxed) != refused {
            self.cursors.close_orphans();
        }
    }

    /// Ends the waits of change streams: each waiting `getMore` replies with the events found so far. The caller calls
    /// this function when the server begins to stop.
    pub fn stop_waiting(&self) {
        self.stopping.send_replace(true);
    }

    /// Stops operations in progress and background builds, and syncs all data to disk. Blocks on the disk.
    ///
    /// # Errors
    /// The store's error.
    pub fn shutdown(&self) -> Result<(), StoreError> {
        self.operations.kill_all();
        for collection in self.collections.all() {
            collection.search.close();
        }
        self.store.sync()
    }

    /// Frees memory that the store would otherwise hold until a later write. Blocks on the disk.
    ///
    /// # Errors
    /// The store's error.
    pub fn free_memory(&self) -> Result<(), StoreError> {
        self.store.free_memory()
    }

    /// Returns whether the server has begun to stop.
    pub fn is_stopping(&self) -> bool {
        *self.stopping.borrow()
    }

    /// Waits until the server begins to stop.
    pub async fn stopping(&self) {
        // The wait cannot fail, because `self` owns the sender.
        let _ = self
            .stopping
            .subscribe()
            .wait_for(|stopping| *stopping)
            .await;
    }

    pub(crate) fn shared_store(&self) -> Arc<Store> {
        self.store.clone()
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    pub(crate) fn collections(&self) -> &Collections {
        &self.collections
    }

    pub(crate) fn cursors(&self) -> &Arc<Cursors> {
        &self.cursors
    }

    pub(crate) fn operations(&self) -> &Arc<Operations> {
        &self.operations
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Returns the cache of compiled patterns of earlier commands.
    pub(crate) fn programs(&self) -> &Arc<Programs> {
        &self.programs
    }

    pub(crate) fn started(&self) -> Instant {
        self.started
    }

    /// Waits until all writes so far are on the disk.
    pub(crate) async fn sync(&self) -> Result<(), CommandError> {
        // The wait is not cancelled with the command, because the write has been applied and the reply must say whether
        // it is on the disk.
        let _apply = self.syncs.enter(&Stop::never()).await?;
        blocking(|| self.store.sync()).map_err(CommandError::from)
    }
}

/// Returns the cluster time that drivers gossip. Its signature is all zeros, because this server checks no signatures.
fn cluster_time(time: Timestamp) -> RawDocumentBuf {
    let hash = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let signature = rawdoc! { "hash": hash, "keyId": 0_i64 };
    rawdoc! { "clusterTime": time, "signature": signature }
}

fn store_options(settings: &Settings) -> StoreOptions {
    StoreOptions {
        sync_interval: settings.sync_interval,
        cache_bytes: settings.store_cache_bytes,
        write_buffers_bytes_max: settings.write_buffers_bytes,
        history_bytes_max: settings.change_history_bytes_max,
        pause: |time| blocking(|| std::thread::sleep(time)),
        retryable_writes: settings.retryable_writes,
        ..StoreOptions::new(settings.location.clone())
    }
}

fn cache_settings(settings: &Settings) -> CacheSettings {
    CacheSettings {
        bucket_values_max: settings.bucket_values_max,
        device_share_percent: settings.device_share_percent,
        memory: settings.memory.clone(),
        ..CacheSettings::default()
    }
}
