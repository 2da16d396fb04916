//! What kernels get: the arguments of a fragment, and the structs in device memory that they point to.

use forebay_device::cuda::{DevicePointer, DevicePointerMut};
use forebay_device::kernel_arguments;

/// Maximum number of constants of a kernel.
pub(crate) const CONSTANTS_MAX: usize = 64;
/// Maximum number of words that a kernel reads of the tables of its joins.
pub(crate) const JOIN_WORDS_MAX: usize = 12;
/// Maximum number of joins of a kernel, each of which has a word.
pub(crate) const JOINS_MAX: usize = JOIN_WORDS_MAX;
/// Maximum number of words of an element of such a table.
pub(crate) const OWN_WORDS_MAX: usize = 6;

kernel_arguments! {
    /// Packed numbers of one column in one chunk.
    pub(crate) struct Part {
        /// The packed numbers of whole tiles.
        pub(crate) words: DevicePointer<u32>,
        /// One bit for each row: whether it has a value; null if all have one.
        pub(crate) valid: DevicePointer<u32>,
        /// What is added to a packed number.
        pub(crate) reference: i64,
        /// Bits of a packed number, a multiple of four.
        pub(crate) width: u32,
        /// Of floats, the exponent of the power of ten that divides a number; 32 if numbers are bits.
        pub(crate) exponent: u32,
    }

    /// Rows that were packed together.
    pub(crate) struct Chunk {
        /// Number of tiles of the chunks before.
        pub(crate) first_tile: u64,
        /// Number of rows, at least 1.
        pub(crate) rows: u32,
        /// Index of the file.
        pub(crate) file: u32,
        /// Index of the chunk in the file.
        pub(crate) index: u32,
        /// Not used.
        pub(crate) padding: u32,
    }

    /// The parameter of every kernel.
    pub(crate) struct Fragment {
        /// The chunks, and a last one that begins where the tiles end.
        pub(crate) chunks: DevicePointer<Chunk>,
        /// For each file and each column of the kernel the parts of all chunks.
        pub(crate) parts: DevicePointer<DevicePointer<Part>>,
        /// Words of the tables.
        pub(crate) tables: DevicePointer<u32>,
        /// For each file and each table of the kernel, where the table begins.
        pub(crate) table_offsets: DevicePointer<u32>,
        /// Totals: for each group the words of its slots, of which those of 128 bits have two: sums the lower first,
        /// maxima the upper. 0 before the kernel runs.
        pub(crate) totals: DevicePointerMut<u64>,
        /// What a kernel returns: marks of values of keys if it stores rows of a join, counts or groups if it selects
        /// groups, the number of rows of each slice if it divides rows. 0 before the kernel runs.
        pub(crate) results: DevicePointerMut<u64>,
        /// The words of the tables of joins, one array for each word.
        pub(crate) words: [DevicePointer<u8>; JOIN_WORDS_MAX],
        /// The words of the table that the kernel fills; 0 before.
        pub(crate) own_words: [DevicePointerMut<u8>; OWN_WORDS_MAX],
        /// A bit for each element of this table: whether it has a row; 0 before. Not used if the join repeats rows.
        /// A kernel that divides rows writes them here; null if it only counts them.
        pub(crate) seen: DevicePointerMut<u32>,
        /// Set to 1 if a hash table of groups or a list is full, to 2 if joins have too many matches, to 3 if a
        /// float is too small for its sum, to 4 if a hash table of a join is full, to 5 if two rows have the same
        /// keys and only one may, to 6 if a table has no room for its rows, to 7 if different keys have the same
        /// fingerprint. The host sets it to 8 if the query is cancelled. Kernels that find it set end early. At byte
        /// 8 behind it is the number of matches of joins that repeat rows, from byte 16 a bit for each source to
        /// which 5 applies, and from byte 80 one for each to which 6 applies.
        pub(crate) flag: DevicePointerMut<u32>,
        /// The keys of the joins whose tables are hash tables.
        pub(crate) keys: [DevicePointer<u64>; JOINS_MAX],
        /// The keys of the hash table that the kernel fills, or of that of the groups that it reads; 0 before.
        pub(crate) own_keys: DevicePointerMut<u64>,
        /// Of each such table, the binary logarithm of the number of slots.
        pub(crate) key_bits: [u32; JOINS_MAX],
        /// The same of the kernel's own table.
        pub(crate) own_key_bits: u32,
        /// Number of rows for which this table has room, if several may have the same key. For a kernel that divides
        /// rows, the number of slices.
        pub(crate) own_rows: u32,
        /// The slice of the table of each join that is there, as `slice.rs` tells.
        pub(crate) slice_firsts: [u64; JOINS_MAX],
        pub(crate) slice_counts: [u64; JOINS_MAX],
        /// The slice that the kernel fills of its own table or of the groups, or that it reads of the groups.
        pub(crate) own_first: u64,
        pub(crate) own_count: u64,
        /// Number of tiles of all chunks, or of all groups.
        pub(crate) tiles: u64,
        /// Number of chunks.
        pub(crate) chunk_count: u32,
        /// Number of groups. For a kernel that divides rows, the index of the first word of `tables` with places of
        /// divided rows.
        pub(crate) groups: u32,
        /// The constants of the plan, each of 128 bits.
        pub(crate) constants: [u64; 2 * CONSTANTS_MAX],
    }
}
