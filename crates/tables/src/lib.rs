//! SQL over files and views, on Apache DataFusion: the catalogue, sessions, and the errors of statements.
//!
//! [`Tables`] is the engine. A client has a [`Session`], which runs the statements that [`parse`] returns. Queries run
//! on the engine's own threads, and take memory from the account of the process.
#![forbid(unsafe_code)]

mod catalogue;
mod command;
mod complexity;
mod cursor;
mod ddl;
mod dialect;
mod engine;
mod error;
mod expansion;
mod files;
mod functions;
mod memory;
mod parse;
mod paths;
mod plan;
mod provider;
mod rows;
mod session;
mod sized;
mod variables;
mod yielding;

pub use engine::{Settings, Tables};
pub use error::{Code, Place, Result, SqlError};
pub use parse::{Parsed, TEXT_BYTES_MAX, parse};
pub use paths::Paths;
pub use rows::Rows;
pub use session::{Outcome, Prepared, Session, TransactionStatus};
