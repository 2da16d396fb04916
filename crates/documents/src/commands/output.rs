//! `$out` and `$merge`: last stages that write a pipeline's documents to a collection.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use bson::oid::ObjectId;
use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::Stop;
use forebay_documents_query::{Code, element};
use forebay_documents_store::StoreError;
use forebay_memory::Held;

use super::aggregate::first_element;
use super::{create_indexes, insert, update};
use crate::arguments::{Arguments, Known, type_name};
use crate::changes;
use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::namespace::{self, Namespace};
use crate::places::blocking;
use crate::request::Request;
use crate::streams::{List, ROW_BYTES, Row, Stream};

/// Maximum documents of a chunk, which is read completely before it is written.
const CHUNK_DOCUMENTS: usize = 256;
/// Bytes of a chunk to which no document is added.
const CHUNK_BYTES: usize = 256 << 10;

/// Prefix of the names of temporary collections, for example the one that `$out` fills.
const TEMPORARY: &str = "tmp.agg_out.";

/// Returns whether `name` is the name of a temporary collection, which will replace another collection.
pub fn is_temporary(name: &str) -> bool {
    let number = name.strip_prefix(TEMPORARY);
    number.is_some_and(|number| ObjectId::parse_str(number).is_ok())
}

/// Returns a namespace for a temporary collection that will replace another collection of the database. If a crash
/// leaves the temporary collection behind, the next start drops it.
pub fn temporary(db: &str) -> Namespace {
    Namespace {
        db: db.to_owned(),
        collection: format!("{TEMPORARY}{}", ObjectId::new().to_hex()),
    }
}

/// Returns whether the last stage of a pipeline writes.
pub fn writes(stages: &RawArray) -> bool {
    let last = stages.into_iter().flatten().last();
    let name = last.and_then(first_element).map(|(name, _)| name);
    matches!(name, Some("$out" | "$merge"))
}

/// The output of a pipeline whose last stage writes.
pub enum Output {
    /// `$out`: the documents replace the collection.
    Replace(Namespace),
    /// `$merge`: each document replaces the existing document that it matches, or is merged into it. A document
    /// without a match is inserted.
    Merge(Merge),
}

/// Splits a pipeline into its stages and its output (if its last stage writes).
///
/// # Errors
/// An error for an invalid last stage.
pub fn split<'a>(
    request: &Request<'_>,
    stages: &'a RawArray,
) -> Result<(Cow<'a, RawArray>, Option<Output>), CommandError> {
    let last = stages.into_iter().flatten().last();
    let output = match last.and_then(first_element) {
        Some(("$out", operand)) => Output::Replace(out_target(request, operand)?),
        Some(("$merge", operand)) => Output::Merge(Merge::read(request, operand)?),
        _ => return Ok((Cow::Borrowed(stages), None)),
    };
    let last = last.and_then(|last| last.as_document());
    if last.is_some_and(|last| last.into_iter().count() > 1) {
        let message = "A pipeline stage specification object must contain exactly one field.";
        return Err(CommandError::refused(Code::Location40323, message));
    }
    let before = stages.into_iter().count() - 1;
    let stages: RawArrayBuf = stages.into_iter().flatten().take(before).collect();
    Ok((Cow::Owned(stages), Some(output)))
}

fn out_target(request: &Request<'_>, operand: RawBsonRef<'_>) -> Result<Namespace, CommandError> {
    match operand {
        RawBsonRef::String(collection) => target(&request.command.db, collection),
        RawBsonRef::Document(operand) => {
            let known = Known::Only(&["db", "coll"]);
            let fields = Arguments::parse_nested("$out", operand, known)?;
            target(
                fields.required_string("db")?,
                fields.required_string("coll")?,
            )
        }
        other => {
            let kind = type_name(other);
            let message =
                format!("$out only supports a string or object argument, but found {kind}");
            Err(CommandError::refused(Code::Location16990, message))
        }
    }
}

fn target(db: &str, collection: &str) -> Result<Namespace, CommandError> {
    let namespace = namespace::checked(db, collection)?;
    namespace::check_writable(&namespace)?;
    Ok(namespace)
}

impl Output {
    /// Writes all documents of a pipeline that reads `source`.
    ///
    /// # Errors
    /// The error of the pipeline or the store. Documents already written by `$merge` persist; a failed `$out` changes
    /// nothing.
    pub async fn write(
        self,
        request: &Request<'_>,
        source: &Namespace,
        documents: Box<dyn Stream>,
    ) -> Result<(), CommandError> {
        match self {
            Output::Replace(target) => blocking(|| replace(request, &target, documents))?,
            Output::Merge(merge) => merge.write_all(request, source, documents).await?,
        }
        if request.generic.journaled {
            request.documents.sync().await?;
        }
        Ok(())
    }
}

/// Fills a temporary collection and renames it to the target once complete.
fn replace(
    request: &Request<'_>,
    target: &Namespace,
    documents: Box<dyn Stream>,
) -> Result<(), CommandError> {
    let collections = request.documents.collections();
    let beside = temporary(&target.db);
    let made = collections.get_or_create(&beside)?;
    let filled = fill(request, &made, target, documents);
    let renamed = filled.and_then(|()| collections.rename(&beside, target, true));
    match renamed {
        Ok(()) => request.documents.cursors().kill_namespace(target),
        Err(_) => {
            if let Err(error) = collections.drop_collection(&beside) {
                tracing::warn!(namespace = %beside, %error, "cannot drop the temporary collection of a $out: the next start drops it");
            }
        }
    }
    renamed
}

fn fill(
    request: &Request<'_>,
    made: &OpenCollection,
    target: &Namespace,
    mut documents: Box<dyn Stream>,
) -> Result<(), CommandError> {
    if let Some(target) = request.documents.collections().get(target) {
        let indexes = target.store.indexes();
        let specs = indexes.iter().map(|index| (*index.spec).clone());
        create_indexes::create(request, made, specs.collect())?;
    }
    while let Some(document) = documents.next(request.stop())? {
        changes::insert(made, &document, None, request.stop())?;
    }
    Ok(())
}

/// A `$merge`.
pub struct Merge {
    into: Namespace,
    /// The fields that identify the matching document.
    on: Vec<String>,
    matched: Matched,
    unmatched: Unmatched,
}

/// The action if the collection has a matching document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Matched {
    Replace,
    Merge,
    KeepExisting,
    Fail,
}

/// The action if the collection has no matching document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Unmatched {
    Insert,
    Discard,
    Fail,
}

impl Merge {
    fn read(request: &Request<'_>, operand: RawBsonRef<'_>) -> Result<Merge, CommandError> {
        let short;
        let operand: &RawDocument = match operand {
            RawBsonRef::Document(operand) => operand,
            RawBsonRef::String(into) => {
                short = rawdoc! { "into": into };
                &short
            }
            other => {
                let kind = type_name(other);
                let message =
                    format!("$merge requires a string or object argument, but found {kind}");
                return Err(CommandError::refused(Code::Location51178, message));
            }
        };
        let known = Known::Only(&["into", "on", "let", "whenMatched", "whenNotMatched"]);
        let fields = Arguments::parse_nested("$merge", operand, known)?;
        fields.unsupported(&["let"])?;
        let merge = Merge {
            into: merge_target(request, &fields)?,
            on: on_fields(&fields)?,
            matched: matched(&fields)?,
            unmatched: unmatched(&fields)?,
        };
        merge.check(request)?;
        Ok(merge)
    }

    fn check(&self, request: &Request<'_>) -> Result<(), CommandError> {
        if matches!(self.matched, Matched::KeepExisting | Matched::Fail)
            && self.unmatched != Unmatched::Insert
        {
            let message = "Combination of these whenMatched and whenNotMatched modes is not supported by $merge";
            return Err(CommandError::refused(Code::Location51181, message));
        }
        let target = request.documents.collections().get(&self.into);
        if self.on == ["_id"] || target.is_some_and(|target| self.has_unique_index(&target)) {
            return Ok(());
        }
        let message = "Cannot find index to verify that join fields will be unique";
        Err(CommandError::refused(Code::Location51183, message))
    }

    fn has_unique_index(&self, target: &Arc<OpenCollection>) -> bool {
        let indexes = target.store.indexes();
        let mut unique = indexes.iter().filter(|index| index.spec.unique);
        unique.any(|index| self.is_on(&index.spec.pattern()))
    }

    /// Returns whether `pattern` has exactly the `on` fields.
    fn is_on(&self, pattern: &RawDocument) -> bool {
        let indexed: BTreeSet<&str> = element::elements(pattern)
            .map(|element| element.key)
            .collect();
        indexed == self.on.iter().map(String::as_str).collect()
    }

    async fn write_all(
        &self,
        request: &Request<'_>,
        source: &Namespace,
        mut documents: Box<dyn Stream>,
    ) -> Result<(), CommandError> {
        if self.into == *source {
            // A scan of the target would also read the documents that `$merge` writes to it. All documents are
            // therefore read first.
            documents = Box::new(blocking(|| all(documents, request))?);
        }
        loop {
            let chunk = blocking(|| chunk(documents.as_mut(), request.stop()))?;
            if chunk.is_empty() {
                return Ok(());
            }
            for document in &chunk {
                request.stop().check()?;
                self.write(request, document).await?;
            }
        }
    }

    async fn write(
        &self,
        request: &Request<'_>,
        document: &RawDocument,
    ) -> Result<(), CommandError> {
        let document = if self.on == ["_id"] {
            insert::with_id(document)?
        } else {
            Cow::Borrowed(document)
        };
        let query = self.query(&document)?;
        match self.matched {
            Matched::Fail => self.insert(request, &document),
            Matched::KeepExisting => match self.insert(request, &document) {
                Err(CommandError::Store(error @ StoreError::DuplicateKey { .. })) => {
                    // The insertion may have failed because of a unique index on other fields than `on`. Check whether
                    // a match exists.
                    let looks = rawdoc! { "q": query, "u": { "$set": {} } };
                    match update::run_one(request, &self.into, &looks).await? {
                        0 => Err(error.into()),
                        _ => Ok(()),
                    }
                }
                outcome => outcome,
            },
            Matched::Replace => {
                let change = rawdoc! { "q": query, "u": document.into_owned() };
                self.update(request, change).await
            }
            Matched::Merge => {
                let fields = rawdoc! { "$literal": document.into_owned() };
                let merged = rawdoc! { "$mergeObjects": ["$$ROOT", fields] };
                let change = rawdoc! { "q": query, "u": [{ "$replaceWith": merged }] };
                self.update(request, change).await
            }
        }
    }

    /// Returns the query that finds the match of `document`.
    fn query(&self, document: &RawDocument) -> Result<RawDocumentBuf, CommandError> {
        let mut query = RawDocumentBuf::new();
        for field in &self.on {
            match at(document, field) {
                None | Some(RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::Array(_)) => {
                    let message = format!(
                        "$merge write error: 'on' field '{field}' cannot be missing, null, undefined or an array"
                    );
                    return Err(CommandError::refused(Code::Location51132, message));
                }
                Some(value) => {
                    let name = bson::raw::CString::try_from(field.as_str())
                        .map_err(|error| CommandError::bad_value(error.to_string()))?;
                    query.append(name, rawdoc! { "$eq": RawBson::from(value) });
                }
            }
        }
        Ok(query)
    }

    fn insert(&self, request: &Request<'_>, document: &RawDocument) -> Result<(), CommandError> {
        let collections = request.documents.collections();
        let collection = collections.get_or_create(&self.into)?;
        changes::insert(&collection, document, None, request.stop())
    }

    async fn update(
        &self,
        request: &Request<'_>,
        mut change: RawDocumentBuf,
    ) -> Result<(), CommandError> {
        change.append(cstr!("upsert"), self.unmatched == Unmatched::Insert);
        let found = update::run_one(request, &self.into, &change).await?;
        if found == 0 && self.unmatched == Unmatched::Fail {
            let message = "$merge could not find a matching document in the target collection for at least one document in the source collection";
            return Err(CommandError::refused(
                Code::MergeStageNoMatchingDocument,
                message,
            ));
        }
        Ok(())
    }
}

fn merge_target(request: &Request<'_>, fields: &Arguments<'_>) -> Result<Namespace, CommandError> {
    match fields.get("into") {
        None => Err(fields.missing("into")),
        Some(RawBsonRef::String(collection)) => target(&request.command.db, collection),
        Some(_) => {
            let into = fields.required_document("into")?;
            let into = Arguments::parse_nested("$merge.into", into, Known::Only(&["db", "coll"]))?;
            let db = into.string("db")?.unwrap_or(&request.command.db);
            target(db, into.required_string("coll")?)
        }
    }
}

fn on_fields(fields: &Arguments<'_>) -> Result<Vec<String>, CommandError> {
    let wrong = || {
        let message = "$merge 'on' field must be either a string or an array of strings";
        CommandError::refused(Code::Location51186, message)
    };
    match fields.get("on") {
        None => Ok(vec!["_id".to_owned()]),
        Some(RawBsonRef::String(field)) => Ok(vec![field.to_owned()]),
        Some(RawBsonRef::Array(names)) if !names.is_empty() => names
            .into_iter()
            .map(|name| {
                Ok(name
                    .ok()
                    .and_then(|name| name.as_str())
                    .ok_or_else(wrong)?
                    .to_owned())
            })
            .collect(),
        Some(_) => Err(wrong()),
    }
}

fn matched(fields: &Arguments<'_>) -> Result<Matched, CommandError> {
    if let Some(RawBsonRef::Array(_)) = fields.get("whenMatched") {
        let message = "a pipeline as whenMatched of $merge is not supported";
        return Err(CommandError::refused(Code::NotImplemented, message));
    }
    match fields.string("whenMatched")? {
        None | Some("merge") => Ok(Matched::Merge),
        Some("replace") => Ok(Matched::Replace),
        Some("keepExisting") => Ok(Matched::KeepExisting),
        Some("fail") => Ok(Matched::Fail),
        Some(other) => Err(unknown_mode("whenMatched", other)),
    }
}

fn unmatched(fields: &Arguments<'_>) -> Result<Unmatched, CommandError> {
    match fields.string("whenNotMatched")? {
        None | Some("insert") => Ok(Unmatched::Insert),
        Some("discard") => Ok(Unmatched::Discard),
        Some("fail") => Ok(Unmatched::Fail),
        Some(other) => Err(unknown_mode("whenNotMatched", other)),
    }
}

fn unknown_mode(field: &str, mode: &str) -> CommandError {
    CommandError::bad_value(format!(
        "Enumeration value '{mode}' for field '$merge.{field}' is not a valid value."
    ))
}

/// Returns the value at a dotted path, through embedded documents but not arrays.
fn at<'a>(document: &'a RawDocument, path: &str) -> Option<RawBsonRef<'a>> {
    match path.split_once('.') {
        None => element::get(document, path),
        Some((first, rest)) => at(element::get(document, first)?.as_document()?, rest),
    }
}

/// Returns the documents of the next chunk. Returns an empty vector at the end of the stream.
fn chunk(documents: &mut dyn Stream, stop: &Stop) -> Result<Vec<Row>, CommandError> {
    let (mut chunk, mut bytes) = (Vec::new(), 0);
    while chunk.len() < CHUNK_DOCUMENTS
        && bytes < CHUNK_BYTES
        && let Some(document) = documents.next(stop)?
    {
        bytes += document.as_bytes().len();
        chunk.push(document);
    }
    Ok(chunk)
}

/// Returns all documents, held in memory.
fn all(mut documents: Box<dyn Stream>, request: &Request<'_>) -> Result<List, CommandError> {
    let settings = request.documents.settings();
    let bytes_max = settings.stage_memory_bytes_max;
    let (mut rows, mut bytes) = (Vec::new(), 0);
    let mut held = Held::new(&settings.memory, 0);
    while let Some(document) = documents.next(request.stop())? {
        bytes += document.as_bytes().len();
        if bytes > bytes_max {
            let message = format!(
                "a $merge into the collection that it reads must hold all documents in memory, but they exceed \
                 {bytes_max} bytes"
            );
            return Err(CommandError::refused(Code::ExceededMemoryLimit, message));
        }
        held.take(document.as_bytes().len() + ROW_BYTES)?;
        rows.push(document.detached());
    }
    Ok(List::holding(rows, held))
}
