//! The store: opening it, and finding, creating, renaming and dropping its collections.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bson::RawDocumentBuf;
use parking_lot::{Mutex, RwLock};

use crate::background::Background;
use crate::catalogue::{self, CollectionEntry, IndexEntry, Statistics};
use crate::collection::{Collection, IndexStatus};
use crate::directory::Directory;
use crate::engine::fjall::FjallEngine;
use crate::engine::journal::Dropped;
use crate::engine::memory::MemoryEngine;
use crate::engine::reserve::{ReserveEngine, free_bytes_of};
use crate::engine::{Batch, Direction, Engine, Entries, KeyRange, PartitionId, PartitionKind};
use crate::error::{Result, StoreError};
use crate::history::{self, Changes, History};
use crate::index::IndexSpec;
use crate::options::{Location, StoreOptions};
use crate::retryable::{self, RetryableWrites};
use crate::sync::{self, GroupSync};
use crate::users::Users;

/// The name of a collection with its database.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The database.
    pub db: String,
    /// The collection's name within the database.
    pub collection: String,
}

impl Namespace {
    /// Builds a namespace. Does not validate the names.
    pub fn new(db: impl Into<String>, collection: impl Into<String>) -> Self {
        Self {
            db: db.into(),
            collection: collection.into(),
        }
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.db, self.collection)
    }
}

/// Options for a new collection.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CollectionOptions {
    /// Options that listings return. The store does not interpret them.
    pub options: RawDocumentBuf,
}

/// Total sizes of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreSizes {
    /// Number of collections.
    pub collections: u64,
    /// Number of documents in all collections.
    pub documents: u64,
    /// Size of all documents in bytes.
    pub document_bytes: u64,
    /// Approximate bytes that documents take in the engine.
    pub storage_bytes: u64,
    /// Approximate bytes that index entries take in the engine.
    pub index_bytes: u64,
    /// Remaining record numbers of the collection that has the fewest left; `None` without collections.
    pub inserts_left: Option<u64>,
}

/// State shared by a store and its collections. Fields are dropped in order of declaration, so the directory is
/// unlocked last.
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) catalogue: PartitionId,
    pub(crate) history: Option<Arc<History>>,
    dropped: Dropped,
    /// Partition with the history of an earlier process, if this process records no history. The partition is dropped
    /// before the first change is committed, because the old history would lack that change.
    stale_history: Mutex<Option<PartitionId>>,
    sync: Arc<GroupSync>,
    next_id: AtomicU32,
    _directory: Option<Directory>,
}

impl Shared {
    /// Returns an id that no collection and no index has used.
    pub(crate) fn next_id(&self) -> u32 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Commits a batch. The background thread syncs it within [`StoreOptions::sync_interval`].
    pub(crate) fn commit(&self, batch: Batch) -> Result<()> {
        self.sync.check()?;
        self.engine.commit(batch)?;
        self.sync.mark_dirty();
        Ok(())
    }

    /// Commits a batch like [`commit`](Shared::commit), and records its changes in the history.
    pub(crate) fn record(&self, batch: Batch, changes: Changes) -> Result<()> {
        self.sync.check()?;
        match &self.history {
            Some(history) if !changes.is_empty() => history.record(batch, changes)?,
            Some(_) => self.engine.commit(batch)?,
            None => {
                self.forget_stale_history()?;
                self.engine.commit(batch)?;
            }
        }
        self.sync.mark_dirty();
        Ok(())
    }

    fn forget_stale_history(&self) -> Result<()> {
        let mut stale = self.stale_history.lock();
        stale.map_or(Ok(()), |stale| self.engine.drop_partition(stale))?;
        *stale = None;
        Ok(())
    }
}

/// An open store.
///
/// Dropping it syncs all writes. Its directory stays locked until the last collection handle is dropped.
pub struct Store {
    _background: Background,
    _trimmer: Option<Background>,
    retryable_writes: Option<Arc<RetryableWrites>>,
    shared: Arc<Shared>,
    collections: RwLock<BTreeMap<Namespace, Arc<Collection>>>,
    /// Held while collections are created, dropped or renamed.
    definition: Mutex<()>,
}

impl Store {
    /// Opens or creates a store, and recovers all that was synced before a crash.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::NotWritable`], [`StoreError::UnknownFormat`], [`StoreError::Corrupt`],
    /// [`StoreError::DiskFull`].
    pub fn open(options: StoreOptions) -> Result<Self> {
        match &options.location {
            Location::Memory => Self::load(Arc::new(MemoryEngine::default()), &options, None),
            Location::Directory(path) => Self::open_directory(path, &options),
        }
    }

    fn open_directory(path: &Path, options: &StoreOptions) -> Result<Self> {
        let directory = Directory::open(path)?;
        let tables = directory.tables();
        let engine = Arc::new(FjallEngine::open(&tables, options)?);
        let dropped = engine.dropped();
        let free_bytes = free_bytes_of(tables.clone());
        let engine = ReserveEngine::new(engine, options.disk_reserve_bytes, free_bytes);
        Self::load(Arc::new(engine), options, Some((directory, dropped)))
            .map_err(|error| in_directory(error, &tables))
    }

    /// Opens a store on the caller's engine, with default options otherwise.
    pub fn with_engine(engine: Arc<dyn Engine>, sync_interval: Duration) -> Result<Self> {
        let options = StoreOptions {
            sync_interval,
            ..StoreOptions::memory()
        };
        Self::on_engine(engine, &options)
    }

    /// Opens a store on the caller's engine. Options that configure an engine are ignored.
    pub fn on_engine(engine: Arc<dyn Engine>, options: &StoreOptions) -> Result<Self> {
        Self::load(engine, options, None)
    }

    fn load(
        engine: Arc<dyn Engine>,
        options: &StoreOptions,
        directory: Option<(Directory, Dropped)>,
    ) -> Result<Self> {
        let (directory, dropped) = directory.unzip();
        let catalogue = engine
            .open_partition(catalogue::PARTITION, PartitionKind::Catalogue)?
            .id;
        let entries =
            |range| Entries::new(Arc::clone(&engine), catalogue, range, Direction::Forward);
        catalogue::mark(engine.as_ref(), catalogue)?;
        let found = catalogue::read_collections(entries)?;
        drop_orphans(engine.as_ref(), &found, options)?;
        let (history, stale_history) = open_history(&engine, options.history_bytes_max)?;
        let trimmer = history.clone().map(history::start_trimming).transpose()?;
        let keeps_outcomes = options.retryable_writes;
        let retryable_writes = keeps_outcomes.then(|| open_retryable_writes(&engine));
        let retryable_writes = retryable_writes.transpose()?;
        let sync = GroupSync::new(Arc::clone(&engine));
        let shared = Arc::new(Shared {
            next_id: AtomicU32::new(next_id(&found)),
            _directory: directory,
            sync: Arc::clone(&sync),
            stale_history: Mutex::new(stale_history),
            history,
            dropped: dropped.unwrap_or_default(),
            catalogue,
            engine,
        });
        let mut collections = BTreeMap::new();
        for (entry, statistics) in found {
            let collection = Collection::open(Arc::clone(&shared), entry, statistics)?;
            collections.insert(collection.namespace(), Arc::new(collection));
        }
        Ok(Self {
            _background: sync::start_background(sync, options.sync_interval)?,
            _trimmer: trimmer,
            retryable_writes,
            shared,
            collections: RwLock::new(collections),
            definition: Mutex::new(()),
        })
    }

    /// Returns the collection of this name.
    pub fn collection(&self, db: &str, name: &str) -> Option<Arc<Collection>> {
        self.collections
            .read()
            .get(&Namespace::new(db, name))
            .cloned()
    }

    /// Returns all collections of a database, in order of name.
    pub fn collections(&self, db: &str) -> Vec<Arc<Collection>> {
        let collections = self.collections.read();
        let of_db = collections
            .iter()
            .filter(|(namespace, _)| namespace.db == db);
        of_db
            .map(|(_, collection)| Arc::clone(collection))
            .collect()
    }

    /// Returns all collections, in order of database and name.
    pub fn all_collections(&self) -> Vec<Arc<Collection>> {
        self.collections.read().values().cloned().collect()
    }

    /// Returns the names of the databases that have a collection.
    pub fn databases(&self) -> Vec<String> {
        let mut names: Vec<String> = self
            .collections
            .read()
            .keys()
            .map(|namespace| namespace.db.clone())
            .collect();
        names.dedup();
        names
    }

    /// Creates a collection with its index on `_id`.
    ///
    /// # Errors
    /// [`StoreError::NamespaceExists`].
    pub fn create_collection(
        &self,
        db: &str,
        name: &str,
        options: CollectionOptions,
    ) -> Result<Arc<Collection>> {
        let _definition = self.definition.lock();
        let namespace = Namespace::new(db, name);
        if self.collections.read().contains_key(&namespace) {
            return Err(StoreError::NamespaceExists {
                namespace: namespace.to_string(),
            });
        }
        self.create(namespace, options)
    }

    /// Returns the collection of this name. Creates it if it does not exist.
    pub fn collection_or_create(&self, db: &str, name: &str) -> Result<Arc<Collection>> {
        if let Some(collection) = self.collection(db, name) {
            return Ok(collection);
        }
        let _definition = self.definition.lock();
        match self.collection(db, name) {
            Some(collection) => Ok(collection),
            None => self.create(Namespace::new(db, name), CollectionOptions::default()),
        }
    }

    /// Creates a collection. The caller holds the definition lock and has checked that the name is free.
    fn create(&self, namespace: Namespace, options: CollectionOptions) -> Result<Arc<Collection>> {
        let engine = &self.shared.engine;
        let entry = CollectionEntry {
            id: self.shared.next_id(),
            db: namespace.db.clone(),
            name: namespace.collection.clone(),
            uuid: bson::Uuid::new(),
            created: bson::DateTime::now(),
            options: options.options,
            records: engine.create_partition(PartitionKind::Records)?.name,
            indexes: vec![IndexEntry {
                id: self.shared.next_id(),
                spec: IndexSpec::id(),
                partition: Some(engine.create_partition(PartitionKind::Index)?.name),
                multikey: false,
                complete: true,
            }],
        };
        let statistics = Statistics::default();
        let mut batch = Batch::default();
        batch.put(
            self.shared.catalogue,
            catalogue::collection_key(entry.id),
            entry.encode()?,
        );
        batch.put(
            self.shared.catalogue,
            catalogue::statistics_key(entry.id),
            statistics.encode().as_slice(),
        );
        let collection = Arc::new(Collection::open(
            Arc::clone(&self.shared),
            entry,
            statistics,
        )?);
        self.shared.commit(batch)?;
        self.collections
            .write()
            .insert(namespace, Arc::clone(&collection));
        Ok(collection)
    }

    /// Drops a collection and frees its space. Returns whether it existed.
    pub fn drop_collection(&self, db: &str, name: &str) -> Result<bool> {
        let _definition = self.definition.lock();
        self.drop_listed(&[Namespace::new(db, name)], None)
    }

    /// Drops all collections of a database in one batch. Returns whether the database had any.
    pub fn drop_database(&self, db: &str) -> Result<bool> {
        let _definition = self.definition.lock();
        let names: Vec<Namespace> = self
            .collections(db)
            .iter()
            .map(|collection| collection.namespace())
            .collect();
        self.drop_listed(&names, Some(db))
    }

    /// Drops collections in one batch. If `db` is set, `names` must hold every collection of that database. The caller
    /// holds the definition lock.
    fn drop_listed(&self, names: &[Namespace], db: Option<&str>) -> Result<bool> {
        let dropped: Vec<Arc<Collection>> = {
            let collections = self.collections.read();
            names
                .iter()
                .filter_map(|namespace| collections.get(namespace).cloned())
                .collect()
        };
        Collection::drop_all(&dropped, db)?;
        self.collections
            .write()
            .retain(|namespace, _| !names.contains(namespace));
        for collection in &dropped {
            collection.free();
        }
        Ok(!dropped.is_empty())
    }

    /// Renames a collection, possibly to another database. Its documents, indexes and UUID stay the same.
    ///
    /// # Errors
    /// [`StoreError::NamespaceNotFound`]; [`StoreError::NamespaceExists`] if the new name is taken and `drop_target` is
    /// false.
    pub fn rename_collection(
        &self,
        from: &Namespace,
        to: &Namespace,
        drop_target: bool,
    ) -> Result<()> {
        let _definition = self.definition.lock();
        let collection = self.collection(&from.db, &from.collection).ok_or_else(|| {
            StoreError::NamespaceNotFound {
                namespace: from.to_string(),
            }
        })?;
        let target = self
            .collection(&to.db, &to.collection)
            .filter(|_| from != to);
        if target.is_some() && !drop_target {
            return Err(StoreError::NamespaceExists {
                namespace: to.to_string(),
            });
        }
        collection.rename(to, target.as_deref())?;
        let mut collections = self.collections.write();
        collections.remove(from);
        collections.insert(to.clone(), collection);
        drop(collections);
        if let Some(target) = target {
            target.free();
        }
        Ok(())
    }

    /// Waits until everything written before the call is on disk. One sync serves all waiting callers.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`], [`StoreError::Io`], and [`StoreError::ReadOnly`] after an earlier failure.
    pub fn sync(&self) -> Result<()> {
        self.shared.sync.sync()
    }

    /// Frees memory that otherwise only later writes would free. To be called when writes wait for memory.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`], [`StoreError::Io`], and [`StoreError::ReadOnly`] after an earlier failure.
    pub fn free_memory(&self) -> Result<()> {
        self.engine().free_memory()
    }

    /// Returns how many bytes and batches were discarded when the store was opened: the unsynced end of the journal.
    pub fn dropped(&self) -> Dropped {
        self.shared.dropped
    }

    /// Returns the history of changes, if one is recorded.
    pub fn history(&self) -> Option<&Arc<History>> {
        self.shared.history.as_ref()
    }

    /// Returns the outcomes of retryable writes, if they are kept.
    pub fn retryable_writes(&self) -> Option<&Arc<RetryableWrites>> {
        self.retryable_writes.as_ref()
    }

    /// Checks whether the store accepts writes.
    ///
    /// # Errors
    /// [`StoreError::DiskFull`] while too little of the disk is free, [`StoreError::NotSynced`] and
    /// [`StoreError::ReadOnly`] after an earlier failure.
    pub fn check_writable(&self) -> Result<()> {
        self.shared.sync.check()?;
        self.engine().check_writable()
    }

    /// Returns the user records.
    pub fn users(&self) -> Users<'_> {
        Users::new(self)
    }

    /// Computes the total sizes of the store.
    pub fn sizes(&self) -> StoreSizes {
        let mut sizes = StoreSizes::default();
        for collection in self.all_collections() {
            sizes.collections += 1;
            sizes.documents += collection.document_count();
            sizes.document_bytes += collection.document_bytes();
            sizes.storage_bytes += collection.storage_bytes();
            let index_bytes = |index: &IndexStatus| collection.index_bytes(&index.spec.name);
            sizes.index_bytes += collection.indexes().iter().map(index_bytes).sum::<u64>();
            let left = collection.inserts_left();
            sizes.inserts_left = Some(sizes.inserts_left.map_or(left, |least| least.min(left)));
        }
        sizes
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }

    pub(crate) fn catalogue(&self) -> PartitionId {
        self.shared.catalogue
    }

    pub(crate) fn entries(&self, range: KeyRange) -> Entries {
        Entries::new(
            Arc::clone(&self.shared.engine),
            self.shared.catalogue,
            range,
            Direction::Forward,
        )
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if let Err(error) = self.sync() {
            tracing::error!(%error, "cannot sync the store while closing it");
        }
    }
}

/// Returns the lowest id above all ids in the catalogue. Dropped collections and indexes leave nothing behind, so their
/// ids may be reused after a restart.
fn next_id(found: &[(CollectionEntry, Statistics)]) -> u32 {
    let ids = |(entry, _): &(CollectionEntry, Statistics)| {
        entry
            .indexes
            .iter()
            .map(|index| index.id)
            .chain([entry.id])
            .max()
            .unwrap_or(0)
    };
    found.iter().map(ids).max().map_or(0, |highest| highest + 1)
}

/// Opens the history. If the history is disabled, returns the partition of an earlier process's history instead.
fn open_history(
    engine: &Arc<dyn Engine>,
    bytes_max: u64,
) -> Result<(Option<Arc<History>>, Option<PartitionId>)> {
    if bytes_max == 0 {
        let stale = engine.existing_partition(history::PARTITION)?;
        return Ok((None, stale.map(|stale| stale.id)));
    }
    let partition = engine.open_partition(history::PARTITION, PartitionKind::History)?;
    let history = History::open(Arc::clone(engine), partition.id, bytes_max)?;
    Ok((Some(history), None))
}

fn open_retryable_writes(engine: &Arc<dyn Engine>) -> Result<Arc<RetryableWrites>> {
    let partition = engine.open_partition(retryable::PARTITION, PartitionKind::Index)?;
    RetryableWrites::open(Arc::clone(engine), partition.id)
}

/// Drops the partitions that the catalogue does not list, which are left over from creations and drops that a crash
/// interrupted. Drops the outcomes of retryable writes if they are not to be kept.
fn drop_orphans(
    engine: &dyn Engine,
    found: &[(CollectionEntry, Statistics)],
    options: &StoreOptions,
) -> Result<()> {
    let kept = [catalogue::PARTITION, history::PARTITION];
    let mut listed = HashSet::from(kept.map(str::to_owned));
    if options.retryable_writes {
        listed.insert(retryable::PARTITION.to_owned());
    }
    for (entry, _) in found {
        listed.insert(entry.records.clone());
        let complete = entry.indexes.iter().filter(|index| index.complete);
        listed.extend(complete.filter_map(|index| index.partition.clone()));
    }
    engine.retain_partitions(&listed)
}

/// Adds the directory's path to the error of a damaged catalogue.
fn in_directory(error: StoreError, tables: &Path) -> StoreError {
    match error {
        StoreError::InvalidDocument { why } => StoreError::Corrupt {
            file: tables.to_owned(),
            why,
            remedy: crate::engine::fjall::REMEDY,
        },
        other => other,
    }
}
