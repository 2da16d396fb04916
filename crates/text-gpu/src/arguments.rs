//! What the scan kernels take: defined here, generated for CUDA C++.

use forebay_device::cuda::{DevicePointer, DevicePointerMut, KernelArguments};
use forebay_device::kernel_arguments;

/// Most queries of one launch.
pub(crate) const QUERIES_MAX: usize = 32;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

pub(crate) const WANT_COUNT: u32 = 0;
pub(crate) const WANT_ROWS: u32 = 1;

kernel_arguments! {
    /// Some tiles of one block, whose rows have the same number of words.
    #[derive(Default)]
    pub(crate) struct Chunk {
        /// The first word of the first tile.
        pub(crate) words: DevicePointer<u64>,
        pub(crate) words_per_row: u32,
        pub(crate) rows: u32,
        /// The position of the first row in its block.
        pub(crate) position: u32,
        /// The block.
        pub(crate) segment: u32,
        /// Whether any row of the block is dead.
        pub(crate) has_dead: u32,
        pub(crate) unused: u32,
    }

    /// A block of rows; positions are their order on the device.
    #[derive(Default)]
    pub(crate) struct Segment {
        /// The row at each position; null if they stand in order.
        pub(crate) rows: DevicePointer<u32>,
        /// Bit `row % 32` of word `row / 32` is set where a row is dead; null if none is.
        pub(crate) dead: DevicePointer<u32>,
        /// The number of its first row in the table.
        pub(crate) first_row: u32,
        pub(crate) unused: u32,
    }

    /// One query of a launch.
    #[derive(Default)]
    pub(crate) struct Query {
        /// Where to write rows: pinned host memory.
        pub(crate) output: DevicePointerMut<u32>,
        /// How many have been found for the list, those beyond its capacity included.
        pub(crate) listed: DevicePointerMut<u32>,
        /// Entries of the list.
        pub(crate) capacity: u32,
        /// Matches after which the scan may end.
        pub(crate) limit: u32,
        /// What to write.
        pub(crate) want: u32,
        /// Automata: the state before a row.
        pub(crate) start: u32,
        /// Automata: the first state in which a row may end. Packed literals: the bit of the last byte.
        pub(crate) accepting: u32,
        /// Automata: where the table stands in the image, in bytes.
        pub(crate) table_offset: u32,
    }

    /// A launch.
    #[derive(Default)]
    pub(crate) struct ScanArguments {
        pub(crate) chunks: DevicePointer<Chunk>,
        pub(crate) segments: DevicePointer<Segment>,
        /// Tables that every block copies to shared memory.
        pub(crate) image: DevicePointer<u8>,
        /// A table too large for that.
        pub(crate) table: DevicePointer<u8>,
        /// Matches of each query.
        pub(crate) counters: DevicePointerMut<u64>,
        /// Bits entered anywhere.
        pub(crate) enter: u64,
        /// Bits entered at the start of a row.
        pub(crate) enter_start: u64,
        /// Packed literals: all bits but the first of each.
        pub(crate) inside: u64,
        /// Bits that make a row match.
        pub(crate) accept: u64,
        pub(crate) chunk_begin: u32,
        pub(crate) chunk_end: u32,
        /// A multiple of 16.
        pub(crate) image_bytes: u32,
        pub(crate) query_count: u32,
        /// Classes of bytes; for Glushkov automata, tables of followers.
        pub(crate) stride: u32,
        /// The state that accepts whatever follows.
        pub(crate) accept_state: u32,
        pub(crate) literal_bytes: u32,
        /// The first four bytes of a literal, and which of them there are.
        pub(crate) probe: u32,
        pub(crate) probe_mask: u32,
        pub(crate) unused: u32,
        pub(crate) queries: [Query; QUERIES_MAX],
    }
}

/// What becomes of the matches of a query.
pub(crate) struct Goal {
    /// An address in pinned host memory.
    pub(crate) output: u64,
    pub(crate) listed: u64,
    pub(crate) capacity: u32,
    pub(crate) limit: u32,
    pub(crate) want: u32,
}

impl Query {
    pub(crate) fn set_goal(&mut self, goal: Goal) {
        self.output = DevicePointerMut::new(goal.output);
        self.listed = DevicePointerMut::new(goal.listed);
        self.capacity = goal.capacity;
        self.limit = goal.limit;
        self.want = goal.want;
    }
}

impl ScanArguments {
    /// Whether any query wants a list.
    pub(crate) fn lists(&self) -> bool {
        let queries = &self.queries[..self.query_count as usize];
        queries.iter().any(|query| query.want != WANT_COUNT)
    }
}

impl Chunk {
    /// Appends the chunk as it stands on a device.
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
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
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        for address in [self.rows, self.dead] {
            out.extend(address.address().to_le_bytes());
        }
        out.extend(self.first_row.to_le_bytes());
        out.extend(self.unused.to_le_bytes());
    }
}

/// The header that the kernels include.
pub(crate) fn header() -> String {
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
