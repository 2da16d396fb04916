//! `delete`: removes documents that match.

use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use forebay_documents_query::Code;

use super::statements::{Batch, Query, Target};
use super::update::check_retryable;
use crate::arguments::{Arguments, Known};
use crate::changes::{self, Deleted, Reach};
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::plan::Plan;
use crate::request::Request;
use crate::retry::Keep;
use crate::write_result::WriteErrors;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "delete",
    help: "removes documents",
    known: Known::Only(&["deletes", "ordered", "let", "bypassDocumentValidation"]),
    effect: Effect::Writes,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let batch = Batch::read(request, "deletes", Statement::read)?;
    let mut done = Deleted::default();
    let mut errors = WriteErrors::new(&request.documents.settings().memory);
    for (index, statement) in batch.statements.iter().enumerate() {
        let statement = Statement::read(statement)?;
        let outcome = statement.run(request, &batch.namespace, &mut done, index);
        let outcome = outcome.await;
        if batch.record(index, outcome, &mut errors) {
            break;
        }
    }
    errors.reply(done.count)
}

/// One entry of `deletes`, checked for unknown, missing and mistyped fields.
pub struct Statement<'a> {
    query: Query<'a>,
    first_only: bool,
}

impl<'a> Statement<'a> {
    /// Reads an entry.
    ///
    /// # Errors
    /// An error for an unknown, missing or mistyped field.
    pub fn read(statement: &'a RawDocument) -> Result<Statement<'a>, CommandError> {
        let query = Query::read(
            "delete.deletes",
            statement,
            &["q", "limit", "collation", "hint", "sampleId"],
        )?;
        Ok(Statement {
            first_only: first_only(query.arguments())?,
            query,
        })
    }

    /// Returns the plan that finds the documents to remove.
    ///
    /// # Errors
    /// An error for an invalid filter or hint.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        self.target(request)?.plan(request, collection)
    }

    fn target(&self, request: &Request<'_>) -> Result<Target<'_>, CommandError> {
        self.query.target(request, self.first_only)
    }

    async fn run(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
        done: &mut Deleted,
        index: usize,
    ) -> Result<(), CommandError> {
        if let Some(retry) = &request.retry {
            check_retryable(!self.first_only)?;
            if retry.outcome(index)?.is_some() {
                done.count += 1;
                return Ok(());
            }
        }
        let target = self.target(request)?;
        let Some(collection) = request.documents.collections().get(namespace) else {
            return Ok(());
        };
        let before = done.count;
        let keep = Keep::new(request.retry.as_ref(), index, |_, _| {
            Ok(RawDocumentBuf::new())
        });
        let reach = if target.first_only {
            Reach::First(keep.as_ref())
        } else {
            Reach::All
        };
        let change = |numbers: &[_]| {
            changes::delete(&collection, &target.filter, numbers, reach, request, done)?;
            Ok(done.count - before)
        };
        target.change(request, &collection, change).await
    }
}

/// Returns whether `limit` is 1. The only other valid value is 0, which means no limit.
fn first_only(arguments: &Arguments<'_>) -> Result<bool, CommandError> {
    let limit = arguments.integer("limit")?;
    match limit.ok_or_else(|| arguments.missing("limit"))? {
        0 => Ok(false),
        1 => Ok(true),
        other => {
            let message = format!("The limit field in delete objects must be 0 or 1. Got {other}");
            Err(CommandError::refused(Code::FailedToParse, message))
        }
    }
}
