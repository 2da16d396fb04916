//! The cache indexes of a collection: declared, ready for searches, or being built.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bson::RawDocument;
use forebay_documents_cache::{Batch, Cache};
use forebay_documents_store::Collection;
use parking_lot::{Condvar, Mutex, MutexGuard, RwLock};

use super::build::{self, Build, BuildError};
use super::extract::Extractor;
use super::fields::{FIELDS_MAX, FieldSet};
use super::generation::Generation;
use super::settings::SearchSettings;
use crate::places::blocking;

/// A collection's write lock. Each writer holds it from before its write to the store until it has the apply lock.
pub type WriteLock = Arc<Mutex<()>>;

/// Holds the write lock and the apply lock of a collection, so that no other writer runs.
#[must_use = "other writers run as soon as the guard is dropped"]
pub(super) struct ExclusiveGuard<'a> {
    apply_lock: MutexGuard<'a, ()>,
    held: MutexGuard<'a, ()>,
}

impl ExclusiveGuard<'_> {
    /// Releases both locks. The writer that has waited longest runs next.
    pub(super) fn unlock_fairly(self) {
        drop(self.apply_lock);
        MutexGuard::unlock_fair(self.held);
    }
}

/// The values that the cache will hold for documents that are about to be inserted.
pub struct Prepared {
    generation: Arc<Generation>,
    values: Batch,
}

/// An index of type `cache`, for example `createIndex({title: "cache", tags: "cache"})`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheIndex {
    /// The index's name, for example `title_cache_tags_cache`.
    pub name: String,
    /// The dotted paths of the cached fields.
    pub fields: Vec<String>,
}

/// The cache indexes of a collection.
///
/// One generation of the cache holds all declared fields, so that a search over several fields sees one version of the
/// data. If the declared fields change, a new generation is built. Until the new generation is complete, the old one
/// answers searches.
pub struct CollectionSearch {
    pub(super) settings: SearchSettings,
    pub(super) store: Arc<Collection>,
    lock: WriteLock,
    /// The apply lock. A writer takes it while holding the write lock, and then changes the cache. Changes therefore
    /// reach the cache in the order in which they reached the store. An insertion releases the write lock once it has
    /// the apply lock, so that the next writer can already write to the store.
    apply_lock: Mutex<()>,
    cache: Arc<Cache>,
    state: RwLock<State>,
    /// Whether any generation, complete or not, must apply writes.
    follows: AtomicBool,
    /// Number of changes of the state. `changed` wakes the threads that wait for a change.
    changes: Mutex<u64>,
    changed: Condvar,
}

/// The declared indexes of a collection and the state of their caches. Generations are added only under the apply lock.
pub(super) struct State {
    /// The name, `database.collection`.
    pub namespace: String,
    /// The declared indexes, oldest first.
    pub declared: Vec<CacheIndex>,
    /// The complete generation, which answers searches.
    pub ready: Option<Arc<Generation>>,
    /// The generation that is being built.
    pub building: Option<Arc<Generation>>,
    /// The reason why the last build failed.
    pub failure: Option<BuildError>,
    closed: bool,
    builders: Vec<JoinHandle<()>>,
}

impl State {
    fn new(namespace: &str) -> State {
        State {
            namespace: namespace.to_owned(),
            declared: Vec::new(),
            ready: None,
            building: None,
            failure: None,
            closed: false,
            builders: Vec::new(),
        }
    }

    /// Returns all declared fields without duplicates.
    fn fields(&self) -> Vec<&str> {
        let mut fields: Vec<&str> = Vec::new();
        for path in self.declared.iter().flat_map(|index| &index.fields) {
            if !fields.contains(&path.as_str()) {
                fields.push(path);
            }
        }
        fields
    }

    /// Returns whether the newest generation has, or will have, exactly the declared fields.
    fn is_settled(&self) -> bool {
        let newest = self.building.as_ref().or(self.ready.as_ref());
        newest.is_some_and(|generation| generation.has_exactly(&self.fields()))
    }

    /// Returns whether the complete generation has all declared fields and additional ones, and no generation is being
    /// built.
    fn is_shrunk(&self) -> bool {
        let more = |ready: &Arc<Generation>| {
            self.declared.iter().all(|index| ready.has(index)) && !ready.has_exactly(&self.fields())
        };
        self.building.is_none() && self.ready.as_ref().is_some_and(more)
    }

    fn add(&mut self, index: CacheIndex) {
        self.declared.retain(|declared| declared.name != index.name);
        self.declared.push(index);
    }

    fn generations(&self) -> impl Iterator<Item = &Arc<Generation>> {
        self.ready.iter().chain(&self.building)
    }

    /// Returns whether the ready generation has all fields of `index`.
    pub fn is_ready(&self, index: &CacheIndex) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|generation| generation.has(index))
    }

    /// Returns the outcome of the build of the indexes called `names`, or `None` while the build runs.
    fn outcome(&self, names: &[String]) -> Option<Result<(), BuildError>> {
        let mut all_ready = true;
        for name in names {
            match self.declared.iter().find(|index| index.name == *name) {
                None => return Some(Err(BuildError::Dropped)),
                Some(index) => all_ready &= self.is_ready(index),
            }
        }
        match (all_ready, &self.failure) {
            (true, _) => Some(Ok(())),
            (false, Some(failure)) => Some(Err(failure.clone())),
            (false, None) => None,
        }
    }
}

impl CollectionSearch {
    /// Returns a state without cache indexes for the collection `store`, which has the name `namespace`.
    pub fn new(
        cache: Arc<Cache>,
        settings: SearchSettings,
        namespace: &str,
        store: Arc<Collection>,
        lock: WriteLock,
    ) -> Arc<CollectionSearch> {
        Arc::new(CollectionSearch {
            settings,
            store,
            lock,
            apply_lock: Mutex::default(),
            cache,
            state: RwLock::new(State::new(namespace)),
            follows: AtomicBool::new(false),
            changes: Mutex::new(0),
            changed: Condvar::new(),
        })
    }

    /// Declares `indexes` and starts to build them. An index replaces a declared one of the same name. The caller must
    /// not hold the write lock.
    ///
    /// # Errors
    /// An error if the collection would have more than [`FIELDS_MAX`] cached fields. In this case, nothing is changed.
    pub fn declare(self: &Arc<Self>, indexes: Vec<CacheIndex>) -> Result<Build, BuildError> {
        let names = indexes.iter().map(|index| index.name.clone()).collect();
        let exclusive = self.lock_exclusively();
        self.add(indexes)?;
        self.settle();
        drop(exclusive);
        Ok(Build::new(Arc::clone(self), names))
    }

    fn add(&self, indexes: Vec<CacheIndex>) -> Result<(), BuildError> {
        let mut state = self.state.write();
        if state.closed {
            return Err(BuildError::Dropped);
        }
        let before = state.declared.clone();
        indexes.into_iter().for_each(|index| state.add(index));
        let fields = state.fields().len();
        if fields > FIELDS_MAX {
            state.declared = before;
            return Err(BuildError::TooManyFields {
                fields,
                limit: FIELDS_MAX,
            });
        }
        Ok(())
    }

    /// Removes the index called `name`. Returns false if it does not exist. The caller must not hold the write lock.
    pub fn drop_index(self: &Arc<Self>, name: &str) -> bool {
        let exclusive = self.lock_exclusively();
        let mut state = self.state.write();
        let before = state.declared.len();
        state.declared.retain(|index| index.name != name);
        let dropped = state.declared.len() < before;
        drop(state);
        if dropped {
            self.settle();
        }
        drop(exclusive);
        dropped
    }

    /// Takes the write lock and the apply lock, so that no other writer changes the store or the cache. The caller must
    /// not hold the write lock.
    pub(super) fn lock_exclusively(&self) -> ExclusiveGuard<'_> {
        let held = self.lock.lock();
        let apply_lock = self.apply_lock.lock();
        ExclusiveGuard { apply_lock, held }
    }

    /// Removes all indexes and caches, because the collection is dropped or the server stops. The caller must not hold
    /// the write lock.
    ///
    /// Returns once no build reads the collection any more.
    pub fn close(&self) {
        let builders = {
            let _exclusive = self.lock_exclusively();
            let mut state = self.state.write();
            state.closed = true;
            state.declared.clear();
            self.forget(&mut state);
            std::mem::take(&mut state.builders)
        };
        self.notify();
        for builder in builders {
            // A panic of the build thread has already been logged.
            let _ = builder.join();
        }
    }

    /// Renames the collection.
    pub fn rename(&self, namespace: &str) {
        let mut state = self.state.write();
        self.cache.rename(&state.namespace, namespace);
        state.namespace = namespace.to_owned();
    }

    /// Returns the name, `database.collection`.
    pub fn namespace(&self) -> String {
        self.state.read().namespace.clone()
    }

    /// Returns the cache that holds the collection's values.
    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Returns whether the cache needs the old version of a replaced or deleted document.
    pub fn needs_old(&self) -> bool {
        self.follows.load(Ordering::Acquire)
    }

    /// Extracts the values that the cache will hold for `documents`. The caller need not hold the write lock.
    pub fn prepare(&self, documents: &[&RawDocument]) -> Option<Prepared> {
        let generation = self.state.read().ready.clone()?;
        let values = generation.gather(documents.iter().copied());
        Some(Prepared { generation, values })
    }

    /// Applies the insertion of documents. `prepared` has the values that [`prepare`](CollectionSearch::prepare) has
    /// extracted, if any. The caller took the write lock before it inserted the documents into the store. This call
    /// releases the write lock as soon as it has the apply lock.
    pub fn on_insert_many(
        self: &Arc<Self>,
        held: MutexGuard<'_, ()>,
        documents: &[(u64, &RawDocument)],
        prepared: Option<&Prepared>,
    ) {
        if !self.needs_old() {
            return;
        }
        let _apply = self.lock_apply();
        drop(held);
        self.follow(|generation| match prepared {
            Some(prepared) if Arc::ptr_eq(&prepared.generation, generation) => {
                let numbers = documents.iter().map(|(number, _)| *number);
                generation.add_values(numbers, &prepared.values)
            }
            _ => generation.follow_inserts(documents),
        });
    }

    /// Applies the replacement of the document with this record number. The caller holds the write lock, and took it
    /// before it replaced the document in the store.
    pub fn on_replace(self: &Arc<Self>, number: u64, old: &RawDocument, new: &RawDocument) {
        if self.needs_old() {
            let _apply = self.lock_apply();
            self.follow(|generation| generation.follow_replace(number, old, new));
        }
    }

    /// Applies the deletion of the document with this record number. The caller holds the write lock, and took it
    /// before it deleted the document from the store.
    pub fn on_delete(self: &Arc<Self>, number: u64, old: &RawDocument) {
        if self.needs_old() {
            let _apply = self.lock_apply();
            self.follow(|generation| generation.follow_delete(number, old));
        }
    }

    /// Waits until the cache has applied the changes of all earlier writers. The caller holds the write lock.
    pub fn wait_for_earlier_writers(&self) {
        drop(self.lock_apply());
    }

    /// Takes the apply lock after earlier writers have released it. If the lock is not free, the runtime moves the
    /// thread's other tasks to other threads before the thread waits.
    fn lock_apply(&self) -> MutexGuard<'_, ()> {
        let free = self.apply_lock.try_lock();
        free.unwrap_or_else(|| blocking(|| self.apply_lock.lock()))
    }

    /// Applies `change` to the generations. The caller holds the apply lock.
    fn follow(self: &Arc<Self>, change: impl Fn(&Arc<Generation>) -> Result<(), BuildError>) {
        let outcome: Result<(), BuildError> = self.state.read().generations().try_for_each(change);
        match outcome {
            Ok(()) => {}
            Err(error @ BuildError::Contradiction(_)) => self.rebuild(error),
            Err(error) => self.fail(error),
        }
    }

    /// Drops a cache that contradicts its collection, and builds it again.
    fn rebuild(self: &Arc<Self>, error: BuildError) {
        let mut state = self.state.write();
        tracing::error!(namespace = state.namespace, %error, "the cache contradicts its collection and is rebuilt");
        self.forget(&mut state);
        drop(state);
        self.settle();
    }

    /// Drops a cache that cannot apply the collection's writes. From then on, searches scan the store.
    fn fail(&self, error: BuildError) {
        let mut state = self.state.write();
        tracing::error!(namespace = state.namespace, %error, "the cache is dropped: it cannot apply the writes to its collection");
        self.forget(&mut state);
        state.failure = Some(error);
        drop(state);
        self.notify();
    }

    /// Ensures that the newest generation has, or will have, exactly the declared fields. The caller holds the apply
    /// lock.
    fn settle(self: &Arc<Self>) {
        let begun = self.arrange();
        if let Some(generation) = begun {
            // The state's lock is not held here. If the thread cannot be started, `start` ends the build, and ending a
            // build takes that lock.
            let builder = build::start(Arc::clone(self), generation);
            let mut state = self.state.write();
            state.builders.retain(|builder| !builder.is_finished());
            state.builders.extend(builder);
        }
        self.notify();
    }

    /// Drops, shrinks or creates a generation, as the declared fields require. Returns the generation to build, if any.
    fn arrange(&self) -> Option<Arc<Generation>> {
        let mut state = self.state.write();
        if state.declared.is_empty() {
            self.forget(&mut state);
        } else if state.is_shrunk() {
            self.shrink(&mut state);
        } else if !state.is_settled() {
            return Some(self.begin(&mut state));
        }
        None
    }

    /// Removes from the complete generation the fields that are no longer declared. The caller holds the apply lock.
    fn shrink(&self, state: &mut State) {
        let Some(ready) = state.ready.take() else {
            return;
        };
        let fields = state.fields();
        let held = ready.extractor.fields().paths().iter();
        let dropped: Vec<&str> = held
            .map(|path| &**path)
            .filter(|path| !fields.contains(path))
            .collect();
        if let Some(values) = self.cache.undeclare(&state.namespace, &dropped) {
            let kept = FieldSet::new(values.fields());
            let extractor = Extractor::new(kept);
            let smaller = Generation::new(extractor, values, ready.total);
            smaller.complete();
            state.ready = Some(Arc::new(smaller));
        }
    }

    /// Creates an empty generation with the declared fields. Abandons the build of an unfinished generation, if there
    /// is one.
    fn begin(&self, state: &mut State) -> Arc<Generation> {
        if let Some(unfinished) = state.building.take() {
            unfinished.abandon();
        }
        state.failure = None;
        let fields = state.fields();
        let values = self.cache.prepare(&fields);
        let extractor = Extractor::new(FieldSet::new(&fields));
        let generation = Arc::new(Generation::new(
            extractor,
            values,
            self.store.document_count(),
        ));
        state.building = Some(Arc::clone(&generation));
        self.follows.store(true, Ordering::Release);
        generation
    }

    fn forget(&self, state: &mut State) {
        if let Some(unfinished) = state.building.take() {
            unfinished.abandon();
        }
        if state.ready.take().is_some() {
            self.cache.drop_collection(&state.namespace);
        }
        self.follows.store(false, Ordering::Release);
    }

    /// Records the outcome of the build of `generation`. If the build succeeded, the caller holds the apply lock.
    pub(super) fn end_build(&self, generation: &Arc<Generation>, outcome: Result<(), BuildError>) {
        let mut state = self.state.write();
        if !state
            .building
            .as_ref()
            .is_some_and(|building| Arc::ptr_eq(building, generation))
        {
            return;
        }
        state.building = None;
        match outcome {
            Ok(()) => {
                generation.complete();
                self.cache
                    .install(&state.namespace, Arc::clone(&generation.values));
                state.ready = Some(Arc::clone(generation));
            }
            Err(error) => {
                tracing::error!(namespace = state.namespace, %error, "a cache index cannot be built");
                self.follows.store(state.ready.is_some(), Ordering::Release);
                state.failure = Some(error);
            }
        }
        drop(state);
        self.notify();
    }

    /// Wakes the threads that wait for a build.
    fn notify(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    /// Blocks until the build of the indexes called `names` has ended. Returns `None` if this takes longer than `time`.
    pub(super) fn wait(&self, names: &[String], time: Duration) -> Option<Result<(), BuildError>> {
        let until = Instant::now() + time;
        let mut changes = self.changes.lock();
        loop {
            let outcome = self.state.read().outcome(names);
            if outcome.is_some() || self.changed.wait_until(&mut changes, until).timed_out() {
                return outcome;
            }
        }
    }

    /// Calls `read` with the state, under its read lock.
    pub(super) fn with_state<R>(&self, read: impl FnOnce(&State) -> R) -> R {
        read(&self.state.read())
    }
}
