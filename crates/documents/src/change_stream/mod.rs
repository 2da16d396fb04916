//! `$changeStream`: what is written, as events, in the order of the store.
//!
//! The store's history of changes is read from where the client says, turned into event documents, and sent through the
//! stages behind `$changeStream`. The cursor has no end: a `getMore` that finds nothing waits for the next change that
//! concerns the stream.
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
use crate::commands::aggregate::{behind_first, first_stage};
use crate::commands::read;
use crate::dispatch::Reply;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::request::Request;
use options::Options;

pub use stream::ChangeStream;
pub use token::ResumeToken;

/// The stage that this is about.
pub const STAGE: &str = "$changeStream";

/// Does a pipeline begin with `$changeStream`?
pub fn is_asked_for(pipeline: &RawArray) -> bool {
    first_stage(pipeline).is_some_and(|(name, _)| name == STAGE)
}

/// Answers an `aggregate` that begins with `$changeStream`: opens a cursor, with what there is already in its batch.
///
/// # Errors
/// 40573 where no history is kept; what is wrong with the options or the stages; `ChangeStreamHistoryLost`.
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
    let stream = ChangeStream::open(store, history, &options, stages)?;
    let options = BatchOptions {
        size,
        ..BatchOptions::default()
    };
    batch::open(request, namespace, Box::new(stream), options).await
}

fn not_kept() -> CommandError {
    CommandError::refused(
        Code::Location40573,
        "The $changeStream stage needs a history of changes, and this server keeps none: start it with \
         --documents-change-history-bytes-max, as in --documents-change-history-bytes-max 1GiB",
    )
}

/// The stages behind the first one, which may only change or leave out events.
fn stages(request: &Request<'_>, pipeline: &RawArray) -> Result<Vec<Stage>, CommandError> {
    let behind = behind_first(pipeline);
    let stages = Pipeline::parse(&behind, &read::limits(request)?)?.stages;
    let names = behind.into_iter().flatten().filter_map(|stage| {
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
