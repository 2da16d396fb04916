//! Limits of messages.

/// Maximum bytes of a message, header included (`maxMessageSizeBytes` of the hello reply).
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// Maximum bytes of a document that a user may store (`maxBsonObjectSize` of the hello reply).
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Maximum bytes of a document on the wire: a stored document plus the command around it.
pub const WIRE_DOCUMENT_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 16 * 1024;

/// Maximum nesting depth of documents and arrays; the outermost document has depth 1.
pub const DEPTH_MAX: usize = 200;

/// Maximum number of statements in an insert, update or delete (`maxWriteBatchSize` of the hello reply).
pub const WRITE_BATCH_MAX: usize = 100_000;

/// Maximum number of kind-1 sections in an `OP_MSG`.
pub const SEQUENCES_MAX: usize = 8;

/// Limits for decoding. Tests and unauthenticated connections use lower limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a message including its header, both before and after decompression.
    pub message_bytes_max: usize,
    /// Maximum bytes of a document.
    pub document_bytes_max: usize,
    /// Maximum nesting depth of documents and arrays.
    pub depth_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            message_bytes_max: MESSAGE_BYTES_MAX,
            document_bytes_max: WIRE_DOCUMENT_BYTES_MAX,
            depth_max: DEPTH_MAX,
        }
    }
}
