//! The door: what connections share, and how one is served.

use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use arrow_flight::flight_service_server::FlightServiceServer;
use forebay_memory::Account;
use forebay_net::Stream;
use forebay_tables::Tables;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::{Service as _, http};

use crate::call::{Call, Metered, REQUEST_BYTES_MAX};
use crate::login::Logins;
use crate::service::Service;
use crate::tickets::Running;

/// Maximum number of calls in progress of a connection.
const CALLS_MAX: u32 = 64;
/// Maximum bytes of the headers of a call.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Bytes that a client may send before a call takes them.
const WINDOW_BYTES: u32 = 1 << 20;
/// Bytes of rows of a call that wait for the socket.
const SEND_BYTES: usize = 1 << 20;
/// The protocol that TLS clients must negotiate.
const ALPN: &[u8] = b"h2";

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Everything.
    Write,
    /// Only read.
    Read,
}

/// The users who may log in.
pub trait Users: Send + Sync + 'static {
    /// Returns whether clients must log in.
    fn are_required(&self) -> bool;

    /// Verifies a password, which takes several milliseconds of a core. Returns a text that identifies it, for
    /// [`Users::access`]; `None` if it is wrong or there is no such user.
    ///
    /// # Errors
    /// If users cannot be read.
    fn verify(&self, user: &str, password: &str) -> Result<Option<String>, String>;

    /// Records a wrong password, and returns the time to wait before the answer.
    fn wrong_password(&self, user: &str, sender: IpAddr) -> Duration;

    /// Returns the number of changes of users so far.
    fn changes(&self) -> u64;

    /// Returns what a logged-in user may do; `None` if the user was removed, has no role here, or has another password
    /// than the one that `credentials` identifies.
    fn access(&self, user: &str, credentials: &str) -> Option<Access>;
}

/// The settings of the door.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Time from the beginning of a connection to its first call, with a valid login if one is required.
    pub handshake_timeout: Duration,
    /// Time to send the rest of a call that was begun, or to take the next rows.
    pub message_timeout: Duration,
    /// The account of the memory of calls.
    pub memory: Account,
}

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum ConnectionError {
    /// TLS failed.
    #[error("TLS: {0}")]
    Tls(#[from] io::Error),
    /// The connection broke, or the client does not speak HTTP/2.
    #[error("{0}")]
    Http(#[from] hyper::Error),
    /// The client made no call in time, or did not log in.
    #[error("no call with a valid login in time")]
    TooSlow,
}

/// What connections share.
pub struct Door {
    pub(crate) tables: Arc<Tables>,
    pub(crate) logins: Logins,
    pub(crate) running: Running,
    pub(crate) settings: Settings,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").finish_non_exhaustive()
    }
}

impl Door {
    /// Returns a door to `tables`. With `tls`, clients must encrypt.
    pub fn new(
        tables: Arc<Tables>,
        users: Box<dyn Users>,
        tls: Option<TlsAcceptor>,
        settings: Settings,
    ) -> Arc<Door> {
        Arc::new(Door {
            tables,
            logins: Logins::new(users),
            running: Running::default(),
            settings,
            tls: tls.as_ref().map(for_http2),
        })
    }

    /// Serves a client until it leaves, breaks the protocol, or the server stops; then calls in progress may finish.
    /// `known` is called when the client has logged in.
    ///
    /// # Errors
    /// Why the connection was closed, for the log.
    pub async fn serve(
        self: Arc<Self>,
        stream: Box<dyn Stream>,
        sender: IpAddr,
        known: impl FnOnce() + Send,
        mut shutdown: watch::Receiver<bool>,
    ) -> Result<(), ConnectionError> {
        let too_late = Instant::now() + self.settings.handshake_timeout;
        let stream = self.encrypted(stream).await?;
        let first = Arc::new(Notify::new());
        let connection = Connection {
            service: Arc::new(Service::new(Arc::clone(&self))),
            door: self,
            sender,
            first: Arc::clone(&first),
        };
        let http = http2(&connection.door.settings);
        let answers = service_fn(move |request| {
            let connection = connection.clone();
            async move { Ok::<_, Infallible>(connection.answer(request).await) }
        });
        let mut serving = pin!(http.serve_connection(TokioIo::new(stream), answers));
        let mut known = Some(known);
        let mut stops = false;
        loop {
            tokio::select! {
                served = &mut serving => return Ok(served?),
                () = first.notified(), if known.is_some() => known.take().into_iter().for_each(|known| known()),
                () = sleep_until(too_late), if known.is_some() => return Err(ConnectionError::TooSlow),
                () = stopped(&mut shutdown), if !stops => {
                    stops = true;
                    serving.as_mut().graceful_shutdown();
                }
            }
        }
    }

    async fn encrypted(&self, stream: Box<dyn Stream>) -> Result<Box<dyn Stream>, ConnectionError> {
        let Some(tls) = &self.tls else {
            return Ok(stream);
        };
        let accepted = timeout(self.settings.handshake_timeout, tls.accept(stream)).await;
        Ok(Box::new(accepted.map_err(|_| ConnectionError::TooSlow)??))
    }
}

/// Waits until the server stops.
async fn stopped(shutdown: &mut watch::Receiver<bool>) {
    let _ = shutdown.wait_for(|stops| *stops).await;
}

/// Returns an acceptor that also agrees on HTTP/2, without which clients of gRPC refuse the connection.
fn for_http2(tls: &TlsAcceptor) -> TlsAcceptor {
    let mut config = (**tls.config()).clone();
    config.alpn_protocols = vec![ALPN.to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// Returns HTTP/2 with the limits of a connection.
fn http2(settings: &Settings) -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(CALLS_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES)
        // A client that is gone, or takes nothing at all, does not answer.
        .keep_alive_interval(settings.message_timeout)
        .keep_alive_timeout(settings.message_timeout);
    http
}

/// A connection, for its calls.
#[derive(Clone)]
struct Connection {
    door: Arc<Door>,
    service: Arc<Service>,
    sender: IpAddr,
    /// Told of each call with a valid login.
    first: Arc<Notify>,
}

impl Connection {
    /// Answers a call. It is refused before its message is read if the login is not valid.
    async fn answer(&self, request: http::Request<Incoming>) -> http::Response<tonic::body::Body> {
        let (logins, headers) = (&self.door.logins, request.headers());
        let login = &self.service.login;
        let identity = match logins.identity(headers, self.sender, login).await {
            Ok(identity) => identity,
            Err(status) => return status.into_http(),
        };
        self.first.notify_one();
        let call = Arc::new(Call::new(identity, &self.door.settings));
        let mut request = request.map(|body| Metered::new(body, &call));
        request.extensions_mut().insert(call);
        let service = FlightServiceServer::from_arc(Arc::clone(&self.service));
        let mut service = service.max_decoding_message_size(REQUEST_BYTES_MAX);
        match service.call(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}
