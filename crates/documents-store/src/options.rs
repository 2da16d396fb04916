//! What a caller chooses when opening a store.

use std::path::PathBuf;
use std::time::Duration;

/// Where the documents live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// In a directory, which is created when it does not exist and locked while the store is open.
    Directory(PathBuf),
    /// In memory only: nothing survives the store.
    Memory,
}

/// Settings of a store. [`StoreOptions::new`] gives the defaults.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Where the documents live.
    pub location: Location,
    /// How often written data is forced to the disk in the background.
    pub sync_interval: Duration,
    /// Memory for blocks read from disk, in bytes.
    pub cache_bytes: u64,
    /// Size at which the write buffer of one partition (the documents or one index of a collection) goes to disk.
    pub write_buffer_bytes: u64,
    /// Size of all journals at which the oldest write buffers are forced out. It bounds the memory of all write
    /// buffers together and the time of recovery. At least 64 MiB.
    pub journal_bytes_max: u64,
    /// Free bytes of the disk below which writes are refused, so that they can go on once there is space again.
    pub disk_reserve_bytes: u64,
    /// Size of the history of changes, above which the oldest are forgotten. 0 records none.
    pub history_bytes_max: u64,
    /// Holds up a writer that is ahead of the background work, for so long. A caller with threads that must not sleep gives
    /// its own.
    pub pause: fn(Duration),
    /// Whether outcomes of numbered writes are kept, so that a repeated one is recognised.
    pub retryable_writes: bool,
}

impl StoreOptions {
    /// The default settings for a location.
    pub fn new(location: Location) -> Self {
        Self {
            location,
            sync_interval: Duration::from_millis(100),
            cache_bytes: 256 << 20,
            write_buffer_bytes: 32 << 20,
            journal_bytes_max: 512 << 20,
            disk_reserve_bytes: 256 << 20,
            history_bytes_max: 0,
            pause: std::thread::sleep,
            retryable_writes: false,
        }
    }

    /// The default settings for a directory.
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::new(Location::Directory(path.into()))
    }

    /// The default settings for a store in memory.
    pub fn memory() -> Self {
        Self::new(Location::Memory)
    }
}
