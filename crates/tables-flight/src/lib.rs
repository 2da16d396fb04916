//! Arrow Flight SQL: gRPC calls to statements of `tables`, rows to record batches.
//!
//! The connections are the caller's: [`Door::serve`] speaks HTTP/2 on a stream. A connection has one user and one
//! session, as in PostgreSQL's protocol, which ends with it: settings and prepared statements are its own.
#![forbid(unsafe_code)]

mod answer;
mod call;
mod client;
mod door;
mod error;
mod listings;
mod login;
mod parameters;
mod service;
mod tickets;
mod types;

pub use door::{Access, ConnectionError, Door, Settings, Users};
