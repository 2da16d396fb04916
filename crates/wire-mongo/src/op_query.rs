//! `OP_QUERY` and `OP_REPLY`, which older drivers use only for their first message.

use bson::RawDocumentBuf;
use bytes::Bytes;

use crate::error::Error;
use crate::header::{self, OpCode};
use crate::limits::Limits;
use crate::reader::Reader;
use crate::validate::validate_document;

/// An `OP_QUERY`.
#[derive(Debug, Clone, PartialEq)]
pub struct OpQuery {
    /// The flag bits.
    pub flags: u32,
    /// `database.collection`; the collection is `$cmd` for commands.
    pub full_collection_name: String,
    /// Number of documents to skip.
    pub skip: i32,
    /// Number of documents to return; -1 or 1 for a command.
    pub number_to_return: i32,
    /// The query or the command.
    pub query: RawDocumentBuf,
}

impl OpQuery {
    /// Returns the database if this is a command, that is, if the collection is `$cmd`.
    pub fn command_database(&self) -> Option<&str> {
        self.full_collection_name
            .strip_suffix(".$cmd")
            .filter(|db| !db.is_empty())
    }

    /// Decodes the bytes after the header.
    pub(crate) fn decode_content(content: Bytes, limits: &Limits) -> Result<OpQuery, Error> {
        let mut reader = Reader::new(content);
        let flags = reader.u32("OP_QUERY flags")?;
        let full_collection_name = reader.cstring("OP_QUERY collection name")?;
        let skip = reader.i32("OP_QUERY number to skip")?;
        let number_to_return = reader.i32("OP_QUERY number to return")?;
        let query = reader.document("OP_QUERY query")?;
        skip_projection(&mut reader)?;
        validate_document(&query, limits)?;
        let query = owned(&query, "OP_QUERY query")?;
        Ok(OpQuery {
            flags,
            full_collection_name,
            skip,
            number_to_return,
            query,
        })
    }

    /// Encodes the message, for clients.
    pub fn encode(&self, request_id: i32) -> Vec<u8> {
        let capacity = 4 + self.full_collection_name.len() + 1 + 8 + self.query.as_bytes().len();
        let mut out = header::begin(request_id, 0, OpCode::Query, capacity);
        out.extend_from_slice(&self.flags.to_le_bytes());
        out.extend_from_slice(self.full_collection_name.as_bytes());
        out.push(0);
        out.extend_from_slice(&self.skip.to_le_bytes());
        out.extend_from_slice(&self.number_to_return.to_le_bytes());
        out.extend_from_slice(self.query.as_bytes());
        header::finish(&mut out, 0);
        out
    }
}

/// Skips the projection that may follow the query. Commands do not use it.
fn skip_projection(reader: &mut Reader) -> Result<(), Error> {
    if !reader.is_empty() {
        reader.document("OP_QUERY projection")?;
    }
    match reader.remaining() {
        0 => Ok(()),
        count => Err(Error::TrailingBytes { count }),
    }
}

fn owned(bytes: &Bytes, what: &'static str) -> Result<RawDocumentBuf, Error> {
    RawDocumentBuf::from_bytes(bytes.to_vec()).map_err(|_| Error::Truncated { what })
}

/// The flag bits of an `OP_REPLY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplyFlags(pub u32);

impl ReplyFlags {
    /// The server can wait for data. Set in every reply since MongoDB 2.0.
    pub const AWAIT_CAPABLE: ReplyFlags = ReplyFlags(1 << 3);
}

/// An `OP_REPLY` with one document, as in every reply to a command.
#[derive(Debug, Clone, PartialEq)]
pub struct OpReply {
    /// The flag bits.
    pub flags: ReplyFlags,
    /// The reply document.
    pub document: RawDocumentBuf,
}

impl OpReply {
    /// Decodes the bytes after the header, for clients.
    pub(crate) fn decode_content(content: Bytes, limits: &Limits) -> Result<OpReply, Error> {
        let mut reader = Reader::new(content);
        let flags = ReplyFlags(reader.u32("OP_REPLY flags")?);
        reader.i64("OP_REPLY cursor id")?;
        reader.i32("OP_REPLY starting from")?;
        reader.i32("OP_REPLY number returned")?;
        let document = reader.document("OP_REPLY document")?;
        if !reader.is_empty() {
            return Err(Error::TrailingBytes {
                count: reader.remaining(),
            });
        }
        validate_document(&document, limits)?;
        Ok(OpReply {
            flags,
            document: owned(&document, "OP_REPLY document")?,
        })
    }

    /// Encodes the message.
    pub fn encode(&self, request_id: i32, response_to: i32) -> Vec<u8> {
        let capacity = 20 + self.document.as_bytes().len();
        let mut out = header::begin(request_id, response_to, OpCode::Reply, capacity);
        let (cursor_id, starting_from, number_returned) = (0_i64, 0_i32, 1_i32);
        out.extend_from_slice(&self.flags.0.to_le_bytes());
        out.extend_from_slice(&cursor_id.to_le_bytes());
        out.extend_from_slice(&starting_from.to_le_bytes());
        out.extend_from_slice(&number_returned.to_le_bytes());
        out.extend_from_slice(self.document.as_bytes());
        header::finish(&mut out, 0);
        out
    }
}
