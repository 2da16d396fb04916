//! `$changeStream`: returns the writes to the store as events, in the order in which the store applied them.
//!
//! The stream reads the store's change history from a position that the client chooses, converts changes to event
//! documents, and passes these through the stages after `$changeStream`. The cursor has no end: a `getMore` that finds
//! no event waits for the next change that concerns the stream.
//!
//! # Sources
//! "Change Events" of the MongoDB manual; `change-streams.md` of the driver specifications.

mod event;
mod options;
mod stream;
mod token;

use bson::RawArray;
use forebay_documents_query::stage::Stage;
use forebay_documents_query::{Code, Pipeline};

use crate::batch::{self, BatchOptions};
use crate::commands::aggregate::{after_first, first_stage};
use crate::commands::read;
use crate::dispatch::Reply;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::request::Request;
use options::Options;

pub use stream::ChangeStream;
pub use token::ResumeToken;

/// The name of the stage.
pub const STAGE: &str = "$changeStream";

/// Returns whether a pipeline begins with `$changeStream`.
pub fn is_change_stream(pipeline: &RawArray) -> bool {
    first_stage(pipeline).is_some_and(|(name, _)| name == STAGE)
}

/// Opens a change stream for an `aggregate` that begins with `$changeStream`. The first batch contains the events since
/// the start position.
///
/// # Errors
/// - Code 40573 if the store keeps no change history.
/// - An error for invalid options or stages.
/// - `ChangeStreamHistoryLost` if the start position is no longer in the history.
pub async fn open(
    request: &Request<'_>,
    namespace: &Namespace,
    pipeline: &RawArray,
    size: Option<u64>,
) -> Reply {
    let options = Options::read(request, namespace, pipeline)?;
    let stages = stages(request, pipeline)?;
    let store = request.documents.shared_store();
    let history = store.history().cloned().ok_or_else(not_kept)?;
    let memory = &request.documents.settings().memory;
    let stream = ChangeStream::open(store, history, &options, stages, memory)?;
    let options = BatchOptions {
        size,
        ..BatchOptions::default()
    };
    batch::open(request, namespace, Box::new(stream), options).await
}

fn not_kept() -> CommandError {
    CommandError::refused(
        Code::Location40573,
        "The $changeStream stage needs the change history, which this server does not keep: start the server with \
         --documents-change-history-bytes-max, as in --documents-change-history-bytes-max 1GiB",
    )
}

/// Returns the stages after `$changeStream`. Rejects stages that do more than modify or drop single events.
fn stages(request: &Request<'_>, pipeline: &RawArray) -> Result<Vec<Stage>, CommandError> {
    let rest = after_first(pipeline);
    let stages = Pipeline::parse(&rest, &read::limits(request)?)?.stages;
    let names = rest.into_iter().flatten().filter_map(|stage| {
        let stage = stage.as_document()?.iter_elements().next()?.ok()?;
        Some(stage.key().as_str())
    });
    for (stage, name) in stages.iter().zip(names) {
        if !matches!(stage, Stage::Match(_) | Stage::Transform(_)) {
            let message = format!("{name} is not permitted in a $changeStream pipeline");
            return Err(CommandError::refused(Code::IllegalOperation, message));
        }
    }
    Ok(stages)
}
