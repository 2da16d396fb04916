//! The embedded store: collections of BSON documents, their indexes and a catalogue, in one directory or in memory.
//!
//! A [`Store`] holds [`Collection`]s. Each document has a record number, which counts up per collection and is never
//! reused. A write changes the document, its index entries and its collection's counters in one atomic batch of the
//! underlying [`engine`], so that indexes agree with documents after a kill at any moment.
//!
//! With a [`History`], the same batch records the changes, in one order for the whole store. Change streams read the
//! history.
//!
//! The crate knows no protocol and plans no queries: callers pass documents, numbers and bounds.
#![forbid(unsafe_code)]

mod background;
mod catalogue;
mod collection;
mod directory;
mod document;
pub mod engine;
mod error;
mod history;
mod index;
mod options;
mod retryable;
mod store;
mod sync;
mod users;

pub use collection::{
    BATCH_BYTES, Change, Changed, Collection, IndexScan, IndexStatus, Scan, VerifyReport,
};
pub use directory::{DirectoryLock, holds_store, lock_directory};
pub use document::{Document, NUMBER_MAX, RecordNumber, largest_document_bytes};
pub use engine::Direction;
pub use engine::journal::Dropped;
pub use error::{Result, StoreError};
pub use history::{ChangeEvent, ChangeKind, ClusterTime, History, Interest, Watch};
pub use index::{BuildProgress, IndexBounds, IndexField, IndexKind, IndexSpec};
pub use options::{Location, StoreOptions};
pub use retryable::{NotBegun, Outcome, Outcomes, RetryableWrite, RetryableWrites, SessionKey};
pub use store::{CollectionOptions, Namespace, Store, StoreSizes};
pub use users::Users;
