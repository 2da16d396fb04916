//! The tables server: serves clients over PostgreSQL's protocol.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::Duration;

use anyhow::{Context, Result};
use forebay_documents::{Action, ClientContext, Documents, Rights};
use forebay_tables::{Paths, Settings as TableSettings, Source, Tables};
use forebay_tables_documents::{Clients, Collections};
use forebay_tables_postgres::{
    Access, Door as Postgres, Login, Proof, Settings as DoorSettings, Users,
};
use forebay_terminal::print_line;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::documents;
use crate::auth::scram::{ClientFirst, Credentials, Exchange};
use crate::auth::users::{self, DEFAULT_DATABASE};
use crate::listen::{bind, pause, stopped};
use crate::settings::Settings;

/// Database of the roles that limit a user to tables.
const DATABASE: &str = "forebay";
/// Folder in the data directory for the definitions of tables. `tables` is the name of the folder of documents.
pub const FOLDER: &str = "sql";
/// Part of the process's memory that SQL queries may take unless a setting tells another: a quarter.
const MEMORY_PART: u64 = 4;

/// The tables server; nothing unless the settings have an address for it.
pub struct Door(Option<Opened>);

struct Opened {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
    tables: Arc<Tables>,
}

impl Door {
    /// Listens on the address of the settings, and opens the engine.
    ///
    /// # Errors
    /// If the port is in use, or the definitions of tables cannot be read.
    pub async fn open(
        settings: &Settings,
        tls: Option<TlsAcceptor>,
        documents: &Arc<Documents>,
    ) -> Result<Door> {
        let Some(address) = settings.postgres_listen else {
            return Ok(Door(None));
        };
        let listener = bind(address, "--postgres-listen").await?;
        let tables = block_in_place(|| open(settings, documents)).context("opening the tables")?;
        Ok(Door(Some(Opened {
            listener,
            tls,
            tables,
        })))
    }

    /// Prints the address, with the actual port if the setting has port 0.
    ///
    /// # Errors
    /// If the system does not report the address.
    pub fn announce(&self) -> Result<()> {
        if let Some(opened) = &self.0 {
            let address = opened.listener.local_addr()?;
            // A server also serves if its output is not read.
            let _ = print_line(format_args!("SQL is at postgresql://{address}/{DATABASE}"));
        }
        Ok(())
    }

    /// Serves clients until `shutdown` becomes true. Then waits a while for statements in progress.
    pub async fn serve(
        self,
        documents: Arc<documents::Door>,
        shutdown: watch::Receiver<bool>,
        settings: &Settings,
    ) {
        let Some(Opened {
            listener,
            tls,
            tables,
        }) = self.0
        else {
            return;
        };
        let users = SharedUsers {
            documents: documents.clone(),
            are_required: settings.auth,
        };
        let of_door = DoorSettings {
            handshake_timeout: settings.handshake_timeout,
            message_timeout: settings.message_timeout,
            memory: documents.documents().settings().memory.clone(),
        };
        let door = Postgres::new(tables, Box::new(users), tls, of_door);
        let mut connections = accept(listener, &door, &documents, shutdown).await;
        let ended = async { while connections.join_next().await.is_some() {} };
        if timeout(settings.shutdown_timeout, ended).await.is_err() {
            tracing::warn!("SQL statements did not finish in time; their connections are closed");
        }
    }
}

/// Accepts connections until `shutdown` becomes true. Returns those that are open then.
async fn accept(
    listener: TcpListener,
    door: &Arc<Postgres>,
    documents: &Arc<documents::Door>,
    mut shutdown: watch::Receiver<bool>,
) -> JoinSet<()> {
    let mut connections = JoinSet::new();
    let for_connections = shutdown.clone();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let serving = serve(door, documents, stream, peer, &for_connections);
                    if let Some(serving) = serving {
                        connections.spawn(serving);
                    }
                }
                Err(error) => pause(error).await,
            },
            Some(ended) = connections.join_next() => if let Err(error) = ended {
                tracing::error!(%error, "a connection's task panicked");
            },
            () = stopped(&mut shutdown) => return connections,
        }
    }
}

/// Serves a connection; `None` if there is no permit for it.
fn serve(
    door: &Arc<Postgres>,
    documents: &Arc<documents::Door>,
    stream: TcpStream,
    peer: SocketAddr,
    shutdown: &watch::Receiver<bool>,
) -> Option<impl Future<Output = ()> + use<>> {
    let Some(place) = documents.places().enter(peer.ip()) else {
        tracing::warn!(%peer, "connection refused: connections-max has been reached");
        return None;
    };
    if let Err(error) = forebay_net::tcp::prepare(&stream) {
        tracing::debug!(%error, "the TCP options of a socket cannot be set");
    }
    let (door, shutdown) = (Arc::clone(door), shutdown.clone());
    Some(async move {
        let served = door.serve(Box::new(stream), peer.ip(), || place.keep(), shutdown);
        tokio::select! {
            served = served => match served {
                Ok(()) => tracing::debug!(%peer, "connection closed"),
                Err(error) => tracing::info!(%peer, %error, "connection closed after an error"),
            },
            () = place.evicted() => {
                tracing::debug!(%peer, "connection closed: it had not authenticated, and a new client needed a connection");
            }
        }
    })
}

/// Opens the engine according to the settings.
///
/// # Errors
/// If the declarations of tables cannot be read, or threads cannot be started.
fn open(settings: &Settings, documents: &Arc<Documents>) -> io::Result<Arc<Tables>> {
    let memory = &documents.settings().memory;
    let limit_bytes = memory.figures().limit_bytes;
    let of_queries = match settings.tables_memory_bytes_max {
        0 => limit_bytes / MEMORY_PART,
        bytes => bytes,
    };
    let listed = settings.tables_paths.split(',').map(str::trim);
    let listed = listed.filter(|path| !path.is_empty()).map(PathBuf::from);
    Tables::open(TableSettings {
        folder: (!settings.memory).then(|| settings.data.join(FOLDER)),
        tables: settings.tables.clone(),
        source: collections(settings, documents),
        paths: Paths::Inside(settings.tables.clone().into_iter().chain(listed).collect()),
        memory: memory.clone(),
        memory_bytes_max: usize::try_from(of_queries).unwrap_or(usize::MAX),
        spill_bytes_max: settings.tables_spill_bytes_max,
        threads: available_parallelism().map_or(1, usize::from),
    })
}

/// Returns the collections as tables; `None` if they are those of an upstream.
fn collections(settings: &Settings, documents: &Arc<Documents>) -> Option<Arc<dyn Source>> {
    if !settings.upstream.is_empty() {
        return None;
    }
    let clients = Readers {
        documents: Arc::clone(documents),
        are_required: settings.auth,
    };
    let collections = Collections::new(Arc::clone(documents), Box::new(clients));
    Some(Arc::new(collections))
}

/// The users of the documents server, as readers of its collections.
#[derive(Debug)]
struct Readers {
    documents: Arc<Documents>,
    are_required: bool,
}

impl Clients for Readers {
    fn client(&self, user: Option<&str>) -> ClientContext {
        if !self.are_required {
            return ClientContext::default();
        }
        let user = user.map(|user| users::user(user, DEFAULT_DATABASE));
        let account = user
            .as_ref()
            .and_then(|user| users::account(&self.documents, user).ok()?);
        let roles = account.map_or_else(Vec::new, |account| account.roles);
        ClientContext {
            user,
            rights: Rights::Roles(roles.into()),
            ..ClientContext::default()
        }
    }
}

/// The users of the documents server.
struct SharedUsers {
    documents: Arc<documents::Door>,
    are_required: bool,
}

impl Users for SharedUsers {
    fn are_required(&self) -> bool {
        self.are_required
    }

    fn login(
        &self,
        user: &str,
        first: &[u8],
    ) -> std::result::Result<(Box<dyn Login>, String), String> {
        let first = ClientFirst::parse(first).map_err(|error| error.to_string())?;
        let user = users::user(user, DEFAULT_DATABASE);
        let credentials = self
            .documents
            .credentials(&user)
            .map_err(|error| error.to_string())?;
        let mark = mark(&credentials);
        let (exchange, message) = Exchange::start(&first, credentials);
        Ok((Box::new(Proving { exchange, mark }), message))
    }

    fn wrong_password(&self, user: &str, sender: IpAddr) -> Duration {
        let user = users::user(user, DEFAULT_DATABASE);
        self.documents.guesses().record(Some(sender), Some(&user))
    }

    fn changes(&self) -> u64 {
        self.documents.user_changes().count()
    }

    fn access(&self, user: &str, credentials: &str) -> Option<Access> {
        let user = users::user(user, DEFAULT_DATABASE);
        let stored = users::account(self.documents.documents(), &user).ok()??;
        if mark(&stored.credentials) != credentials {
            return None;
        }
        let rights = Rights::Roles(stored.roles.into());
        let may = |action| rights.allow_on(action, DATABASE);
        match (may(Action::Define), may(Action::Read)) {
            (true, _) => Some(Access::Write),
            (false, true) => Some(Access::Read),
            (false, false) => None,
        }
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
