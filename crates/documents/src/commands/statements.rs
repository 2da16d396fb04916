//! Shared code of `update` and `delete`: a batch of statements, each of which applies to the documents that match its
//! `q`.
//!
//! All statements are checked for unknown, missing and mistyped fields before the first of them runs. Such a field
//! fails the whole command, as in MongoDB. Other errors of a statement occur when it runs and fail only that statement.

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

/// A write command whose statements have been checked for unknown, missing and mistyped fields.
pub struct Batch<'a> {
    /// The collection to write to.
    pub namespace: Namespace,
    /// The statements in order. Each is parsed again when it runs, because 100,000 parsed statements would take 90 MB.
    pub statements: Vec<&'a RawDocument>,
    is_ordered: bool,
}

impl<'a> Batch<'a> {
    /// Reads the command, and checks each entry of its array `name` with `read`.
    ///
    /// # Errors
    /// An error for a collection that clients may not write to, or for an unknown, missing or mistyped field.
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

    /// Records the error of statement `index`, if it failed. Returns true if the remaining statements must not run.
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

/// The part of a statement that selects its documents, checked for unknown, missing and mistyped fields.
pub struct Query<'a> {
    arguments: Arguments<'a>,
    query: &'a RawDocument,
}

impl<'a> Query<'a> {
    /// Reads `q`, `collation` and `hint` of a statement, which is an entry of the command's argument `array`.
    ///
    /// # Errors
    /// - Code 40415 for a field that is not in `known`.
    /// - Code 40414 if `q` is missing.
    /// - `TypeMismatch` for a field of the wrong type.
    /// - `FailedToParse` for a hint of the wrong type.
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

    /// Returns all fields of the statement.
    pub fn arguments(&self) -> &Arguments<'a> {
        &self.arguments
    }

    /// Returns the target of the statement: the first matching document, or all matching documents.
    ///
    /// # Errors
    /// An error for an invalid filter, or for a collation that is not supported.
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
    /// The filter that the documents match.
    pub filter: Arc<Filter>,
    /// Whether only the first matching document is changed.
    pub first_only: bool,
    arguments: &'a Arguments<'a>,
}

impl Target<'_> {
    /// Returns the plan that finds the documents.
    ///
    /// # Errors
    /// An error for an invalid hint or, in strict mode, for a search that would scan.
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

    /// Finds the documents and passes their record numbers to `change`, which reads the documents again and returns
    /// how many of them still match.
    ///
    /// # Errors
    /// The error of the search or of `change`.
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
            // If no document matched, other clients may have changed the documents after the search. Search again.
            if change(&numbers)? > 0 || is_final {
                return Ok(());
            }
        }
    }
}
