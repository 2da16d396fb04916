//! Turns of slow changes at the write lock of a collection.
//!
//! A change that takes long is computed without the lock, and is lost if another writer changes the document meanwhile.
//! On a document that is changed all the time, it would never be written. A change that has been lost therefore takes a
//! turn: it is computed again, under the lock. Turns hold the lock for at most a quarter of the time, and for at most
//! [`TURN_TIME_MAX`] each.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Maximum time of a turn.
const TURN_TIME_MAX: Duration = Duration::from_secs(1);
/// Minimum ratio of the pause after a turn to the duration of the turn.
const PAUSE_RATIO: u32 = 3;

/// The turns of one collection.
#[derive(Debug, Default)]
pub struct SlowTurns {
    /// End of the pause after the last turn.
    next: Mutex<Option<Instant>>,
}

impl SlowTurns {
    /// Begins a turn for a change whose last computation took `took`. Returns `None` during the pause after an earlier
    /// turn, and if the change would take longer than a turn may. The caller holds the write lock during the turn.
    pub fn begin(&self, took: Duration) -> Option<Turn<'_>> {
        self.begin_at(Instant::now(), took)
    }

    fn begin_at(&self, now: Instant, took: Duration) -> Option<Turn<'_>> {
        let is_pause = self.next.lock().is_some_and(|next| now < next);
        (!is_pause && took < TURN_TIME_MAX).then(|| Turn {
            turns: self,
            begun: now,
            until: now + (took * 2).min(TURN_TIME_MAX),
        })
    }

    fn end_at(&self, now: Instant, begun: Instant) {
        *self.next.lock() = Some(now + (now - begun) * PAUSE_RATIO);
    }
}

/// A turn. It ends when it is dropped.
#[derive(Debug)]
pub struct Turn<'a> {
    turns: &'a SlowTurns,
    begun: Instant,
    /// Time at which the turn ends. A turn takes at most twice the time of the change's last computation.
    pub until: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.end_at(Instant::now(), self.begun);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_are_bounded_in_time_and_in_share() {
        let turns = SlowTurns::default();
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let time = |now: Instant, took| {
            let turn = turns.begin_at(now, Duration::from_millis(took))?;
            let time = turn.until - now;
            std::mem::forget(turn);
            Some(time.as_millis())
        };
        assert_eq!(time(start, 70), Some(140));
        turns.end_at(at(80), start);
        assert_eq!(time(at(319), 70), None);
        assert_eq!(time(at(320), 1_000), None);
        assert_eq!(time(at(320), 999), Some(1_000));
        turns.end_at(at(1_320), at(320));
        assert_eq!(time(at(4_319), 1), None);
        assert_eq!(time(at(4_320), 1), Some(2));
    }

    #[test]
    fn a_turn_ends_when_it_is_dropped() {
        let turns = SlowTurns::default();
        let turn = turns.begin(Duration::ZERO).expect("no earlier turn");
        assert_eq!(*turns.next.lock(), None);
        drop(turn);
        assert!(turns.next.lock().is_some());
    }
}
