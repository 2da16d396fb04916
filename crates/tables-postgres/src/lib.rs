//! PostgreSQL's protocol: clients' connections to sessions of `tables`.
//!
//! [`Door`] serves connections. Messages are read and written by `pgwire`; values are written and read by [`encode`]
//! and [`decode`].
#![forbid(unsafe_code)]

mod connection;
mod copy;
mod copy_in;
pub mod decode;
mod door;
pub mod encode;
mod extended;
mod reply;
mod startup;
pub mod types;
mod wire;

pub use door::{Access, Door, Login, Proof, Settings, Users};
pub use wire::ConnectionError;
