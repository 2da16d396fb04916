//! The errors of decoding.

use crate::validate::InvalidBson;

/// Why a message cannot be decoded.
///
/// [`is_fatal`](Error::is_fatal) separates two kinds. After most errors the stream is out of sync, and the connection
/// must be closed. A well-framed message with invalid BSON only gets an error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The length in the header is shorter than a header or longer than the limit.
    #[error("message length {length} is not between {min} and {max} bytes{}", guess(*length))]
    MessageLength {
        /// The length in the header.
        length: i64,
        /// Minimum length.
        min: usize,
        /// Maximum length.
        max: usize,
    },
    /// The length of the frame differs from the length in its header.
    #[error("message of {actual} bytes declares a length of {declared}")]
    FrameLength {
        /// The length in the header.
        declared: usize,
        /// The length of the frame.
        actual: usize,
    },
    /// The message ends inside a field.
    #[error("message ends inside {what}")]
    Truncated {
        /// The truncated field.
        what: &'static str,
    },
    /// Bytes are left over after the last field.
    #[error("{count} bytes follow the end of the message's content")]
    TrailingBytes {
        /// Number of remaining bytes.
        count: usize,
    },
    /// The server supports no opcode with this number.
    #[error("operation code {code} is not supported")]
    UnknownOpCode {
        /// The code in the header.
        code: i32,
    },
    /// An unknown required flag bit (0 to 15) of `OP_MSG` is set.
    #[error("OP_MSG flags {bits:#010x} contain unknown required bits")]
    UnknownFlags {
        /// All flag bits.
        bits: u32,
    },
    /// The CRC-32C at the end of an `OP_MSG` does not match its content.
    #[error(
        "OP_MSG declares the checksum {declared:#010x}, but its content has the checksum {actual:#010x}"
    )]
    Checksum {
        /// The checksum in the message.
        declared: u32,
        /// The checksum of the content.
        actual: u32,
    },
    /// A section kind other than 0 and 1.
    #[error("OP_MSG section kind {kind} is unknown")]
    UnknownSectionKind {
        /// The kind byte.
        kind: u8,
    },
    /// An `OP_MSG` has no or several kind-0 sections.
    #[error("OP_MSG has {count} body sections instead of one")]
    BodySections {
        /// Number of kind-0 sections.
        count: usize,
    },
    /// An `OP_MSG` has more kind-1 sections than the limit.
    #[error("OP_MSG has more than {max} document sequences")]
    TooManySequences {
        /// Maximum number of sections.
        max: usize,
    },
    /// Two sequences, or a sequence and a field of the body, have the same name.
    #[error("OP_MSG names the document sequence '{identifier}' twice")]
    DuplicateSequence {
        /// The repeated name.
        identifier: String,
    },
    /// A collection or sequence name is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NameNotUtf8 {
        /// The field that contains the name.
        what: &'static str,
    },
    /// The compressor id is unknown.
    #[error("compressor id {id} is unknown")]
    UnknownCompressor {
        /// The id byte.
        id: u8,
    },
    /// A compressed message contains another compressed message.
    #[error("OP_COMPRESSED inside OP_COMPRESSED")]
    NestedCompression,
    /// The uncompressed size is negative or exceeds the limit.
    #[error("uncompressed size {size} is not between 0 and {max} bytes")]
    UncompressedSize {
        /// The size in the message.
        size: i64,
        /// Maximum size.
        max: usize,
    },
    /// The compressed bytes do not decompress to the declared size.
    #[error("{compressor} data does not decompress to the declared {size} bytes")]
    Decompression {
        /// The compressor's name.
        compressor: &'static str,
        /// The declared size.
        size: usize,
    },
    /// A document in a well-framed message is invalid BSON.
    #[error("invalid BSON: {0}")]
    Bson(#[from] InvalidBson),
}

/// Returns a hint if the four bytes of this length are the start of an HTTP request.
fn guess(length: i64) -> &'static str {
    let start = i32::try_from(length).unwrap_or_default().to_le_bytes();
    match &start {
        b"GET " | b"HEAD" | b"POST" | b"PUT " => " (is this an HTTP request?)",
        _ => "",
    }
}

impl Error {
    /// Returns whether the connection must be closed after this error.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Error::Bson(_) | Error::DuplicateSequence { .. })
    }
}
