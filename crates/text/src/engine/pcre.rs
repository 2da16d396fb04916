//! Engine that runs PCRE2 on every value.

use super::Engine;
use crate::pattern::Pattern;
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// Engine for any pattern. A single value may take long, so the cancellation token is checked before and within each
/// value.
pub(crate) struct PcreEngine {
    pattern: Pattern,
}

impl PcreEngine {
    pub(crate) fn new(pattern: Pattern) -> PcreEngine {
        PcreEngine { pattern }
    }
}

impl Engine for PcreEngine {
    fn is_match(&self, value: &[u8]) -> bool {
        self.pattern.pcre_is_match(value)
    }

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        self.pattern.pcre_is_match_until(value, stop)
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        for index in 0..rows.len() {
            if self.pattern.pcre_is_match_until(rows.row(index), stop)? {
                on_match(index as u32);
            }
        }
        Ok(())
    }
}
