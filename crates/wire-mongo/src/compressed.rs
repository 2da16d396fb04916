//! `OP_COMPRESSED`: the compressed content of another message.

use std::io::{Read, Write};

use bytes::Bytes;

use crate::error::Error;
use crate::header::{self, HEADER_BYTES, Header, OpCode};
use crate::limits::{Limits, MESSAGE_BYTES_MAX};
use crate::reader::Reader;

/// Byte offset of the opcode in a header.
const OP_CODE: usize = 12;
/// Byte offset of the uncompressed size in an `OP_COMPRESSED`.
const UNCOMPRESSED_SIZE: usize = HEADER_BYTES + 4;

/// Compression level of zstd: its default. Higher levels cost more time than they save on a local network.
const ZSTD_LEVEL: i32 = 3;

/// Names, in lower case, of commands that must never be compressed, because they carry secrets or precede the
/// negotiation of compression.
const NEVER_COMPRESSED: &[&str] = &[
    "hello",
    "ismaster",
    "saslstart",
    "saslcontinue",
    "getnonce",
    "authenticate",
    "createuser",
    "updateuser",
    "copydbsaslstart",
    "copydbgetnonce",
    "copydb",
];

/// Returns whether messages of this command, and their replies, may be compressed.
pub fn is_compressible(command: &str) -> bool {
    !NEVER_COMPRESSED.contains(&command.to_ascii_lowercase().as_str())
}

/// A compression method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compressor {
    /// No compression (id 0); for tests.
    Noop,
    /// Snappy's raw format (id 1).
    Snappy,
    /// zlib (id 2).
    Zlib,
    /// Zstandard (id 3).
    Zstd,
}

impl Compressor {
    /// The compressors that a server offers, in its order of preference.
    pub const OFFERED: [Compressor; 3] = [Compressor::Snappy, Compressor::Zstd, Compressor::Zlib];

    /// Returns the compressor's id on the wire.
    pub fn id(self) -> u8 {
        match self {
            Compressor::Noop => 0,
            Compressor::Snappy => 1,
            Compressor::Zlib => 2,
            Compressor::Zstd => 3,
        }
    }

    /// Returns the compressor with this id.
    ///
    /// # Errors
    /// [`Error::UnknownCompressor`] if no compressor has this id.
    pub fn from_id(id: u8) -> Result<Compressor, Error> {
        match id {
            0 => Ok(Compressor::Noop),
            1 => Ok(Compressor::Snappy),
            2 => Ok(Compressor::Zlib),
            3 => Ok(Compressor::Zstd),
            id => Err(Error::UnknownCompressor { id }),
        }
    }

    /// Returns the compressor's name in the `compression` field of hello.
    pub fn name(self) -> &'static str {
        match self {
            Compressor::Noop => "noop",
            Compressor::Snappy => "snappy",
            Compressor::Zlib => "zlib",
            Compressor::Zstd => "zstd",
        }
    }

    /// Returns the offered compressor with this name; `None` if no offered compressor has it.
    pub fn from_name(name: &str) -> Option<Compressor> {
        Compressor::OFFERED
            .into_iter()
            .find(|compressor| compressor.name() == name)
    }

    fn compress(self, content: &[u8]) -> std::io::Result<Vec<u8>> {
        match self {
            Compressor::Noop => Ok(content.to_vec()),
            Compressor::Snappy => Ok(snap::raw::Encoder::new().compress_vec(content)?),
            Compressor::Zlib => {
                let mut encoder =
                    flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
                encoder.write_all(content)?;
                encoder.finish()
            }
            Compressor::Zstd => zstd::bulk::compress(content, ZSTD_LEVEL),
        }
    }

    /// Decompresses to exactly `size` bytes; the caller has checked `size` against the limit.
    fn decompress(self, data: &Bytes, size: usize) -> Result<Bytes, Error> {
        let wrong = Error::Decompression {
            compressor: self.name(),
            size,
        };
        let content = match self {
            Compressor::Noop => Some(data.clone()),
            Compressor::Snappy => unsnap(data, size).map(Bytes::from),
            Compressor::Zlib => {
                read_exactly(flate2::read::ZlibDecoder::new(&data[..]), size).map(Bytes::from)
            }
            Compressor::Zstd => zstd::bulk::decompress(data, size).ok().map(Bytes::from),
        };
        content.filter(|content| content.len() == size).ok_or(wrong)
    }
}

fn unsnap(data: &[u8], size: usize) -> Option<Vec<u8>> {
    let declared = snap::raw::decompress_len(data).ok()?;
    if declared != size {
        return None;
    }
    snap::raw::Decoder::new().decompress_vec(data).ok()
}

/// Reads exactly `size` bytes; the caller has checked `size` against the limit.
fn read_exactly(decoder: impl Read, size: usize) -> Option<Vec<u8>> {
    let mut content = Vec::with_capacity(size);
    decoder
        .take(size as u64 + 1)
        .read_to_end(&mut content)
        .ok()?;
    (content.len() == size).then_some(content)
}

/// Compresses a whole message. Keeps its request id and `responseTo`.
///
/// # Errors
/// If the compressor fails. The caller then sends the message uncompressed.
pub fn compress(message: &[u8], compressor: Compressor) -> std::io::Result<Vec<u8>> {
    let too_short = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
    let (head, content) = message
        .split_first_chunk::<HEADER_BYTES>()
        .ok_or_else(too_short)?;
    let no_limit = Limits {
        message_bytes_max: usize::MAX,
        ..Limits::default()
    };
    let head = Header::parse(head, &no_limit).map_err(|_| too_short())?;
    let compressed = compressor.compress(content)?;
    let mut out = header::begin(
        head.request_id,
        head.response_to,
        OpCode::Compressed,
        9 + compressed.len(),
    );
    out.extend_from_slice(&head.op_code.to_le_bytes());
    let size = i32::try_from(content.len()).map_err(|_| too_short())?;
    out.extend_from_slice(&size.to_le_bytes());
    out.push(compressor.id());
    out.extend_from_slice(&compressed);
    header::finish(&mut out, 0);
    Ok(out)
}

/// Returns the message inside an `OP_COMPRESSED`, with the same ids, and its compressor. Returns other messages
/// unchanged.
///
/// # Errors
/// The errors of [`crate::Message::decode`] about headers and compression.
pub fn uncompressed(frame: Bytes, limits: &Limits) -> Result<(Bytes, Option<Compressor>), Error> {
    let head = frame
        .first_chunk::<HEADER_BYTES>()
        .ok_or(Error::Truncated {
            what: "message header",
        })?;
    let head = Header::parse(head, limits)?;
    if head.op_code != OpCode::Compressed.code() {
        return Ok((frame, None));
    }
    let (op_code, content, compressor) = decompress(frame.slice(HEADER_BYTES..), limits)?;
    let mut out = header::begin(head.request_id, head.response_to, op_code, content.len());
    out.extend_from_slice(&content);
    header::finish(&mut out, 0);
    Ok((out.into(), Some(compressor)))
}

/// Returns the declared uncompressed size of a whole frame's content; `None` if the frame is not compressed.
///
/// A larger size than [`MESSAGE_BYTES_MAX`] is returned as [`MESSAGE_BYTES_MAX`], because
/// [`Message::decode`](crate::Message::decode) refuses such a frame before it decompresses it.
pub fn inflated_bytes(frame: &[u8]) -> Option<usize> {
    let number = |at: usize| frame.get(at..)?.first_chunk::<4>().copied();
    if i32::from_le_bytes(number(OP_CODE)?) != OpCode::Compressed.code() {
        return None;
    }
    let size = i32::from_le_bytes(number(UNCOMPRESSED_SIZE)?);
    Some(usize::try_from(size).unwrap_or(0).min(MESSAGE_BYTES_MAX))
}

/// Returns the opcode, content and compressor of an `OP_COMPRESSED`, given the bytes after its header.
pub(crate) fn decompress(
    content: Bytes,
    limits: &Limits,
) -> Result<(OpCode, Bytes, Compressor), Error> {
    let mut reader = Reader::new(content);
    let op_code = OpCode::from_code(reader.i32("OP_COMPRESSED original operation")?)?;
    if op_code == OpCode::Compressed {
        return Err(Error::NestedCompression);
    }
    let size = checked_size(reader.i32("OP_COMPRESSED uncompressed size")?, limits)?;
    let compressor = Compressor::from_id(reader.u8("OP_COMPRESSED compressor")?)?;
    let content = compressor.decompress(&reader.rest(), size)?;
    Ok((op_code, content, compressor))
}

fn checked_size(size: i32, limits: &Limits) -> Result<usize, Error> {
    let max = limits.message_bytes_max.saturating_sub(HEADER_BYTES);
    match usize::try_from(size) {
        Ok(bytes) if bytes <= max => Ok(bytes),
        _ => Err(Error::UncompressedSize {
            size: i64::from(size),
            max,
        }),
    }
}
