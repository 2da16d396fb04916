//! A stream over documents in memory.

use std::collections::VecDeque;

use bson::RawDocumentBuf;
use forebay_cancel::Stop;
use forebay_memory::Share;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream over documents in memory.
#[derive(Debug, Default)]
pub struct List {
    rows: VecDeque<Row>,
    /// Their share of the memory account; `None` if they are small.
    held: Option<Share>,
}

impl List {
    /// A stream over these rows.
    pub fn new(rows: impl IntoIterator<Item = Row>) -> List {
        List {
            rows: rows.into_iter().collect(),
            held: None,
        }
    }

    /// A stream over documents with a share of the memory account, which is released with the last of them.
    pub fn holding(rows: impl IntoIterator<Item = Row>, held: Share) -> List {
        List {
            held: Some(held),
            ..List::new(rows)
        }
    }

    /// A stream over documents made for the query.
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
