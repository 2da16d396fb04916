//! Options of a store.

use std::path::PathBuf;
use std::time::Duration;

/// Where the documents live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In this directory. The store creates it if it does not exist, and locks it while the store is open.
    Directory(PathBuf),
    /// In memory only. The documents are lost when the store is dropped.
    Memory,
}

/// Settings of a store. [`StoreOptions::new`] returns the defaults.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where the documents live.
    pub location: Location,
    /// Interval at which the background thread syncs writes to disk.
    pub sync_interval: Duration,
    /// Memory for blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// Size in bytes at which the write buffer of one engine partition (the documents or one index of a collection) is
    /// flushed.
    pub write_buffer_bytes: u64,
    /// Maximum total bytes of all write buffers. A writer that would exceed the maximum waits for flushes. Only a batch
    /// larger than a quarter of the maximum may exceed it.
    pub write_buffers_bytes_max: u64,
    /// Total bytes of the journals beyond which the oldest write buffers are flushed. Limits the time that recovery
    /// takes. The lowest accepted value is 64 MiB.
    pub journal_bytes_max: u64,
    /// Free bytes of the disk below which writes are refused. Writes continue when more space is free again.
    pub disk_reserve_bytes: u64,
    /// Maximum bytes of the history of changes. Beyond it, the oldest changes are deleted. 0 disables the history.
    pub history_bytes_max: u64,
    /// Sleeps for the duration. Called by a writer that outruns the background thread. Callers whose threads must not
    /// sleep pass their own function.
    pub pause: fn(Duration),
    /// Whether to keep the outcomes of retryable writes, so that a retry of a write is recognised.
    pub retryable_writes: bool,
}

impl StoreOptions {
    /// Returns the default settings for a location.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            sync_interval: Duration::from_millis(100),
            cache_bytes: 256 << 20,
            write_buffer_bytes: 32 << 20,
            write_buffers_bytes_max: 512 << 20,
            journal_bytes_max: 512 << 20,
            disk_reserve_bytes: 256 << 20,
            history_bytes_max: 0,
            pause: std::thread::sleep,
            retryable_writes: false,
        }
    }

    /// Returns the default settings for a directory.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::new(Location::Directory(path.into()))
    }

    /// Returns the default settings for a store in memory.
    pub fn memory() -> Self {
        Self::new(Location::Memory)
    }
}
