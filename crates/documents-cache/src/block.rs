//! Rows laid out for searching: concatenated values, with an offset and a document number for each.

use std::ops::Range;

use forebay_text::{Rows, SEPARATOR};

/// Maximum bytes of a block of several values. A block of a single value may be larger, because its 32-bit offsets
/// reach up to 4 GiB.
pub(crate) const BLOCK_BYTES_MAX: usize = 1 << 30;

/// Values with the numbers of their documents, in any order. Each value is followed by [`SEPARATOR`].
#[derive(Debug, Clone)]
pub(crate) struct Block {
    bytes: Vec<u8>,
    offsets: Vec<u32>,
    numbers: Vec<u32>,
}

impl Block {
    /// Creates an empty block with capacity for `rows` rows with `value_bytes` bytes of values.
    pub(crate) fn with_capacity(rows: usize, value_bytes: usize) -> Block {
        let mut offsets = Vec::with_capacity(rows + 1);
        offsets.push(0);
        Block {
            bytes: Vec::with_capacity(value_bytes + rows),
            offsets,
            numbers: Vec::with_capacity(rows),
        }
    }

    /// Appends a row.
    #[inline]
    pub(crate) fn push(&mut self, value: &[u8], number: u32) {
        self.bytes.extend_from_slice(value);
        self.bytes.push(SEPARATOR);
        let end =
            u32::try_from(self.bytes.len()).expect("a block is closed before it reaches 4 GiB");
        self.offsets.push(end);
        self.numbers.push(number);
    }

    /// Appends rows of `from`. A row of `from` has a position in `numbers` instead of a document number; the appended
    /// row gets the document number at that position.
    pub(crate) fn append(&mut self, from: &Block, rows: Range<usize>, numbers: &[u32]) {
        let offsets = &from.offsets[rows.start..=rows.end];
        let (start, base) = (offsets[0], self.bytes.len());
        let bytes = &from.bytes[start as usize..offsets[rows.len()] as usize];
        u32::try_from(base + bytes.len()).expect("a block is closed before it reaches 4 GiB");
        self.bytes.extend_from_slice(bytes);
        let moved = offsets[1..]
            .iter()
            .map(|offset| offset - start + base as u32);
        self.offsets.extend(moved);
        let places = from.numbers[rows].iter();
        self.numbers
            .extend(places.map(|&place| numbers[place as usize]));
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns the number of bytes of the values, including separators.
    pub(crate) fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// Reserves capacity for as many rows and bytes as `other` has.
    pub(crate) fn reserve_as_much_as(&mut self, other: &Block) {
        self.bytes.reserve(other.bytes.len());
        self.offsets.reserve(other.offsets.len());
        self.numbers.reserve(other.numbers.len());
    }

    /// Returns the number of bytes of memory that the block takes.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let words = self.offsets.capacity() + self.numbers.capacity();
        (self.bytes.capacity() + words * size_of::<u32>() + size_of::<Block>()) as u64
    }

    /// Returns the value of a row.
    #[inline]
    pub(crate) fn value(&self, row: usize) -> &[u8] {
        let (start, next) = (self.offsets[row] as usize, self.offsets[row + 1] as usize);
        &self.bytes[start..next - 1]
    }

    /// Returns the length of a row's value.
    #[inline]
    pub(crate) fn value_len(&self, row: usize) -> usize {
        (self.offsets[row + 1] - self.offsets[row]) as usize - 1
    }

    /// Returns the document number of a row.
    #[inline]
    pub(crate) fn number(&self, row: usize) -> u32 {
        self.numbers[row]
    }

    /// Returns the document numbers of a range of rows.
    pub(crate) fn numbers(&self, rows: Range<usize>) -> &[u32] {
        &self.numbers[rows]
    }

    /// Returns the rows in the text engine's format.
    pub(crate) fn rows(&self) -> Rows<'_> {
        Rows {
            bytes: &self.bytes,
            offsets: &self.offsets,
        }
    }

    /// Returns the number of bytes of a range of rows, including separators.
    pub(crate) fn span_bytes(&self, rows: &Range<usize>) -> u64 {
        u64::from(self.offsets[rows.end] - self.offsets[rows.start])
    }

    /// Returns the end of the shortest leading part of `rows` that takes at least `bytes` bytes, including separators.
    /// The part has at least one row.
    pub(crate) fn end_of_bytes(&self, rows: Range<usize>, bytes: usize) -> usize {
        let is_below = |row| self.span_bytes(&(rows.start..row + 1)) < bytes as u64;
        rows.end.min(self.first_row_in(rows.clone(), is_below) + 1)
    }

    /// Copies a range of rows to a new block.
    pub(crate) fn cut(&self, rows: Range<usize>) -> Block {
        let offsets = &self.offsets[rows.start..=rows.end];
        let (start, end) = (offsets[0], offsets[rows.len()]);
        Block {
            bytes: self.bytes[start as usize..end as usize].to_vec(),
            offsets: offsets.iter().map(|offset| offset - start).collect(),
            numbers: self.numbers[rows].to_vec(),
        }
    }

    /// Returns the first row for whose value `below` returns false. The block must be sorted.
    pub(crate) fn first_row(&self, mut below: impl FnMut(&[u8]) -> bool) -> usize {
        self.first_row_in(0..self.len(), |row| below(self.value(row)))
    }

    /// Returns the first row in `rows` for whose value `below` returns false. The block must be sorted. Fast if that
    /// row is near the start of `rows`.
    pub(crate) fn first_row_near(
        &self,
        rows: Range<usize>,
        below: impl Fn(&[u8]) -> bool,
    ) -> usize {
        let (mut low, mut step) = (rows.start, 1);
        while low + step < rows.end && below(self.value(low + step)) {
            low += step;
            step *= 2;
        }
        let high = rows.end.min(low + step);
        self.first_row_in(low..high, |row| below(self.value(row)))
    }

    fn first_row_in(&self, rows: Range<usize>, mut below: impl FnMut(usize) -> bool) -> usize {
        let (mut low, mut high) = (rows.start, rows.end);
        while low < high {
            let middle = low.midpoint(high);
            if below(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// Returns the rows of a sorted block whose value is `value`.
    pub(crate) fn rows_equal(&self, value: &[u8]) -> Range<usize> {
        let start = self.first_row(|row| row < value);
        if start == self.len() || self.value(start) != value {
            return start..start;
        }
        let end = self.first_row_in(start..self.len(), |row| self.value(row) <= value);
        start..end
    }

    /// Returns the rows of a sorted block whose value begins with `prefix`.
    pub(crate) fn rows_with_prefix(&self, prefix: &[u8]) -> Range<usize> {
        let start = self.first_row(|row| row < prefix);
        let below = |row: usize| self.value(row).starts_with(prefix);
        start..self.first_row_in(start..self.len(), below)
    }

    /// Finds the row with this value and document in a sorted block. Rows with equal values are in order of document
    /// number.
    pub(crate) fn find_sorted(&self, value: &[u8], number: u32) -> Option<usize> {
        let row = self.first_row_in(0..self.len(), |row| {
            (self.value(row), self.number(row)) < (value, number)
        });
        (row < self.len() && self.number(row) == number && self.value(row) == value).then_some(row)
    }

    /// Finds the rows with this value and document in a block of any order.
    pub(crate) fn find_unsorted<'a>(
        &'a self,
        value: &'a [u8],
        number: u32,
    ) -> impl Iterator<Item = usize> + 'a {
        let owned = self
            .numbers
            .iter()
            .enumerate()
            .filter(move |(_, n)| **n == number);
        owned
            .map(|(row, _)| row)
            .filter(move |row| self.value(*row) == value)
    }
}
