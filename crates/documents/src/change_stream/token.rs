//! Resume tokens: where in a stream of changes a client is.

use bson::{RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_query::Code;
use forebay_documents_store::ClusterTime;

use crate::error::CommandError;

/// The first byte of a token, as MongoDB has it before a timestamp: tools that read the time of a token find it.
const TIMESTAMP: u8 = 0x82;
const TOKEN_BYTES: usize = 1 + 8 + 1;

/// What a token stands behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// All changes up to a time, whether or not they concerned the stream.
    HighWater,
    /// The event of a change.
    Event,
    /// The event `invalidate` that followed the event of a change.
    Invalidate,
}

impl Mark {
    const ALL: [Mark; 3] = [Mark::HighWater, Mark::Event, Mark::Invalidate];
}

/// A place in a stream: `{_data: "82…"}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeToken {
    /// The time of a change that is, or was, in the history.
    pub at: ClusterTime,
    /// What it stands behind.
    pub mark: Mark,
}

impl ResumeToken {
    /// The place behind something at this time.
    pub fn new(at: ClusterTime, mark: Mark) -> ResumeToken {
        ResumeToken { at, mark }
    }

    /// Reads what a client sent back.
    ///
    /// # Errors
    /// `InvalidResumeToken`.
    pub fn parse(document: &RawDocument) -> Result<ResumeToken, CommandError> {
        let data = document.get_str("_data").ok();
        data.and_then(ResumeToken::decode).ok_or_else(|| {
            let message = "the resume token is none that this server gave: send back the _id of an event, unchanged";
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

    /// The value of `_data`.
    pub fn data(self) -> String {
        format!(
            "{TIMESTAMP:02X}{:016X}{:02X}",
            self.at.number(),
            self.mark as u8
        )
    }

    /// As clients see it.
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
    fn what_is_no_token_is_refused() {
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
