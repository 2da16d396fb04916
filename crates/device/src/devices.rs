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
    Change, Device, DeviceContext, DeviceError, DeviceEvents, DeviceId, DeviceKind, DeviceSpec,
    JobError, Step,
};

/// How long the end of the process waits for a GPU.
const HALT_PATIENCE: Duration = Duration::from_secs(30);

/// Limits of each device that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Bytes of data a device may hold. A host device shares the bytes of the master copy and is charged for them.
    pub memory_budget_bytes: u64,
    /// Maximum unfinished jobs of each [class](crate::Class) on a device.
    pub queue_depth: usize,
    /// Bytes of its memory that a GPU takes at start and holds data in; none for four fifths of what is free then.
    pub cuda_memory_budget_bytes: Option<u64>,
    /// Bytes of pinned host memory that each GPU takes at start for data on its way to it.
    pub pinned_pool_bytes: u64,
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
        }
    }
}

/// Memory of this machine in bytes; 8 GiB where the system does not say.
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

/// The devices of this process. They join and leave while it runs; handles of one that left stay valid.
#[derive(Debug)]
pub struct Devices {
    options: DeviceOptions,
    members: RwLock<Vec<Arc<Device>>>,
    next_id: AtomicU32,
    events: Arc<DeviceEvents>,
    /// Held while devices start, which can take long, so that `members` need not be.
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

    /// The devices of the set in order of id, lost ones included.
    pub fn list(&self) -> Vec<Arc<Device>> {
        self.members.read().clone()
    }

    /// What happened to the devices of the set.
    pub fn events(&self) -> &DeviceEvents {
        &self.events
    }

    /// The device with this id, if it is of the set.
    pub fn get(&self, id: DeviceId) -> Option<Arc<Device>> {
        self.members
            .read()
            .iter()
            .find(|device| device.id() == id)
            .cloned()
    }

    /// Starts more devices and returns them. GPUs take some hundred milliseconds each; the set can be used meanwhile.
    ///
    /// # Errors
    /// - [`DeviceError::CudaUnavailable`], [`DeviceError::NvrtcMissing`], [`DeviceError::NoSuchGpu`] or
    ///   [`DeviceError::Taken`] before anything is started.
    /// - [`DeviceError::Thread`], [`DeviceError::CardMemory`] or [`DeviceError::Start`]; the devices started before stay.
    pub fn add(&self, spec: &DeviceSpec) -> Result<Vec<Arc<Device>>, DeviceError> {
        let _starting = self.starting.lock();
        let wanted = spec.resolve()?;
        self.refuse_taken(&wanted)?;
        wanted.into_iter().map(|one| self.start(one)).collect()
    }

    /// Has every GPU end what it is at, and do nothing more: for the end of the process, in which CUDA's libraries are torn
    /// down while threads still run. Blocks as long as that takes; a compilation of kernels takes seconds.
    pub fn halt(&self) {
        let halt = |device: &Arc<Device>| {
            let (told, halted) = sync_channel(1);
            let job = move |_: &mut DeviceContext| -> Result<Step, JobError> {
                // Nobody listens who has lost patience.
                let _ = told.send(());
                loop {
                    thread::park();
                }
            };
            // One that is lost does nothing any more.
            device.submit(Box::new(job)).ok().map(|()| halted)
        };
        let gpus = self.list();
        let gpus = gpus
            .iter()
            .filter(|device| device.kind() == DeviceKind::Cuda);
        let halting: Vec<Receiver<()>> = gpus.filter_map(halt).collect();
        for halted in halting {
            if halted.recv_timeout(HALT_PATIENCE) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("a GPU does not end what it is at");
            }
        }
    }

    /// A GPU is one device: twice is an error.
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
        self.members.write().push(Arc::clone(&device));
        tracing::info!(device = device.name(), "device joined");
        self.events.note(device.name(), Change::Joined);
        Ok(device)
    }

    /// Takes a device out of the set. It still finishes the jobs it is given by those who hold it.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] when the set has no such device.
    pub fn remove(&self, id: DeviceId) -> Result<Arc<Device>, DeviceError> {
        let mut members = self.members.write();
        let index = members
            .iter()
            .position(|device| device.id() == id)
            .ok_or(DeviceError::Unknown { id })?;
        let device = members.remove(index);
        device.leave();
        tracing::info!(device = device.name(), "device left");
        self.events.note(device.name(), Change::Left);
        Ok(device)
    }
}
