//! The users of the documents server, as those of SQL.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use forebay_documents::{Action, Rights};
use forebay_tables_flight as flight;
use forebay_tables_postgres::{self as postgres, Login, Proof};

use super::DATABASE;
use crate::auth::scram::{ClientFirst, Credentials, Exchange};
use crate::auth::users::{self, DEFAULT_DATABASE};
use crate::doors::documents;

/// The users of the documents server.
pub(super) struct SharedUsers {
    pub(super) documents: Arc<documents::Door>,
    pub(super) are_required: bool,
}

impl SharedUsers {
    fn credentials(&self, user: &str) -> Result<Credentials, String> {
        let user = users::user(user, DEFAULT_DATABASE);
        let credentials = self.documents.credentials(&user);
        credentials.map_err(|error| error.to_string())
    }

    /// Records a wrong password, and returns the time to wait before the answer.
    fn wrong(&self, user: &str, sender: IpAddr) -> Duration {
        let user = users::user(user, DEFAULT_DATABASE);
        self.documents.guesses().record(Some(sender), Some(&user))
    }

    fn changes(&self) -> u64 {
        self.documents.user_changes().count()
    }

    /// Returns whether a user may only read; `None` if it has no role here, or other credentials.
    fn is_read_only(&self, user: &str, credentials: &str) -> Option<bool> {
        let user = users::user(user, DEFAULT_DATABASE);
        let stored = users::account(self.documents.documents(), &user).ok()??;
        if mark(&stored.credentials) != credentials {
            return None;
        }
        let rights = Rights::Roles(stored.roles.into());
        let may = |action| rights.allow_on(action, DATABASE);
        match (may(Action::Define), may(Action::Read)) {
            (true, _) => Some(false),
            (false, true) => Some(true),
            (false, false) => None,
        }
    }
}

impl postgres::Users for SharedUsers {
    fn are_required(&self) -> bool {
        self.are_required
    }

    fn login(&self, user: &str, first: &[u8]) -> Result<(Box<dyn Login>, String), String> {
        let first = ClientFirst::parse(first).map_err(|error| error.to_string())?;
        let credentials = self.credentials(user)?;
        let mark = mark(&credentials);
        let (exchange, message) = Exchange::start(&first, credentials);
        Ok((Box::new(Proving { exchange, mark }), message))
    }

    fn wrong_password(&self, user: &str, sender: IpAddr) -> Duration {
        self.wrong(user, sender)
    }

    fn changes(&self) -> u64 {
        self.changes()
    }

    fn access(&self, user: &str, credentials: &str) -> Option<postgres::Access> {
        let is_read_only = self.is_read_only(user, credentials)?;
        Some(match is_read_only {
            true => postgres::Access::Read,
            false => postgres::Access::Write,
        })
    }
}

impl flight::Users for SharedUsers {
    fn are_required(&self) -> bool {
        self.are_required
    }

    fn verify(&self, user: &str, password: &str) -> Result<Option<String>, String> {
        let credentials = self.credentials(user)?;
        let is_right = users::is_password_of(password, &credentials);
        Ok(is_right.then(|| mark(&credentials)))
    }

    fn wrong_password(&self, user: &str, sender: IpAddr) -> Duration {
        self.wrong(user, sender)
    }

    fn changes(&self) -> u64 {
        self.changes()
    }

    fn access(&self, user: &str, credentials: &str) -> Option<flight::Access> {
        let is_read_only = self.is_read_only(user, credentials)?;
        Some(match is_read_only {
            true => flight::Access::Read,
            false => flight::Access::Write,
        })
    }
}

/// Returns a text that differs between credentials.
fn mark(credentials: &Credentials) -> String {
    format!("{credentials:?}")
}

/// A login in progress.
struct Proving {
    exchange: Exchange,
    mark: String,
}

impl Login for Proving {
    fn finish(&self, message: &[u8]) -> Option<Proof> {
        let message = self.exchange.finish(message).ok()?;
        Some(Proof {
            message,
            credentials: self.mark.clone(),
        })
    }
}
