//! Validates BSON before recursive code processes it.
//!
//! Keeps open documents on its own stack, which the depth limit bounds. Reads every structural byte once. Checks the
//! length and terminator of string values, but not that they are UTF-8: MongoDB also stores invalid UTF-8. Names must
//! be UTF-8.

use crate::limits::Limits;

/// Why a document is invalid. Offsets are in bytes from the start of the document.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBson {
    /// A length is too short or too long, or does not match the end of its content.
    #[error("bad length {length} at byte {offset}")]
    Length {
        /// The invalid length.
        length: i64,
        /// Offset of the length.
        offset: usize,
    },
    /// The document is longer than the limit.
    #[error("document of {bytes} bytes is larger than the limit of {max}")]
    TooLarge {
        /// The document's length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// Documents or arrays nest deeper than the limit.
    #[error("nesting is deeper than {max} at byte {offset}")]
    TooDeep {
        /// Maximum depth.
        max: usize,
        /// Offset of the document that is too deep.
        offset: usize,
    },
    /// An element's value or name runs past the end of its document.
    #[error("element at byte {offset} runs past the end of its document")]
    Truncated {
        /// Offset of the truncated value or name.
        offset: usize,
    },
    /// A type byte that BSON does not define.
    #[error("unknown element type {element_type:#04x} at byte {offset}")]
    UnknownType {
        /// The byte.
        element_type: u8,
        /// Offset of the element.
        offset: usize,
    },
    /// A terminating zero byte is missing or too early.
    #[error("terminator missing or too early at byte {offset}")]
    Terminator {
        /// Offset of the byte at which the terminator was expected, or came early.
        offset: usize,
    },
    /// A field name or a regular expression is not UTF-8.
    #[error("name at byte {offset} is not valid UTF-8")]
    NotUtf8 {
        /// Offset of the name or regular expression.
        offset: usize,
    },
    /// A boolean is neither 0 nor 1.
    #[error("boolean at byte {offset} has the value {value}, not 0 or 1")]
    Boolean {
        /// The value of the byte.
        value: u8,
        /// Offset of the byte.
        offset: usize,
    },
}

/// Bytes of the shortest document: a length and a terminator.
const DOCUMENT_BYTES_MIN: usize = 5;

/// Checks that `bytes` is exactly one well-formed document within the limits.
///
/// Takes one pass, without recursion, and allocates only a few bytes per level.
///
/// # Errors
/// The first error, in reading order.
pub fn validate_document(bytes: &[u8], limits: &Limits) -> Result<(), InvalidBson> {
    let max = limits.document_bytes_max;
    if bytes.len() > max {
        return Err(InvalidBson::TooLarge {
            bytes: bytes.len(),
            max,
        });
    }
    let mut walk = Walk {
        bytes,
        at: 0,
        ends: Vec::new(),
        depth_max: limits.depth_max,
    };
    walk.enter(bytes.len())?;
    while !walk.ends.is_empty() {
        walk.step()?;
    }
    if walk.at == bytes.len() {
        Ok(())
    } else {
        Err(InvalidBson::Length {
            length: walk.at as i64,
            offset: 0,
        })
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    at: usize,
    /// End offsets of the open documents, outermost first.
    ends: Vec<usize>,
    depth_max: usize,
}

impl Walk<'_> {
    /// Enters the document at the cursor, which must end at or before `limit`.
    fn enter(&mut self, limit: usize) -> Result<(), InvalidBson> {
        if self.ends.len() == self.depth_max {
            return Err(InvalidBson::TooDeep {
                max: self.depth_max,
                offset: self.at,
            });
        }
        let start = self.at;
        let length = self.length(DOCUMENT_BYTES_MIN, limit - start.min(limit))?;
        self.ends.push(start + length);
        self.at = start + 4;
        Ok(())
    }

    /// Reads an element, or the end of the innermost document.
    fn step(&mut self) -> Result<(), InvalidBson> {
        let end = self.ends.last().copied().unwrap_or(0);
        let start = self.at;
        let element_type = self.byte(end)?;
        if element_type == 0 {
            return self.leave(start, end);
        }
        self.name(end)?;
        self.value(element_type, start, end)
    }

    fn leave(&mut self, terminator: usize, end: usize) -> Result<(), InvalidBson> {
        if terminator + 1 != end {
            return Err(InvalidBson::Terminator { offset: terminator });
        }
        self.ends.pop();
        Ok(())
    }

    fn value(&mut self, element_type: u8, start: usize, end: usize) -> Result<(), InvalidBson> {
        match element_type {
            0x01 | 0x09 | 0x11 | 0x12 => self.skip(8, end),
            0x02 | 0x0D | 0x0E => self.string(end),
            0x03 | 0x04 => self.enter(end),
            0x05 => self.binary(end),
            0x06 | 0x0A | 0x7F | 0xFF => Ok(()),
            0x07 => self.skip(12, end),
            0x08 => self.boolean(end),
            0x0B => self.name(end).and_then(|()| self.name(end)),
            0x0C => self.string(end).and_then(|()| self.skip(12, end)),
            0x0F => self.code_with_scope(end),
            0x10 => self.skip(4, end),
            0x13 => self.skip(16, end),
            element_type => Err(InvalidBson::UnknownType {
                element_type,
                offset: start,
            }),
        }
    }

    fn skip(&mut self, count: usize, end: usize) -> Result<(), InvalidBson> {
        if count > end - self.at {
            return Err(InvalidBson::Truncated { offset: self.at });
        }
        self.at += count;
        Ok(())
    }

    fn byte(&mut self, end: usize) -> Result<u8, InvalidBson> {
        let at = self.at;
        self.skip(1, end)?;
        Ok(self.bytes[at])
    }

    /// Reads the length at the cursor without advancing. Returns an error unless it is from `min` to `max`.
    fn length(&self, min: usize, max: usize) -> Result<usize, InvalidBson> {
        let offset = self.at;
        let field = self
            .bytes
            .get(offset..)
            .and_then(|rest| rest.first_chunk::<4>());
        let field = field
            .filter(|_| max >= 4)
            .ok_or(InvalidBson::Truncated { offset })?;
        let length = i32::from_le_bytes(*field);
        match usize::try_from(length) {
            Ok(bytes) if (min..=max).contains(&bytes) => Ok(bytes),
            _ => Err(InvalidBson::Length {
                length: i64::from(length),
                offset,
            }),
        }
    }

    /// Reads a zero-terminated UTF-8 name.
    fn name(&mut self, end: usize) -> Result<(), InvalidBson> {
        let offset = self.at;
        let rest = &self.bytes[offset..end];
        let length = rest.iter().position(|byte| *byte == 0);
        let length = length.ok_or(InvalidBson::Truncated { offset })?;
        let name = &rest[..length];
        if !name.is_ascii() && std::str::from_utf8(name).is_err() {
            return Err(InvalidBson::NotUtf8 { offset });
        }
        self.at = offset + length + 1;
        Ok(())
    }

    fn string(&mut self, end: usize) -> Result<(), InvalidBson> {
        let room = (end - self.at).saturating_sub(4);
        let length = self.length(1, room.max(4))?;
        self.skip(4 + length, end)?;
        match self.bytes[self.at - 1] {
            0 => Ok(()),
            _ => Err(InvalidBson::Terminator {
                offset: self.at - 1,
            }),
        }
    }

    fn binary(&mut self, end: usize) -> Result<(), InvalidBson> {
        let start = self.at;
        let length = self.length(0, end - start)?;
        self.skip(4, end)?;
        let subtype = self.byte(end)?;
        let content = self.at;
        self.skip(length, end)?;
        let old_generic = subtype == 2;
        if !old_generic {
            return Ok(());
        }
        let inner = self.bytes[content..self.at]
            .first_chunk::<4>()
            .map(|field| i32::from_le_bytes(*field));
        match inner {
            Some(inner) if i64::from(inner) + 4 == length as i64 => Ok(()),
            _ => Err(InvalidBson::Length {
                length: i64::from(inner.unwrap_or(-1)),
                offset: content,
            }),
        }
    }

    fn boolean(&mut self, end: usize) -> Result<(), InvalidBson> {
        let offset = self.at;
        match self.byte(end)? {
            0 | 1 => Ok(()),
            value => Err(InvalidBson::Boolean { value, offset }),
        }
    }

    /// Reads code with scope: its own length, a string, and a document that must end where the value ends.
    ///
    /// The string must be UTF-8, because the BSON library locates the scope by the length of the decoded code.
    fn code_with_scope(&mut self, end: usize) -> Result<(), InvalidBson> {
        let start = self.at;
        let length = self.length(4 + 5 + DOCUMENT_BYTES_MIN, end - start)?;
        let value_end = start + length;
        self.skip(4, value_end)?;
        let code = self.at + 4;
        self.string(value_end)?;
        let scope = self.at;
        if std::str::from_utf8(&self.bytes[code..scope]).is_err() {
            return Err(InvalidBson::NotUtf8 { offset: code });
        }
        self.enter(value_end)?;
        match self.ends.last() {
            Some(scope_end) if *scope_end == value_end => Ok(()),
            _ => Err(InvalidBson::Length {
                length: length as i64,
                offset: scope,
            }),
        }
    }
}
