//! Arguments of the scan kernels, defined here and generated for CUDA C++.

use forebay_device::cuda::{DevicePointer, DevicePointerMut, KernelArguments};
use forebay_device::kernel_arguments;

/// Maximum queries per launch.
pub(crate) const QUERIES_MAX: usize = 32;

/// Maximum automata per launch.
pub(crate) const AUTOMATA_MAX: usize = 8;

/// Minimum match limit of a search whose row numbers are staged in shared memory. Staged rows count towards the limit
/// only when they are written, so a search with a smaller limit writes each match at once, to end in time. All warps of
/// a launch together stage less than a third of this minimum: at most 31 rows in each of 64 warps on each of 148
/// multiprocessors.
const STAGED_LIMIT_MIN: u32 = 1 << 20;

kernel_arguments! {
    /// Unit of work of a thread block: tiles of one segment. All rows of these tiles have the same number of words.
    #[derive(Default)]
    pub(crate) struct Chunk {
        /// First word of the first tile.
        pub(crate) words: DevicePointer<u64>,
        pub(crate) words_per_row: u32,
        pub(crate) rows: u32,
        /// Position of the first row in its segment.
        pub(crate) position: u32,
        /// Index of the segment.
        pub(crate) segment: u32,
        /// Non-zero if a row of the segment is deleted.
        pub(crate) has_deleted: u32,
    }

    /// A block of rows. The position of a row is its index in the device's layout of the block.
    #[derive(Default)]
    pub(crate) struct Segment {
        /// Row number at each position; null if positions equal row numbers.
        pub(crate) rows: DevicePointer<u32>,
        /// Bitmap of deleted rows: bit `row % 32` of word `row / 32`; null if no row is deleted.
        pub(crate) deleted: DevicePointer<u32>,
        /// Number of the segment's first row in the table.
        pub(crate) first_row: u32,
    }

    /// Results of a launch, by query.
    pub(crate) struct Counters {
        /// Number of matching rows.
        pub(crate) matches: [u64; QUERIES_MAX],
        /// Number of rows found for the list, including those beyond its capacity.
        pub(crate) listed: [u32; QUERIES_MAX],
    }

    /// Output list of one query: the matching rows.
    #[derive(Default)]
    pub(crate) struct Output {
        /// The list, in pinned host memory.
        pub(crate) rows: DevicePointerMut<u32>,
        /// Maximum entries of the list.
        pub(crate) capacity: u32,
        /// Number of matches after which the scan may end.
        pub(crate) limit: u32,
        /// Non-zero if a list or marks are wanted.
        pub(crate) wants_rows: u32,
        /// Marks of the rows, as [`ScanWant::Marks`](crate::ScanWant::Marks) describes; null if a list is wanted.
        pub(crate) marks: DevicePointerMut<u32>,
    }

    /// Arguments that all launches have.
    pub(crate) struct Scan {
        pub(crate) chunks: DevicePointer<Chunk>,
        pub(crate) segments: DevicePointer<Segment>,
        /// Tables that each block copies to shared memory.
        pub(crate) image: DevicePointer<u8>,
        pub(crate) counters: DevicePointerMut<Counters>,
        pub(crate) chunk_begin: u32,
        pub(crate) chunk_end: u32,
        /// Bytes of the image, a multiple of 16.
        pub(crate) image_bytes: u32,
        pub(crate) query_count: u32,
        pub(crate) outputs: [Output; QUERIES_MAX],
    }

    /// One automaton of [`DfaArguments`].
    #[derive(Default)]
    pub(crate) struct DfaQuery {
        /// Initial state.
        pub(crate) start: u32,
        /// First accepting state: a row matches if it ends in this or a higher state.
        pub(crate) accepting: u32,
        /// Byte offset of the table in the image.
        pub(crate) table_offset: u32,
    }

    /// Arguments of deterministic automata.
    #[derive(Default)]
    pub(crate) struct DfaArguments {
        /// Table that is in global memory because it is too large for shared memory.
        pub(crate) table: DevicePointer<u8>,
        /// Number of byte classes, which is the number of entries per state in a table.
        pub(crate) class_count: u32,
        /// A state of the first automaton. A row that reaches this state matches, whatever bytes follow.
        pub(crate) accept: u32,
        pub(crate) queries: [DfaQuery; AUTOMATA_MAX],
    }

    /// Arguments of a single literal.
    #[derive(Default)]
    pub(crate) struct LiteralArguments {
        /// Length in bytes.
        pub(crate) bytes: u32,
        /// The literal's first four bytes. The mask selects the bytes that exist if the literal is shorter.
        pub(crate) probe: u32,
        pub(crate) probe_mask: u32,
    }

    /// Arguments of a Glushkov automaton; each bit stands for one position.
    #[derive(Default)]
    pub(crate) struct GlushkovArguments {
        /// Positions that may be entered at any byte of a row.
        pub(crate) enter: u64,
        /// Positions that may be entered only at the start of a row.
        pub(crate) enter_start: u64,
        /// Accepting positions: the row matches if one of them is active.
        pub(crate) accept: u64,
        /// Number of follower tables in the image.
        pub(crate) follow_count: u32,
    }

    /// Arguments of several packed literals; each bit stands for one byte of a literal.
    #[derive(Default)]
    pub(crate) struct ShiftAndArguments {
        /// One bit for each literal that may begin anywhere in a row: the bit that stands for its first byte.
        pub(crate) enter: u64,
        /// One bit for each literal that must be at the start of a row: the bit that stands for its first byte.
        pub(crate) enter_start: u64,
        /// The bits that stand for all other bytes of the literals.
        pub(crate) inside: u64,
        /// The bits that stand for the last byte of each literal.
        pub(crate) last: u64,
        /// Index of the last bit of each literal.
        pub(crate) last_bits: [u32; QUERIES_MAX],
    }

    /// Parameter of the kernels of deterministic automata.
    pub(crate) struct DfaScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: DfaArguments,
    }

    /// Parameter of the kernels of a single literal.
    pub(crate) struct LiteralScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: LiteralArguments,
    }

    /// Parameter of the kernels of a Glushkov automaton.
    pub(crate) struct GlushkovScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: GlushkovArguments,
    }

    /// Parameter of the kernels of several packed literals.
    pub(crate) struct ShiftAndScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: ShiftAndArguments,
    }
}

/// Arguments of a matcher.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Matcher {
    Dfa(DfaArguments),
    Literal(LiteralArguments),
    Glushkov(GlushkovArguments),
    ShiftAnd(ShiftAndArguments),
}

/// Returns the generated header that the kernels include.
pub(crate) fn header() -> String {
    let structs = [
        DfaScan::header(),
        LiteralScan::header(),
        GlushkovScan::header(),
        ShiftAndScan::header(),
    ];
    format!(
        "#pragma once\n#include \"device.cuh\"\nconstexpr u32 kQueriesMax = {QUERIES_MAX};\n\
         constexpr u32 kStagedLimitMin = {STAGED_LIMIT_MIN};\n{}",
        structs.concat()
    )
}
