//! The cache indexes of one collection: what is declared, what answers, what is being built.

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

/// The lock that every writer of a collection holds from before the store is written until its turn at the cache has
/// come.
pub type WriteLock = Arc<Mutex<()>>;

/// Keeps all other writers of a collection out until it is dropped.
#[must_use = "others write as soon as it is dropped"]
pub(super) struct Alone<'a> {
    turn: MutexGuard<'a, ()>,
    held: MutexGuard<'a, ()>,
}

impl Alone<'_> {
    /// Lets the writer go first who has waited longest.
    pub(super) fn end_fairly(self) {
        drop(self.turn);
        MutexGuard::unlock_fair(self.held);
    }
}

/// What the cache will hold of documents that are about to be inserted.
pub struct Prepared {
    generation: Arc<Generation>,
    values: Batch,
}

/// An index of type `cache`: `createIndex({title: "cache", tags: "cache"})`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheIndex {
    /// The index's name, `title_cache_tags_cache`.
    pub name: String,
    /// The dotted paths it declares.
    pub fields: Vec<String>,
}

/// The cache indexes of one collection.
///
/// All declared fields live in one generation of the cache, so that a search over several of them sees one moment. A
/// change of what is declared builds a new generation beside the old one, which answers until the new one is complete.
pub struct CollectionSearch {
    pub(super) settings: SearchSettings,
    pub(super) store: Arc<Collection>,
    lock: WriteLock,
    /// Held by whoever changes the cache, and taken under the write lock: changes come to the cache in the order in
    /// which they came to the store, while the next writer is in the store already.
    turn: Mutex<()>,
    cache: Arc<Cache>,
    state: RwLock<State>,
    /// Are there generations that follow writes?
    follows: AtomicBool,
    /// How often the state has changed, and who waits for that.
    changes: Mutex<u64>,
    changed: Condvar,
}

/// What a collection has declared, and how far it is. Its generations change in turn with writes.
pub(super) struct State {
    /// `database.collection`.
    pub namespace: String,
    /// The declared indexes, in the order of their creation.
    pub declared: Vec<CacheIndex>,
    /// The generation that answers searches.
    pub ready: Option<Arc<Generation>>,
    /// The generation that is being built.
    pub building: Option<Arc<Generation>>,
    /// Why the last build failed.
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

    /// All declared fields, each once.
    fn fields(&self) -> Vec<&str> {
        let mut fields: Vec<&str> = Vec::new();
        for path in self.declared.iter().flat_map(|index| &index.fields) {
            if !fields.contains(&path.as_str()) {
                fields.push(path);
            }
        }
        fields
    }

    /// Does a generation have, or will it have, just what is declared?
    fn is_settled(&self) -> bool {
        let newest = self.building.as_ref().or(self.ready.as_ref());
        newest.is_some_and(|generation| generation.has_exactly(&self.fields()))
    }

    /// Does the complete generation have all that is declared, and more, while none is being built?
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

    /// Is `index` answered by the ready generation?
    pub fn is_ready(&self, index: &CacheIndex) -> bool {
        self.ready
            .as_ref()
            .is_some_and(|generation| generation.has(index))
    }

    /// How the building of `names` ended, if it has.
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
    /// The cache indexes of `store`, a collection named `namespace`; none are declared yet.
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
            turn: Mutex::default(),
            cache,
            state: RwLock::new(State::new(namespace)),
            follows: AtomicBool::new(false),
            changes: Mutex::new(0),
            changed: Condvar::new(),
        })
    }

    /// Declares `indexes` and starts to build them. The caller does not hold the write lock.
    ///
    /// An index of a name that is declared already replaces it.
    ///
    /// # Errors
    /// When the collection would have more than [`FIELDS_MAX`] cached fields: then nothing changes.
    pub fn declare(self: &Arc<Self>, indexes: Vec<CacheIndex>) -> Result<Build, BuildError> {
        let names = indexes.iter().map(|index| index.name.clone()).collect();
        let alone = self.alone();
        self.add(indexes)?;
        self.settle();
        drop(alone);
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

    /// Forgets the index called `name`; false if there is none. The caller does not hold the write lock.
    pub fn drop_index(self: &Arc<Self>, name: &str) -> bool {
        let alone = self.alone();
        let mut state = self.state.write();
        let before = state.declared.len();
        state.declared.retain(|index| index.name != name);
        let dropped = state.declared.len() < before;
        drop(state);
        if dropped {
            self.settle();
        }
        drop(alone);
        dropped
    }

    /// Keeps all other writers out of the store and of the cache. The caller does not hold the write lock.
    pub(super) fn alone(&self) -> Alone<'_> {
        let held = self.lock.lock();
        let turn = self.turn.lock();
        Alone { turn, held }
    }

    /// Forgets everything, because the collection is dropped or the server stops. The caller does not hold the lock.
    ///
    /// Returns when no build reads the collection any more.
    pub fn close(&self) {
        let builders = {
            let _alone = self.alone();
            let mut state = self.state.write();
            state.closed = true;
            state.declared.clear();
            self.forget(&mut state);
            std::mem::take(&mut state.builders)
        };
        self.tell();
        for builder in builders {
            // A builder that panicked has told so already.
            let _ = builder.join();
        }
    }

    /// The collection has another name from now on.
    pub fn rename(&self, namespace: &str) {
        let mut state = self.state.write();
        self.cache.rename(&state.namespace, namespace);
        state.namespace = namespace.to_owned();
    }

    /// `database.collection`.
    pub fn namespace(&self) -> String {
        self.state.read().namespace.clone()
    }

    /// The cache that holds its values.
    pub(super) fn cache(&self) -> &Cache {
        &self.cache
    }

    /// Does the cache need the old document of a replacement or deletion?
    pub fn needs_old(&self) -> bool {
        self.follows.load(Ordering::Acquire)
    }

    /// Takes out of documents what the cache will hold of them, while another writer may still hold the lock.
    pub fn prepare(&self, documents: &[&RawDocument]) -> Option<Prepared> {
        let generation = self.state.read().ready.clone()?;
        let values = generation.gather(documents.iter().copied());
        Some(Prepared { generation, values })
    }

    /// Follows the insertion of documents, perhaps prepared. The caller has held the write lock since before the store
    /// took them; it is given back as soon as no other writer can come to the cache first.
    pub fn on_insert_many(
        self: &Arc<Self>,
        held: MutexGuard<'_, ()>,
        documents: &[(u64, &RawDocument)],
        prepared: Option<&Prepared>,
    ) {
        if !self.needs_old() {
            return;
        }
        let _turn = self.take_turn();
        drop(held);
        self.follow(|generation| match prepared {
            Some(prepared) if Arc::ptr_eq(&prepared.generation, generation) => {
                let numbers = documents.iter().map(|(number, _)| *number);
                generation.add_values(numbers, &prepared.values)
            }
            _ => generation.follow_inserts(documents),
        });
    }

    /// Follows the replacement of the document `number`. The caller holds the write lock since before the store did it.
    pub fn on_replace(self: &Arc<Self>, number: u64, old: &RawDocument, new: &RawDocument) {
        if self.needs_old() {
            let _turn = self.take_turn();
            self.follow(|generation| generation.follow_replace(number, old, new));
        }
    }

    /// Follows the deletion of the document `number`. The caller holds the write lock since before the store did it.
    pub fn on_delete(self: &Arc<Self>, number: u64, old: &RawDocument) {
        if self.needs_old() {
            let _turn = self.take_turn();
            self.follow(|generation| generation.follow_delete(number, old));
        }
    }

    /// Waits until the cache has followed all writers before the caller, who holds the write lock.
    pub fn wait_for_turn(&self) {
        drop(self.take_turn());
    }

    /// Waits for the writers before this one. Meanwhile, the thread's other tasks go on elsewhere.
    fn take_turn(&self) -> MutexGuard<'_, ()> {
        let free = self.turn.try_lock();
        free.unwrap_or_else(|| blocking(|| self.turn.lock()))
    }

    /// Changes the generations. The caller is in its turn.
    fn follow(self: &Arc<Self>, change: impl Fn(&Arc<Generation>) -> Result<(), BuildError>) {
        let outcome: Result<(), BuildError> = self.state.read().generations().try_for_each(change);
        match outcome {
            Ok(()) => {}
            Err(error @ BuildError::Contradiction(_)) => self.rebuild(error),
            Err(error) => self.fail(error),
        }
    }

    /// A cache that contradicts its collection answers nothing any more and is built anew.
    fn rebuild(self: &Arc<Self>, error: BuildError) {
        let mut state = self.state.write();
        tracing::error!(namespace = state.namespace, %error, "the cache of a collection is built anew");
        self.forget(&mut state);
        drop(state);
        self.settle();
    }

    /// A cache that cannot follow its collection is given up: the store answers alone.
    fn fail(&self, error: BuildError) {
        let mut state = self.state.write();
        tracing::error!(namespace = state.namespace, %error, "the cache of a collection is given up");
        self.forget(&mut state);
        state.failure = Some(error);
        drop(state);
        self.tell();
    }

    /// Starts what is needed so that a generation has just what is declared. The caller is in its turn.
    fn settle(self: &Arc<Self>) {
        let begun = self.arrange();
        if let Some(generation) = begun {
            // Not under the state's lock: a thread that cannot start ends its build at once.
            let builder = build::start(Arc::clone(self), generation);
            let mut state = self.state.write();
            state.builders.retain(|builder| !builder.is_finished());
            state.builders.extend(builder);
        }
        self.tell();
    }

    /// Drops, shrinks or begins a generation, as what is declared demands; the one begun has to be built.
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

    /// Takes fields that nothing declares any more out of the complete cache. The caller is in its turn.
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

    /// An empty generation with the declared fields; an unfinished one is abandoned.
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

    /// The build of `generation` has ended. The caller is in its turn if the build succeeded.
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
        self.tell();
    }

    /// Wakes those who wait for a build.
    fn tell(&self) {
        *self.changes.lock() += 1;
        self.changed.notify_all();
    }

    /// Blocks until the building of the indexes called `names` has ended, or the time is over.
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

    /// Looks at what is declared and how far it is.
    pub(super) fn with_state<R>(&self, look: impl FnOnce(&State) -> R) -> R {
        look(&self.state.read())
    }
}
