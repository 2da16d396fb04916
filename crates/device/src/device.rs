//! One device: its identity, state, memory and queue.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use parking_lot::{Mutex, RwLock};

use crate::fault::Faults;
use crate::memory::Budget;
use crate::owner::{self, Queued, Slot};
use crate::{
    DeviceError, DeviceFault, DeviceOptions, Fault, Job, OutOfMemory, Reservation, SubmitError,
};

/// Names a device of this process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The sorts of device there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A thread of this machine, over memory of this machine.
    Host,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Host => f.write_str("host"),
        }
    }
}

/// Whether a device takes work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceState {
    /// It takes work and data.
    Ready,
    /// It finishes the work of searches that began before it left, and takes no new data.
    Leaving,
    /// It failed; it runs nothing and holds nothing.
    Lost {
        /// What happened.
        why: String,
    },
}

impl fmt::Display for DeviceState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceState::Ready => f.write_str("ready"),
            DeviceState::Leaving => f.write_str("leaving"),
            DeviceState::Lost { why } => write!(f, "lost: {why}"),
        }
    }
}

/// What the handles of a device and its owner thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: DeviceId,
    pub(crate) name: String,
    pub(crate) faults: Faults,
    state: RwLock<DeviceState>,
}

impl Shared {
    /// Marks the device lost.
    pub(crate) fn lose(&self, fault: &DeviceFault) {
        tracing::error!(device = self.name, %fault, "device lost");
        *self.state.write() = DeviceState::Lost {
            why: fault.to_string(),
        };
    }
}

/// A place that holds data and runs jobs over it, on one thread of its own.
///
/// The thread ends when the last handle is dropped.
pub struct Device {
    shared: Arc<Shared>,
    kind: DeviceKind,
    budget: Arc<Budget>,
    queue: Mutex<Sender<Queued>>,
    queued: Arc<AtomicUsize>,
    queue_depth: usize,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("name", &self.name())
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

impl Device {
    /// Starts a host device and its thread.
    pub(crate) fn start_host(
        id: DeviceId,
        name: String,
        options: &DeviceOptions,
    ) -> Result<Arc<Device>, DeviceError> {
        let state = RwLock::new(DeviceState::Ready);
        let shared = Arc::new(Shared {
            id,
            name,
            faults: Faults::default(),
            state,
        });
        let (queue, arriving) = channel();
        let owned = Arc::clone(&shared);
        thread::Builder::new()
            .name(shared.name.clone())
            .spawn(move || owner::own(&owned, &arriving))
            .map_err(|error| DeviceError::Thread {
                name: shared.name.clone(),
                why: error.to_string(),
            })?;
        Ok(Arc::new(Device {
            shared,
            kind: DeviceKind::Host,
            budget: Budget::new(options.memory_budget_bytes),
            queue: Mutex::new(queue),
            queued: Arc::new(AtomicUsize::new(0)),
            queue_depth: options.queue_depth,
        }))
    }

    /// Id of the device, unique in this process.
    pub fn id(&self) -> DeviceId {
        self.shared.id
    }

    /// Name of the device, as in `host:0`.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What sort of device it is.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Whether it takes work.
    pub fn state(&self) -> DeviceState {
        self.shared.state.read().clone()
    }

    /// True while the device takes new data.
    pub fn is_ready(&self) -> bool {
        *self.shared.state.read() == DeviceState::Ready
    }

    /// True once the device has failed.
    pub fn is_lost(&self) -> bool {
        matches!(*self.shared.state.read(), DeviceState::Lost { .. })
    }

    /// Bytes the device may hold.
    pub fn memory_budget_bytes(&self) -> u64 {
        self.budget.budget_bytes()
    }

    /// Bytes that reservations hold now.
    pub fn memory_used_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// Jobs that wait or run now.
    pub fn queued_jobs(&self) -> usize {
        self.queued.load(std::sync::atomic::Ordering::Acquire)
    }

    /// Takes `bytes` out of the device's budget until the reservation is dropped.
    ///
    /// # Errors
    /// [`OutOfMemory`] when fewer are left; nothing is taken then.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, OutOfMemory> {
        let injected = self.shared.faults.take_out_of_memory();
        let reservation = if injected {
            None
        } else {
            self.budget.reserve(bytes)
        };
        reservation.ok_or_else(|| OutOfMemory {
            device: self.name().to_owned(),
            wanted_bytes: bytes,
            free_bytes: self.budget.free_bytes(),
            budget_bytes: self.budget.budget_bytes(),
        })
    }

    /// Queues a job; returns at once. If the device is lost before the job is done, the job is dropped.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] or [`SubmitError::Lost`]; the job has not run.
    pub fn submit(&self, job: Box<dyn Job>) -> Result<(), SubmitError> {
        if let DeviceState::Lost { why } = self.state() {
            return Err(self.lost(why));
        }
        let slot =
            Slot::take(&self.queued, self.queue_depth).ok_or_else(|| SubmitError::QueueFull {
                device: self.name().to_owned(),
                depth: self.queue_depth,
            })?;
        let queued = Queued { job, _slot: slot };
        self.queue
            .lock()
            .send(queued)
            .map_err(|_| self.lost(self.state().to_string()))
    }

    fn lost(&self, why: String) -> SubmitError {
        SubmitError::Lost {
            device: self.name().to_owned(),
            why,
        }
    }

    /// Makes the device fail, for tests.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.inject(fault);
    }

    /// Stops the device from taking new data.
    pub(crate) fn leave(&self) {
        let mut state = self.shared.state.write();
        if *state == DeviceState::Ready {
            *state = DeviceState::Leaving;
        }
    }
}
