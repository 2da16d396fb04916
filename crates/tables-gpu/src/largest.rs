//! The largest columns, for the status page.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Instant;

use forebay_tables::{GpuColumn, GpuColumns};

use crate::column::{Bytes, Column};
use crate::columns::{ColumnKey, Columns, State};

/// Maximum characters of the path of a file, and of the name of a column. Clients choose them.
const FILE_CHARACTERS: usize = 160;
const NAME_CHARACTERS: usize = 100;

/// A column, whether it is declared, and the time of its last use.
type KnownColumn = (ColumnKey, Arc<Column>, bool, Instant);

impl Columns {
    /// Returns the columns with the most bytes in all places, at most `limit`.
    pub(crate) fn largest(&self, limit: usize) -> GpuColumns {
        let (largest, left_out) = self.with_most_bytes(limit);
        let largest = largest
            .into_iter()
            .map(|(key, column, is_declared, used_at)| {
                let (file, name) = key.names();
                let Bytes { device, host, disk } = column.bytes;
                GpuColumn {
                    table: None,
                    file: end_of(&file, FILE_CHARACTERS),
                    name: start_of(&name, NAME_CHARACTERS),
                    is_declared,
                    rows: column.rows(),
                    device_bytes: device,
                    host_bytes: host,
                    disk_bytes: disk,
                    unused: used_at.elapsed(),
                }
            });
        GpuColumns {
            device: self.device_names(),
            largest: largest.collect(),
            left_out,
        }
    }

    /// Returns the columns, and the number and the bytes of the others. Queries wait meanwhile, so nothing is
    /// formatted.
    fn with_most_bytes(&self, limit: usize) -> (Vec<KnownColumn>, (usize, u64)) {
        let known = self.known.lock();
        let here = known.columns.iter();
        let here = here.filter_map(|(key, entry)| match &entry.state {
            State::Here(column) => Some((column.bytes.all(), key, column, entry.used_at)),
            State::Away(_) | State::Refused(_) => None,
        });
        let mut here: Vec<_> = here.collect();
        if here.len() > limit {
            here.select_nth_unstable_by_key(limit, |(bytes, ..)| Reverse(*bytes));
        }
        let others = here.split_off(limit.min(here.len()));
        here.sort_by_key(|(bytes, ..)| Reverse(*bytes));
        let largest = here.into_iter();
        let largest = largest.map(|(_, key, column, at)| {
            let is_declared = known.declared.has(key);
            (key.clone(), Arc::clone(column), is_declared, at)
        });
        let bytes = others.iter().map(|(bytes, ..)| bytes).sum();
        (largest.collect(), (others.len(), bytes))
    }
}

/// Returns the first characters of a text.
fn start_of(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the last characters of a text.
fn end_of(text: &str, characters: usize) -> String {
    match text.char_indices().rev().nth(characters) {
        Some((before, letter)) => format!("…{}", &text[before + letter.len_utf8()..]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_shortened() {
        assert_eq!(
            (start_of("größe", 5), end_of("größe", 5)),
            ("größe".into(), "größe".into())
        );
        assert_eq!(
            (start_of("größe", 3), end_of("größe", 3)),
            ("grö…".into(), "…öße".into())
        );
    }
}
