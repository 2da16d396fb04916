//! What runs kernels over packed columns: a GPU, or in tests a compiler of C++.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::cuda::{DevicePointer, DevicePointerMut, DeviceType, Program};
use futures_util::future::BoxFuture;

use crate::arguments::{CONSTANTS_MAX, Chunk, Fragment, Part};
use crate::program::{Compiled, ROWS_OF_THREAD};
use crate::reason::Reason;

/// Alignment of what an image has.
const ALIGNMENT: usize = 256;

/// Memory of an engine that holds packed columns; freed when the last clone is dropped.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    /// Address of the first word for kernels.
    pub(crate) address: u64,
    /// What keeps the memory.
    pub(crate) held: Arc<dyn Any + Send + Sync>,
}

/// A kernel over chunks.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) program: Program,
    pub(crate) compiled: Arc<Compiled>,
    /// Number of rows of each chunk.
    pub(crate) chunks: Vec<u32>,
    /// The parts of each chunk, in the order of the kernel's columns.
    pub(crate) parts: Vec<Part>,
    /// Words of all tables.
    pub(crate) tables: Vec<u32>,
    /// For each chunk and table of the kernel, the index of its first word.
    pub(crate) table_offsets: Vec<u32>,
    /// Memory that the parts point to.
    pub(crate) _held: Vec<Memory>,
    /// Whether to wait for the compiler.
    pub(crate) waits: bool,
}

/// What a kernel returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ran {
    /// For each group and slot 128 bits, the lowest first.
    pub(crate) totals: Vec<u64>,
    /// Time of the kernel on the device.
    pub(crate) took: Duration,
}

/// What holds packed columns and runs kernels over them.
pub(crate) trait Engine: Debug + Send + Sync {
    /// Returns the name of the device.
    fn name(&self) -> String;

    /// Allocates free memory.
    ///
    /// # Errors
    /// If too little is free.
    fn allocate(&self, bytes: u64) -> Result<Memory, Reason>;

    /// Copies words to memory of their size.
    fn write(&self, words: Vec<u32>, to: &Memory) -> BoxFuture<'static, Result<(), Reason>>;

    /// Runs a kernel.
    fn run(&self, launch: Launch) -> BoxFuture<'static, Result<Ran, Reason>>;
}

impl Image {
    /// Returns the arguments for an image at this address.
    pub(crate) fn arguments_at(&self, address: u64) -> Fragment {
        let of = &self.arguments;
        Fragment {
            chunks: DevicePointer::new(address + of.chunks.address()),
            parts: DevicePointer::new(address + of.parts.address()),
            tables: DevicePointer::new(address + of.tables.address()),
            table_offsets: DevicePointer::new(address + of.table_offsets.address()),
            totals: DevicePointerMut::new(address + of.totals.address()),
            ..*of
        }
    }
}

/// The bytes of what a kernel reads besides columns, and where its totals are.
#[derive(Debug)]
pub(crate) struct Image {
    /// The chunks, parts, tables and their offsets.
    pub(crate) bytes: Vec<u8>,
    /// Index of the first byte of the totals, which are behind the bytes.
    pub(crate) totals: usize,
    /// Number of bytes with the totals.
    pub(crate) len: usize,
    /// The arguments for an image at address 0.
    pub(crate) arguments: Fragment,
}

impl Launch {
    /// Returns what a kernel with blocks of this many threads reads, for an image at address 0.
    pub(crate) fn image(&self, threads: u32) -> Image {
        let mut first_tile = 0;
        let mut chunks = Vec::with_capacity(self.chunks.len() + 1);
        for rows in &self.chunks {
            chunks.push(Chunk {
                first_tile,
                rows: *rows,
                padding: 0,
            });
            first_tile += u64::from(rows.div_ceil(threads * ROWS_OF_THREAD));
        }
        chunks.push(Chunk {
            first_tile,
            rows: 1,
            padding: 0,
        });
        let mut bytes = Vec::new();
        let mut place = |more: Vec<u8>| {
            let begin = bytes.len();
            bytes.extend(more);
            bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
            begin as u64
        };
        let mut constants = [0; 2 * CONSTANTS_MAX];
        let pairs = constants.as_chunks_mut::<2>().0;
        for (pair, number) in pairs.iter_mut().zip(&self.compiled.constants) {
            *pair = [*number as u64, (*number >> 64) as u64];
        }
        let arguments = Fragment {
            chunks: DevicePointer::new(place(DeviceType::bytes_of(&chunks))),
            parts: DevicePointer::new(place(DeviceType::bytes_of(&self.parts))),
            tables: DevicePointer::new(place(DeviceType::bytes_of(&self.tables))),
            table_offsets: DevicePointer::new(place(DeviceType::bytes_of(&self.table_offsets))),
            totals: DevicePointerMut::new(place(Vec::new())),
            tiles: first_tile,
            chunk_count: self.chunks.len() as u64,
            constants,
        };
        let totals = bytes.len();
        Image {
            totals,
            len: totals + self.compiled.groups * self.compiled.slots * 16,
            bytes,
            arguments,
        }
    }
}
