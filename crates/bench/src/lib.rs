//! The demonstration and the benchmarks.
//!
//! Each Forebay server and each rival runs in its own process and is measured through an ordinary client (crate
//! `peers`); nothing is measured inside a server. `demo` shows searches and SQL on real data. `documents` defines the
//! cases of `forebay bench documents`, each with its expected count. `tables` generates the tables of SQL benchmarks.
#![deny(unsafe_code)]

mod command;
pub mod data;
pub mod demo;
pub mod documents;
pub mod io;
pub mod joins;
pub mod plot;
pub mod q6;
pub mod record;
mod results;
mod size;
pub mod statistics;
#[cfg(feature = "tables")]
pub mod tables;
pub mod timed;
pub mod transfer;

use anyhow::Result;
use futures_util::future::LocalBoxFuture;

pub use command::BenchArgs;
pub use demo::DemoArgs;

// The futures are boxed, so that their code is compiled once, in this crate, and not in each program that polls them.

/// Runs the demonstration.
///
/// # Errors
/// If the server does not start or refuses a command, the disk is full, a search counts different numbers of
/// documents with the caches and without them, or two runs of an SQL query have different answers.
pub fn demo(args: DemoArgs) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(demo::run(args))
}

/// Runs a group of benchmarks.
///
/// # Errors
/// If a server does not start, a rival is missing, or a count is wrong.
pub fn bench(args: BenchArgs) -> LocalBoxFuture<'static, Result<()>> {
    Box::pin(command::run(args))
}
