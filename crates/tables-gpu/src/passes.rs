//! Rows that kernels read pass by pass, since their columns have no room in memory and are in column files.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::column::{Chunk, Column};
use crate::columns::{Columns, Resident};
use crate::from_disk::{Chunks, FromDisk, OnDisk};
use crate::giving_way::Need;
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

/// Maximum bytes of the chunks that a pass reads from the disk.
const PASS_BYTES: u64 = if cfg!(test) { 4 << 10 } else { 1 << 30 };
/// Divisor of the memory for tables: a pass takes at most this part of it, but at least a chunk of each column.
const PART_OF_PASS: u64 = 16;
/// Alignment of a chunk in the memory of a pass.
const ALIGNMENT: u64 = 256;

/// The indexes of the chunks that a pass reads, for each file.
pub(crate) type Pass = Vec<Vec<usize>>;

impl Resident {
    /// Returns whether some rows are in column files alone.
    pub(crate) fn is_on_disk(&self) -> bool {
        let mut columns = self.files.iter().flat_map(|it| it.values());
        columns.any(|column| column.is_on_disk)
    }
}

impl Columns {
    /// Returns the bytes of memory for a pass and for the one before, which may be there still.
    pub(crate) fn pass_bytes(&self) -> u64 {
        self.engines[0].max_bytes() / PART_OF_PASS
    }

    /// Returns the maximum bytes of the chunks of a pass, or of chunks that are divided together.
    pub(crate) fn pass_bytes_max(&self) -> u64 {
        PASS_BYTES.min(self.pass_bytes() / 2)
    }

    /// Returns the passes over the chunks with rows that count. `chunks` are the numbers of rows of each chunk of each
    /// file, with 0 for those of which none counts.
    pub(crate) fn passes(&self, resident: &Resident, chunks: &[Vec<u32>]) -> Vec<Pass> {
        let most = self.pass_bytes_max();
        let none = || vec![Vec::new(); resident.files.len()];
        let (mut passes, mut pass, mut held) = (Vec::new(), none(), 0);
        for (file, (columns, rows)) in resident.files.iter().zip(chunks).enumerate() {
            for (index, _) in rows.iter().enumerate().filter(|(_, rows)| **rows > 0) {
                let chunks = columns.values().map(|it| &it.chunks[index]);
                let on_disk = chunks.filter(|it| it.is_on_disk());
                let bytes: u64 = on_disk.map(|it| it.bytes).sum();
                if held > 0 && held + bytes > most {
                    passes.push(std::mem::replace(&mut pass, none()));
                    held = 0;
                }
                pass[file].push(index);
                held += bytes;
            }
        }
        passes.push(pass);
        passes
    }

    /// Reads the chunks of a pass that are on the disk. Returns the columns with the rows of the pass alone, all in
    /// memory.
    ///
    /// # Errors
    /// If there is no room, or the device or the disk fails.
    pub(crate) async fn pass(
        &self,
        resident: &Resident,
        pass: &Pass,
        used: u64,
    ) -> Result<(Resident, FromDisk)> {
        let (mut files, mut reads) = (Vec::new(), Vec::new());
        for (columns, wanted) in resident.files.iter().zip(pass) {
            let mut of_file = HashMap::new();
            for (index, column) in columns {
                let mut chunks = Vec::new();
                for (chunk, of_column) in column.chunks.iter().enumerate() {
                    let rows = match wanted.binary_search(&chunk) {
                        Ok(_) => of_column.rows,
                        Err(_) => 0,
                    };
                    chunks.push(Chunk {
                        rows,
                        ..of_column.clone()
                    });
                }
                let is_read = column.is_on_disk && !wanted.is_empty();
                if is_read {
                    reads.extend(self.memory_of_pass(&mut chunks, used)?);
                }
                let column = match is_read {
                    // The parts tell kernels no numbers of rows. Those of a file without rows are not read.
                    false => column.with_chunks(chunks),
                    true => {
                        self.column(chunks, Arc::clone(&column.texts), Need::Query(used))
                            .await?
                    }
                };
                of_file.insert(*index, Arc::new(column));
            }
            files.push(of_file);
        }
        let read = self.read_chunks(&reads.iter().collect::<Vec<_>>()).await?;
        let is_usable = |chunks: &Chunks| !chunks.file.is_unusable.load(Ordering::Relaxed);
        match reads.iter().all(is_usable) {
            true => Ok((Resident { files }, read)),
            false => Err(Reason::of("a column file cannot be read")),
        }
    }

    /// Allocates memory for the chunks of a column with rows that are on the disk, and moves them there. Returns what
    /// is to be read.
    fn memory_of_pass(&self, chunks: &mut [Chunk], used: u64) -> Result<Option<Chunks>> {
        let bytes = |it: &Chunk| it.bytes.next_multiple_of(ALIGNMENT);
        let on_disk = chunks.iter().filter(|it| it.is_on_disk());
        let all: u64 = on_disk.map(bytes).sum();
        let mut read: Option<Chunks> = None;
        // Chunks of equal numbers take no bytes.
        let device = self.device_of(0);
        let memory = self.allocate(device, all.max(ALIGNMENT), Need::Query(used))?;
        let mut first = 0;
        for chunk in chunks.iter_mut().filter(|it| it.is_on_disk()) {
            let here = memory.at_word(first as usize / 4);
            first += bytes(chunk);
            let moved = chunk.moved(here.clone());
            if let Some(OnDisk { file, place }) = OnDisk::of(&chunk.memory) {
                let read = read.get_or_insert_with(|| Chunks {
                    file: Arc::clone(file),
                    to: Vec::new(),
                });
                read.to.push((place.clone(), here));
            }
            *chunk = moved;
        }
        Ok(read)
    }
}

impl Column {
    /// Returns the column with other numbers of rows of its chunks.
    fn with_chunks(&self, chunks: Vec<Chunk>) -> Column {
        Column {
            parts: self.parts.clone(),
            ..Column::new(chunks, Arc::clone(&self.texts))
        }
    }
}
