//! Every setting, once.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::{Definition, Kind, Value};

/// The settings of a server. What each field means stands in the `doc` of its entry in [`DEFINITIONS`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub data: PathBuf,
    pub memory: bool,
    pub upstream: String,
    pub writes: String,
    pub load_documents_per_second: u64,
    pub compare_percent: u8,
    pub serve_stale: bool,
    pub listen: SocketAddr,
    pub status_listen: Option<SocketAddr>,
    pub devices: String,
    pub device_memory_bytes: u64,
    pub auth: bool,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub connections_max: usize,
    pub handshake_timeout: Duration,
    pub message_timeout: Duration,
    pub memory_bytes_max: u64,
    pub shutdown_timeout: Duration,
    pub sync_interval: Duration,
    pub store_cache_bytes: u64,
    pub change_history_bytes_max: u64,
    pub replica_set: String,
    pub test_commands: bool,
    pub bucket_values_max: usize,
    pub strict: bool,
    pub cursor_timeout: Duration,
    pub stage_memory_bytes_max: usize,
    pub pattern: forebay_text::Limits,
    pub command_patterns_bytes_max: usize,
    pub pattern_cache_bytes: usize,
    pub slow_search: Duration,
    pub log: String,
    pub log_format: String,
}

impl Settings {
    /// An empty value for every field; [`super::Sources::resolve`] fills each from its default at least.
    pub(super) fn unset() -> Settings {
        Settings {
            data: PathBuf::new(),
            memory: false,
            upstream: String::new(),
            writes: String::new(),
            load_documents_per_second: 0,
            compare_percent: 0,
            serve_stale: false,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            status_listen: None,
            devices: String::new(),
            device_memory_bytes: 0,
            auth: false,
            tls_cert: None,
            tls_key: None,
            connections_max: 0,
            handshake_timeout: Duration::ZERO,
            message_timeout: Duration::ZERO,
            memory_bytes_max: 0,
            shutdown_timeout: Duration::ZERO,
            sync_interval: Duration::ZERO,
            store_cache_bytes: 0,
            change_history_bytes_max: 0,
            replica_set: String::new(),
            test_commands: false,
            bucket_values_max: 0,
            strict: false,
            cursor_timeout: Duration::ZERO,
            stage_memory_bytes_max: 0,
            pattern: forebay_text::Limits::default(),
            command_patterns_bytes_max: 0,
            pattern_cache_bytes: 0,
            slow_search: Duration::ZERO,
            log: String::new(),
            log_format: String::new(),
        }
    }
}

/// Writes the setter of a definition: the field, and the kind of value that [`Kind::parse`] gives for it.
macro_rules! set {
    ($($field:ident).+, $variant:ident) => {
        |settings, value| {
            if let Value::$variant(value) = value {
                settings.$($field).+ = value
                    .try_into()
                    .expect("the limits of the kind keep the value in range");
            }
        }
    };
}

const HOUR_MS: u64 = 3_600_000;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// All settings in the order of the reference page.
pub const DEFINITIONS: &[Definition] = &[
    Definition {
        key: "data",
        kind: Kind::Path,
        default: "forebay-data",
        doc: "Directory that holds the documents. It is made if it is not there; one server at a time can use it.",
        set: |settings, value| {
            if let Value::Path(Some(path)) = value {
                settings.data = path;
            }
        },
    },
    Definition {
        key: "memory",
        kind: Kind::Switch,
        default: "false",
        doc: "Keep the documents in memory only: they are gone when the server ends.",
        set: set!(memory, Switch),
    },
    Definition {
        key: "upstream",
        kind: Kind::Text,
        default: "",
        doc: "Connection string of one MongoDB-compatible server, as in `mongodb://host:27017/?tls=true`: what caches cannot answer is passed on to it. It authenticates the clients. Addresses other than loopback cannot be listened on then. Give a password in the environment or the configuration file: every account of this machine can read command lines.",
        set: set!(upstream, Text),
    },
    Definition {
        key: "writes",
        kind: Kind::Choice(&["shared", "exclusive"]),
        default: "shared",
        doc: "How writes to the store behind (`upstream`) reach the caches. `shared`: others may write to the store too, and its change streams are followed; where it has none, caches are off, and `explain` says so. `exclusive`: all writes come through this server, which follows them by itself.",
        set: set!(writes, Text),
    },
    Definition {
        key: "load-documents-per-second",
        kind: Kind::Count {
            min: 0,
            max: 1 << 40,
        },
        default: "0",
        doc: "Most documents that the load of one collection's caches reads from the store behind (`upstream`) in a second; 0 for no limit.",
        set: set!(load_documents_per_second, Number),
    },
    Definition {
        key: "compare-percent",
        kind: Kind::Count { min: 0, max: 100 },
        default: "0",
        doc: "Of a hundred answers of caches in front of another store (`upstream`), how many are compared with the store's own. Differences are logged and counted (`serverStatus`), and the store's answer is given then.",
        set: set!(compare_percent, Number),
    },
    Definition {
        key: "serve-stale",
        kind: Kind::Switch,
        default: "false",
        doc: "Answer from the caches while the store behind (`upstream`) cannot be reached: what caches answer alone, as of when the store was last there. Only clients are answered that it let read the collection within the minute before, or all clients if it lets unauthenticated ones read it. Everything else fails with error 91, which names the store, as without this setting. Caches that are loaded again because the store was away take twice their memory meanwhile: the older copy stays until the new one is whole.",
        set: set!(serve_stale, Switch),
    },
    Definition {
        key: "listen",
        kind: Kind::Address,
        default: "127.0.0.1:27017",
        doc: "Address and port to listen on; port 0 picks a free one. Addresses other than loopback need `auth`.",
        set: set!(listen, Address),
    },
    Definition {
        key: "status-listen",
        kind: Kind::AddressOrNone,
        default: "",
        doc: "Address and port of the status page (`/`), of the metrics for Prometheus (`/metrics`) and of `/health`; port 0 picks a free one. They ask for no password and show names of collections and fields, but no values. Without it there are none.",
        set: set!(status_listen, AddressOrNone),
    },
    Definition {
        key: "devices",
        kind: Kind::Text,
        default: "auto",
        doc: "Devices that hold the caches: `auto` for all GPUs or else one host device a core, `cuda` for all GPUs, `cuda:N` for the GPU of that number, `host:N` for N host devices; several with commas.",
        set: set!(devices, Text),
    },
    Definition {
        key: "device-memory-bytes",
        kind: Kind::Bytes {
            min: 0,
            max: 1024 * TIB,
        },
        default: "0",
        doc: "Memory that each device may use for cached values; 0 for half of `memory-bytes-max` on a host device, four fifths of the free memory on a GPU.",
        set: set!(device_memory_bytes, Number),
    },
    Definition {
        key: "auth",
        kind: Kind::Switch,
        default: "false",
        doc: "Ask every client for a user and a password (`forebay user add` makes users).",
        set: set!(auth, Switch),
    },
    Definition {
        key: "tls-cert",
        kind: Kind::Path,
        default: "",
        doc: "PEM file with the server's certificate and its chain. With `tls-key` it turns TLS on.",
        set: set!(tls_cert, Path),
    },
    Definition {
        key: "tls-key",
        kind: Kind::Path,
        default: "",
        doc: "PEM file with the private key of `tls-cert`.",
        set: set!(tls_key, Path),
    },
    Definition {
        key: "connections-max",
        kind: Kind::Count {
            min: 1,
            max: 1_000_000,
        },
        default: "10000",
        doc: "Most connections at a time; a client beyond them is disconnected at once. With `auth`, clients that have not authenticated share half of them, and the one that connected first is disconnected to make room. If the limit of open files leaves room for fewer, there are fewer, and the log says so at the start.",
        set: set!(connections_max, Number),
    },
    Definition {
        key: "handshake-timeout-ms",
        kind: Kind::Milliseconds {
            min: 10,
            max: HOUR_MS,
        },
        default: "10000",
        doc: "How long a new connection may take to send its first message, the TLS handshake included. With `auth`, also how long a client may take to authenticate once it does more than say hello.",
        set: set!(handshake_timeout, Duration),
    },
    Definition {
        key: "message-timeout-ms",
        kind: Kind::Milliseconds {
            min: 10,
            max: HOUR_MS,
        },
        default: "60000",
        doc: "How long a client may take to send the rest of a message it has begun, or to take a reply.",
        set: set!(message_timeout, Duration),
    },
    Definition {
        key: "memory-bytes-max",
        kind: Kind::Bytes {
            min: 0,
            max: 1024 * TIB,
        },
        default: "0",
        doc: "Maximum memory of the whole process. Requests share what the program, the caches and the store leave of it, which is measured all the time: messages as they arrive, are inflated and are worked on, searches, sorts, groups, open cursors, and replies until they are sent. If there is no room, a message waits up to five seconds, then its command fails with `ExceededMemoryLimit`; small commands still succeed. At least 256 MiB; 0 takes three quarters of the memory of this machine or container. By default host devices may use half of it each for cached values (`device-memory-bytes`), blocks of the store's files a sixteenth (`store-cache-bytes`), and write buffers of the store an eighth, at most 512 MiB. `mem.requests` of `serverStatus` and `forebay_memory_used_bytes` of the metrics show what is used.",
        set: set!(memory_bytes_max, Number),
    },
    Definition {
        key: "shutdown-timeout-ms",
        kind: Kind::Milliseconds {
            min: 0,
            max: HOUR_MS,
        },
        default: "10000",
        doc: "How long commands in progress may take to finish after Ctrl-C or SIGTERM.",
        set: set!(shutdown_timeout, Duration),
    },
    Definition {
        key: "sync-interval-ms",
        kind: Kind::Milliseconds {
            min: 1,
            max: 60_000,
        },
        default: "100",
        doc: "The longest time that an acknowledged write without `j: true` may stay off the disk.",
        set: set!(sync_interval, Duration),
    },
    Definition {
        key: "store-cache-bytes",
        kind: Kind::Bytes {
            min: 0,
            max: 1024 * TIB,
        },
        default: "0",
        doc: "Memory for blocks of the store's files; 0 for a sixteenth of `memory-bytes-max`, at most 256 MiB.",
        set: set!(store_cache_bytes, Number),
    },
    Definition {
        key: "change-history-bytes-max",
        kind: Kind::Bytes {
            min: 0,
            max: 1024 * TIB,
        },
        default: "0",
        doc: "Most bytes of the history of changes, which change streams read; the oldest changes beyond it are forgotten. 0 records none: change streams are refused, and what earlier runs have recorded is deleted. With `upstream` it has no effect: the history is the store's.",
        set: set!(change_history_bytes_max, Number),
    },
    Definition {
        key: "replica-set",
        kind: Kind::ReplicaSet,
        default: "",
        doc: "Makes the server describe itself as a replica set of one member by this name; without it, it is a standalone. Drivers then repeat a write whose reply was lost, and the server applies it once, also after a restart: it keeps the outcome of a write until its session ends, or for half an hour. Drivers connect to HOST:PORT in place of the address that they were given, so it must be one that every client can reach. Without HOST:PORT they use the address at which they reached the server, which is wrong behind a port mapping. Not with `upstream`.",
        set: set!(replica_set, Text),
    },
    Definition {
        key: "test-commands",
        kind: Kind::Switch,
        default: "false",
        doc: "Let clients make commands fail on demand by `configureFailPoint`, for tests of drivers and applications. Not for production, as the commands of all other clients may fail then. Not with `upstream`.",
        set: set!(test_commands, Switch),
    },
    Definition {
        key: "bucket-values-max",
        kind: Kind::Count {
            min: 2,
            max: 1 << 30,
        },
        default: "131072",
        doc: "Most values in a bucket of the field cache; a fuller bucket is split.",
        set: set!(bucket_values_max, Number),
    },
    Definition {
        key: "strict",
        kind: Kind::Switch,
        default: "false",
        doc: "Refuse searches that would fall back from a cached field to a scan of the store.",
        set: set!(strict, Switch),
    },
    Definition {
        key: "cursor-timeout-ms",
        kind: Kind::Milliseconds {
            min: 100,
            max: 24 * HOUR_MS,
        },
        default: "600000",
        doc: "How long a cursor lives without a `getMore`.",
        set: set!(cursor_timeout, Duration),
    },
    Definition {
        key: "stage-memory-bytes-max",
        kind: Kind::Bytes {
            min: 1 << 20,
            max: TIB,
        },
        default: "100MiB",
        doc: "Most memory that one sort or group may take.",
        set: set!(stage_memory_bytes_max, Number),
    },
    Definition {
        key: "pattern-table-bytes-max",
        kind: Kind::Bytes {
            min: 0,
            max: 128 << 10,
        },
        default: "128KiB",
        doc: "Most bytes of the table of one pattern's automaton. A pattern that needs more is searched by its bits if it is short, else by an automaton that is built as it is used.",
        set: set!(pattern.dfa_bytes_max, Number),
    },
    Definition {
        key: "pattern-states-max",
        kind: Kind::Count {
            min: 0,
            max: 1 << 16,
        },
        default: "4096",
        doc: "Most states of that table.",
        set: set!(pattern.states_max, Number),
    },
    Definition {
        key: "pattern-determinize-bytes-max",
        kind: Kind::Bytes {
            min: 0,
            max: 64 << 20,
        },
        default: "2MiB",
        doc: "Most memory for making that table, which bounds the time too. A pattern that needs more gets none.",
        set: set!(pattern.determinize_bytes_max, Number),
    },
    Definition {
        key: "pattern-lazy-bytes-max",
        kind: Kind::Bytes {
            min: 64 << 10,
            max: GIB,
        },
        default: "4MiB",
        doc: "Memory for the states of one automaton that is built as it is used.",
        set: set!(pattern.lazy_bytes_max, Number),
    },
    Definition {
        key: "pattern-automaton-bytes-max",
        kind: Kind::Bytes {
            min: 0,
            max: 64 << 20,
        },
        default: "2MiB",
        doc: "Most bytes of the automaton that one pattern is turned into at first. A pattern that needs more, and is not short, is searched by PCRE2.",
        set: set!(pattern.nfa_bytes_max, Number),
    },
    Definition {
        key: "pattern-match-limit",
        kind: Kind::Count {
            min: 1,
            max: 100_000_000,
        },
        default: "200000",
        doc: "Most steps that PCRE2 may take to match a pattern against one value; the default is MongoDB's.",
        set: set!(pattern.match_limit, Number),
    },
    Definition {
        key: "pattern-depth-limit",
        kind: Kind::Count {
            min: 1,
            max: 100_000,
        },
        default: "4000",
        doc: "How deep PCRE2 may backtrack while it matches a pattern against one value; the default is MongoDB's.",
        set: set!(pattern.depth_limit, Number),
    },
    Definition {
        key: "pattern-heap-bytes-max",
        kind: Kind::Bytes {
            min: 64 << 10,
            max: 1 << 30,
        },
        default: "16MiB",
        doc: "Most memory for backtracking while PCRE2 matches a pattern against one value; a value that takes more does not match. Only patterns of more than about 200 groups come near it.",
        set: set!(pattern.heap_bytes_max, Number),
    },
    Definition {
        key: "command-patterns-bytes-max",
        kind: Kind::Bytes { min: 0, max: TIB },
        default: "64MiB",
        doc: "Most bytes of automata that are built for the patterns of one command together, which bounds the time too. Patterns beyond it are searched by PCRE2.",
        set: set!(command_patterns_bytes_max, Number),
    },
    Definition {
        key: "pattern-cache-bytes",
        kind: Kind::Bytes { min: 0, max: TIB },
        default: "64MiB",
        doc: "Memory for patterns that were compiled before, so that they need not be again.",
        set: set!(pattern_cache_bytes, Number),
    },
    Definition {
        key: "slow-search-ms",
        kind: Kind::Milliseconds {
            min: 0,
            max: HOUR_MS,
        },
        default: "100",
        doc: "Searches that take at least so long are logged with their `explain`, under the target `slow_search`; 0 logs all, `--log info,slow_search=off` none.",
        set: set!(slow_search, Duration),
    },
    Definition {
        key: "log",
        kind: Kind::Text,
        default: "info",
        doc: "What is logged: error, warn, info, debug or trace, or a filter as in `info,forebay_documents_store=debug`.",
        set: set!(log, Text),
    },
    Definition {
        key: "log-format",
        kind: Kind::Choice(&["text", "json"]),
        default: "text",
        doc: "How log lines are written to standard error.",
        set: set!(log_format, Text),
    },
];
