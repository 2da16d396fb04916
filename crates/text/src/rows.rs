//! Blocks of rows.

use std::ops::Range;

/// The byte that follows every row of a block. Valid UTF-8 never contains it.
pub const SEPARATOR: u8 = 0xFF;

/// A concatenation of rows, each followed by [`SEPARATOR`].
///
/// Row `i` is `bytes[offsets[i]..offsets[i + 1] - 1]`: there is one more offset than rows, and the last offset is the
/// end of the last separator. A block without offsets has no rows. Every row must be valid UTF-8.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a> {
    /// The block. It may extend beyond the rows that `offsets` names.
    pub bytes: &'a [u8],
    /// Offset of each row in `bytes`, ascending, then the end of the last row's separator.
    pub offsets: &'a [u32],
}

impl<'a> Rows<'a> {
    /// Returns the number of rows.
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Returns whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns row `index` without its separator.
    ///
    /// # Panics
    /// If there is no such row.
    #[inline]
    pub fn row(&self, index: usize) -> &'a [u8] {
        let (start, next) = (
            self.offsets[index] as usize,
            self.offsets[index + 1] as usize,
        );
        &self.bytes[start..next - 1]
    }

    /// Returns a view of a range of rows. Offsets stay absolute within `bytes`; row numbers count from the start of the
    /// view.
    ///
    /// # Panics
    /// If the range exceeds the rows.
    pub fn slice(&self, rows: Range<usize>) -> Rows<'a> {
        if self.is_empty() {
            return *self;
        }
        Rows {
            bytes: self.bytes,
            offsets: &self.offsets[rows.start..=rows.end],
        }
    }

    /// Returns the range of `bytes` that the rows fill, separators included.
    pub fn span(&self) -> Range<usize> {
        match (self.offsets.first(), self.offsets.last()) {
            (Some(&first), Some(&last)) => first as usize..last as usize,
            _ => 0..0,
        }
    }

    /// Returns the row that contains byte `position` of `bytes`. Searches upwards from row `from`, which must not be
    /// after that row.
    pub(crate) fn row_at(&self, position: usize, from: usize) -> usize {
        let mut step = 1;
        let mut low = from;
        while low + step < self.offsets.len() && self.offsets[low + step] as usize <= position {
            low += step;
            step *= 2;
        }
        let high = (low + step).min(self.offsets.len());
        low + self.offsets[low..high].partition_point(|&offset| offset as usize <= position) - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block() -> (Vec<u8>, Vec<u32>) {
        let mut bytes = Vec::new();
        let mut offsets = vec![0];
        for row in ["", "a", "", "bcd", "e"].iter().cycle().take(23) {
            bytes.extend_from_slice(row.as_bytes());
            bytes.push(SEPARATOR);
            offsets.push(bytes.len() as u32);
        }
        (bytes, offsets)
    }

    #[test]
    fn finds_the_row_of_every_byte_from_every_start() {
        let (bytes, offsets) = block();
        let rows = Rows {
            bytes: &bytes,
            offsets: &offsets,
        };
        for row in 0..rows.len() {
            for position in offsets[row] as usize..offsets[row + 1] as usize {
                for from in 0..=row {
                    assert_eq!(
                        rows.row_at(position, from),
                        row,
                        "byte {position} from row {from}"
                    );
                }
            }
        }
    }

    #[test]
    fn slices_keep_offsets_absolute() {
        let (bytes, offsets) = block();
        let rows = Rows {
            bytes: &bytes,
            offsets: &offsets,
        };
        let part = rows.slice(3..5);
        assert_eq!(
            (part.len(), part.row(0), part.row(1)),
            (2, &b"bcd"[..], &b"e"[..])
        );
        assert_eq!(part.span(), 4..10);
        assert!(rows.slice(2..2).is_empty());
        assert!(
            Rows {
                bytes: &[],
                offsets: &[]
            }
            .slice(0..0)
            .is_empty()
        );
    }
}
