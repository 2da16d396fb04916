//! The programs that Forebay is measured against, each set up by its own documentation and run in its own process.

pub mod ferretdb;
pub mod ripgrep;
