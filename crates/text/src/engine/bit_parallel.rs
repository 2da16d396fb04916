//! The bit-parallel automaton on the host, row by row: the twin of the kernel that keeps it in registers.

use super::{Engine, search_each};
use crate::automaton::Glushkov;
use crate::form::{DeviceForm, GlushkovForm};
use crate::rows::Rows;
use forebay_cancel::{Stop, Stopped};

/// The engine of a Glushkov automaton.
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

    fn device_form(&self) -> Option<DeviceForm> {
        GlushkovForm::new(&self.automaton).map(DeviceForm::Glushkov)
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        search_each(rows, stop, |row| self.automaton.row_is_match(row), on_match)
    }
}
