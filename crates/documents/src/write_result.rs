//! The common fields in the replies of write commands: `n`, `writeErrors`, `ok`.

use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use crate::error::CommandError;

/// The statements that failed, with their positions in the command.
#[derive(Debug, Default)]
pub struct WriteErrors {
    entries: Vec<(usize, RawDocumentBuf)>,
}

impl WriteErrors {
    /// Records a failure.
    pub fn push(&mut self, index: usize, error: &CommandError) {
        self.entries.push((index, error.to_write_error(index)));
    }

    /// Returns the number of failures.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns whether there are no failures.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Keeps only the failure of the earliest statement, because an ordered command ends there.
    pub fn keep_first_by_index(&mut self) {
        self.entries.sort_by_key(|(index, _)| *index);
        self.entries.truncate(1);
    }

    /// Returns the reply of a command that changed `count` documents.
    pub fn reply(self, count: usize) -> RawDocumentBuf {
        let mut reply = rawdoc! { "n": wire_count(count) };
        self.append_to(&mut reply);
        reply.append(cstr!("ok"), 1.0);
        reply
    }

    /// Appends `writeErrors` to a reply, if there are any.
    pub fn append_to(mut self, reply: &mut RawDocumentBuf) {
        if !self.entries.is_empty() {
            self.entries.sort_by_key(|(index, _)| *index);
            let entries: RawArrayBuf = self.entries.into_iter().map(|(_, entry)| entry).collect();
            reply.append(cstr!("writeErrors"), entries);
        }
    }
}

/// Converts a count to the integer type of replies.
pub fn wire_count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
