//! The state that a connection keeps from one command to the next.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use bson::RawDocument;
use forebay_documents::{ClientContext, Command, Link, Rights};
use forebay_wire_mongo::hello::app_name;
use tokio::task::block_in_place;

use super::sasl::{Conversation, Login};
use super::{Door, hello};
use crate::auth;
use crate::doors::places::Place;

/// Number of wrong passwords after which a connection is closed.
const FAILURES_MAX: u32 = 3;

/// The state that a connection keeps from one command to the next.
#[derive(Debug)]
pub struct Session {
    /// The client's identity and rights, as commands see them.
    pub client: ClientContext,
    /// Address of the server's end of the connection.
    pub local_address: Option<SocketAddr>,
    /// Authentication in progress.
    pub conversation: Option<Conversation>,
    /// Number of wrong passwords since the last successful login.
    pub failures: u32,
    login: Option<Login>,
    /// The value that the counter of changes to users had when the client's rights were last read; `None` before the
    /// first read.
    changes_seen: Option<u64>,
    /// Deadline for authentication.
    login_due: Option<Instant>,
    place: Arc<Place>,
}

impl Session {
    /// Creates the state of a new connection.
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

    /// Sets the state of authentication.
    pub fn set_conversation(&mut self, conversation: Option<Conversation>) {
        if conversation.is_some() {
            self.place.begin_login();
        }
        self.conversation = conversation;
    }

    /// Logs the client in. Its connection permit no longer counts as that of an unauthenticated client.
    pub fn log_in(&mut self, login: Login) {
        self.client.user = Some(login.user.clone());
        self.login = Some(login);
        self.changes_seen = None;
        self.login_due = None;
        self.failures = 0;
        self.place.keep();
    }

    /// Logs the client out. Its connection permit counts as that of an unauthenticated client again.
    pub fn log_out(&mut self) {
        self.client.user = None;
        self.login = None;
        self.place.forget();
    }

    /// Reloads the client's rights if users have changed. Logs the client out if its user was removed or has a new
    /// password.
    pub fn refresh_rights(&mut self, door: &Door) {
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
                tracing::info!(
                    user,
                    error,
                    "connection logged out: its user was dropped, has changed or cannot be read"
                );
                self.client.rights = Rights::Roles(Arc::default());
                self.log_out();
            }
        }
    }

    /// Starts the time limit for authentication at the first command other than hello. Connections that only monitor
    /// the server send nothing but hello, and have no limit.
    pub fn start_auth_deadline(&mut self, door: &Door, command: &Command) {
        let watches = hello::is_hello(&command.name)
            && !matches!(command.body.get("speculativeAuthenticate"), Ok(Some(_)));
        if self.is_stranger(door) && !watches && self.login_due.is_none() {
            self.login_due = Some(Instant::now() + door.timeouts.handshake);
        }
    }

    /// Waits until the deadline for authentication has passed; forever without a deadline.
    pub async fn wait_until_overdue(&self) {
        match self.login_due {
            Some(due) => tokio::time::sleep_until(due.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Returns whether the client has sent too many wrong passwords.
    pub fn has_too_many_failures(&self) -> bool {
        self.failures >= FAILURES_MAX
    }

    /// Returns whether the client has yet to authenticate.
    pub fn is_stranger(&self, door: &Door) -> bool {
        door.auth_required && self.client.user.is_none()
    }

    /// Returns whether the client is on this machine.
    pub fn is_local(&self) -> bool {
        self.client
            .peer
            .is_some_and(|peer| peer.ip().to_canonical().is_loopback())
    }

    /// Stores the application name from the `client` document of the first hello.
    pub fn set_app_name(&mut self, metadata: &RawDocument) {
        if self.client.app_name.is_none() {
            self.client.app_name = app_name(metadata).map(str::to_owned);
        }
    }
}
