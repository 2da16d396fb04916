//! Search engines: one file for each search method, all behind one trait.

pub(crate) mod bit_parallel;
pub(crate) mod confirm;
pub(crate) mod dfa;
pub(crate) mod lazy;
pub(crate) mod literal;
pub(crate) mod pcre;
pub(crate) mod required;

use crate::form::DeviceForm;
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// Maximum rows searched between two checks of [`Stop`].
const ROWS_PER_CHECK: usize = 16_384;

/// Maximum bytes searched between two checks of [`Stop`] by engines that read each byte once. If a row is longer, these
/// engines check within the row.
pub(crate) const BYTES_PER_CHECK: usize = 256 << 10;

/// A search method. Values must be valid UTF-8; results for other values are unspecified.
pub(crate) trait Engine: Send + Sync {
    /// Returns whether one value matches.
    fn is_match(&self, value: &[u8]) -> bool;

    /// As [`is_match`](Engine::is_match), but checks `stop` first, and then at least once in every [`BYTES_PER_CHECK`]
    /// bytes; slow engines check more often.
    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped>;

    /// Calls `on_match` once for each matching row, with the row's number, in ascending order.
    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped>;

    /// Returns the engine's tables for a device (the device form); `None` if no device can run the engine. The form
    /// matches the same rows as the engine, or more if the engine [confirms](Engine::confirms). Checks `stop` while it
    /// builds large tables.
    fn device_form(&self, _stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        Ok(None)
    }

    /// Returns whether matches of the device form are only candidates, which this engine must confirm.
    fn confirms(&self) -> bool {
        false
    }

    /// Returns the number of matching rows.
    fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        let mut count = 0;
        self.search_rows(rows, stop, &mut |_| count += 1)?;
        Ok(count)
    }
}

/// Searches row by row with [`Engine::is_match_until`].
pub(crate) fn search_each(
    engine: &impl Engine,
    rows: Rows<'_>,
    stop: &Stop,
    mut on_match: impl FnMut(u32),
) -> Result<(), Stopped> {
    let mut from = 0;
    while from < rows.len() {
        let to = next_piece(rows, from, BYTES_PER_CHECK).min(from + ROWS_PER_CHECK);
        if rows.row(from).len() > BYTES_PER_CHECK {
            if engine.is_match_until(rows.row(from), stop)? {
                on_match(from as u32);
            }
        } else {
            stop.check()?;
            let matching = (from..to).filter(|&row| engine.is_match(rows.row(row)));
            matching.for_each(|row| on_match(row as u32));
        }
        from = to;
    }
    Ok(())
}

/// Returns the number of the first row after the piece that starts at row `from`. A piece consists of rows that have at
/// most `bytes_max` bytes in total, or of one longer row.
pub(crate) fn next_piece(rows: Rows<'_>, from: usize, bytes_max: usize) -> usize {
    let target = rows.offsets[from] as usize + bytes_max;
    if target >= rows.span().end {
        rows.len()
    } else {
        rows.row_at(target, from).max(from + 1)
    }
}
