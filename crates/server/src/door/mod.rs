//! The documents door: connections that speak MongoDB's wire protocol.
//!
//! Three layers: `forebay-wire-mongo` turns bytes into messages, [`dispatch`] answers messages, [`connection`] and
//! [`listener`] move bytes. With a store behind us, [`relay`] takes the place of [`connection`].

mod connection;
mod dispatch;
mod frames;
mod hello;
mod listener;
mod refusal;
mod relay;
mod session;
mod socket;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};
use std::time::Duration;

use forebay_documents::Documents;
use tokio::sync::Semaphore;

use crate::auth::sasl::Secret;
use crate::settings::Settings;
use crate::upstream::Upstream;

pub use listener::Listener;
pub use refusal::{Code, Refusal};

/// What all connections of a door share.
#[derive(Debug)]
pub struct Door {
    documents: Arc<Documents>,
    /// The store behind us, if there is one.
    upstream: Option<Upstream>,
    auth_required: bool,
    timeouts: Timeouts,
    secret: Secret,
    memory: Arc<Semaphore>,
    connection_slots: Arc<Semaphore>,
    next_connection_id: AtomicI64,
    next_request_id: AtomicI32,
}

/// How long clients may take.
#[derive(Debug, Clone, Copy)]
struct Timeouts {
    handshake: Duration,
    message: Duration,
}

impl Door {
    /// A door to these documents, or to the store behind us.
    pub fn new(documents: Arc<Documents>, upstream: Option<Upstream>, settings: &Settings) -> Door {
        let memory_kib = usize::try_from(settings.request_bytes_max / 1024).unwrap_or(usize::MAX);
        Door {
            documents,
            upstream,
            auth_required: settings.auth,
            timeouts: Timeouts {
                handshake: settings.handshake_timeout,
                message: settings.message_timeout,
            },
            secret: Secret::random(),
            memory: Arc::new(Semaphore::new(memory_kib.min(Semaphore::MAX_PERMITS))),
            connection_slots: Arc::new(Semaphore::new(settings.connections_max)),
            next_connection_id: AtomicI64::new(1),
            next_request_id: AtomicI32::new(1),
        }
    }

    fn connection_id(&self) -> i64 {
        self.next_connection_id.fetch_add(1, Ordering::Relaxed)
    }

    fn request_id(&self) -> i32 {
        self.next_request_id.fetch_add(1, Ordering::Relaxed)
    }
}
