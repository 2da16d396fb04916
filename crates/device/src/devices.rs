//! The set of devices.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::spec::Wanted;
use crate::{
    Change, Device, DeviceContext, DeviceError, DeviceEvent, DeviceEvents, DeviceId, DeviceKind,
    DeviceSpec, JobError, Step, Subscription,
};

/// Maximum time that the end of the process waits for a GPU.
const HALT_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits of each device that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Maximum bytes of data on a host device. It shares the bytes of the master copy, and is charged for them.
    pub memory_budget_bytes: u64,
    /// Maximum unfinished jobs of each [class](crate::Class) on a device.
    pub queue_depth: usize,
    /// Bytes of its memory that a GPU takes at start for data; `None` for four fifths of what is free then.
    pub cuda_memory_budget_bytes: Option<u64>,
    /// Bytes of pinned host memory that each GPU takes at start, for data on its way to the GPU.
    pub pinned_pool_bytes: u64,
    /// Node of this machine that pinned memory is taken from; `None` for the node of each GPU, if the machine has
    /// several.
    pub pinned_numa_node: Option<u32>,
}

impl Default for DeviceOptions {
    /// Half of this machine's memory for each host device, four fifths of the free memory of each GPU, 1,024 jobs,
    /// 128 MiB of pinned memory for each GPU.
    fn default() -> Self {
        DeviceOptions {
            memory_budget_bytes: host_memory_bytes() / 2,
            queue_depth: 1024,
            cuda_memory_budget_bytes: None,
            pinned_pool_bytes: 128 << 20,
            pinned_numa_node: None,
        }
    }
}

/// Memory of this machine in bytes; 8 GiB if the system does not say.
fn host_memory_bytes() -> u64 {
    const UNKNOWN_BYTES: u64 = 8 << 30;
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total_kib = text.lines().find_map(|line| {
        line.strip_prefix("MemTotal:")?
            .trim()
            .strip_suffix("kB")?
            .trim()
            .parse()
            .ok()
    });
    total_kib.map_or(UNKNOWN_BYTES, |kib: u64| kib.saturating_mul(1024))
}

/// The devices of this process. They join and leave while it runs; handles of a device that left stay valid.
#[derive(Debug)]
pub struct Devices {
    options: DeviceOptions,
    members: RwLock<Vec<Arc<Device>>>,
    next_id: AtomicU32,
    events: Arc<DeviceEvents>,
    /// Held while devices start, so that `members` is not locked for that long.
    starting: Mutex<()>,
}

impl Devices {
    /// Starts the devices that `spec` names. GPUs take some hundred milliseconds each.
    ///
    /// # Errors
    /// As for [`Devices::add`].
    pub fn new(spec: &DeviceSpec, options: DeviceOptions) -> Result<Devices, DeviceError> {
        let devices = Devices {
            options,
            members: RwLock::default(),
            next_id: AtomicU32::new(0),
            events: Arc::default(),
            starting: Mutex::new(()),
        };
        devices.add(spec)?;
        Ok(devices)
    }

    /// Returns the devices of the set in the order of their ids, lost ones included.
    pub fn list(&self) -> Vec<Arc<Device>> {
        self.members.read().clone()
    }

    /// Returns what happened to the devices of the set.
    pub fn events(&self) -> &DeviceEvents {
        &self.events
    }

    /// Calls `listener` with each join, leave and loss of a device from now on, until the subscription is dropped. It
    /// is first called, on this thread, with the join of each present device, and with its loss if it is lost: so a
    /// listener misses no device and gets no event twice.
    ///
    /// All listeners get all events in the same order, on the thread on which a device joins, leaves or fails: for a
    /// loss, the thread of that device. A listener returns at once. It may look at the devices, but does not add or
    /// remove one, subscribe, or wait for a device; it wakes a separate thread for that.
    pub fn subscribe(
        &self,
        listener: impl Fn(&DeviceEvent) + Send + Sync + 'static,
    ) -> Subscription {
        self.events.subscribe(Arc::new(listener))
    }

    /// Returns the device with this id if it is in the set.
    pub fn get(&self, id: DeviceId) -> Option<Arc<Device>> {
        self.members
            .read()
            .iter()
            .find(|device| device.id() == id)
            .cloned()
    }

    /// Starts more devices and returns them. GPUs take some hundred milliseconds each; the set can be used during that
    /// time.
    ///
    /// # Errors
    /// - [`DeviceError::CudaUnavailable`], [`DeviceError::NvrtcMissing`], [`DeviceError::NoSuchGpu`] or
    ///   [`DeviceError::Taken`] before anything is started.
    /// - [`DeviceError::Thread`], [`DeviceError::CardMemory`] or [`DeviceError::Start`]; the devices started before
    ///   stay.
    pub fn add(&self, spec: &DeviceSpec) -> Result<Vec<Arc<Device>>, DeviceError> {
        let _starting = self.starting.lock();
        let wanted = spec.resolve()?;
        self.refuse_taken(&wanted)?;
        wanted.into_iter().map(|one| self.start(one)).collect()
    }

    /// Halts every GPU after the step that its thread runs now. The server calls this when the process ends, because
    /// CUDA's libraries are unloaded then while threads still run. Blocks until all are halted; a compilation of
    /// kernels takes seconds.
    pub fn halt(&self) {
        let halt = |device: &Arc<Device>| {
            let (report, halted) = sync_channel(1);
            let job = move |_: &mut DeviceContext| -> Result<Step, JobError> {
                // The caller may have given up.
                let _ = report.send(());
                loop {
                    thread::park();
                }
            };
            // A lost device does nothing any more.
            device.submit(Box::new(job)).ok().map(|()| halted)
        };
        let gpus = self.list();
        let gpus = gpus
            .iter()
            .filter(|device| device.kind() == DeviceKind::Cuda);
        let halting: Vec<Receiver<()>> = gpus.filter_map(halt).collect();
        for halted in halting {
            if halted.recv_timeout(HALT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("a GPU is not halted in time");
            }
        }
    }

    /// Returns an error if a GPU is wanted that is in the set, or wanted twice.
    fn refuse_taken(&self, wanted: &[Wanted]) -> Result<(), DeviceError> {
        let members = self.list();
        let mut names: HashSet<String> = members
            .iter()
            .map(|device| device.name().to_owned())
            .collect();
        let gpus = wanted.iter().filter_map(Wanted::gpu_name);
        let taken = gpus.into_iter().find(|name| !names.insert(name.clone()));
        taken.map_or(Ok(()), |name| Err(DeviceError::Taken { name }))
    }

    fn start(&self, wanted: Wanted) -> Result<Arc<Device>, DeviceError> {
        let id = DeviceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let device = match wanted {
            Wanted::Host => Device::start_host(id, &self.options, &self.events)?,
            Wanted::Gpu(gpu) => Device::start_cuda(id, *gpu, &self.options, &self.events)?,
        };
        for other in self.list() {
            device.enable_peer(&other);
            other.enable_peer(&device);
        }
        tracing::info!(device = device.name(), "device joined");
        let mut feed = self.events.lock();
        self.members.write().push(Arc::clone(&device));
        feed.note(id, device.name(), Change::Joined);
        Ok(device)
    }

    /// Takes a device out of the set. It still runs the jobs of users that hold it.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] when the set has no such device.
    pub fn remove(&self, id: DeviceId) -> Result<Arc<Device>, DeviceError> {
        let mut feed = self.events.lock();
        let device = self.take(id).ok_or(DeviceError::Unknown { id })?;
        device.leave();
        tracing::info!(device = device.name(), "device left");
        feed.note(id, device.name(), Change::Left);
        Ok(device)
    }

    fn take(&self, id: DeviceId) -> Option<Arc<Device>> {
        let mut members = self.members.write();
        let index = members.iter().position(|device| device.id() == id)?;
        Some(members.remove(index))
    }
}
