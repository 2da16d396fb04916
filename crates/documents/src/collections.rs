//! The open collections: each with its place in the store, its write lock and its cached fields.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_cache::Cache;
use forebay_store::{Collection, CollectionOptions, IndexKind, IndexSpec, Store};
use parking_lot::{Mutex, RwLock};

use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::search::{CacheIndex, CollectionSearch, SearchSettings, WriteLock};

/// A collection in use.
pub struct OpenCollection {
    /// Its name.
    pub namespace: Namespace,
    /// Its documents and ordinary indexes.
    pub store: Arc<Collection>,
    /// Held by every writer from the write to the store until the cache has followed.
    pub lock: WriteLock,
    /// Its cached fields.
    pub search: Arc<CollectionSearch>,
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
            collections.admit(
                Namespace {
                    db: name.db,
                    collection: name.name,
                },
                found,
            );
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
        if let Some(collection) = self.get(namespace) {
            return Ok(collection);
        }
        let _held = self.catalogue.lock();
        match self.get(namespace) {
            Some(collection) => Ok(collection),
            None => self.make(namespace, CollectionOptions::default()),
        }
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
            return Err(CommandError::refused(
                forebay_query::Code::NamespaceExists,
                message,
            ));
        }
        self.make(namespace, options)
    }

    fn make(
        &self,
        namespace: &Namespace,
        options: CollectionOptions,
    ) -> Result<Arc<OpenCollection>, CommandError> {
        namespace.writable()?;
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
        self.remove(&collection)?;
        Ok(Some(collection))
    }

    fn remove(&self, collection: &OpenCollection) -> Result<(), CommandError> {
        let namespace = &collection.namespace;
        collection.search.close();
        let _held = collection.lock.lock();
        self.store
            .drop_collection(&namespace.db, &namespace.collection)?;
        self.open.write().remove(namespace);
        Ok(())
    }

    /// Gives a collection another name; one of that name is removed first if `drop_target`.
    ///
    /// # Errors
    /// `NamespaceNotFound`, `NamespaceExists`, and whatever the store says.
    pub fn rename(
        &self,
        from: &Namespace,
        to: &Namespace,
        drop_target: bool,
    ) -> Result<(), CommandError> {
        to.writable()?;
        let _held = self.catalogue.lock();
        let collection = self.get(from).ok_or_else(|| {
            CommandError::refused(
                forebay_query::Code::NamespaceNotFound,
                format!("Source collection {from} does not exist"),
            )
        })?;
        match self.get(to) {
            Some(target) if drop_target => self.remove(&target)?,
            Some(_) => {
                return Err(CommandError::refused(
                    forebay_query::Code::NamespaceExists,
                    "target namespace exists",
                ));
            }
            None => {}
        }
        self.move_to(&collection, to)
    }

    fn move_to(&self, collection: &OpenCollection, to: &Namespace) -> Result<(), CommandError> {
        let _held = collection.lock.lock();
        let from = &collection.namespace;
        self.store
            .rename_collection(&stored_name(from), &stored_name(to), false)?;
        collection.search.rename(&to.to_string());
        let moved = OpenCollection {
            namespace: to.clone(),
            store: collection.store.clone(),
            lock: collection.lock.clone(),
            search: collection.search.clone(),
        };
        let mut open = self.open.write();
        open.remove(from);
        open.insert(to.clone(), Arc::new(moved));
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

fn stored_name(namespace: &Namespace) -> forebay_store::Namespace {
    forebay_store::Namespace::new(&namespace.db, &namespace.collection)
}

/// Makes the error for a collection that does not exist.
pub fn not_found(namespace: &Namespace) -> CommandError {
    CommandError::refused(
        forebay_query::Code::NamespaceNotFound,
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
