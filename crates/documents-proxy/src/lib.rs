//! Proxy to an upstream. The upstream is a MongoDB-compatible server that owns the documents.
//!
//! Each client has its own `connection` to the [upstream](Upstream), through which its messages pass. `replicas` hold
//! the `_id`s and cached fields of the collections with caches, and follow the upstream's writes. A replica answers
//! reads that need only these fields. For other reads, it finds the `_id`s of the documents, and the upstream returns
//! these documents.
//!
//! [`Proxy::serve`] serves a client's connection that the server has accepted. [`Proxy`] counts commands by name, and
//! reads by outcome. Decision 0009 has the reasons for this design.
#![forbid(unsafe_code)]

mod connection;
mod replicas;
mod upstream;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::Duration;

use bson::{RawDocumentBuf, rawdoc};
use forebay_documents::{ClientContext, Documents};
use forebay_memory::{Account, Full};
use forebay_net::Stream;
use forebay_net::frames::FrameError;
use forebay_wire_mongo::hello;
use futures_util::future::BoxFuture;
use tokio::sync::watch;

use connection::Connection;
use replicas::{Replica, Replicas};

pub use replicas::{Counters, ReplicaError, ReplicaSettings};
pub use upstream::{Upstream, UpstreamError};

/// Counter name for commands that are neither a hello nor known to the `documents` crate.
const OTHER_COMMAND: &str = "other";

/// Proxy to one upstream: the state that all client connections share.
#[derive(Debug)]
pub struct Proxy {
    documents: Arc<Documents>,
    upstream: Arc<Upstream>,
    replicas: Arc<Replicas>,
    timeouts: Timeouts,
    memory: Account,
    strangers: Account,
    /// Counts of commands passed on, by command name.
    forwarded: HashMap<&'static str, AtomicU64>,
    next_request_id: AtomicI32,
}

/// Settings of a proxy.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// Settings of the replicas.
    pub replicas: ReplicaSettings,
    /// Time limits for clients.
    pub timeouts: Timeouts,
    /// Account from which clients' messages take memory.
    pub memory: Account,
    /// Account for clients that have not authenticated. Used if the upstream requires authentication.
    pub strangers: Account,
}

/// Time limits for clients.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Maximum time to send the first message.
    pub handshake: Duration,
    /// Maximum time to send the rest of a message, or to accept a reply.
    pub message: Duration,
}

impl Proxy {
    /// Opens a proxy to `upstream`, with the user and password of its connection string `uri`. `documents` holds the
    /// replicas. Starts to resume or load the caches declared before a restart.
    ///
    /// # Errors
    /// If the connection string is wrong, or the list of caches cannot be read.
    pub async fn open(
        documents: Arc<Documents>,
        upstream: Upstream,
        uri: &str,
        settings: ProxySettings,
    ) -> Result<Proxy, ReplicaError> {
        let upstream = Arc::new(upstream);
        let replicas = Replicas::open(
            documents.clone(),
            (upstream.clone(), uri),
            settings.replicas,
        );
        Ok(Proxy {
            documents,
            upstream,
            replicas: replicas.await?,
            timeouts: settings.timeouts,
            memory: settings.memory,
            strangers: settings.strangers,
            forwarded: forwarded_counters(),
            next_request_id: AtomicI32::new(1),
        })
    }

    /// Serves a client until it or the upstream disconnects, either breaks the protocol, or the server shuts down.
    ///
    /// # Errors
    /// The reason why the connection was closed. It is only for the log, because the client is gone.
    pub fn serve(
        self: &Arc<Self>,
        client: ClientContext,
        stream: Box<dyn Stream>,
        shutdown: watch::Receiver<bool>,
    ) -> BoxFuture<'_, Result<(), FrameError>> {
        // Boxed, so that the connection's code is compiled once, in this crate, and not in each program that polls it.
        Box::pin(self.serve_client(client, stream, shutdown))
    }

    async fn serve_client(
        self: &Arc<Self>,
        client: ClientContext,
        stream: Box<dyn Stream>,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), FrameError> {
        let (upstream, replicas) = (&self.upstream, &self.replicas);
        // Does not try to connect, because an upstream that hangs still accepts connections, but never replies.
        if replicas.serve_stale && replicas.is_away() {
            let connection = Connection::cut_off(self.clone(), client, stream);
            return connection.serve(shutdown).await;
        }
        match upstream.connect().await {
            Ok(upstream) => {
                let _registered = replicas.register_client().await;
                let connection = Connection::new(self.clone(), client, stream, upstream);
                connection.serve(shutdown).await
            }
            Err(error) => {
                replicas.mark_away(&error);
                let connection = Connection::cut_off(self.clone(), client, stream);
                connection.serve(shutdown).await
            }
        }
    }

    /// Returns the upstream.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Returns the number of commands passed on, by command name.
    pub fn forwarded(&self) -> Vec<(&'static str, u64)> {
        let counters = self.forwarded.iter();
        let mut counts: Vec<_> = counters
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .collect();
        counts.sort_unstable();
        counts
    }

    /// Returns the counters of reads on collections with caches.
    pub fn reads(&self) -> &Counters {
        &self.replicas.counters
    }

    /// Returns how far each collection's caches lag behind the upstream, by namespace; skips unknown lags.
    pub fn lags(&self) -> Vec<(String, Duration)> {
        let replicas = self.replicas.declared().into_iter();
        let lag = |replica: Arc<Replica>| Some((replica.namespace.to_string(), replica.lag()?));
        replicas.filter_map(lag).collect()
    }

    /// Counts a command that is passed on. Unknown names share one counter, so that clients cannot fill memory with
    /// names.
    fn count_forwarded(&self, name: &str) {
        let counter = self.forwarded.get(name);
        if let Some(counter) = counter.or_else(|| self.forwarded.get(OTHER_COMMAND)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
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

/// Returns the error reply for a message that does not fit in the memory account.
fn memory_refusal(full: &Full) -> RawDocumentBuf {
    rawdoc! { "ok": 0.0, "errmsg": full.to_string(), "code": 146, "codeName": "ExceededMemoryLimit" }
}
