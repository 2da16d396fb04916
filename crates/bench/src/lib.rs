//! The demonstration and the benchmarks.
//!
//! Each Forebay server and each rival runs in its own process and is measured through an ordinary client (crate
//! `peers`); nothing is measured inside a server. `demo` shows searches on real data. `documents` defines the cases of
//! `forebay bench documents`, each with its expected count.
#![forbid(unsafe_code)]

pub mod data;
pub mod demo;
pub mod documents;
pub mod plot;
pub mod record;
pub mod statistics;
pub mod timed;

pub use demo::{DemoArgs, run as demo};
pub use documents::{BenchArgs, run as bench};
