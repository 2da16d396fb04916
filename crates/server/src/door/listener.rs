//! Accepts connections, each served by a task of its own.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;

use super::Door;
use super::connection::Connection;
use super::relay::Relay;
use super::session::Session;
use super::socket::Socket;

/// How long to wait after the system refused a connection, for instance because no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How often commands whose clients are gone are looked for.
const ABANDONED_INTERVAL: Duration = Duration::from_millis(200);

/// Why a door does not listen.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another program has the port.
    #[error(
        "port {port} is in use: stop the program that listens there, or choose another port by --listen"
    )]
    PortInUse { port: u16 },
    /// The system does not allow it.
    #[error("cannot listen on {address}: {source}")]
    Io {
        address: SocketAddr,
        source: io::Error,
    },
}

/// A door that listens.
pub struct Listener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// Listens on `address`; with `tls`, clients must speak it.
    ///
    /// # Errors
    /// If the port is in use or the system refuses.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
    ) -> Result<Listener, ListenError> {
        match TcpListener::bind(address).await {
            Ok(listener) => Ok(Listener { listener, tls }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(ListenError::PortInUse {
                port: address.port(),
            }),
            Err(source) => Err(ListenError::Io { address, source }),
        }
    }

    /// The address, with the port that the system picked if none was asked for.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until `shutdown` turns true, then waits for commands in progress at most `patience`.
    pub async fn serve(
        self,
        door: Arc<Door>,
        mut shutdown: watch::Receiver<bool>,
        patience: Duration,
    ) {
        let mut connections = JoinSet::new();
        let for_connections = shutdown.clone();
        let mut rounds = interval(ABANDONED_INTERVAL);
        rounds.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(&door, stream, peer, &for_connections, &mut connections),
                    Err(error) => pause(error).await,
                },
                Some(ended) = connections.join_next() => log_panic(&ended),
                _ = rounds.tick() => door.documents.kill_abandoned(),
                () = stopped(&mut shutdown) => break,
            }
        }
        drop(self.listener);
        door.documents.stop_waiting();
        let finished = timeout(patience, async {
            while connections.join_next().await.is_some() {}
        })
        .await;
        if finished.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "commands still run; their connections are cut"
            );
        }
    }

    fn admit(
        &self,
        door: &Arc<Door>,
        stream: TcpStream,
        peer: SocketAddr,
        shutdown: &watch::Receiver<bool>,
        connections: &mut JoinSet<()>,
    ) {
        let Ok(slot) = door.connection_slots.clone().try_acquire_owned() else {
            tracing::warn!(%peer, "connection refused: connections-max is reached");
            return;
        };
        let door = door.clone();
        let tls = self.tls.clone();
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let _ = stream.set_nodelay(true);
            let socket = Socket::new(stream);
            let session = Session::new(door.connection_id(), peer, socket.link());
            match tls {
                None => serve_client(door, socket, session, shutdown, slot).await,
                Some(tls) => match timeout(door.timeouts.handshake, tls.accept(socket)).await {
                    Ok(Ok(stream)) => serve_client(door, stream, session, shutdown, slot).await,
                    Ok(Err(error)) => tracing::info!(%peer, %error, "TLS handshake failed"),
                    Err(_) => tracing::info!(%peer, "TLS handshake took too long"),
                },
            }
        });
    }
}

/// Waits until the server is asked to stop.
pub async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|down| *down).await;
}

/// A bug ends its own connection; the others go on.
fn log_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection ended by a bug");
    }
}

async fn pause(error: io::Error) {
    tracing::error!(%error, "cannot accept a connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

async fn serve_client<S: AsyncRead + AsyncWrite + Unpin>(
    door: Arc<Door>,
    stream: S,
    session: Session,
    shutdown: watch::Receiver<bool>,
    slot: OwnedSemaphorePermit,
) {
    let id = session.client.connection_id;
    let peer = session.client.peer.map(tracing::field::display);
    tracing::debug!(id, peer, "connection opened");
    let served = match &door.upstream {
        None => Connection::new(door, session, stream).serve(shutdown).await,
        Some(upstream) => match upstream.connect().await {
            Ok(store) => Relay::new(door, stream, store).serve(shutdown).await,
            Err(error) => {
                tracing::warn!(id, peer, %upstream, %error, "the store cannot be reached");
                Ok(())
            }
        },
    };
    match served {
        Ok(()) => tracing::debug!(id, peer, "connection closed"),
        Err(error) => tracing::info!(id, peer, %error, "connection closed by an error"),
    }
    drop(slot);
}
