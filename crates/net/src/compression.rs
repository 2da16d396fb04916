//! Compresses and decompresses messages. Large messages are processed in a blocking section.

use bytes::Bytes;
use forebay_wire_mongo::{Compressor, Error, Limits, compress, inflated_bytes, uncompressed};
use tokio::task::block_in_place;

/// Messages of at least this many bytes are compressed and decompressed in a blocking section.
pub const LARGE_MESSAGE_BYTES_MIN: usize = 1 << 20;

/// Compresses `message` if there is a compressor. Returns the message unchanged if compression fails.
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

/// Returns the decompressed message, and the compressor with which it was compressed.
///
/// # Errors
/// If the compressed content is damaged or exceeds the limits.
pub fn inflated(message: Bytes) -> Result<(Bytes, Option<Compressor>), Error> {
    let limits = Limits::default();
    let bytes = inflated_bytes(&message).unwrap_or(0);
    if bytes < LARGE_MESSAGE_BYTES_MIN {
        uncompressed(message, &limits)
    } else {
        block_in_place(|| uncompressed(message, &limits))
    }
}
