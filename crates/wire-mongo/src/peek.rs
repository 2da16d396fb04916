//! Reads the flags and the command of an `OP_MSG` that is passed on, without validating its content.

use bson::RawDocument;

use crate::header::{HEADER_BYTES, OpCode};
use crate::op_msg::Flags;

/// Byte offset of the opcode in the header.
const OP_CODE: usize = 12;
const KIND_BODY: u8 = 0;
const KIND_SEQUENCE: u8 = 1;

/// The flags and the body of an `OP_MSG`, borrowed from its bytes.
#[derive(Debug, Clone, Copy)]
pub struct Peek<'a> {
    /// The flag bits, known or not.
    pub flags: Flags,
    /// The kind-0 section. Its length is checked; its content is not validated.
    pub body: &'a RawDocument,
}

impl<'a> Peek<'a> {
    /// Peeks into a whole `OP_MSG`, header included. Returns `None` if its sections are malformed.
    pub fn new(frame: &'a [u8]) -> Option<Peek<'a>> {
        let (flags, mut sections) = frame.get(HEADER_BYTES..)?.split_first_chunk::<4>()?;
        let flags = Flags(u32::from_le_bytes(*flags));
        loop {
            let (kind, rest) = sections.split_first()?;
            let length = usize::try_from(i32::from_le_bytes(*rest.first_chunk::<4>()?)).ok()?;
            let (section, after) = rest.split_at_checked(length)?;
            match *kind {
                KIND_BODY => {
                    let body = RawDocument::from_bytes(section).ok()?;
                    return Some(Peek { flags, body });
                }
                KIND_SEQUENCE if length > 0 => sections = after,
                _ => return None,
            }
        }
    }

    /// Returns the command's name: the first key of the body, or an empty string.
    pub fn command(&self) -> &'a str {
        let first = self.body.iter_elements().next();
        first.map_or("", |element| {
            element.map_or("", |element| element.key().as_str())
        })
    }
}

/// Returns the flags of an `OP_MSG`, and no flags for other messages. Reads only the first 20 bytes, so `message` may
/// be cut off after them.
pub fn flags(message: &[u8]) -> Flags {
    let number = |at: usize| message.get(at..)?.first_chunk::<4>().copied();
    match (number(OP_CODE), number(HEADER_BYTES)) {
        (Some(code), Some(flags)) if i32::from_le_bytes(code) == OpCode::Msg.code() => {
            Flags(u32::from_le_bytes(flags))
        }
        _ => Flags::default(),
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::op_msg::{OpMsg, Sequence};

    #[test]
    fn the_body_is_found_before_and_behind_sequences() {
        let document = rawdoc! { "_id": 1 };
        let message = OpMsg {
            flags: Flags::MORE_TO_COME,
            body: rawdoc! { "insert": "things", "$db": "shop" },
            sequences: vec![Sequence::new("documents", [&*document])],
        };
        let frame = message.encode(7, 0);
        let peek = Peek::new(&frame).expect("framed");
        assert_eq!(peek.command(), "insert");
        assert!(peek.flags.has(Flags::MORE_TO_COME));
        let body_bytes = 1 + message.body.as_bytes().len();
        let mut turned = frame[..20].to_vec();
        turned.extend_from_slice(&frame[20 + body_bytes..]);
        turned.extend_from_slice(&frame[20..20 + body_bytes]);
        assert_eq!(Peek::new(&turned).expect("framed").body, &*message.body);
    }

    #[test]
    fn flags_are_those_of_commands_alone() {
        let message = OpMsg {
            flags: Flags::MORE_TO_COME,
            ..OpMsg::new(rawdoc! { "ping": 1 })
        };
        let mut frame = message.encode(7, 0);
        assert_eq!(flags(&frame[..20]), Flags::MORE_TO_COME);
        assert_eq!(flags(&frame[..19]), Flags::default());
        frame[12..16].copy_from_slice(&OpCode::Compressed.code().to_le_bytes());
        assert_eq!(flags(&frame), Flags::default());
    }

    #[test]
    fn what_is_cut_has_no_body() {
        let frame = OpMsg::new(rawdoc! { "ping": 1 }).encode(7, 0);
        for length in 0..frame.len() {
            assert!(Peek::new(&frame[..length]).is_none(), "{length} bytes");
        }
    }
}
