//! Searches of texts on the device. A condition on a column of texts becomes a column of marks, one for each row.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use datafusion::arrow::array::{Array, StringArray};
use datafusion::physical_expr::PhysicalExpr;
use forebay_text::Program;
use futures_util::future::try_join_all;
use parking_lot::Mutex;

use crate::column::{Chunk, Column};
use crate::columns::{ColumnKey, Columns, Read};
use crate::engine::{Memory, TextSearch};
use crate::file_key::FileKey;
use crate::fragment::Source;
use crate::giving_way::Need;
use crate::kept::{Kept, Place};
use crate::packed::TILE_ROWS;
use crate::pattern::{Search, Wanted};
use crate::reason::Reason;

/// Maximum number of programs that are kept.
const PROGRAMS_MAX: usize = 256;
/// Bits of a mark.
const MARK_BITS: u32 = 4;

/// The programs of searches; `None` for those that are left to the CPU.
#[derive(Debug, Default)]
pub(crate) struct Programs(Mutex<HashMap<Wanted, Option<Arc<Program>>>>);

impl Programs {
    fn has(&self, wanted: &Wanted) -> bool {
        self.0.lock().contains_key(wanted)
    }

    fn get(&self, wanted: Wanted) -> Option<Arc<Program>> {
        if let Some(known) = self.0.lock().get(&wanted) {
            return known.clone();
        }
        // Another query may compile the same pattern meanwhile.
        let program = wanted.program().map(Arc::new);
        let mut known = self.0.lock();
        if known.len() >= PROGRAMS_MAX {
            known.clear();
        }
        known.insert(wanted, program.clone());
        program
    }
}

/// A column that is missing, the texts that are searched for it, and the program.
type ToSearch = (ColumnKey, (ColumnKey, Arc<Column>), Arc<Program>);

impl Columns {
    /// Compiles the programs of all searches, which may take long, on a thread for work that blocks.
    ///
    /// # Errors
    /// If that thread panics.
    pub(crate) async fn compile_searches(self: &Arc<Self>, reads: &[Read]) -> Result<(), Reason> {
        let mut unknown = Vec::new();
        for (source, _) in reads {
            let searches = source.columns.iter();
            let searches = searches.filter_map(|it| Search::of(source.computed(*it)?));
            let wanted = searches.map(|it| it.wanted);
            unknown.extend(wanted.filter(|it| !self.programs.has(it)));
        }
        if unknown.is_empty() {
            return Ok(());
        }
        let columns = Arc::clone(self);
        let compile = move || {
            for wanted in unknown {
                columns.programs.get(wanted);
            }
        };
        tokio::task::spawn_blocking(compile)
            .await
            .map_err(Reason::of)
    }

    /// Returns the texts that are searched to compute a column of a source, with their key.
    pub(crate) fn texts_of_search(
        &self,
        file: &FileKey,
        source: &Source,
        column: usize,
    ) -> Option<(ColumnKey, Arc<dyn PhysicalExpr>)> {
        let search = Search::of(source.computed(column)?)?;
        self.programs.get(search.wanted)?;
        let texts: Arc<dyn PhysicalExpr> = Arc::new(Kept::new(search.column, Place::Engine));
        Some((Columns::key_of(file, source, Some(&texts), column), texts))
    }

    /// Searches for all columns that are missing, if their texts are in memory of the engine. Returns the time on the
    /// device.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) async fn search(
        &self,
        reads: &[Read],
        began: u64,
        is_stopped: &Arc<AtomicBool>,
    ) -> Result<Duration, Reason> {
        let mut took = Duration::ZERO;
        for (key, (key_of_texts, texts), program) in self.to_search(reads) {
            let Ok(memory) = self.memory_of_marks(&texts, began) else {
                // The CPU searches, until there is room again.
                self.put_off(key_of_texts);
                continue;
            };
            let search = (program, Arc::clone(is_stopped));
            let (marks, took_here) = self.marks(&texts, memory, search, began).await?;
            self.put_made_of((&key_of_texts, &texts), key, marks);
            took += took_here;
        }
        Ok(took)
    }

    /// Returns the columns that are missing, if their texts are here, with these and the programs.
    fn to_search(&self, reads: &[Read]) -> Vec<ToSearch> {
        let mut found = Vec::new();
        for (source, files) in reads {
            for column in &source.columns {
                let Some(search) = source.computed(*column).and_then(Search::of) else {
                    continue;
                };
                let keys = files
                    .iter()
                    .map(|(file, _)| Columns::key(file, source, *column));
                let missing = keys.zip(files).filter(|(key, _)| !self.is_settled(key));
                for (key, (file, _)) in missing {
                    let texts = self.texts_of_search(file, source, *column);
                    let texts = texts.and_then(|(key, _)| Some((self.here(&key)?, key)));
                    let program = self.programs.get(search.wanted.clone());
                    if let (Some((texts, of_texts)), Some(program)) = (texts, program) {
                        found.push((key, (of_texts, texts), program));
                    }
                }
            }
        }
        found
    }

    /// Allocates memory for the marks of texts, on each device that has some of these.
    fn memory_of_marks(&self, texts: &Column, began: u64) -> Result<Vec<Option<Memory>>, Reason> {
        let devices = texts.parts.iter().enumerate().map(|(device, list)| {
            let chunks = texts.chunks.iter();
            let chunks = chunks.filter(|it| it.memory.device == device);
            let words: usize = chunks.map(words_of_marks).sum();
            let allocate = |_: &Memory| self.allocate(device, words as u64 * 4, Need::Query(began));
            list.as_ref().map(allocate).transpose()
        });
        devices.collect()
    }

    /// Searches texts, on all devices at once. Returns the marks of their rows, and the longest time on a device.
    async fn marks(
        &self,
        texts: &Column,
        memory: Vec<Option<Memory>>,
        (program, is_stopped): (Arc<Program>, Arc<AtomicBool>),
        began: u64,
    ) -> Result<(Column, Duration), Reason> {
        let lists = texts.parts.iter().zip(&memory);
        let lists = lists.filter_map(|(list, marks)| Some((list.clone()?, marks.clone()?)));
        let searches = lists.map(|(texts, marks)| {
            self.engine_of(&marks).search(TextSearch {
                texts,
                program: Arc::clone(&program),
                is_stopped: Arc::clone(&is_stopped),
                marks,
            })
        });
        let took = try_join_all(searches).await?.into_iter().max();
        let mut firsts = vec![0; memory.len()];
        let chunks = texts.chunks.iter().map(|chunk| {
            let device = chunk.memory.device;
            let of_device = memory[device].as_ref();
            let of_device = of_device.ok_or_else(|| Reason::new("texts without a list"))?;
            let here = of_device.at_word(firsts[device]);
            firsts[device] += words_of_marks(chunk);
            Ok(Chunk {
                bytes: words_of_marks(chunk) as u64 * 4,
                stripe: chunk.stripe,
                ..Chunk::at(here, chunk.rows, chunk.valid.clone(), ((0, 1), MARK_BITS))
            })
        });
        let chunks = chunks.collect::<Result<_, Reason>>()?;
        let marks = self
            .column(chunks, Arc::default(), Need::Query(began))
            .await?;
        Ok((marks, took.unwrap_or_default()))
    }

    /// Brings the texts of a chunk to the device of its stripe.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn store_texts(
        &self,
        texts: StringArray,
        stripe: u32,
        need: Need,
    ) -> Result<Chunk, Reason> {
        let device = self.device_of(stripe);
        let rows = texts.len();
        // Each text takes whole words of eight bytes, and the number of its row.
        let bytes = texts.value_data().len() + rows * 12;
        if !self.has_room(device, bytes as u64, need) {
            return Err(Reason::no_room("the device has no room for texts"));
        }
        let mut valid = None;
        if texts.null_count() > 0 {
            let words = (0..whole_tiles(rows) / 32).map(|word| {
                let rows = 32 * word..rows.min(32 * word + 32);
                rows.fold(0, |bits, row| {
                    bits | u32::from(texts.is_valid(row)) << (row % 32)
                })
            });
            valid = Some(self.copied(words.collect(), device, need).await?);
        }
        let (memory, bytes) = self.engines[device].write_texts(texts).await?;
        let of_valid = valid.as_ref().map_or(0, |_| whole_tiles(rows) as u64 / 8);
        Ok(Chunk {
            bytes: bytes + of_valid,
            range: None,
            stripe,
            ..Chunk::at(memory, rows as u32, valid, ((0, 0), 0))
        })
    }

    /// Returns the column of texts of chunks, as [`Columns::store_texts`] stored them.
    ///
    /// # Errors
    /// If they are too many.
    pub(crate) fn texts(&self, chunks: Vec<Chunk>) -> Result<Column, Reason> {
        let lists = self.engines.iter().enumerate().map(|(device, engine)| {
            let chunks = chunks.iter().map(|it| &it.memory);
            let texts = chunks.filter(|it| it.device == device).cloned();
            let texts: Vec<Memory> = texts.collect();
            let list = (!texts.is_empty()).then(|| engine.list_texts(&texts));
            list.transpose()
        });
        let lists = lists.collect::<Result<_, _>>()?;
        let mut column = Column::new(chunks, Arc::default());
        column.parts = lists;
        Ok(column)
    }
}

/// Returns the number of words of the marks of a chunk.
fn words_of_marks(chunk: &Chunk) -> usize {
    whole_tiles(chunk.rows as usize) * MARK_BITS as usize / 32
}

/// Returns the number of rows of whole tiles.
pub(crate) fn whole_tiles(rows: usize) -> usize {
    rows.next_multiple_of(TILE_ROWS)
}
