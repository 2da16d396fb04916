//! `update`: changes documents that match.

use std::sync::Arc;

use bson::{DateTime, RawArrayBuf, RawBson, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_query::{Code, Filter, Update, UpdateContext};

use super::read;
use crate::arguments::{Arguments, Known};
use crate::changes::{self, Updated};
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Later, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::plan::{Access, Hint, Plan, Wishes};
use crate::request::Request;
use crate::streams::blocking;
use crate::write_result::{WriteErrors, wire_count};

/// The command.
pub const SPEC: Spec = Spec {
    name: "update",
    help: "changes documents",
    known: Known::Only(&["updates", "ordered", "bypassDocumentValidation", "let"]),
    effect: Effect::Writes,
    run: Run::Later(start),
};

/// How often an upsert is tried again when another client inserts the same key first.
const UPSERT_TRIES: u32 = 4;

fn start<'a>(request: &'a Request<'a>) -> Later<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    namespace.writable()?;
    read::no_variables(request)?;
    let ordered = request.arguments.boolean("ordered")?.unwrap_or(true);
    let mut totals = Totals::default();
    for (index, statement) in request.statements("updates")?.into_iter().enumerate() {
        let outcome = match Statement::parse(request, statement) {
            Ok(statement) => statement.run(request, &namespace, &mut totals, index).await,
            Err(error) => Err(error),
        };
        if let Err(error) = outcome {
            totals.errors.push(index, &error);
            if ordered || error.ends_batch() {
                break;
            }
        }
    }
    Ok(totals.reply())
}

#[derive(Default)]
struct Totals {
    matched: usize,
    modified: usize,
    upserted: Vec<RawDocumentBuf>,
    errors: WriteErrors,
}

impl Totals {
    fn reply(self) -> RawDocumentBuf {
        let mut reply = rawdoc! { "n": wire_count(self.matched + self.upserted.len()), "nModified": wire_count(self.modified) };
        if !self.upserted.is_empty() {
            reply.append(
                cstr!("upserted"),
                self.upserted.into_iter().collect::<RawArrayBuf>(),
            );
        }
        self.errors.append_to(&mut reply);
        reply.append(cstr!("ok"), 1.0);
        reply
    }
}

/// One entry of `updates`.
pub struct Statement<'a> {
    filter: Arc<Filter>,
    update: Update,
    multi: bool,
    upsert: bool,
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
        let known = Known::Only(&[
            "q",
            "u",
            "c",
            "multi",
            "upsert",
            "collation",
            "arrayFilters",
            "hint",
            "sort",
            "upsertSupplied",
            "sampleId",
        ]);
        let arguments = Arguments::parse_nested("update.updates", statement, known)?;
        arguments.simple_collation()?;
        arguments.unsupported(&["c", "sort"])?;
        let limits = read::limits(request);
        let update = arguments.get("u").ok_or_else(|| arguments.missing("u"))?;
        let update = Update::parse(update, arguments.array("arrayFilters")?, &limits)?;
        let multi = arguments.flag("multi")?;
        if multi && update.is_replacement() {
            let message = "multi update is not supported for replacement-style update";
            return Err(CommandError::refused(Code::FailedToParse, message));
        }
        let filter = Arc::new(Filter::parse(arguments.required_document("q")?, &limits)?);
        Ok(Statement {
            filter,
            update,
            multi,
            upsert: arguments.flag("upsert")?,
            arguments,
        })
    }

    async fn run(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
        totals: &mut Totals,
        index: usize,
    ) -> Result<(), CommandError> {
        let collections = request.documents.collections();
        let collection = match collections.get(namespace) {
            Some(collection) => collection,
            None if self.upsert => collections.get_or_create(namespace)?,
            None => return Ok(()),
        };
        let mut done = Updated::default();
        let outcome = self.apply(request, &collection, &mut done).await;
        totals.matched += done.matched;
        totals.modified += done.modified;
        if let Some(id) = outcome? {
            totals
                .upserted
                .push(rawdoc! { "index": wire_count(index), "_id": id });
        }
        Ok(())
    }

    /// Updates what matches, or inserts; the `_id` inserted, if so.
    async fn apply(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        done: &mut Updated,
    ) -> Result<Option<RawBson>, CommandError> {
        for tries_left in (0..UPSERT_TRIES).rev() {
            self.update_matches(request, collection, done).await?;
            if done.matched > 0 || !self.upsert {
                return Ok(None);
            }
            match upsert(collection, &self.filter, &self.update) {
                Ok(made) => return Ok(made.get("_id").ok().flatten().map(RawBson::from)),
                Err(error) if error.code() == Code::DuplicateKey && tries_left > 0 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The plan of the search for what is to be changed.
    ///
    /// # Errors
    /// Whatever is wrong with the hint.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Plan, CommandError> {
        let hint: Option<Hint> = crate::plan::hint(collection, self.arguments.get("hint"))?;
        let wishes = Wishes {
            hint,
            strict: request.strict(),
            ..Wishes::default()
        };
        Plan::new(collection.clone(), self.filter.clone(), &wishes)
    }

    async fn update_matches(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        done: &mut Updated,
    ) -> Result<(), CommandError> {
        let plan = self.plan(request, collection)?;
        let limit = if self.multi { None } else { Some(1) };
        loop {
            let numbers = plan.numbers(limit, request.stop()).await?;
            let mut change = || {
                changes::update(
                    collection,
                    (&self.filter, &self.update),
                    (&numbers, !self.multi),
                    request.stop(),
                    done,
                )
            };
            if self.multi {
                blocking(change)?
            } else {
                change()?
            };
            // What was found may have been changed by another client before it could be changed here: then look again.
            if self.multi
                || done.matched > 0
                || numbers.is_empty()
                || matches!(plan.access, Access::Id(_))
            {
                return Ok(());
            }
        }
    }
}

/// Inserts the document that an upsert makes.
///
/// # Errors
/// Whatever the query and the update contradict each other in, and whatever the store says.
pub fn upsert(
    collection: &OpenCollection,
    filter: &Filter,
    update: &Update,
) -> Result<RawDocumentBuf, CommandError> {
    let context = UpdateContext {
        now: DateTime::now(),
        is_insert: true,
        position: None,
    };
    let made = update.upsert_document(filter, &context)?;
    changes::insert(collection, &made)?;
    Ok(made)
}
