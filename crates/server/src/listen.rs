//! Listening on a port, for every listener of the process.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

/// Pause after the system refused a connection, for instance because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Why a listener cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The port is in use.
    #[error(
        "port {port} is in use: stop the program that listens there, or choose another port with {setting}"
    )]
    PortInUse { port: u16, setting: &'static str },
    /// The system does not allow it.
    #[error("cannot listen on {address}: {source}")]
    Io {
        address: SocketAddr,
        source: io::Error,
    },
}

/// Listens on the address of a setting.
///
/// # Errors
/// If the port is in use or the system refuses.
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

/// Waits until the server is stopping.
pub async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|down| *down).await;
}

/// Waits a moment after the system refused a connection.
pub async fn pause(error: io::Error) {
    tracing::error!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
