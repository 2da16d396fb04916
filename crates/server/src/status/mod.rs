//! The status listener, on a separate port: `/metrics` for Prometheus, `/health`, and a status page with its JSON. It
//! changes nothing, but cancels SQL statements for clients of this machine.

mod health;
mod http;
mod json;
mod metrics;
mod process;
#[cfg(feature = "tables")]
mod tables;
#[cfg(not(feature = "tables"))]
#[path = "tables_left_out.rs"]
mod tables;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use health::Health;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::timeout;

use crate::doors::documents::Door;
use crate::listen;

pub use process::Process;
use process::ProcessStatus;
pub use tables::Tables;

/// Maximum number of clients served concurrently; others wait.
const CLIENTS_MAX: usize = 256;
/// Timeout for receiving a request.
const REQUEST_TIME_MAX: Duration = Duration::from_secs(5);
/// Timeout for a request and its answer.
const CLIENT_TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum bytes of a request.
const REQUEST_BYTES_MAX: usize = 16 * 1024;

/// The listener of the status page, the metrics and `/health`.
pub struct Listener {
    listener: TcpListener,
    address: SocketAddr,
}

/// The state that all requests share.
pub struct Watched {
    process: Process,
    door: Arc<Door>,
    tables: Tables,
    health: Health,
    is_loopback: bool,
    /// Locked while a snapshot is taken and formatted. Only one snapshot is taken at a time, because a snapshot of many
    /// buckets takes long.
    drawing: Arc<Mutex<()>>,
}

/// The status at a point in time.
struct Snapshot {
    process: ProcessStatus,
    documents: forebay_documents::Status,
}

impl Watched {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            process: self.process.status(),
            documents: self.door.documents().status(),
        }
    }
}

impl Listener {
    /// Listens on `address`.
    ///
    /// # Errors
    /// If the port is in use, or if the system does not allow the server to listen there.
    pub async fn bind(address: SocketAddr) -> Result<Listener> {
        let listener = listen::bind(address, "--status-listen").await?;
        let address = listener.local_addr()?;
        if !address.ip().to_canonical().is_loopback() {
            tracing::warn!(
                %address,
                "the status page can be reached from other machines: it shows the names of collections, fields and tables without a password"
            );
        }
        Ok(Listener { listener, address })
    }

    /// Returns the listening address, with the actual port if the setting has port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers requests about `process`, `door` and `tables` until `shutdown` becomes true.
    pub async fn serve(
        self,
        process: Process,
        door: Arc<Door>,
        tables: Tables,
        mut shutdown: watch::Receiver<bool>,
    ) {
        let watched = Arc::new(Watched {
            process,
            door,
            tables,
            health: Health::default(),
            is_loopback: self.address.ip().to_canonical().is_loopback(),
            drawing: Arc::default(),
        });
        let clients = Arc::new(Semaphore::new(CLIENTS_MAX));
        loop {
            let admitted = async {
                let place = clients.clone().acquire_owned().await;
                (self.listener.accept().await, place)
            };
            let admitted = tokio::select! {
                admitted = admitted => admitted,
                () = listen::stopped(&mut shutdown) => return,
            };
            match admitted {
                (Ok((stream, _)), Ok(place)) => {
                    let watched = watched.clone();
                    tokio::spawn(async move {
                        serve_client(watched, stream).await;
                        drop(place);
                    });
                }
                (Err(error), _) => listen::pause(error).await,
                (_, Err(_)) => return,
            }
        }
    }
}

/// Answers one request. Disconnects a client that is slow or does not speak HTTP.
async fn serve_client(watched: Arc<Watched>, stream: TcpStream) {
    let answer = service_fn(|request| http::answer(&watched, request));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME_MAX)
        .keep_alive(false)
        .max_buf_size(REQUEST_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), answer);
    match timeout(CLIENT_TIME_MAX, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a request to the status page failed"),
        Err(_) => tracing::debug!("a client of the status page was too slow"),
    }
}
