//! What a message may cost, named.

/// The longest message in bytes, header included (`maxMessageSizeBytes` of the hello reply).
pub const MESSAGE_BYTES_MAX: usize = 48_000_000;

/// The longest document that a user may store, in bytes (`maxBsonObjectSize` of the hello reply).
pub const DOCUMENT_BYTES_MAX: usize = 16 * 1024 * 1024;

/// The longest document on the wire, in bytes: a stored one plus room for the command around it.
pub const WIRE_DOCUMENT_BYTES_MAX: usize = DOCUMENT_BYTES_MAX + 16 * 1024;

/// How deep documents and arrays may nest; the outermost document is depth 1.
pub const DEPTH_MAX: usize = 200;

/// The most documents of one insert, update or delete (`maxWriteBatchSize` of the hello reply).
pub const WRITE_BATCH_MAX: usize = 100_000;

/// How many kind-1 sections one `OP_MSG` may have.
pub const SEQUENCES_MAX: usize = 8;

/// The limits that decoding obeys; smaller ones serve tests and connections that are not trusted yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Longest message in bytes, header included, before and after decompression.
    pub message_bytes_max: usize,
    /// Longest document in bytes.
    pub document_bytes_max: usize,
    /// Deepest nesting of documents and arrays.
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
