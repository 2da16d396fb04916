//! Options of a store.

use std::path::PathBuf;
use std::time::Duration;

/// Where the documents live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In a directory, which is created if it does not exist and locked while the store is open.
    Directory(PathBuf),
    /// In memory only, gone when the store is dropped.
    Memory,
}

/// Settings of a store. [`StoreOptions::new`] returns the defaults.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where the documents live.
    pub location: Location,
    /// Interval at which the background thread syncs what was written.
    pub sync_interval: Duration,
    /// Memory for blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// Size in bytes at which the write buffer of one partition (the documents or one index of a collection) is
    /// written out.
    pub write_buffer_bytes: u64,
    /// Maximum memory of all write buffers together, in bytes, but for a batch that is larger than a quarter of it.
    /// Writers wait until buffers are on disk.
    pub write_buffers_bytes_max: u64,
    /// Total bytes of the journals at which the oldest write buffers are written out. Bounds the time of recovery. At
    /// least 64 MiB.
    pub journal_bytes_max: u64,
    /// Free bytes of the disk below which writes are refused. Writes continue when there is more space again.
    pub disk_reserve_bytes: u64,
    /// Maximum bytes of the history of changes; beyond it the oldest are deleted. 0 records none.
    pub history_bytes_max: u64,
    /// Makes a writer that is ahead of the background thread wait for the given time. Callers whose threads must not
    /// sleep set their own function.
    pub pause: fn(Duration),
    /// Whether the outcomes of retryable writes are kept, so that a repeated one is recognised.
    pub retryable_writes: bool,
}

impl StoreOptions {
    /// Default settings for a location.
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

    /// Default settings for a directory.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::new(Location::Directory(path.into()))
    }

    /// Default settings for a store in memory.
    pub fn memory() -> Self {
        Self::new(Location::Memory)
    }
}
