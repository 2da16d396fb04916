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

/// How long a GPU thread spins for the next job after an interactive one, before it sleeps. Longer than a client's think
/// time between back-to-back searches, because a wake-up (about 50 us) is a large part of a search.
const SPIN_TIME: Duration = Duration::from_millis(1);

/// Least time between two looks at the events of jobs that are set aside, while other jobs run.
const POLL_INTERVAL: Duration = Duration::from_micros(20);

/// Least and most sleep between two looks while no job can run. Between the two, a look comes after an eighth of the time
/// waited so far, so that no wait grows by more than that.
const SLEEP_MIN: Duration = Duration::from_micros(50);
const SLEEP_MAX: Duration = Duration::from_millis(1);

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
    // Before the jobs are dropped, whose memory is in use until then. A device that failed does nothing more, and its
    // fault is known already.
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
    /// Runs jobs in turn until no more can come.
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

    /// Whether the thread has to look at events.
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

    /// Waits for the next job for a while: awake, or asleep until it arrives or an event is due for a look. Returns whether
    /// more jobs can come.
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
        let sleep = ((now - self.idle_since) / 8).clamp(SLEEP_MIN, SLEEP_MAX);
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

    /// Runs one step of a job and decides what becomes of the job.
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
        if class == Class::Interactive && self.context.is_gpu() {
            self.spin_until = began + took + SPIN_TIME;
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

    /// Ends a job that failed or panicked; the device goes on if it is well.
    fn fail(&mut self, queued: Queued, failure: &JobFailure) -> Result<(), DeviceFault> {
        tracing::warn!(device = self.context.name(), %failure, "a job failed");
        // What the job has in flight uses memory that goes with it.
        if let Err(fault) = self.context.settle() {
            return self.end(queued, fault);
        }
        if let JobFailure::Panicked { .. } = failure {
            guarded(|| self.context.forget_touched());
        }
        drop_failed(queued, failure);
        Ok(())
    }

    /// Ends with a fault; the job is dropped with the others, after the state has changed.
    fn end(&mut self, queued: Queued, fault: DeviceFault) -> Result<(), DeviceFault> {
        self.ready.push(queued);
        Err(fault)
    }
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

/// Runs what a job does at its end; a panic in it is logged.
fn guarded(end: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(end)) {
        tracing::error!(
            message = panic_message(&*panic),
            "a job panicked at its end"
        );
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
