//! The demonstration and the benchmark definitions.
//!
//! Everything here talks to a Forebay server, or to a rival, in a process of its own and through an ordinary client
//! (crate `peers`): no figure is taken from inside. `demo` shows the searches on real data; `documents` holds the definitions of
//! `forebay bench documents`, each with the count it must come to.
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
