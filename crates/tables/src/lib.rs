//! SQL over files, managed tables and views, on Apache DataFusion: the catalogue, sessions, and the errors of
//! statements.
//!
//! [`Tables`] is the engine. A client has a [`Session`], which runs the statements that [`parse`] returns. Queries run
//! on the engine's own threads, and take memory from the account of the process.
#![forbid(unsafe_code)]

mod activity;
mod attributes;
mod balanced;
mod binding;
mod boxed;
mod bytea;
mod catalogue;
mod clients;
mod command;
mod compatible;
mod complexity;
mod computed;
mod conditions;
mod copy;
mod cursor;
mod ddl;
mod declaration;
mod declared;
mod dialect;
mod dynamic;
mod engine;
mod error;
mod estimates;
mod expansion;
mod explain;
mod files;
mod functions;
mod gpu;
mod guards;
mod headers;
mod inference;
mod information;
mod kernels;
mod lengths;
mod listing;
mod managed;
mod memory;
mod names;
mod nan;
mod operators;
mod padded;
mod parse;
mod paths;
mod physical;
mod plan;
mod planned;
mod provider;
mod read_ahead;
mod relations;
mod rewrite;
mod rows;
mod s3;
mod scans;
mod scratch;
mod semantics;
mod semijoins;
mod session;
mod sized;
mod sliced;
mod source;
mod stop;
mod subqueries;
mod sums;
mod system;
mod to_char;
mod types;
mod variables;
mod versioned;
mod warming;

pub use activity::{Ending, Figures, RunningStatement, SlowStatement};
pub use bytea::bytea_of_text;
pub use copy::{CopyFormat, CopyOptions, QuotedColumns};
pub use engine::{Settings, Tables};
pub use error::{Code, Place, Result, SqlError};
pub use gpu::{
    ALTERNATIVES_OPERATOR, GPU_OPERATOR, GpuColumn, GpuColumns, GpuFigures, GpuOptions, GpuRule,
    PlanAgain, TableName,
};
pub use listing::TableStatus;
pub use managed::CopyIn;
pub use parse::{Parsed, TEXT_BYTES_MAX, parse};
pub use paths::Paths;
pub use rows::Rows;
pub use scratch::Scratch;
pub use session::{Outcome, Prepared, Session, TransactionStatus};
pub use source::Source;
pub use versioned::{ColumnError, TableVersion, VersionedScan, VersionedTable};
pub use warming::{Warmed, Warming};
