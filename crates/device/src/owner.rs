//! The thread that owns a device: only this thread runs the device's jobs.

use std::any::Any;
use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::Awaited;
use crate::queue::{Queued, Ready};
use crate::{Class, DeviceContext, DeviceFault, JobError, JobFailure, Step};

/// How long a GPU thread spins for the next job after a step of an interactive job, before it sleeps. This
/// is longer than a client pauses between back-to-back searches, so that the next search finds the thread awake: a
/// wake-up (about 50 us) is a large part of a search.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// How long a GPU thread spins for the work of an interactive job on the device. A kernel over some gigabytes takes a
/// few milliseconds. Polls between sleeps would find its end up to an eighth later, while a client waits.
const KERNEL_SPIN_TIME: Duration = Duration::from_millis(5);

/// How long a GPU thread spins after a step of a load job. This is longer than the time between two pieces of a large
/// load: 16 cores lay out a piece in 35 us (1 MiB) to 320 us (8 MiB). So the thread is awake when the next piece
/// arrives, and frees the pinned memory of a finished copy at once. A single copy costs the thread at most this much
/// spinning.
///
/// PERF: `bench-scan` (cases `load-...`) on an H100 with 16 cores, 23 November 2026, medians of 14 runs, interleaved
/// with runs of a binary whose thread always spins (in parentheses): 28.2 (29.0) GB/s with values of 8 letters, 23.3
/// (23.7) GB/s with values of 100 letters. Single runs of the same binary differ by 50 %. Without spinning after loads,
/// on another host: 25.7 (29.8) and 23.4 (26.1) GB/s.
const LOAD_SPIN_TIME: Duration = Duration::from_micros(500);

/// Minimum time between two polls of the events of parked jobs, while other jobs run.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Minimum and maximum sleep between two polls while no job can run. Between these two bounds, the thread sleeps for an
/// eighth of the time that it has waited so far, so polling lengthens a wait by at most an eighth.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Maximum sleep while a load job is parked: other loads may be waiting for the pinned memory that the parked job
/// holds.
const LOAD_SLEEP_MAX: Duration = Duration::from_micros(100);

/// Runs jobs until the last handle of the device is dropped, or the device fails.
pub(crate) fn own(mut context: DeviceContext, arriving: &Receiver<Queued>) {
    let mut owner = Owner {
        spin_until: Instant::now(),
        polled: Instant::now(),
        idle_since: Instant::now(),
        context: &mut context,
        arriving,
        ready: Ready::default(),
        aside: Vec::new(),
    };
    let end = owner.context.move_here().and_then(|()| owner.run());
    if let Err(fault) = end {
        // Set the state before the jobs are dropped: a waiter that sees its channel closed can then read the reason.
        owner.context.lose(&fault);
    }
    // Work in flight uses memory of the jobs, so wait for the work before the jobs are dropped. On a failed device the
    // wait returns the fault that is already recorded.
    let _ = owner.context.settle();
}

/// A parked job and the event that it waits for.
struct Aside {
    queued: Queued,
    awaited: Awaited,
}

impl Aside {
    /// Returns whether a client waits for work on the device.
    fn has_client(&self) -> bool {
        self.queued.class() == Class::Interactive && matches!(self.awaited, Awaited::Event(_))
    }
}

struct Owner<'a> {
    context: &'a mut DeviceContext,
    arriving: &'a Receiver<Queued>,
    ready: Ready,
    aside: Vec<Aside>,
    /// End of the GPU thread's spinning time.
    spin_until: Instant,
    /// Time of the last poll of the parked jobs' events.
    polled: Instant,
    /// Start of the current period in which no job can run.
    idle_since: Instant,
}

impl Owner<'_> {
    /// Runs jobs until no more can arrive.
    fn run(&mut self) -> Result<(), DeviceFault> {
        while let Some(queued) = self.next()? {
            self.run_step(queued)?;
        }
        Ok(())
    }

    /// Returns the job whose step runs next; blocks while no job can run. Returns `None` when no more jobs can arrive.
    fn next(&mut self) -> Result<Option<Queued>, DeviceFault> {
        let mut may_come = true;
        let mut is_idle = false;
        loop {
            self.ready.extend(self.arriving.try_iter());
            self.poll(is_idle)?;
            if let Some(queued) = self.ready.pop() {
                return Ok(Some(queued));
            }
            if !may_come && !self.has_pending() {
                return Ok(None);
            }
            if !is_idle {
                (is_idle, self.idle_since) = (true, Instant::now());
            }
            may_come = self.wait();
        }
    }

    /// Returns whether the thread has events to poll.
    fn has_pending(&mut self) -> bool {
        !self.aside.is_empty() || self.context.has_retired()
    }

    /// Polls events. Makes each parked job ready if its event has completed, and drops each piece of retired memory if
    /// its event has completed.
    fn poll(&mut self, is_idle: bool) -> Result<(), DeviceFault> {
        if !self.has_pending() || (!is_idle && self.polled.elapsed() < POLL_INTERVAL) {
            return Ok(());
        }
        // Skip events that follow an unfinished event of the same stream: a query costs about as much as queueing a
        // copy, and a load may have 128 copies in flight.
        let mut not_done: Vec<usize> = Vec::new();
        let mut index = 0;
        while index < self.aside.len() {
            let awaited = &self.aside[index].awaited;
            let follows = |earlier: &usize| awaited.follows(&self.aside[*earlier].awaited);
            if not_done.iter().any(follows) {
                index += 1;
            } else if awaited.is_done()? {
                self.ready.push(self.aside.remove(index).queued);
            } else {
                not_done.push(index);
                index += 1;
            }
        }
        self.context.drop_retired()?;
        self.polled = Instant::now();
        Ok(())
    }

    /// Waits for the next job. During the spinning time, checks once and returns. Otherwise sleeps until a job arrives;
    /// if events are pending, at most until the next poll. Returns whether more jobs can arrive.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        let is_short = now - self.idle_since < KERNEL_SPIN_TIME;
        if now < self.spin_until || is_short && self.aside.iter().any(Aside::has_client) {
            hint::spin_loop();
            return self.keep(self.arriving.try_recv());
        }
        if !self.has_pending() {
            let arrived = self.arriving.recv().map_err(|_| TryRecvError::Disconnected);
            return self.keep(arrived);
        }
        let is_load = |aside: &Aside| aside.queued.class() == Class::Load;
        let sleep = sleep_time(now - self.idle_since, self.aside.iter().any(is_load));
        let arrived = self.arriving.recv_timeout(sleep);
        let may_come = self.keep(arrived.map_err(|error| match error {
            RecvTimeoutError::Timeout => TryRecvError::Empty,
            RecvTimeoutError::Disconnected => TryRecvError::Disconnected,
        }));
        if !may_come {
            thread::park_timeout(sleep);
        }
        may_come
    }

    /// Queues a job if one arrived. Returns whether more can arrive.
    fn keep(&mut self, arrived: Result<Queued, TryRecvError>) -> bool {
        let may_come = !matches!(arrived, Err(TryRecvError::Disconnected));
        self.ready.extend(arrived);
        may_come
    }

    /// Runs one step of a job, then queues, parks or drops the job.
    fn run_step(&mut self, mut queued: Queued) -> Result<(), DeviceFault> {
        if let Some(stopped) = queued.job.stop().and_then(|stop| stop.check().err()) {
            drop_failed(queued, &stopped.into());
            return Ok(());
        }
        let (class, began) = (queued.class(), Instant::now());
        let outcome = step(&mut queued, self.context);
        let took = began.elapsed();
        self.ready.charge(class, took);
        let is_last = !matches!(outcome, Ok(Step::Again | Step::WaitFor(_)));
        self.context.count_work(took, is_last);
        if self.context.is_gpu() {
            self.spin_until = self.spin_until.max(began + took + spin_time(class));
        }
        match outcome {
            Ok(Step::Done) => guarded(|| drop(queued)),
            Ok(Step::Again) => self.ready.push(queued),
            Ok(Step::WaitFor(awaited)) => self.aside.push(Aside { queued, awaited }),
            Err(JobError::Failed(failure)) => return self.fail(queued, &failure),
            Err(JobError::Fault(fault)) => return self.end(queued, fault),
        }
        Ok(())
    }

    /// Ends a job that failed or panicked. The device continues unless waiting for its work reports a fault.
    fn fail(&mut self, queued: Queued, failure: &JobFailure) -> Result<(), DeviceFault> {
        tracing::warn!(device = self.context.name(), %failure, "a job failed");
        // The job's work in flight uses memory that is freed with the job.
        if let Err(fault) = self.context.settle() {
            return self.end(queued, fault);
        }
        if let JobFailure::Panicked { .. } = failure {
            guarded(|| self.context.forget_touched());
        }
        drop_failed(queued, failure);
        Ok(())
    }

    /// Returns the fault, which ends the thread. The job is kept, so that it is dropped with the other jobs after the
    /// device is marked lost.
    fn end(&mut self, queued: Queued, fault: DeviceFault) -> Result<(), DeviceFault> {
        self.ready.push(queued);
        Err(fault)
    }
}

/// Returns how long a GPU thread spins after a step of a job of this class.
fn spin_time(class: Class) -> Duration {
    match class {
        Class::Interactive => SPIN_TIME,
        Class::Load => LOAD_SPIN_TIME,
        Class::Batch => Duration::ZERO,
    }
}

/// Returns how long the thread sleeps before its next poll, after it has waited for `waited`.
fn sleep_time(waited: Duration, has_load: bool) -> Duration {
    let max = if has_load { LOAD_SLEEP_MAX } else { SLEEP_MAX };
    (waited / 8).clamp(SLEEP_MIN, max)
}

/// Runs one step of a job; a panic in the step fails the job.
fn step(queued: &mut Queued, context: &mut DeviceContext) -> Result<Step, JobError> {
    context.begin_step();
    let run = AssertUnwindSafe(|| {
        context.check()?;
        queued.job.run(context)
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        Err(JobError::Failed(JobFailure::Panicked {
            message: panic_message(&*panic),
        }))
    })
}

/// Drops a job that failed, after it has reported why.
fn drop_failed(mut queued: Queued, failure: &JobFailure) {
    guarded(|| queued.job.fail(failure));
    guarded(|| drop(queued));
}

/// Runs `end`, the last callback or the drop of a job; logs a panic.
fn guarded(end: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(end)) {
        tracing::error!(
            message = panic_message(&*panic),
            "the cleanup of a job panicked"
        );
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_wait_and_are_short_while_a_load_waits() {
        let us = Duration::from_micros;
        for (waited, alone, with_load) in [
            (0, 50, 50),
            (400, 50, 50),
            (640, 80, 80),
            (4_000, 500, 100),
            (1_000_000, 1_000, 100),
        ] {
            assert_eq!(sleep_time(us(waited), false), us(alone), "{waited} us");
            assert_eq!(sleep_time(us(waited), true), us(with_load), "{waited} us");
        }
    }
}
