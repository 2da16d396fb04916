//! Network code for connections to clients and to an upstream: TCP options, certificate files, whole MongoDB messages
//! with time limits and a memory account, and compression.
#![forbid(unsafe_code)]

mod certificates;
mod compression;
pub mod frames;
pub mod tcp;

use tokio::io::{AsyncRead, AsyncWrite};

pub use certificates::{PemError, certificates};
pub use compression::{LARGE_MESSAGE_BYTES_MIN, compressed, inflated};

/// A connection's byte stream: plain TCP or TLS.
///
/// Connections use it as a `Box<dyn Stream>`, so that their code is compiled once for all kinds of streams. The virtual
/// call is cheap compared with the system call that follows.
pub trait Stream: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Stream for S {}

/// Fills `bytes` from the system's random number generator.
///
/// # Panics
/// If the system's generator fails, which cannot happen once it is seeded.
pub fn random_bytes(bytes: &mut [u8]) {
    use tokio_rustls::rustls::crypto::ring::default_provider;
    let generator = default_provider().secure_random;
    generator
        .fill(bytes)
        .expect("the system's random generator does not fail once it is seeded");
}
