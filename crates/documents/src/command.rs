//! One command of one client, as the server passes it to this crate.

use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

use bson::{RawDocument, RawDocumentBuf};
use forebay_memory::Share;

use crate::access::Rights;

/// One command as received. Its document sequences are kept separate, so that bulk writes are not copied into the body.
#[derive(Debug, Clone)]
pub struct Command {
    /// The command's name: the first key of the body.
    pub name: String,
    /// The command's database (`$db`).
    pub db: String,
    /// The body section, including `$db`.
    pub body: RawDocumentBuf,
    /// The document sequences (OP_MSG sections of kind 1), each with the name of the argument that it replaces.
    pub sequences: Vec<(String, Vec<RawDocumentBuf>)>,
}

impl Command {
    /// Makes a command from its body, which contains the name and the database. The default database is `admin`.
    ///
    /// An empty body has an empty name, for which [`crate::Documents::run`] returns `CommandNotFound`.
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

    /// Returns a command that is an argument of another command and runs on the same database.
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

/// An authenticated user.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct User {
    /// The user's name.
    pub name: String,
    /// The database on which the user was created.
    pub db: String,
}

/// The connection to a client.
pub trait Link: Debug + Send + Sync {
    /// Returns whether the client has disconnected and cannot receive a reply. Does not block.
    fn is_lost(&self) -> bool;
}

/// The client that sends a command.
#[derive(Debug, Clone, Default)]
pub struct ClientContext {
    /// The connection's number, which the reply to `hello` contains.
    pub connection_id: i64,
    /// The user, if the connection has authenticated.
    pub user: Option<User>,
    /// The client's privileges.
    pub rights: Rights,
    /// The application name that the client sent in the handshake.
    pub app_name: Option<String>,
    /// The client's address.
    pub peer: Option<SocketAddr>,
    /// The connection to the client. If `None`, commands never stop because of a disconnect.
    pub link: Option<Arc<dyn Link>>,
    /// The current reply's share of the memory account. A command grows the share by the bytes that it writes to the
    /// reply. The server releases the share when the reply has been sent.
    pub reply: Arc<Share>,
}

impl ClientContext {
    /// Returns whether both clients are the same user or, without authentication, the same connection.
    pub(crate) fn is_same(&self, other: &ClientContext) -> bool {
        match (&self.user, &other.user) {
            (None, None) => self.connection_id == other.connection_id,
            (mine, others) => mine == others,
        }
    }
}
