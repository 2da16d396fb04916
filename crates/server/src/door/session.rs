//! What a connection remembers between commands.

use std::net::SocketAddr;
use std::sync::Arc;

use bson::RawDocument;
use forebay_documents::{ClientContext, Link, User};

use crate::auth::sasl::Conversation;

/// The longest application name that is kept, in bytes; drivers send at most as much.
const APP_NAME_BYTES_MAX: usize = 128;

/// The state of a connection.
#[derive(Debug)]
pub struct Session {
    /// Who the client is, as commands see it.
    pub client: ClientContext,
    /// Authentication in progress.
    pub conversation: Option<Conversation>,
}

impl Session {
    /// The state of a fresh connection.
    pub fn new(connection_id: i64, peer: SocketAddr, link: Arc<dyn Link>) -> Session {
        let client = ClientContext {
            connection_id,
            peer: Some(peer),
            link: Some(link),
            ..ClientContext::default()
        };
        Session {
            client,
            conversation: None,
        }
    }

    /// The user, once proven.
    pub fn user(&self) -> Option<&User> {
        self.client.user.as_ref()
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
