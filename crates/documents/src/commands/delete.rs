//! `delete`: removes documents that match.

use std::sync::Arc;

use bson::RawDocument;
use forebay_query::{Code, Filter};

use super::read;
use crate::arguments::{Arguments, Known};
use crate::changes::{self, Deleted};
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Later, Reply, Run, Spec};
use crate::error::CommandError;
use crate::plan::{Access, Plan, Wishes};
use crate::request::Request;
use crate::streams::blocking;
use crate::write_result::WriteErrors;

/// The command.
pub const SPEC: Spec = Spec {
    name: "delete",
    help: "removes documents",
    known: Known::Only(&["deletes", "ordered", "let"]),
    effect: Effect::Writes,
    run: Run::Later(start),
};

fn start<'a>(request: &'a Request<'a>) -> Later<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    namespace.writable()?;
    read::no_variables(request)?;
    let ordered = request.arguments.boolean("ordered")?.unwrap_or(true);
    let (mut count, mut errors) = (0, WriteErrors::default());
    for (index, statement) in request.statements("deletes")?.into_iter().enumerate() {
        let mut done = Deleted::default();
        let outcome = match Statement::parse(request, statement) {
            Ok(statement) => match request.documents.collections().get(&namespace) {
                Some(collection) => statement.run(request, &collection, &mut done).await,
                None => Ok(()),
            },
            Err(error) => Err(error),
        };
        count += done.count;
        if let Err(error) = outcome {
            errors.push(index, &error);
            if ordered || error.ends_batch() {
                break;
            }
        }
    }
    Ok(errors.reply(count))
}

/// One entry of `deletes`.
pub struct Statement<'a> {
    filter: Arc<Filter>,
    first_only: bool,
    arguments: Arguments<'a>,
}

impl<'a> Statement<'a> {
    /// Reads a statement.
    ///
    /// # Errors
    /// Whatever is wrong with it.
    pub fn parse(
        request: &Request<'_>,
        statement: &'a RawDocument,
    ) -> Result<Statement<'a>, CommandError> {
        let known = Known::Only(&["q", "limit", "collation", "hint", "sampleId"]);
        let arguments = Arguments::parse_nested("delete.deletes", statement, known)?;
        arguments.simple_collation()?;
        let filter = Arc::new(Filter::parse(
            arguments.required_document("q")?,
            &read::limits(request),
        )?);
        let first_only = match arguments
            .integer("limit")?
            .ok_or_else(|| arguments.missing("limit"))?
        {
            0 => false,
            1 => true,
            other => {
                let message =
                    format!("The limit field in delete objects must be 0 or 1. Got {other}");
                return Err(CommandError::refused(Code::FailedToParse, message));
            }
        };
        Ok(Statement {
            filter,
            first_only,
            arguments,
        })
    }

    /// The plan of the search for what is to be removed.
    ///
    /// # Errors
    /// Whatever is wrong with the hint.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Plan, CommandError> {
        let hint = crate::plan::hint(collection, self.arguments.get("hint"))?;
        let wishes = Wishes {
            hint,
            strict: request.strict(),
            ..Wishes::default()
        };
        Plan::new(collection.clone(), self.filter.clone(), &wishes)
    }

    async fn run(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        done: &mut Deleted,
    ) -> Result<(), CommandError> {
        let plan = self.plan(request, collection)?;
        let limit = if self.first_only { Some(1) } else { None };
        loop {
            let numbers = plan.numbers(limit, request.stop()).await?;
            let mut change = || {
                changes::delete(
                    collection,
                    &self.filter,
                    (&numbers, self.first_only),
                    request.stop(),
                    done,
                )
            };
            if self.first_only {
                change()?
            } else {
                blocking(change)?
            };
            // What was found may have been changed by another client before it could be removed here: then look again.
            if !self.first_only
                || done.count > 0
                || numbers.is_empty()
                || matches!(plan.access, Access::Id(_))
            {
                return Ok(());
            }
        }
    }
}
