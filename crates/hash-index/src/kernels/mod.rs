//! This crate's kernels: their sources and their arguments.

use std::sync::LazyLock;

use forebay_device::cuda::{
    DevicePointer, DevicePointerMut, KernelArguments, Program, ProgramSpec, device_header,
};
use forebay_device::kernel_arguments;

use crate::shape::{BUCKET_BYTES, HASH_FIRST, HASH_SECOND, TableMethod, TableShape, Width};
use crate::workload::CONSTANTS;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;

/// Rows that a thread works on at once: their reads of the table are in flight together.
pub(crate) const ROWS_AHEAD: u32 = 4;

/// Maximum number of bits of a hash that tell the partition.
pub(crate) const PARTITION_BITS_MAX: u32 = 10;

/// The columns of a slice begin at multiples of this number of values, so that kernels read whole lines of 128 bytes.
pub(crate) const SLICE_ROWS: u32 = 32;

/// Rows that a thread loads ahead while a run is divided.
const ROWS_HELD: u32 = 8;

/// Threads of a block that sorts a tile of rows.
pub(crate) const THREADS_OF_TILE: u32 = 512;

/// Bytes of a tile, in shared memory, for each thread: three blocks have room on a multiprocessor of an H100.
pub(crate) const TILE_BYTES_OF_THREAD: u32 = 128;

/// Number of blocks that empty a chunk of an interleaved table.
pub(crate) const BLOCKS_OF_CHUNK: u32 = 8;

/// Bit of [`Outcome::failures`]: a row is too far away from the slot of its hash.
pub(crate) const CHAIN_TOO_LONG: u32 = 1;
/// Bit of [`Outcome::failures`]: a key has no slot.
pub(crate) const KEY_OUT_OF_RANGE: u32 = 2;

kernel_arguments! {
    /// The columns of `count` rows. Keys are numbers or composite.
    pub(crate) struct Rows {
        pub(crate) keys: DevicePointer<u8>,
        pub(crate) payloads: DevicePointer<u8>,
        pub(crate) count: u64,
    }

    /// The rows of a run that are of one partition: `count` rows, from the row `begin` of the run on. In a run that
    /// kernels read, the keys begin at the bytes of `begin` rows. The payloads follow behind the bytes of as many keys
    /// as `count` rounded up to [`SLICE_ROWS`].
    pub(crate) struct Slice {
        pub(crate) begin: u32,
        pub(crate) count: u32,
    }

    /// Rows of a side in the order of their partitions, and the slice of each partition.
    pub(crate) struct Run {
        pub(crate) rows: DevicePointer<u8>,
        pub(crate) slices: DevicePointer<Slice>,
    }

    /// The rows of a partition in some runs.
    pub(crate) struct PartitionRows {
        pub(crate) runs: DevicePointer<Run>,
        pub(crate) run_count: u32,
        pub(crate) partition: u32,
        /// Number of blocks that share the slice of a run.
        pub(crate) blocks_of_run: u32,
    }

    /// A table as kernels see it. The rows of the marker key, which no slot can hold, are known by number and sum.
    pub(crate) struct HashIndexRef {
        pub(crate) slots: DevicePointerMut<u8>,
        /// A bit for each slot that is taken, in a table by key.
        pub(crate) taken: DevicePointerMut<u32>,
        pub(crate) slot_count: u64,
        /// Key of the first slot, in a table by key.
        pub(crate) first_key: u64,
        pub(crate) aside_count: u64,
        pub(crate) aside_sum: u64,
        /// Number of bits that a hash is shifted right to give a slot or bucket.
        pub(crate) shift: u32,
        /// 1 if no key in the slots has two rows.
        pub(crate) is_unique: u32,
        /// 1 if a slot of a table by key is not taken.
        pub(crate) has_holes: u32,
        /// Maximum number of slots or buckets in which a row of a table by hash may be.
        pub(crate) steps_max: u32,
        /// Of a table that is interleaved over several GPUs: this one works on rows whose search begins in a slot with
        /// `slot >> own_shift & own_mask` equal to `own`. Else, all are 0.
        pub(crate) own_shift: u32,
        pub(crate) own_mask: u32,
        pub(crate) own: u32,
        pub(crate) unused: u32,
    }

    /// What the inserts of a build did.
    pub(crate) struct Outcome {
        /// Rows in slots.
        pub(crate) stored: u64,
        /// Rows whose key was in a slot before.
        pub(crate) duplicates: u64,
        /// Rows with the marker key.
        pub(crate) aside_count: u64,
        /// Sum of their payloads.
        pub(crate) aside_sum: u64,
        pub(crate) failures: u32,
        pub(crate) unused: u32,
    }

    /// The matches of probes. Sums wrap.
    #[derive(Default, PartialEq, Eq)]
    pub struct JoinTotals {
        /// Number of pairs of rows with the same key.
        pub count: u64,
        /// Sum of their payloads on the build side.
        pub build_sum: u64,
        /// Sum of their payloads on the probe side.
        pub probe_sum: u64,
    }

    /// Arguments of `insert` and `insert_own`.
    pub(crate) struct Inserting {
        pub(crate) rows: Rows,
        pub(crate) index: HashIndexRef,
        pub(crate) outcome: DevicePointerMut<Outcome>,
    }

    /// Arguments of `probe` and `probe_own`.
    pub(crate) struct Probing {
        pub(crate) rows: Rows,
        pub(crate) index: HashIndexRef,
        pub(crate) totals: DevicePointerMut<JoinTotals>,
    }

    /// Arguments of `empty_slots`.
    pub(crate) struct Emptying {
        /// The slots of a table that is interleaved over several GPUs.
        pub(crate) slots: DevicePointerMut<u8>,
        /// Bytes of all slots and of a chunk: multiples of 16.
        pub(crate) bytes: u64,
        pub(crate) chunk_bytes: u64,
        /// Number of GPUs, which have one chunk each in turn, and the index of this one.
        pub(crate) gpus: u32,
        pub(crate) gpu: u32,
        /// Number of blocks that share a chunk.
        pub(crate) blocks_of_chunk: u32,
        pub(crate) unused: u32,
    }

    /// The rows of a side that have a heavy key.
    pub(crate) struct HeavyRows {
        pub(crate) count: u64,
        /// Sum of their payloads; it wraps.
        pub(crate) sum: u64,
    }

    /// Arguments of `sift`.
    pub(crate) struct Sifting {
        /// The rows of a run.
        pub(crate) rows: Rows,
        /// Heavy keys: a table with linear probing, at most half full.
        pub(crate) heavy_keys: DevicePointer<u64>,
        /// The rows of this side with the heavy key of each slot.
        pub(crate) heavy_rows: DevicePointerMut<HeavyRows>,
        pub(crate) filter: DevicePointerMut<u64>,
        /// Number of words of the filter; 0 if there is none.
        pub(crate) filter_words: u64,
        /// A bit for each row: 1 if it is divided.
        pub(crate) kept: DevicePointerMut<u32>,
        /// Number of rows that the filter dropped.
        pub(crate) filtered: DevicePointerMut<u64>,
        /// Number of slots of heavy keys, a power of two, less 1.
        pub(crate) heavy_mask: u32,
        /// 1 for the probe side.
        pub(crate) is_probe: u32,
    }

    /// Arguments of `write_run`.
    pub(crate) struct WritingRun {
        pub(crate) from: DevicePointer<u8>,
        pub(crate) to: DevicePointerMut<u8>,
        /// The last slice of the run.
        pub(crate) last: DevicePointer<Slice>,
        /// Bytes of a key and its payload.
        pub(crate) row_bytes: u64,
    }

    /// Arguments of `count_rows`, `place_slices` and `copy_rows`.
    pub(crate) struct Dividing {
        /// The rows of a run.
        pub(crate) rows: Rows,
        /// A bit for each row: 1 if it is divided. Null if all are.
        pub(crate) kept: DevicePointer<u32>,
        /// The slice of each partition.
        pub(crate) slices: DevicePointerMut<Slice>,
        /// Where the next row of each partition goes.
        pub(crate) next: DevicePointerMut<u32>,
        pub(crate) to: DevicePointerMut<u8>,
        /// Number of bits of the hash that tell the partition.
        pub(crate) bits: u32,
    }

    /// Arguments of `insert_partition`.
    pub(crate) struct InsertingPartition {
        pub(crate) rows: PartitionRows,
        pub(crate) index: HashIndexRef,
        pub(crate) outcome: DevicePointerMut<Outcome>,
    }

    /// Arguments of `probe_partition`.
    pub(crate) struct ProbingPartition {
        pub(crate) rows: PartitionRows,
        pub(crate) index: HashIndexRef,
        pub(crate) outcome: DevicePointer<Outcome>,
        pub(crate) totals: DevicePointerMut<JoinTotals>,
    }

    /// Arguments of `generate`.
    pub(crate) struct Generating {
        pub(crate) keys: DevicePointerMut<u8>,
        pub(crate) payloads: DevicePointerMut<u8>,
        /// Number of rows, and the first one.
        pub(crate) count: u64,
        pub(crate) first: u64,
        pub(crate) build_rows: u64,
        /// A row of the probe side has a match if its random number of 32 bits is below this.
        pub(crate) match_limit: u64,
        /// Bits of the largest key of the build side. A composite key is such a number in two parts: the lower half
        /// of these bits is its second number.
        pub(crate) key_bits: u32,
        /// 1 for the probe side.
        pub(crate) is_probe: u32,
    }
}

impl JoinTotals {
    /// Adds the matches of other rows.
    pub fn add(&mut self, other: JoinTotals) {
        self.count = self.count.wrapping_add(other.count);
        self.build_sum = self.build_sum.wrapping_add(other.build_sum);
        self.probe_sum = self.probe_sum.wrapping_add(other.probe_sum);
    }
}

/// Returns the type of a table in CUDA C++.
fn table(shape: &TableShape) -> &'static str {
    match shape.method() {
        TableMethod::Perfect { .. } => "Perfect",
        TableMethod::LinearProbing => "Linear",
        TableMethod::Bucketed => "Bucketed",
    }
}

/// Returns the name of a kernel for tables of this shape.
pub(crate) fn entry(kernel: &str, shape: &TableShape) -> String {
    format!("{kernel}<{}<{}>>", table(shape), shape.width().row_type())
}

/// Returns the name of a kernel for tables that are interleaved over several GPUs.
pub(crate) fn entry_of_interleaved(kernel: &str, width: Width) -> String {
    format!("{kernel}<Interleaved<{}>>", width.row_type())
}

/// Returns the name of a kernel for interleaved tables that works only on rows whose search begins in the GPU's own
/// memory.
pub(crate) fn entry_of_own(kernel: &str, width: Width) -> String {
    format!("{kernel}_own<{}>", width.row_type())
}

/// Returns the name of a kernel for columns of this width.
pub(crate) fn entry_of(kernel: &str, width: Width) -> String {
    format!("{kernel}<{}>", width.row_type())
}

/// Returns the specifications of all programs.
pub fn kernels() -> Vec<ProgramSpec> {
    vec![index_spec(), workload_spec(), partitions_spec()]
}

pub(crate) static INDEX: LazyLock<Program> = LazyLock::new(|| Program::new(index_spec()));
pub(crate) static PARTITIONS: LazyLock<Program> = LazyLock::new(|| Program::new(partitions_spec()));
pub(crate) static WORKLOAD: LazyLock<Program> = LazyLock::new(|| Program::new(workload_spec()));

fn index_spec() -> ProgramSpec {
    let linear = Width::ALL.map(|width| TableShape::linear_probing(width, 1));
    let single = Width::ALL.into_iter().filter(|width| width.is_single());
    let others = single.flat_map(|width| {
        [
            TableShape::perfect(width, 0..1),
            TableShape::bucketed(width, 1),
        ]
    });
    let shapes = linear.into_iter().chain(others);
    let entries = shapes.flat_map(|shape| ["insert", "probe"].map(|it| entry(it, &shape)));
    let interleaved = [Width::Four, Width::Eight].map(|width| {
        let of_all = ["insert", "probe"].map(|kernel| entry_of_interleaved(kernel, width));
        let of_own = ["insert", "probe"].map(|kernel| entry_of_own(kernel, width));
        of_all.into_iter().chain(of_own)
    });
    let entries = entries.chain(interleaved.into_iter().flatten());
    let entries = entries.chain(["empty_slots".to_owned()]);
    let headers = [
        ("bucketed.cuh", include_str!("bucketed.cuh")),
        ("linear.cuh", include_str!("linear.cuh")),
        ("own.cuh", include_str!("own.cuh")),
        ("perfect.cuh", include_str!("perfect.cuh")),
    ];
    let source = include_str!("index.cu");
    spec("index.cu", source, &headers, entries.collect())
}

fn partitions_spec() -> ProgramSpec {
    let entries = Width::ALL.map(|width| {
        let table = TableShape::linear_probing(width, 1);
        let divide = ["sift", "count_rows", "place_slices", "copy_rows"];
        let divide = divide.map(|it| entry_of(it, width));
        let join = ["insert_partition", "probe_partition"].map(|it| entry(it, &table));
        divide.into_iter().chain(join)
    });
    let headers = [
        ("linear.cuh", include_str!("linear.cuh")),
        ("sieve.cuh", include_str!("sieve.cuh")),
    ];
    let source = include_str!("partitions.cu");
    let entries = entries.into_iter().flatten();
    let entries = entries.chain(["write_run".to_owned()]);
    spec("partitions.cu", source, &headers, entries.collect())
}

fn workload_spec() -> ProgramSpec {
    let entries = Width::ALL.map(|width| entry_of("generate", width));
    let source = include_str!("workload.cu");
    spec("workload.cu", source, &[], entries.to_vec())
}

fn spec(
    name: &str,
    source: &'static str,
    headers: &[(&str, &str)],
    entries: Vec<String>,
) -> ProgramSpec {
    let header = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let shared = [
        device_header(),
        header("arguments.cuh", &arguments()),
        header("rows.cuh", include_str!("rows.cuh")),
    ];
    let headers = headers.iter().map(|(name, text)| header(name, text));
    ProgramSpec {
        name: format!("hash-index/{name}"),
        source: source.into(),
        headers: shared.into_iter().chain(headers).collect(),
        options: Vec::new(),
        entries,
    }
}

/// Returns the generated header: the arguments and the constants.
fn arguments() -> String {
    let small = [
        ("kThreads", THREADS),
        ("kRowsAhead", ROWS_AHEAD),
        ("kRowsHeld", ROWS_HELD),
        ("kThreadsOfTile", THREADS_OF_TILE),
        ("kTileBytesOfThread", TILE_BYTES_OF_THREAD),
        ("kSliceRows", SLICE_ROWS),
        ("kPartitionsMax", 1 << PARTITION_BITS_MAX),
        ("kChainTooLong", CHAIN_TOO_LONG),
        ("kKeyOutOfRange", KEY_OUT_OF_RANGE),
    ];
    let large = [
        ("kHashFirst", HASH_FIRST),
        ("kHashSecond", HASH_SECOND),
        ("kBucketBytes", BUCKET_BYTES),
    ];
    let small = small.map(|(name, value)| format!("constexpr u32 {name} = {value};\n"));
    let large = large.iter().chain(&CONSTANTS);
    let large = large.map(|(name, value)| format!("constexpr u64 {name} = {value}ull;\n"));
    [
        "#pragma once\n#include \"device.cuh\"\n".to_owned(),
        small.concat(),
        large.collect(),
        Inserting::header(),
        Probing::header(),
        Emptying::header(),
        Generating::header(),
        Sifting::header(),
        WritingRun::header(),
        Dividing::header(),
        InsertingPartition::header(),
        ProbingPartition::header(),
    ]
    .concat()
}
