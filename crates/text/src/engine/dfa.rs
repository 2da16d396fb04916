//! Host engine of the table automaton.
//!
//! If the pattern requires a literal and the literal is rare, a search for the literal finds candidate rows, and the
//! automaton reads only these rows. Otherwise the automaton reads all bytes, several rows at a time: a table look-up
//! depends only on the previous look-up of its row, so the processor overlaps look-ups of different rows.

use std::ops::Range;
use std::sync::Arc;

use memchr::memrchr;

use super::literal::{row_end, window};
use super::required::RequiredLiterals;
use super::{BYTES_PER_CHECK, Engine, next_piece};
use crate::automaton::Table;
use crate::form::{DeviceForm, DfaForm};
use crate::rows::{Rows, SEPARATOR};
use forebay_cancel::{Stop, Stopped};

/// Number of lanes: parts of a block that are read at the same time.
const LANES: usize = 8;

/// Bytes that are read from each lane between two checks for the end of the lane.
const STEP: usize = 16;

/// Minimum average distance of candidates, in bytes, at which a search for the literal is used. If candidates are
/// closer, reading all bytes is faster.
const BYTES_PER_CANDIDATE_MIN: usize = 96;

/// Number of candidates between two checks of the average distance of candidates.
const CANDIDATES_PER_LOOK: usize = 64;

/// Engine of a table automaton.
pub(crate) struct DfaEngine {
    table: Arc<Table>,
    required: Option<RequiredLiterals>,
}

impl DfaEngine {
    pub(crate) fn new(table: Arc<Table>, required: Option<RequiredLiterals>) -> DfaEngine {
        DfaEngine { table, required }
    }

    /// Calls `on_match` with a position in each matching row, in ascending order, while candidates are rare; returns
    /// the position from which the search must continue.
    fn find_candidates(
        &self,
        required: &RequiredLiterals,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut impl FnMut(usize),
    ) -> Result<usize, Stopped> {
        let span = rows.span();
        let bytes = &rows.bytes[..span.end];
        let mut at = span.start;
        while at < span.end {
            stop.check()?;
            let from = at;
            let window = window(bytes, at, required.bytes_max());
            let mut candidates = 0;
            while candidates < CANDIDATES_PER_LOOK && at < window.end {
                match required.find(&bytes[..window.end], at) {
                    Some(found) => {
                        let row = row_around(bytes, span.start, found);
                        if self.judge(&bytes[row.clone()], stop)? {
                            on_match(row.start);
                        }
                        at = row.end + 1;
                    }
                    None => {
                        at = at.max(window.next);
                        break;
                    }
                }
                candidates += 1;
            }
            if candidates == CANDIDATES_PER_LOOK && at - from < candidates * BYTES_PER_CANDIDATE_MIN
            {
                return Ok(at);
            }
        }
        Ok(span.end)
    }

    /// Returns whether a row matches; checks `stop` within a long row.
    fn judge(&self, row: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        if row.len() <= BYTES_PER_CHECK {
            return Ok(self.table.row_is_match(row));
        }
        self.table.row_is_match_until(row, stop)
    }

    /// Checks candidates from row `from` on while they are rare; returns the row from which all bytes must be read.
    /// Values are sorted, so a literal may be frequent in one range of rows and rare in the next.
    fn skip_ahead(
        &self,
        rows: Rows<'_>,
        from: usize,
        stop: &Stop,
        on_match: &mut impl FnMut(usize),
    ) -> Result<usize, Stopped> {
        let Some(required) = &self.required else {
            return Ok(from);
        };
        let ahead = rows.slice(from..rows.len());
        let at = self.find_candidates(required, ahead, stop, on_match)?;
        Ok(if at >= ahead.span().end {
            rows.len()
        } else {
            rows.row_at(at, from)
        })
    }

    /// Reads one step of every lane; calls `on_byte` with the lane, the byte's index in the step, and whether a
    /// matching row ends at this byte.
    #[inline(always)]
    #[expect(
        clippy::needless_range_loop,
        reason = "lanes advance together, byte by byte"
    )]
    fn step_abreast(
        &self,
        states: &mut [u16; LANES],
        chunks: &[&[u8; STEP]; LANES],
        mut on_byte: impl FnMut(usize, usize, bool),
    ) {
        for index in 0..STEP {
            for lane in 0..LANES {
                states[lane] = self.table.step(states[lane], chunks[lane][index]);
                on_byte(lane, index, self.table.is_hit(states[lane]));
            }
        }
    }

    fn count_abreast(&self, rows: Rows<'_>) -> u64 {
        let lanes = Lanes::new(rows);
        let mut states = [Table::START; LANES];
        let mut count = 0u64;
        for step in 0..lanes.steps {
            let mut hits = 0u32;
            self.step_abreast(&mut states, &lanes.chunks(step), |_, _, hit| {
                hits += u32::from(hit)
            });
            count += u64::from(hits);
        }
        for (lane, &state) in states.iter().enumerate() {
            self.finish_lane(&lanes, lane, state, &mut |_| count += 1);
        }
        count
    }

    /// Collects for each lane the positions of the separators after matching rows.
    fn search_abreast(&self, rows: Rows<'_>, ends: &mut [Vec<usize>; LANES]) {
        let lanes = Lanes::new(rows);
        let mut states = [Table::START; LANES];
        for step in 0..lanes.steps {
            self.step_abreast(&mut states, &lanes.chunks(step), |lane, index, hit| {
                if hit {
                    ends[lane].push(lanes.starts[lane] + step * STEP + index);
                }
            });
        }
        for (lane, &state) in states.iter().enumerate() {
            self.finish_lane(&lanes, lane, state, &mut |end| ends[lane].push(end));
        }
    }

    /// Reads the rest of a lane; calls `on_hit` with the separators after matching rows.
    fn finish_lane(
        &self,
        lanes: &Lanes<'_>,
        lane: usize,
        mut state: u16,
        on_hit: &mut impl FnMut(usize),
    ) {
        let from = lanes.starts[lane] + lanes.steps * STEP;
        for (index, &byte) in lanes.bytes[from..lanes.starts[lane + 1]].iter().enumerate() {
            state = self.table.step(state, byte);
            if self.table.is_hit(state) {
                on_hit(from + index);
            }
        }
    }
}

/// A block divided at row boundaries into lanes of similar size.
struct Lanes<'a> {
    bytes: &'a [u8],
    starts: [usize; LANES + 1],
    /// Number of full steps for which every lane has enough bytes.
    steps: usize,
}

impl<'a> Lanes<'a> {
    fn new(rows: Rows<'a>) -> Lanes<'a> {
        let span = rows.span();
        let mut starts = [span.start; LANES + 1];
        starts[LANES] = span.end;
        let mut row = 0;
        for (lane, start) in starts.iter_mut().enumerate().take(LANES).skip(1) {
            let target = span.start + (span.end - span.start) / LANES * lane;
            row = rows.row_at(target, row);
            *start = rows.offsets[row] as usize;
        }
        let shortest = starts
            .windows(2)
            .map(|pair| pair[1] - pair[0])
            .min()
            .unwrap_or(0);
        Lanes {
            bytes: rows.bytes,
            starts,
            steps: shortest / STEP,
        }
    }

    /// Returns the bytes of one step of every lane.
    #[inline(always)]
    fn chunks(&self, step: usize) -> [&'a [u8; STEP]; LANES] {
        std::array::from_fn(|lane| {
            let from = self.starts[lane] + step * STEP;
            self.bytes[from..from + STEP]
                .try_into()
                .expect("every lane has STEP bytes left in a full step")
        })
    }
}

impl Engine for DfaEngine {
    fn is_match(&self, value: &[u8]) -> bool {
        self.table.row_is_match(value)
    }

    fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        stop.check()?;
        self.table.row_is_match_until(value, stop)
    }

    fn device_form(&self, _stop: &Stop) -> Result<Option<DeviceForm>, Stopped> {
        Ok(Some(DeviceForm::Dfa(DfaForm::of_table(&self.table))))
    }

    fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        let mut row = 0;
        let mut report = |position: usize| {
            row = rows.row_at(position, row);
            on_match(row as u32);
        };
        let mut ends: [Vec<usize>; LANES] = Default::default();
        let mut from = self.skip_ahead(rows, 0, stop, &mut report)?;
        while from < rows.len() {
            stop.check()?;
            let to = next_piece(rows, from, BYTES_PER_CHECK);
            if rows.row(from).len() > BYTES_PER_CHECK {
                if self.table.row_is_match_until(rows.row(from), stop)? {
                    report(rows.offsets[from] as usize);
                }
            } else {
                ends.iter_mut().for_each(Vec::clear);
                self.search_abreast(rows.slice(from..to), &mut ends);
                ends.iter().flatten().for_each(|&end| report(end));
            }
            from = self.skip_ahead(rows, to, stop, &mut report)?;
        }
        Ok(())
    }

    fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        let mut count = 0;
        let mut from = self.skip_ahead(rows, 0, stop, &mut |_| count += 1)?;
        while from < rows.len() {
            stop.check()?;
            let to = next_piece(rows, from, BYTES_PER_CHECK);
            count += if rows.row(from).len() > BYTES_PER_CHECK {
                u64::from(self.table.row_is_match_until(rows.row(from), stop)?)
            } else {
                self.count_abreast(rows.slice(from..to))
            };
            from = self.skip_ahead(rows, to, stop, &mut |_| count += 1)?;
        }
        Ok(count)
    }
}

/// Returns the range of the row that contains byte `position`. The search for the start of this row goes back to
/// `block_start` at most, where a row starts.
fn row_around(bytes: &[u8], block_start: usize, position: usize) -> Range<usize> {
    let before = memrchr(SEPARATOR, &bytes[block_start..position]);
    let start = before.map_or(block_start, |at| block_start + at + 1);
    start..row_end(bytes, position)
}
