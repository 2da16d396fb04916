//! Tables in the format of Delta Lake: Parquet files, and a log of the files that belong to each version.
//!
//! A [`Table`] has a current [`Snapshot`]. A [`Writer`] writes files, which [`Table::commit`] adds to the table in one
//! step, and removes others. Readers keep their snapshot: a file is deleted when the last snapshot that has it is
//! dropped. What was committed is synced.
//!
//! All functions block on the disk.
//!
//! # Sources
//! The *Delta Transaction Log Protocol*, in the repository of Delta Lake.
#![forbid(unsafe_code)]

mod checkpoint;
mod compaction;
mod error;
mod folder;
mod log;
mod schema;
mod stats;
mod table;
mod writer;

pub use error::{Error, Result};
pub use folder::{Probe, Step, remove_folder};
pub use schema::{COLUMN_DEFAULT, COLUMN_TEXT_TYPE, check_type};
pub use stats::FileStats;
pub use table::{Change, DataFile, Snapshot, Table};
pub use writer::Writer;
