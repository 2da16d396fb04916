//! What connections to clients and connections to an upstream have in common: TCP options, certificate files, whole
//! messages of MongoDB's protocol within time limits and an account of memory, and the compression of large ones.
#![forbid(unsafe_code)]

mod certificates;
mod compression;
pub mod frames;
pub mod tcp;

pub use certificates::{PemError, certificates};
pub use compression::{LARGE_MESSAGE_BYTES_MIN, compressed, inflated};

/// Fills `bytes` from the system's generator of random numbers.
///
/// # Panics
/// If the system's generator fails, which it does not once it is seeded.
pub fn random_bytes(bytes: &mut [u8]) {
    use tokio_rustls::rustls::crypto::ring::default_provider;
    let generator = default_provider().secure_random;
    generator
        .fill(bytes)
        .expect("the system's random generator does not fail once it is seeded");
}
