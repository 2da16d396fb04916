//! Fault injection for tests of device loss and memory exhaustion.

use std::sync::Arc;

use parking_lot::{Condvar, Mutex};

use crate::{Device, DeviceFault};

/// A fault to inject into a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The device fails at its next check: before the next step of a job, or between two pieces of a running step.
    Fail,
    /// The device fails after `checks` more checks.
    FailAfter {
        /// Number of checks that pass before the one that fails.
        checks: u32,
    },
    /// The next reservation or allocation of memory fails.
    OutOfMemory,
    /// The next launch of a kernel fails.
    LaunchFails,
    /// The next request to pin host memory fails, as it does without the permission to lock memory. Requests that a
    /// pinned pool serves do not count.
    CannotPin,
}

/// The pending faults of one device.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pending: Mutex<Pending>,
    stalled: Mutex<Stalled>,
    resumed: Condvar,
}

/// Number of [`Stall`]s, and of threads that they block.
#[derive(Debug, Default)]
struct Stalled {
    stalls: usize,
    waiting: usize,
}

/// Guard that makes every request for a device's memory block while the guard exists, just as a request for pinned
/// memory blocks when the pinned pool is exhausted.
#[derive(Debug)]
pub struct Stall {
    device: Arc<Device>,
}

impl Stall {
    /// Stalls requests for memory of a device.
    pub fn new(device: &Arc<Device>) -> Stall {
        device.faults().stalled.lock().stalls += 1;
        Stall {
            device: Arc::clone(device),
        }
    }

    /// Returns the number of threads that wait for memory of the device now.
    pub fn waiting(&self) -> usize {
        self.device.faults().stalled.lock().waiting
    }
}

impl Drop for Stall {
    fn drop(&mut self) {
        let faults = self.device.faults();
        faults.stalled.lock().stalls -= 1;
        faults.resumed.notify_all();
    }
}

#[derive(Debug, Default)]
struct Pending {
    checks_left: Option<u32>,
    out_of_memory: u32,
    launch_fails: u32,
    cannot_pin: u32,
}

impl Faults {
    pub(crate) fn inject(&self, fault: Fault) {
        let mut pending = self.pending.lock();
        match fault {
            Fault::Fail => pending.checks_left = Some(0),
            Fault::FailAfter { checks } => pending.checks_left = Some(checks),
            Fault::OutOfMemory => pending.out_of_memory += 1,
            Fault::LaunchFails => pending.launch_fails += 1,
            Fault::CannotPin => pending.cannot_pin += 1,
        }
    }

    /// Fails with the injected device fault if it is due.
    pub(crate) fn check(&self) -> Result<(), DeviceFault> {
        match &mut self.pending.lock().checks_left {
            None => Ok(()),
            Some(0) => Err(DeviceFault::Injected),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }

    /// Returns whether the current request for memory must fail, because a test injected that fault. Blocks while the
    /// device is stalled.
    pub(crate) fn take_out_of_memory(&self) -> bool {
        let mut stalled = self.stalled.lock();
        stalled.waiting += 1;
        let is_stalled = |stalled: &mut Stalled| stalled.stalls > 0;
        self.resumed.wait_while(&mut stalled, is_stalled);
        stalled.waiting -= 1;
        drop(stalled);
        take(&mut self.pending.lock().out_of_memory)
    }

    /// Returns whether the current launch must fail, because a test injected that fault.
    pub(crate) fn take_launch_failure(&self) -> bool {
        take(&mut self.pending.lock().launch_fails)
    }

    /// Returns whether the current request to pin host memory must fail, because a test injected that fault.
    pub(crate) fn take_pin_failure(&self) -> bool {
        take(&mut self.pending.lock().cannot_pin)
    }
}

/// Takes one of the pending faults of a kind. Returns whether there was one.
fn take(pending: &mut u32) -> bool {
    let wanted = *pending > 0;
    *pending = pending.saturating_sub(1);
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fails_after_the_asked_number_of_checks() {
        let faults = Faults::default();
        faults.inject(Fault::FailAfter { checks: 2 });
        assert_eq!(faults.check(), Ok(()));
        assert_eq!(faults.check(), Ok(()));
        assert_eq!(faults.check(), Err(DeviceFault::Injected));
        assert_eq!(faults.check(), Err(DeviceFault::Injected));
    }

    #[test]
    fn one_fault_is_one_failure_of_its_kind() {
        let faults = Faults::default();
        faults.inject(Fault::OutOfMemory);
        assert!(!faults.take_pin_failure() && !faults.take_launch_failure());
        assert!(faults.take_out_of_memory());
        assert!(!faults.take_out_of_memory());
        faults.inject(Fault::CannotPin);
        assert!(!faults.take_out_of_memory());
        assert!(faults.take_pin_failure());
        assert!(!faults.take_pin_failure());
    }
}
