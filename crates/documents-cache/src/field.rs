//! One version of a cached field: buckets and delta, which hold the strings, and the sets of documents with other kinds
//! of value.

use std::sync::Arc;

use crate::CacheSettings;
use crate::batch::Column;
use crate::block::Block;
use crate::bucket::Bucket;
use crate::directory::Directory;
use crate::numbers::NumberSet;
use crate::segment::Segment;
use crate::sort::Sorted;
use crate::value::{FieldValue, Kept};

/// A field's rows and sets. Clones share all data.
#[derive(Debug, Clone)]
pub(crate) struct FieldState {
    /// The buckets.
    pub(crate) directory: Arc<Directory>,
    /// Sorted runs of the delta, oldest first.
    pub(crate) runs: Arc<Vec<Segment>>,
    /// The open chunk of the delta, in order of arrival. Sealed into a sorted run when it is full.
    pub(crate) open: Segment,
    pub(crate) null: NumberSet,
    pub(crate) missing: NumberSet,
    pub(crate) recheck: NumberSet,
    pub(crate) arrays: NumberSet,
    /// Number of live rows.
    pub(crate) rows: u64,
    /// Bytes of the values in live rows.
    pub(crate) value_bytes: u64,
}

impl FieldState {
    /// Creates an empty field whose only bucket is `first`.
    pub(crate) fn new(first: Bucket) -> FieldState {
        FieldState {
            directory: Arc::new(Directory::new(first)),
            runs: Arc::default(),
            open: empty_chunk(),
            null: NumberSet::default(),
            missing: NumberSet::default(),
            recheck: NumberSet::default(),
            arrays: NumberSet::default(),
            rows: 0,
            value_bytes: 0,
        }
    }

    /// Adds a batch's values of this field. `numbers` holds the document number of each position in the batch.
    pub(crate) fn insert(&mut self, column: &Column, numbers: &[u32], settings: &CacheSettings) {
        let sets = [
            (&mut self.null, &column.null),
            (&mut self.missing, &column.missing),
            (&mut self.recheck, &column.recheck),
            (&mut self.arrays, &column.arrays),
        ];
        for (set, places) in sets {
            for place in places {
                set.insert(numbers[*place as usize]);
            }
        }
        let rows = &column.rows;
        self.rows += rows.len() as u64;
        self.value_bytes += (rows.bytes_len() - rows.len()) as u64;
        let mut start = 0;
        while start < rows.len() {
            let open = open_block(&mut self.open, self.runs.last());
            let values = settings.chunk_values_max.saturating_sub(open.len()).max(1);
            let bytes = settings.chunk_bytes_max.saturating_sub(open.bytes_len());
            let end = rows.end_of_bytes(start..rows.len().min(start + values), bytes);
            open.append(rows, start..end, numbers);
            start = end;
            if open.len() >= settings.chunk_values_max
                || open.bytes_len() >= settings.chunk_bytes_max
            {
                self.seal();
            }
        }
    }

    /// Removes a document's value. Returns false if the document did not have that value.
    pub(crate) fn remove(
        &mut self,
        number: u32,
        value: &FieldValue<'_>,
        settings: &CacheSettings,
    ) -> bool {
        match value.kept(settings.value_bytes_max) {
            Kept::Missing => self.missing.remove(number),
            Kept::Null => self.null.remove(number),
            Kept::Recheck => self.recheck.remove(number),
            Kept::Other => true,
            Kept::Row(value) => self.remove_row(value, number),
            Kept::Rows(values) => {
                let removed = values
                    .iter()
                    .filter(|value| self.remove_row(value, number))
                    .count();
                self.arrays.remove(number) && removed == values.len()
            }
        }
    }

    /// Sorts the open chunk into a run and starts another chunk.
    ///
    /// PERF: `forebay bench documents --host --only inserts`, two cores of an Intel Xeon, November 2026: inserts with
    /// five cached fields run at 0.91 (0.66 to 1.14) of the rate without cached fields. In an earlier measurement of
    /// four rounds, the ratio was 0.70 (0.55 to 0.80) when the background thread sorted the chunks and 0.81 (0.63 to
    /// 0.95) when the writer sorted them. So the writer sorts them.
    pub(crate) fn seal(&mut self) {
        let open = std::mem::replace(&mut self.open, empty_chunk());
        let sources = [open];
        let sorted = Sorted::new(&sources);
        Arc::make_mut(&mut self.runs).extend(sorted.segments(0..sorted.len()));
    }

    fn remove_row(&mut self, value: &[u8], number: u32) -> bool {
        let removed = self.remove_from_open(value, number)
            || self.remove_from_runs(value, number)
            || self.remove_from_bucket(value, number);
        if removed {
            self.rows -= 1;
            self.value_bytes -= value.len() as u64;
        }
        removed
    }

    fn remove_from_open(&mut self, value: &[u8], number: u32) -> bool {
        let row = self.open.find_unsorted(value, number);
        row.map(|row| self.open.delete(row)).is_some()
    }

    fn remove_from_runs(&mut self, value: &[u8], number: u32) -> bool {
        let newest_first = self.runs.iter().enumerate().rev();
        let mut found =
            newest_first.filter_map(|(index, run)| Some((index, run.find_sorted(value, number)?)));
        let Some((index, row)) = found.next() else {
            return false;
        };
        Arc::make_mut(&mut self.runs)[index].delete(row);
        true
    }

    /// Marks the row of a value in its bucket as deleted. Returns false if there is no such row.
    pub(crate) fn remove_from_bucket(&mut self, value: &[u8], number: u32) -> bool {
        let position = self.directory.position(value);
        let Some((index, row)) = self.directory.buckets()[position].find(value, number) else {
            return false;
        };
        let bucket = Arc::make_mut(&mut self.directory).bucket_mut(position);
        bucket.segments[index].delete(row);
        true
    }

    /// Returns the number of rows in the delta, including deleted rows.
    pub(crate) fn delta_rows(&self) -> usize {
        self.delta().map(|segment| segment.block().len()).sum()
    }

    /// Returns the segments of the delta. All except the last are sorted.
    pub(crate) fn delta(&self) -> impl Iterator<Item = &Segment> {
        self.runs.iter().chain(std::iter::once(&self.open))
    }

    /// Returns every segment of the field.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &Segment> {
        let buckets = self.directory.buckets().iter();
        buckets
            .flat_map(|bucket| &bucket.segments)
            .chain(self.delta())
    }

    /// Returns the number of bytes of memory that the field takes, including segments, sets and directory.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let buckets = self
            .directory
            .buckets()
            .iter()
            .map(|bucket| bucket.memory_bytes());
        let delta = self.delta().map(Segment::memory_bytes);
        let sets = [&self.null, &self.missing, &self.recheck, &self.arrays];
        buckets
            .chain(delta)
            .chain(sets.map(NumberSet::memory_bytes))
            .sum()
    }
}

/// Returns the block of the open chunk. A new chunk gets the capacity that the previous run needed.
fn open_block<'a>(open: &'a mut Segment, last: Option<&Segment>) -> &'a mut Block {
    let block = open.block_mut();
    if let (0, Some(last)) = (block.len(), last) {
        block.reserve_as_much_as(last.block());
    }
    block
}

fn empty_chunk() -> Segment {
    Segment::new(Block::with_capacity(0, 0))
}
