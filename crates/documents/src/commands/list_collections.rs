//! `listCollections`: the collections of a database.

use bson::spec::BinarySubtype;
use bson::{Binary, RawDocumentBuf, rawdoc};

use super::read;
use crate::access::Action;
use crate::arguments::Known;
use crate::batch::{self, BatchOptions};
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::namespace::{Namespace, check_db};
use crate::request::Request;
use crate::streams::List;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "listCollections",
    help: "lists the collections of a database",
    known: Known::Only(&["filter", "nameOnly", "authorizedCollections", "cursor"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let db = &request.command.db;
    check_db(db)?;
    let name_only = request.arguments.flag("nameOnly")?;
    let filter = read::filter(request, "filter")?;
    let collections = if request.client.rights.allow_on(Action::Inspect, db) {
        request.documents.collections().of_db(db)
    } else {
        Vec::new()
    };
    let listed = collections
        .iter()
        .map(|collection| describe(collection))
        .collect();
    let wanted = read::those_that_match(request, &filter, listed).await?;
    let shown = wanted
        .into_iter()
        .map(|entry| if name_only { only_name(&entry) } else { entry });
    let namespace = Namespace {
        db: db.clone(),
        collection: "$cmd.listCollections".to_owned(),
    };
    let options = BatchOptions {
        size: Some(read::cursor_batch_size(request)?.unwrap_or(u64::MAX)),
        ..BatchOptions::default()
    };
    let stream = Box::new(List::built(shown));
    batch::open(request, &namespace, stream, options).await
}

fn describe(collection: &OpenCollection) -> RawDocumentBuf {
    let uuid = Binary {
        subtype: BinarySubtype::Uuid,
        bytes: collection.store.uuid().bytes().to_vec(),
    };
    rawdoc! {
        "name": collection.namespace.collection.as_str(),
        "type": "collection",
        "options": collection.store.options().clone(),
        "info": { "readOnly": false, "uuid": uuid },
        "idIndex": { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
    }
}

fn only_name(entry: &RawDocumentBuf) -> RawDocumentBuf {
    rawdoc! { "name": entry.get_str("name").unwrap_or_default(), "type": "collection" }
}
