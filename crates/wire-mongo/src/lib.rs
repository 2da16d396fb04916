//! Codec of the MongoDB wire protocol: headers, `OP_MSG`, `OP_QUERY`, `OP_REPLY` and `OP_COMPRESSED`.
//!
//! This crate does no I/O. The caller reads [`HEADER_BYTES`] bytes, gets the length of the message from
//! [`Header::parse`], reads the rest, and passes the whole frame to [`Message::decode`]. The result is validated: every
//! document is well-formed BSON of bounded size and depth, so later code may process it recursively.
//!
//! No length from the wire is trusted: each is checked against a [named limit](limits) before memory is allocated.
//!
//! # Sources
//! `OP_MSG.md`, `OP_COMPRESSED.md` and `mongodb-handshake` of the MongoDB driver specifications.
#![forbid(unsafe_code)]

mod compressed;
mod error;
mod header;
pub mod hello;
pub mod limits;
mod message;
mod op_msg;
mod op_query;
mod peek;
mod reader;
pub mod validate;

pub use compressed::{Compressor, compress, inflated_bytes, is_compressible, uncompressed};
pub use error::Error;
pub use header::{HEADER_BYTES, Header, OpCode};
pub use limits::Limits;
pub use message::{Body, Message};
pub use op_msg::{Flags, OpMsg, Sequence};
pub use op_query::{OpQuery, OpReply, ReplyFlags};
pub use peek::{Peek, flags};
