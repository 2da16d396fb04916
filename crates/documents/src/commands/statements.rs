//! Common parts of `update` and `delete`: a batch of statements, each for the documents that match its `q`.
//!
//! The shapes of all statements are checked before the first of them runs: a field that is unknown, missing or of the
//! wrong type fails the command, as in MongoDB. Other errors of a statement appear when it runs and fail only it.

use std::sync::Arc;

use bson::RawDocument;
use forebay_documents_query::Filter;
use forebay_documents_store::RecordNumber;

use super::read;
use crate::arguments::{Arguments, Known};
use crate::collections::OpenCollection;
use crate::error::CommandError;
use crate::namespace::{self, Namespace};
use crate::places::blocking;
use crate::plan::{self, Access, Plan, PlanRequirements};
use crate::request::Request;
use crate::searches::Search;
use crate::write_result::WriteErrors;

/// A write command whose statements have the right shapes.
pub struct Batch<'a> {
    /// The collection to write to.
    pub namespace: Namespace,
    /// The statements in order. Each is read again when it runs, as 100,000 of them would take 90 MB once read.
    pub statements: Vec<&'a RawDocument>,
    is_ordered: bool,
}

impl<'a> Batch<'a> {
    /// Reads the command, and checks each entry of its array `name` by `read`.
    ///
    /// # Errors
    /// That the collection cannot be written to, or a wrong shape.
    pub fn read<S>(
        request: &Request<'a>,
        name: &str,
        read: fn(&'a RawDocument) -> Result<S, CommandError>,
    ) -> Result<Batch<'a>, CommandError> {
        let namespace = request.namespace()?;
        namespace::check_writable(&namespace)?;
        let statements = request.statements(name)?;
        for statement in &statements {
            read(statement)?;
        }
        Ok(Batch {
            namespace,
            statements,
            is_ordered: request.arguments.boolean("ordered")?.unwrap_or(true),
        })
    }

    /// Records the outcome of statement `index`. Returns true if no more statements may run.
    pub fn record(
        &self,
        index: usize,
        outcome: Result<(), CommandError>,
        errors: &mut WriteErrors,
    ) -> bool {
        let Err(error) = outcome else {
            return false;
        };
        errors.push(index, &error);
        self.is_ordered || error.ends_batch()
    }
}

/// The part of a statement that selects its documents; its shape has been checked.
pub struct Query<'a> {
    arguments: Arguments<'a>,
    query: &'a RawDocument,
}

impl<'a> Query<'a> {
    /// Reads `q`, `collation` and `hint` of a statement, an entry of the array `array`.
    ///
    /// # Errors
    /// 40415 for a field that is not `known`, 40414 without `q`, `TypeMismatch`; `FailedToParse` for the type of the
    /// hint.
    pub fn read(
        array: &'static str,
        statement: &'a RawDocument,
        known: &'static [&'static str],
    ) -> Result<Query<'a>, CommandError> {
        let arguments = Arguments::parse_nested(array, statement, Known::Only(known))?;
        arguments.document("collation")?;
        plan::check_hint(arguments.get("hint"))?;
        let query = arguments.required_document("q")?;
        Ok(Query { arguments, query })
    }

    /// All fields of the statement.
    pub fn arguments(&self) -> &Arguments<'a> {
        &self.arguments
    }

    /// The target of the statement: the first document that matches, or all.
    ///
    /// # Errors
    /// An invalid filter, or a collation that is not supported.
    pub fn target(
        &self,
        request: &Request<'_>,
        first_only: bool,
    ) -> Result<Target<'_>, CommandError> {
        self.arguments.simple_collation()?;
        Ok(Target {
            filter: Arc::new(Filter::parse(self.query, &read::limits(request)?)?),
            first_only,
            arguments: &self.arguments,
        })
    }
}

/// The documents that a statement changes.
pub struct Target<'a> {
    /// The filter that they match.
    pub filter: Arc<Filter>,
    /// Whether only the first of them is changed.
    pub first_only: bool,
    arguments: &'a Arguments<'a>,
}

impl Target<'_> {
    /// The plan of the search for them.
    ///
    /// # Errors
    /// An invalid hint; in strict mode, that the search would scan.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        let requirements = PlanRequirements {
            hint: plan::hint(collection, self.arguments.get("hint"))?,
            strict: request.strict(),
            ..PlanRequirements::default()
        };
        Plan::new(collection.clone(), self.filter.clone(), &requirements)
    }

    /// Searches them and passes their numbers to `change`, which returns how many of them still matched.
    ///
    /// # Errors
    /// The error of the search or the change.
    pub async fn change(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
        mut change: impl FnMut(&[RecordNumber]) -> Result<usize, CommandError> + Send,
    ) -> Result<(), CommandError> {
        let plan = self.plan(request, collection)?;
        request.begin_search(Search::Documents(plan.clone()));
        if !self.first_only {
            let numbers = plan.numbers(None, request.stop()).await?;
            return blocking(|| change(&numbers)).map(drop);
        }
        loop {
            let numbers = plan.numbers(Some(1), request.stop()).await?;
            let is_final = numbers.is_empty() || matches!(plan.access, Access::Id(_));
            // If another client has changed the documents that were found, search again.
            if change(&numbers)? > 0 || is_final {
                return Ok(());
            }
        }
    }
}
