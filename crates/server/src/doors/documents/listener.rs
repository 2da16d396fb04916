//! Accepts connections, and serves each one in a separate task.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use forebay_documents::Documents;
use forebay_net::Stream;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Door;
use super::connection::Connection;
use super::session::Session;
use super::socket::Socket;
use crate::listen::{ListenError, bind, pause, stopped};

/// Interval of checks for commands whose clients have disconnected. Such a command must end within 100 ms after the
/// disconnect. These 100 ms include both the wait for the next check and the stopping of the command.
const ABANDONED_INTERVAL: Duration = Duration::from_millis(50);

/// Listener for MongoDB clients.
pub struct Listener {
    listener: TcpListener,
    tls: Option<TlsAcceptor>,
}

impl Listener {
    /// Listens on `address`. With `tls`, accepts only TLS clients.
    ///
    /// # Errors
    /// If the port is in use, or if the system does not allow the server to listen there.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<TlsAcceptor>,
    ) -> Result<Listener, ListenError> {
        let listener = bind(address, "--mongodb-listen").await?;
        Ok(Listener { listener, tls })
    }

    /// Returns the listening address, with the actual port if the setting has port 0.
    ///
    /// # Errors
    /// If the system does not report the address.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves clients until `shutdown` becomes true. Then waits at most `grace` for commands in progress.
    pub async fn serve(
        self,
        door: Arc<Door>,
        mut shutdown: watch::Receiver<bool>,
        grace: Duration,
    ) {
        let mut connections = JoinSet::new();
        let for_connections = shutdown.clone();
        if let Err(error) = look_for_abandoned(&door.documents) {
            tracing::warn!(%error, "cannot start the thread that stops commands of disconnected clients");
        }
        loop {
            tokio::select! {
                accepted = self.listener.accept() => match accepted {
                    Ok((stream, peer)) => self.admit(&door, stream, peer, &for_connections, &mut connections),
                    Err(error) => pause(error).await,
                },
                Some(ended) = connections.join_next() => log_panic(&ended),
                () = stopped(&mut shutdown) => break,
            }
        }
        drop(self.listener);
        door.documents.stop_waiting();
        let finished = timeout(grace, async {
            while connections.join_next().await.is_some() {}
        })
        .await;
        if finished.is_err() {
            tracing::warn!(
                connections = connections.len(),
                "commands did not finish in time; their connections are closed"
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
        let Some(place) = door.places.enter(peer.ip()) else {
            tracing::warn!(%peer, "connection refused: connections-max has been reached");
            return;
        };
        let door = door.clone();
        let tls = self.tls.clone();
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let local_address = stream.local_addr().ok();
            let socket = Socket::new(stream);
            let place = Arc::new(place);
            let id = door.connection_id();
            let mut session = Session::new(id, peer, socket.link(), place.clone());
            session.local_address = local_address;
            tokio::select! {
                () = serve_socket(door, tls, socket, session, shutdown) => {}
                () = place.evicted() => {
                    tracing::debug!(%peer, "connection closed: it had not authenticated, and a new client needed a connection");
                }
            }
        });
    }
}

/// Starts a thread that stops the commands of disconnected clients. The thread does nothing else, so no command can
/// delay it. It ends after `documents` is dropped.
fn look_for_abandoned(documents: &Arc<Documents>) -> io::Result<()> {
    let documents = Arc::downgrade(documents);
    let look = move || {
        while let Some(documents) = documents.upgrade() {
            documents.kill_abandoned(Instant::now());
            drop(documents);
            thread::sleep(ABANDONED_INTERVAL);
        }
    };
    let thread = thread::Builder::new().name("abandoned".to_owned());
    thread.spawn(look).map(drop)
}

/// Logs a connection's panic, which does not affect other connections.
fn log_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended {
        tracing::error!(%error, "a connection's task panicked");
    }
}

async fn serve_socket(
    door: Arc<Door>,
    tls: Option<TlsAcceptor>,
    socket: Socket,
    session: Session,
    shutdown: watch::Receiver<bool>,
) {
    let Some(tls) = tls else {
        return serve_client(door, Box::new(socket), session, shutdown).await;
    };
    let peer = session.client.peer.map(tracing::field::display);
    match timeout(door.timeouts.handshake, tls.accept(socket)).await {
        Ok(Ok(stream)) => serve_client(door, Box::new(stream), session, shutdown).await,
        Ok(Err(error)) => tracing::info!(peer, %error, "TLS handshake failed"),
        Err(_) => tracing::info!(peer, "TLS handshake took too long"),
    }
}

async fn serve_client(
    door: Arc<Door>,
    stream: Box<dyn Stream>,
    session: Session,
    shutdown: watch::Receiver<bool>,
) {
    let connection = session.client.connection_id;
    let peer = session.client.peer.map(tracing::field::display);
    tracing::debug!(connection, peer, "connection opened");
    let served = match &door.proxy {
        None => Connection::new(door, session, stream).serve(shutdown).await,
        Some(proxy) => proxy.serve(session.client, stream, shutdown).await,
    };
    match served {
        Ok(()) => tracing::debug!(connection, peer, "connection closed"),
        Err(error) => tracing::info!(connection, peer, %error, "connection closed after an error"),
    }
}
