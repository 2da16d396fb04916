//! The programs that Forebay is measured against, each set up by its own documentation and run in its own process.

pub mod column;
pub mod ferretdb;
pub mod postgres;
pub mod ripgrep;
