//! The header of every message: 16 bytes.

use crate::error::Error;
use crate::limits::Limits;

/// The length of a message header in bytes.
pub const HEADER_BYTES: usize = 16;

/// The opcode of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpCode {
    /// `OP_REPLY`: the answer to `OP_QUERY`.
    Reply,
    /// `OP_QUERY`: the handshake of older drivers.
    Query,
    /// `OP_COMPRESSED`: any other message, compressed.
    Compressed,
    /// `OP_MSG`: every command since MongoDB 3.6.
    Msg,
}

impl OpCode {
    /// Returns the opcode's number on the wire.
    pub fn code(self) -> i32 {
        match self {
            OpCode::Reply => 1,
            OpCode::Query => 2004,
            OpCode::Compressed => 2012,
            OpCode::Msg => 2013,
        }
    }

    /// Returns the opcode with the number `code`.
    ///
    /// # Errors
    /// [`Error::UnknownOpCode`], also for opcodes that MongoDB 5.1 removed (insert, getMore and others).
    pub fn from_code(code: i32) -> Result<OpCode, Error> {
        match code {
            1 => Ok(OpCode::Reply),
            2004 => Ok(OpCode::Query),
            2012 => Ok(OpCode::Compressed),
            2013 => Ok(OpCode::Msg),
            code => Err(Error::UnknownOpCode { code }),
        }
    }
}

/// A message header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Length of the whole message in bytes, including this header.
    pub message_bytes: usize,
    /// Id that the sender gave this message.
    pub request_id: i32,
    /// Id of the message that this message answers, or 0.
    pub response_to: i32,
    /// Number of the opcode, known or not.
    pub op_code: i32,
}

impl Header {
    /// Parses a header and checks its length, so that the caller may safely allocate [`Header::message_bytes`] bytes.
    ///
    /// # Errors
    /// [`Error::MessageLength`] if the length is shorter than a header or exceeds the limit.
    pub fn parse(bytes: &[u8; HEADER_BYTES], limits: &Limits) -> Result<Header, Error> {
        let field = |at: usize| {
            i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        Ok(Header {
            message_bytes: checked_length(field(0), limits)?,
            request_id: field(4),
            response_to: field(8),
            op_code: field(12),
        })
    }

    /// Appends the header to `out`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let length = i32::try_from(self.message_bytes).unwrap_or(i32::MAX);
        for field in [length, self.request_id, self.response_to, self.op_code] {
            out.extend_from_slice(&field.to_le_bytes());
        }
    }
}

fn checked_length(length: i32, limits: &Limits) -> Result<usize, Error> {
    let max = limits.message_bytes_max;
    let min = HEADER_BYTES;
    match usize::try_from(length) {
        Ok(bytes) if (min..=max).contains(&bytes) => Ok(bytes),
        _ => Err(Error::MessageLength {
            length: i64::from(length),
            min,
            max,
        }),
    }
}

/// Begins a message with a header, whose length [`finish`] sets later.
pub(crate) fn begin(
    request_id: i32,
    response_to: i32,
    op_code: OpCode,
    capacity: usize,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_BYTES + capacity);
    let header = Header {
        message_bytes: 0,
        request_id,
        response_to,
        op_code: op_code.code(),
    };
    header.write(&mut out);
    out
}

/// Sets the length of a message that [`begin`] started. The length includes `after` bytes that the caller
/// appends later.
pub(crate) fn finish(message: &mut [u8], after: usize) {
    let length = i32::try_from(message.len() + after).unwrap_or(i32::MAX);
    message[..4].copy_from_slice(&length.to_le_bytes());
}
