//! What `update` and `delete` have in common: a batch of statements, each about the documents that match its `q`.
//!
//! The shapes of all statements are checked before the first of them runs: a field that is unknown, missing or of the
//! wrong type fails the command, as in MongoDB. What a statement says is judged when its turn comes, and fails only it.

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
use crate::plan::{self, Access, Plan, Wishes};
use crate::request::Request;
use crate::searches::Search;
use crate::write_result::WriteErrors;

/// A write command whose statements have the right shapes.
pub struct Batch<'a> {
    /// The collection that is written to.
    pub namespace: Namespace,
    /// The statements, in the order of their runs. Each is read again at its turn: read, 100,000 of them take 90 MB.
    pub statements: Vec<&'a RawDocument>,
    is_ordered: bool,
}

impl<'a> Batch<'a> {
    /// Reads the command, and checks each entry of its array `name` by `read`.
    ///
    /// # Errors
    /// That the collection cannot be written to, and whatever is wrong with a shape.
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

    /// Notes how statement `index` went; true if it was the last to run.
    pub fn ends(
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

/// The part of a statement that says which documents it is about, its shape checked.
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

    /// The documents that the statement is about: the first that matches, or all.
    ///
    /// # Errors
    /// Whatever is wrong with the filter, or that the collation is not supported.
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
    /// What they match.
    pub filter: Arc<Filter>,
    /// Is it only the first of them?
    pub first_only: bool,
    arguments: &'a Arguments<'a>,
}

impl Target<'_> {
    /// The plan of the search for them.
    ///
    /// # Errors
    /// Whatever is wrong with the hint; in strict mode, that the search would scan.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        let wishes = Wishes {
            hint: plan::hint(collection, self.arguments.get("hint"))?,
            strict: request.strict(),
            ..Wishes::default()
        };
        Plan::new(collection.clone(), self.filter.clone(), &wishes)
    }

    /// Searches them and hands their numbers to `change`, which tells how many still matched and are changed so far.
    ///
    /// # Errors
    /// Whatever the search or the change says.
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
            // What was found may have been changed by another client before it could be changed here: then look again.
            if change(&numbers)? > 0 || is_final {
                return Ok(());
            }
        }
    }
}
