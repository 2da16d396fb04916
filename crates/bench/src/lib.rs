//! The demonstration and the benchmark definitions.
//!
//! Each Forebay server, or rival, runs in a process of its own and is used through an ordinary client (crate `peers`):
//! no figure is measured inside a server. `demo` shows the searches on real data. `documents` has the definitions of
//! `forebay bench documents`, each with its right count.
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
