//! Why bytes are not a message.

use crate::validate::InvalidBson;

/// What is wrong with a message.
///
/// [`is_fatal`](Error::is_fatal) separates two kinds. After most of these errors the stream cannot be trusted, and the
/// connection must be closed. A well-framed message with invalid BSON gets an error reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The header's length is shorter than a header or longer than the limit.
    #[error("message length {length} is not between {min} and {max} bytes")]
    MessageLength {
        /// The length in the header.
        length: i64,
        /// The shortest length allowed.
        min: usize,
        /// The longest length allowed.
        max: usize,
    },
    /// The frame handed in is not as long as its header says.
    #[error("message of {actual} bytes says that it has {declared}")]
    FrameLength {
        /// The length in the header.
        declared: usize,
        /// The length of the frame.
        actual: usize,
    },
    /// The message ends inside a field.
    #[error("message ends inside {what}")]
    Truncated {
        /// The field that is cut off.
        what: &'static str,
    },
    /// Bytes are left over after the last field.
    #[error("{count} bytes follow the end of the message's content")]
    TrailingBytes {
        /// Number of bytes.
        count: usize,
    },
    /// No operation of a server has this number.
    #[error("operation code {code} is not supported")]
    UnknownOpCode {
        /// The code in the header.
        code: i32,
    },
    /// A required flag bit of `OP_MSG` (0 to 15) that this version does not know.
    #[error("OP_MSG flags {bits:#010x} contain unknown required bits")]
    UnknownFlags {
        /// All flag bits.
        bits: u32,
    },
    /// The CRC-32C at the end of an `OP_MSG` differs from its content's.
    #[error("OP_MSG checksum is {declared:#010x} and the content's is {actual:#010x}")]
    Checksum {
        /// The checksum in the message.
        declared: u32,
        /// The checksum of the bytes.
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
        /// How many.
        count: usize,
    },
    /// An `OP_MSG` has more kind-1 sections than the limit.
    #[error("OP_MSG has more than {max} document sequences")]
    TooManySequences {
        /// The limit.
        max: usize,
    },
    /// Two sequences of one name, or a sequence named as a field of the body.
    #[error("OP_MSG names the document sequence '{identifier}' twice")]
    DuplicateSequence {
        /// The name.
        identifier: String,
    },
    /// A name (of a collection or a sequence) is not UTF-8.
    #[error("{what} is not valid UTF-8")]
    NameNotUtf8 {
        /// The field.
        what: &'static str,
    },
    /// A compressor id that was not offered.
    #[error("compressor id {id} is unknown")]
    UnknownCompressor {
        /// The id byte.
        id: u8,
    },
    /// A compressed message inside a compressed message.
    #[error("OP_COMPRESSED inside OP_COMPRESSED")]
    NestedCompression,
    /// The uncompressed size is negative or over the limit.
    #[error("uncompressed size {size} is not between 0 and {max} bytes")]
    UncompressedSize {
        /// The size in the message.
        size: i64,
        /// The most allowed.
        max: usize,
    },
    /// The compressed bytes do not decompress to the size that the message says.
    #[error("{compressor} data does not decompress to the {size} bytes it claims")]
    Decompression {
        /// The compressor's name.
        compressor: &'static str,
        /// The size in the message.
        size: usize,
    },
    /// A document in a well-framed message is invalid BSON.
    #[error("invalid BSON: {0}")]
    Bson(#[from] InvalidBson),
}

impl Error {
    /// Returns whether the connection must be closed after this error.
    pub fn is_fatal(&self) -> bool {
        !matches!(self, Error::Bson(_) | Error::DuplicateSequence { .. })
    }
}
