//! Settings of the documents server, which are fixed once it is open.

use std::time::Duration;

pub use forebay_documents_store::Location;
use forebay_memory::Account;
pub use forebay_wire_mongo::limits::{DOCUMENT_BYTES_MAX, MESSAGE_BYTES_MAX, WRITE_BATCH_MAX};

/// Settings of [`crate::Documents::open`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// The location of the documents.
    pub location: Location,
    /// Maximum time until an acknowledged write without `j: true` is on the disk.
    pub sync_interval: Duration,
    /// Memory for cached blocks of the store's files, in bytes.
    pub store_cache_bytes: u64,
    /// Memory for writes that are not yet in the store's files, in bytes.
    pub write_buffers_bytes: u64,
    /// Maximum bytes of the change history, which change streams read. 0 disables the history.
    pub change_history_bytes_max: u64,
    /// Whether the outcomes of retryable writes are recorded, so that retries are recognised.
    pub retryable_writes: bool,
    /// Whether clients may configure fail points. `getParameter` shows this as `enableTestCommands`.
    pub test_commands: bool,
    /// Maximum number of values in a bucket of the field cache.
    pub bucket_values_max: usize,
    /// Share of the field caches in the memory of each device, in percent.
    pub device_share_percent: u8,
    /// The memory account of the process.
    pub memory: Account,
    /// Whether the server refuses searches that would fall back from a cached field to a scan of the store.
    pub strict: bool,
    /// Time without a `getMore` after which a cursor is closed.
    pub cursor_timeout: Duration,
    /// Maximum memory of one sort or group, in bytes.
    pub stage_memory_bytes_max: usize,
    /// Limits of compiling and matching one pattern.
    pub pattern: forebay_text::Limits,
    /// Maximum bytes of the automata of all patterns of one command.
    pub command_patterns_bytes_max: usize,
    /// Memory for the cache of compiled patterns of earlier commands, in bytes.
    pub pattern_cache_bytes: usize,
    /// Minimum duration of searches that are logged as slow.
    pub slow_search: Duration,
    /// The server's own version, which `buildInfo` shows in addition to [`MONGODB_VERSION`].
    pub version: String,
}

/// The MongoDB version whose behaviour the server follows. Drivers choose features by this version.
pub const MONGODB_VERSION: &str = "7.0.0";
/// [`MONGODB_VERSION`] as integers.
pub const MONGODB_VERSION_ARRAY: [i32; 4] = [7, 0, 0, 0];
impl Default for Settings {
    fn default() -> Settings {
        Settings {
            location: Location::Memory,
            sync_interval: Duration::from_millis(100),
            store_cache_bytes: 256 * 1024 * 1024,
            write_buffers_bytes: 512 * 1024 * 1024,
            change_history_bytes_max: 0,
            retryable_writes: false,
            test_commands: false,
            bucket_values_max: 131_072,
            device_share_percent: 100,
            memory: Account::default(),
            strict: false,
            cursor_timeout: Duration::from_secs(600),
            stage_memory_bytes_max: 100 * 1024 * 1024,
            pattern: forebay_text::Limits::default(),
            command_patterns_bytes_max: 64 * 1024 * 1024,
            pattern_cache_bytes: 64 * 1024 * 1024,
            slow_search: Duration::from_millis(100),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }
}
