//! Slices of the tables of joins, made turn by turn. A slice that has no room for its rows is divided.
//!
//! How many rows a slice has is not known before if a join repeats rows. Then each turn is a launch of its own: first
//! the kernels that make the slices, then the one that adds totals. If a slice has no room, its kernel sets the flag.
//! The last kernel looks at the flag before its first row, as all do that repeat rows, so it adds nothing. The slice
//! is divided into halves, and the turn begins again with each of them. What earlier turns added stays.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use crate::engine::{Launch, MANY_MATCHES, Ran};
use crate::figures::Figures;
use crate::groups::Groups;
use crate::joined::MATCHES_MAX;
use crate::launches::{InMemory, first_alike, last, places_of};
use crate::reason::Reason;
use crate::slice::{SLICES_MAX, Turn};
use crate::source::Build;
use crate::work::{Ready, Work};

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of equal parts that a slice is divided into. If rows of a few keys are too many, smaller parts do
/// not help.
const PARTS_MAX: u64 = 16;

/// The turns after the last division, for later runs over the same columns. With them are the numbers of slices of
/// the tables before any division.
#[derive(Debug, Default)]
pub(crate) struct LastTurns(Mutex<Option<(Vec<u64>, Vec<Turn>)>>);

impl LastTurns {
    /// Returns the turns, if some are kept for these numbers of slices.
    fn get(&self, counts: &[u64]) -> Option<Vec<Turn>> {
        let last = self.0.lock();
        let (of, turns) = last.as_ref()?;
        (of == counts).then(|| turns.clone())
    }

    fn put(&self, counts: &[u64], turns: &[Turn]) {
        *self.0.lock() = Some((counts.to_vec(), turns.to_vec()));
    }
}

impl Ready {
    /// Returns whether each turn is a launch of its own.
    pub(crate) fn has_turns(&self) -> bool {
        let is_sliced = matches!(&self.joins[..], [joins] if joins.turns() > 1);
        is_sliced && self.compiled.repeats()
    }
}

impl Work {
    /// Makes the tables turn by turn, and adds totals to memory of the device after each turn. Without totals, the
    /// kernels only mark keys. `also` adds kernels to the last launch. Returns what each launch returned, up to one
    /// after which a table of groups or a list was full.
    ///
    /// # Errors
    /// If a slice has no room and cannot be divided, or the device cannot run the kernels.
    pub(crate) async fn in_turns(
        &self,
        ready: &Ready,
        adds: Option<(&Groups, &InMemory)>,
        mut also: impl FnMut(&mut Launch),
        figures: &mut Figures,
    ) -> Result<Vec<Ran>> {
        let (compiled, joins) = (&*ready.compiled, &ready.joins[0]);
        let (device, waits) = (ready.spread.devices[0], self.options.waits);
        let tables = (compiled.kernel.builds.as_slice(), joins.counts.as_slice());
        let kept = compiled.last_turns.get(&joins.counts);
        let mut turns = kept.unwrap_or_else(|| joins.turns.clone());
        let (mut ran, mut matches) = (Vec::<Ran>::new(), 0);
        while let Some(turn) = turns.get(ran.len()) {
            let turn = std::slice::from_ref(turn);
            let mut launch = match adds {
                Some((groups, totals)) => {
                    let of = (compiled, groups, joins, turn);
                    let on = (&ready.spread, device);
                    last(&ready.resident, of, on, Some(totals), waits)?
                }
                None => joins.made((&*ready.resident, compiled, device), turn, waits)?,
            };
            if !ran.is_empty() {
                launch.zeroed = None;
            }
            if ran.len() + 1 == turns.len() {
                also(&mut launch);
            }
            match self.run(device, launch, figures).await {
                Ok(of_turn) => {
                    matches += of_turn.matches();
                    if matches > MATCHES_MAX {
                        return Err(Reason::of_data(MANY_MATCHES));
                    }
                    ran.push(of_turn);
                }
                Err(reason) => {
                    if !divide(&mut turns, ran.len(), tables, &reason) {
                        return Err(reason);
                    }
                    compiled.last_turns.put(&joins.counts, &turns);
                }
            }
            if ran.last().is_some_and(Ran::is_full) {
                break;
            }
        }
        if turns.len() > joins.turns() {
            figures.table_slices = vec![turns.len() as u64];
        }
        Ok(ran)
    }

    /// Makes the tables turn by turn, and returns the marks of keys.
    ///
    /// # Errors
    /// As [`Work::in_turns`].
    pub(crate) async fn marked_in_turns(
        &self,
        ready: &Ready,
        figures: &mut Figures,
    ) -> Result<Vec<u32>> {
        let mut marks = vec![0; ready.compiled.mark_words];
        let ran = self.in_turns(ready, None, |_| (), figures).await?;
        for results in ran.iter().map(Ran::results) {
            for (all, mark) in marks.iter_mut().zip(results.as_chunks::<4>().0) {
                *all |= u32::from_le_bytes(*mark);
            }
        }
        Ok(marks)
    }
}

/// Divides the slices that had no room in the turn of index `first` into halves, in this turn and later ones. Returns
/// whether all of them can be divided.
fn divide(
    turns: &mut Vec<Turn>,
    first: usize,
    (builds, counts): (&[Build], &[u64]),
    reason: &Reason,
) -> bool {
    let Some(repeated) = reason.repeated() else {
        return false;
    };
    let is_full = |join: &usize| repeated.many_rows.contains(&builds[*join].kernel.of_source);
    let full: Vec<usize> = (0..builds.len()).filter(is_full).collect();
    // The tables of a build's own joins are whole.
    let are_slices = !full.is_empty() && full.len() == repeated.many_rows.len();
    if !are_slices || !repeated.same_keys.is_empty() {
        return false;
    }
    let firsts = full.iter().map(|join| first_alike(builds, *join));
    let firsts: BTreeSet<usize> = firsts.collect();
    firsts.into_iter().all(|join| {
        let alike = (0..builds.len()).filter(|it| first_alike(builds, *it) == join);
        let alike: Vec<usize> = alike.collect();
        let places = places_of(&builds[join]);
        let least = places.div_ceil(counts[join]) / PARTS_MAX;
        counts[join] > 1 && halve(turns, first, &alike, (places, least))
    })
}

/// Divides the slice that tables have in the turn of index `first` into halves, in this turn and later ones. `tables`
/// are those whose slices have the same rows, each of which has `places` in all. Returns whether that is possible:
/// not for a slice of at most `least` places or of one, or if the turns become too many.
fn halve(
    turns: &mut Vec<Turn>,
    first: usize,
    tables: &[usize],
    (places, least): (u64, u64),
) -> bool {
    let slice = turns[first][tables[0]];
    let halves = slice.halves(places).filter(|_| slice.count > least);
    let Some(halves) = halves else {
        return false;
    };
    for turn in turns.split_off(first) {
        if turn[tables[0]] != slice {
            turns.push(turn);
            continue;
        }
        for half in halves {
            let mut turn = turn.clone();
            for table in tables {
                turn[*table] = half;
            }
            turns.push(turn);
        }
    }
    turns.len() as u64 <= SLICES_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;

    const fn slice(first: u64, count: u64) -> Slice {
        Slice { first, count }
    }

    /// Returns the turns of three tables of 16 places. The first and the last have the same slices.
    fn turns() -> Vec<Turn> {
        let combined = [(0, 0), (8, 0), (0, 8), (8, 8)];
        let turns =
            combined.map(|(one, other)| [one, other, one].map(|first| slice(first, 8)).to_vec());
        turns.to_vec()
    }

    #[test]
    fn a_slice_is_divided_in_its_turn_and_in_later_ones() {
        let mut halved = turns();
        assert!(halve(&mut halved, 1, &[0, 2], (16, 0)));
        let (low, high) = (slice(8, 4), slice(12, 4));
        let [first, other] = [slice(0, 8), slice(8, 8)];
        let wanted = [
            [first, first, first],
            [low, first, low],
            [high, first, high],
            [first, other, first],
            [low, other, low],
            [high, other, high],
        ];
        assert_eq!(halved, wanted.map(|it| it.to_vec()));
        // What has run stays as it is.
        let mut halved = turns();
        assert!(halve(&mut halved, 2, &[1], (16, 0)));
        assert_eq!(halved[..2], turns()[..2]);
        assert_eq!(halved.len(), 6);
    }

    #[test]
    fn slices_of_few_places_are_not_divided() {
        let mut turns = turns();
        assert!(!halve(&mut turns, 0, &[1], (16, 8)));
        assert_eq!(turns.len(), 4);
        for left in [4, 2, 1] {
            assert!(halve(&mut turns, 0, &[1], (16, 0)));
            assert_eq!(turns[0][1], slice(0, left));
        }
        assert!(!halve(&mut turns, 0, &[1], (16, 0)));
    }

    #[test]
    fn turns_are_at_most_as_many_as_slices() {
        let mut turns = vec![vec![slice(0, 1 << 20)]];
        let mut halvings = 1;
        while halve(&mut turns, 0, &[0], (1 << 20, 0)) {
            halvings += 1;
            turns.rotate_left(2);
        }
        assert_eq!(halvings, SLICES_MAX);
    }
}
