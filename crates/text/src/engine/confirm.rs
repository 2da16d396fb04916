//! Engine of an over-approximation whose candidates PCRE2 confirms.

use super::Engine;
use crate::form::DeviceForm;
use crate::pattern::Pattern;
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// Number of rows searched before their candidates are confirmed.
const ROWS_PER_PIECE: usize = 4_096;

/// Engine of the tier `Approximate`.
pub(crate) struct ConfirmEngine {
    loose: Box<dyn Engine>,
    pattern: Pattern,
}

impl ConfirmEngine {
    pub(crate) fn new(loose: Box<dyn Engine>, pattern: Pattern) -> ConfirmEngine {
        ConfirmEngine { loose, pattern }
    }
}

impl Engine for ConfirmEngine {
    fn is_match(&self, value: &[u8]) -> bool {
        self.loose.is_match(value) && self.pattern.pcre_is_match(value)
    }

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        Ok(self.loose.is_match_until(value, stop)?
            && self.pattern.pcre_is_match_until(value, stop)?)
    }

    fn device_form(&self, stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        self.loose.device_form(stop)
    }

    fn confirms(&self) -> bool {
        true
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        let mut survivors = Vec::new();
        for from in (0..rows.len()).step_by(ROWS_PER_PIECE) {
            let piece = rows.slice(from..rows.len().min(from + ROWS_PER_PIECE));
            survivors.clear();
            self.loose
                .search_rows(piece, stop, &mut |row| survivors.push(row))?;
            for &row in &survivors {
                let value = piece.row(row as usize);
                if self.pattern.pcre_is_match_until(value, stop)? {
                    on_match(from as u32 + row);
                }
            }
        }
        Ok(())
    }
}
