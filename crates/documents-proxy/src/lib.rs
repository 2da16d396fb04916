//! The proxy in front of an upstream: another MongoDB-compatible server whose documents Forebay does not own.
//!
//! Every client has a separate `connection` to the [upstream](Upstream), and messages pass through it. Of the
//! collections with caches, `replicas` hold the `_id`s and the cached fields; they answer what they can, find the
//! `_id`s of what they cannot, and follow the upstream's writes.
//!
//! The server hands over what it has accepted: [`Proxy::serve`] takes a client's stream, and [`Proxy`] counts what
//! became of its commands. Decision 0009 has the reasons.
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
use forebay_net::frames::FrameError;
use forebay_wire_mongo::hello;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;

use connection::Connection;
use replicas::{Replica, Replicas};

pub use replicas::{Counters, ReplicaError, ReplicaSettings};
pub use upstream::{Stream, Upstream, UpstreamError};

/// The name under which commands are counted that the documents door itself does not know.
const OTHER_COMMAND: &str = "other";

/// A proxy of one upstream: what all its connections share.
#[derive(Debug)]
pub struct Proxy {
    documents: Arc<Documents>,
    upstream: Arc<Upstream>,
    replicas: Arc<Replicas>,
    timeouts: Timeouts,
    memory: Account,
    strangers: Account,
    /// Commands passed on, by name.
    forwarded: HashMap<&'static str, AtomicU64>,
    next_request_id: AtomicI32,
}

/// How a proxy behaves, from the settings.
#[derive(Debug, Clone)]
pub struct ProxySettings {
    /// What its replicas do.
    pub replicas: ReplicaSettings,
    /// How long clients may take.
    pub timeouts: Timeouts,
    /// The account that messages of clients take from.
    pub memory: Account,
    /// The account for clients that have not authenticated, if the upstream requires authentication.
    pub strangers: Account,
}

/// How long clients may take.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// To send the first message.
    pub handshake: Duration,
    /// To send the rest of a message, or to take a reply.
    pub message: Duration,
}

impl Proxy {
    /// Opens the proxy of `upstream`, with user and password of its connection string `uri`. `documents` holds the
    /// replicas. The caches that were declared before begin to load.
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

    /// Serves a client until it or the upstream leaves, one breaks the protocol or the server shuts down.
    ///
    /// # Errors
    /// Why the connection had to be closed; for the log, as the client is gone.
    pub async fn serve<S: AsyncRead + AsyncWrite + Unpin>(
        self: &Arc<Self>,
        client: ClientContext,
        stream: S,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), FrameError> {
        let (upstream, replicas) = (&self.upstream, &self.replicas);
        // An upstream that hangs takes connections, and answers nothing on them.
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
                if !replicas.is_away() {
                    let (connection, peer) = (client.connection_id, client.peer);
                    let peer = peer.map(tracing::field::display);
                    tracing::warn!(connection, peer, %upstream, %error, "the upstream cannot be reached");
                }
                replicas.mark_away();
                let connection = Connection::cut_off(self.clone(), client, stream);
                connection.serve(shutdown).await
            }
        }
    }

    /// The upstream.
    pub fn upstream(&self) -> &Upstream {
        &self.upstream
    }

    /// Returns how many commands were passed on, by name.
    pub fn forwarded(&self) -> Vec<(&'static str, u64)> {
        let counters = self.forwarded.iter();
        let mut counts: Vec<_> = counters
            .map(|(name, count)| (*name, count.load(Ordering::Relaxed)))
            .collect();
        counts.sort_unstable();
        counts
    }

    /// Returns what became of reads on collections with caches.
    pub fn reads(&self) -> &Counters {
        &self.replicas.counters
    }

    /// Returns the delay of each collection's caches behind the upstream, by namespace, where it is known.
    pub fn lags(&self) -> Vec<(String, Duration)> {
        let replicas = self.replicas.declared().into_iter();
        let lag = |replica: Arc<Replica>| Some((replica.namespace.to_string(), replica.lag()?));
        replicas.filter_map(lag).collect()
    }

    /// Counts a command that is passed on. Names that clients make up are one, so that they cannot fill memory.
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

/// The error for a message that there is no room for in the account of memory.
fn memory_refusal(full: &Full) -> RawDocumentBuf {
    rawdoc! { "ok": 0.0, "errmsg": full.to_string(), "code": 146, "codeName": "ExceededMemoryLimit" }
}
