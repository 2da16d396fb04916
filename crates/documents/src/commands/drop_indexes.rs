//! `dropIndexes`: drops indexes by name or key pattern, or all except the `_id` index.

use bson::{RawBsonRef, RawDocument, rawdoc};
use forebay_documents_query::Code;
use forebay_documents_store::IndexStatus;

use crate::arguments::{Known, invalid_bson, wrong_type};
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::places::blocking;
use crate::plan::same_pattern;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "dropIndexes",
    help: "removes indexes",
    known: Known::Only(&["index"]),
    effect: Effect::Writes,
    run: Run::Now(run),
};

/// The older name of the command.
pub const DELETE: Spec = Spec {
    name: "deleteIndexes",
    ..SPEC
};

fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let collection = request
        .documents
        .collections()
        .get(&namespace)
        .ok_or_else(|| {
            CommandError::refused(Code::NamespaceNotFound, format!("ns not found {namespace}"))
        })?;
    let indexes = collection.store.indexes();
    let wanted = request
        .arguments
        .get("index")
        .ok_or_else(|| request.arguments.missing("index"))?;
    let names = names(&indexes, wanted)?;
    blocking(|| {
        names
            .iter()
            .try_for_each(|name| drop_index(&collection, name))
    })?;
    Ok(rawdoc! { "nIndexesWas": indexes.len() as i32, "ok": 1.0 })
}

fn drop_index(collection: &OpenCollection, name: &str) -> Result<(), CommandError> {
    collection.store.drop_index(name)?;
    collection.search.drop_index(name);
    Ok(())
}

fn names(indexes: &[IndexStatus], wanted: RawBsonRef<'_>) -> Result<Vec<String>, CommandError> {
    match wanted {
        RawBsonRef::String("*") => Ok(all_but_id(indexes)),
        RawBsonRef::String(name) => Ok(vec![by_name(indexes, name)?]),
        RawBsonRef::Document(pattern) => Ok(vec![by_pattern(indexes, pattern)?]),
        RawBsonRef::Array(names) => names
            .into_iter()
            .map(|name| {
                let name = name.map_err(|error| invalid_bson(&error))?;
                by_name(
                    indexes,
                    name.as_str()
                        .ok_or_else(|| wrong_type("dropIndexes.index", name, "string"))?,
                )
            })
            .collect(),
        other => Err(wrong_type(
            "dropIndexes.index",
            other,
            "[string, object, array]",
        )),
    }
}

fn all_but_id(indexes: &[IndexStatus]) -> Vec<String> {
    indexes
        .iter()
        .map(|index| index.spec.name.clone())
        .filter(|name| name != "_id_")
        .collect()
}

fn by_name(indexes: &[IndexStatus], name: &str) -> Result<String, CommandError> {
    let found = indexes.iter().find(|index| index.spec.name == name);
    let not_found = || {
        CommandError::refused(
            Code::IndexNotFound,
            format!("index not found with name [{name}]"),
        )
    };
    droppable(found.ok_or_else(not_found)?)
}

fn by_pattern(indexes: &[IndexStatus], pattern: &RawDocument) -> Result<String, CommandError> {
    let found = indexes
        .iter()
        .find(|index| same_pattern(&index.spec.pattern(), pattern));
    let not_found = || CommandError::refused(Code::IndexNotFound, "can't find index with that key");
    droppable(found.ok_or_else(not_found)?)
}

fn droppable(index: &IndexStatus) -> Result<String, CommandError> {
    match index.spec.name.as_str() {
        "_id_" => Err(CommandError::refused(
            Code::InvalidOptions,
            "cannot drop _id index",
        )),
        name => Ok(name.to_owned()),
    }
}
