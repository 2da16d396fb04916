//! First stages that generate documents: `$indexStats`, `$collStats`, `$currentOp`, `$documents`.

use bson::{
    DateTime, RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc,
};
use forebay_documents_query::{Code, Expression, Scope};
use forebay_documents_store::IndexStatus;
use forebay_memory::Held;

use super::aggregate::{after_first, first_stage};
use super::{coll_stats, current_op, read};
use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::host;
use crate::namespace::Namespace;
use crate::request::Request;
use crate::streams::{List, ROW_BYTES, Row};

/// Returns the documents that the pipeline's first stage generates, and the stages after it. Returns `None` if the
/// first stage does not generate documents.
///
/// # Errors
/// An error for an invalid stage. Also an error if the command names no collection and its first stage does not
/// generate documents.
pub fn special(
    request: &Request<'_>,
    namespace: &Namespace,
    stages: &RawArray,
) -> Result<Option<(List, RawArrayBuf)>, CommandError> {
    let documents = match first_stage(stages) {
        Some(("$indexStats", _)) => index_stats(request, namespace)?,
        Some(("$collStats", wanted)) => collection_stats(request, namespace, wanted)?,
        Some(("$currentOp", _)) => {
            request.admin_only()?;
            current_op::operations(request)
        }
        Some(("$documents", given)) if namespace.collection == "$cmd.aggregate" => {
            let documents = given_documents(request, given)?;
            return Ok(Some((documents, after_first(stages))));
        }
        _ if namespace.collection == "$cmd.aggregate" => return Err(without_collection(stages)),
        _ => return Ok(None),
    };
    Ok(Some((List::built(documents), after_first(stages))))
}

fn without_collection(stages: &RawArray) -> CommandError {
    let message = match first_stage(stages) {
        Some((name, _)) => {
            format!("{{aggregate: 1}} is not valid for '{name}'; a collection is required.")
        }
        None => "{aggregate: 1} is not valid for an empty pipeline.".to_owned(),
    };
    CommandError::refused(Code::InvalidNamespace, message)
}

/// Returns the documents of a `$documents` stage, whose operand is an expression that yields an array of documents.
fn given_documents(request: &Request<'_>, given: RawBsonRef<'_>) -> Result<List, CommandError> {
    let wrong = || {
        let message =
            "error during aggregation :: caused by :: $documents requires array of objects";
        CommandError::refused(Code::Location5858203, message)
    };
    let expression = Expression::parse(given, &read::limits(request)?)?;
    let nothing = rawdoc! {};
    let value = expression.evaluate(&Scope::new(&nothing, DateTime::now()))?;
    // The expression's value, and the documents copied from it.
    let mut held = Held::new(&request.documents.settings().memory, 0);
    held.take(value.bytes())?;
    let mut documents = Vec::new();
    for document in value.as_array().ok_or_else(wrong)? {
        let Ok(RawBsonRef::Document(document)) = document else {
            return Err(wrong());
        };
        held.take(document.as_bytes().len() + ROW_BYTES)?;
        documents.push(Row::Built(document.to_owned()));
    }
    Ok(List::holding(documents, held))
}

fn index_stats(
    request: &Request<'_>,
    namespace: &Namespace,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let collection = request.documents.collections().existing(namespace)?;
    let indexes = collection.store.indexes();
    Ok(indexes
        .iter()
        .map(|index| index_document(&collection, index))
        .collect())
}

fn index_document(collection: &OpenCollection, index: &IndexStatus) -> RawDocumentBuf {
    let status = collection.search.status_of(&index.spec.name);
    let mut document = rawdoc! {
        "name": index.spec.name.as_str(),
        "key": index.spec.pattern(),
        "host": host::name(),
        "spec": index.spec.definition.clone(),
        "sizeBytes": collection.store.index_bytes(&index.spec.name) as i64,
    };
    match status {
        Some(status) => {
            document.append(
                cstr!("accesses"),
                rawdoc! { "ops": status.searches() as i64 },
            );
            document.append(cstr!("cache"), status.to_document());
        }
        None if !index.complete => document.append(cstr!("building"), true),
        None => {}
    }
    document
}

fn collection_stats(
    request: &Request<'_>,
    namespace: &Namespace,
    wanted: RawBsonRef<'_>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let collection = request.documents.collections().existing(namespace)?;
    let wanted: &RawDocument = wanted.as_document().ok_or_else(|| {
        CommandError::refused(Code::FailedToParse, "$collStats must take a nested object")
    })?;
    let mut document =
        rawdoc! { "ns": namespace.to_string(), "host": host::name(), "localTime": DateTime::now() };
    for option in wanted {
        let (name, _) = option.map_err(|error| crate::arguments::invalid_bson(&error))?;
        match name.as_str() {
            "count" => document.append(cstr!("count"), collection.store.document_count() as i64),
            "storageStats" => {
                document.append(cstr!("storageStats"), coll_stats::figures(&collection, 1))
            }
            other => {
                let message = format!("$collStats option '{other}' is not supported");
                return Err(CommandError::refused(Code::NotImplemented, message));
            }
        }
    }
    Ok(vec![document])
}
