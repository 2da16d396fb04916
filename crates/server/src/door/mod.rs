//! The documents door: connections that speak MongoDB's wire protocol.
//!
//! Three layers: `forebay-wire-mongo` turns bytes into messages, [`dispatch`] answers messages, [`connection`] and
//! [`listener`] move bytes. With an upstream, [`relay`] replaces [`connection`].

mod connection;
mod dispatch;
mod fail_point;
mod frames;
mod hello;
mod listener;
mod places;
mod refusal;
mod relay;
mod replica_set;
mod session;
mod socket;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use bson::oid::ObjectId;
use fail_point::FailPoints;
use forebay_documents::Documents;
use forebay_memory::Account;
use replica_set::ReplicaSet;

use crate::auth::sasl::Secret;
use crate::auth::{Changes, Guesses};
use crate::settings::Settings;
use crate::shadow::{Counters, Shadow};
use crate::upstream::Upstream;

pub use listener::{Listener, bind, pause, stopped};
pub use refusal::{Code, Refusal};

use places::Places;

/// The state that all connections of a door share.
#[derive(Debug)]
pub struct Door {
    documents: Arc<Documents>,
    /// The upstream, if there is one.
    behind: Option<Behind>,
    /// Identifies this run of the process, so that drivers notice a restart.
    run: ObjectId,
    replica_set: Option<ReplicaSet>,
    /// Fail points, if they are enabled.
    fail_points: Option<FailPoints>,
    auth_required: bool,
    timeouts: Timeouts,
    secret: Secret,
    guesses: Guesses,
    user_changes: Changes,
    memory: Account,
    /// The part of it for clients that have not authenticated.
    strangers: Account,
    places: Arc<Places>,
    /// Commands passed on to the upstream, by name.
    forwarded: HashMap<&'static str, AtomicU64>,
    next_connection_id: AtomicI64,
    next_request_id: AtomicI32,
}

/// The upstream and its caches.
#[derive(Debug)]
pub struct Behind {
    pub upstream: Arc<Upstream>,
    pub shadow: Arc<Shadow>,
}

/// Counters of the connections of a door.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// Open now.
    pub open: usize,
    /// Maximum number of open ones.
    pub max: usize,
    /// Accepted so far.
    pub taken: u64,
    /// Refused so far, as the maximum was reached.
    pub refused: u64,
    /// Unauthenticated ones closed so far to make room.
    pub evicted: u64,
    /// Wrong passwords so far.
    pub wrong_passwords: u64,
}

/// The name under which unknown commands are counted.
const OTHER_COMMAND: &str = "other";

/// Clients that have not authenticated hold at most this fraction (1/32) of the account.
const STRANGERS_PART: u64 = 32;

/// Timeouts of clients.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    handshake: Duration,
    message: Duration,
}

impl Door {
    /// Opens a door to these documents, or to the upstream. Waits for the disk.
    pub fn new(documents: Arc<Documents>, behind: Option<Behind>, settings: &Settings) -> Door {
        let memory = documents.settings().memory.clone();
        Door {
            secret: Secret::load(&documents),
            guesses: Guesses::default(),
            user_changes: Changes::default(),
            documents,
            behind,
            run: ObjectId::new(),
            replica_set: ReplicaSet::parse(&settings.mongodb_replica_set),
            fail_points: settings.mongodb_test_commands.then(FailPoints::default),
            auth_required: settings.auth,
            timeouts: Timeouts {
                handshake: settings.handshake_timeout,
                message: settings.message_timeout,
            },
            strangers: memory.below(memory.figures().limit_bytes / STRANGERS_PART),
            memory,
            places: Places::new(settings.connections_max, settings.auth),
            forwarded: forwarded_counters(),
            next_connection_id: AtomicI64::new(1),
            next_request_id: AtomicI32::new(1),
        }
    }

    /// The documents behind the door.
    pub fn documents(&self) -> &Arc<Documents> {
        &self.documents
    }

    /// The upstream, if there is one.
    pub fn upstream(&self) -> Option<&Upstream> {
        Some(&self.behind.as_ref()?.upstream)
    }

    /// The counters of the connections.
    pub fn connections(&self) -> Connections {
        let taken = self.next_connection_id.load(Ordering::Relaxed) - 1;
        let places = self.places.counts();
        Connections {
            open: places.taken,
            max: places.max,
            taken: taken.unsigned_abs(),
            refused: places.refused,
            evicted: places.evicted,
            wrong_passwords: self.guesses.total(),
        }
    }

    /// Returns the number of commands passed on to the upstream, by name; `None` without an upstream.
    pub fn forwarded(&self) -> Option<Vec<(&'static str, u64)>> {
        self.behind.as_ref()?;
        let counters = self.forwarded.iter();
        let mut counts: Vec<_> = counters
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .collect();
        counts.sort_unstable();
        Some(counts)
    }

    /// The counters of reads on cached collections of the upstream; `None` without an upstream.
    pub fn upstream_reads(&self) -> Option<&Counters> {
        Some(&self.behind.as_ref()?.shadow.counters)
    }

    /// Counts a command that is passed on. Unknown names share a counter, so that clients cannot fill memory with them.
    fn count_forwarded(&self, name: &str) {
        let counter = self.forwarded.get(name);
        if let Some(counter) = counter.or_else(|| self.forwarded.get(OTHER_COMMAND)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn connection_id(&self) -> i64 {
        self.next_connection_id.fetch_add(1, Ordering::Relaxed)
    }

    fn request_id(&self) -> i32 {
        self.next_request_id.fetch_add(1, Ordering::Relaxed)
    }
}

fn forwarded_counters() -> HashMap<&'static str, AtomicU64> {
    let known = forebay_documents::commands().map(|(name, _)| name);
    let names = known.chain(hello::NAMES).chain([OTHER_COMMAND]);
    names.map(|name| (name, AtomicU64::new(0))).collect()
}
