//! The common fields in the replies of write commands: `n`, `writeErrors`, `ok`.

use bson::raw::CStr;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use forebay_memory::{Account, FREE_BYTES, Full, Held};

use crate::error::CommandError;

/// Memory of an entry besides its bytes: two places in a list that grows by doubling, and an allocation.
const ENTRY_BYTES: usize = 2 * size_of::<(usize, RawDocumentBuf)>() + 64;
/// Copies of an entry: the entry, its copy in an array, and its copy in the reply.
const COPIES: usize = 3;
/// Maximum bytes of error messages in a reply. Later messages are empty, as in MongoDB.
const MESSAGES_BYTES_MAX: usize = 1 << 20;

/// Documents about statements, with the positions of the statements in the command. They are charged to the memory
/// account.
#[derive(Debug)]
pub struct Entries {
    entries: Vec<(usize, RawDocumentBuf)>,
    held: Held,
    full: Option<Full>,
}

impl Entries {
    /// Creates an empty list that charges `memory`.
    pub fn new(memory: &Account) -> Entries {
        Entries {
            entries: Vec::new(),
            held: Held::new(memory, FREE_BYTES),
            full: None,
        }
    }

    /// Adds an entry. If there is no memory for it, [`Entries::append_to`] returns an error.
    pub fn push(&mut self, index: usize, entry: RawDocumentBuf) {
        let bytes = ENTRY_BYTES + COPIES * entry.as_bytes().len();
        match self.held.take(bytes) {
            Ok(()) => self.entries.push((index, entry)),
            Err(full) => self.full = Some(full),
        }
    }

    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Appends the entries to a reply, if there are any, ordered by their positions.
    ///
    /// # Errors
    /// [`Full`] if there was no memory for an entry.
    pub fn append_to(mut self, name: &CStr, reply: &mut RawDocumentBuf) -> Result<(), Full> {
        if let Some(full) = self.full {
            return Err(full);
        }
        if !self.entries.is_empty() {
            self.entries.sort_by_key(|(index, _)| *index);
            let entries: RawArrayBuf = self.entries.into_iter().map(|(_, entry)| entry).collect();
            reply.append(name, entries);
        }
        Ok(())
    }
}

/// The statements that failed, with their positions in the command.
#[derive(Debug)]
pub struct WriteErrors {
    entries: Entries,
    messages_bytes: usize,
}

impl WriteErrors {
    /// Creates an empty list that charges `memory`.
    pub fn new(memory: &Account) -> WriteErrors {
        WriteErrors {
            entries: Entries::new(memory),
            messages_bytes: 0,
        }
    }

    /// Records a failure.
    pub fn push(&mut self, index: usize, error: &CommandError) {
        let message = if self.messages_bytes < MESSAGES_BYTES_MAX {
            error.to_string()
        } else {
            String::new()
        };
        self.messages_bytes += message.len();
        self.entries
            .push(index, error.to_write_error(index, message));
    }

    /// Returns the number of failures.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Keeps only the failure of the earliest statement, because an ordered command ends there.
    pub fn keep_first_by_index(&mut self) {
        let entries = &mut self.entries.entries;
        entries.sort_by_key(|(index, _)| *index);
        entries.truncate(1);
    }

    /// Returns the reply of a command that changed `count` documents.
    ///
    /// # Errors
    /// Those of [`WriteErrors::append_to`].
    pub fn reply(self, count: usize) -> Result<RawDocumentBuf, CommandError> {
        let mut reply = rawdoc! { "n": wire_count(count) };
        self.append_to(&mut reply)?;
        reply.append(cstr!("ok"), 1.0);
        Ok(reply)
    }

    /// Appends `writeErrors` to a reply, if there are any.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if there was no memory for an error.
    pub fn append_to(self, reply: &mut RawDocumentBuf) -> Result<(), CommandError> {
        Ok(self.entries.append_to(cstr!("writeErrors"), reply)?)
    }
}

/// Converts a count to the integer type of replies.
pub fn wire_count(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
