//! `insert`: inserts documents.
//!
//! Documents are stored as received, except that the server adds a missing `_id` or moves `_id` to the front, and fills
//! in empty timestamps. The server checks the `_id` and the limits of each document once, and then writes the documents
//! to the store one chunk at a time. While the cache applies a chunk, the next writer already writes to the store.

use std::borrow::Cow;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use forebay_cancel::Stop;
use forebay_documents_query::{Code, timestamp};
use forebay_documents_store::BATCH_BYTES;
use parking_lot::MutexGuard;

use crate::arguments::{Known, invalid_bson};
use crate::collections::{Collections, OpenCollection};
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace;
use crate::places::{Kind, all_aside, make_room_to_insert};
use crate::request::Request;
use crate::retry::Retry;
use crate::search::Prepared;
use crate::settings::DOCUMENT_BYTES_MAX;
use crate::write_result::WriteErrors;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "insert",
    help: "adds documents to a collection",
    known: Known::Only(&["documents", "ordered", "bypassDocumentValidation"]),
    effect: Effect::Writes,
    run: Run::Async(start),
};

/// Maximum documents that are written before the write lock is released.
const CHUNK_DOCUMENTS: usize = 1000;
/// Maximum number of documents that an insertion may write on a network thread. `FEW_BYTES` bounds the sum of their
/// bytes.
const FEW_DOCUMENTS: usize = 16;
const FEW_BYTES: usize = 64 << 10;

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    namespace::check_writable(&namespace)?;
    let documents = request.statements("documents")?;
    let ordered = request.arguments.boolean("ordered")?.unwrap_or(true);
    let collections = request.documents.collections();
    let collection = collections.get_or_create(&namespace)?;
    let wait = request.operation.wait_in_queue();
    let _apply = collection.insertions.enter(request.stop()).await?;
    let mut insertion = Insertion {
        collections,
        collection: collection.clone(),
        ordered,
        stop: request.stop(),
        retry: request.retry.as_ref(),
        count: 0,
        errors: WriteErrors::new(&request.documents.settings().memory),
    };
    let mut write = || insertion.write_all(request, &documents);
    if are_few(&documents) {
        drop(wait);
        write()?
    } else {
        let write = async {
            let bytes = batch_bytes(&documents);
            make_room_to_insert(&request.client.reply, bytes, request.stop()).await?;
            drop(wait);
            write()
        };
        all_aside(Kind::Write, request.stop(), write).await?
    };
    insertion.errors.reply(insertion.count)
}

fn are_few(documents: &[&RawDocument]) -> bool {
    let bytes = |document: &&RawDocument| document.as_bytes().len();
    documents.len() <= FEW_DOCUMENTS && documents.iter().map(bytes).sum::<usize>() <= FEW_BYTES
}

/// Returns the maximum bytes of a batch. The store writes `documents` in one or several batches.
fn batch_bytes(documents: &[&RawDocument]) -> usize {
    let bytes = |document: &&RawDocument| document.as_bytes().len();
    let largest = documents.iter().map(bytes).max().unwrap_or(0);
    let all = documents.iter().map(bytes).sum::<usize>();
    all.min(BATCH_BYTES + largest)
}

struct Insertion<'a> {
    collections: &'a Collections,
    collection: Arc<OpenCollection>,
    ordered: bool,
    stop: &'a Stop,
    retry: Option<&'a Retry>,
    count: usize,
    errors: WriteErrors,
}

impl Insertion<'_> {
    fn write_all(
        &mut self,
        request: &Request<'_>,
        documents: &[&RawDocument],
    ) -> Result<(), CommandError> {
        for (chunk, first) in documents
            .chunks(CHUNK_DOCUMENTS)
            .zip((0..).step_by(CHUNK_DOCUMENTS))
        {
            request.stop().check()?;
            if !self.write_chunk(chunk, first)? {
                break;
            }
        }
        Ok(())
    }

    /// Writes a chunk of documents. `first` is the position of its first document in the command. Returns false if the
    /// remaining documents must be skipped.
    fn write_chunk(&mut self, chunk: &[&RawDocument], first: usize) -> Result<bool, CommandError> {
        let mut accepted = Vec::with_capacity(chunk.len());
        let mut places = Vec::with_capacity(chunk.len());
        for (index, document) in (first..).zip(chunk) {
            if self.was_applied(index)? {
                self.count += 1;
                continue;
            }
            match with_id(document) {
                Ok(document) => {
                    let filled = timestamp::filled(&document);
                    accepted.push(filled.map_or(document, Cow::Owned));
                    places.push(index);
                }
                Err(error) => {
                    self.errors.push(index, &error);
                    if self.ordered {
                        break;
                    }
                }
            }
        }
        let refused = self.errors.len();
        let went_on = self.store(&accepted, &places)?;
        // In an ordered command, all documents passed to the store precede the invalid document, so an error of the
        // store is the first error.
        if self.ordered && self.errors.len() > refused {
            self.errors.keep_first_by_index();
        }
        Ok(went_on && (!self.ordered || self.errors.len() == 0))
    }

    /// Returns whether an earlier attempt of the command inserted the document.
    fn was_applied(&self, index: usize) -> Result<bool, CommandError> {
        let outcome = self.retry.map(|retry| retry.outcome(index)).transpose()?;
        Ok(outcome.flatten().is_some())
    }

    /// Writes documents to the collection. If the collection has been dropped, creates it again.
    fn store(
        &mut self,
        documents: &[Cow<'_, RawDocument>],
        places: &[usize],
    ) -> Result<bool, CommandError> {
        let documents: Vec<&RawDocument> = documents.iter().map(AsRef::as_ref).collect();
        loop {
            let collection = self.collection.clone();
            let prepared = collection.search.prepare(&documents);
            let held = collection.lock_store(self.stop)?;
            if !collection.store.is_dropped() {
                return Ok(self.store_held(held, &collection, &documents, places, prepared));
            }
            drop(held);
            self.collection = self.collections.settled(&collection.namespace)?;
        }
    }

    /// Writes documents to the collection, whose write lock is `held`. Returns false after an error that ends the
    /// command.
    fn store_held(
        &mut self,
        held: MutexGuard<'_, ()>,
        collection: &OpenCollection,
        documents: &[&RawDocument],
        places: &[usize],
        prepared: Option<Prepared>,
    ) -> bool {
        let statement = |retry: &Retry| {
            let places = places.iter();
            let statements = places.map(|place| retry.statement(*place, RawDocumentBuf::new()));
            statements.collect::<Vec<_>>()
        };
        let statements = self.retry.map(statement).unwrap_or_default();
        let note = self.retry.map(|retry| retry.note(&statements));
        let answers = collection
            .store
            .insert_many_numbered(documents, self.ordered, note);
        let mut inserted = Vec::with_capacity(answers.len());
        let mut fatal = false;
        for ((answer, document), place) in answers.into_iter().zip(documents).zip(places) {
            match answer {
                Ok(number) => inserted.push((number, *document)),
                Err(error) => {
                    fatal |= error.is_fatal();
                    self.errors.push(*place, &CommandError::from(error));
                }
            }
        }
        let prepared = prepared.filter(|_| inserted.len() == documents.len());
        collection
            .search
            .on_insert_many(held, &inserted, prepared.as_ref());
        self.count += inserted.len();
        !fatal
    }
}

/// Returns the document with `_id` as its first field. Generates a missing `_id`, and moves an `_id` that is not the
/// first field to the front.
///
/// # Errors
/// `InvalidIdField` and related codes for an invalid `_id`, `BSONObjectTooLarge`, `InvalidBSON`.
pub fn with_id(document: &RawDocument) -> Result<Cow<'_, RawDocument>, CommandError> {
    if document.as_bytes().len() > DOCUMENT_BYTES_MAX {
        return Err(too_large(document.as_bytes().len()));
    }
    let first = document
        .iter_elements()
        .next()
        .transpose()
        .map_err(|error| invalid_bson(&error))?;
    let id = match &first {
        Some(element) if element.key().as_str() == "_id" => Some(element.value()),
        _ => document.get("_id").transpose(),
    };
    let id = id.transpose().map_err(|error| invalid_bson(&error))?;
    let leads = first.is_some_and(|element| element.key().as_str() == "_id");
    match id {
        Some(id) => check_id(id).and_then(|()| {
            if leads {
                Ok(Cow::Borrowed(document))
            } else {
                moved_id(document, id)
            }
        }),
        None => prepended(document, RawBsonRef::ObjectId(ObjectId::new())),
    }
}

fn too_large(bytes: usize) -> CommandError {
    let message = format!(
        "object to insert too large. size in bytes: {bytes}, max size: {DOCUMENT_BYTES_MAX}"
    );
    CommandError::refused(Code::BSONObjectTooLarge, message)
}

/// Rejects an invalid `_id`.
///
/// # Errors
/// `InvalidIdField`, or `DollarPrefixedFieldName` for a document with a field whose name begins with `$`.
pub fn check_id(id: RawBsonRef<'_>) -> Result<(), CommandError> {
    let kind = match id {
        RawBsonRef::Array(_) => "array",
        RawBsonRef::RegularExpression(_) => "regex",
        RawBsonRef::Undefined => "undefined",
        RawBsonRef::Document(id) => return check_id_document(id),
        _ => return Ok(()),
    };
    let message = format!("The '_id' value cannot be of type {kind}");
    Err(CommandError::refused(Code::InvalidIdField, message))
}

fn check_id_document(id: &RawDocument) -> Result<(), CommandError> {
    for element in id.iter_elements() {
        let element = element.map_err(|error| invalid_bson(&error))?;
        let name = element.key().as_str();
        if name.starts_with('$') {
            let message = format!(
                "_id fields may not contain '$'-prefixed fields: {name} is not valid for storage."
            );
            return Err(CommandError::refused(
                Code::DollarPrefixedFieldName,
                message,
            ));
        }
    }
    Ok(())
}

fn moved_id<'a>(
    document: &'a RawDocument,
    id: RawBsonRef<'a>,
) -> Result<Cow<'a, RawDocument>, CommandError> {
    let mut moved = RawDocumentBuf::new();
    moved.append(cstr!("_id"), id);
    for field in document {
        let (name, value) = field.map_err(|error| invalid_bson(&error))?;
        if name.as_str() != "_id" {
            moved.append(name, value);
        }
    }
    Ok(Cow::Owned(moved))
}

fn prepended<'a>(
    document: &'a RawDocument,
    id: RawBsonRef<'a>,
) -> Result<Cow<'a, RawDocument>, CommandError> {
    let mut head = RawDocumentBuf::new();
    head.append(cstr!("_id"), id);
    let mut bytes = head.into_bytes();
    bytes.pop();
    bytes.extend_from_slice(&document.as_bytes()[4..]);
    let length = u32::try_from(bytes.len()).map_err(|_| too_large(bytes.len()))?;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    if bytes.len() > DOCUMENT_BYTES_MAX {
        return Err(too_large(bytes.len()));
    }
    RawDocumentBuf::from_bytes(bytes)
        .map(Cow::Owned)
        .map_err(|error| invalid_bson(&error))
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn an_id_becomes_the_first_field() {
        let given = rawdoc! { "_id": 1, "a": 2 };
        assert!(matches!(with_id(&given), Ok(Cow::Borrowed(_))));
        let behind = rawdoc! { "a": 2, "_id": 1, "b": 3 };
        assert_eq!(
            with_id(&behind).unwrap().into_owned(),
            rawdoc! { "_id": 1, "a": 2, "b": 3 }
        );
        let missing = rawdoc! { "a": 2 };
        let made = with_id(&missing).unwrap();
        let keys: Vec<String> = made
            .iter()
            .map(|field| field.unwrap().0.as_str().to_owned())
            .collect();
        assert_eq!(keys, ["_id", "a"]);
        assert!(made.get_object_id("_id").is_ok());
        assert!(with_id(&rawdoc! {}).unwrap().get_object_id("_id").is_ok());
    }

    #[test]
    fn wrong_ids_are_refused() {
        for document in [
            rawdoc! { "_id": [1] },
            rawdoc! { "_id": { "$a": 1 } },
            rawdoc! { "_id": bson::Regex { pattern: cstr!("a").into(), options: cstr!("").into() } },
        ] {
            assert!(with_id(&document).is_err());
        }
    }
}
