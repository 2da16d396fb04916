//! Which columns give way when there is no room: those that were used longest ago, and those of declared tables last.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::column::Column;
use crate::columns::{ColumnKey, Columns, Entry, Known, Read, State};
use crate::file_key::FileKey;
use crate::fragment::Source;
use crate::placement::USES_LATELY;

/// Maximum bytes in host memory of the texts of all columns.
pub(crate) const TEXTS_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 2 << 30 };

/// What needs room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// A query that began at this time, counted in uses. Columns that were used before give way.
    Query(u64),
    /// Columns of declared tables. All that are not declared give way.
    Declared,
}

impl Need {
    /// Returns the need to which only columns give way that were not used lately.
    pub(crate) fn stale(self) -> Need {
        match self {
            Need::Query(began) => Need::Query(began.saturating_sub(USES_LATELY)),
            Need::Declared => Need::Declared,
        }
    }

    fn takes(self, is_declared: bool, used: u64) -> bool {
        match self {
            Need::Query(began) => used < began,
            Need::Declared => !is_declared,
        }
    }
}

/// Frees columns when other tenants need the memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct Freeing(pub(crate) Arc<Mutex<Known>>);

impl Freeing {
    /// Frees at least this many bytes of a device, of the columns that were used longest ago. Those that a query uses
    /// are freed when it ends.
    ///
    /// Runs on a thread of another tenant that claims memory. No thread that holds the lock of the columns that are
    /// known allocates device memory, so that none waits for another tenant's locks while it holds this one.
    pub(crate) fn free(&self, device: usize, bytes: u64) {
        let mut known = self.0.lock();
        known.free(bytes, Need::Query(u64::MAX), |it| it.bytes_on(device));
    }
}

impl Columns {
    /// Returns the bytes of the texts of these columns that are here.
    pub(crate) fn text_bytes_of(&self, reads: &[Read]) -> usize {
        let known = self.known.lock();
        let bytes = |source: &Source, file: &FileKey, column: usize| {
            let entry = known.columns.get(&Columns::key(file, source, column));
            match entry.map(|it| &it.state) {
                Some(State::Here(column)) => column.texts_needed(),
                _ => 0,
            }
        };
        let reads = reads.iter().flat_map(|(source, files)| {
            let files = files.iter().map(|(file, _)| file);
            files.flat_map(move |file| source.columns.iter().map(move |it| (source, file, *it)))
        });
        reads
            .map(|(source, file, column)| bytes(source, file, column))
            .sum()
    }
}

impl Known {
    /// Returns the columns with bytes in memory of a device that may be moved to memory of the host, with these bytes:
    /// those of no declared table that no query uses.
    pub(crate) fn movable(
        &self,
        keys: HashSet<ColumnKey>,
        device: usize,
    ) -> Vec<(u64, ColumnKey, Arc<Column>)> {
        let movable = |key: ColumnKey| {
            let State::Here(column) = &self.columns.get(&key)?.state else {
                return None;
            };
            let bytes = column.bytes_on(device);
            let mut chunks = column.chunks.iter();
            // Texts that are searched have no address.
            let has_address = chunks.all(|it| it.memory.address > 0 || it.bytes == 0);
            let is_free = Arc::strong_count(column) == 1 && !self.declared.has(&key);
            (bytes > 0 && has_address && is_free).then(|| (bytes, key, Arc::clone(column)))
        };
        keys.into_iter().filter_map(movable).collect()
    }

    /// Forgets the columns with texts that were used longest ago, but not this one, until all texts have room. Those of
    /// declared tables are the last.
    pub(crate) fn free_texts(&mut self, but: &ColumnKey) {
        let here = self
            .columns
            .values()
            .filter_map(|entry| match &entry.state {
                State::Here(column) => Some(column.text_bytes()),
                _ => None,
            });
        let held: usize = here.sum();
        if held > TEXTS_BYTES_MAX {
            self.free_where(held - TEXTS_BYTES_MAX, |_, key, entry| match &entry.state {
                State::Here(column) if key != but => column.text_bytes(),
                _ => 0,
            });
        }
    }

    /// Forgets the columns that give way to a need, those that were used longest ago first and declared ones last,
    /// until at least `bytes` of theirs in a place are free.
    pub(crate) fn free(&mut self, bytes: u64, need: Need, place: impl Fn(&Column) -> u64) {
        self.free_where(bytes as usize, |is_declared, _, entry| match &entry.state {
            State::Here(column) if need.takes(is_declared, entry.used) => place(column) as usize,
            _ => 0,
        });
    }

    /// Forgets columns as [`Known::free`] does, but no declared ones.
    pub(crate) fn free_undeclared(
        &mut self,
        bytes: u64,
        need: Need,
        place: impl Fn(&Column) -> u64,
    ) {
        self.free_where(bytes as usize, |is_declared, _, entry| match &entry.state {
            State::Here(column) if !is_declared && need.takes(false, entry.used) => {
                place(column) as usize
            }
            _ => 0,
        });
    }

    /// Forgets columns of which `bytes_of` returns bytes, until at least `bytes` are free.
    fn free_where(&mut self, bytes: usize, bytes_of: impl Fn(bool, &ColumnKey, &Entry) -> usize) {
        let all = self.columns.iter().map(|(key, entry)| {
            let is_declared = self.declared.has(key);
            let bytes = bytes_of(is_declared, key, entry);
            (is_declared, entry.used, bytes, key)
        });
        let mut all: Vec<_> = all.filter(|(_, _, bytes, _)| *bytes > 0).collect();
        all.sort_by_key(|(is_declared, used, ..)| (*is_declared, *used));
        let mut freed = 0;
        let given_way = all.into_iter().take_while(|(_, _, of_column, _)| {
            let is_wanted = freed < bytes;
            freed += of_column;
            is_wanted
        });
        let given_way: Vec<_> = given_way
            .map(|(is_declared, _, _, key)| (is_declared, key.clone()))
            .collect();
        for (is_declared, key) in given_way {
            self.give_way(key, is_declared);
        }
    }

    /// Forgets a column. If it is declared, it is not brought back at once.
    fn give_way(&mut self, key: ColumnKey, is_declared: bool) {
        self.columns.remove(&key);
        if is_declared {
            self.wait(&key);
        }
    }

    /// Forgets the columns of earlier versions of a versioned table.
    pub(crate) fn forget_before(&mut self, file: &FileKey) {
        self.columns.retain(|key, _| !key.file.is_before(file));
    }

    /// Forgets the columns that were used before the median use, but no declared ones, which have a limit of their own.
    pub(crate) fn forget_half(&mut self) {
        let declared = &self.declared;
        let others = self.columns.iter().filter(|(key, _)| !declared.has(key));
        let mut used: Vec<u64> = others.map(|(_, entry)| entry.used).collect();
        let middle = used.len() / 2;
        if used.is_empty() {
            return;
        }
        let (_, median, _) = used.select_nth_unstable(middle);
        self.columns
            .retain(|key, entry| entry.used >= *median || declared.has(key));
    }
}
