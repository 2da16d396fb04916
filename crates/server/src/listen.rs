//! Opens listening sockets, for every listener of the process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

/// Pause after `accept` failed, for instance because the process has no free file descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The port is in use.
    #[error(
        "port {port} is in use: stop the program that listens there, or choose another port with {setting}"
    )]
    PortInUse { port: u16, setting: &'static str },
    /// The system refuses to listen on the address.
    #[error("cannot listen on {address}: {source}")]
    Io {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Listens on an address. `setting` is the option that sets it, for the error message.
///
/// # Errors
/// If the port is in use, or if the system does not allow the server to listen there.
pub async fn bind(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ListenError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| match source.kind() {
            io::ErrorKind::AddrInUse => ListenError::PortInUse {
                port: address.port(),
                setting,
            },
            _ => ListenError::Io { address, source },
        })
}

/// Waits until the server is requested to stop.
pub async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|down| *down).await;
}

/// Logs that `accept` failed, and pauses before the next attempt.
pub async fn pause(error: io::Error) {
    tracing::error!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
