//! What runs kernels over packed columns: a GPU, or in tests a compiler of C++.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use datafusion::arrow::array::StringArray;
use forebay_device::cuda::{DevicePointer, DevicePointerMut, DeviceType, Program};
use forebay_movement::Tier;
use forebay_text::Program as TextProgram;
use futures_util::future::BoxFuture;

use crate::arguments::{CONSTANTS_MAX, Chunk, Fragment, Part};
use crate::column::{Bytes, Column};
use crate::fingerprint::SAME_FINGERPRINT;
use crate::program::ROWS_OF_THREAD;
use crate::reason::{Reason, Repeated};
use crate::selection::GROUPS_OF_THREAD;
use crate::slice::Slice;

/// The reason while a query that does not wait for its kernels runs on the CPU.
pub(crate) const COMPILING: &str = "its kernels are being compiled";
/// The reason for a sum with floats that are too small for it.
pub(crate) const FAR_APART: &str = "a sum of floats that are far apart";
/// The reason if joins repeat rows too often.
pub(crate) const MANY_MATCHES: &str = "joins with too many matches";
/// The reason of a launch that was cancelled. No query gets it: the one that waited for the launch is gone.
pub(crate) const CANCELLED: &str = "the query was cancelled";
/// What the host sets the flag to if a query is cancelled. Kernels set it to lesser numbers, and the greatest stays:
/// no launch whose kernels may have ended early returns results.
pub(crate) const FLAG_OF_CANCELLED: u32 = 8;
/// Bytes behind the flag in which kernels mark sources, as in `hash.cuh`: those whose rows have the same key, and those
/// whose tables have no room.
const SAME_KEYS: Range<usize> = 16..80;
const MANY_ROWS: Range<usize> = 80..144;
/// Maximum number of sources of a fragment with joins that kernels mark.
pub(crate) const SOURCES_MAX: usize = 8 * (SAME_KEYS.end - SAME_KEYS.start);
/// Alignment of what an image has.
const ALIGNMENT: usize = 256;

/// Memory of an engine that holds packed columns; freed when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// Address of the first word for kernels.
    pub(crate) address: u64,
    /// Index of the engine that has allocated it.
    pub(crate) device: usize,
    /// Memory of the device, pinned memory of the host, or a file, which has no address.
    pub(crate) tier: Tier,
    /// What keeps the memory.
    pub(crate) held: Arc<dyn Any + Send + Sync>,
}

impl Memory {
    /// Returns the memory from a word on.
    pub(crate) fn at_word(&self, index: usize) -> Memory {
        Memory {
            address: self.address + 4 * index as u64,
            ..self.clone()
        }
    }
}

/// A search of the texts of a column.
#[derive(Debug)]
pub(crate) struct TextSearch {
    /// What [`Engine::list_texts`] returned.
    pub(crate) texts: Memory,
    pub(crate) program: Arc<TextProgram>,
    /// Where each row gets a number of four bits, packed: 1 if its text matches, else 0.
    pub(crate) marks: Memory,
    /// The search is not begun after this is set.
    pub(crate) is_stopped: Arc<AtomicBool>,
}

/// A range of a file, in whole pages, that goes to memory of the device.
#[derive(Debug)]
pub(crate) struct FileRead {
    pub(crate) path: PathBuf,
    pub(crate) range: Range<u64>,
    /// Ranges of the file in it, in order, and the memory that each goes to.
    pub(crate) pieces: Vec<(Range<u64>, Memory)>,
}

/// What was read of files.
#[derive(Debug)]
pub(crate) struct FilesRead {
    /// The [checksum](forebay_movement::part_checksum) of each range as a part of its file, or why it was not read.
    pub(crate) sums: Vec<Result<u64, Reason>>,
    pub(crate) took: Duration,
    /// The storage path.
    pub(crate) path: &'static str,
}

/// The keys of a hash table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// Address of the first; 0 if the table is none.
    pub(crate) address: u64,
    /// Binary logarithm of the number of slots.
    pub(crate) bits: u32,
}

/// A kernel over the chunks of a source, or over the totals of groups.
#[derive(Debug)]
pub(crate) struct KernelLaunch {
    pub(crate) program: Program,
    /// Number of rows of each chunk of each file; 0 for those that are skipped.
    pub(crate) chunks: Vec<Vec<u32>>,
    /// Number of columns.
    pub(crate) columns: usize,
    /// For each file and each column of the kernel, the address of the parts of all chunks.
    pub(crate) parts: Vec<DevicePointer<Part>>,
    /// Bytes of the chunks in these columns.
    pub(crate) bytes: Bytes,
    /// Words of all tables over values.
    pub(crate) tables: Vec<u32>,
    /// For each file and table over values, the index of its first word.
    pub(crate) table_offsets: Vec<u32>,
    pub(crate) constants: Vec<i128>,
    /// Addresses of the words of its joins.
    pub(crate) words: Vec<u64>,
    /// Addresses of the words that it stores.
    pub(crate) own_words: Vec<u64>,
    /// Address of the bits of the elements that it has stored, of the number of rows of a list, or of the area that
    /// it writes divided rows to.
    pub(crate) seen: u64,
    /// Number of rows for which its own table has room, if several may have the same key. If it divides rows, the
    /// number of slices.
    pub(crate) own_rows: u32,
    /// The keys of its joins, and of its own table.
    pub(crate) keys: Vec<Keys>,
    pub(crate) own_keys: Keys,
    /// The slices of the tables of its joins that are there; all of a table that has none here. The slice of its own
    /// table, or of groups.
    pub(crate) slices: Vec<Slice>,
    pub(crate) own_slice: Slice,
    /// Memory that is 0 before the kernel runs.
    pub(crate) zeroed: Option<(Memory, u64)>,
    /// Whether the launch waits for its earlier kernels before this one, so that kernels of other queries may run
    /// between, and a cancelled query launches no more.
    pub(crate) may_stop: bool,
    /// Number of groups, and bytes of shared memory of a block for their totals. If it divides rows, the index of the
    /// first word of `tables` with their places, and bytes for the number of rows of each slice.
    pub(crate) groups: u32,
    pub(crate) shared_bytes: u32,
    /// Address of the totals, if they are not among the results.
    pub(crate) totals: Option<u64>,
    /// Whether the kernel reads the totals of groups, no rows.
    pub(crate) are_groups_read: bool,
    /// Largest absolute value that a row adds to a total of 64 bits.
    pub(crate) addend_max: u128,
    /// Maximum number of rows that joins add in a block to those that it reads.
    pub(crate) matches_max: u64,
    /// Index of the first byte of its results among those of all kernels.
    pub(crate) results_at: usize,
}

/// Kernels in the order in which they run.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) kernels: Vec<KernelLaunch>,
    /// Memory that is 0 before all kernels run.
    pub(crate) zeroed: Option<(Memory, u64)>,
    /// Bytes of the results of all kernels.
    pub(crate) results_bytes: usize,
    /// The tables of joins, totals, and the columns that kernels read.
    pub(crate) memory: Vec<Memory>,
    pub(crate) held: Vec<Arc<Column>>,
    /// Kernels of later launches, which are compiled at the same time.
    pub(crate) later: Vec<Program>,
    /// Whether to wait for the compiler.
    pub(crate) waits: bool,
}

/// What kernels returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    bytes: Vec<u8>,
    /// Time of the kernels on the device.
    pub(crate) took: Duration,
    /// Time that they waited for the compiler.
    pub(crate) compiled: Duration,
}

impl Ran {
    /// Returns totals, marks, counts of groups, or groups.
    pub(crate) fn results(&self) -> &[u8] {
        &self.bytes[ALIGNMENT..]
    }

    /// Changes the results, as numbers of 64 bits.
    pub(crate) fn change_results(&mut self, change: impl FnOnce(&mut [u64])) {
        let (bytes, _) = self.bytes[ALIGNMENT..].as_chunks_mut::<8>();
        let mut words: Vec<u64> = bytes.iter().map(|it| u64::from_le_bytes(*it)).collect();
        change(&mut words);
        for (bytes, word) in bytes.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
    }

    /// Returns the same without the first bytes of the results.
    pub(crate) fn without_first(mut self, bytes: usize) -> Ran {
        self.bytes.drain(ALIGNMENT..ALIGNMENT + bytes);
        self
    }

    /// Returns the same with other results.
    pub(crate) fn with_results(mut self, words: &[u32]) -> Ran {
        self.bytes.truncate(ALIGNMENT);
        self.bytes
            .extend(words.iter().flat_map(|it| it.to_le_bytes()));
        self
    }

    /// Returns the number of matches of joins that repeat rows, without the last ones of each thread.
    pub(crate) fn matches(&self) -> u64 {
        let counter = self.bytes[8..].first_chunk();
        counter.map_or(0, |it| u64::from_le_bytes(*it))
    }

    /// Returns whether a hash table of groups or a list had no room for all keys or rows, so that the results are
    /// incomplete.
    pub(crate) fn is_full(&self) -> bool {
        self.bytes[0] != 0
    }
}

/// A device that holds packed columns and runs kernels over them. Its kernels read the memory of the engines beside it.
pub(crate) trait Engine: Debug + Send + Sync {
    /// Returns the name of the device.
    fn name(&self) -> String;

    /// Returns whether the device has failed for good.
    fn is_lost(&self) -> bool;

    /// Returns the bytes of memory that columns, tables of joins and totals may take.
    fn max_bytes(&self) -> u64;

    /// Allocates free memory, or memory that other tenants give back as it is of SQL's share. Their callbacks run on
    /// this thread: the caller must not hold the lock of the columns that are known.
    ///
    /// # Errors
    /// If that is too little.
    fn allocate(&self, bytes: u64) -> Result<Memory, Reason>;

    /// Returns how many bytes may be allocated.
    fn free_bytes(&self) -> u64;

    /// Allocates memory of the host that kernels read, and copies words to it.
    ///
    /// # Errors
    /// If too little is free.
    fn write_host(&self, words: Vec<u32>) -> BoxFuture<'static, Result<Memory, Reason>>;

    /// Allocates memory of the host that kernels read, and copies the first bytes of memory of the device to it.
    ///
    /// # Errors
    /// If too little is free, or the device fails.
    fn copy_to_host(&self, from: &Memory, bytes: u64)
    -> BoxFuture<'static, Result<Memory, Reason>>;

    /// Returns the words of this many bytes of memory.
    fn read(&self, memory: &Memory, bytes: u64) -> BoxFuture<'static, Result<Vec<u32>, Reason>>;

    /// Reads files into memory of the device.
    ///
    /// # Errors
    /// If the device fails, or it has no room for what reads need.
    fn read_files(&self, files: Vec<FileRead>) -> BoxFuture<'static, Result<FilesRead, Reason>>;

    /// Copies words to memory of their size.
    fn write(&self, words: Vec<u32>, to: &Memory) -> BoxFuture<'static, Result<(), Reason>>;

    /// Returns the number of groups from which on kernels select those that the plan keeps. To return fewer takes less
    /// time than another launch.
    fn selects_from(&self) -> usize;

    /// Brings the texts of a chunk to the engine, to be searched. Returns their bytes there, too.
    ///
    /// # Errors
    /// If too little memory is free.
    fn write_texts(&self, texts: StringArray) -> BoxFuture<'static, Result<(Memory, u64), Reason>>;

    /// Returns the list of the texts of all chunks of a column, in order. The rows of each are numbered as those of
    /// whole tiles.
    ///
    /// # Errors
    /// If they are too many.
    fn list_texts(&self, chunks: &[Memory]) -> Result<Memory, Reason>;

    /// Searches the texts of a column. Returns the time on the device.
    fn search(&self, search: TextSearch) -> BoxFuture<'static, Result<Duration, Reason>>;

    /// Runs the kernels of a fragment.
    fn run(&self, launch: Launch) -> BoxFuture<'static, Result<Ran, Reason>>;
}

/// The memory of a launch: what kernels read besides columns, then results.
#[derive(Debug)]
pub(crate) struct Image {
    /// The chunks, parts, tables and their offsets of each kernel, then the flag.
    pub(crate) bytes: Vec<u8>,
    /// Index of the first byte of the flag.
    pub(crate) flag: usize,
    /// Index of the first byte of the results, which are 0 before the kernels run: totals, marks or groups.
    pub(crate) results: usize,
    /// Number of bytes of all.
    pub(crate) len: usize,
    /// The arguments of each kernel for an image at address 0.
    arguments: Vec<Fragment>,
}

impl Image {
    /// Returns the number of tiles of a kernel.
    pub(crate) fn tiles(&self, kernel: usize) -> u64 {
        self.arguments[kernel].tiles
    }

    /// Returns the arguments of a kernel for an image at this address.
    pub(crate) fn arguments_at(&self, kernel: usize, address: u64) -> Fragment {
        let of = &self.arguments[kernel];
        Fragment {
            chunks: DevicePointer::new(address + of.chunks.address()),
            parts: DevicePointer::new(address + of.parts.address()),
            tables: DevicePointer::new(address + of.tables.address()),
            table_offsets: DevicePointer::new(address + of.table_offsets.address()),
            totals: match of.totals.address() {
                0 => DevicePointerMut::new(address + of.results.address()),
                totals => DevicePointerMut::new(totals),
            },
            results: DevicePointerMut::new(address + of.results.address()),
            flag: DevicePointerMut::new(address + of.flag.address()),
            ..*of
        }
    }

    /// Returns what kernels returned, from the bytes of the results, with the times of the kernels and of the compiler.
    ///
    /// # Errors
    /// If rows of a join were repeated or had no room, floats were too small for a sum, fingerprints collided, or the
    /// query was cancelled.
    pub(crate) fn ran(
        bytes: Vec<u8>,
        (took, compiled): (Duration, Duration),
    ) -> Result<Ran, Reason> {
        let flag = bytes.first_chunk().map_or(0, |it| u32::from_le_bytes(*it));
        match flag {
            2 => Err(Reason::of_data(MANY_MATCHES)),
            3 => Err(Reason::of_data(FAR_APART)),
            4 => Err(Reason::of_data(
                "keys of a join that collide in a hash table",
            )),
            5 | 6 => Err(Reason::of_joins(Repeated {
                same_keys: marked(&bytes[SAME_KEYS]),
                many_rows: marked(&bytes[MANY_ROWS]),
            })),
            7 => Err(Reason::of_data(SAME_FINGERPRINT)),
            FLAG_OF_CANCELLED => Err(Reason::new(CANCELLED)),
            _ => Ok(Ran {
                bytes,
                took,
                compiled,
            }),
        }
    }
}

/// Returns the indexes of the bits that are set.
fn marked(bytes: &[u8]) -> Vec<usize> {
    let is_set = |index: &usize| bytes[index / 8] >> (index % 8) & 1 == 1;
    (0..8 * bytes.len()).filter(is_set).collect()
}

/// Appends bytes to others. Returns the index of the first.
fn place(bytes: &mut Vec<u8>, more: Vec<u8>) -> u64 {
    let begin = bytes.len();
    bytes.extend(more);
    bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
    begin as u64
}

/// Returns addresses with zeros behind them.
fn addresses<const COUNT: usize>(of: &[u64]) -> [u64; COUNT] {
    std::array::from_fn(|index| of.get(index).copied().unwrap_or(0))
}

impl KernelLaunch {
    /// Returns a kernel that reads and writes nothing.
    pub(crate) fn new(program: Program, constants: Vec<i128>) -> KernelLaunch {
        KernelLaunch {
            program,
            chunks: Vec::new(),
            columns: 0,
            parts: Vec::new(),
            bytes: Bytes::default(),
            tables: Vec::new(),
            table_offsets: Vec::new(),
            constants,
            words: Vec::new(),
            own_words: Vec::new(),
            seen: 0,
            own_rows: 0,
            keys: Vec::new(),
            own_keys: Keys::default(),
            slices: Vec::new(),
            own_slice: Slice::default(),
            zeroed: None,
            may_stop: false,
            groups: 0,
            shared_bytes: 0,
            totals: None,
            are_groups_read: false,
            addend_max: 0,
            matches_max: 0,
            results_at: 0,
        }
    }

    /// Checks that no total of a block leaves 64 bits.
    ///
    /// # Errors
    /// If one may.
    pub(crate) fn check_sums(&self, rows_of_block: u64) -> Result<(), Reason> {
        let rows = rows_of_block.saturating_add(self.matches_max);
        let largest = self.addend_max.checked_mul(rows.into());
        match largest.is_some_and(|it| it < 1 << 63) {
            true => Ok(()),
            false => Err(Reason::new("a sum may need more than 64 bits")),
        }
    }

    /// Places what the kernel reads besides columns. Returns the arguments without areas and results.
    fn placed(&self, threads: u32, bytes: &mut Vec<u8>) -> Fragment {
        let mut chunk = Chunk {
            first_tile: 0,
            rows: 0,
            file: 0,
            index: 0,
            padding: 0,
        };
        let mut chunks = Vec::new();
        for (file, of_file) in self.chunks.iter().enumerate() {
            for (index, rows) in of_file.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                (chunk.file, chunk.index, chunk.rows) = (file as u32, index as u32, *rows);
                chunks.push(chunk);
                chunk.first_tile += u64::from(rows.div_ceil(threads * ROWS_OF_THREAD));
            }
        }
        let chunk_count = chunks.len() as u32;
        let tiles = match self.are_groups_read {
            true => self.groups.div_ceil(threads * GROUPS_OF_THREAD).into(),
            false => chunk.first_tile,
        };
        // Tells where the tiles end.
        chunks.push(chunk);
        let mut constants = [0; 2 * CONSTANTS_MAX];
        let pairs = constants.as_chunks_mut::<2>().0;
        for (pair, number) in pairs.iter_mut().zip(&self.constants) {
            *pair = [*number as u64, (*number >> 64) as u64];
        }
        let keys: Vec<u64> = self.keys.iter().map(|it| it.address).collect();
        let slice = |join: usize| self.slices.get(join).copied().unwrap_or_default();
        let mut place = |more| place(bytes, more);
        Fragment {
            chunks: DevicePointer::new(place(DeviceType::bytes_of(&chunks))),
            parts: DevicePointer::new(place(DeviceType::bytes_of(&self.parts))),
            tables: DevicePointer::new(place(DeviceType::bytes_of(&self.tables))),
            table_offsets: DevicePointer::new(place(DeviceType::bytes_of(&self.table_offsets))),
            totals: DevicePointerMut::new(self.totals.unwrap_or(0)),
            results: DevicePointerMut::new(0),
            words: addresses(&self.words).map(DevicePointer::new),
            own_words: addresses(&self.own_words).map(DevicePointerMut::new),
            seen: DevicePointerMut::new(self.seen),
            flag: DevicePointerMut::new(0),
            keys: addresses(&keys).map(DevicePointer::new),
            own_keys: DevicePointerMut::new(self.own_keys.address),
            key_bits: std::array::from_fn(|join| self.keys.get(join).map_or(0, |it| it.bits)),
            own_key_bits: self.own_keys.bits,
            own_rows: self.own_rows,
            slice_firsts: std::array::from_fn(|join| slice(join).first),
            slice_counts: std::array::from_fn(|join| slice(join).count),
            own_first: self.own_slice.first,
            own_count: self.own_slice.count,
            tiles,
            chunk_count,
            groups: self.groups,
            constants,
        }
    }
}

impl Launch {
    /// Returns a launch of no kernels.
    pub(crate) fn new(waits: bool) -> Launch {
        Launch {
            kernels: Vec::new(),
            zeroed: None,
            results_bytes: 0,
            memory: Vec::new(),
            held: Vec::new(),
            later: Vec::new(),
            waits,
        }
    }

    /// Runs the kernels of another launch, which writes nothing but results, behind those of this one. Returns the
    /// index of the first byte of its results.
    pub(crate) fn append(&mut self, other: Launch) -> usize {
        let first = self.results_bytes.next_multiple_of(ALIGNMENT);
        self.kernels
            .extend(other.kernels.into_iter().map(|kernel| KernelLaunch {
                results_at: first + kernel.results_at,
                ..kernel
            }));
        self.results_bytes = first + other.results_bytes;
        self.memory.extend(other.memory);
        self.held.extend(other.held);
        first
    }

    /// Returns the memory of the launch, for kernels with blocks of this many threads.
    pub(crate) fn image(&self, threads: u32) -> Image {
        let mut bytes = Vec::new();
        let kernels = self.kernels.iter();
        let mut arguments: Vec<_> = kernels.map(|it| it.placed(threads, &mut bytes)).collect();
        let flag = bytes.len();
        let results = flag + ALIGNMENT;
        bytes.resize(results, 0);
        for (arguments, kernel) in arguments.iter_mut().zip(&self.kernels) {
            let first = results + kernel.results_at;
            arguments.flag = DevicePointerMut::new(flag as u64);
            arguments.results = DevicePointerMut::new(first as u64);
        }
        Image {
            bytes,
            flag,
            results,
            len: results + self.results_bytes,
            arguments,
        }
    }
}
