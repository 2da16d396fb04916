//! A stream over documents in memory.

use std::collections::VecDeque;

use bson::RawDocumentBuf;
use forebay_cancel::Stop;
use forebay_memory::Held;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream over documents in memory.
#[derive(Debug, Default)]
pub struct List {
    rows: VecDeque<Row>,
    /// The documents' memory; `None` if they are small.
    held: Option<Held>,
}

impl List {
    /// Returns a stream over these rows.
    pub fn new(rows: impl IntoIterator<Item = Row>) -> List {
        List {
            rows: rows.into_iter().collect(),
            held: None,
        }
    }

    /// Returns a stream over documents, with their memory. The memory is released when the stream
    /// ends.
    pub fn holding(rows: impl IntoIterator<Item = Row>, held: Held) -> List {
        List {
            held: Some(held),
            ..List::new(rows)
        }
    }

    /// Returns a stream over documents that were generated for the query.
    pub fn built(documents: impl IntoIterator<Item = RawDocumentBuf>) -> List {
        List::new(documents.into_iter().map(Row::Built))
    }
}

impl Stream for List {
    fn next(&mut self, _: &Stop) -> Result<Option<Row>, CommandError> {
        let row = self.rows.pop_front();
        if row.is_none() {
            self.held = None;
        }
        Ok(row)
    }

    fn is_done(&self) -> bool {
        self.rows.is_empty()
    }

    fn is_short(&self) -> bool {
        true
    }
}
