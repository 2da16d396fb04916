//! What sessions do: the statements that run, those that were slow, and counts.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use datafusion::common::stats::Precision;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Code, Result, SqlError};

/// Number of slow statements that are kept.
const SLOW_MAX: usize = 20;
/// Maximum bytes of a statement's text that are kept and logged.
const TEXT_BYTES_MAX: usize = 2_000;

/// How a statement ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// All was done.
    Done,
    /// It failed.
    Failed,
    /// The client, its timeout or an administrator ended it, or the client did not ask for all rows.
    Stopped,
}

impl Ending {
    /// All endings.
    pub const ALL: [Ending; 3] = [Ending::Done, Ending::Failed, Ending::Stopped];

    /// Returns the name that logs and metrics use.
    pub fn name(self) -> &'static str {
        match self {
            Ending::Done => "done",
            Ending::Failed => "failed",
            Ending::Stopped => "stopped",
        }
    }
}

/// A statement that runs.
#[derive(Debug, Clone)]
pub struct RunningStatement {
    /// Its number, with which it can be cancelled.
    pub number: u64,
    /// The user whose statement it is.
    pub user: String,
    /// Its text, truncated.
    pub text: String,
    /// The time since its start.
    pub elapsed: Duration,
    /// Number of rows that it has read from tables.
    pub rows_read: u64,
    /// Estimated number of rows that it reads in all; `None` if it is not known.
    pub rows_to_read: Option<u64>,
    /// Number of rows that it has returned.
    pub rows: u64,
}

/// A statement that took long.
#[derive(Debug, Clone)]
pub struct SlowStatement {
    /// The time of its end.
    pub at: SystemTime,
    /// The user whose statement it was.
    pub user: String,
    /// Its text, truncated.
    pub text: String,
    /// How long it took, with the time in which the client took the rows.
    pub took: Duration,
    /// Number of rows that it returned.
    pub rows: u64,
    /// How it ended.
    pub ending: Ending,
}

/// Counts since the start of the server.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Open sessions.
    pub sessions: usize,
    /// Number of statements by how they ended, in the order of [`Ending::ALL`].
    pub statements: [u64; Ending::ALL.len()],
    /// Number of statements that were slow.
    pub slow: u64,
    /// Time that all statements took together.
    pub time: Duration,
    /// Number of rows returned.
    pub rows: u64,
    /// Number of queries whose plan was kept from before.
    pub plans_found: u64,
    /// Number of queries that were planned.
    pub plans_made: u64,
    /// Number of queries that ran with a physical plan from before.
    pub plans_run_again: u64,
}

/// The activity of all sessions.
#[derive(Debug)]
pub(crate) struct Activity {
    slow_from: Duration,
    running: Mutex<BTreeMap<u64, Arc<Running>>>,
    next: AtomicU64,
    slow: Mutex<VecDeque<SlowStatement>>,
    sessions: AtomicUsize,
    statements: [AtomicU64; Ending::ALL.len()],
    slow_count: AtomicU64,
    time_ns: AtomicU64,
    rows: AtomicU64,
    plans_found: AtomicU64,
    plans_made: AtomicU64,
    plans_run_again: AtomicU64,
}

/// A statement that runs, as it is kept.
#[derive(Debug)]
struct Running {
    user: String,
    text: String,
    start: Instant,
    rows: AtomicU64,
    plan: OnceLock<Weak<dyn ExecutionPlan>>,
    cancel: watch::Sender<bool>,
}

/// The run of a statement. Dropping it ends the run.
#[derive(Debug)]
pub(crate) struct Run {
    activity: Arc<Activity>,
    number: u64,
    running: Arc<Running>,
    cancelled: watch::Receiver<bool>,
    ending: Option<Ending>,
}

/// Keeps a session counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Counted(Arc<Activity>);

impl Activity {
    /// Statements that take `slow_from` or longer are logged.
    pub(crate) fn new(slow_from: Duration) -> Arc<Activity> {
        Arc::new(Activity {
            slow_from,
            running: Mutex::default(),
            next: AtomicU64::new(1),
            slow: Mutex::default(),
            sessions: AtomicUsize::new(0),
            statements: Default::default(),
            slow_count: AtomicU64::new(0),
            time_ns: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            plans_found: AtomicU64::new(0),
            plans_made: AtomicU64::new(0),
            plans_run_again: AtomicU64::new(0),
        })
    }

    /// Counts a session.
    pub(crate) fn session(self: &Arc<Self>) -> Counted {
        self.sessions.fetch_add(1, Ordering::Relaxed);
        Counted(Arc::clone(self))
    }

    /// Counts a query that was planned, or whose plan was found.
    pub(crate) fn count_plan(&self, is_found: bool) {
        let counter = if is_found {
            &self.plans_found
        } else {
            &self.plans_made
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a query that runs with a physical plan from before.
    pub(crate) fn count_plan_again(&self) {
        self.plans_run_again.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins to run a statement.
    pub(crate) fn begin(self: &Arc<Self>, user: &str, text: &str) -> Run {
        let (cancel, cancelled) = watch::channel(false);
        let running = Arc::new(Running {
            user: user.to_owned(),
            text: shortened(text),
            start: Instant::now(),
            rows: AtomicU64::new(0),
            plan: OnceLock::new(),
            cancel,
        });
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.running.lock().insert(number, Arc::clone(&running));
        Run {
            activity: Arc::clone(self),
            number,
            running,
            cancelled,
            ending: None,
        }
    }

    /// Returns the statements that run, the oldest first, at most `limit`.
    pub(crate) fn running(&self, limit: usize) -> Vec<RunningStatement> {
        let running: Vec<(u64, Arc<Running>)> = {
            let running = self.running.lock();
            let oldest = running.iter().take(limit);
            oldest
                .map(|(number, it)| (*number, Arc::clone(it)))
                .collect()
        };
        let status = |(number, it): (u64, Arc<Running>)| {
            let plan = it.plan.get().and_then(Weak::upgrade);
            let reads = plan.as_ref().map(reads).unwrap_or_default();
            RunningStatement {
                number,
                user: it.user.clone(),
                text: it.text.clone(),
                elapsed: it.start.elapsed(),
                rows_read: reads.done,
                rows_to_read: reads.of,
                rows: it.rows.load(Ordering::Relaxed),
            }
        };
        running.into_iter().map(status).collect()
    }

    /// Returns the last slow statements, the newest first.
    pub(crate) fn slow(&self) -> Vec<SlowStatement> {
        self.slow.lock().iter().rev().cloned().collect()
    }

    /// Cancels a statement. Returns whether it was running.
    pub(crate) fn cancel(&self, number: u64) -> bool {
        let running = self.running.lock();
        let found = running.get(&number);
        found.is_some_and(|it| it.cancel.send(true).is_ok())
    }

    pub(crate) fn figures(&self) -> Figures {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Figures {
            sessions: self.sessions.load(Ordering::Relaxed),
            statements: self.statements.each_ref().map(read),
            slow: read(&self.slow_count),
            time: Duration::from_nanos(read(&self.time_ns)),
            rows: read(&self.rows),
            plans_found: read(&self.plans_found),
            plans_made: read(&self.plans_made),
            plans_run_again: read(&self.plans_run_again),
        }
    }

    fn end(&self, run: &Run) {
        self.running.lock().remove(&run.number);
        let ending = run.ending.unwrap_or(Ending::Stopped);
        let (it, took) = (&run.running, run.running.start.elapsed());
        let rows = it.rows.load(Ordering::Relaxed);
        self.statements[ending as usize].fetch_add(1, Ordering::Relaxed);
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.time_ns.fetch_add(ns, Ordering::Relaxed);
        self.rows.fetch_add(rows, Ordering::Relaxed);
        if took < self.slow_from {
            return;
        }
        self.slow_count.fetch_add(1, Ordering::Relaxed);
        tracing::info!(
            target: "slow_statement",
            ms = took.as_millis() as u64,
            user = it.user,
            rows,
            ending = ending.name(),
            statement = it.text,
            "slow statement"
        );
        let mut slow = self.slow.lock();
        if slow.len() == SLOW_MAX {
            slow.pop_front();
        }
        slow.push_back(SlowStatement {
            at: SystemTime::now(),
            user: it.user.clone(),
            text: it.text.clone(),
            took,
            rows,
            ending,
        });
    }
}

impl Run {
    /// Tells of which plan the rows are.
    pub(crate) fn set_plan(&self, plan: &Arc<dyn ExecutionPlan>) {
        let _ = self.running.plan.set(Arc::downgrade(plan));
    }

    /// Does a part of the statement, until it is cancelled.
    ///
    /// # Errors
    /// Those of the part, or that the statement was cancelled.
    pub(crate) async fn part<T>(&mut self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let result = tokio::select! {
            biased;
            result = work => result,
            _ = self.cancelled.wait_for(|is_cancelled| *is_cancelled) => {
                let message = "canceling statement due to an administrator's request";
                Err(SqlError::new(Code::QueryCanceled, message))
            }
        };
        if let Err(error) = &result {
            self.ending = Some(match error.code {
                Code::QueryCanceled => Ending::Stopped,
                _ => Ending::Failed,
            });
        }
        result
    }

    /// Counts rows that were returned.
    pub(crate) fn add_rows(&self, rows: usize) {
        self.running.rows.fetch_add(rows as u64, Ordering::Relaxed);
    }

    /// Records that all was done.
    pub(crate) fn done(&mut self) {
        self.ending.get_or_insert(Ending::Done);
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.activity.end(self);
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Returns a text, or its beginning if it is long.
fn shortened(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    format!("{}...", &text[..end])
}

/// Rows that are read from tables.
#[derive(Debug, Default)]
struct Reads {
    done: u64,
    /// `None` if the number of a table's rows is not known.
    of: Option<u64>,
}

/// Returns the number of rows that the leaves of a plan returned so far.
pub(crate) fn rows_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    leaves(plan).into_iter().map(read_by).sum()
}

fn reads(plan: &Arc<dyn ExecutionPlan>) -> Reads {
    let leaves = leaves(plan);
    let estimated = leaves.iter().map(|leaf| {
        let context = StatisticsContext::new();
        let statistics = context
            .compute(leaf.as_ref(), &StatisticsArgs::new())
            .ok()?;
        match statistics.num_rows {
            Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows as u64),
            Precision::Absent => None,
        }
    });
    Reads {
        of: estimated.sum(),
        done: leaves.into_iter().map(read_by).sum(),
    }
}

fn read_by(leaf: &Arc<dyn ExecutionPlan>) -> u64 {
    let rows = leaf.metrics().and_then(|metrics| metrics.output_rows());
    rows.map_or(0, |rows| rows as u64)
}

/// Returns the operators of a plan that have no inputs.
fn leaves(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    let (mut found, mut left) = (Vec::new(), vec![plan]);
    while let Some(plan) = left.pop() {
        let children = plan.children();
        if children.is_empty() {
            found.push(plan);
        }
        left.extend(children);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_counted_by_its_end() {
        let activity = Activity::new(Duration::ZERO);
        let mut run = activity.begin("ada", "SELECT 1");
        assert_eq!(activity.running(9)[0].text, "SELECT 1");
        run.add_rows(3);
        run.done();
        drop(run);
        drop(activity.begin("ada", "SELECT 2"));
        assert!(activity.running(9).is_empty());
        let figures = activity.figures();
        assert_eq!(
            (figures.statements, figures.rows, figures.slow),
            ([1, 0, 1], 3, 2)
        );
        let slow: Vec<_> = activity
            .slow()
            .into_iter()
            .map(|it| (it.text, it.ending))
            .collect();
        assert_eq!(
            slow,
            [
                ("SELECT 2".to_owned(), Ending::Stopped),
                ("SELECT 1".to_owned(), Ending::Done)
            ]
        );
    }

    #[test]
    fn few_slow_statements_and_short_texts_are_kept() {
        let activity = Activity::new(Duration::ZERO);
        for number in 0..SLOW_MAX + 5 {
            drop(activity.begin(
                "ada",
                &format!("SELECT {number} {}", "ä".repeat(TEXT_BYTES_MAX)),
            ));
        }
        let slow = activity.slow();
        assert_eq!(slow.len(), SLOW_MAX);
        assert!(slow[0].text.starts_with("SELECT 24") && slow[0].text.len() < TEXT_BYTES_MAX + 4);
        assert!(slow.iter().all(|it| it.text.ends_with("...")));
    }

    #[tokio::test]
    async fn a_cancelled_run_fails() {
        let activity = Activity::new(Duration::MAX);
        let mut run = activity.begin("ada", "SELECT 1");
        assert!(activity.cancel(run.number) && !activity.cancel(run.number + 1));
        let error = run.part(std::future::pending::<Result<()>>()).await;
        assert_eq!(error.expect_err("cancelled").code, Code::QueryCanceled);
        drop(run);
        assert_eq!(activity.figures().statements, [0, 0, 1]);
    }
}
