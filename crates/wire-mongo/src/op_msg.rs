//! `OP_MSG`: one body document and any number of document sequences.

use bson::{RawDocument, RawDocumentBuf};
use bytes::Bytes;

use crate::error::Error;
use crate::header::{self, HEADER_BYTES, OpCode};
use crate::limits::{Limits, SEQUENCES_MAX};
use crate::reader::Reader;
use crate::validate::validate_document;

const CHECKSUM_BYTES: usize = 4;
const REQUIRED_BITS: u32 = 0xFFFF;
const KIND_BODY: u8 = 0;
const KIND_SEQUENCE: u8 = 1;

/// The flag bits of an `OP_MSG`. Unknown optional bits (16 to 31) are kept and ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// The message ends in a CRC-32C of everything before it.
    pub const CHECKSUM_PRESENT: Flags = Flags(1);
    /// On a request: send no reply. On a reply: another reply follows without a request.
    pub const MORE_TO_COME: Flags = Flags(1 << 1);
    /// The client accepts several replies to this request.
    pub const EXHAUST_ALLOWED: Flags = Flags(1 << 16);

    /// Returns whether every bit of `other` is set.
    pub fn has(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the bits that are set in either value.
    #[must_use]
    pub fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    fn parse(bits: u32) -> Result<Flags, Error> {
        let known = Flags::CHECKSUM_PRESENT.with(Flags::MORE_TO_COME).0;
        match bits & REQUIRED_BITS & !known {
            0 => Ok(Flags(bits)),
            _ => Err(Error::UnknownFlags { bits }),
        }
    }
}

/// The validated documents of a kind-1 section, in one shared buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sequence {
    /// Name of the field that the documents replace, for instance `documents` of an insert.
    pub identifier: String,
    /// The concatenated documents.
    bytes: Bytes,
    count: usize,
}

impl Sequence {
    /// Creates a sequence of documents, which must be well-formed.
    pub fn new<'a>(
        identifier: &str,
        documents: impl IntoIterator<Item = &'a RawDocument>,
    ) -> Sequence {
        let mut bytes = Vec::new();
        let mut count = 0;
        for document in documents {
            bytes.extend_from_slice(document.as_bytes());
            count += 1;
        }
        Sequence {
            identifier: identifier.to_owned(),
            bytes: bytes.into(),
            count,
        }
    }

    /// Returns the number of documents.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the documents in order, borrowed from the message.
    pub fn documents(&self) -> impl Iterator<Item = &RawDocument> {
        let mut rest = &self.bytes[..];
        std::iter::from_fn(move || {
            let length = i32::from_le_bytes(*rest.first_chunk::<4>()?);
            let (document, after) = rest.split_at_checked(usize::try_from(length).ok()?)?;
            rest = after;
            RawDocument::from_bytes(document).ok()
        })
    }

    /// Returns copies of the documents, in order.
    pub fn to_documents(&self) -> Vec<RawDocumentBuf> {
        let mut documents = Vec::with_capacity(self.count);
        documents.extend(self.documents().map(RawDocument::to_owned));
        documents
    }
}

/// An `OP_MSG`.
#[derive(Debug, Clone, PartialEq)]
pub struct OpMsg {
    /// The flag bits.
    pub flags: Flags,
    /// The kind-0 section. The first key of a command is its name.
    pub body: RawDocumentBuf,
    /// The kind-1 sections, in the message's order.
    pub sequences: Vec<Sequence>,
}

impl OpMsg {
    /// Creates a message with only a body.
    pub fn new(body: RawDocumentBuf) -> OpMsg {
        OpMsg {
            flags: Flags::default(),
            body,
            sequences: Vec::new(),
        }
    }

    /// Decodes a whole frame, including its header, which the checksum covers.
    pub(crate) fn decode_frame(frame: &Bytes, limits: &Limits) -> Result<OpMsg, Error> {
        let mut reader = Reader::new(frame.slice(HEADER_BYTES..));
        let flags = Flags::parse(reader.u32("OP_MSG flags")?)?;
        if !flags.has(Flags::CHECKSUM_PRESENT) {
            return Self::decode_sections(flags, reader, limits);
        }
        let sections = before_checksum(&mut reader)?;
        verify_checksum(frame, reader.u32("OP_MSG checksum")?)?;
        Self::decode_sections(flags, Reader::new(sections), limits)
    }

    /// Decodes the content of a compressed `OP_MSG`, that is, the bytes after the header.
    ///
    /// The checksum would cover the uncompressed message with its original header, which is not transmitted. Drivers
    /// therefore send no checksum. A checksum that is present is ignored.
    pub(crate) fn decode_content(content: Bytes, limits: &Limits) -> Result<OpMsg, Error> {
        let mut reader = Reader::new(content);
        let flags = Flags::parse(reader.u32("OP_MSG flags")?)?;
        if flags.has(Flags::CHECKSUM_PRESENT) {
            reader = Reader::new(before_checksum(&mut reader)?);
        }
        Self::decode_sections(flags, reader, limits)
    }

    fn decode_sections(flags: Flags, mut reader: Reader, limits: &Limits) -> Result<OpMsg, Error> {
        let mut bodies = Vec::new();
        let mut sequences = Vec::new();
        while !reader.is_empty() {
            match reader.u8("OP_MSG section kind")? {
                KIND_BODY => bodies.push(reader.document("OP_MSG body")?),
                KIND_SEQUENCE => sequences.push(read_sequence(&mut reader)?),
                kind => return Err(Error::UnknownSectionKind { kind }),
            }
            if sequences.len() > SEQUENCES_MAX {
                return Err(Error::TooManySequences { max: SEQUENCES_MAX });
            }
            if bodies.len() > 1 {
                return Err(Error::BodySections {
                    count: bodies.len(),
                });
            }
        }
        let body = bodies.pop().ok_or(Error::BodySections { count: 0 })?;
        Self::validated(flags, &body, sequences, limits)
    }

    /// Validates the documents. Runs after the whole frame was parsed, so that an invalid document does not end the
    /// connection.
    fn validated(
        flags: Flags,
        body: &Bytes,
        sequences: Vec<(String, Bytes)>,
        limits: &Limits,
    ) -> Result<OpMsg, Error> {
        let body = validated_document(body, limits)?;
        let mut checked = Vec::with_capacity(sequences.len());
        for (identifier, bytes) in sequences {
            let repeated = checked
                .iter()
                .any(|earlier: &Sequence| earlier.identifier == identifier);
            if repeated || matches!(body.get(&identifier), Ok(Some(_))) {
                return Err(Error::DuplicateSequence { identifier });
            }
            let count = validate_sequence(&bytes, limits)?;
            checked.push(Sequence {
                identifier,
                bytes,
                count,
            });
        }
        Ok(OpMsg {
            flags,
            body,
            sequences: checked,
        })
    }

    /// Encodes the whole message, with a checksum if the flags request it.
    pub fn encode(&self, request_id: i32, response_to: i32) -> Vec<u8> {
        let sequences: usize = self.sequences.iter().map(sequence_section_bytes).sum();
        let capacity = 4 + 1 + self.body.as_bytes().len() + sequences + CHECKSUM_BYTES;
        let mut out = header::begin(request_id, response_to, OpCode::Msg, capacity);
        out.extend_from_slice(&self.flags.0.to_le_bytes());
        out.push(KIND_BODY);
        out.extend_from_slice(self.body.as_bytes());
        for sequence in &self.sequences {
            write_sequence(sequence, &mut out);
        }
        seal(&mut out, self.flags);
        out
    }
}

/// Sets the length, and appends the checksum if the flags request it.
fn seal(out: &mut Vec<u8>, flags: Flags) {
    if !flags.has(Flags::CHECKSUM_PRESENT) {
        return header::finish(out, 0);
    }
    header::finish(out, CHECKSUM_BYTES);
    let checksum = crc32c::crc32c(out);
    out.extend_from_slice(&checksum.to_le_bytes());
}

/// Reads everything except the checksum.
fn before_checksum(reader: &mut Reader) -> Result<Bytes, Error> {
    let what = "OP_MSG checksum";
    let sections = reader
        .remaining()
        .checked_sub(CHECKSUM_BYTES)
        .ok_or(Error::Truncated { what })?;
    reader.take(sections, what)
}

fn verify_checksum(frame: &Bytes, declared: u32) -> Result<(), Error> {
    let actual = crc32c::crc32c(&frame[..frame.len() - CHECKSUM_BYTES]);
    if declared == actual {
        Ok(())
    } else {
        Err(Error::Checksum { declared, actual })
    }
}

fn sequence_section_bytes(sequence: &Sequence) -> usize {
    1 + 4 + sequence.identifier.len() + 1 + sequence.bytes.len()
}

fn write_sequence(sequence: &Sequence, out: &mut Vec<u8>) {
    let length = sequence_section_bytes(sequence) - 1;
    out.push(KIND_SEQUENCE);
    out.extend_from_slice(&i32::try_from(length).unwrap_or(i32::MAX).to_le_bytes());
    out.extend_from_slice(sequence.identifier.as_bytes());
    out.push(0);
    out.extend_from_slice(&sequence.bytes);
}

/// Reads the name and the bytes of a kind-1 section. Does not validate the documents.
fn read_sequence(reader: &mut Reader) -> Result<(String, Bytes), Error> {
    let what = "OP_MSG document sequence";
    let length = usize::try_from(reader.i32(what)?).map_err(|_| Error::Truncated { what })?;
    let section = length.checked_sub(4).ok_or(Error::Truncated { what })?;
    let mut section = Reader::new(reader.take(section, what)?);
    let identifier = section.cstring("OP_MSG sequence identifier")?;
    Ok((identifier, section.rest()))
}

fn validated_document(bytes: &Bytes, limits: &Limits) -> Result<RawDocumentBuf, Error> {
    validate_document(bytes, limits)?;
    RawDocumentBuf::from_bytes(bytes.to_vec()).map_err(|_| Error::Truncated {
        what: "OP_MSG body",
    })
}

fn validate_sequence(bytes: &Bytes, limits: &Limits) -> Result<usize, Error> {
    let mut reader = Reader::new(bytes.clone());
    let mut count = 0;
    while !reader.is_empty() {
        validate_document(&reader.document("OP_MSG sequence document")?, limits)?;
        count += 1;
    }
    Ok(count)
}
