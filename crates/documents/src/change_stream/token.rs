//! Resume tokens: positions in a change stream.

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_query::Code;
use forebay_documents_store::ClusterTime;

use crate::error::CommandError;

/// First byte of a token. It equals MongoDB's marker of a timestamp, so that tools can read the token's time.
const TIMESTAMP: u8 = 0x82;
const TOKEN_BYTES: usize = 1 + 8 + 1;

/// The event or time directly before the position of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// All changes up to a time, whether or not they concern the stream.
    HighWater,
    /// The event of a change.
    Event,
    /// The `invalidate` event that followed the event of a change.
    Invalidate,
}

impl Mark {
    const ALL: [Mark; 3] = [Mark::HighWater, Mark::Event, Mark::Invalidate];
}

/// A position in a stream, which clients see as `{_data: "82…"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// Time of the last change before the position. The history may have dropped that change.
    pub at: ClusterTime,
    /// The event or time directly before the position.
    pub mark: Mark,
}

impl ResumeToken {
    /// Returns the position directly after an event or time.
    pub fn new(at: ClusterTime, mark: Mark) -> ResumeToken {
        ResumeToken { at, mark }
    }

    /// Reads a token that a client sent.
    ///
    /// # Errors
    /// `InvalidResumeToken`.
    pub fn parse(document: &RawDocument) -> Result<ResumeToken, CommandError> {
        let data = document.get_str("_data").ok();
        data.and_then(ResumeToken::decode).ok_or_else(|| {
            let message = "the resume token was not issued by this server: send the _id of an event unchanged";
            CommandError::refused(Code::InvalidResumeToken, message)
        })
    }

    fn decode(data: &str) -> Option<ResumeToken> {
        if data.len() != 2 * TOKEN_BYTES || !data.is_ascii() {
            return None;
        }
        let mut bytes = [0; TOKEN_BYTES];
        for (byte, at) in bytes.iter_mut().zip((0..).step_by(2)) {
            *byte = u8::from_str_radix(&data[at..at + 2], 16).ok()?;
        }
        let (first, [time @ .., mark]) = bytes.split_first()? else {
            return None;
        };
        let at = ClusterTime::new(u64::from_be_bytes(time.try_into().ok()?));
        let mark = *Mark::ALL.get(usize::from(*mark))?;
        (*first == TIMESTAMP).then_some(ResumeToken { at, mark })
    }

    /// Returns the value of `_data`.
    pub fn data(self) -> String {
        format!(
            "{TIMESTAMP:02X}{:016X}{:02X}",
            self.at.number(),
            self.mark as u8
        )
    }

    /// Returns the token as a document.
    pub fn to_document(self) -> RawDocumentBuf {
        rawdoc! { "_data": self.data() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_as_it_was_written() {
        for mark in Mark::ALL {
            let token = ResumeToken::new(ClusterTime::new(0x6543_21AB_0000_0007), mark);
            assert_eq!(ResumeToken::parse(&token.to_document()).ok(), Some(token));
        }
        let token = ResumeToken::new(ClusterTime::new(5 << 32 | 1), Mark::Event);
        assert_eq!(token.data(), "82000000050000000101");
    }

    #[test]
    fn malformed_tokens_are_refused() {
        let wrong = [
            rawdoc! {},
            rawdoc! { "_data": 5 },
            rawdoc! { "_data": "" },
            rawdoc! { "_data": "81000000050000000101" },
            rawdoc! { "_data": "82000000050000000103" },
            rawdoc! { "_data": "8200000005000000010" },
            rawdoc! { "_data": "+2000000050000000101" },
            rawdoc! { "_data": "8200000005000000é1" },
        ];
        for document in wrong {
            let refused = ResumeToken::parse(&document).expect_err("no token");
            assert_eq!(refused.code(), Code::InvalidResumeToken, "{document:?}");
        }
    }
}
