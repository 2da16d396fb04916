//! The door: what connections share.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use forebay_memory::Account;
use forebay_net::{Stream, random_bytes};
use forebay_tables::Tables;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::connection::Connection;
use crate::startup::{Begun, begin};
use crate::wire::{ConnectionError, Wire};

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Write,
    /// Only read.
    Read,
}

/// The users who may log in.
pub trait Users: Send + Sync + 'static {
    /// Returns whether clients must log in.
    fn are_required(&self) -> bool;

    /// Begins SCRAM-SHA-256 with the client's first message. Returns the exchange and the server's first message.
    ///
    /// # Errors
    /// If the message is malformed, or users cannot be read.
    fn login(&self, user: &str, first: &[u8]) -> Result<(Box<dyn Login>, String), String>;

    /// Records a wrong password, and returns the time to wait before the answer.
    fn wrong_password(&self, user: &str, sender: IpAddr) -> Duration;

    /// Returns the number of changes of users so far.
    fn changes(&self) -> u64;

    /// Returns what a logged-in user may do; `None` if the user was removed, has no role here, or has another password
    /// than the one that `credentials` identifies.
    fn access(&self, user: &str, credentials: &str) -> Option<Access>;
}

/// A login in progress.
pub trait Login: Send {
    /// Verifies the client's last message. Returns `None` if the password is wrong.
    fn finish(&self, message: &[u8]) -> Option<Proof>;
}

/// A login that succeeded.
#[derive(Debug, Clone)]
pub struct Proof {
    /// The server's last message.
    pub message: String,
    /// Identifies the password that was proven, for [`Users::access`].
    pub credentials: String,
}

/// The settings of the door.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Time to begin a session.
    pub handshake_timeout: Duration,
    /// Time to send a message that was begun, or to take a reply.
    pub message_timeout: Duration,
    /// The account of the memory of messages.
    pub memory: Account,
}

/// What connections share.
pub struct Door {
    pub(crate) tables: Arc<Tables>,
    pub(crate) users: Box<dyn Users>,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) settings: Settings,
    backends: Mutex<HashMap<i32, Backend>>,
    next: AtomicI32,
}

/// A connection that can be asked to cancel its statement.
struct Backend {
    secret: i32,
    cancel: Arc<watch::Sender<()>>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

/// The number and the secret of a connection, with which another connection cancels its statement.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) number: i32,
    pub(crate) secret: i32,
    pub(crate) cancelled: watch::Receiver<()>,
    door: Arc<Door>,
}

impl Door {
    /// Returns a door to `tables`. With `tls`, clients may encrypt.
    pub fn new(
        tables: Arc<Tables>,
        users: Box<dyn Users>,
        tls: Option<TlsAcceptor>,
        settings: Settings,
    ) -> Arc<Door> {
        Arc::new(Door {
            tables,
            users,
            tls,
            settings,
            backends: Mutex::default(),
            next: AtomicI32::new(1),
        })
    }

    /// Serves a client until it leaves, breaks the protocol, or the server stops. `known` is called when the client has
    /// logged in.
    ///
    /// # Errors
    /// Why the connection was closed, for the log.
    pub async fn serve(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        sender: IpAddr,
        known: impl FnOnce() + Send,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        let wire = Wire::new(stream, &self.settings);
        let handshake =
            tokio::time::timeout(self.settings.handshake_timeout, begin(&self, wire, sender));
        let begun = handshake.await.map_err(|_| ConnectionError::TooSlow)??;
        match begun {
            Begun::Nothing => Ok(()),
            Begun::Session(start) => {
                known();
                Connection::new(self, *start).serve(shutdown).await
            }
        }
    }

    /// Registers a connection.
    pub(crate) fn register(self: &Arc<Self>) -> Key {
        let mut secret = [0; 4];
        random_bytes(&mut secret);
        let secret = i32::from_be_bytes(secret);
        let (cancel, cancelled) = watch::channel(());
        let mut backends = self.backends.lock();
        let number = loop {
            let number = self.next.fetch_add(1, Ordering::Relaxed) & i32::MAX;
            if number != 0 && !backends.contains_key(&number) {
                break number;
            }
        };
        let cancel = Arc::new(cancel);
        backends.insert(number, Backend { secret, cancel });
        drop(backends);
        Key {
            number,
            secret,
            cancelled,
            door: Arc::clone(self),
        }
    }

    /// Cancels the statement of a connection, if the secret is right.
    pub(crate) fn cancel(&self, number: i32, secret: i32) {
        let backends = self.backends.lock();
        if let Some(backend) = backends.get(&number)
            && backend.secret == secret
        {
            backend.cancel.send_replace(());
        }
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.door.backends.lock().remove(&self.number);
    }
}
