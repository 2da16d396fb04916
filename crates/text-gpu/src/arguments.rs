//! What the scan kernels take: defined here, generated for CUDA C++.

use forebay_device::cuda::{DevicePointer, DevicePointerMut, KernelArguments};
use forebay_device::kernel_arguments;

/// Maximum queries of one launch.
pub(crate) const QUERIES_MAX: usize = 32;

/// Maximum automata of one launch.
pub(crate) const AUTOMATA_MAX: usize = 8;

/// Minimum limit of a search whose list is staged; searches with a smaller limit write each match at once. The warps of
/// a launch hold back less than a third of this number: 31 rows for each of 64 warps on 148 multiprocessors.
const STAGED_LIMIT_MIN: u32 = 1 << 20;

kernel_arguments! {
    /// Tiles of one segment whose rows have the same number of words: the work that a thread block takes at a time.
    #[derive(Default)]
    pub(crate) struct Chunk {
        /// The first word of the first tile.
        pub(crate) words: DevicePointer<u64>,
        pub(crate) words_per_row: u32,
        pub(crate) rows: u32,
        /// The position of the first row in its segment.
        pub(crate) position: u32,
        /// The index of the segment.
        pub(crate) segment: u32,
        /// Not zero if any row of the segment is deleted.
        pub(crate) has_deleted: u32,
    }

    /// A block of rows; positions are their order on the device.
    #[derive(Default)]
    pub(crate) struct Segment {
        /// The row at each position; null if they stand in order.
        pub(crate) rows: DevicePointer<u32>,
        /// Bit `row % 32` of word `row / 32` is set where a row is deleted; null if none is.
        pub(crate) deleted: DevicePointer<u32>,
        /// The number of its first row in the table.
        pub(crate) first_row: u32,
    }

    /// The results of a launch, by query.
    pub(crate) struct Counters {
        /// Number of rows that match.
        pub(crate) matches: [u64; QUERIES_MAX],
        /// Number of rows found for the list, including those beyond its capacity.
        pub(crate) listed: [u32; QUERIES_MAX],
    }

    /// The list of the rows that match one query.
    #[derive(Default)]
    pub(crate) struct Output {
        /// The list, in pinned host memory.
        pub(crate) rows: DevicePointerMut<u32>,
        /// Maximum entries of the list.
        pub(crate) capacity: u32,
        /// Matches after which the scan may end.
        pub(crate) limit: u32,
        /// Not zero if the list is wanted.
        pub(crate) wants_rows: u32,
    }

    /// The arguments of every launch.
    pub(crate) struct Scan {
        pub(crate) chunks: DevicePointer<Chunk>,
        pub(crate) segments: DevicePointer<Segment>,
        /// Tables that every block copies to shared memory.
        pub(crate) image: DevicePointer<u8>,
        pub(crate) counters: DevicePointerMut<Counters>,
        pub(crate) chunk_begin: u32,
        pub(crate) chunk_end: u32,
        /// A multiple of 16.
        pub(crate) image_bytes: u32,
        pub(crate) query_count: u32,
        pub(crate) outputs: [Output; QUERIES_MAX],
    }

    /// One of the automata of [`DfaArguments`].
    #[derive(Default)]
    pub(crate) struct DfaQuery {
        /// The initial state.
        pub(crate) start: u32,
        /// The first state in which a row may end.
        pub(crate) accepting: u32,
        /// Offset of the table in the image, in bytes.
        pub(crate) table_offset: u32,
    }

    /// Deterministic automata.
    #[derive(Default)]
    pub(crate) struct DfaArguments {
        /// A table too large for shared memory.
        pub(crate) table: DevicePointer<u8>,
        /// Number of classes of bytes: entries of each state in a table.
        pub(crate) class_count: u32,
        /// The state of the first automaton that accepts whatever follows.
        pub(crate) accept: u32,
        pub(crate) queries: [DfaQuery; AUTOMATA_MAX],
    }

    /// One literal.
    #[derive(Default)]
    pub(crate) struct LiteralArguments {
        /// Its length in bytes.
        pub(crate) bytes: u32,
        /// Its first four bytes, and a mask of those that it has.
        pub(crate) probe: u32,
        pub(crate) probe_mask: u32,
    }

    /// A Glushkov automaton; each bit is a position of it.
    #[derive(Default)]
    pub(crate) struct GlushkovArguments {
        /// Positions entered anywhere.
        pub(crate) enter: u64,
        /// Positions entered at the start of a row.
        pub(crate) enter_start: u64,
        /// Positions that make a row match.
        pub(crate) accept: u64,
        /// Number of tables of followers in the image.
        pub(crate) follow_count: u32,
    }

    /// Several literals, each bit a byte of one.
    #[derive(Default)]
    pub(crate) struct ShiftAndArguments {
        /// First bytes of literals that are found anywhere.
        pub(crate) enter: u64,
        /// First bytes of literals that begin a row.
        pub(crate) enter_start: u64,
        /// All bytes but the first of each.
        pub(crate) inside: u64,
        /// Last bytes.
        pub(crate) last: u64,
        /// Number of the last bit of each literal.
        pub(crate) last_bits: [u32; QUERIES_MAX],
    }

    /// The parameter of kernels that run deterministic automata.
    pub(crate) struct DfaScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: DfaArguments,
    }

    /// The parameter of kernels that find a literal.
    pub(crate) struct LiteralScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: LiteralArguments,
    }

    /// The parameter of kernels that run a Glushkov automaton.
    pub(crate) struct GlushkovScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: GlushkovArguments,
    }

    /// The parameter of kernels that find several literals.
    pub(crate) struct ShiftAndScan {
        pub(crate) scan: Scan,
        pub(crate) matcher: ShiftAndArguments,
    }
}

/// The arguments of one matcher.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Matcher {
    Dfa(DfaArguments),
    Literal(LiteralArguments),
    Glushkov(GlushkovArguments),
    ShiftAnd(ShiftAndArguments),
}

/// The header that the kernels include.
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
