//! A DFA as one table over byte classes.
//!
//! States are numbered so that one comparison classifies them: first the start, then the other states, then `dead`
//! (this row cannot match any more), `matched` (this row matches) and `hit` (the previous row matched). The separator
//! leads from `matched` to `hit`, and from every other state to the start. The transitions of `hit` are those of the
//! start. So a search of a block only counts how often it reaches `hit`, without tracking where rows begin.

use std::collections::HashMap;

use super::TooLarge;
use super::minimize::Minimal;
use crate::engine::BYTES_PER_CHECK;
use crate::limits::Limits;
use crate::rows::SEPARATOR;
use forebay_cancel::{Stop, Stopped};

/// Entries of a table: all that a 16-bit index can address.
pub(crate) const ENTRIES: usize = 1 << 16;

/// The table of a DFA.
pub(crate) struct Table {
    /// Next states, indexed by the sum of state and byte class; states are multiples of the stride.
    next: Box<[u16; ENTRIES]>,
    classes: [u8; 256],
    states_count: usize,
    classes_count: usize,
    dead: u16,
    hit: u16,
}

impl Table {
    /// Bytes of a table; constant.
    pub(crate) const BYTES: usize = ENTRIES * size_of::<u16>();

    /// State at the start of a row.
    pub(crate) const START: u16 = 0;

    /// Returns the state after a byte.
    #[inline(always)]
    pub(crate) fn step(&self, state: u16, byte: u8) -> u16 {
        self.next[(state | u16::from(self.classes[byte as usize])) as usize]
    }

    /// Returns whether the row that just ended matches.
    #[inline(always)]
    pub(crate) fn is_hit(&self, state: u16) -> bool {
        state == self.hit
    }

    /// Returns whether the row is decided: it matches, or cannot match any more.
    #[inline(always)]
    pub(crate) fn is_decided(&self, state: u16) -> bool {
        state >= self.dead
    }

    /// Returns whether a row, given without its separator, matches.
    #[inline]
    pub(crate) fn row_is_match(&self, row: &[u8]) -> bool {
        self.is_accepted(self.walk(Table::START, row))
    }

    /// As [`row_is_match`](Table::row_is_match), but checks `stop` before every [`BYTES_PER_CHECK`] bytes.
    pub(crate) fn row_is_match_until(&self, row: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        let mut state = Table::START;
        for piece in row.chunks(BYTES_PER_CHECK) {
            stop.check()?;
            state = self.walk(state, piece);
            if self.is_decided(state) {
                break;
            }
        }
        Ok(self.is_accepted(state))
    }

    /// Returns the state after some bytes of a row, or the first state that decides the row.
    #[inline]
    fn walk(&self, mut state: u16, bytes: &[u8]) -> u16 {
        for &byte in bytes {
            state = self.step(state, byte);
            if self.is_decided(state) {
                break;
            }
        }
        state
    }

    /// Returns whether a row that ends in this state matches.
    #[inline]
    fn is_accepted(&self, state: u16) -> bool {
        self.is_hit(self.step(state, SEPARATOR))
    }

    pub(crate) fn states_count(&self) -> usize {
        self.states_count
    }

    /// Returns the state after a byte, with states numbered from 0: start first; dead, matched and hit last.
    pub(crate) fn successor(&self, state: usize, byte: u8) -> usize {
        let stride = self.classes_count.next_power_of_two();
        usize::from(self.step((state * stride) as u16, byte)) / stride
    }

    pub(crate) fn classes_count(&self) -> usize {
        self.classes_count
    }

    /// Returns the number of bytes of the class-compressed table on a device: one byte per entry if that suffices,
    /// otherwise two.
    pub(crate) fn device_bytes(&self) -> usize {
        device_bytes(self.states_count, self.classes_count)
    }

    /// Lays out a minimal DFA as a table, if it is within the limits.
    pub(crate) fn new(minimal: &Minimal, limits: &Limits) -> Result<Table, TooLarge> {
        let (classes, columns) = columns(&minimal.next);
        let states_count = minimal.next.len();
        let stride = columns.len().next_power_of_two();
        let bytes = device_bytes(states_count, columns.len());
        if states_count > limits.states_max
            || bytes > limits.dfa_bytes_max
            || states_count * stride > ENTRIES
        {
            return Err(format!(
                "a table of {states_count} states and {} classes ({bytes} bytes) exceeds the limits",
                columns.len()
            ));
        }
        let mut next: Box<[u16; ENTRIES]> = vec![0; ENTRIES]
            .into_boxed_slice()
            .try_into()
            .expect("the vector has as many entries as the array");
        for (state, row) in minimal.next.iter().enumerate() {
            for (class, &byte) in columns.iter().enumerate() {
                next[state * stride + class] = (row[byte as usize] as usize * stride) as u16;
            }
        }
        let id = |state: usize| (state * stride) as u16;
        let (dead, hit) = (id(states_count - 3), id(states_count - 1));
        Ok(Table {
            next,
            classes,
            states_count,
            classes_count: columns.len(),
            dead,
            hit,
        })
    }
}

fn device_bytes(states: usize, classes: usize) -> usize {
    states * classes * if states <= 256 { 1 } else { 2 }
}

/// Groups bytes with equal columns into classes; returns the class of each byte and one byte of each class.
fn columns(next: &[[u32; 256]]) -> ([u8; 256], Vec<u8>) {
    let mut classes = [0u8; 256];
    let mut representatives = Vec::new();
    let mut known: HashMap<Vec<u32>, u8> = HashMap::new();
    for byte in 0..=255u8 {
        let column: Vec<u32> = next.iter().map(|row| row[byte as usize]).collect();
        classes[byte as usize] = *known.entry(column).or_insert_with(|| {
            representatives.push(byte);
            (representatives.len() - 1) as u8
        });
    }
    (classes, representatives)
}
