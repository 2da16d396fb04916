//! `createIndexes`: builds ordinary indexes before it replies, and builds caches of fields in the background.

use std::sync::Arc;
use std::time::Duration;

use bson::{RawDocumentBuf, cstr};
use forebay_documents_query::Code;
use forebay_documents_store::{BuildProgress, IndexSpec, IndexStatus};
use parking_lot::MutexGuard;

use crate::arguments::{Known, invalid_bson, wrong_type};
use crate::collections::{OpenCollection, cache_index};
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::index_spec::{is_there, parse};
use crate::namespace::{self, Namespace};
use crate::places::{Kind, all_aside, blocking};
use crate::request::Request;
use crate::search::CacheIndex;

/// Maximum time that the reply waits for a cache to be built.
const CACHE_BUILD_TIMEOUT: Duration = Duration::from_secs(1);

/// Maximum documents of a collection whose indexes are built under a write permit. The builds of larger collections
/// have permits of their own.
const SHORT_BUILD_DOCUMENTS_MAX: u64 = 1_000;

/// Interval at which a command that waits for another index creation checks its cancellation token.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "createIndexes",
    help: "creates indexes; {field: \"cache\"} caches a field for string searches",
    known: Known::Only(&["indexes", "ignoreUnknownIndexOptions", "commitQuorum"]),
    effect: Effect::Writes,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    namespace::check_writable(&namespace)?;
    let wanted = specifications(request)?;
    let existing = request.documents.collections().get(&namespace);
    if let Some(collection) = &existing
        && are_complete(collection, &wanted)?
    {
        let count = collection.store.indexes().len();
        return Ok(reply(count, count, false));
    }
    let is_short = |collection: &Arc<OpenCollection>| {
        collection.store.document_count() <= SHORT_BUILD_DOCUMENTS_MAX
            || wanted.iter().all(IndexSpec::is_cache)
    };
    let kind = match existing.as_ref().is_none_or(is_short) {
        true => Kind::Write,
        false => Kind::Build,
    };
    let wait = request.operation.wait_in_queue();
    let work = async {
        drop(wait);
        blocking(|| create_in(request, &namespace, wanted))
    };
    all_aside(kind, request.stop(), work).await
}

/// Creates the collection if it does not exist, and then the indexes.
fn create_in(request: &Request<'_>, namespace: &Namespace, wanted: Vec<IndexSpec>) -> Reply {
    let collections = request.documents.collections();
    let created = collections.get(namespace).is_none();
    let collection = collections.get_or_create(namespace)?;
    let before = collection.store.indexes().len();
    create(request, &collection, wanted)?;
    let after = collection.store.indexes().len();
    Ok(reply(before, after, created))
}

fn specifications(request: &Request<'_>) -> Result<Vec<IndexSpec>, CommandError> {
    let entries = request
        .arguments
        .array("indexes")?
        .ok_or_else(|| request.arguments.missing("indexes"))?;
    let mut specifications = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| invalid_bson(&error))?;
        let entry = entry
            .as_document()
            .ok_or_else(|| wrong_type("createIndexes.indexes", entry, "object"))?;
        specifications.push(parse(entry)?);
    }
    if specifications.is_empty() {
        return Err(CommandError::bad_value(
            "Must specify at least one index to create",
        ));
    }
    Ok(specifications)
}

/// Creates the indexes that do not exist yet. Blocks while this or another command builds them.
///
/// # Errors
/// An error for a conflict with an existing index, or the store's error.
pub fn create(
    request: &Request<'_>,
    collection: &OpenCollection,
    wanted: Vec<IndexSpec>,
) -> Result<(), CommandError> {
    let _exclusive = lock_index_creation(request, collection)?;
    let mut caches = Vec::new();
    for spec in wanted {
        if is_there(&collection.namespace, &collection.store.indexes(), &spec)? {
            continue;
        }
        if spec.is_cache() {
            caches.push(cache_index(&spec));
        }
        build(request, collection, spec)?;
    }
    if caches.is_empty() {
        Ok(())
    } else {
        declare(collection, caches)
    }
}

/// Returns whether all `wanted` indexes exist and are built.
fn are_complete(collection: &OpenCollection, wanted: &[IndexSpec]) -> Result<bool, CommandError> {
    let existing = collection.store.indexes();
    for spec in wanted {
        if !is_there(&collection.namespace, &existing, spec)? {
            return Ok(false);
        }
    }
    let is_wanted = |index: &IndexStatus| wanted.iter().any(|spec| spec.name == index.spec.name);
    Ok(existing
        .iter()
        .filter(|index| is_wanted(index))
        .all(|index| index.complete))
}

/// Takes the lock on index creation in the collection.
///
/// # Errors
/// [`CommandError::Stopped`] if the command is stopped before it has the lock.
fn lock_index_creation<'a>(
    request: &Request<'_>,
    collection: &'a OpenCollection,
) -> Result<MutexGuard<'a, ()>, CommandError> {
    loop {
        if let Some(alone) = collection.index_creation.try_lock_for(CHECK_INTERVAL) {
            return Ok(alone);
        }
        request.stop().check()?;
    }
}

/// Builds an ordinary index. For a cache index, only adds the index to the catalogue.
fn build(
    request: &Request<'_>,
    collection: &OpenCollection,
    spec: IndexSpec,
) -> Result<(), CommandError> {
    let progress = Arc::new(BuildProgress::of(request.stop().clone()));
    let operations = request.documents.operations();
    let _listed = operations.begin_build(
        &collection.namespace.to_string(),
        "Index Build",
        progress.clone(),
    );
    let built = collection.store.create_index(spec, progress);
    if built.is_err() {
        request.stop().check()?;
    }
    Ok(built?)
}

/// Declares caches and waits briefly for them, so that a small collection is searched in its cache right after the
/// reply. The build of a large cache continues in the background, as `currentOp` shows.
fn declare(collection: &OpenCollection, caches: Vec<CacheIndex>) -> Result<(), CommandError> {
    let names: Vec<String> = caches.iter().map(|cache| cache.name.clone()).collect();
    let outcome = match collection.search.declare(caches) {
        Ok(build) => build.wait(CACHE_BUILD_TIMEOUT).unwrap_or(Ok(())),
        Err(error) => Err(error),
    };
    outcome.or_else(|error| {
        for name in names {
            collection.search.drop_index(&name);
            collection.store.drop_index(&name)?;
        }
        Err(CommandError::refused(
            Code::CannotCreateIndex,
            error.to_string(),
        ))
    })
}

fn reply(before: usize, after: usize, created: bool) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    reply.append(cstr!("numIndexesBefore"), before as i32);
    reply.append(cstr!("numIndexesAfter"), after as i32);
    reply.append(cstr!("createdCollectionAutomatically"), created);
    if before == after {
        reply.append(cstr!("note"), "all indexes already exist");
    }
    reply.append(cstr!("ok"), 1.0);
    reply
}
