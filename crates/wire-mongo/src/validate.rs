//! Validates BSON before any recursive reader sees it.
//!
//! The walk keeps its own stack, bounded by the depth limit, and touches every byte of structure once. String values
//! are checked for length and terminator, not for UTF-8, because MongoDB stores those too. Names must be UTF-8.

use crate::limits::Limits;

/// What is wrong with a document. Offsets count bytes from the document's first.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBson {
    /// A length is too short, too long, or ends elsewhere than its content.
    #[error("bad length {length} at byte {offset}")]
    Length {
        /// The length found.
        length: i64,
        /// Its offset.
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
        /// The limit.
        max: usize,
        /// Its offset.
        offset: usize,
    },
    /// An element's value or name runs past the end of its document.
    #[error("element at byte {offset} runs past the end of its document")]
    Truncated {
        /// Its offset.
        offset: usize,
    },
    /// A type byte that BSON does not define.
    #[error("unknown element type {element_type:#04x} at byte {offset}")]
    UnknownType {
        /// The byte.
        element_type: u8,
        /// Its offset.
        offset: usize,
    },
    /// A terminating zero byte is missing, or comes early.
    #[error("missing terminator at byte {offset}")]
    Terminator {
        /// Its offset.
        offset: usize,
    },
    /// A field name, or a regular expression, is not UTF-8.
    #[error("name at byte {offset} is not valid UTF-8")]
    NotUtf8 {
        /// Its offset.
        offset: usize,
    },
    /// A boolean other than 0 and 1.
    #[error("boolean at byte {offset} has the value {value}, not 0 or 1")]
    Boolean {
        /// The byte.
        value: u8,
        /// Its offset.
        offset: usize,
    },
}

/// The shortest document: a length and a terminator.
const DOCUMENT_BYTES_MIN: usize = 5;

/// Checks that `bytes` are exactly one well-formed document within the limits.
///
/// Runs in one pass without recursion and without allocating more than a few bytes per level.
///
/// # Errors
/// The first fault in reading order.
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
    /// Where each open document ends, outermost first.
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

    /// Reads one element, or the end of the innermost document.
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

    /// Reads the length at the cursor without advancing it: at least `min`, at most `max`.
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

    /// A zero-terminated UTF-8 name.
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

    /// Code with scope: its own length, a string, and a document that must end where the value does.
    ///
    /// The string must be UTF-8: the BSON library finds the scope by the length of the decoded code.
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
