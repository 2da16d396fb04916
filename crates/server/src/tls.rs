//! TLS with a certificate and a key from PEM files.

use std::path::Path;
use std::sync::Arc;

use forebay_net::{PemError, certificates};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::{self, ServerConfig};

use crate::settings::Settings;

/// Why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate without a key, or a key without a certificate.
    #[error("--tls-cert and --tls-key go together: give both or none")]
    Incomplete,
    /// A file is missing or malformed.
    #[error("{0}")]
    File(#[from] PemError),
    /// The key does not belong to the certificate, or its type is not supported.
    #[error("the TLS certificate and key cannot be used: {0}")]
    Unusable(#[from] rustls::Error),
}

/// Returns the acceptor of TLS clients; `None` if the settings do not enable TLS.
///
/// # Errors
/// If a file is missing or malformed, or only one of certificate and key is set.
pub fn acceptor(settings: &Settings) -> Result<Option<TlsAcceptor>, TlsError> {
    match (&settings.tls_cert, &settings.tls_key) {
        (None, None) => Ok(None),
        (Some(certificate), Some(key)) => Ok(Some(from_files(certificate, key)?)),
        _ => Err(TlsError::Incomplete),
    }
}

fn from_files(certificate: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let chain = certificates(certificate)?;
    let failed = |error| PemError::new("a private key", key, error);
    let key = PrivateKeyDer::from_pem_file(key).map_err(failed)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
