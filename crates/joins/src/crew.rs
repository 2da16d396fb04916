//! The threads of a join. The first error or panic of a thread ends all threads.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, Builder, Scope, ScopedJoinHandle};
use std::time::Instant;

use forebay_cancel::{Stop, StopReason, Stopped};
use forebay_movement::MoveError;
use parking_lot::Mutex;

use crate::JoinError;

/// Rows that processors take from one cursor.
#[derive(Debug)]
pub(crate) struct Morsels {
    /// Index of the first row that is not taken; the number of rows or more if all are taken.
    next: AtomicU64,
    rows: u64,
}

impl Morsels {
    pub(crate) fn new(rows: u64) -> Morsels {
        Morsels {
            next: AtomicU64::new(0),
            rows,
        }
    }

    /// Takes at most `count` rows; `None` if all are taken.
    pub(crate) fn take(&self, count: u64) -> Option<Range<u64>> {
        let begin = self.next.fetch_add(count, Ordering::Relaxed);
        (begin < self.rows).then(|| begin..self.rows.min(begin + count))
    }

    /// Returns whether all rows are taken.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.load(Ordering::Relaxed) >= self.rows
    }
}

/// What the threads of a join share.
#[derive(Debug)]
pub(crate) struct Crew<'a> {
    stop: &'a Stop,
    has_failed: AtomicBool,
    /// The first error.
    error: Mutex<Option<JoinError>>,
    /// The time when the first table was complete.
    built: OnceLock<Instant>,
}

impl<'a> Crew<'a> {
    pub(crate) fn new(stop: &'a Stop) -> Crew<'a> {
        Crew {
            stop,
            has_failed: AtomicBool::new(false),
            error: Mutex::new(None),
            built: OnceLock::new(),
        }
    }

    /// Returns whether the join continues: no thread has failed, and it is not stopped. Each thread calls this before
    /// each morsel.
    pub(crate) fn may_continue(&self) -> bool {
        if self.has_failed.load(Ordering::Relaxed) {
            return false;
        }
        match self.stop.check() {
            Ok(()) => true,
            Err(stopped) => {
                self.fail(stopped.into());
                false
            }
        }
    }

    /// Checks that the join continues, as [`Crew::may_continue`] does.
    ///
    /// # Errors
    /// If the join must end. [`Crew::end`] returns the cause.
    pub(crate) fn check(&self) -> Result<(), JoinError> {
        let reason = StopReason::Cancelled;
        let stopped = || JoinError::from(Stopped { reason });
        self.may_continue().then_some(()).ok_or_else(stopped)
    }

    /// Runs `first` on a new thread and `second` on the caller's at the same time. Blocks until both have ended.
    ///
    /// # Errors
    /// The first error of either, of which [`Crew::may_continue`] tells the other; if the system refuses the thread.
    pub(crate) fn beside<A: Send, B>(
        self,
        first: impl FnOnce(&Crew<'_>) -> A + Send,
        second: impl FnOnce(&Crew<'_>) -> Result<B, JoinError>,
    ) -> Result<(A, B), JoinError> {
        let crew = &self;
        let done = thread::scope(|scope| {
            let running = crew.spawn(scope, move || Ok(first(crew)))?;
            let second = crew.guard(|| second(crew));
            Some((ended(running)?, second?))
        });
        self.end()?;
        Ok(done.expect("neither has failed"))
    }

    /// Notes that a table is complete.
    pub(crate) fn mark_built(&self) {
        self.built.get_or_init(Instant::now);
    }

    fn fail(&self, error: JoinError) {
        self.error.lock().get_or_insert(error);
        self.has_failed.store(true, Ordering::Relaxed);
    }

    /// Does some work of the join. Returns `None` if it fails or panics, which ends the join.
    pub(crate) fn guard<T>(&self, work: impl FnOnce() -> Result<T, JoinError>) -> Option<T> {
        let error = match catch_unwind(AssertUnwindSafe(work)) {
            Ok(Ok(value)) => return Some(value),
            Ok(Err(error)) => error,
            Err(panic) => JoinError::Panicked {
                why: message(panic.as_ref()),
            },
        };
        self.fail(error);
        None
    }

    /// Starts a thread that does some work of the join. Returns `None` if the system refuses the thread, which ends
    /// the join.
    pub(crate) fn spawn<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        work: impl FnOnce() -> Result<T, JoinError> + Send + 'scope,
    ) -> Option<ScopedJoinHandle<'scope, Option<T>>> {
        let thread = Builder::new().name("join".to_owned());
        match thread.spawn_scoped(scope, move || self.guard(work)) {
            Ok(running) => Some(running),
            Err(error) => {
                self.fail(MoveError::Thread(error).into());
                None
            }
        }
    }

    /// Does the same work on several threads. Blocks until all have ended; returns the results of those that have not
    /// failed.
    pub(crate) fn on_threads<T: Send>(
        &self,
        threads: usize,
        work: impl Fn() -> Result<T, JoinError> + Sync,
    ) -> Vec<T> {
        let work = &work;
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads.max(1))
                .filter_map(|_| self.spawn(scope, work))
                .collect();
            running.into_iter().filter_map(ended).collect()
        })
    }

    /// Processes each item once, on at most `threads` threads. Blocks until no item is left, or the crew must end.
    /// Returns the results in the order of their items, without those of items that were not processed.
    pub(crate) fn each<I: Send, T: Send>(
        &self,
        items: Vec<I>,
        threads: usize,
        work: impl Fn(I) -> Result<T, JoinError> + Sync,
    ) -> Vec<T> {
        let threads = threads.min(items.len());
        let left = Mutex::new(items.into_iter().enumerate());
        let results = self.on_threads(threads, || {
            let mut results = Vec::new();
            while self.may_continue() {
                let next = left.lock().next();
                let Some((index, item)) = next else {
                    break;
                };
                results.push((index, work(item)?));
            }
            Ok(results)
        });
        let mut results: Vec<(usize, T)> = results.into_iter().flatten().collect();
        results.sort_unstable_by_key(|(index, _)| *index);
        results.into_iter().map(|(_, result)| result).collect()
    }

    /// Returns the time when the first table was complete; now if none was.
    ///
    /// # Errors
    /// The first error of a thread.
    pub(crate) fn end(self) -> Result<Instant, JoinError> {
        match self.error.into_inner() {
            Some(error) => Err(error),
            None => Ok(self.built.into_inner().unwrap_or_else(Instant::now)),
        }
    }
}

/// Waits for a thread. Returns its result; `None` if it has failed.
pub(crate) fn ended<T>(running: ScopedJoinHandle<'_, Option<T>>) -> Option<T> {
    running.join().expect("panics are caught")
}

/// Returns what a thread panicked with.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn threads_take_each_row_once() {
        for (rows, count) in [(0, 3), (1, 3), (100_000, 7)] {
            let (stop, morsels) = (Stop::never(), Morsels::new(rows));
            let crew = Crew::new(&stop);
            let taken = crew.on_threads(4, || {
                let mut sums = (0, 0);
                while let Some(range) = morsels.take(count) {
                    assert!(range.end - range.start <= count);
                    sums.0 += range.end - range.start;
                    sums.1 += range.sum::<u64>();
                }
                Ok(sums)
            });
            crew.end().expect("nothing fails");
            assert!(morsels.is_empty());
            let all = taken
                .iter()
                .fold((0, 0), |all, it| (all.0 + it.0, all.1 + it.1));
            assert_eq!(all, (rows, rows * rows.saturating_sub(1) / 2));
        }
    }

    #[test]
    fn results_come_in_the_order_of_their_items() {
        for (items, threads) in [(0, 4), (1, 4), (1000, 1), (1000, 4)] {
            let stop = Stop::never();
            let crew = Crew::new(&stop);
            let squares = crew.each((0..items).collect(), threads, |item: u64| Ok(item * item));
            crew.end().expect("nothing fails");
            let expected: Vec<u64> = (0..items).map(|item| item * item).collect();
            assert_eq!(squares, expected, "{items} items, {threads} threads");
        }
    }

    /// Returns the error of a join of four threads: the first does `work`, the others run until the join ends.
    fn first_of_four(work: impl Fn() -> Result<(), JoinError> + Sync) -> JoinError {
        let stop = Stop::never();
        let (crew, threads) = (Crew::new(&stop), AtomicUsize::new(0));
        let results = crew.on_threads(4, || {
            if threads.fetch_add(1, Ordering::Relaxed) == 0 {
                return work();
            }
            while crew.may_continue() {
                thread::yield_now();
            }
            Ok(())
        });
        assert_eq!(results.len(), 3);
        crew.end().expect_err("a thread has failed")
    }

    #[test]
    fn an_error_or_a_panic_of_a_thread_ends_the_others_and_is_returned() {
        let error = first_of_four(|| {
            Err(JoinError::TooLittleMemory {
                needed: 7,
                given: 1,
            })
        });
        let is_error = matches!(error, JoinError::TooLittleMemory { needed: 7, .. });
        assert!(is_error, "{error}");
        let threads = AtomicUsize::new(7);
        let text = first_of_four(|| panic!("no luck in {threads:?}")).to_string();
        assert!(text.contains("panicked: no luck in 7;"), "{text}");
        let text = first_of_four(|| panic!("no luck")).to_string();
        assert!(text.contains("panicked: no luck;"), "{text}");
    }

    #[test]
    fn the_first_error_of_two_works_ends_the_other_and_is_returned() {
        fn wait(crew: &Crew<'_>) -> JoinError {
            loop {
                if let Err(ended) = crew.check() {
                    return ended;
                }
                thread::yield_now();
            }
        }
        fn own() -> JoinError {
            JoinError::Panicked {
                why: "own".to_owned(),
            }
        }
        fn fail(crew: &Crew<'_>) {
            crew.fail(own());
        }
        let stop = Stop::never();
        // The work on the thread ends because of the other, whose error is returned, and the other way round.
        let failed: Result<(JoinError, ()), _> = Crew::new(&stop).beside(wait, |_| Err(own()));
        let error = failed.expect_err("the second one fails");
        assert!(matches!(error, JoinError::Panicked { .. }), "{error}");
        let failed: Result<((), ()), _> = Crew::new(&stop).beside(fail, |crew| Err(wait(crew)));
        let error = failed.expect_err("the first one fails");
        assert!(matches!(error, JoinError::Panicked { .. }), "{error}");
        let both = Crew::new(&stop).beside(|_| 1, |_| Ok(2));
        assert_eq!(both.expect("neither fails"), (1, 2));
    }

    #[test]
    fn a_cancelled_join_ends() {
        let stop = Stop::never();
        let (crew, rounds) = (Crew::new(&stop), AtomicUsize::new(0));
        crew.on_threads(3, || {
            while crew.may_continue() {
                if rounds.fetch_add(1, Ordering::Relaxed) == 100 {
                    stop.cancelled.store(true, Ordering::Relaxed);
                }
            }
            Ok(())
        });
        let error = crew.end().expect_err("it is stopped");
        assert!(matches!(error, JoinError::Stopped(_)), "{error}");
    }
}
