//! The documents server: serves clients over MongoDB's wire protocol.
//!
//! Three layers: `forebay-wire-mongo` decodes and encodes messages, [`dispatch`] answers messages, [`connection`] and
//! [`listener`] do the I/O. With an upstream, the crate `documents-proxy` replaces [`connection`].

mod connection;
mod dispatch;
mod fail_point;
mod hello;
mod listener;
mod refusal;
mod replica_set;
mod sasl;
mod session;
mod socket;
mod user_commands;

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicI64, Ordering};

use bson::oid::ObjectId;
use fail_point::FailPoints;
use forebay_documents::Documents;
#[cfg(feature = "tables")]
use forebay_documents::User;
use forebay_documents_proxy::{Proxy, Timeouts};
use forebay_memory::Account;
use replica_set::ReplicaSet;
use sasl::Secret;

#[cfg(feature = "tables")]
use crate::auth::scram::Credentials;
#[cfg(feature = "tables")]
use crate::auth::users::{self, UserError};
use crate::auth::{Changes, Guesses};
use crate::doors::places::Places;
use crate::settings::Settings;

pub use listener::Listener;
pub use refusal::{Code, Refusal};

/// The state that all client connections share.
#[derive(Debug)]
pub struct Door {
    documents: Arc<Documents>,
    /// Proxy that serves all clients, if there is an upstream.
    proxy: Option<Arc<Proxy>>,
    /// Identifies this process, so that drivers notice a restart.
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
    /// Part of `memory` for clients that have not authenticated.
    strangers: Account,
    places: Arc<Places>,
    next_connection_id: AtomicI64,
    next_request_id: AtomicI32,
}

/// Counters of the client connections.
#[derive(Debug, Clone, Copy)]
pub struct Connections {
    /// Connections open now.
    pub open: usize,
    /// Maximum number of open connections.
    pub max: usize,
    /// Connections accepted so far.
    pub taken: u64,
    /// Connections refused so far because the maximum was reached.
    pub refused: u64,
    /// Unauthenticated connections closed so far to accept others.
    pub evicted: u64,
    /// Wrong passwords so far.
    pub wrong_passwords: u64,
}

/// Clients that have not authenticated may together take 1/32 of the memory account.
const STRANGERS_PART: u64 = 32;

/// Returns the sub-account of `memory` for clients that have not authenticated.
pub fn strangers(memory: &Account) -> Account {
    memory.below(memory.figures().limit_bytes / STRANGERS_PART)
}

/// Returns the client timeouts in the settings.
pub fn timeouts(settings: &Settings) -> Timeouts {
    Timeouts {
        handshake: settings.handshake_timeout,
        message: settings.message_timeout,
    }
}

impl Door {
    /// Creates the state for clients of `documents`, or of the proxy's upstream if there is a proxy. Waits for the
    /// disk.
    pub fn new(documents: Arc<Documents>, proxy: Option<Arc<Proxy>>, settings: &Settings) -> Door {
        let memory = documents.settings().memory.clone();
        Door {
            secret: Secret::load(&documents),
            guesses: Guesses::default(),
            user_changes: Changes::default(),
            documents,
            proxy,
            run: ObjectId::new(),
            replica_set: ReplicaSet::parse(&settings.mongodb_replica_set),
            fail_points: settings.mongodb_test_commands.then(FailPoints::default),
            auth_required: settings.auth,
            timeouts: timeouts(settings),
            strangers: strangers(&memory),
            memory,
            places: Places::new(settings.connections_max, settings.auth),
            next_connection_id: AtomicI64::new(1),
            next_request_id: AtomicI32::new(1),
        }
    }

    /// Returns the document server, which executes the clients' commands.
    pub fn documents(&self) -> &Arc<Documents> {
        &self.documents
    }

    /// Returns the proxy, if there is an upstream.
    pub fn proxy(&self) -> Option<&Proxy> {
        self.proxy.as_deref()
    }

    /// Returns the counters of the client connections.
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

    /// Returns the permits of connections.
    #[cfg(feature = "tables")]
    pub(super) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// Returns the counts of wrong passwords.
    #[cfg(feature = "tables")]
    pub(super) fn guesses(&self) -> &Guesses {
        &self.guesses
    }

    /// Returns the changes of users.
    #[cfg(feature = "tables")]
    pub(super) fn user_changes(&self) -> &Changes {
        &self.user_changes
    }

    /// Returns a user's credentials, or those of a user that does not exist, which match no password.
    ///
    /// # Errors
    /// If the store fails, or the user's record is damaged.
    #[cfg(feature = "tables")]
    pub(super) fn credentials(&self, user: &User) -> Result<Credentials, UserError> {
        let stored = users::account(&self.documents, user)?;
        Ok(match stored {
            Some(account) => account.credentials,
            None => self.secret.missing(user),
        })
    }

    fn connection_id(&self) -> i64 {
        self.next_connection_id.fetch_add(1, Ordering::Relaxed)
    }

    fn request_id(&self) -> i32 {
        self.next_request_id.fetch_add(1, Ordering::Relaxed)
    }
}
