//! Tables of joins, and totals of groups, that are made in slices, because they have no room as a whole.
//!
//! A slice has the keys whose places are in a range. Places are the elements of a table or the numbers of groups; of a
//! hash table, numbers of 32 bits that are made of a key's bits. Kernels read the rows once for each slice, and use
//! those whose keys are in it. They leave out chunks of which no row is.

use crate::column::Chunk;
use crate::columns::Resident;

/// Maximum number of times that kernels read rows for slices: of the tables, multiplied by those of the groups. A slice
/// of a table that is divided while the query runs counts once in that product; its parts have limits of their own
/// (`turns.rs`).
pub(crate) const SLICES_MAX: u64 = 64;
/// The same of rows that are read from the disk for each slice of the groups.
pub(crate) const DISK_SLICES_MAX: u64 = 4;
/// Number of places of a hash table.
pub(crate) const HASH_PLACES: u64 = 1 << 32;

/// The slices of all tables of a kernel's joins that are made together.
pub(crate) type Turn = Vec<Slice>;

/// A range of places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) first: u64,
    pub(crate) count: u64,
}

impl Default for Slice {
    fn default() -> Slice {
        Slice {
            first: 0,
            count: u64::MAX,
        }
    }
}

impl Slice {
    /// Returns one of `of` slices of this many places; all if there is one.
    pub(crate) fn nth(index: u64, of: u64, places: u64) -> Slice {
        let count = places.div_ceil(of);
        match of {
            1 => Slice::default(),
            _ => Slice {
                first: index * count,
                count,
            },
        }
    }

    /// Returns whether it has all places.
    pub(crate) fn is_all(self) -> bool {
        self == Slice::default()
    }

    /// Returns both halves of a slice of this many places, if it has more than one place.
    pub(crate) fn halves(self, places: u64) -> Option<[Slice; 2]> {
        let count = self.count.min(places);
        let half = count.div_ceil(2);
        (count > 1).then_some([
            Slice {
                first: self.first,
                count: half,
            },
            Slice {
                first: self.first + half,
                count: count - half,
            },
        ])
    }

    /// Sets the number of rows to 0 of the chunks of which no row is in the slice.
    pub(crate) fn keep(self, key: &KeyColumn, resident: &Resident, chunks: &mut [Vec<u32>]) {
        if self.is_all() {
            return;
        }
        for (columns, rows) in resident.files.iter().zip(chunks) {
            let column = columns.get(&key.column);
            for (chunk, rows) in column.iter().flat_map(|it| &it.chunks).zip(rows) {
                *rows *= u32::from(self.may_have_rows(key, chunk));
            }
        }
    }

    fn may_have_rows(self, key: &KeyColumn, chunk: &Chunk) -> bool {
        let place = |number: i64| i128::from(number) - i128::from(key.first);
        let (first, end) = (
            self.first.into(),
            i128::from(self.first) + i128::from(self.count),
        );
        // Rows without a place are in the first slice.
        let (is_inside, has_others) = match chunk.range {
            None => (false, true),
            Some((min, max)) => (
                place(min) < end && place(max) >= first,
                chunk.has_nulls() || place(min) < 0 || place(max) >= key.places.into(),
            ),
        };
        is_inside || has_others && self.first == 0
    }
}

/// A key that is a column of numbers: the place of a row is its number less the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    /// Index of the column.
    pub(crate) column: usize,
    pub(crate) first: i64,
    /// Number of places.
    pub(crate) places: u64,
}
