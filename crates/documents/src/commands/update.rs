//! `update`: updates documents that match.

use std::sync::Arc;

use bson::{DateTime, RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::{cstr, rawdoc};
use forebay_documents_query::{Code, Filter, Update, UpdateContext};
use forebay_memory::Account;

use super::read;
use super::statements::{Batch, Query, Target};
use crate::arguments::{Known, wrong_type};
use crate::changes::{self, Reach, Updated};
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::room_for_growth;
use crate::plan::Plan;
use crate::request::Request;
use crate::retry::{Keep, update_outcome};
use crate::write_result::{Entries, WriteErrors, wire_count};

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "update",
    help: "changes documents",
    known: Known::Only(&["updates", "ordered", "bypassDocumentValidation", "let"]),
    effect: Effect::Writes,
    run: Run::Async(start),
};

/// Maximum attempts of an upsert if other clients insert the same key first.
const UPSERT_TRIES: u32 = 4;

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let batch = Batch::read(request, "updates", Statement::read)?;
    let mut totals = Totals::new(&request.documents.settings().memory);
    for (index, statement) in batch.statements.iter().enumerate() {
        let outcome = Statement::read(statement)?
            .run(request, &batch.namespace, &mut totals, index)
            .await;
        if batch.record(index, outcome, &mut totals.errors) {
            break;
        }
    }
    totals.reply()
}

/// Runs one entry of `updates` for another command. Returns the number of documents that matched.
///
/// # Errors
/// An error for an invalid entry, or the store's error.
pub async fn run_one(
    request: &Request<'_>,
    namespace: &Namespace,
    entry: &RawDocument,
) -> Result<usize, CommandError> {
    let mut totals = Totals::new(&request.documents.settings().memory);
    let statement = Statement::read(entry)?;
    let run = statement.run(request, namespace, &mut totals, 0);
    run.await?;
    Ok(totals.matched)
}

struct Totals {
    matched: usize,
    modified: usize,
    upserted: Entries,
    errors: WriteErrors,
}

impl Totals {
    fn new(memory: &Account) -> Totals {
        Totals {
            matched: 0,
            modified: 0,
            upserted: Entries::new(memory),
            errors: WriteErrors::new(memory),
        }
    }

    /// Counts a statement that an earlier attempt of the command applied. `outcome` is the recorded outcome of the
    /// statement.
    fn count(&mut self, outcome: &RawDocument, index: usize) {
        match outcome.get("upserted") {
            Ok(Some(id)) => self.note_upsert(index, id.into()),
            _ => {
                self.matched += 1;
                self.modified += 1;
            }
        }
    }

    fn note_upsert(&mut self, index: usize, id: RawBson) {
        let entry = rawdoc! { "index": wire_count(index), "_id": id };
        self.upserted.push(index, entry);
    }

    fn reply(self) -> Reply {
        let mut reply = rawdoc! { "n": wire_count(self.matched + self.upserted.len()), "nModified": wire_count(self.modified) };
        self.upserted.append_to(cstr!("upserted"), &mut reply)?;
        self.errors.append_to(&mut reply)?;
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    }
}

/// One entry of `updates`, checked for unknown, missing and mistyped fields.
pub struct Statement<'a> {
    query: Query<'a>,
    update: RawBsonRef<'a>,
    array_filters: Option<&'a RawArray>,
    multi: bool,
    upsert: bool,
}

impl<'a> Statement<'a> {
    /// Reads an entry.
    ///
    /// # Errors
    /// An error for an unknown, missing or mistyped field.
    pub fn read(statement: &'a RawDocument) -> Result<Statement<'a>, CommandError> {
        let query = Query::read(
            "update.updates",
            statement,
            &[
                "q",
                "u",
                "c",
                "multi",
                "upsert",
                "collation",
                "arrayFilters",
                "hint",
                "upsertSupplied",
                "sampleId",
            ],
        )?;
        let arguments = query.arguments();
        arguments.document("c")?;
        Ok(Statement {
            update: update_of(arguments.get("u").ok_or_else(|| arguments.missing("u"))?)?,
            array_filters: array_filters(arguments.array("arrayFilters")?)?,
            multi: arguments.flag("multi")?,
            upsert: arguments.flag("upsert")?,
            query,
        })
    }

    /// Applies the entry, which is statement `index` of the command. Does nothing if an earlier attempt of the command
    /// has applied it.
    async fn run(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
        totals: &mut Totals,
        index: usize,
    ) -> Result<(), CommandError> {
        if let Some(retry) = &request.retry {
            check_retryable(self.multi)?;
            if let Some(outcome) = retry.outcome(index)? {
                totals.count(&outcome, index);
                return Ok(());
            }
        }
        let prepared = self.prepare(request)?;
        prepared.run(request, namespace, totals, index).await
    }

    /// Parses the filter and the update of the entry.
    ///
    /// # Errors
    /// An error for an invalid filter or update.
    fn prepare(&self, request: &Request<'_>) -> Result<Prepared<'_>, CommandError> {
        self.query.arguments().unsupported(&["c"])?;
        let update = Update::parse(self.update, self.array_filters, &read::limits(request)?)?;
        if self.multi && update.is_replacement() {
            let message = "multi update is not supported for replacement-style update";
            return Err(CommandError::refused(Code::FailedToParse, message));
        }
        Ok(Prepared {
            target: self.query.target(request, !self.multi)?,
            update,
            upsert: self.upsert,
        })
    }

    /// Returns the plan that finds the documents to change.
    ///
    /// # Errors
    /// An error for an invalid entry.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        self.prepare(request)?.target.plan(request, collection)
    }
}

/// Rejects a retryable statement with `multi: true`: only statements that change a single document can be retried.
///
/// # Errors
/// `InvalidOptions`.
pub fn check_retryable(multi: bool) -> Result<(), CommandError> {
    if multi {
        let message = "Cannot use (or request) retryable writes with multi=true";
        return Err(CommandError::refused(Code::InvalidOptions, message));
    }
    Ok(())
}

fn update_of(value: RawBsonRef<'_>) -> Result<RawBsonRef<'_>, CommandError> {
    match value {
        RawBsonRef::Document(_) | RawBsonRef::Array(_) => Ok(value),
        _ => {
            let message = "Update argument must be either an object or an array";
            Err(CommandError::refused(Code::FailedToParse, message))
        }
    }
}

fn array_filters(filters: Option<&RawArray>) -> Result<Option<&RawArray>, CommandError> {
    for (index, filter) in filters.into_iter().flatten().flatten().enumerate() {
        if filter.as_document().is_none() {
            let field = format!("update.updates.arrayFilters.{index}");
            return Err(wrong_type(&field, filter, "object"));
        }
    }
    Ok(filters)
}

/// An entry of `updates` that is ready to run.
struct Prepared<'a> {
    target: Target<'a>,
    update: Update,
    upsert: bool,
}

impl Prepared<'_> {
    async fn run(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
        totals: &mut Totals,
        index: usize,
    ) -> Result<(), CommandError> {
        let collections = request.documents.collections();
        let mut collection = match collections.get(namespace) {
            Some(collection) => collection,
            None if self.upsert => collections.get_or_create(namespace)?,
            None => return Ok(()),
        };
        let keep = Keep::new(request.retry.as_ref(), index, update_outcome);
        let mut done = Updated::default();
        let outcome = loop {
            let applied = self.apply(request, &collection, keep.as_ref(), &mut done);
            match applied.await {
                // If the collection was dropped before the upsert changed anything, the upsert creates the collection
                // again.
                Err(error)
                    if self.upsert && done.matched == 0 && collection.was_dropped(&error) =>
                {
                    request.stop().check()?;
                    collection = collections.settled(namespace)?;
                }
                outcome => break outcome,
            }
        };
        totals.matched += done.matched;
        totals.modified += done.modified;
        if let Some(id) = outcome? {
            totals.note_upsert(index, id);
        }
        Ok(())
    }

    /// Updates the matches. If there are none, an upsert inserts a document. Returns the `_id` of the inserted
    /// document.
    async fn apply(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        keep: Option<&Keep<'_>>,
        done: &mut Updated,
    ) -> Result<Option<RawBson>, CommandError> {
        for tries_left in (0..UPSERT_TRIES).rev() {
            let updated = self.update_matches(request, collection, keep, done);
            updated.await?;
            if done.matched > 0 || !self.upsert {
                return Ok(None);
            }
            match upsert(collection, &self.target.filter, &self.update, keep, request) {
                Ok(made) => return Ok(made.get("_id").ok().flatten().map(RawBson::from)),
                Err(error) if error.code() == Code::DuplicateKey && tries_left > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    async fn update_matches(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        keep: Option<&Keep<'_>>,
        done: &mut Updated,
    ) -> Result<(), CommandError> {
        let Target {
            filter, first_only, ..
        } = &self.target;
        let reach = if *first_only {
            Reach::First(keep)
        } else {
            Reach::All
        };
        let change = |numbers: &[_]| {
            changes::update(
                collection,
                filter,
                &self.update,
                numbers,
                reach,
                request,
                done,
            )?;
            Ok(done.matched)
        };
        self.target.change(request, collection, change).await
    }
}

/// Inserts the document of an upsert.
///
/// # Errors
/// An error for a contradiction between query and update, or the store's error.
pub fn upsert(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
    keep: Option<&Keep<'_>>,
    request: &Request<'_>,
) -> Result<RawDocumentBuf, CommandError> {
    let context = UpdateContext {
        now: DateTime::now(),
        is_insert: true,
        position: None,
    };
    let made = update.upsert_document(filter, &context)?;
    let memory = &request.documents.settings().memory;
    let _room = room_for_growth(&made, keep.is_some(), memory)?;
    changes::insert(collection, &made, keep, request.stop())?;
    Ok(made)
}
