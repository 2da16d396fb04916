//! The open collections. Each consists of a stored collection, a write lock and cached fields.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_cancel::Stop;
use forebay_documents_cache::Cache;
use forebay_documents_query::Code;
use forebay_documents_store::{Collection, CollectionOptions, IndexKind, IndexSpec, Store};
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::commands::output;
use crate::error::CommandError;
use crate::namespace::{self, Namespace};
use crate::places::{Places, blocking};
use crate::search::{CacheIndex, CollectionSearch, SearchSettings, WriteLock};
use crate::slow_turns::SlowTurns;

/// Maximum concurrent insertions into a collection. One can write to the store while another updates the cache. Two
/// more can be ready to follow.
const INSERTIONS_MAX: usize = 4;

/// Maximum concurrent updates and deletions of a collection. This is less than the number of write permits, so that
/// some remain for writes to other collections.
const CHANGES_MAX: usize = 8;

/// Interval at which a writer that waits for the write lock checks its cancellation token.
const LOCK_CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// An open collection.
pub struct OpenCollection {
    /// The name.
    pub namespace: Namespace,
    /// The documents and ordinary indexes.
    pub store: Arc<Collection>,
    /// The write lock. Each writer holds it from before its write to the store until it has the apply lock, so an
    /// earlier writer may still change the cache while this lock is held. [`lock_writes`](OpenCollection::lock_writes)
    /// waits until that writer is done.
    pub lock: WriteLock,
    /// Held while indexes are created, so that a second creation of the same index waits for the first.
    pub index_creation: Arc<Mutex<()>>,
    /// Bounds concurrent insertions. Further insertions wait asynchronously, so that they do not block threads on the
    /// write lock.
    pub insertions: Places,
    /// Bounds concurrent updates and deletions. Further updates and deletions wait before they take a write permit.
    pub changes: Places,
    /// Lets slow changes take turns at the write lock.
    pub slow_turns: Arc<SlowTurns>,
    /// The cached fields.
    pub search: Arc<CollectionSearch>,
}

impl OpenCollection {
    /// Takes the write lock and waits until the cache has applied all changes of the store. Cache and store agree while
    /// the lock is held.
    ///
    /// # Errors
    /// See [`lock_store`](OpenCollection::lock_store).
    pub fn lock_writes(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        let held = self.lock_store(stop)?;
        self.search.wait_for_earlier_writers();
        Ok(held)
    }

    /// Takes the write lock. The cache may still be applying the previous writer's change. If the lock is not free, the
    /// runtime moves the thread's other tasks to other threads before the thread waits.
    ///
    /// # Errors
    /// [`CommandError::Stopped`] if the command is stopped before it has the lock.
    pub fn lock_store(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        match self.lock.try_lock() {
            Some(free) => Ok(free),
            None => blocking(|| self.wait_for_lock(stop)),
        }
    }

    fn wait_for_lock(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        loop {
            stop.check()?;
            if let Some(held) = self.lock.try_lock_for(LOCK_CHECK_INTERVAL) {
                return Ok(held);
            }
        }
    }

    /// Returns whether an operation failed because the collection was dropped while it ran.
    pub fn was_dropped(&self, failure: &CommandError) -> bool {
        failure.code() == Code::QueryPlanKilled && self.store.is_dropped()
    }
}

/// All collections.
pub struct Collections {
    store: Arc<Store>,
    cache: Arc<Cache>,
    open: RwLock<HashMap<Namespace, Arc<OpenCollection>>>,
    /// Held while the catalogue changes, so that only one of two concurrent creations of a collection succeeds.
    catalogue: Mutex<()>,
}

impl Collections {
    /// Opens the collections of the store and starts building the declared caches in the background.
    pub fn open(store: Arc<Store>, cache: Arc<Cache>) -> Collections {
        let collections = Collections {
            store,
            cache,
            open: RwLock::default(),
            catalogue: Mutex::default(),
        };
        for found in collections.store.all_collections() {
            let name = found.namespace();
            if output::is_temporary(&name.collection) {
                // The collection is a temporary one, left behind by an `$out` that a crash interrupted.
                if let Err(error) = collections
                    .store
                    .drop_collection(&name.db, &name.collection)
                {
                    tracing::warn!(%error, "cannot drop the temporary collection of a $out");
                }
                continue;
            }
            collections.admit(name, found);
        }
        collections
    }

    fn admit(&self, namespace: Namespace, store: Arc<Collection>) -> Arc<OpenCollection> {
        let lock = WriteLock::default();
        let name = namespace.to_string();
        let search = CollectionSearch::new(
            self.cache.clone(),
            SearchSettings::default(),
            &name,
            store.clone(),
            lock.clone(),
        );
        declare_recorded(&search, &store);
        let collection = Arc::new(OpenCollection {
            namespace: namespace.clone(),
            store,
            lock,
            index_creation: Arc::default(),
            insertions: Places::fair(INSERTIONS_MAX),
            changes: Places::fair(CHANGES_MAX),
            slow_turns: Arc::default(),
            search,
        });
        self.open.write().insert(namespace, collection.clone());
        collection
    }

    /// Returns a collection, or `None` if it does not exist.
    pub fn get(&self, namespace: &Namespace) -> Option<Arc<OpenCollection>> {
        self.open.read().get(namespace).cloned()
    }

    /// Returns a collection that must exist.
    ///
    /// # Errors
    /// `NamespaceNotFound`.
    pub fn existing(&self, namespace: &Namespace) -> Result<Arc<OpenCollection>, CommandError> {
        self.get(namespace).ok_or_else(|| not_found(namespace))
    }

    /// Returns a collection, which is created if it does not exist.
    ///
    /// # Errors
    /// `InvalidNamespace` for a reserved name, or the store's error.
    pub fn get_or_create(
        &self,
        namespace: &Namespace,
    ) -> Result<Arc<OpenCollection>, CommandError> {
        match self.get(namespace) {
            Some(collection) => Ok(collection),
            None => self.settled(namespace),
        }
    }

    /// Returns a collection like [`get_or_create`](Collections::get_or_create), after waiting for any catalogue change
    /// in progress. Never returns a collection that was dropped before the call.
    ///
    /// # Errors
    /// See [`get_or_create`](Collections::get_or_create).
    pub fn settled(&self, namespace: &Namespace) -> Result<Arc<OpenCollection>, CommandError> {
        blocking(|| {
            let _held = self.catalogue.lock();
            match self.get(namespace) {
                Some(collection) => Ok(collection),
                None => self.make(namespace, CollectionOptions::default()),
            }
        })
    }

    /// Creates a collection.
    ///
    /// # Errors
    /// `NamespaceExists`, `InvalidNamespace` for a reserved name, or the store's error.
    pub fn create(
        &self,
        namespace: &Namespace,
        options: CollectionOptions,
    ) -> Result<Arc<OpenCollection>, CommandError> {
        let _held = self.catalogue.lock();
        if self.get(namespace).is_some() {
            let message = format!("Collection {namespace} already exists.");
            return Err(CommandError::refused(Code::NamespaceExists, message));
        }
        self.make(namespace, options)
    }

    fn make(
        &self,
        namespace: &Namespace,
        options: CollectionOptions,
    ) -> Result<Arc<OpenCollection>, CommandError> {
        namespace::check_writable(namespace)?;
        let made = self
            .store
            .create_collection(&namespace.db, &namespace.collection, options)?;
        Ok(self.admit(namespace.clone(), made))
    }

    /// Drops a collection. Returns the dropped collection, or `None` if it did not exist.
    ///
    /// # Errors
    /// The store's error.
    pub fn drop_collection(
        &self,
        namespace: &Namespace,
    ) -> Result<Option<Arc<OpenCollection>>, CommandError> {
        let _held = self.catalogue.lock();
        let Some(collection) = self.get(namespace) else {
            return Ok(None);
        };
        {
            let _writer = collection.lock.lock();
            self.store
                .drop_collection(&namespace.db, &namespace.collection)?;
        }
        self.forget(&collection);
        Ok(Some(collection))
    }

    /// Drops all collections of a database atomically. Returns the dropped collections.
    ///
    /// # Errors
    /// The store's error.
    pub fn drop_database(&self, db: &str) -> Result<Vec<Arc<OpenCollection>>, CommandError> {
        let _held = self.catalogue.lock();
        let dropped = self.of_db(db);
        {
            let locks = dropped.iter().map(|collection| collection.lock.lock());
            let _writers: Vec<_> = locks.collect();
            self.store.drop_database(db)?;
        }
        dropped
            .iter()
            .for_each(|collection| self.forget(collection));
        Ok(dropped)
    }

    /// Removes a collection from the open collections, after the store has dropped it. The caller holds the catalogue
    /// lock but not the collection's write lock.
    fn forget(&self, collection: &OpenCollection) {
        self.open.write().remove(&collection.namespace);
        collection.search.close();
    }

    /// Renames a collection. With `drop_target`, an existing collection of the new name is dropped in the same step.
    ///
    /// # Errors
    /// `NamespaceNotFound`, `NamespaceExists`, or the store's error.
    pub fn rename(
        &self,
        from: &Namespace,
        to: &Namespace,
        drop_target: bool,
    ) -> Result<(), CommandError> {
        namespace::check_writable(to)?;
        let _held = self.catalogue.lock();
        let collection = self.get(from).ok_or_else(|| {
            CommandError::refused(
                Code::NamespaceNotFound,
                format!("Source collection {from} does not exist"),
            )
        })?;
        let target = self.get(to);
        if target.is_some() && !drop_target {
            return Err(CommandError::refused(
                Code::NamespaceExists,
                "target namespace exists",
            ));
        }
        self.move_to(&collection, to, target.as_deref())
    }

    fn move_to(
        &self,
        collection: &OpenCollection,
        to: &Namespace,
        target: Option<&OpenCollection>,
    ) -> Result<(), CommandError> {
        let _held = collection.lock.lock();
        // Writers of the target wait for this lock. When they get the lock, they find the collection that replaces the
        // target.
        let replaced = target.map(|target| target.lock.lock());
        let from = &collection.namespace;
        self.store.rename_collection(from, to, target.is_some())?;
        let moved = OpenCollection {
            namespace: to.clone(),
            store: collection.store.clone(),
            lock: collection.lock.clone(),
            insertions: Places::fair(INSERTIONS_MAX),
            changes: Places::fair(CHANGES_MAX),
            slow_turns: collection.slow_turns.clone(),
            index_creation: collection.index_creation.clone(),
            search: collection.search.clone(),
        };
        // Both names change under one lock, so that a command always finds the collection under one of them.
        {
            let mut open = self.open.write();
            open.remove(from);
            open.insert(to.clone(), Arc::new(moved));
        }
        drop(replaced);
        if let Some(target) = target {
            target.search.close();
        }
        collection.search.rename(&to.to_string());
        Ok(())
    }

    /// Returns the collections of a database, sorted by name.
    pub fn of_db(&self, db: &str) -> Vec<Arc<OpenCollection>> {
        self.sorted(|namespace| namespace.db == db)
    }

    /// Returns all collections, sorted by name.
    pub fn all(&self) -> Vec<Arc<OpenCollection>> {
        self.sorted(|_| true)
    }

    fn sorted(&self, wanted: impl Fn(&Namespace) -> bool) -> Vec<Arc<OpenCollection>> {
        let open = self.open.read();
        let mut found: Vec<_> = open
            .values()
            .filter(|collection| wanted(&collection.namespace))
            .cloned()
            .collect();
        found.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        found
    }
}

/// Returns the error for a collection that does not exist.
pub fn not_found(namespace: &Namespace) -> CommandError {
    CommandError::refused(
        Code::NamespaceNotFound,
        format!("ns does not exist: {namespace}"),
    )
}

/// Declares the caches that the store's catalogue records.
fn declare_recorded(search: &Arc<CollectionSearch>, store: &Collection) {
    let recorded: Vec<CacheIndex> = store
        .indexes()
        .iter()
        .filter(|index| index.spec.is_cache())
        .map(|index| cache_index(&index.spec))
        .collect();
    if recorded.is_empty() {
        return;
    }
    match search.declare(recorded) {
        // The build runs in the background. Until it completes, searches scan the store, as `explain` reports.
        Ok(build) => drop(build),
        Err(error) => {
            tracing::error!(namespace = search.namespace(), %error, "cannot build the caches that the catalogue declares")
        }
    }
}

/// Returns the cache index that a catalogue entry describes.
pub fn cache_index(spec: &IndexSpec) -> CacheIndex {
    let cached = spec
        .fields
        .iter()
        .filter(|field| field.kind == IndexKind::Cache);
    CacheIndex {
        name: spec.name.clone(),
        fields: cached.map(|field| field.path.clone()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;
    use std::sync::atomic::Ordering;
    use std::sync::mpsc;
    use std::thread;
    use std::time::Instant;

    use forebay_cancel::StopReason;
    use forebay_device::{DeviceOptions, DeviceSpec, Devices};
    use forebay_documents_cache::CacheSettings;
    use forebay_documents_store::engine::fault::{Fault, FaultEngine};
    use forebay_documents_store::engine::memory::MemoryEngine;

    use super::*;

    fn collections() -> (Arc<FaultEngine>, Collections) {
        let engine = Arc::new(FaultEngine::new(Arc::new(MemoryEngine::default())));
        let store = Store::with_engine(engine.clone(), Duration::from_secs(60));
        let spec = DeviceSpec::host(NonZeroUsize::MIN);
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a host device");
        let cache = Cache::new(Arc::new(devices), CacheSettings::default());
        let store = Arc::new(store.expect("a store in memory"));
        (engine, Collections::open(store, cache))
    }

    fn name(collection: &str) -> Namespace {
        Namespace {
            db: "d".to_owned(),
            collection: collection.to_owned(),
        }
    }

    /// Creates two collections and runs `act`. The first `commits` commits of `act` succeed, and its next commit fails.
    /// If `act` fails, checks that both collections are unchanged.
    fn all_or_nothing(commits: u32, act: impl Fn(&Collections) -> Result<(), CommandError>) {
        let (engine, collections) = collections();
        let made = ["a", "b"].map(|made| collections.get_or_create(&name(made)).expect("made"));
        engine.fail_commit(commits, Fault::DiskFull);
        if act(&collections).is_ok() {
            return;
        }
        for collection in made {
            let found = collections.get(&collection.namespace).expect("still there");
            assert!(!found.store.is_dropped());
            let index = CacheIndex {
                name: "t".to_owned(),
                fields: vec!["t".to_owned()],
            };
            drop(found.search.declare(vec![index]).expect("still cached"));
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn a_waiting_writer_delays_no_other_task() {
        let (_, collections) = collections();
        let collection = collections.get_or_create(&name("a")).expect("made");
        let (is_held, held) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let lock = collection.lock.clone();
        let holder = thread::spawn(move || {
            let _held = lock.lock();
            is_held.send(()).expect("the test waits");
            released.recv().expect_err("nothing is sent");
        });
        held.recv().expect("the other thread holds the lock");
        let writer = tokio::spawn(async move { collection.lock_writes(&Stop::never()).map(drop) });
        let other = tokio::spawn(async {});
        let in_time = tokio::time::timeout(Duration::from_secs(10), other).await;
        drop(release);
        in_time
            .expect("the other task runs while the writer waits")
            .expect("no panic");
        let written = writer.await.expect("no panic");
        written.expect("the writer got the lock");
        holder.join().expect("no panic");
    }

    #[test]
    fn the_wait_for_the_write_lock_ends_with_its_command() {
        let (_, collections) = collections();
        let collection = collections.get_or_create(&name("a")).expect("made");
        let _held = collection.lock.lock();
        let killed = Stop::never();
        let late = Stop::at(Instant::now() + Duration::from_millis(10));
        let reason = |stop: &Stop| match collection.lock_writes(stop).map(drop) {
            Err(CommandError::Stopped(reason)) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(reason(&late), StopReason::Deadline);
        thread::scope(|scope| {
            let waits = scope.spawn(|| reason(&killed));
            killed.cancelled.store(true, Ordering::Relaxed);
            assert_eq!(waits.join().expect("no panic"), StopReason::Cancelled);
        });
    }

    #[test]
    fn a_change_of_the_catalogue_that_fails_changes_nothing() {
        for commits in 0..2 {
            all_or_nothing(commits, |all| all.rename(&name("a"), &name("b"), true));
            all_or_nothing(commits, |all| all.drop_database("d").map(drop));
            all_or_nothing(commits, |all| all.drop_collection(&name("a")).map(drop));
        }
    }
}
