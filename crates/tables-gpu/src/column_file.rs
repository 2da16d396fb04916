//! A column in a file of its own: the packed chunks as kernels read them, then a footer that tells where each is.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::Path;

use forebay_device::PAGE_BYTES;
use forebay_movement::part_checksum;
use forebay_movement::storage::{AlignedBytes, DataFile, PageCache};
use serde::{Deserialize, Serialize};
use tempfile::{Builder, NamedTempFile};

use crate::column::Chunk;
use crate::engine::Memory;
use crate::floats::{BITS, EXPONENTS};
use crate::gpu::words as words_of_bytes;
use crate::packed::{CHUNK_ROWS, WIDTH_UNIT, words_of};
use crate::reason::Reason;
use crate::texts::Texts;

/// The last bytes of a file. Another layout gets another text.
const MAGIC: [u8; 8] = *b"FBCOLUM2";
/// Bytes behind the footer: its length, its CRC-32C, and [`MAGIC`].
const TAIL_BYTES: u64 = 20;
/// Maximum bytes of a footer.
const FOOTER_BYTES_MAX: u64 = 256 << 20;
/// Alignment in bytes of a chunk.
const ALIGNMENT: usize = PAGE_BYTES;
/// Begin of the name of a file that is being written.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// Where a chunk is in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    rows: u32,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    /// Index of the first word with the bits that tell which rows have a value.
    valid: Option<usize>,
    range: Option<(i64, i64)>,
    reference: i64,
    exponent: u32,
    width: u32,
    pub(crate) stripe: u32,
    /// The checksum of its whole pages as a part of the file.
    pub(crate) sum: u64,
}

impl Place {
    pub(crate) fn range(&self) -> Range<u64> {
        self.offset..self.offset + self.bytes
    }

    /// Returns the range of the whole pages.
    pub(crate) fn pages(&self) -> Range<u64> {
        self.offset..(self.offset + self.bytes).next_multiple_of(PAGE_BYTES as u64)
    }

    /// Returns the chunk when its words are in memory.
    pub(crate) fn chunk(&self, memory: Memory) -> Chunk {
        Chunk {
            rows: self.rows,
            valid: self.valid.map(|first| memory.at_word(first)),
            range: self.range,
            reference: self.reference,
            exponent: self.exponent,
            width: self.width,
            bytes: self.bytes,
            stripe: self.stripe,
            memory,
            texts: None,
        }
    }

    /// Returns whether kernels can read the chunk, behind those that end here.
    fn is_sound(&self, begin: u64) -> bool {
        let (words, bits) = words_of(self.rows as usize, self.width);
        let all = match self.valid {
            Some(first) if first == words => words + bits,
            Some(_) => return false,
            None => words,
        };
        let is_width = self.width <= u64::BITS && self.width.is_multiple_of(WIDTH_UNIT);
        let is_exponent = self.exponent < EXPONENTS || self.exponent == BITS;
        let is_whole = self.offset == begin && self.bytes == 4 * all as u64;
        is_whole && is_width && is_exponent && self.rows as usize <= CHUNK_ROWS
    }
}

/// What a file tells of its column.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Footer {
    /// Which column of which file it is.
    key: String,
    pub(crate) chunks: Vec<Place>,
    /// The texts of a dictionary, in the order of their numbers.
    texts: Vec<String>,
    /// Bytes of all chunks.
    pub(crate) data_bytes: u64,
}

/// Why a file is not read. The column is then read from the table.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is damaged")]
    Damaged,
    #[error("{0}")]
    Unread(Reason),
}

impl Footer {
    /// Reads the footer of the file of a column.
    ///
    /// # Errors
    /// If the file cannot be read, is damaged, or is of another column.
    pub(crate) fn read(path: &Path, key: &str) -> Result<Footer, Unusable> {
        let mut file = File::open(path)?;
        let bytes = file.metadata()?.len();
        let tail_at = bytes.checked_sub(TAIL_BYTES).ok_or(Unusable::Damaged)?;
        let mut tail = [0; TAIL_BYTES as usize];
        file.seek(SeekFrom::Start(tail_at))?;
        file.read_exact(&mut tail)?;
        let (length, rest) = tail.split_first_chunk::<8>().ok_or(Unusable::Damaged)?;
        let (crc, magic) = rest.split_first_chunk::<4>().ok_or(Unusable::Damaged)?;
        let length = u64::from_le_bytes(*length);
        let footer_at = tail_at.checked_sub(length).ok_or(Unusable::Damaged)?;
        if magic != MAGIC || length > FOOTER_BYTES_MAX {
            return Err(Unusable::Damaged);
        }
        let mut text = vec![0; length as usize];
        file.seek(SeekFrom::Start(footer_at))?;
        file.read_exact(&mut text)?;
        if crc32c::crc32c(&text) != u32::from_le_bytes(*crc) {
            return Err(Unusable::Damaged);
        }
        let footer: Footer = serde_json::from_slice(&text).map_err(|_| Unusable::Damaged)?;
        let mut end = 0;
        let are_sound = footer.chunks.iter().all(|chunk| {
            let is_sound = chunk.is_sound(end);
            end = chunk.pages().end;
            is_sound
        });
        // Texts are looked up by their numbers.
        let count = footer.texts.len() as i64;
        let is_text = |(min, max): (i64, i64)| min >= 0 && max < count;
        let ranges = || footer.chunks.iter().filter_map(|chunk| chunk.range);
        let are_sound = are_sound && (count == 0 || ranges().all(is_text));
        let is_whole = footer.data_bytes == end && footer_at == end;
        match footer.key == key && are_sound && is_whole {
            true => Ok(footer),
            false => Err(Unusable::Damaged),
        }
    }

    /// Returns the texts of the dictionary.
    pub(crate) fn texts(&mut self) -> Texts {
        Texts::of_all(std::mem::take(&mut self.texts).into_iter())
    }
}

/// Reads a chunk of a file into memory of the host, past the page cache.
///
/// # Errors
/// If the file cannot be read, or is damaged.
pub(crate) fn words(path: &Path, chunk: &Place) -> Result<Vec<u32>, Unusable> {
    let file = DataFile::open(path, PageCache::Bypass).map_err(io::Error::other)?;
    let pages = chunk.pages();
    let mut bytes = AlignedBytes::zeroed((pages.end - pages.start) as usize);
    let read = file.read_exact_at(pages.start, &mut bytes);
    read.map_err(io::Error::other)?;
    match part_checksum(&bytes, pages.start) == chunk.sum {
        true => Ok(words_of_bytes(&bytes[..chunk.bytes as usize])),
        false => Err(Unusable::Damaged),
    }
}

/// A file that is being written. It gets its name when it is finished, and is deleted if it is not.
#[derive(Debug)]
pub(crate) struct Writer {
    file: NamedTempFile,
    chunks: Vec<Place>,
    bytes: u64,
}

impl Writer {
    /// Begins a file in a folder.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(crate) fn new(folder: &Path) -> io::Result<Writer> {
        Ok(Writer {
            file: Builder::new().prefix(UNFINISHED).tempfile_in(folder)?,
            chunks: Vec::new(),
            bytes: 0,
        })
    }

    /// Appends the words of a chunk.
    ///
    /// # Errors
    /// If the disk is full, or fails.
    pub(crate) fn push(&mut self, chunk: &Chunk, words: &[u32]) -> io::Result<()> {
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        self.file.write_all(&bytes)?;
        self.chunks.push(Place {
            rows: chunk.rows,
            offset: self.bytes,
            bytes: 4 * words.len() as u64,
            valid: chunk.first_valid(),
            range: chunk.range,
            reference: chunk.reference,
            exponent: chunk.exponent,
            width: chunk.width,
            stripe: chunk.stripe,
            sum: part_checksum(&bytes, self.bytes),
        });
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes the footer, waits until all is on the disk, and gives the file its name. Returns its bytes and its
    /// chunks.
    ///
    /// # Errors
    /// If the disk is full, or fails.
    pub(crate) fn finish(
        mut self,
        key: String,
        texts: &Texts,
        path: &Path,
    ) -> io::Result<(u64, Vec<Place>)> {
        let footer = Footer {
            key,
            chunks: self.chunks,
            texts: texts.all().map(str::to_owned).collect(),
            data_bytes: self.bytes,
        };
        let mut text = serde_json::to_vec(&footer)?;
        let (length, crc) = (text.len() as u64, crc32c::crc32c(&text));
        text.extend(length.to_le_bytes());
        text.extend(crc.to_le_bytes());
        text.extend(MAGIC);
        self.file.write_all(&text)?;
        self.file.as_file().sync_all()?;
        self.file.persist(path)?;
        // It is read past the page cache, where queries have better use for the memory.
        if let Ok(file) = DataFile::open(path, PageCache::Use) {
            let _ = file.evict();
        }
        Ok((self.bytes + text.len() as u64, footer.chunks))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::array::{ArrayRef, Int64Array};

    use super::*;
    use crate::packed::{Packer, Packing};
    use crate::texts::Dictionary;

    #[test]
    fn chunks_behind_four_gib_are_read() {
        let folder = tempfile::tempdir().expect("room");
        let mut writer = Writer::new(folder.path()).expect("room");
        // Nothing is in the file of the chunks before.
        let bytes = 4 * words_of(CHUNK_ROWS, u64::BITS).0 as u64;
        writer.chunks = (0..(1 << 32) / bytes)
            .map(|index| Place {
                rows: CHUNK_ROWS as u32,
                offset: index * bytes,
                bytes,
                valid: None,
                range: None,
                reference: 0,
                exponent: 0,
                width: u64::BITS,
                stripe: 0,
                sum: 0,
            })
            .collect();
        writer.bytes = 1 << 32;
        let end = SeekFrom::Start(writer.bytes);
        writer.file.seek(end).expect("a file with a hole");
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(7..5000));
        let mut written = Vec::new();
        for _ in 0..2 {
            let mut packer = Packer::default();
            let pushed = packer.push(&numbers, &Dictionary::default());
            pushed.expect("numbers");
            let packed = packer.pack(&Packing::default());
            written.clone_from(&packed.words);
            let chunk = Chunk::unplaced(packed, 0);
            writer.push(&chunk, &written).expect("room");
        }
        let path = folder.path().join("large.column");
        let finished = writer.finish("key".to_owned(), &Texts::default(), &path);
        finished.expect("room");
        let footer = Footer::read(&path, "key").expect("a footer");
        let last = footer.chunks.last().expect("chunks");
        assert!(last.offset > 1 << 32);
        assert_eq!(words(&path, last).expect("a chunk"), written);
    }
}
