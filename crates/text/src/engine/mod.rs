//! The engines: one file a way of searching, all behind one trait.

pub(crate) mod bit_parallel;
pub(crate) mod confirm;
pub(crate) mod dfa;
pub(crate) mod lazy;
pub(crate) mod literal;
pub(crate) mod needles;
pub(crate) mod pcre;

use crate::form::DeviceForm;
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// Rows searched between two checks of [`Stop`] by engines whose rows are cheap.
pub(crate) const ROWS_PER_CHECK: usize = 16_384;

/// One way of searching. Values are expected to be valid UTF-8; what an engine says of others is not used.
pub(crate) trait Engine: Send + Sync {
    /// Whether one value matches.
    fn is_match(&self, value: &[u8]) -> bool;

    /// As [`is_match`](Engine::is_match), where one value may take long.
    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        Ok(self.is_match(value))
    }

    /// Calls `on_match` with each matching row, in ascending order, once each.
    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped>;

    /// What of it a device can run. It matches what the engine matches, or more if the engine
    /// [confirms](Engine::confirms).
    fn device_form(&self) -> Option<DeviceForm> {
        None
    }

    /// Whether what the device form lets through has to be judged here.
    fn confirms(&self) -> bool {
        false
    }

    /// The number of matching rows.
    fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        let mut count = 0;
        self.search_rows(rows, stop, &mut |_| count += 1)?;
        Ok(count)
    }
}

/// Searches row by row with a test of one value.
pub(crate) fn search_each(
    rows: Rows<'_>,
    stop: &Stop,
    mut is_match: impl FnMut(&[u8]) -> bool,
    mut on_match: impl FnMut(u32),
) -> Result<(), Stopped> {
    for index in 0..rows.len() {
        if index % ROWS_PER_CHECK == 0 {
            stop.check()?;
        }
        if is_match(rows.row(index)) {
            on_match(index as u32);
        }
    }
    Ok(())
}
