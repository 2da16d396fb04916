//! What a connection remembers between commands.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bson::RawDocument;
use forebay_documents::{ClientContext, Command, Link, Rights};
use tokio::task::block_in_place;

use super::places::Place;
use super::{Door, hello};
use crate::auth;
use crate::auth::sasl::{Conversation, Login};

/// The longest application name that is kept, in bytes; drivers send at most as much.
const APP_NAME_BYTES_MAX: usize = 128;
/// Wrong passwords that end a connection.
const FAILURES_MAX: u32 = 3;

/// The state of a connection.
#[derive(Debug)]
pub struct Session {
    /// Who the client is, as commands see it.
    pub client: ClientContext,
    /// The address at which the client reached us.
    pub local_address: Option<SocketAddr>,
    /// Authentication in progress.
    pub conversation: Option<Conversation>,
    /// Wrong passwords since the client last gave a right one.
    pub failures: u32,
    login: Option<Login>,
    /// Changes of users that what the client may do takes in; `None` until it was looked up.
    changes_seen: Option<u64>,
    /// When the connection ends unless the client has authenticated.
    login_due: Option<Instant>,
    place: Arc<Place>,
}

impl Session {
    /// The state of a fresh connection.
    pub fn new(
        connection_id: i64,
        peer: SocketAddr,
        link: Arc<dyn Link>,
        place: Arc<Place>,
    ) -> Session {
        let client = ClientContext {
            connection_id,
            peer: Some(peer),
            link: Some(link),
            ..ClientContext::default()
        };
        Session {
            client,
            local_address: None,
            conversation: None,
            failures: 0,
            login: None,
            changes_seen: None,
            login_due: None,
            place,
        }
    }

    /// Makes the client a user whose password was proven.
    pub fn log_in(&mut self, login: Login) {
        self.client.user = Some(login.user.clone());
        self.login = Some(login);
        self.changes_seen = None;
        self.login_due = None;
        self.failures = 0;
        self.place.keep();
    }

    /// Makes the client a stranger: one that has not authenticated.
    pub fn log_out(&mut self) {
        self.client.user = None;
        self.login = None;
        self.place.forget();
    }

    /// Brings the rights of the client up to date, if users have changed. Logs it out if its user is gone or has
    /// another password.
    pub fn follow_users(&mut self, door: &Door) {
        if !door.auth_required {
            return;
        }
        let changes = door.user_changes.count();
        let Some(login) = &self.login else {
            self.client.rights = Rights::Roles(Arc::default());
            return;
        };
        if self.changes_seen == Some(changes) {
            return;
        }
        let account = block_in_place(|| auth::account(&door.documents, &login.user));
        match account {
            Ok(Some(account)) if account.credentials == login.credentials => {
                self.client.rights = Rights::Roles(account.roles.into());
                self.changes_seen = Some(changes);
            }
            ended => {
                let (user, error) = (&login.user.name, ended.err());
                let error = error.as_ref().map(tracing::field::display);
                tracing::info!(user, error, "a user's connection is logged out");
                self.client.rights = Rights::Roles(Arc::default());
                self.log_out();
            }
        }
    }

    /// Starts the time limit for authentication with the first command other than hello. Connections that drivers
    /// monitor a server with send hello only, and have no limit.
    pub fn note_command(&mut self, door: &Door, command: &Command) {
        let watches = hello::is_hello(&command.name)
            && !matches!(command.body.get("speculativeAuthenticate"), Ok(Some(_)));
        if self.is_stranger(door) && !watches && self.login_due.is_none() {
            self.login_due = Some(Instant::now() + door.timeouts.handshake);
        }
    }

    /// Waits until the client should have authenticated, but has not.
    pub async fn overdue(&self) {
        match self.login_due {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the client has given too many wrong passwords.
    pub fn is_expelled(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// Whether the client has yet to authenticate.
    pub fn is_stranger(&self, door: &Door) -> bool {
        door.auth_required && self.client.user.is_none()
    }

    /// True if the client is on this machine.
    pub fn is_local(&self) -> bool {
        self.client
            .peer
            .is_some_and(|peer| peer.ip().to_canonical().is_loopback())
    }

    /// Keeps the application's name out of the `client` document of the first hello.
    pub fn remember(&mut self, metadata: &RawDocument) {
        let name = metadata
            .get_document("application")
            .and_then(|application| application.get_str("name"));
        if let Ok(name) = name
            && name.len() <= APP_NAME_BYTES_MAX
            && self.client.app_name.is_none()
        {
            self.client.app_name = Some(name.to_owned());
        }
    }
}
