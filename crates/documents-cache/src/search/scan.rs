//! Scanning rows with a program, as a job on a device or on host threads.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use forebay_cancel::{Stop, Stopped};
use forebay_device::{Device, DeviceContext, DeviceFault, Job, JobError, JobFailure, Step};
use forebay_memory::{Full, Share as MemoryShare};
use forebay_text::{Program, Rows, Tier};
use tokio::sync::oneshot;

use super::pool::Pool;
use super::sink::Sink;
use super::threads::{spawn, until_stopped};
use crate::answer::{DeviceReport, SearchReport};
use crate::error::SearchError;
use crate::segment::Segment;

/// Time slice of a scan's job on a device. After it, the device runs its next job.
const STEP: Duration = Duration::from_millis(4);
/// Target time between two checks of the clock.
const PIECE: Duration = Duration::from_millis(1);
/// Number of rows scanned before the first check of the clock. It is small, because the program may be slow. If the
/// program is fast, the number soon grows.
const PIECE_ROWS_FIRST: usize = 512;
/// Maximum rows between two checks of the clock.
const PIECE_ROWS_MAX: usize = 1 << 17;
/// Maximum bytes of a scan that runs immediately on the caller's thread. Only programs of a fast tier run there.
const INLINE_BYTES_MAX: u64 = 32 << 10;

/// Guard that a search owns; dropping it ends the scans of the search.
#[derive(Debug, Default)]
pub(super) struct Abandon {
    flag: Arc<AtomicBool>,
}

impl Abandon {
    pub(super) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }
}

impl Drop for Abandon {
    fn drop(&mut self) {
        self.flag.store(true, Ordering::Relaxed);
    }
}

/// Ends the scans of a condition once they have found enough rows in total.
#[derive(Debug, Clone)]
pub(super) struct MatchLimit {
    found: Arc<AtomicUsize>,
    rows_max: usize,
}

impl MatchLimit {
    pub(super) fn up_to(rows_max: usize) -> MatchLimit {
        MatchLimit {
            found: Arc::default(),
            rows_max,
        }
    }

    /// Returns the same limit with the count of found rows reset to 0.
    fn restarted(&self) -> MatchLimit {
        MatchLimit::up_to(self.rows_max)
    }

    /// Returns the number of rows after which the search may end.
    pub(super) fn rows_max(&self) -> u64 {
        self.rows_max as u64
    }

    fn is_reached(&self) -> bool {
        self.rows_max != usize::MAX && self.found.load(Ordering::Relaxed) >= self.rows_max
    }

    fn add(&self, rows: u64) {
        if self.rows_max != usize::MAX {
            self.found.fetch_add(rows as usize, Ordering::Relaxed);
        }
    }
}

/// Rows of one segment to scan.
#[derive(Debug, Clone)]
pub(super) struct Task {
    segment: Segment,
    pub(super) rows: Range<usize>,
    /// Position of the segment's bucket among the buckets of the search.
    pub(super) bucket: usize,
}

impl Task {
    /// Creates a task. Returns `None` if `rows` is empty.
    pub(super) fn new(segment: &Segment, rows: Range<usize>, bucket: usize) -> Option<Task> {
        (!rows.is_empty()).then(|| Task {
            segment: segment.clone(),
            rows,
            bucket,
        })
    }

    pub(super) fn bytes(&self) -> u64 {
        self.segment.block().span_bytes(&self.rows)
    }
}

/// Where rows are scanned.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// On the device that holds the rows.
    Device(Arc<Device>),
    /// On host threads, for buckets that no device holds.
    Host,
    /// On a host thread, for the delta.
    Delta,
}

/// What to search for, and when to stop.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) program: Arc<Program>,
    pub(super) stop: Stop,
    pub(super) abandoned: Arc<AtomicBool>,
    pub(super) limit: MatchLimit,
    pub(super) empty: Sink,
    /// Reservation in the memory account for the documents found.
    pub(super) held: Arc<MemoryShare>,
}

/// The matches of a scan, and the time that it took.
#[derive(Debug)]
struct Outcome {
    sink: Sink,
    busy: Duration,
}

/// One member's share of a pool.
#[derive(Debug, Clone)]
pub(super) struct Share {
    pub(super) pool: Arc<Pool>,
    pub(super) member: usize,
}

impl Share {
    fn order(&self) -> Vec<usize> {
        self.pool.order(self.member)
    }

    /// Returns the numbers of buckets and rows that this member has searched.
    fn searched(&self) -> (usize, u64) {
        let (mut buckets, mut rows) = (0, 0);
        for unit in self.pool.taken(self.member) {
            buckets += 1;
            rows += rows_of(self.pool.tasks(unit));
        }
        (buckets, rows)
    }
}

fn rows_of(tasks: &[Task]) -> u64 {
    tasks.iter().map(|task| task.rows.len() as u64).sum()
}

/// Progress of a scan through its share of a pool.
#[derive(Debug)]
struct Progress {
    share: Share,
    order: Order,
    sink: Sink,
    /// Bytes of the sink that are already charged to the memory account.
    charged: usize,
    busy: Duration,
    /// Buckets that this member took earlier and must search again, because the device that searched them was lost.
    again: Vec<usize>,
    /// Buckets to take later, in reverse order: the next bucket is at the end. Buckets that another member has taken
    /// are skipped.
    ahead: Vec<usize>,
    /// The bucket being searched.
    unit: Option<usize>,
    task: usize,
    row: usize,
    piece_rows: usize,
}

impl Progress {
    fn new(share: &Share, order: Order) -> Progress {
        let mut ahead = share.order();
        ahead.reverse();
        Progress {
            share: share.clone(),
            sink: order.empty.clone(),
            charged: 0,
            order,
            busy: Duration::ZERO,
            // Empty unless this member's device was lost during an earlier attempt.
            again: share.pool.taken(share.member).collect(),
            ahead,
            unit: None,
            task: 0,
            row: 0,
            piece_rows: PIECE_ROWS_FIRST,
        }
    }

    /// Moves to the next bucket that no other member has taken.
    fn next_unit(&mut self) {
        let Share { pool, member } = &self.share;
        let free = |ahead: &mut Vec<usize>| {
            std::iter::from_fn(|| ahead.pop()).find(|unit| pool.take(*unit, *member))
        };
        self.unit = self.again.pop().or_else(|| free(&mut self.ahead));
        self.go_to_task(0);
    }

    fn go_to_task(&mut self, task: usize) {
        let tasks = self
            .unit
            .map_or(&[][..], |unit| self.share.pool.tasks(unit));
        (self.task, self.row) = (task, tasks.get(task).map_or(0, |task| task.rows.start));
    }

    /// Scans for about `time`. Returns true when the scan has ended.
    fn advance(
        &mut self,
        time: Duration,
        mut check: impl FnMut() -> Result<(), ScanEnd>,
    ) -> Result<bool, ScanEnd> {
        let began = Instant::now();
        let mut done = self.is_ended();
        while !done && began.elapsed() < time {
            check()?;
            self.order.stop.check().map_err(ScanEnd::Stopped)?;
            done = !self.piece()? || self.is_ended();
        }
        self.busy += began.elapsed();
        Ok(done)
    }

    /// Returns whether the limit is reached or the search has been dropped.
    fn is_ended(&self) -> bool {
        self.order.limit.is_reached() || self.order.abandoned.load(Ordering::Relaxed)
    }

    /// Scans the next rows. Returns false if no rows are left.
    fn piece(&mut self) -> Result<bool, ScanEnd> {
        if self.unit.is_none() {
            self.next_unit();
        }
        let Some(unit) = self.unit else {
            return Ok(false);
        };
        let pool = Arc::clone(&self.share.pool);
        let tasks = pool.tasks(unit);
        let task = &tasks[self.task];
        let end = task.rows.end.min(self.row + self.piece_rows);
        let (before, began) = (self.sink.count(), Instant::now());
        self.search(&task.segment, self.row..end)?;
        self.sink
            .charge(&mut self.charged, &self.order.held)
            .map_err(ScanEnd::NoRoom)?;
        self.adapt(end - self.row, began.elapsed());
        self.order.limit.add(self.sink.count() - before);
        self.row = end;
        if end == task.rows.end {
            self.finish_task(tasks.len());
        }
        Ok(true)
    }

    fn finish_task(&mut self, tasks: usize) {
        if self.task + 1 < tasks {
            self.go_to_task(self.task + 1);
        } else {
            self.unit = None;
        }
    }

    /// Adapts the size of the next piece to the time that this piece took.
    fn adapt(&mut self, rows: usize, took: Duration) {
        if took > PIECE * 2 {
            self.piece_rows = (rows / 2).max(1);
        } else if took < PIECE / 2 && rows == self.piece_rows {
            self.piece_rows = (rows * 2).min(PIECE_ROWS_MAX);
        }
    }

    fn search(&mut self, segment: &Segment, range: Range<usize>) -> Result<(), ScanEnd> {
        let Order { program, stop, .. } = &self.order;
        let rows: Rows<'_> = segment.block().rows().slice(range.clone());
        let sink = &mut self.sink;
        let outcome = match sink {
            Sink::Count(count) if !segment.has_deleted() => program
                .count_rows(rows, stop)
                .map(|matches| *count += matches),
            _ => program.search_rows(rows, stop, &mut |row| {
                let row = range.start + row as usize;
                if !segment.is_deleted(row) {
                    sink.add_row(segment, row);
                }
            }),
        };
        outcome.map_err(ScanEnd::Stopped)
    }

    fn outcome(&mut self) -> Outcome {
        Outcome {
            sink: std::mem::replace(&mut self.sink, self.order.empty.empty_like()),
            busy: self.busy,
        }
    }
}

/// Why a scan ended early.
#[derive(Debug)]
enum ScanEnd {
    Stopped(Stopped),
    NoRoom(Full),
    Fault(DeviceFault),
}

/// Scans to the end on the current thread.
fn scan_here(share: &Share, order: Order) -> Result<Outcome, SearchError> {
    let mut progress = Progress::new(share, order);
    while !progress.advance(STEP, || Ok(())).map_err(stopped)? {}
    Ok(progress.outcome())
}

fn stopped(end: ScanEnd) -> SearchError {
    match end {
        ScanEnd::Stopped(stopped) => stopped.into(),
        ScanEnd::NoRoom(full) => SearchError::NoRoom(full),
        // Only a device's check returns a fault, and this scan runs on no device.
        ScanEnd::Fault(_) => SearchError::Panicked,
    }
}

/// A scan as a job on a device.
struct ScanJob {
    progress: Progress,
    answer: Option<oneshot::Sender<Result<Outcome, SearchError>>>,
}

impl Job for ScanJob {
    fn stop(&self) -> Option<&Stop> {
        Some(&self.progress.order.stop)
    }

    fn fail(&mut self, failure: &JobFailure) {
        if let (JobFailure::Stopped(stopped), Some(answer)) = (failure, self.answer.take()) {
            // Sending fails only if the search was dropped.
            let _ = answer.send(Err(SearchError::from(*stopped)));
        }
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let check = || context.check().map_err(ScanEnd::Fault);
        let outcome = match self.progress.advance(STEP, check) {
            Ok(false) => return Ok(Step::Again),
            Ok(true) => Ok(self.progress.outcome()),
            Err(ScanEnd::Fault(fault)) => return Err(fault.into()),
            Err(end) => Err(stopped(end)),
        };
        if let Some(answer) = self.answer.take() {
            // Sending fails only if the search was dropped.
            drop(answer.send(outcome));
        }
        Ok(Step::Done)
    }
}

/// A running scan.
pub(super) struct Scan {
    place: Place,
    share: Share,
    order: Order,
    running: Running,
}

enum Running {
    OnDevice(oneshot::Receiver<Result<Outcome, SearchError>>),
    OnHost(tokio::task::JoinHandle<Result<Outcome, SearchError>>),
    Done(Outcome),
}

impl Scan {
    /// Starts a scan: on the device in `place`, if there is one and it accepts the scan, otherwise on the host.
    pub(super) fn begin(place: Place, share: Share, order: Order) -> Result<Scan, SearchError> {
        let mut scan = Scan {
            running: Running::Done(Outcome {
                sink: order.empty.clone(),
                busy: Duration::ZERO,
            }),
            place,
            share,
            order,
        };
        scan.start()?;
        Ok(scan)
    }

    fn start(&mut self) -> Result<(), SearchError> {
        if let Some(receiver) = self.submit() {
            self.running = Running::OnDevice(receiver);
        } else if self.is_small() {
            self.running = Running::Done(scan_here(&self.share, self.order.clone())?);
        } else {
            self.start_on_host();
        }
        Ok(())
    }

    fn submit(&mut self) -> Option<oneshot::Receiver<Result<Outcome, SearchError>>> {
        let Place::Device(device) = &self.place else {
            return None;
        };
        // PCRE2 may take very long for one value, during which the device's other searches would wait.
        if self.order.program.backtracks() {
            return None;
        }
        let (sender, receiver) = oneshot::channel();
        let job = ScanJob {
            progress: Progress::new(&self.share, self.order.clone()),
            answer: Some(sender),
        };
        match device.submit(Box::new(job)) {
            Ok(()) => Some(receiver),
            Err(error) => {
                tracing::debug!(%error, "a scan runs on the host instead of its device");
                self.leave_device();
                None
            }
        }
    }

    /// Makes the report count the scan's buckets as searched by the host, not by the device.
    fn leave_device(&mut self) {
        if let Place::Device(_) = &self.place {
            self.place = Place::Host;
        }
    }

    fn is_small(&self) -> bool {
        let fast = self.order.program.tier() < Tier::LargeDfa;
        fast && self.share.pool.bytes() <= INLINE_BYTES_MAX
    }

    fn start_on_host(&mut self) {
        let (share, order) = (self.share.clone(), self.order.clone());
        self.running = Running::OnHost(spawn(move || scan_here(&share, order)));
    }

    /// Waits for the scan. If its device is lost, repeats the scan on the host.
    pub(super) async fn finish(mut self, report: &mut SearchReport) -> Result<Sink, SearchError> {
        if let Running::OnDevice(receiver) = &mut self.running {
            match until_stopped(&self.order.stop, receiver).await? {
                Ok(outcome) => self.running = Running::Done(outcome?),
                Err(_) => {
                    // The device's matches are lost with it, and must not count towards the limit.
                    self.order.limit = self.order.limit.restarted();
                    self.leave_device();
                    self.start_on_host();
                }
            }
        }
        if let Running::OnHost(handle) = &mut self.running {
            let outcome = until_stopped(&self.order.stop, handle).await?;
            self.running = Running::Done(outcome.map_err(|_| SearchError::Panicked)??);
        }
        let Running::Done(outcome) = self.running else {
            unreachable!("awaited above");
        };
        report_scan(&self.place, &self.share, outcome.busy, report);
        Ok(outcome.sink)
    }
}

fn report_scan(place: &Place, share: &Share, busy: Duration, report: &mut SearchReport) {
    let (buckets, rows) = share.searched();
    if buckets == 0 {
        return;
    }
    let busy_us = u64::try_from(busy.as_micros()).unwrap_or(u64::MAX);
    match place {
        Place::Device(device) => {
            let entry = device_entry(report, device.name());
            entry.buckets += buckets;
            entry.rows += rows;
            entry.device_us += busy_us;
        }
        Place::Host => {
            report.host.buckets += buckets;
            report.host.rows += rows;
            report.host.host_us += busy_us;
        }
        Place::Delta => {
            report.host.delta_rows += rows;
            report.host.host_us += busy_us;
        }
    }
}

/// Returns the report's entry for a device. Adds the entry if it is missing.
pub(super) fn device_entry<'a>(report: &'a mut SearchReport, name: &str) -> &'a mut DeviceReport {
    let known = report.devices.iter().position(|device| device.name == name);
    let index = known.unwrap_or_else(|| {
        report.devices.push(DeviceReport {
            name: name.to_owned(),
            buckets: 0,
            rows: 0,
            device_us: 0,
        });
        report.devices.len() - 1
    });
    &mut report.devices[index]
}
