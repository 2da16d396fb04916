//! The thread that owns a device: it alone runs the device's jobs.

use std::any::Any;
use std::collections::VecDeque;
use std::hint;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use crate::{DeviceContext, DeviceFault, Job, Step};

/// How long the thread of a GPU waits awake for the next job: as long as large searches and their clients take, so that it
/// sleeps between none of a row; waking it takes a good part of a search.
const AWAKE: Duration = Duration::from_millis(1);

/// One place in a device's queue; dropping it frees the place.
#[derive(Debug)]
pub(crate) struct Slot {
    taken: Arc<AtomicUsize>,
}

impl Slot {
    /// Takes a place if fewer than `depth` are taken.
    pub(crate) fn take(taken: &Arc<AtomicUsize>, depth: usize) -> Option<Slot> {
        let next = |count: usize| (count < depth).then_some(count + 1);
        taken
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .ok()?;
        Some(Slot {
            taken: Arc::clone(taken),
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A job with its place in the queue.
pub(crate) struct Queued {
    pub(crate) job: Box<dyn Job>,
    pub(crate) _slot: Slot,
}

/// Runs jobs until every handle of the device is gone, or the device fails.
pub(crate) fn own(mut context: DeviceContext, arriving: &Receiver<Queued>) {
    let mut ready = VecDeque::new();
    let end = context
        .move_here()
        .and_then(|()| run(&mut context, arriving, &mut ready));
    if let Err(fault) = end {
        // The state changes before the jobs are dropped, so that whoever sees its channel closed finds the reason.
        context.lose(&fault);
    }
    context.settle();
}

/// Runs jobs in turn, those of `ready` and those that arrive.
fn run(
    context: &mut DeviceContext,
    arriving: &Receiver<Queued>,
    ready: &mut VecDeque<Queued>,
) -> Result<(), DeviceFault> {
    let awake = context.parts().cuda.map_or(Duration::ZERO, |_| AWAKE);
    while let Some(mut queued) = next(arriving, ready, awake) {
        let began = Instant::now();
        let done = step(&mut *queued.job, context);
        context.count_work(began.elapsed(), matches!(done, Ok(Step::Done)));
        match done {
            Ok(Step::Again) => ready.push_back(queued),
            Ok(Step::Done) => {}
            Err(fault) => {
                // Dropped with the others, after the state has changed.
                ready.push_back(queued);
                return Err(fault);
            }
        }
    }
    Ok(())
}

/// The job whose turn it is; waits while there is none, for a while awake. `None` when no more can come.
fn next(
    arriving: &Receiver<Queued>,
    ready: &mut VecDeque<Queued>,
    awake: Duration,
) -> Option<Queued> {
    ready.extend(arriving.try_iter());
    ready
        .pop_front()
        .or_else(|| wait_awake(arriving, awake))
        .or_else(|| arriving.recv().ok())
}

/// The next job, if it comes within a time.
fn wait_awake(arriving: &Receiver<Queued>, time: Duration) -> Option<Queued> {
    let began = Instant::now();
    while began.elapsed() < time {
        match arriving.try_recv() {
            Ok(queued) => return Some(queued),
            Err(TryRecvError::Empty) => hint::spin_loop(),
            Err(TryRecvError::Disconnected) => break,
        }
    }
    None
}

/// Runs one step; a panic in it is a fault of the device.
fn step(job: &mut dyn Job, context: &mut DeviceContext) -> Result<Step, DeviceFault> {
    let run = AssertUnwindSafe(|| {
        context.check()?;
        job.run(context)
    });
    catch_unwind(run).unwrap_or_else(|panic| {
        Err(DeviceFault::Panicked {
            message: panic_message(&*panic),
        })
    })
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}
