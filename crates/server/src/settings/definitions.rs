//! The definitions of all settings. Each definition has a description, a field, a type, a name, a kind of values and a
//! default.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use forebay_text::Limits;

use super::{Definition, FromValue, Kind, Value};

const HOUR_MS: u64 = 3_600_000;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;
/// Maximum value of a size that is limited only by the machine's memory or disk.
const BYTES_MAX: u64 = 1024 * TIB;

/// Defines [`Settings`] and [`DEFINITIONS`]. Each entry is a doc comment, followed by `field: Type = "name", kind,
/// "default as a user writes it";`.
macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $field:ident: $type:ty = $key:literal, $kind:expr, $default:literal;)+) => {
        /// The settings of a server.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Settings {
            $($(#[doc = $doc])+ pub $field: $type,)+
        }

        /// All settings, in the order of the reference page.
        pub const DEFINITIONS: &[Definition] = &[
            $(Definition {
                key: $key,
                kind: $kind,
                default: $default,
                doc: concat!($($doc),+).trim_ascii_start(),
            },)+
        ];

        impl Settings {
            /// Sets each field to the value that `value` returns for its definition.
            pub(super) fn from_values<E>(
                mut value: impl FnMut(&'static Definition) -> Result<Value, E>,
            ) -> Result<Settings, E> {
                let mut definitions = DEFINITIONS.iter();
                // Rust evaluates the fields of a struct expression in the order in which they are written.
                let mut next = || value(definitions.next().expect("each field has a definition"));
                Ok(Settings {
                    $($field: <$type>::from_value(next()?),)+
                })
            }
        }
    };
}

settings! {
    /// Directory that holds the data. The server creates it if it does not exist, and locks it.
    data: PathBuf = "data", Kind::Path, "forebay-data";

    /// Keep the data in memory only. The data is lost when the server ends.
    memory: bool = "memory", Kind::Switch, "false";

    /// Devices that hold the caches: `auto` for all GPUs, or one host device per core if there is no GPU; `cuda` for
    /// all GPUs; `cuda:N` for GPU number N; `host:N` for N host devices. Separate several devices with commas.
    devices: String = "devices", Kind::Text, "auto";

    /// Maximum memory of each device for cached values. 0 means half of `memory-bytes-max` on a host device and
    /// four fifths of the free memory on a GPU.
    device_memory_bytes: u64 = "device-memory-bytes", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Maximum memory of the whole process, at least 256 MiB. 0 means three quarters of the memory of this machine or
    /// container. The server continuously measures how much of the maximum the program, the caches and the store use.
    /// Requests share the rest: messages while they are received, decompressed and processed; searches, sorts, groups,
    /// open cursors and pending replies. If the rest is used up, a message waits up to five seconds; then its command
    /// fails with `ExceededMemoryLimit`. Small commands still succeed. By default, cached values may use half of the
    /// maximum on each host device (`device-memory-bytes`), cached blocks of the store's files a sixteenth
    /// (`documents-store-cache-bytes`), and the store's write buffers an eighth, at most 512 MiB. `mem.requests` of
    /// `serverStatus` and the metric `forebay_memory_used_bytes` show the memory that requests use.
    memory_bytes_max: u64 = "memory-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Require every client to authenticate. `forebay user add` creates users.
    auth: bool = "auth", Kind::Switch, "false";

    /// PEM file with the server's certificate and its chain. Together with `tls-key` it enables TLS.
    tls_cert: Option<PathBuf> = "tls-cert", Kind::PathOrNone, "";

    /// PEM file with the private key of `tls-cert`.
    tls_key: Option<PathBuf> = "tls-key", Kind::PathOrNone, "";

    /// Maximum number of open connections; the server closes further connections at once. With `auth`, the server
    /// instead disconnects a client that has not authenticated, if there is one. If the limit of open files allows
    /// fewer connections, the server uses that number instead, and logs it when it starts.
    connections_max: usize = "connections-max", Kind::Count { min: 1, max: 1_000_000 }, "10000";

    /// Timeout for the first message of a connection, including the TLS handshake. With `auth`, also the timeout for
    /// authenticating, which starts with the first command other than `hello`.
    handshake_timeout: Duration = "handshake-timeout-ms", Kind::Milliseconds { min: 10, max: HOUR_MS }, "10000";

    /// Timeout for a client to send the rest of a message that it has begun, or to receive a reply.
    message_timeout: Duration = "message-timeout-ms", Kind::Milliseconds { min: 10, max: HOUR_MS }, "60000";

    /// Time for commands in progress to finish after Ctrl-C or SIGTERM.
    shutdown_timeout: Duration = "shutdown-timeout-ms", Kind::Milliseconds { min: 0, max: HOUR_MS }, "10000";

    /// Address and port of the status page (`/`), the metrics for Prometheus (`/metrics`) and `/health`. Port 0 picks a
    /// free port. They require no password and show names of collections, fields and tables, but no values. On a
    /// loopback address, the page also shows the text of SQL statements, and cancels them. Without this setting, the
    /// server offers none of them.
    status_listen: Option<SocketAddr> = "status-listen", Kind::AddressOrNone, "";

    /// Level of the log: `error`, `warn`, `info`, `debug` or `trace`, or a filter such as
    /// `info,forebay_documents_store=debug`.
    log: String = "log", Kind::Text, "info";

    /// Format of the log lines on standard error.
    log_format: String = "log-format", Kind::Choice(&["text", "json"]), "text";

    /// Address and port for MongoDB clients. Port 0 picks a free port. Addresses other than loopback require `auth`.
    mongodb_listen: SocketAddr = "mongodb-listen", Kind::Address, "127.0.0.1:27017";

    /// Name of a replica set. The server then tells drivers that it is the only member of that replica set; without a
    /// name, it tells them that it is a standalone. Drivers of a replica set retry a write whose reply was lost, and
    /// the server applies the write only once, even after a restart: it keeps the outcome of a write until the client's
    /// session ends, or for half an hour. If `/HOST:PORT` follows the name, drivers connect to that address instead of
    /// the one in their connection string, so every client must be able to reach it. Otherwise drivers use the address
    /// at which they reached the server, which is wrong behind a port mapping. Not supported with `upstream`.
    mongodb_replica_set: String = "mongodb-replica-set", Kind::ReplicaSet, "";

    /// Allow `configureFailPoint`, which makes commands fail on demand, for tests of drivers and applications. Not for
    /// production: it affects the commands of all clients. Not supported with `upstream`.
    mongodb_test_commands: bool = "mongodb-test-commands", Kind::Switch, "false";

    /// Maximum time until an acknowledged write without `j: true` is on disk.
    documents_sync_interval: Duration =
        "documents-sync-interval-ms", Kind::Milliseconds { min: 1, max: 60_000 }, "100";

    /// Memory for cached blocks of the store's files. 0 means a sixteenth of `memory-bytes-max`, at most 256 MiB.
    documents_store_cache_bytes: u64 = "documents-store-cache-bytes", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Maximum size of the history of changes, which change streams read. If the history grows beyond it, the oldest
    /// changes are deleted. 0 keeps no history: change streams are refused, and an existing history is deleted. Has no
    /// effect with `upstream`, because the upstream keeps its own history.
    documents_change_history_bytes_max: u64 =
        "documents-change-history-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Maximum number of values in a bucket of a field cache. A fuller bucket is split.
    documents_bucket_values_max: usize =
        "documents-bucket-values-max", Kind::Count { min: 2, max: 1 << 30 }, "131072";

    /// Refuse a search with a condition on a cached field if the cache cannot answer the search, instead of scanning
    /// the store.
    documents_strict: bool = "documents-strict", Kind::Switch, "false";

    /// Time after which a cursor without a `getMore` is closed.
    documents_cursor_timeout: Duration =
        "documents-cursor-timeout-ms", Kind::Milliseconds { min: 100, max: 24 * HOUR_MS }, "600000";

    /// Maximum memory of one sort or group.
    documents_stage_memory_bytes_max: usize =
        "documents-stage-memory-bytes-max", Kind::Bytes { min: MIB, max: TIB }, "100MiB";

    /// Searches that take at least this long are logged with their `explain`, under the target `slow_search`. 0
    /// logs all searches; `--log info,slow_search=off` logs none.
    documents_slow_search: Duration =
        "documents-slow-search-ms", Kind::Milliseconds { min: 0, max: HOUR_MS }, "100";

    /// Address and port for PostgreSQL clients. Port 0 picks a free port. Addresses other than loopback require `auth`.
    /// Without this setting, the server does not offer PostgreSQL's protocol.
    postgres_listen: Option<SocketAddr> = "postgres-listen", Kind::AddressOrNone, "";

    /// Address and port for clients of Arrow Flight SQL. Port 0 picks a free port. Addresses other than loopback
    /// require `auth`. Without this setting, the server does not offer Flight SQL.
    flight_listen: Option<SocketAddr> = "flight-listen", Kind::AddressOrNone, "";

    /// Directory whose files and subdirectories are tables: Parquet, Arrow IPC, CSV and JSON lines. CSV and JSON lines
    /// may be compressed. Subdirectories such as `year=2026` in a table's directory become a column `year`.
    tables: Option<PathBuf> = "tables", Kind::PathOrNone, "";

    /// Folders whose files SQL statements may name by their path, separated by commas. Files in `tables` may always be
    /// named. A folder may be one of S3, as in `s3://bucket/folder`: it is read with the credentials and at the
    /// endpoint that the environment of the server has (`AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
    /// `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_ENDPOINT_URL`, `AWS_ALLOW_HTTP`).
    tables_paths: String = "tables-paths", Kind::Text, "";

    /// Maximum memory of all SQL queries together. Sorts, groups and joins that need more use the disk. 0 means a
    /// quarter of `memory-bytes-max`.
    tables_memory_bytes_max: u64 = "tables-memory-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Maximum memory of each GPU for SQL: columns of tables, and what running queries make there, to which columns
    /// leave an eighth. 0 means all. Above its share, SQL has what the documents' caches leave free.
    tables_gpu_bytes_max: u64 = "tables-gpu-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Share of SQL in the memory of each GPU, in percent; the rest is the share of the documents' caches. Each uses
    /// more while that is free. When one of them needs memory and has less than its share, the other gives back what
    /// it has above its own. 0 means that neither gives back memory to the other.
    tables_gpu_share_percent: u8 = "tables-gpu-share-percent", Kind::Count { min: 0, max: 100 }, "0";

    /// Maximum pinned memory of the host for columns of tables that GPUs have no room for, which kernels read over
    /// the bus. It is pinned 1 GiB at a time when it is needed, and kept until the server stops. 0 means a quarter of
    /// `memory-bytes-max`; less than 1 GiB means none.
    tables_gpu_host_bytes_max: u64 = "tables-gpu-host-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "0";

    /// Maximum bytes of column files in the data directory: columns of Parquet files and managed tables, packed for a
    /// GPU, from which they are read again after a start of the server, or after their memory was given to others.
    /// Those that were used longest ago are deleted. A tenth of the file system is left free. 0 means none.
    tables_gpu_disk_bytes_max: u64 = "tables-gpu-disk-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "64GiB";

    /// File of SQL queries that run one after the other when the server has started, with `forebay.gpu = on` and
    /// `forebay.compile = wait`, so that their kernels are compiled and kept on disk. Queries that fail are logged with
    /// their line. Statements that would change something fail.
    tables_gpu_warm: Option<PathBuf> = "tables-gpu-warm", Kind::PathOrNone, "";

    /// Maximum size of the temporary files of all SQL queries together. A query that needs more fails.
    tables_spill_bytes_max: u64 = "tables-spill-bytes-max", Kind::Bytes { min: 0, max: BYTES_MAX }, "64GiB";

    /// SQL statements that take at least this long, until the client has all rows, are logged under the target
    /// `slow_statement`. 0 logs all statements; `--log info,slow_statement=off` logs none.
    tables_slow_statement: Duration =
        "tables-slow-statement-ms", Kind::Milliseconds { min: 0, max: HOUR_MS }, "1000";

    /// Connection string of a MongoDB-compatible server, as in `mongodb://host:27017/?tls=true`. Forebay is then a
    /// proxy to that server: it answers what it can from its caches, and passes everything else on. The upstream
    /// authenticates the clients, and Forebay listens on loopback addresses only. Put a password into the environment
    /// or the configuration file, because every user of the machine can read command lines.
    upstream: String = "upstream", Kind::Text, "";

    /// How writes to the upstream reach the caches. `shared`: other programs may write to the upstream too, and the
    /// caches follow its change streams; if it has none, the caches are off, and `explain` says so. `exclusive`: the
    /// operator guarantees that all writes pass through this server, which applies them to its caches.
    upstream_writes: String = "upstream-writes", Kind::Choice(&["shared", "exclusive"]), "shared";

    /// Maximum number of documents that are read from the upstream per second to load the caches of one collection. 0
    /// means no limit.
    upstream_load_documents_per_second: u64 =
        "upstream-load-documents-per-second", Kind::Count { min: 0, max: 1 << 40 }, "0";

    /// Percentage of the caches' whole answers that are compared with the upstream's answers. A difference is logged
    /// and counted (`serverStatus`), and the client gets the upstream's answer. Finds whose documents the upstream
    /// returns by `_id` are not compared.
    upstream_compare_percent: u8 = "upstream-compare-percent", Kind::Count { min: 0, max: 100 }, "0";

    /// While the upstream cannot be reached, answer what caches alone can answer, as of the time when the upstream was
    /// last reachable. A client gets such answers if the upstream let it read the collection in the minute before that
    /// time. If the upstream lets unauthenticated clients read the collection, every client gets them. Everything else
    /// fails with error 91, which names the upstream, as it does without this setting. If caches must be loaded again
    /// because the upstream was away, they take twice their memory during the load: the older copy stays until the new
    /// one is complete.
    upstream_serve_stale: bool = "upstream-serve-stale", Kind::Switch, "false";

    /// Maximum size of the table of one pattern's automaton. A larger pattern is searched with a bit-parallel automaton
    /// if it is short, otherwise with a lazily built automaton.
    pattern_table_bytes_max: usize = "pattern-table-bytes-max", Kind::Bytes { min: 0, max: 128 << 10 }, "128KiB";

    /// Maximum number of states in the table of one pattern's automaton.
    pattern_states_max: usize = "pattern-states-max", Kind::Count { min: 0, max: 1 << 16 }, "4096";

    /// Maximum memory for building the table of one pattern's automaton, which also bounds the time. A pattern that
    /// needs more gets no table.
    pattern_determinize_bytes_max: usize =
        "pattern-determinize-bytes-max", Kind::Bytes { min: 0, max: 64 * MIB }, "2MiB";

    /// Memory for the states of one lazily built automaton.
    pattern_lazy_bytes_max: usize = "pattern-lazy-bytes-max", Kind::Bytes { min: 64 << 10, max: GIB }, "4MiB";

    /// Maximum size of the non-deterministic automaton that is first built from a pattern. If it would be larger, PCRE2
    /// searches for the pattern, unless the pattern is short enough to be searched without that automaton.
    pattern_automaton_bytes_max: usize =
        "pattern-automaton-bytes-max", Kind::Bytes { min: 0, max: 64 * MIB }, "2MiB";

    /// Maximum number of backtracking steps that PCRE2 takes from each position of a value at which a match may start.
    /// A value that needs more does not match. The default is MongoDB's.
    pattern_match_limit: u32 = "pattern-match-limit", Kind::Count { min: 1, max: 100_000_000 }, "200000";

    /// Maximum depth of PCRE2's nested backtracking points in one value. A value that needs more does not match. The
    /// default is MongoDB's.
    pattern_depth_limit: u32 = "pattern-depth-limit", Kind::Count { min: 1, max: 100_000 }, "4000";

    /// Maximum memory for PCRE2's backtracking in one value. A value that needs more does not match. Only patterns
    /// with more than about 200 groups need that much. The memory is part of `memory-bytes-max`: if a match needs more
    /// than is free there, the command fails with error 146.
    pattern_heap_bytes_max: usize = "pattern-heap-bytes-max", Kind::Bytes { min: 64 << 10, max: GIB }, "16MiB";

    /// Maximum total size of the automata that are built for the patterns of one command, which also bounds the time
    /// to build them. PCRE2 searches for further patterns.
    command_patterns_bytes_max: usize = "command-patterns-bytes-max", Kind::Bytes { min: 0, max: TIB }, "64MiB";

    /// Memory for compiled patterns that later commands can use again.
    pattern_cache_bytes: usize = "pattern-cache-bytes", Kind::Bytes { min: 0, max: TIB }, "64MiB";
}

impl Settings {
    /// Returns the limits of one pattern.
    pub fn pattern_limits(&self) -> Limits {
        Limits {
            dfa_bytes_max: self.pattern_table_bytes_max,
            states_max: self.pattern_states_max,
            determinize_bytes_max: self.pattern_determinize_bytes_max,
            lazy_bytes_max: self.pattern_lazy_bytes_max,
            nfa_bytes_max: self.pattern_automaton_bytes_max,
            match_limit: self.pattern_match_limit,
            depth_limit: self.pattern_depth_limit,
            heap_bytes_max: self.pattern_heap_bytes_max,
            ..Limits::default()
        }
    }
}
