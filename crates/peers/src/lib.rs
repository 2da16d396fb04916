//! Other programs, started as processes of their own, and clients that talk to servers.
//!
//! Tests and benchmarks use them: a Forebay server ([`process`]), the official driver ([`client`]) and a bare
//! connection ([`wire`]), and the programs that Forebay is compared with ([`ferretdb`], [`postgres`], [`ripgrep`],
//! [`mod@column`]), each set up as its documentation says. Nothing here measures or asserts.
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
