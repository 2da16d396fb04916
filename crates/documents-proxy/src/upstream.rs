//! The upstream's address, and connections to it.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use bson::rawdoc;
use forebay_net::{PemError, Stream, certificates, tcp};
use forebay_wire_mongo::{HEADER_BYTES, OpMsg};
use mongodb::options::{ClientOptions, ServerAddress, Tls, TlsOptions};
use rustls_pki_types::ServerName;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::{self, ClientConfig, RootCertStore};

/// Timeout of connecting, unless the connection string sets one (`connectTimeoutMS`).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Error message for an upstream that accepts connections but does not answer the first message of TLS.
const NO_HANDSHAKE: &str = "the TLS handshake got no answer in time, perhaps because the upstream does not use TLS (tls=true in --upstream)";

/// Why the connection string of `--upstream` is refused.
#[derive(Debug, thiserror::Error)]
pub enum UpstreamError {
    /// Not a connection string, or a host name that cannot be resolved.
    #[error("--upstream")]
    Uri(#[from] mongodb::error::Error),
    /// Several servers, or a server without host and port.
    #[error("--upstream must name one server by host and port")]
    OneServer,
    /// The address of this server itself.
    #[error("--upstream names this server itself: name another server")]
    Itself,
    /// A TLS option that skips certificate verification or sets a client certificate.
    #[error("--upstream: the only supported TLS options are tls and tlsCAFile")]
    TlsOption,
    /// The file of CA certificates cannot be read.
    #[error("--upstream: {0}")]
    File(#[from] PemError),
    /// The CA certificates cannot be used.
    #[error("--upstream: the CA certificates cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Address of the upstream, and how to connect to it.
pub struct Upstream {
    host: String,
    port: u16,
    tls: Option<TlsConnector>,
    connect_timeout: Duration,
    has_credential: bool,
    /// Address that this server listens on. The upstream must have another address.
    own: SocketAddr,
}

impl Upstream {
    /// Parses the connection string, for a server that listens on `own`. Does not connect.
    ///
    /// # Errors
    /// If the string is invalid, has an unsupported option, or names this server itself.
    pub async fn parse(uri: &str, own: SocketAddr) -> Result<Upstream, UpstreamError> {
        let options = ClientOptions::parse(uri).await?;
        let [ServerAddress::Tcp { host, port }] = options.hosts.as_slice() else {
            return Err(UpstreamError::OneServer);
        };
        let tls = match &options.tls {
            Some(Tls::Enabled(options)) => Some(connector(options)?),
            Some(Tls::Disabled) | None => None,
        };
        let port = port.unwrap_or(27017);
        // Ignores a failed lookup: the name may become resolvable later.
        let addresses = lookup_host((host.as_str(), port)).await;
        if addresses.is_ok_and(|mut all| all.any(|address| is_same(address, own))) {
            return Err(UpstreamError::Itself);
        }
        Ok(Upstream {
            host: host.clone(),
            port,
            own,
            tls,
            has_credential: options.credential.is_some(),
            connect_timeout: options.connect_timeout.unwrap_or(CONNECT_TIMEOUT),
        })
    }

    /// Returns whether the connection string has a user, which means that the upstream requires authentication.
    pub fn has_credential(&self) -> bool {
        self.has_credential
    }

    /// Returns the timeout for connecting to the upstream and for each command of the handshake.
    pub fn connect_timeout(&self) -> Duration {
        self.connect_timeout
    }

    /// Opens a connection.
    ///
    /// # Errors
    /// If the upstream cannot be reached in time, or TLS fails.
    pub async fn connect(&self) -> io::Result<Box<dyn Stream>> {
        self.connect_within(self.connect_timeout).await
    }

    /// Opens a connection, within at most `time_max`.
    ///
    /// # Errors
    /// If the upstream cannot be reached in time, or TLS fails.
    pub async fn connect_within(&self, time_max: Duration) -> io::Result<Box<dyn Stream>> {
        let due = Instant::now() + time_max;
        let stream = timeout_at(due, self.open_plain()).await;
        let stream = stream.map_err(|_| timed_out("no connection was accepted in time"))??;
        let secured = timeout_at(due, self.secure(stream)).await;
        secured.map_err(|_| timed_out(NO_HANDSHAKE))?
    }

    /// Returns whether the upstream answers a hello on a new connection. An upstream that shuts down may still answer
    /// on open connections, and accept new connections that it never serves.
    pub async fn is_there(&self) -> bool {
        let greeted = timeout(self.connect_timeout, self.greet()).await;
        greeted.is_ok_and(|greeted| greeted.is_ok())
    }

    /// Returns whether the upstream says nothing on a new connection. An upstream that refuses the connection does not
    /// hang: it may have reached its maximum number of connections.
    pub async fn hangs(&self) -> bool {
        let greeted = timeout(self.connect_timeout, self.greet()).await;
        greeted.is_err()
    }

    async fn greet(&self) -> io::Result<()> {
        let mut stream = self.open().await?;
        let hello = OpMsg::new(rawdoc! { "hello": 1, "$db": "admin" });
        stream.write_all(&hello.encode(1, 0)).await?;
        stream.flush().await?;
        stream.read_exact(&mut [0; HEADER_BYTES]).await.map(drop)
    }

    async fn open(&self) -> io::Result<Box<dyn Stream>> {
        self.secure(self.open_plain().await?).await
    }

    async fn open_plain(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        if is_same(stream.peer_addr()?, self.own) {
            return Err(io::Error::other(UpstreamError::Itself));
        }
        tcp::prepare(&stream)?;
        // Also limits how long sent data may stay unacknowledged, so that commands fail if the upstream's machine
        // disappears.
        SockRef::from(&stream).set_tcp_user_timeout(Some(tcp::SILENCE_MAX))?;
        Ok(stream)
    }

    /// Starts TLS on a TCP connection if the connection string asks for TLS.
    async fn secure(&self, stream: TcpStream) -> io::Result<Box<dyn Stream>> {
        let Some(tls) = &self.tls else {
            return Ok(Box::new(stream));
        };
        let name = ServerName::try_from(self.host.clone())
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let secured = tls.connect(name, stream).await;
        let failed = |error: io::Error| {
            io::Error::new(error.kind(), format!("the TLS handshake failed: {error}"))
        };
        Ok(Box::new(secured.map_err(failed)?))
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Upstream({self})")
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tls = if self.tls.is_some() { " with TLS" } else { "" };
        write!(f, "{}:{}{tls}", self.host, self.port)
    }
}

fn timed_out(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, message)
}

/// Returns whether the addresses are equal; an IPv4 address may be written as IPv6.
fn is_same(one: SocketAddr, other: SocketAddr) -> bool {
    one.port() == other.port() && one.ip().to_canonical() == other.ip().to_canonical()
}

fn connector(options: &TlsOptions) -> Result<TlsConnector, UpstreamError> {
    let unchecked = options.allow_invalid_certificates == Some(true);
    if unchecked || options.cert_key_file_path.is_some() {
        return Err(UpstreamError::TlsOption);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots(options.ca_file_path.as_deref())?)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Reads the CA certificates of a PEM file. Without a file, returns the CA certificates that browsers trust.
fn roots(file: Option<&Path>) -> Result<RootCertStore, UpstreamError> {
    let mut roots = RootCertStore::empty();
    match file {
        None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        Some(path) => {
            for certificate in certificates(path)? {
                roots.add(certificate)?;
            }
        }
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    const OWN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 27018);

    #[tokio::test]
    async fn a_server_is_not_its_own_upstream() {
        for uri in [
            "mongodb://127.0.0.1:27018",
            "mongodb://[::ffff:127.0.0.1]:27018/",
        ] {
            let upstream = Upstream::parse(uri, OWN).await;
            assert!(matches!(upstream, Err(UpstreamError::Itself)), "{uri}");
        }
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .await
            .unwrap();
        let address = listener.local_addr().unwrap();
        let mut upstream = Upstream::parse(&format!("mongodb://{address}"), OWN)
            .await
            .unwrap();
        assert!(upstream.connect().await.is_ok());
        // The upstream's host name may later resolve to this server's address.
        upstream.own = address;
        assert!(upstream.connect().await.is_err());
        assert!(!upstream.is_there().await);
    }

    #[tokio::test]
    async fn an_upstream_hangs_that_accepts_and_says_nothing() {
        let silent = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let silent = silent.await.unwrap();
        let uri = format!(
            "mongodb://{}/?connectTimeoutMS=50",
            silent.local_addr().unwrap()
        );
        let upstream = Upstream::parse(&uri, OWN).await.unwrap();
        assert!(upstream.hangs().await);
        drop(silent);
        assert!(!upstream.hangs().await);
        assert!(!upstream.is_there().await);
    }

    #[tokio::test]
    async fn a_tls_handshake_without_an_answer_is_named() {
        let silent = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let silent = silent.await.unwrap();
        let port = silent.local_addr().unwrap().port();
        let uri = format!("mongodb://127.0.0.1:{port}/?tls=true&connectTimeoutMS=50");
        let upstream = Upstream::parse(&uri, OWN).await.unwrap();
        let error = upstream.connect().await.err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(error.to_string().contains("TLS handshake"), "{error}");
    }

    #[tokio::test]
    async fn connection_strings_are_read() {
        for (uri, shown) in [
            ("mongodb://127.0.0.1", Some("127.0.0.1:27017")),
            (
                "mongodb://name:word@db.example:9/?tls=true",
                Some("db.example:9 with TLS"),
            ),
            ("mongodb://a,b/?replicaSet=rs", None),
            ("mongodb://a/?tls=true&tlsInsecure=true", None),
            ("mongodb://a/?tls=true&tlsCAFile=/nonexistent", None),
            ("127.0.0.1:27017", None),
        ] {
            let upstream = Upstream::parse(uri, OWN).await;
            assert_eq!(
                upstream.ok().map(|it| it.to_string()).as_deref(),
                shown,
                "{uri}"
            );
        }
    }
}
