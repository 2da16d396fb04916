//! The distinct values of a field in a set of documents, with the number of documents for each.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_memory::Share;
use roaring::RoaringBitmap;

use crate::answer::{ValueCount, ValueCounts};
use crate::error::SearchError;
use crate::field::FieldState;
use crate::numbers::NumberSet;
use crate::segment::Segment;

use super::sink::Sink;

/// Rows between two checks of the cancellation token.
const PIECE_ROWS: usize = 65_536;
/// Bytes of memory charged for each distinct value, in addition to the bytes of the value itself.
const ENTRY_BYTES: usize = size_of::<ValueCount>() + size_of::<(Box<[u8]>, u64)>();

/// A job that counts values.
pub(super) struct Counting {
    pub(super) field: Arc<FieldState>,
    /// The documents in which values are counted.
    pub(super) numbers: RoaringBitmap,
    /// Whether `numbers` contains all documents.
    pub(super) all: bool,
    /// Whether array elements are counted as values.
    pub(super) elements: bool,
    pub(super) bytes_max: usize,
    pub(super) stop: Stop,
    /// Reservation in the memory account for the values.
    pub(super) held: Arc<Share>,
}

/// Values counted so far.
#[derive(Default)]
struct Counts {
    counts: HashMap<Box<[u8]>, u64>,
    /// Bytes of memory that the values take.
    bytes: usize,
    /// Number of rows counted.
    rows: u64,
}

impl Counting {
    /// Counts the values. Returns the set of documents again, and the counts.
    pub(super) fn run(self) -> Result<(RoaringBitmap, ValueCounts), SearchError> {
        let arrays = self.among(&self.field.arrays);
        let skipped = if self.elements { None } else { Some(&arrays) };
        let mut counts = Counts::default();
        for segment in self.field.segments() {
            self.count_segment(segment, skipped, &mut counts)?;
        }
        let mut values = ValueCounts {
            null: self.among(&self.field.null).len(),
            missing: self.among(&self.field.missing).len(),
            ..ValueCounts::default()
        };
        let others = self.numbers.len() - values.null - values.missing - arrays.len();
        if others > 0 && (!arrays.is_empty() || others != counts.rows) {
            values.other = self.others(&arrays);
        }
        values.values = counts.sorted();
        values.arrays = arrays;
        Ok((self.numbers, values))
    }

    fn among(&self, set: &NumberSet) -> RoaringBitmap {
        if set.is_empty() {
            RoaringBitmap::new()
        } else {
            set.to_bitmap() & &self.numbers
        }
    }

    /// Returns the documents whose field exists, but is not a string, null or an array of strings.
    fn others(&self, arrays: &RoaringBitmap) -> RoaringBitmap {
        let mut strings = Sink::numbers_among(self.numbers.len());
        for segment in self.field.segments() {
            strings.add_rows(segment, 0..segment.block().len());
        }
        let others = &self.numbers - arrays - strings.into_bitmap();
        others - self.field.null.to_bitmap() - self.field.missing.to_bitmap()
    }

    fn count_segment(
        &self,
        segment: &Segment,
        skipped: Option<&RoaringBitmap>,
        counts: &mut Counts,
    ) -> Result<(), SearchError> {
        let block = segment.block();
        let counted = |row: usize| {
            let number = block.number(row);
            !segment.is_deleted(row)
                && (self.all || self.numbers.contains(number))
                && skipped.is_none_or(|skipped| !skipped.contains(number))
        };
        let mut row = 0;
        let mut checked = 0;
        while row < block.len() {
            if row >= checked {
                self.stop.check()?;
                checked = row + PIECE_ROWS;
            }
            let value = block.value(row);
            let mut count = 0;
            while row < block.len() && block.value(row) == value {
                count += u64::from(counted(row));
                row += 1;
            }
            counts.add(value, count, self.bytes_max)?;
            self.held.try_cover(counts.bytes)?;
        }
        Ok(())
    }
}

impl Counts {
    fn add(&mut self, value: &[u8], count: u64, bytes_max: usize) -> Result<(), SearchError> {
        if count == 0 {
            return Ok(());
        }
        self.rows += count;
        if let Some(known) = self.counts.get_mut(value) {
            *known += count;
            return Ok(());
        }
        self.bytes += value.len() + ENTRY_BYTES;
        if self.bytes > bytes_max {
            return Err(SearchError::ValuesTooLarge { bytes_max });
        }
        self.counts.insert(value.into(), count);
        Ok(())
    }

    fn sorted(self) -> Vec<ValueCount> {
        let counts = self.counts.into_iter();
        let mut values: Vec<_> = counts
            .map(|(value, count)| ValueCount {
                value: value.into_vec(),
                count,
            })
            .collect();
        values.sort_unstable_by(|a, b| a.value.cmp(&b.value));
        values
    }
}
