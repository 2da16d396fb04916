//! Which columns give way when there is no room: those that were used longest ago, and those of declared tables last.

use crate::column::Column;
use crate::columns::{ColumnKey, Entry, Known, READS_WITHOUT_ROOM, State};

/// Maximum bytes in host memory of the texts of all columns.
const TEXTS_BYTES_MAX: usize = if cfg!(test) { 1 << 20 } else { 2 << 30 };

/// Which columns give way to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GivingWay {
    /// Those of tables that are not declared.
    Undeclared,
    /// All, those of declared tables last.
    All,
}

impl Known {
    /// Forgets the columns with texts that were used longest ago, but not this one, until all texts have room. Those of
    /// declared tables are the last.
    pub(crate) fn free_texts(&mut self, but: &ColumnKey) {
        let here = self.columns.iter();
        let here = here.filter_map(|(key, entry)| match &entry.state {
            State::Here(column) => Some((entry.used, column.text_bytes(), key)),
            _ => None,
        });
        let mut held: usize = here.clone().map(|(_, bytes, _)| bytes).sum();
        if held <= TEXTS_BYTES_MAX {
            return;
        }
        let here = here.filter(|(_, bytes, key)| *bytes > 0 && *key != but);
        let here = here.map(|(used, bytes, key)| (self.declared.has(key), used, bytes, key));
        let mut here: Vec<_> = here.collect();
        here.sort_by_key(|(is_declared, used, ..)| (*is_declared, *used));
        let mut freed = Vec::new();
        for (is_declared, _, bytes, key) in here {
            if held <= TEXTS_BYTES_MAX {
                break;
            }
            held -= bytes;
            freed.push((key.clone(), is_declared));
        }
        freed
            .into_iter()
            .for_each(|(key, is_declared)| self.free_column(key, is_declared));
    }

    /// Forgets a column. If it is declared, it is not brought back at once.
    fn free_column(&mut self, key: ColumnKey, is_declared: bool) {
        match is_declared {
            true => {
                let away = Entry::new(State::Away(-READS_WITHOUT_ROOM), self.uses);
                self.columns.insert(key, away);
            }
            false => drop(self.columns.remove(&key)),
        }
    }

    /// Forgets the columns that were used longest ago, before `end`, until at least `bytes` of theirs in a place are
    /// free: those that give way.
    pub(crate) fn free(
        &mut self,
        (bytes, end): (u64, u64),
        giving_way: GivingWay,
        place: impl Fn(&Column) -> u64,
    ) {
        let here = self.columns.iter();
        let here = here.filter_map(|(key, entry)| match &entry.state {
            State::Here(column) if entry.used < end && place(column) > 0 => {
                let is_declared = self.declared.has(key);
                let gives_way = !is_declared || giving_way == GivingWay::All;
                gives_way.then(|| (is_declared, entry.used, place(column), key.clone()))
            }
            _ => None,
        });
        let mut here: Vec<_> = here.collect();
        here.sort_by_key(|(is_declared, used, ..)| (*is_declared, *used));
        let mut freed = 0;
        for (is_declared, _, column_bytes, key) in here {
            if freed >= bytes {
                break;
            }
            freed += column_bytes;
            self.free_column(key, is_declared);
        }
    }
}
