//! Host engine of the bit-parallel automaton, row by row. A GPU kernel runs the same automaton in registers.

use super::{Engine, search_each};
use crate::automaton::Glushkov;
use crate::form::{DeviceForm, GlushkovForm};
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// Engine of a Glushkov automaton.
pub(crate) struct BitParallelEngine {
    automaton: Glushkov,
}

impl BitParallelEngine {
    pub(crate) fn new(automaton: Glushkov) -> BitParallelEngine {
        BitParallelEngine { automaton }
    }
}

impl Engine for BitParallelEngine {
    fn is_match(&self, value: &[u8]) -> bool {
        self.automaton.row_is_match(value)
    }

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        self.automaton.row_is_match_until(value, stop)
    }

    fn device_form(&self, _stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        Ok(GlushkovForm::new(&self.automaton).map(DeviceForm::Glushkov))
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        search_each(self, rows, stop, on_match)
    }
}
