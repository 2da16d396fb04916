//! MongoDB's commands on the embedded store, with exact, prefix, substring and regex searches answered from the cache
//! of field values.
//!
//! [`Documents::run`] takes one [`Command`] and returns one reply. Each command has a separate file under `commands/`;
//! the command table is `COMMANDS` there. The `server` crate handles network, handshake and authentication. This crate
//! knows connections only by their [`ClientContext`].
//!
//! A read is planned (`plan`). The plan yields a source of documents, which are read through a chain of `streams` into
//! batches. A change stream (`change_stream`) is a stream without an end. A write goes to the store, then to the cache,
//! and then the reply is sent. Store and cache apply writes in the same order. A client that has the reply to a write
//! therefore finds the written data.
#![forbid(unsafe_code)]

mod access;
mod api;
mod arguments;
mod batch;
mod change_stream;
mod changes;
mod collections;
mod command;
mod commands;
mod cursors;
mod dispatch;
mod documents;
mod error;
mod host;
mod index_spec;
mod metrics;
pub mod namespace;
mod operations;
mod places;
mod plan;
mod replica;
mod request;
mod retry;
mod scope;
mod search;
mod searches;
mod sessions;
mod settings;
mod slow_turns;
mod status;
mod streams;
mod write_result;

pub use access::{Action, Rights, Role, denial};
pub use command::{ClientContext, Command, Link, User};
pub use documents::{Documents, OpenError};
pub use error::{CommandError, code_name};
pub use forebay_documents_store::{DirectoryLock, holds_store, lock_directory};
pub use metrics::{AnsweredBy, Durations, Histogram, Kind, SearchFigures};
pub use namespace::Namespace;
pub use operations::DEPARTED_WRITE_TIME;
pub use replica::Replicated;
pub use retry::{error_label, may_be_repeated};
pub use search::IndexState;
pub use settings::{Location, MONGODB_VERSION, Settings, WRITE_BATCH_MAX};
pub use status::{Cell, CollectionStatus, FieldStatus, Status};

/// Returns the index key of an `_id`. Values that are equal across types, such as `1` and `1.0`, have the same key.
pub fn id_key(id: bson::RawBsonRef<'_>) -> Vec<u8> {
    forebay_documents_query::key::encode(id)
}

/// Returns the names of all commands that [`Documents::run`] answers, with one-sentence descriptions.
pub fn commands() -> impl Iterator<Item = (&'static str, &'static str)> {
    commands::COMMANDS.iter().map(|spec| (spec.name, spec.help))
}
