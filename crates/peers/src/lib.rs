//! Other programs as separate processes, and clients of servers, for tests and benchmarks.
//!
//! The crate starts Forebay servers ([`process`]), connects to servers with the official driver ([`client`]) or with a
//! bare connection ([`wire`]), and runs the programs that Forebay is compared with ([`ferretdb`], [`postgres`],
//! [`ripgrep`], [`mod@column`]), each set up according to its documentation. It neither measures nor asserts.
#![forbid(unsafe_code)]

pub mod client;
pub mod column;
pub mod ferretdb;
mod folder;
pub mod postgres;
pub mod process;
pub mod ripgrep;
pub mod wire;

pub use folder::cache_folder;
