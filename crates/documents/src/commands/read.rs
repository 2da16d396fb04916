//! Shared code of the commands that read.

use std::sync::Arc;

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_documents_query::filter::{Compilation, Match};
use forebay_documents_query::{Filter, Limits, Projection, Variables};
use forebay_text::Budget;

use crate::arguments::{Arguments, Known};
use crate::error::CommandError;
use crate::places::{self, aside};
use crate::request::Request;

/// Returns the limits of parsing and execution, with the variables of the command's `let`. All patterns parsed with the
/// returned limits share one budget of compilation cost.
///
/// # Errors
/// An error for an invalid `let`.
pub fn limits(request: &Request<'_>) -> Result<Limits, CommandError> {
    let settings = request.documents.settings();
    let limits = Limits {
        stage_memory_bytes_max: settings.stage_memory_bytes_max,
        pattern: settings.pattern.clone(),
        ..Limits::new(settings.memory.clone(), compilation(request))
    };
    let variables = match (request.variables.get(), request.arguments.document("let")?) {
        (Some(evaluated), _) => evaluated.clone(),
        (None, Some(definitions)) => Variables::parse(definitions, DateTime::now(), &limits)?,
        (None, None) => Variables::default(),
    };
    let variables = request.variables.get_or_init(|| variables).clone();
    Ok(Limits {
        variables,
        ..limits
    })
}

/// Returns the options for compiling patterns. Patterns are compiled off the network threads, and compilation ends when
/// the command is stopped.
fn compilation(request: &Request<'_>) -> Compilation {
    let bytes = request.documents.settings().command_patterns_bytes_max;
    let budget = Budget::new(bytes, request.shared_stop.clone());
    Compilation {
        budget: Arc::new(budget),
        programs: request.documents.programs().clone(),
        aside: places::compile,
    }
}

/// Returns the filter in the argument `name`, or one that matches every document if the argument is absent.
///
/// # Errors
/// `TypeMismatch`, or an error for an invalid filter.
pub fn filter(request: &Request<'_>, name: &str) -> Result<Arc<Filter>, CommandError> {
    let limits = limits(request)?;
    match request.arguments.document(name)? {
        Some(query) if !query.is_empty() => Ok(Arc::new(Filter::parse(query, &limits)?)),
        _ => Ok(Arc::new(Filter::all())),
    }
}

/// Returns the entries of a list (for example, the list of collections) that match the client's filter.
///
/// # Errors
/// The error of an expression of the filter, or [`CommandError::Stopped`].
pub async fn those_that_match(
    request: &Request<'_>,
    filter: &Filter,
    entries: Vec<RawDocumentBuf>,
) -> Result<Vec<RawDocumentBuf>, CommandError> {
    let judge = || {
        let mut matching = Vec::new();
        for entry in entries {
            if filter.try_matches(&entry)? {
                matching.push(entry);
            }
        }
        Ok(matching)
    };
    if filter.is_cheap() {
        judge()
    } else {
        aside(request.stop(), judge).await?
    }
}

/// Reads `cursor.batchSize`, the batch size of commands with an argument `cursor`.
///
/// # Errors
/// `TypeMismatch`, or an error for a negative size.
pub fn cursor_batch_size(request: &Request<'_>) -> Result<Option<u64>, CommandError> {
    let Some(cursor) = request.arguments.document("cursor")? else {
        return Ok(None);
    };
    Arguments::parse("cursor", cursor, Known::Any)?.unsigned("batchSize")
}

/// Returns the index of the array element that the positional `field.$` of a projection selects. Returns `None` if the
/// projection has no `field.$`.
///
/// # Errors
/// The error of an expression of the filter.
pub fn position(
    projection: &Projection,
    filter: &Filter,
    document: &RawDocument,
) -> Result<Option<usize>, CommandError> {
    if !projection.is_positional() {
        return Ok(None);
    }
    match filter.match_position(document)? {
        Match::Yes { index } => Ok(index),
        Match::No => Ok(None),
    }
}
