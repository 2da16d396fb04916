//! What the commands that read have in common.

use std::sync::Arc;

use bson::{DateTime, RawDocument, RawDocumentBuf};
use forebay_documents_query::filter::{Compilation, Match};
use forebay_documents_query::{Filter, Limits, Projection, Variables};
use forebay_text::Budget;

use crate::arguments::{Arguments, Known};
use crate::error::CommandError;
use crate::places::{self, aside};
use crate::request::Request;

/// The limits that parsing and execution keep to, and the variables of the command's `let`. What is parsed with them
/// may compile patterns of a cost that is bounded for all of it together.
///
/// # Errors
/// Whatever is wrong with `let`.
pub fn limits(request: &Request<'_>) -> Result<Limits, CommandError> {
    let settings = request.documents.settings();
    let mut limits = Limits {
        stage_memory_bytes_max: settings.stage_memory_bytes_max,
        memory: settings.memory.clone(),
        pattern: settings.pattern.clone(),
        compilation: compilation(request),
        ..Limits::default()
    };
    if let Some(definitions) = request.arguments.document("let")? {
        limits.variables = Variables::parse(definitions, DateTime::now(), &limits)?;
    }
    Ok(limits)
}

/// Patterns are compiled away from the threads that serve the network, and only until the command has to end.
fn compilation(request: &Request<'_>) -> Compilation {
    let bytes = request.documents.settings().command_patterns_bytes_max;
    let budget = Budget::new(bytes, request.shared_stop.clone());
    Compilation {
        budget: Arc::new(budget),
        programs: request.documents.programs().clone(),
        aside: places::compile,
    }
}

/// The filter in the argument `name`; everything if it is absent.
///
/// # Errors
/// `TypeMismatch`, and whatever is wrong with the filter.
pub fn filter(request: &Request<'_>, name: &str) -> Result<Arc<Filter>, CommandError> {
    let limits = limits(request)?;
    match request.arguments.document(name)? {
        Some(query) if !query.is_empty() => Ok(Arc::new(Filter::parse(query, &limits)?)),
        _ => Ok(Arc::new(Filter::all())),
    }
}

/// Those of a command's own entries, such as the collections there are, that match the client's filter.
///
/// # Errors
/// That of an expression of the filter, and that the command has to end.
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
    match filter.is_cheap() {
        true => judge(),
        false => aside(request.stop(), judge).await?,
    }
}

/// `cursor.batchSize` of the commands that have it there.
///
/// # Errors
/// `TypeMismatch`, or that it is negative.
pub fn cursor_batch_size(request: &Request<'_>) -> Result<Option<u64>, CommandError> {
    let Some(cursor) = request.arguments.document("cursor")? else {
        return Ok(None);
    };
    Arguments::parse("cursor", cursor, Known::Any)?.unsigned("batchSize")
}

/// The array element that `field.$` of a projection stands for, where it is needed.
///
/// # Errors
/// That of an expression of the filter.
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
