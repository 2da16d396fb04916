//! What the scan kernels take: defined here, generated for CUDA C++.

use forebay_device::cuda::{DevicePointer, DevicePointerMut, KernelArguments};
use forebay_device::kernel_arguments;

/// Most queries of one launch.
pub(super) const QUERIES_MAX: usize = 32;

/// Threads of a block.
pub(super) const THREADS: u32 = 256;

pub(super) const WANT_COUNT: u32 = 0;
pub(super) const WANT_ROWS: u32 = 1;

kernel_arguments! {
    /// Some tiles of one block, whose rows have the same number of words.
    #[derive(Default)]
    pub(super) struct Chunk {
        /// The first word of the first tile.
        pub(super) words: DevicePointer<u64>,
        pub(super) words_per_row: u32,
        pub(super) rows: u32,
        /// The position of the first row in its block.
        pub(super) position: u32,
        /// The block.
        pub(super) segment: u32,
        /// Whether any row of the block is dead.
        pub(super) has_dead: u32,
        pub(super) unused: u32,
    }

    /// A block of rows; positions are their order on the device.
    #[derive(Default)]
    pub(super) struct Segment {
        /// The row at each position; null if they stand in order.
        pub(super) rows: DevicePointer<u32>,
        /// Bit `row % 32` of word `row / 32` is set where a row is dead; null if none is.
        pub(super) dead: DevicePointer<u32>,
        /// The number of its first row in the table.
        pub(super) first_row: u32,
        pub(super) unused: u32,
    }

    /// One query of a launch.
    #[derive(Default)]
    pub(super) struct Query {
        /// Where to write rows: pinned host memory.
        pub(super) output: DevicePointerMut<u32>,
        /// How many have been found for the list, those beyond its capacity included.
        pub(super) listed: DevicePointerMut<u32>,
        /// Entries of the list.
        pub(super) capacity: u32,
        /// Matches after which the scan may end.
        pub(super) limit: u32,
        /// What to write.
        pub(super) want: u32,
        /// Automata: the state before a row.
        pub(super) start: u32,
        /// Automata: the first state in which a row may end. Packed literals: the bit of the last byte.
        pub(super) accepting: u32,
        /// Automata: where the table stands in the image, in bytes.
        pub(super) table_offset: u32,
    }

    /// A launch.
    #[derive(Default)]
    pub(super) struct ScanArguments {
        pub(super) chunks: DevicePointer<Chunk>,
        pub(super) segments: DevicePointer<Segment>,
        /// Tables that every block copies to shared memory.
        pub(super) image: DevicePointer<u8>,
        /// A table too large for that.
        pub(super) table: DevicePointer<u8>,
        /// Matches of each query.
        pub(super) counters: DevicePointerMut<u64>,
        /// Bits entered anywhere.
        pub(super) enter: u64,
        /// Bits entered at the start of a row.
        pub(super) enter_start: u64,
        /// Packed literals: all bits but the first of each.
        pub(super) inside: u64,
        /// Bits that make a row match.
        pub(super) accept: u64,
        pub(super) chunk_begin: u32,
        pub(super) chunk_end: u32,
        /// A multiple of 16.
        pub(super) image_bytes: u32,
        pub(super) query_count: u32,
        /// Classes of bytes; for Glushkov automata, tables of followers.
        pub(super) stride: u32,
        /// The state that accepts whatever follows.
        pub(super) accept_state: u32,
        pub(super) literal_bytes: u32,
        /// The first four bytes of a literal, and which of them there are.
        pub(super) probe: u32,
        pub(super) probe_mask: u32,
        pub(super) unused: u32,
        pub(super) queries: [Query; QUERIES_MAX],
    }
}

/// What becomes of the matches of a query.
pub(super) struct Goal {
    /// An address in pinned host memory.
    pub(super) output: u64,
    pub(super) listed: u64,
    pub(super) capacity: u32,
    pub(super) limit: u32,
    pub(super) want: u32,
}

impl Query {
    pub(super) fn set_goal(&mut self, goal: Goal) {
        self.output = DevicePointerMut::new(goal.output);
        self.listed = DevicePointerMut::new(goal.listed);
        self.capacity = goal.capacity;
        self.limit = goal.limit;
        self.want = goal.want;
    }
}

impl ScanArguments {
    /// Whether any query wants a list.
    pub(super) fn lists(&self) -> bool {
        let queries = &self.queries[..self.query_count as usize];
        queries.iter().any(|query| query.want != WANT_COUNT)
    }
}

impl Chunk {
    /// Appends the chunk as it stands on a device.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        out.extend(self.words.address().to_le_bytes());
        for number in [
            self.words_per_row,
            self.rows,
            self.position,
            self.segment,
            self.has_dead,
            self.unused,
        ] {
            out.extend(number.to_le_bytes());
        }
    }
}

impl Segment {
    /// Appends the block as it stands on a device.
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        for address in [self.rows, self.dead] {
            out.extend(address.address().to_le_bytes());
        }
        out.extend(self.first_row.to_le_bytes());
        out.extend(self.unused.to_le_bytes());
    }
}

/// The header that the kernels include.
pub(super) fn header() -> String {
    format!(
        "#pragma once\ntypedef unsigned char u8;\ntypedef unsigned short u16;\ntypedef unsigned int u32;\n\
         typedef unsigned long long u64;\nconstexpr u32 kThreads = {THREADS};\nconstexpr u32 kWantCount = {WANT_COUNT};\n\
         {}",
        ScanArguments::header()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_structs_are_as_long_as_those_of_kernels() {
        let mut out = Vec::new();
        Chunk::default().write(&mut out);
        assert_eq!(out.len(), size_of::<Chunk>());
        Segment::default().write(&mut out);
        assert_eq!(out.len(), size_of::<Chunk>() + size_of::<Segment>());
    }
}
