//! Where columns are: in memory of devices, or in pinned memory of the host, from which those that are read often
//! are promoted to the devices.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_movement::Tier;

use crate::column::Column;
use crate::columns::{ColumnKey, Columns, Read};
use crate::engine::Memory;
use crate::giving_way::Need;
use crate::reason::{Missing, Reason};

/// A column that was used within this many uses of columns stays on the device when another needs room.
pub(crate) const USES_LATELY: u64 = 1_000;
/// The reason if neither the device nor the host has room.
pub(crate) const NO_ROOM: &str = "there is no room for its columns";
/// Divisor of the memory for tables: columns leave this part to totals and tables of joins.
const PART_OF_TOTALS: u64 = 8;
/// Divisor of the memory for tables: columns that make room make at least this part of it.
const PART_OF_DEMOTION: u64 = 64;

impl Columns {
    /// Copies words to memory of the device of a stripe, or of another one with room, or, if none has, to memory of the
    /// host. If there is none either, frees columns that give way.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn placed(
        &self,
        words: &[u32],
        stripe: u32,
        need: Need,
    ) -> Result<Memory, Reason> {
        let bytes = words.len() as u64 * 4;
        if let Some(memory) = self.room_of_column(stripe, bytes, need) {
            self.engine_of(&memory)
                .write(words.to_vec(), &memory)
                .await?;
            return Ok(memory);
        }
        let device = self.device_of(stripe);
        let engine = &self.engines[device];
        if let Ok(memory) = self.engines[0].write_host(words.to_vec()).await {
            return Ok(memory);
        }
        self.known.lock().free(bytes, need, |it| it.bytes.host);
        match self.engines[0].write_host(words.to_vec()).await {
            Ok(memory) => Ok(memory),
            Err(_) => {
                // Columns that can be read from the disk leave half of what totals need to them, and to passes.
                let left = self.disk.as_ref().map_or(0, |_| self.pass_bytes());
                if engine.free_bytes() < bytes + left {
                    return Err(Reason::no_room(NO_ROOM));
                }
                let memory = self.allocate(device, bytes, need);
                let memory = memory.map_err(|_| Reason::no_room(NO_ROOM))?;
                engine.write(words.to_vec(), &memory).await?;
                Ok(memory)
            }
        }
    }

    /// Promotes the columns that are often read from memory of the host, in order, until one finds no room.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn promote(&self, reads: &[Read], began: u64) -> Result<(), Reason> {
        for (source, files) in reads {
            for (file, _) in files {
                for column in &source.columns {
                    let key = Columns::key(file, source, *column);
                    self.promote_column(key, began).await?;
                }
            }
        }
        Ok(())
    }

    async fn promote_column(&self, key: ColumnKey, began: u64) -> Result<(), Reason> {
        let Some(column) = self.known.lock().often_on_host(&key) else {
            return Ok(());
        };
        let promoted = self.promoted(&column, Need::Query(began)).await?;
        self.put_made_of((&key, &column), key.clone(), promoted);
        Ok(())
    }

    /// Moves columns of a query from memory of a device to memory of the host, so that the device has as much more
    /// room for its tables and totals. Of the columns that are enough, the smallest is moved. Those of declared tables,
    /// those that other queries use, and texts that are searched stay.
    ///
    /// # Errors
    /// If the host has no room, the columns have too few bytes, or the device fails.
    pub(crate) async fn demote(
        &self,
        reads: &[Read],
        Missing { device, bytes }: Missing,
    ) -> Result<(), Reason> {
        let keys = reads.iter().flat_map(|(source, files)| {
            let columns = source.columns.iter();
            columns.flat_map(move |column| {
                files
                    .iter()
                    .map(move |(file, _)| Columns::key(file, source, *column))
            })
        });
        let keys: HashSet<ColumnKey> = keys.collect();
        // One demotion after the other, so that no column is counted by two.
        let _loading = self.loading.lock().await;
        let mut all = self.known.lock().movable(keys, device);
        all.sort_by_key(|(bytes, ..)| *bytes);
        // What is allocated next shall have room, too.
        let wanted = bytes.max(self.engines[device].max_bytes() / PART_OF_DEMOTION);
        let mut moved = 0;
        while moved < wanted {
            let enough = all.iter().position(|(bytes, ..)| moved + *bytes >= wanted);
            let next = enough.or(all.len().checked_sub(1));
            let Some(next) = next else {
                break;
            };
            let (bytes, key, column) = all.remove(next);
            let demoted = self.demoted(&column, device).await?;
            self.put_made_of((&key, &column), key.clone(), demoted);
            moved += bytes;
        }
        match moved >= bytes {
            true => Ok(()),
            false => Err(Reason::no_room(NO_ROOM)),
        }
    }

    /// Returns a column with all its chunks in memory of a device in memory of the host instead.
    async fn demoted(&self, column: &Column, device: usize) -> Result<Column, Reason> {
        let mut chunks = column.chunks.clone();
        for chunk in &mut chunks {
            if chunk.memory.tier == Tier::Device && chunk.memory.device == device {
                let words = self.words(chunk).await?;
                let memory = self.engines[0].write_host(words).await?;
                *chunk = chunk.moved(memory);
            }
        }
        let need = Need::Query(self.now());
        self.column(chunks, Arc::clone(&column.texts), need).await
    }

    /// Returns a column with all its chunks in memory of devices.
    async fn promoted(&self, column: &Column, need: Need) -> Result<Column, Reason> {
        let not_there = column.chunks.iter();
        let not_there = not_there.filter(|it| it.memory.tier != Tier::Device);
        if !self.have_room(not_there.map(|it| (it.stripe, it.bytes)), need) {
            return Err(Reason::no_room("the device has no room"));
        }
        let mut chunks = column.chunks.clone();
        for chunk in &mut chunks {
            if chunk.memory.tier != Tier::Device {
                let words = self.words(chunk).await?;
                let memory = self.room_of_column(chunk.stripe, words.len() as u64 * 4, need);
                let memory = memory.ok_or_else(|| Reason::no_room("the device has no room"))?;
                self.engine_of(&memory).write(words, &memory).await?;
                *chunk = chunk.moved(memory);
            }
        }
        self.column(chunks, Arc::clone(&column.texts), need).await
    }

    /// Allocates memory for a chunk of a column: of the device of its stripe, or of another one. Returns `None` if none
    /// has room beside columns that were used lately.
    pub(crate) fn room_of_column(&self, stripe: u32, bytes: u64, need: Need) -> Option<Memory> {
        let live = self.live();
        let first = stripe as usize % live.len();
        let mut devices = live[first..].iter().chain(&live[..first]);
        devices.find_map(|device| self.room_on(*device, bytes, need))
    }

    fn room_on(&self, device: usize, bytes: u64, need: Need) -> Option<Memory> {
        if !self.has_room(device, bytes, need) {
            return None;
        }
        let engine = &self.engines[device];
        let memory = engine.allocate(bytes).or_else(|_| {
            // Others have the memory.
            self.free_stale(device, bytes, need);
            engine.allocate(bytes)
        });
        memory.ok()
    }

    /// Returns whether the devices have room for chunks of these stripes and bytes, beside columns that were used
    /// lately.
    pub(crate) fn have_room(&self, chunks: impl Iterator<Item = (u32, u64)>, need: Need) -> bool {
        let mut wanted = vec![0; self.engines.len()];
        for (stripe, bytes) in chunks {
            wanted[self.device_of(stripe)] += bytes;
        }
        let mut wanted = wanted.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        wanted.all(|(device, bytes)| self.has_room(device, *bytes, need))
    }

    /// Returns whether a device has room for this many bytes of columns, beside those that were used lately.
    pub(crate) fn has_room(&self, device: usize, bytes: u64, need: Need) -> bool {
        let engine = &self.engines[device];
        let wanted = bytes + engine.max_bytes() / PART_OF_TOTALS;
        if engine.free_bytes() < wanted {
            self.free_stale(device, bytes, need);
        }
        engine.free_bytes() >= wanted
    }

    /// Copies words to memory of a device.
    ///
    /// # Errors
    /// If there is no room, or the device fails.
    pub(crate) async fn copied(
        &self,
        words: Vec<u32>,
        device: usize,
        need: Need,
    ) -> Result<Memory, Reason> {
        let memory = self.allocate(device, words.len() as u64 * 4, need)?;
        self.engines[device].write(words, &memory).await?;
        Ok(memory)
    }

    /// Returns the most bytes of the tables of joins of a query, and of its totals.
    pub(crate) fn room_of_tables(&self, device: usize) -> u64 {
        let room = self.engines[device].max_bytes() / 2;
        room.min(self.tables_bytes_max.load(Ordering::Relaxed))
    }

    /// Allocates memory of a device. If there is no room, frees columns that give way.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn allocate(&self, device: usize, bytes: u64, need: Need) -> Result<Memory, Reason> {
        let engine = &self.engines[device];
        if bytes > engine.max_bytes() / 2 {
            let text = format!("{bytes} bytes, more than half of the memory for tables");
            return Err(Reason::no_room(text));
        }
        let memory = engine.allocate(bytes).or_else(|_| {
            let mut known = self.known.lock();
            known.free(bytes, need, |it| it.bytes_on(device));
            drop(known);
            engine.allocate(bytes)
        });
        memory.map_err(|reason| {
            let bytes = bytes.saturating_sub(engine.free_bytes()).max(1);
            reason.for_want_of(Missing { device, bytes })
        })
    }

    fn free_stale(&self, device: usize, bytes: u64, need: Need) {
        let mut known = self.known.lock();
        known.free_undeclared(bytes, need.stale(), |it| it.bytes_on(device));
    }
}
