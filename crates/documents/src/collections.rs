//! The open collections: each with its place in the store, its write lock and its cached fields.

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

/// Insertions at work in a collection: one in the store, one in the cache, the next ones ready.
const INSERTIONS_MAX: usize = 4;

/// How often a writer that waits for the write lock looks whether its command has to end.
const LOCK_LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A collection in use.
pub struct OpenCollection {
    /// Its name.
    pub namespace: Namespace,
    /// Its documents and ordinary indexes.
    pub store: Arc<Collection>,
    /// Held by every writer from before the write to the store until its turn at the cache has come; it does not keep
    /// the cache still. [`hold`](OpenCollection::hold) takes it.
    pub lock: WriteLock,
    /// Held while indexes are created: who wants one that another is creating waits until it is there.
    pub index_creation: Arc<Mutex<()>>,
    /// Insertions at work. Further ones wait here without holding a thread, instead of at the write lock.
    pub insertions: Places,
    /// Its cached fields.
    pub search: Arc<CollectionSearch>,
}

impl OpenCollection {
    /// Holds the write lock when the cache has followed all that is in the store: the two agree while it is held.
    ///
    /// # Errors
    /// As [`hold_store`](OpenCollection::hold_store).
    pub fn hold(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        let held = self.hold_store(stop)?;
        self.search.wait_for_turn();
        Ok(held)
    }

    /// Holds the write lock; the cache may still be following the writer before. While another writer has the lock, the
    /// thread's other tasks go on elsewhere.
    ///
    /// # Errors
    /// That the command has to end before it is its turn.
    pub fn hold_store(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        match self.lock.try_lock() {
            Some(free) => Ok(free),
            None => blocking(|| self.wait_for_lock(stop)),
        }
    }

    fn wait_for_lock(&self, stop: &Stop) -> Result<MutexGuard<'_, ()>, CommandError> {
        loop {
            stop.check()?;
            if let Some(held) = self.lock.try_lock_for(LOCK_LOOK_INTERVAL) {
                return Ok(held);
            }
        }
    }

    /// Whether this failure of an operation came of the collection being dropped while it ran.
    pub fn was_dropped(&self, failure: &CommandError) -> bool {
        failure.code() == Code::QueryPlanKilled && self.store.is_dropped()
    }
}

/// All collections.
pub struct Collections {
    store: Arc<Store>,
    cache: Arc<Cache>,
    open: RwLock<HashMap<Namespace, Arc<OpenCollection>>>,
    /// Held while the catalogue changes, so that two creations of one collection cannot cross.
    catalogue: Mutex<()>,
}

impl Collections {
    /// Opens what the store holds; declared caches begin to build in the background.
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
                // A crash ended its `$out`.
                if let Err(error) = collections
                    .store
                    .drop_collection(&name.db, &name.collection)
                {
                    tracing::warn!(%error, "what a $out began cannot be dropped");
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
            insertions: Places::new(INSERTIONS_MAX),
            search,
        });
        self.open.write().insert(namespace, collection.clone());
        collection
    }

    /// A collection, if it exists.
    pub fn get(&self, namespace: &Namespace) -> Option<Arc<OpenCollection>> {
        self.open.read().get(namespace).cloned()
    }

    /// A collection that has to exist.
    ///
    /// # Errors
    /// `NamespaceNotFound`.
    pub fn existing(&self, namespace: &Namespace) -> Result<Arc<OpenCollection>, CommandError> {
        self.get(namespace).ok_or_else(|| not_found(namespace))
    }

    /// A collection, made if it does not exist.
    ///
    /// # Errors
    /// `InvalidNamespace` for a reserved name, and whatever the store says.
    pub fn get_or_create(
        &self,
        namespace: &Namespace,
    ) -> Result<Arc<OpenCollection>, CommandError> {
        match self.get(namespace) {
            Some(collection) => Ok(collection),
            None => self.settled(namespace),
        }
    }

    /// As [`get_or_create`](Collections::get_or_create), once no change of the catalogue is under way: never one that
    /// was dropped before.
    ///
    /// # Errors
    /// The same.
    pub fn settled(&self, namespace: &Namespace) -> Result<Arc<OpenCollection>, CommandError> {
        blocking(|| {
            let _held = self.catalogue.lock();
            match self.get(namespace) {
                Some(collection) => Ok(collection),
                None => self.make(namespace, CollectionOptions::default()),
            }
        })
    }

    /// Makes a collection that does not exist yet.
    ///
    /// # Errors
    /// `NamespaceExists`, `InvalidNamespace` for a reserved name, and whatever the store says.
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

    /// Removes a collection; the one removed, if there was one.
    ///
    /// # Errors
    /// Whatever the store says.
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

    /// Removes all collections of a database at once; those removed.
    ///
    /// # Errors
    /// Whatever the store says.
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

    /// Ends the use of a collection that the store has dropped. The caller holds the catalogue, and not its write lock.
    fn forget(&self, collection: &OpenCollection) {
        self.open.write().remove(&collection.namespace);
        collection.search.close();
    }

    /// Gives a collection another name; one of that name is removed in the same step if `drop_target`.
    ///
    /// # Errors
    /// `NamespaceNotFound`, `NamespaceExists`, and whatever the store says.
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
        // The target's writers wait, and then find the collection that takes its place.
        let replaced = target.map(|target| target.lock.lock());
        let from = &collection.namespace;
        self.store.rename_collection(from, to, target.is_some())?;
        let moved = OpenCollection {
            namespace: to.clone(),
            store: collection.store.clone(),
            lock: collection.lock.clone(),
            insertions: Places::new(INSERTIONS_MAX),
            index_creation: collection.index_creation.clone(),
            search: collection.search.clone(),
        };
        // In one step: no command finds neither.
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

    /// The collections of a database, by name.
    pub fn of_db(&self, db: &str) -> Vec<Arc<OpenCollection>> {
        self.sorted(|namespace| namespace.db == db)
    }

    /// All collections, by name.
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

/// Makes the error for a collection that does not exist.
pub fn not_found(namespace: &Namespace) -> CommandError {
    CommandError::refused(
        Code::NamespaceNotFound,
        format!("ns does not exist: {namespace}"),
    )
}

/// Declares the caches that the catalogue records.
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
        // The build goes on in the background; until it is done, searches scan and explain says so.
        Ok(build) => drop(build),
        Err(error) => {
            tracing::error!(namespace = search.namespace(), %error, "the recorded caches are not built")
        }
    }
}

/// What a recorded index declares to the cache.
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

    /// Makes two collections, does something to them in which the commit after `commits` more fails, and checks that
    /// both are as before if it fails.
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
    async fn a_writer_that_waits_holds_up_nobody_else() {
        let (_, collections) = collections();
        let collection = collections.get_or_create(&name("a")).expect("made");
        let (is_held, held) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let lock = collection.lock.clone();
        let holder = thread::spawn(move || {
            let _held = lock.lock();
            is_held.send(()).expect("somebody waits");
            released.recv().expect_err("nothing is sent");
        });
        held.recv().expect("it is held");
        let writer = tokio::spawn(async move { collection.hold(&Stop::never()).map(drop) });
        let other = tokio::spawn(async {});
        let in_time = tokio::time::timeout(Duration::from_secs(10), other).await;
        drop(release);
        in_time.expect("it runs beside").expect("it ends");
        let written = writer.await.expect("no panic");
        written.expect("it got the lock");
        holder.join().expect("it ends");
    }

    #[test]
    fn the_wait_for_the_write_lock_ends_with_its_command() {
        let (_, collections) = collections();
        let collection = collections.get_or_create(&name("a")).expect("made");
        let _held = collection.lock.lock();
        let killed = Stop::never();
        let late = Stop::at(Instant::now() + Duration::from_millis(10));
        let reason = |stop: &Stop| match collection.hold(stop).map(drop) {
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
