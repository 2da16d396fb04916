//! Declares and drops the caches of a collection, and checks which collections can have caches.

use std::sync::Arc;

use bson::{RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::Namespace;

use super::reply::{first_batch, succeeded};
use super::{Replica, ReplicaError, Replicas, fields, is_code};

/// Reason to refuse `--upstream-writes exclusive` for an upstream that has transactions.
const HAS_STREAMS: &str = "the upstream has transactions, which only its change streams report: \
    leave --upstream-writes at shared";
/// Error code NamespaceNotFound, for a collection that the upstream does not have.
const NAMESPACE_NOT_FOUND: i32 = 26;

impl Replicas {
    /// Runs a command that creates or drops cache indexes on the replica, and declares the indexes that the replica
    /// then has. Starts to load the replica if the declaration has changed. Returns the command's reply, which is an
    /// error if a definition is wrong.
    ///
    /// The caller holds the apply lock exclusively, so that no write is in flight. A write that started before the
    /// declaration would not be applied to the replica.
    ///
    /// # Errors
    /// If the list of caches cannot be written.
    pub async fn change_caches(
        self: &Arc<Self>,
        replica: &Arc<Replica>,
        command: RawDocumentBuf,
    ) -> Result<RawDocumentBuf, ReplicaError> {
        let reply = self.run(&replica.namespace.db, command).await;
        if succeeded(&reply) {
            self.declare(replica).await?;
        }
        Ok(reply)
    }

    /// Declares the replica's cache indexes, and starts to load the replica unless these indexes are already declared.
    /// The caller holds the apply lock exclusively.
    async fn declare(self: &Arc<Self>, replica: &Arc<Replica>) -> Result<(), ReplicaError> {
        let definitions = self.cache_definitions(&replica.namespace).await?;
        if definitions.is_empty() {
            return self.forget(replica).await;
        }
        if definitions == replica.definitions() && !replica.is_off() {
            return Ok(());
        }
        replica.declare(definitions);
        self.record()?;
        self.reload(replica, "caches were declared");
        Ok(())
    }

    /// Forgets the caches of a collection and frees their memory. The caller holds the apply lock exclusively.
    ///
    /// # Errors
    /// If the list of caches cannot be written.
    pub async fn forget(&self, replica: &Replica) -> Result<(), ReplicaError> {
        replica.declare(Vec::new());
        for Namespace { db, collection } in [&replica.namespace, &replica.beside] {
            self.demand(db, rawdoc! { "drop": collection.as_str() })
                .await?;
        }
        self.record()
    }

    /// Declares the caches of a renamed collection under its new name, and starts to load them. Forgets the caches of
    /// the collection that had the new name before. The caller holds both apply locks exclusively.
    ///
    /// # Errors
    /// If the list of caches cannot be written. No caches are then left under the old name.
    pub async fn rename(
        self: &Arc<Self>,
        from: &Arc<Replica>,
        to: &Arc<Replica>,
    ) -> Result<(), ReplicaError> {
        let indexes = RawArrayBuf::from_iter(from.definitions());
        self.forget(from).await?;
        self.forget(to).await?;
        let Namespace { db, collection } = &to.namespace;
        let create = rawdoc! { "createIndexes": collection.as_str(), "indexes": indexes };
        self.demand(db, create).await?;
        self.declare(to).await
    }

    /// Returns the definitions of the cache indexes on the replica.
    pub(super) async fn cache_definitions(
        &self,
        namespace: &Namespace,
    ) -> Result<Vec<RawDocumentBuf>, ReplicaError> {
        let command = rawdoc! { "listIndexes": namespace.collection.as_str() };
        let reply = self.demand(&namespace.db, command).await?;
        let batch = first_batch(&reply);
        Ok(batch
            .filter(|definition| fields::is_cache(definition))
            .map(RawDocument::to_owned)
            .collect())
    }

    /// Refuses collections for which a replica cannot answer: views, collections with a collation, and collections
    /// whose documents expire or are evicted (TTL, capped). Records the upstream's UUID of the collection.
    pub async fn check_suitable(&self, replica: &Replica) -> Result<(), ReplicaError> {
        let namespace = &replica.namespace;
        if self.exclusive && self.has_transactions().await? {
            return Err(ReplicaError::Unsuitable(HAS_STREAMS.to_owned()));
        }
        let filter = rawdoc! { "name": namespace.collection.as_str() };
        let list = rawdoc! { "listCollections": 1, "filter": filter };
        let reply = self.ask_upstream(&namespace.db, list).await?;
        let Some(found) = first_batch(&reply).next() else {
            replica.set_identity(None);
            return Ok(());
        };
        let info = found.get_document("info");
        let identity = info.and_then(|info| info.get("uuid")).ok().flatten();
        replica.set_identity(identity.map(RawBson::from));
        let list = rawdoc! { "listIndexes": namespace.collection.as_str() };
        let indexes = match self.ask_upstream(&namespace.db, list).await {
            Err(ReplicaError::Upstream(error)) if is_code(&error, NAMESPACE_NOT_FOUND) => {
                RawDocumentBuf::new()
            }
            reply => reply?,
        };
        match unsuitable(found, first_batch(&indexes), self.exclusive) {
            None => Ok(()),
            Some(why) => Err(ReplicaError::Unsuitable(format!("{namespace} {why}"))),
        }
    }

    /// Returns whether the upstream has transactions, as members of replica sets and routers do. Writes of a
    /// transaction take effect only at its commit, which change streams report. A Forebay upstream has no transactions,
    /// whatever its hello says.
    async fn has_transactions(&self) -> Result<bool, ReplicaError> {
        let hello = self.ask_upstream("admin", rawdoc! { "hello": 1 }).await?;
        let is_router = hello.get_str("msg").is_ok_and(|msg| msg == "isdbgrid");
        if !is_router && matches!(hello.get("setName"), Ok(None)) {
            return Ok(false);
        }
        let build = self
            .ask_upstream("admin", rawdoc! { "buildInfo": 1 })
            .await?;
        Ok(matches!(build.get("forebay"), Ok(None)))
    }
}

/// Returns why a collection with these indexes cannot have caches; `None` if it can.
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
    // A change stream reports documents that expire, but not those that a capped collection evicts.
    (is_capped || exclusive && indexes.any(expires)).then(|| {
        "is capped or has a TTL index: the upstream deletes documents by itself, and caches would keep them"
            .to_owned()
    })
}
