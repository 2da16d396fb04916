//! The thread that owns a device: it alone runs the device's jobs.

use std::any::Any;
use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::thread;
use std::time::{Duration, Instant};

use crate::job::Awaited;
use crate::queue::{Queued, Ready};
use crate::{Class, DeviceContext, DeviceFault, JobError, JobFailure, Step};

/// How long a GPU thread spins for the next job after an interactive one, before it sleeps. Longer than a client's
/// think time between back-to-back searches, because a wake-up (about 50 us) is a large part of a search.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// How long a GPU thread spins after a step of a load. Longer than the time between two pieces of a large load, which
/// 16 cores lay out in 35 us (1 MiB) to 320 us (8 MiB): so the thread is awake for the next piece, and returns the
/// pinned memory of a finished copy at once. A copy alone costs the thread this time and no more.
///
/// PERF: `bench-scan` (cases `load-...`) on an H100 with 16 cores, 23 November 2026, medians of three runs in turn with
/// a binary whose thread always spun: values of 8 letters at 28.8 GB/s (it 29.5), of 100 letters at 28.1 GB/s (it
/// 27.3). On a faster host, two runs each: 29.0 (35.9) and 27.1 (28.0). Without this time, on a third host: 25.7 (29.8)
/// and 23.4 GB/s (26.1).
const LOAD_SPIN_TIME: Duration = Duration::from_micros(500);

/// Minimum time between two looks at the events of jobs that are set aside, while other jobs run.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Minimum and maximum sleep between two looks while no job can run. Between the two, a look comes after an eighth of
/// the time waited so far, so that no wait grows by more than that.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// Maximum sleep while a load waits for its copy: others wait for the pinned memory that it holds.
const LOAD_SLEEP_MAX: Duration = Duration::from_micros(100);

/// Runs jobs until every handle of the device is gone, or the device fails.
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
        // The state changes before the jobs are dropped: a waiter that sees its channel closed finds the reason.
        owner.context.lose(&fault);
    }
    // Work in flight uses memory of the jobs, so it ends before they are dropped. A device that failed does nothing
    // more, and its fault is known already.
    let _ = owner.context.settle();
}

/// A job that waits for an event.
struct Aside {
    queued: Queued,
    awaited: Awaited,
}

struct Owner<'a> {
    context: &'a mut DeviceContext,
    arriving: &'a Receiver<Queued>,
    ready: Ready,
    aside: Vec<Aside>,
    /// When the thread of a GPU stops spinning.
    spin_until: Instant,
    /// The last look at the events of jobs that are set aside.
    polled: Instant,
    /// Since when no job could run.
    idle_since: Instant,
}

impl Owner<'_> {
    /// Runs jobs until no more can come.
    fn run(&mut self) -> Result<(), DeviceFault> {
        while let Some(queued) = self.next()? {
            self.run_step(queued)?;
        }
        Ok(())
    }

    /// Returns the job whose turn it is; waits while no job can run. `None` when no more can come.
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

    /// Returns whether the thread has to look at events.
    fn has_pending(&mut self) -> bool {
        !self.aside.is_empty() || self.context.has_retired()
    }

    /// Makes jobs ready whose event has come, and drops retired memory whose event has come.
    fn poll(&mut self, is_idle: bool) -> Result<(), DeviceFault> {
        if !self.has_pending() || (!is_idle && self.polled.elapsed() < POLL_INTERVAL) {
            return Ok(());
        }
        self.polled = Instant::now();
        let mut index = 0;
        while index < self.aside.len() {
            if self.aside[index].awaited.is_done()? {
                self.ready.push(self.aside.remove(index).queued);
            } else {
                index += 1;
            }
        }
        self.context.drop_retired()
    }

    /// Waits for the next job. During the spinning time it looks once and returns. Otherwise it sleeps until a job
    /// arrives or, if events are pending, until they are to be polled. With nothing pending it blocks without limit.
    /// Returns whether more jobs can come.
    fn wait(&mut self) -> bool {
        let now = Instant::now();
        if now < self.spin_until {
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

    /// Queues a job if one arrived. Returns whether more can come.
    fn keep(&mut self, arrived: Result<Queued, TryRecvError>) -> bool {
        let may_come = !matches!(arrived, Err(TryRecvError::Disconnected));
        self.ready.extend(arrived);
        may_come
    }

    /// Runs one step of a job, and queues, sets aside or drops the job.
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

    /// Ends a job that failed or panicked; the device continues if it works.
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

    /// Ends with a fault. The job is dropped with the others, after the state has changed.
    fn end(&mut self, queued: Queued, fault: DeviceFault) -> Result<(), DeviceFault> {
        self.ready.push(queued);
        Err(fault)
    }
}

/// Returns how long the thread of a GPU spins after a step of a job.
fn spin_time(class: Class) -> Duration {
    match class {
        Class::Interactive => SPIN_TIME,
        Class::Load => LOAD_SPIN_TIME,
        Class::Batch => Duration::ZERO,
    }
}

/// Returns how long the thread sleeps before it looks at events again, after it has waited for some time.
fn sleep_time(waited: Duration, has_load: bool) -> Duration {
    let max = if has_load { LOAD_SLEEP_MAX } else { SLEEP_MAX };
    (waited / 8).clamp(SLEEP_MIN, max)
}

/// Runs one step; a panic in it fails the job.
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

/// Drops a job that failed, and lets it report why.
fn drop_failed(mut queued: Queued, failure: &JobFailure) {
    guarded(|| queued.job.fail(failure));
    guarded(|| drop(queued));
}

/// Runs code of a job at its end; a panic is logged.
fn guarded(end: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(end)) {
        tracing::error!(
            message = panic_message(&*panic),
            "a job panicked while it ended"
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
