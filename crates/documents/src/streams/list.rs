//! Documents that are already there.

use std::collections::VecDeque;

use bson::RawDocumentBuf;
use forebay_text::Stop;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream over documents in memory.
#[derive(Debug, Default)]
pub struct List {
    rows: VecDeque<Row>,
}

impl List {
    /// A stream over these.
    pub fn new(rows: impl IntoIterator<Item = Row>) -> List {
        List {
            rows: rows.into_iter().collect(),
        }
    }

    /// A stream over documents made for the query.
    pub fn built(documents: impl IntoIterator<Item = RawDocumentBuf>) -> List {
        List::new(documents.into_iter().map(Row::Built))
    }
}

impl Stream for List {
    fn next(&mut self, _: &Stop) -> Result<Option<Row>, CommandError> {
        Ok(self.rows.pop_front())
    }

    fn is_done(&self) -> bool {
        self.rows.is_empty()
    }

    fn is_short(&self) -> bool {
        true
    }
}
