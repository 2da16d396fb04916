//! Compression of messages; of large ones, on a thread that may block.

use bytes::Bytes;
use forebay_wire_mongo::{Compressor, Error, Limits, compress, inflated_bytes, uncompressed};
use tokio::task::block_in_place;

/// Messages from this many bytes on are decoded and compressed where blocking is allowed.
pub const LARGE_MESSAGE_BYTES_MIN: usize = 1 << 20;

/// Compresses `message` if a compressor is given. A message that cannot be compressed stays as it is.
pub fn compressed(message: Vec<u8>, compressor: Option<Compressor>) -> Vec<u8> {
    let Some(compressor) = compressor else {
        return message;
    };
    let compressed = if message.len() < LARGE_MESSAGE_BYTES_MIN {
        compress(&message, compressor)
    } else {
        block_in_place(|| compress(&message, compressor))
    };
    compressed.unwrap_or(message)
}

/// Returns the message without compression, and the compressor that it came with.
///
/// # Errors
/// If the compressed part is damaged or longer than the limits allow.
pub fn inflated(message: Bytes) -> Result<(Bytes, Option<Compressor>), Error> {
    let limits = Limits::default();
    let bytes = inflated_bytes(&message).unwrap_or(0);
    if bytes < LARGE_MESSAGE_BYTES_MIN {
        uncompressed(message, &limits)
    } else {
        block_in_place(|| uncompressed(message, &limits))
    }
}
