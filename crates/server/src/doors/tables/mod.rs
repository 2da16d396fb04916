//! The tables server: serves clients over PostgreSQL's protocol and Flight SQL.

mod users;
mod warm;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::available_parallelism;

use anyhow::{Context, Result, bail};
use forebay_device::{Device, DeviceKind};
use forebay_documents::{ClientContext, Documents, Rights};
use forebay_memory::Account;
use forebay_movement::pick::{Machine, SavedMeasurements};
use forebay_tables::{GpuRule, Paths, Settings as TableSettings, Source, Tables};
use forebay_tables_documents::{Clients, Collections};
use forebay_tables_flight::Door as Flight;
use forebay_tables_gpu::{ColumnFiles, DeviceLimits};
use forebay_tables_postgres::Door as Postgres;
use forebay_terminal::print_line;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinSet, block_in_place};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use self::users::SharedUsers;
use self::warm::Queries;
use super::documents;
use crate::auth::users::{DEFAULT_DATABASE, account, user};
use crate::listen::{ListenError, bind, pause, stopped};
use crate::settings::Settings;
use crate::status;

/// The database of tables, which is also that of the roles that limit a user to them.
const DATABASE: &str = "forebay";
/// Folder in the data directory for the definitions of tables. `tables` is the name of the folder of documents.
pub const FOLDER: &str = "sql";
/// Folder in the data directory for column files.
const COLUMNS_FOLDER: &str = "columns";
/// Divisor of the process's memory: SQL queries may take this part of it, and columns that GPUs read as much, unless
/// settings tell other sizes.
const MEMORY_PART: u64 = 4;

/// The tables server; nothing unless the settings have an address for it.
pub struct Door(Option<Opened>);

struct Opened {
    postgres: Option<TcpListener>,
    flight: Option<TcpListener>,
    tls: Option<TlsAcceptor>,
    tables: Arc<Tables>,
    warm: Option<Queries>,
}

impl Door {
    /// Listens on the addresses of the settings, and opens the engine.
    ///
    /// # Errors
    /// If a port is in use, or the definitions of tables or the file of queries cannot be read.
    pub async fn open(
        settings: &Settings,
        tls: Option<TlsAcceptor>,
        documents: &Arc<Documents>,
    ) -> Result<Door> {
        if settings
            .postgres_listen
            .or(settings.flight_listen)
            .is_none()
        {
            if settings.tables.is_some() {
                tracing::warn!(
                    "--tables has no effect without --postgres-listen or --flight-listen"
                );
            }
            return Ok(Door(None));
        }
        settings.tables.as_deref().map_or(Ok(()), check_folder)?;
        let warm = settings.tables_gpu_warm.as_deref().map(Queries::read);
        let warm = warm.transpose()?;
        let postgres = listen(settings.postgres_listen, "--postgres-listen").await?;
        let flight = listen(settings.flight_listen, "--flight-listen").await?;
        let tables = block_in_place(|| open(settings, documents)).context("opening the tables")?;
        Ok(Door(Some(Opened {
            postgres,
            flight,
            tls,
            tables,
            warm,
        })))
    }

    /// Returns what the status page shows of the tables.
    pub fn status(&self) -> status::Tables {
        status::Tables::new(self.0.as_ref().map(|opened| Arc::clone(&opened.tables)))
    }

    /// Prints the addresses, with the actual port if a setting has port 0.
    ///
    /// # Errors
    /// If the system does not report an address.
    pub fn announce(&self) -> Result<()> {
        let Some(opened) = &self.0 else {
            return Ok(());
        };
        // A server also serves if its output is not read.
        if let Some(listener) = &opened.postgres {
            let address = listener.local_addr()?;
            let _ = print_line(format_args!("SQL is at postgresql://{address}/{DATABASE}"));
        }
        if let Some(listener) = &opened.flight {
            let scheme = if opened.tls.is_some() {
                "grpc+tls"
            } else {
                "grpc"
            };
            let address = listener.local_addr()?;
            let _ = print_line(format_args!("Flight SQL is at {scheme}://{address}"));
        }
        Ok(())
    }

    /// Serves clients until `shutdown` becomes true. Then waits a while for statements in progress. Runs the queries
    /// of `--tables-gpu-warm` meanwhile.
    pub async fn serve(
        self,
        documents: Arc<documents::Door>,
        shutdown: watch::Receiver<bool>,
        settings: &Settings,
    ) {
        let Some(opened) = self.0 else {
            return;
        };
        let users = || SharedUsers {
            documents: documents.clone(),
            are_required: settings.auth,
        };
        let memory = documents.documents().settings().memory.clone();
        let postgres = async {
            let Some(listener) = opened.postgres else {
                return;
            };
            let settings_of_door = forebay_tables_postgres::Settings {
                handshake_timeout: settings.handshake_timeout,
                message_timeout: settings.message_timeout,
                memory: memory.clone(),
            };
            let (tables, tls) = (Arc::clone(&opened.tables), opened.tls.clone());
            let door = Postgres::new(tables, Box::new(users()), tls, settings_of_door);
            serve_all(listener, door, &documents, shutdown.clone(), settings).await;
        };
        let flight = async {
            let Some(listener) = opened.flight else {
                return;
            };
            let settings_of_door = forebay_tables_flight::Settings {
                handshake_timeout: settings.handshake_timeout,
                message_timeout: settings.message_timeout,
                memory: memory.clone(),
            };
            let (tables, tls) = (Arc::clone(&opened.tables), opened.tls.clone());
            let door = Flight::new(tables, Box::new(users()), tls, settings_of_door);
            serve_all(listener, door, &documents, shutdown.clone(), settings).await;
        };
        let (tables, warm) = (Arc::clone(&opened.tables), opened.warm);
        let warming = warm.map(|queries| tokio::spawn(queries.run(tables, shutdown.clone())));
        tokio::join!(postgres, flight);
        if let Some(warming) = warming
            && let Err(error) = warming.await
        {
            tracing::error!(%error, "the task of --tables-gpu-warm panicked");
        }
    }
}

/// Checks that tables can be found in the folder of `--tables`.
///
/// # Errors
/// If it does not exist, or this process may not read it.
pub fn check_folder(folder: &Path) -> Result<()> {
    match std::fs::read_dir(folder) {
        Ok(_) => Ok(()),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            bail!("--tables: there is no folder {}", folder.display())
        }
        Err(error) => bail!("--tables: {} cannot be read: {error}", folder.display()),
    }
}

async fn listen(
    address: Option<SocketAddr>,
    setting: &'static str,
) -> Result<Option<TcpListener>, ListenError> {
    match address {
        Some(address) => bind(address, setting).await.map(Some),
        None => Ok(None),
    }
}

/// A protocol of the tables server.
trait Protocol: Send + Sync + 'static {
    /// Serves a client until it leaves or the server stops. `known` is called when the client has logged in.
    ///
    /// # Errors
    /// Why the connection was closed, for the log.
    fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        sender: IpAddr,
        known: impl FnOnce() + Send,
        shutdown: watch::Receiver<bool>,
    ) -> impl Future<Output = Result<(), String>> + Send;
}

impl Protocol for Postgres {
    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        sender: IpAddr,
        known: impl FnOnce() + Send,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), String> {
        let served = Postgres::serve(self, Box::new(stream), sender, known, shutdown).await;
        served.map_err(|error| error.to_string())
    }
}

impl Protocol for Flight {
    async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        sender: IpAddr,
        known: impl FnOnce() + Send,
        shutdown: watch::Receiver<bool>,
    ) -> Result<(), String> {
        let served = Flight::serve(self, Box::new(stream), sender, known, shutdown).await;
        served.map_err(|error| error.to_string())
    }
}

/// Serves connections until `shutdown` becomes true. Then waits a while for those that are open.
async fn serve_all(
    listener: TcpListener,
    door: Arc<impl Protocol>,
    documents: &Arc<documents::Door>,
    shutdown: watch::Receiver<bool>,
    settings: &Settings,
) {
    let mut connections = accept(listener, &door, documents, shutdown).await;
    let ended = async { while connections.join_next().await.is_some() {} };
    if timeout(settings.shutdown_timeout, ended).await.is_err() {
        tracing::warn!("SQL statements did not finish in time; their connections are closed");
    }
}

/// Accepts connections until `shutdown` becomes true. Returns those that are open then.
async fn accept(
    listener: TcpListener,
    door: &Arc<impl Protocol>,
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
fn serve<P: Protocol>(
    door: &Arc<P>,
    documents: &Arc<documents::Door>,
    stream: TcpStream,
    peer: SocketAddr,
    shutdown: &watch::Receiver<bool>,
) -> Option<impl Future<Output = ()> + use<P>> {
    let Some(place) = documents.places().enter(peer.ip()) else {
        tracing::warn!(%peer, "connection refused: connections-max has been reached");
        return None;
    };
    if let Err(error) = forebay_net::tcp::prepare(&stream) {
        tracing::debug!(%error, "the TCP options of a socket cannot be set");
    }
    let (door, shutdown) = (Arc::clone(door), shutdown.clone());
    Some(async move {
        let served = door.serve(stream, peer.ip(), || place.keep(), shutdown);
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
    let or_part = |bytes| match bytes {
        0 => limit_bytes / MEMORY_PART,
        bytes => bytes,
    };
    let of_queries = or_part(settings.tables_memory_bytes_max);
    let host = memory.below(or_part(settings.tables_gpu_host_bytes_max));
    let listed = settings.tables_paths.split(',').map(str::trim);
    let listed = listed.filter(|path| !path.is_empty()).map(PathBuf::from);
    Tables::open(TableSettings {
        folder: (!settings.memory).then(|| settings.data.join(FOLDER)),
        tables: settings.tables.clone(),
        source: collections(settings, documents),
        gpu_rules: gpu_rules(settings, documents, &host),
        paths: Paths::Inside(settings.tables.clone().into_iter().chain(listed).collect()),
        memory: memory.clone(),
        memory_bytes_max: usize::try_from(of_queries).unwrap_or(usize::MAX),
        spill_bytes_max: settings.tables_spill_bytes_max,
        slow_statement: settings.tables_slow_statement,
        threads: available_parallelism().map_or(1, usize::from),
    })
}

/// Returns the rule that gives parts of plans to the first GPU and those that are peers of it and of each other; none
/// without a GPU. `host` is the memory of the host for their columns.
fn gpu_rules(settings: &Settings, documents: &Documents, host: &Account) -> Vec<Arc<dyn GpuRule>> {
    let devices = documents.devices().list().into_iter();
    let mut gpus: Vec<Arc<Device>> = Vec::new();
    for gpu in devices.filter(|device| device.kind() == DeviceKind::Cuda) {
        let are_peers = |other: &Arc<Device>| gpu.reaches(other) && other.reaches(&gpu);
        match gpus.iter().all(are_peers) {
            true => gpus.push(gpu),
            false => tracing::info!(
                device = gpu.name(),
                "SQL does not use a GPU that is no peer"
            ),
        }
    }
    let Some(first) = gpus.first() else {
        return Vec::new();
    };
    let limits = DeviceLimits {
        max_bytes: match settings.tables_gpu_bytes_max {
            0 => u64::MAX,
            bytes => bytes,
        },
        share_percent: match settings.tables_gpu_share_percent {
            0 => 100,
            percent => percent,
        },
    };
    let files = column_files(settings, first);
    let rule = forebay_tables_gpu::rule(gpus, limits, host, files);
    rule.into_iter().collect()
}

/// Returns the folder of column files; `None` if the server keeps none.
fn column_files(settings: &Settings, gpu: &Device) -> Option<ColumnFiles> {
    let max_bytes = settings.tables_gpu_disk_bytes_max;
    if settings.memory || max_bytes == 0 {
        return None;
    }
    let machine = Machine::this(gpu.details());
    let saved = SavedMeasurements::load(&settings.data, &machine);
    Some(ColumnFiles {
        folder: settings.data.join(COLUMNS_FOLDER),
        max_bytes,
        measurements: saved.ok().map(|it| it.measurements),
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
    fn client(&self, name: Option<&str>) -> ClientContext {
        if !self.are_required {
            return ClientContext::default();
        }
        let user = name.map(|name| user(name, DEFAULT_DATABASE));
        let account = user
            .as_ref()
            .and_then(|user| account(&self.documents, user).ok()?);
        let roles = account.map_or_else(Vec::new, |account| account.roles);
        ClientContext {
            user,
            rights: Rights::Roles(roles.into()),
            ..ClientContext::default()
        }
    }
}
