//! A whole message with any opcode.

use bytes::Bytes;

use crate::compressed::{self, Compressor};
use crate::error::Error;
use crate::header::{HEADER_BYTES, Header, OpCode};
use crate::limits::Limits;
use crate::op_msg::OpMsg;
use crate::op_query::{OpQuery, OpReply};

/// The decoded content of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A command or its reply.
    Msg(OpMsg),
    /// The handshake of an older driver.
    Query(OpQuery),
    /// The answer to the handshake of an older driver.
    Reply(OpReply),
}

/// A decoded message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// The header as received; for a compressed message, the header of the `OP_COMPRESSED`.
    pub header: Header,
    /// The compressor; `None` if the message was not compressed.
    pub compressor: Option<Compressor>,
    /// The decoded content.
    pub body: Body,
}

impl Message {
    /// Decodes a whole frame: exactly one header and its content.
    ///
    /// # Errors
    /// See [`Error`]; [`Error::is_fatal`] says whether the connection must be closed.
    pub fn decode(frame: Bytes, limits: &Limits) -> Result<Message, Error> {
        let head = frame
            .first_chunk::<HEADER_BYTES>()
            .ok_or(Error::Truncated {
                what: "message header",
            })?;
        let header = Header::parse(head, limits)?;
        if header.message_bytes != frame.len() {
            return Err(Error::FrameLength {
                declared: header.message_bytes,
                actual: frame.len(),
            });
        }
        let content = frame.slice(HEADER_BYTES..);
        let (body, compressor) = match OpCode::from_code(header.op_code)? {
            OpCode::Msg => (Body::Msg(OpMsg::decode_frame(&frame, limits)?), None),
            OpCode::Compressed => decode_compressed(content, limits)?,
            op_code => (decode_plain(op_code, content, limits)?, None),
        };
        Ok(Message {
            header,
            compressor,
            body,
        })
    }
}

fn decode_compressed(content: Bytes, limits: &Limits) -> Result<(Body, Option<Compressor>), Error> {
    let (op_code, content, compressor) = compressed::decompress(content, limits)?;
    Ok((decode_plain(op_code, content, limits)?, Some(compressor)))
}

fn decode_plain(op_code: OpCode, content: Bytes, limits: &Limits) -> Result<Body, Error> {
    match op_code {
        OpCode::Msg => Ok(Body::Msg(OpMsg::decode_content(content, limits)?)),
        OpCode::Query => Ok(Body::Query(OpQuery::decode_content(content, limits)?)),
        OpCode::Reply => Ok(Body::Reply(OpReply::decode_content(content, limits)?)),
        OpCode::Compressed => Err(Error::NestedCompression),
    }
}
