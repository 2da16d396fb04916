//! A column of a file in memory of an engine.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::array::{Array, StringArray};
use forebay_device::cuda::DevicePointer;
use forebay_movement::Tier;

use crate::arguments::Part;
use crate::engine::Memory;
use crate::from_disk::OnDisk;
use crate::packed::Packed;
use crate::texts::Texts;

/// Rows of a column in memory of the engine.
#[derive(Debug, Clone)]
pub(crate) struct Chunk {
    pub(crate) rows: u32,
    pub(crate) memory: Memory,
    /// Where the bits are that tell which rows have a value; `None` if all have one.
    pub(crate) valid: Option<Memory>,
    /// Smallest and largest number; `None` if all are NULL. Of floats, the integers that order as they do.
    pub(crate) range: Option<(i64, i64)>,
    /// What is added to a packed number.
    pub(crate) reference: i64,
    /// As [`Packed::exponent`].
    pub(crate) exponent: u32,
    pub(crate) width: u32,
    pub(crate) bytes: u64,
    /// The chunks with the same stripe are on the same device, if it has room.
    pub(crate) stripe: u32,
    /// In host memory, the texts of the rows, if the numbers are those of the rows in the file.
    pub(crate) texts: Option<StringArray>,
}

/// A column of a file in memory of the engine.
#[derive(Debug, Default)]
pub(crate) struct Column {
    pub(crate) chunks: Vec<Chunk>,
    /// Where each chunk is, for the kernels of each device; of texts, the list of those of each device.
    pub(crate) parts: Vec<Option<Memory>>,
    pub(crate) range: Option<(i64, i64)>,
    /// Bits of a number, if all chunks have the same.
    pub(crate) width: Option<u32>,
    /// The smallest and the largest exponent of floats.
    pub(crate) exponents: (u32, u32),
    pub(crate) has_nulls: bool,
    pub(crate) texts: Arc<Texts>,
    /// Bytes in memory of the engine, in memory of the host that its kernels read, and on the disk.
    pub(crate) bytes: Bytes,
    /// The bytes in memory of each device.
    pub(crate) on_devices: Vec<u64>,
    /// Whether some of its rows are in a column file alone, also if they take no bytes there.
    pub(crate) is_on_disk: bool,
}

/// Bytes by the place where they are.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Bytes {
    pub(crate) device: u64,
    pub(crate) host: u64,
    /// In a column file alone.
    pub(crate) disk: u64,
}

impl Bytes {
    pub(crate) fn of<'a>(chunks: impl IntoIterator<Item = &'a Chunk>) -> Bytes {
        let mut all = Bytes::default();
        for chunk in chunks.into_iter().filter(|chunk| chunk.rows > 0) {
            match chunk.memory.tier {
                Tier::File => all.disk += chunk.bytes,
                Tier::Pinned => all.host += chunk.bytes,
                _ => all.device += chunk.bytes,
            }
        }
        all
    }
}

impl Bytes {
    /// Returns the bytes in all places.
    pub(crate) fn all(self) -> u64 {
        self.device + self.host + self.disk
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        self.device += other.device;
        self.host += other.host;
        self.disk += other.disk;
    }
}

impl Column {
    /// Returns the address of the parts of all chunks for kernels of a device.
    pub(crate) fn parts(&self, device: usize) -> DevicePointer<Part> {
        let parts = self.parts.get(device).and_then(Option::as_ref);
        DevicePointer::new(parts.map_or(0, |it| it.address))
    }

    /// Returns the bytes in memory of a device.
    pub(crate) fn bytes_on(&self, device: usize) -> u64 {
        self.on_devices.get(device).copied().unwrap_or(0)
    }

    /// Returns whether the column files of its chunks, if it has such, can be read.
    pub(crate) fn is_usable(&self) -> bool {
        let files = self
            .chunks
            .iter()
            .filter_map(|chunk| OnDisk::of(&chunk.memory));
        files
            .take(1)
            .all(|it| !it.file.is_unusable.load(Ordering::Relaxed))
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.rows)).sum()
    }

    /// Returns whether the numbers are those of the rows in the file.
    pub(crate) fn has_texts_of_rows(&self) -> bool {
        self.chunks.iter().any(|chunk| chunk.texts.is_some())
    }

    /// Returns the bytes of the longest text of its rows.
    pub(crate) fn longest_text(&self) -> usize {
        let texts = self.chunks.iter().filter_map(|chunk| chunk.texts.as_ref());
        let lengths = texts.flat_map(|texts| texts.offsets().lengths());
        lengths.max().unwrap_or(0)
    }

    /// Returns the bytes of its texts in host memory.
    pub(crate) fn text_bytes(&self) -> usize {
        self.texts.host_bytes() + self.bytes_of_rows()
    }

    /// Returns the bytes of the texts that queries need.
    pub(crate) fn texts_needed(&self) -> usize {
        self.texts.own_bytes() + self.bytes_of_rows()
    }

    fn bytes_of_rows(&self) -> usize {
        let texts = self.chunks.iter().filter_map(|chunk| chunk.texts.as_ref());
        texts.map(Array::get_array_memory_size).sum()
    }

    pub(crate) fn new(chunks: Vec<Chunk>, texts: Arc<Texts>) -> Column {
        let exponents = || chunks.iter().map(|chunk| chunk.exponent);
        Column {
            range: chunks
                .iter()
                .fold(None, |range, it| joined(range, it.range)),
            width: common(chunks.iter().map(|chunk| chunk.width)),
            exponents: (
                exponents().min().unwrap_or(0),
                exponents().max().unwrap_or(0),
            ),
            has_nulls: chunks.iter().any(Chunk::has_nulls),
            bytes: Bytes::of(&chunks),
            on_devices: on_devices(&chunks),
            is_on_disk: chunks.iter().any(Chunk::is_on_disk),
            chunks,
            parts: Vec::new(),
            texts,
        }
    }
}

/// Returns the bytes of chunks in memory of each device.
fn on_devices(chunks: &[Chunk]) -> Vec<u64> {
    let mut bytes = Vec::new();
    for chunk in chunks.iter().filter(|it| it.memory.tier == Tier::Device) {
        let device = chunk.memory.device;
        bytes.resize(bytes.len().max(device + 1), 0);
        bytes[device] += chunk.bytes;
    }
    bytes
}

/// Returns what all are, if they are the same.
fn common(mut all: impl Iterator<Item = u32>) -> Option<u32> {
    let first = all.next();
    first.filter(|first| all.all(|other| other == *first))
}

/// Returns the range of two ranges.
pub(crate) fn joined(one: Option<(i64, i64)>, other: Option<(i64, i64)>) -> Option<(i64, i64)> {
    match (one, other) {
        (Some((min, max)), Some((low, high))) => Some((min.min(low), max.max(high))),
        (one, other) => one.or(other),
    }
}

impl Chunk {
    pub(crate) fn has_nulls(&self) -> bool {
        self.valid.is_some()
    }

    /// Returns whether it has rows that are in a column file alone.
    pub(crate) fn is_on_disk(&self) -> bool {
        self.rows > 0 && self.memory.tier == Tier::File
    }

    /// Returns the chunk of packed rows in memory.
    pub(crate) fn of(packed: Packed, stripe: u32, memory: Memory) -> Chunk {
        let bytes = packed.words.len() as u64 * 4;
        Chunk {
            stripe,
            rows: packed.rows as u32,
            valid: packed.valid.map(|first| memory.at_word(first)),
            range: packed.range,
            reference: packed.reference,
            exponent: packed.exponent,
            width: packed.width,
            bytes,
            memory,
            texts: packed.texts,
        }
    }

    /// Returns the chunk of packed rows that are in no memory that kernels read: a `Vec` holds the words.
    pub(crate) fn unplaced(mut packed: Packed, stripe: u32) -> Chunk {
        let words = std::mem::take(&mut packed.words);
        let bytes = 4 * words.len() as u64;
        let memory = Memory {
            address: 0,
            device: 0,
            tier: Tier::Pageable,
            held: Arc::new(words),
        };
        Chunk {
            bytes,
            ..Chunk::of(packed, stripe, memory)
        }
    }

    /// Returns the chunk of these rows in memory of a device.
    pub(crate) fn at(
        memory: Memory,
        rows: u32,
        valid: Option<Memory>,
        (range, width): ((i64, i64), u32),
    ) -> Chunk {
        Chunk {
            rows,
            stripe: 0,
            bytes: u64::from(rows) * u64::from(width) / 8,
            memory,
            valid,
            range: Some(range),
            reference: range.0,
            exponent: 0,
            width,
            texts: None,
        }
    }

    /// Returns the index of the first word with the bits that tell which rows have a value.
    pub(crate) fn first_valid(&self) -> Option<usize> {
        let valid = self.valid.as_ref()?;
        Some((valid.address - self.memory.address) as usize / 4)
    }

    /// Returns the chunk after all its words were copied to other memory.
    pub(crate) fn moved(&self, memory: Memory) -> Chunk {
        Chunk {
            valid: self.first_valid().map(|first| memory.at_word(first)),
            memory,
            ..self.clone()
        }
    }

    /// Returns the chunk as kernels see it.
    pub(crate) fn part(&self) -> Part {
        Part {
            words: DevicePointer::new(self.memory.address),
            valid: DevicePointer::new(self.valid.as_ref().map_or(0, |it| it.address)),
            reference: self.reference,
            width: self.width,
            exponent: self.exponent,
        }
    }
}
