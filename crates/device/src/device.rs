//! One device: its identity, state, memory and queue.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::cuda::{Arena, Context, Cuda, DeviceMemory, Gpu, Pinned, PinnedPool};
use crate::events::{Change, DeviceEvents};
use crate::fault::Faults;
use crate::memory::Budget;
use crate::owner;
use crate::queue::{Places, Queued};
use crate::{
    DeviceContext, DeviceError, DeviceFault, DeviceOptions, Fault, Job, OutOfMemory, Reservation,
    SubmitError,
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
    /// An NVIDIA GPU and its memory.
    Cuda,
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceKind::Host => f.write_str("host"),
            DeviceKind::Cuda => f.write_str("cuda"),
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
    pub(crate) work: Work,
    events: Arc<DeviceEvents>,
    state: RwLock<DeviceState>,
}

/// What a device has done so far.
#[derive(Debug, Default)]
pub(crate) struct Work {
    jobs: AtomicU64,
    busy_ns: AtomicU64,
}

impl Work {
    /// Counts a step of a job, which took so long and perhaps was its last.
    pub(crate) fn count(&self, took: Duration, was_last: bool) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.busy_ns.fetch_add(took_ns, Ordering::Relaxed);
        self.jobs.fetch_add(u64::from(was_last), Ordering::Relaxed);
    }
}

impl Shared {
    fn new(id: DeviceId, name: String, events: &Arc<DeviceEvents>) -> Arc<Shared> {
        Arc::new(Shared {
            id,
            name,
            faults: Faults::default(),
            work: Work::default(),
            events: Arc::clone(events),
            state: RwLock::new(DeviceState::Ready),
        })
    }

    /// Marks the device lost.
    pub(crate) fn lose(&self, fault: &DeviceFault) {
        tracing::error!(device = self.name, %fault, "device lost");
        let why = fault.to_string();
        *self.state.write() = DeviceState::Lost { why: why.clone() };
        self.events.note(&self.name, Change::Lost { why });
    }
}

/// What other threads use of a GPU.
struct GpuMemory {
    gpu: Gpu,
    arena: Arc<Arena>,
    pool: Arc<PinnedPool>,
}

impl GpuMemory {
    /// Takes a GPU's memory and makes what its jobs will see.
    fn start(
        shared: &Arc<Shared>,
        gpu: Gpu,
        options: &DeviceOptions,
    ) -> Result<(Cuda, GpuMemory), DeviceError> {
        let failed = |source| DeviceError::start(&shared.name, source);
        let context = Arc::new(Context::create(gpu.ordinal).map_err(failed)?);
        let budget_bytes = options.cuda_memory_budget_bytes;
        let arena = Arena::create(Arc::clone(&context), Arc::clone(shared), budget_bytes)?;
        let pool = PinnedPool::create(Arc::clone(&context), options.pinned_pool_bytes);
        let memory = GpuMemory {
            gpu,
            arena: Arc::new(arena),
            pool: Arc::new(pool.map_err(failed)?),
        };
        let cuda = Cuda::create(
            context,
            Arc::clone(shared),
            memory.gpu.clone(),
            Arc::clone(&memory.arena),
            Arc::clone(&memory.pool),
        );
        Ok((cuda.map_err(failed)?, memory))
    }
}

/// A place that holds data and runs jobs over it, on one thread of its own.
///
/// The thread ends when the last handle is dropped.
pub struct Device {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    gpu: Option<GpuMemory>,
    queue: Mutex<Sender<Queued>>,
    places: Arc<Places>,
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
        options: &DeviceOptions,
        events: &Arc<DeviceEvents>,
    ) -> Result<Arc<Device>, DeviceError> {
        let shared = Shared::new(id, format!("host:{id}"), events);
        let context = DeviceContext::new(Arc::clone(&shared), None);
        let budget = Budget::new(options.memory_budget_bytes);
        Device::start(shared, context, budget, None, options)
    }

    /// Starts a GPU and its thread: takes its memory and its pinned pool. Blocks for some hundred milliseconds.
    pub(crate) fn start_cuda(
        id: DeviceId,
        gpu: Gpu,
        options: &DeviceOptions,
        events: &Arc<DeviceEvents>,
    ) -> Result<Arc<Device>, DeviceError> {
        let shared = Shared::new(id, format!("cuda:{}", gpu.ordinal), events);
        let (cuda, memory) = GpuMemory::start(&shared, gpu, options)?;
        let context = DeviceContext::new(Arc::clone(&shared), Some(cuda));
        let budget = Arc::clone(memory.arena.budget());
        Device::start(shared, context, budget, Some(memory), options)
    }

    fn start(
        shared: Arc<Shared>,
        context: DeviceContext,
        budget: Arc<Budget>,
        gpu: Option<GpuMemory>,
        options: &DeviceOptions,
    ) -> Result<Arc<Device>, DeviceError> {
        let (queue, arriving) = channel();
        thread::Builder::new()
            .name(shared.name.clone())
            .spawn(move || owner::own(context, &arriving))
            .map_err(|error| DeviceError::Thread {
                name: shared.name.clone(),
                why: error.to_string(),
            })?;
        Ok(Arc::new(Device {
            shared,
            budget,
            gpu,
            queue: Mutex::new(queue),
            places: Arc::default(),
            queue_depth: options.queue_depth,
        }))
    }

    /// Id of the device, unique in this process.
    pub fn id(&self) -> DeviceId {
        self.shared.id
    }

    /// Name of the device: `host:` and its id, or `cuda:` and the number of the GPU.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// What sort of device it is.
    pub fn kind(&self) -> DeviceKind {
        match self.gpu {
            Some(_) => DeviceKind::Cuda,
            None => DeviceKind::Host,
        }
    }

    /// What the GPU is; none for a host device.
    pub fn details(&self) -> Option<&Gpu> {
        self.gpu.as_ref().map(|memory| &memory.gpu)
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

    /// Bytes that reservations and allocations hold now.
    pub fn memory_used_bytes(&self) -> u64 {
        self.budget.used_bytes()
    }

    /// Jobs that wait or run now.
    pub fn queued_jobs(&self) -> usize {
        self.places.count()
    }

    /// Jobs that were finished so far.
    pub fn finished_jobs(&self) -> u64 {
        self.shared.work.jobs.load(Ordering::Relaxed)
    }

    /// The time that the device's thread has spent in jobs so far. Its growth by the second is the device's load.
    pub fn busy_time(&self) -> Duration {
        Duration::from_nanos(self.shared.work.busy_ns.load(Ordering::Relaxed))
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

    /// Takes a part of a GPU's memory until it is dropped; it counts as used. Does not block, nor call the driver.
    ///
    /// # Errors
    /// [`OutOfMemory`] when no free part is large enough, and always on a host device, which has no such memory.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        match &self.gpu {
            Some(memory) => memory.arena.allocate(bytes),
            None => Err(OutOfMemory {
                device: self.name().to_owned(),
                wanted_bytes: bytes,
                free_bytes: 0,
                budget_bytes: 0,
            }),
        }
    }

    /// Takes a buffer from the device's pinned pool, for data on its way to the device. Blocks until there is room;
    /// requests are served in turn, so no thread may wait for one while it holds what keeps others from giving theirs back.
    ///
    /// None when the device is lost, is a host device, or its pool ([`DeviceOptions::pinned_pool_bytes`]) is smaller than
    /// the request.
    pub fn stage(&self, bytes: usize) -> Option<Pinned> {
        self.gpu.as_ref()?.pool.take(bytes)
    }

    /// Queues a job in the queue of its [class](Job::class); returns at once. A job that fails or is cancelled, or whose device
    /// is lost, is dropped.
    ///
    /// # Errors
    /// [`SubmitError::QueueFull`] or [`SubmitError::Lost`]; the job has not run.
    pub fn submit(&self, job: Box<dyn Job>) -> Result<(), SubmitError> {
        if let DeviceState::Lost { why } = self.state() {
            return Err(self.lost(why));
        }
        let class = job.class();
        let place = self.places.take(class, self.queue_depth);
        let place = place.ok_or_else(|| SubmitError::QueueFull {
            device: self.name().to_owned(),
            class,
            depth: self.queue_depth,
        })?;
        let queued = Queued { job, place };
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

    pub(crate) fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Stops the device from taking new data.
    pub(crate) fn leave(&self) {
        let mut state = self.shared.state.write();
        if *state == DeviceState::Ready {
            *state = DeviceState::Leaving;
        }
    }
}
