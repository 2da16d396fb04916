//! Errors of a pattern.

use forebay_memory::Full;

/// Why a pattern was refused. The caller has to change the pattern, except after `NoMemory`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// An option letter that does not exist (MongoDB: 51108).
    #[error("invalid flag in regex options: {flag}")]
    InvalidFlag {
        /// The unknown letter.
        flag: char,
    },
    /// PCRE2 refused the pattern (MongoDB: 51091).
    #[error("Regular expression is invalid: {message}")]
    Invalid {
        /// PCRE2's message.
        message: String,
        /// Byte offset of the error in the pattern.
        offset: usize,
        /// PCRE2's error number.
        code: i32,
    },
    /// The pattern contains a NUL byte (MongoDB: BadValue).
    #[error("Regular expression cannot contain an embedded null byte")]
    EmbeddedNul {
        /// Byte offset of the NUL in the pattern.
        offset: usize,
    },
    /// The pattern is longer than [`Limits::pattern_bytes_max`](crate::Limits::pattern_bytes_max) (MongoDB: 51091).
    #[error("Regular expression is too long: {bytes} bytes, at most {bytes_max}")]
    TooLong {
        /// Length of the pattern in bytes.
        bytes: usize,
        /// Maximum length in bytes.
        bytes_max: usize,
    },
    /// The memory account has no room for PCRE2's compiled pattern.
    #[error(transparent)]
    NoMemory(#[from] Full),
}
