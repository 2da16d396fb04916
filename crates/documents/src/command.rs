//! What a door hands over: one command of one client.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use forebay_memory::Share;

use crate::access::Rights;

/// One command as it came from the wire, its document sequences kept apart so that bulk writes are not copied together.
#[derive(Debug, Clone)]
pub struct Command {
    /// The command's name: the first key of the body.
    pub name: String,
    /// The database it is for (`$db`).
    pub db: String,
    /// The body section, `$db` and all.
    pub body: RawDocumentBuf,
    /// The document sequences (OP_MSG sections of kind 1) by the name of the argument they stand for.
    pub sequences: Vec<(String, Vec<RawDocumentBuf>)>,
}

impl Command {
    /// Takes name and database out of a body; a body without a `$db` is for the database `admin`.
    ///
    /// An empty body gives an empty name, which [`crate::Documents::run`] answers with `CommandNotFound`.
    pub fn from_body(body: RawDocumentBuf) -> Command {
        let name = first_key(&body).unwrap_or_default();
        let db = body.get_str("$db").unwrap_or("admin").to_owned();
        Command {
            name,
            db,
            body,
            sequences: Vec::new(),
        }
    }

    /// A command that is the argument of another one, for the same database.
    pub(crate) fn within(outer: &Command, body: &RawDocument) -> Command {
        Command {
            name: first_key(body).unwrap_or_default(),
            db: outer.db.clone(),
            body: body.to_owned(),
            sequences: Vec::new(),
        }
    }
}

fn first_key(body: &RawDocument) -> Option<String> {
    let element = body.iter_elements().next()?.ok()?;
    Some(element.key().as_str().to_owned())
}

/// A user whose password has been proven.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The database the user was defined on.
    pub db: String,
}

/// The way back to a client.
pub trait Link: Debug + Send + Sync {
    /// Whether the client is gone, so that nobody would read a reply. Answers at once.
    fn is_lost(&self) -> bool;
}

/// Who sends a command.
#[derive(Debug, Clone, Default)]
pub struct ClientContext {
    /// The number of the connection, as `hello` told it to the client.
    pub connection_id: i64,
    /// The user, if the connection has authenticated.
    pub user: Option<User>,
    /// What the client may do.
    pub rights: Rights,
    /// The client's name for itself, from the handshake.
    pub app_name: Option<String>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The way back to the client; commands of a client without one run to their end.
    pub link: Option<Arc<dyn Link>>,
    /// What the reply under way holds. Commands cover what they write; the door gives it back when the reply is sent.
    pub reply: Arc<Share>,
}

impl ClientContext {
    /// Whether another client is the same user; without users, whether it is on the same connection.
    pub(crate) fn is_same(&self, other: &ClientContext) -> bool {
        match (&self.user, &other.user) {
            (None, None) => self.connection_id == other.connection_id,
            (mine, others) => mine == others,
        }
    }
}
