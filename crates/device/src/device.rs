//! A device: its identity, state, memory and queue.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::cuda::{
    Arena, Context, Cuda, DeviceMemory, Gpu, HostMemory, HostRegistration, Managed, ManagedError,
    Pinned, PinnedPool, RegisterError, has_several_nodes,
};
use crate::events::{Change, DeviceEvents};
use crate::fault::Faults;
use crate::memory::{Budget, COMMON};
use crate::owner;
use crate::pool::PooledMemory;
use crate::queue::{Places, Queued};
use crate::{
    DeviceContext, DeviceError, DeviceFault, DeviceOptions, Fault, Job, MemoryPool, OutOfMemory,
    PoolFigures, PoolOptions, Reclaim, SubmitError,
};

/// Id of a device of this process; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId(pub u32);

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The kinds of device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DeviceKind {
    /// A thread of this machine that works on host memory.
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

/// Whether a device accepts work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceState {
    /// The device accepts work and data.
    Ready,
    /// The device left the set: it accepts no new data, but runs the jobs of users that hold a handle.
    Leaving,
    /// The device failed: it runs no jobs, and its data is gone.
    Lost {
        /// Text of the fault.
        why: String,
    },
}

impl DeviceState {
    /// Returns the name of the state.
    pub fn name(&self) -> &'static str {
        match self {
            DeviceState::Ready => "ready",
            DeviceState::Leaving => "leaving",
            DeviceState::Lost { .. } => "lost",
        }
    }
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

/// State that the handles of a device and its owner thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: DeviceId,
    pub(crate) name: String,
    pub(crate) faults: Faults,
    pub(crate) work: Work,
    events: Arc<DeviceEvents>,
    state: RwLock<DeviceState>,
}

/// Counters of the work that a device has done.
#[derive(Debug, Default)]
pub(crate) struct Work {
    jobs: AtomicU64,
    busy_ns: AtomicU64,
}

impl Work {
    /// Counts the time of a step. Also counts a finished job if the step was the last of its job.
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

    /// Marks the device lost, logs the fault and notifies listeners.
    pub(crate) fn lose(&self, fault: &DeviceFault) {
        tracing::error!(device = self.name, %fault, "device lost");
        let why = fault.to_string();
        *self.state.write() = DeviceState::Lost { why: why.clone() };
        let mut feed = self.events.lock();
        feed.note(self.id, &self.name, Change::Lost { why });
    }
}

/// The part of a GPU's state that threads other than its owner thread use.
struct GpuMemory {
    gpu: Gpu,
    arena: Arc<Arena>,
    pool: Arc<PinnedPool>,
    context: Arc<Context>,
}

impl GpuMemory {
    /// Allocates the GPU's memory and pinned pool, and creates the [`Cuda`] of its jobs.
    fn start(
        shared: &Arc<Shared>,
        gpu: Gpu,
        options: &DeviceOptions,
    ) -> Result<(Cuda, GpuMemory), DeviceError> {
        let failed = |source| DeviceError::start(&shared.name, source);
        let own_node = gpu.numa_node.filter(|_| has_several_nodes());
        let node = options.pinned_numa_node.or(own_node);
        let context = Arc::new(Context::create(gpu.ordinal, node).map_err(failed)?);
        let budget_bytes = options.cuda_memory_budget_bytes;
        let arena = Arena::create(Arc::clone(&context), Arc::clone(shared), budget_bytes)?;
        let pool = PinnedPool::create(Arc::clone(&context), options.pinned_pool_bytes);
        let memory = GpuMemory {
            gpu,
            arena: Arc::new(arena),
            pool: Arc::new(pool.map_err(failed)?),
            context: Arc::clone(&context),
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

/// Handle of a device: memory that holds data, and a thread that runs jobs over it.
///
/// The thread ends when the last handle is dropped.
pub struct Device {
    shared: Arc<Shared>,
    memory: Arc<PooledMemory>,
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

    /// Starts a GPU and its thread, and allocates its memory and pinned pool. Blocks for some hundred milliseconds.
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
        let arena = gpu.as_ref().map(|gpu| Arc::clone(&gpu.arena));
        Ok(Arc::new(Device {
            memory: PooledMemory::new(Arc::clone(&shared), budget, arena),
            shared,
            gpu,
            queue: Mutex::new(queue),
            places: Arc::default(),
            queue_depth: options.queue_depth,
        }))
    }

    /// Returns the id of the device, unique in this process.
    pub fn id(&self) -> DeviceId {
        self.shared.id
    }

    /// Returns the name of the device: `host:` and its id, or `cuda:` and the ordinal of the GPU.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Returns the kind of the device.
    pub fn kind(&self) -> DeviceKind {
        match self.gpu {
            Some(_) => DeviceKind::Cuda,
            None => DeviceKind::Host,
        }
    }

    /// Returns the properties of the GPU; `None` for a host device.
    pub fn details(&self) -> Option<&Gpu> {
        self.gpu.as_ref().map(|memory| &memory.gpu)
    }

    /// Returns the state of the device.
    pub fn state(&self) -> DeviceState {
        self.shared.state.read().clone()
    }

    /// Returns whether the device accepts new data.
    pub fn is_ready(&self) -> bool {
        *self.shared.state.read() == DeviceState::Ready
    }

    /// Returns whether the device has failed.
    pub fn is_lost(&self) -> bool {
        matches!(*self.shared.state.read(), DeviceState::Lost { .. })
    }

    /// Returns the maximum number of bytes that the device can hold.
    pub fn memory_budget_bytes(&self) -> u64 {
        self.memory.budget().budget_bytes()
    }

    /// Returns this many percent of [`Device::memory_budget_bytes`].
    pub fn part_of_memory(&self, percent: u8) -> u64 {
        let bytes = u128::from(self.memory_budget_bytes()) * u128::from(percent) / 100;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }

    /// Returns the number of bytes that reservations and allocations hold now.
    pub fn memory_used_bytes(&self) -> u64 {
        self.memory.budget().used_bytes()
    }

    /// Returns how much of the memory each tenant uses, in the order of their names. The last is `other`, for memory
    /// that is in no pool.
    pub fn pools(&self) -> Vec<PoolFigures> {
        self.memory.figures()
    }

    /// Returns the number of unfinished jobs.
    pub fn queued_jobs(&self) -> usize {
        self.places.count()
    }

    /// Returns the number of finished jobs.
    pub fn finished_jobs(&self) -> u64 {
        self.shared.work.jobs.load(Ordering::Relaxed)
    }

    /// Returns the total time that the device's thread has spent in jobs. Its increase per second is the load of the
    /// device.
    pub fn busy_time(&self) -> Duration {
        Duration::from_nanos(self.shared.work.busy_ns.load(Ordering::Relaxed))
    }

    /// Allocates GPU memory outside of all pools; it is freed when the result is dropped. The call does not block and
    /// does not call the driver.
    ///
    /// # Errors
    /// [`OutOfMemory`] if no free range is large enough; always on a host device, which has no GPU memory.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        self.memory.allocate(COMMON, bytes)
    }

    /// Opens a pool of the device's memory for a tenant. When other tenants need memory, `reclaim` asks this tenant to
    /// release the memory that it uses above its share. Without `reclaim`, the tenant keeps that memory.
    ///
    /// # Errors
    /// [`OutOfMemory`] if the tenant's minimum is not free.
    pub fn open_pool(
        &self,
        options: PoolOptions,
        reclaim: Option<Reclaim>,
    ) -> Result<Arc<MemoryPool>, OutOfMemory> {
        self.memory.open(options, reclaim)
    }

    /// Takes a staging buffer from the device's pinned pool. Blocks until there is room. Requests are served one after
    /// another. So a thread must not call this while it holds a resource that other threads need before they can return
    /// their buffers.
    ///
    /// Returns `None` if the device is lost or is a host device, or if the request is larger than the device's pinned
    /// pool ([`DeviceOptions::pinned_pool_bytes`]).
    pub fn stage(&self, bytes: usize) -> Option<Pinned> {
        self.gpu.as_ref()?.pool.take(bytes)
    }

    /// Takes all slots of a staging ring from the device's pinned pool in one step, so that two rings cannot deadlock
    /// on each other's slots. Blocks until there is room for all slots.
    ///
    /// Returns `None` in the same cases as [`Device::stage`]. Each slot goes back to the pool when it is dropped.
    pub fn stage_ring(&self, slots: usize, bytes: usize) -> Option<Vec<Pinned>> {
        self.gpu.as_ref()?.pool.take_ring(slots, bytes)
    }

    /// Allocates a pool of pinned memory beside the device's own; it is freed when the last handle and the last buffer
    /// are dropped. Blocks while the host writes zeros, about 0.2 s for a GiB on an H100's host. Returns `None` if the
    /// driver has no memory, or the device is a host device.
    pub fn pinned_pool(&self, bytes: u64) -> Option<Arc<PinnedPool>> {
        let context = Arc::clone(&self.gpu.as_ref()?.context);
        PinnedPool::create(context, bytes).ok().map(Arc::new)
    }

    /// Pins (page-locks) memory of this process until the result is dropped, so that copies between it and the device
    /// run at full speed. Blocks: pinning runs at about 20 GB/s on an H100's host.
    ///
    /// # Errors
    /// [`RegisterError`], together with the memory; always on a host device.
    pub fn register<M: HostMemory>(
        &self,
        memory: M,
    ) -> Result<HostRegistration<M>, (M, RegisterError)> {
        match &self.gpu {
            Some(_) if self.shared.faults.take_pin_failure() => {
                let bytes = memory.bytes().len();
                Err((memory, injected(bytes)))
            }
            Some(gpu) => HostRegistration::create(&gpu.context, memory),
            None => {
                let device = self.name().to_owned();
                Err((memory, RegisterError::HostDevice { device }))
            }
        }
    }

    /// Allocates zeroed managed memory, which both the CPU and the GPU access and which is freed on drop. Blocks while
    /// the host writes the zeros.
    ///
    /// # Errors
    /// [`ManagedError`]: the memory would not fit in the card's free memory, or the device has no managed memory.
    pub fn managed(&self, bytes: usize) -> Result<Managed, ManagedError> {
        let gpu = self.gpu.as_ref().ok_or_else(|| ManagedError::HostDevice {
            device: self.name().to_owned(),
        })?;
        Managed::create(&gpu.context, &gpu.gpu, self.name(), bytes)
    }

    /// Allocates a zeroed buffer of pinned memory outside of the pinned pool. Blocks for about half a second per GiB.
    ///
    /// # Errors
    /// [`RegisterError`] if the host cannot pin more memory; always on a host device.
    pub fn pinned(&self, bytes: usize) -> Result<Pinned, RegisterError> {
        let gpu = self.gpu.as_ref().ok_or_else(|| RegisterError::HostDevice {
            device: self.name().to_owned(),
        })?;
        if self.shared.faults.take_pin_failure() {
            return Err(injected(bytes));
        }
        let pinned = Pinned::create(Arc::clone(&gpu.context), bytes);
        pinned.map_err(|error| RegisterError::Refused {
            bytes,
            code: error.code,
        })
    }

    /// Returns whether kernels and copies of this GPU access the memory of `other` directly (peer access), without a
    /// copy through the host.
    pub fn reaches(&self, other: &Device) -> bool {
        let gpus = self.gpu.as_ref().zip(other.gpu.as_ref());
        gpus.is_some_and(|(own, other)| own.context.reaches(&other.context))
    }

    /// Returns whether kernels of this GPU change the memory of `other` by atomic operations.
    pub fn has_atomics_on(&self, other: &Device) -> bool {
        let gpus = self.details().zip(other.details());
        gpus.is_some_and(|(own, other)| own.atomic_peers.contains(&other.ordinal))
    }

    /// Enables this GPU's access to the memory of `other`, if the cards are peers. Without peer access, copies between
    /// the two go through the host.
    pub(crate) fn enable_peer(&self, other: &Device) {
        let (Some(own), Some(peer)) = (&self.gpu, &other.gpu) else {
            return;
        };
        if self.is_lost() || other.is_lost() || !own.gpu.peers.contains(&peer.gpu.ordinal) {
            return;
        }
        if let Err(error) = own.context.enable_peer(&peer.context) {
            let (device, other) = (self.name(), other.name());
            tracing::warn!(%error, device, other, "copies between two GPUs go through the host");
        }
    }

    /// Returns context and memory of a GPU.
    pub(crate) fn gpu_parts(&self) -> Option<(&Arc<Context>, &Arc<Arena>)> {
        self.gpu.as_ref().map(|gpu| (&gpu.context, &gpu.arena))
    }

    /// Appends a job to the queue of its [class](Job::class) and returns at once. A job that fails, is cancelled or
    /// loses its device is dropped.
    pub fn submit(&self, job: Box<dyn Job>) -> Result<(), SubmitError> {
        let class = job.class();
        let place = self.places.take(class, self.queue_depth);
        let place = place.ok_or_else(|| SubmitError::QueueFull {
            device: self.name().to_owned(),
            class,
            depth: self.queue_depth,
        })?;
        self.queue(Queued { job, place })
    }

    /// Appends a job to the queue of its class, as [`Device::submit`] does; blocks while the queue is full. For threads
    /// that load data, not for async worker threads.
    ///
    /// # Errors
    /// [`SubmitError::Lost`].
    pub fn submit_when_free(&self, job: Box<dyn Job>) -> Result<(), SubmitError> {
        const PAUSE: Duration = Duration::from_micros(50);
        let class = job.class();
        loop {
            if let DeviceState::Lost { why } = self.state() {
                return Err(self.lost(why));
            }
            if let Some(place) = self.places.take(class, self.queue_depth) {
                return self.queue(Queued { job, place });
            }
            thread::park_timeout(PAUSE);
        }
    }

    fn queue(&self, queued: Queued) -> Result<(), SubmitError> {
        if let DeviceState::Lost { why } = self.state() {
            return Err(self.lost(why));
        }
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

    /// Injects a fault, for tests.
    pub fn inject(&self, fault: Fault) {
        self.shared.faults.inject(fault);
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.shared.faults
    }

    /// Stops the device from accepting new data.
    pub(crate) fn leave(&self) {
        let mut state = self.shared.state.write();
        if *state == DeviceState::Ready {
            *state = DeviceState::Leaving;
        }
    }
}

/// Returns the error of an injected pin failure.
fn injected(bytes: usize) -> RegisterError {
    RegisterError::Refused {
        bytes,
        code: DeviceFault::Injected.to_string(),
    }
}
