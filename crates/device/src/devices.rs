//! The set of devices that a process uses.

use std::collections::HashSet;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::host::host_memory_bytes;
use crate::spec::Wanted;
use crate::{
    Change, Device, DeviceContext, DeviceError, DeviceEvent, DeviceEvents, DeviceId, DeviceKind,
    DeviceSpec, JobError, Step, Subscription,
};

/// Maximum time to wait for a GPU to halt when the process ends.
const HALT_TIMEOUT: Duration = Duration::from_secs(30);

/// Limits of each device in the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Maximum bytes of data on a host device. A host device has no copy of its own: it reads the master copy in host
    /// memory. The bytes of the master copy are nevertheless charged to this budget.
    pub memory_budget_bytes: u64,
    /// Maximum unfinished jobs of each [class](crate::Class) on a device.
    pub queue_depth: usize,
    /// Bytes of GPU memory that each GPU allocates for data at start; `None` for four fifths of the memory that is free
    /// at that time.
    pub cuda_memory_budget_bytes: Option<u64>,
    /// Bytes of pinned (page-locked) host memory that each GPU allocates at start, to stage data on its way to the GPU.
    pub pinned_pool_bytes: u64,
    /// NUMA node to allocate pinned memory on; `None` for each GPU's own node, if the machine has several nodes.
    pub pinned_numa_node: Option<u32>,
}

impl Default for DeviceOptions {
    /// Returns the default limits: half of this machine's memory for each host device; four fifths of the free memory
    /// and 128 MiB of pinned memory for each GPU; 1,024 jobs of each class.
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

/// The devices of this process. Devices join and leave the set at run time; handles of a device that left stay valid.
#[derive(Debug)]
pub struct Devices {
    options: DeviceOptions,
    members: RwLock<Vec<Arc<Device>>>,
    next_id: AtomicU32,
    events: Arc<DeviceEvents>,
    /// Serialises starts of devices, so that `members` need not be locked while devices start.
    starting: Mutex<()>,
}

impl Devices {
    /// Starts the devices that `spec` names. Each GPU takes some hundred milliseconds.
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

    /// Returns the devices of the set, including lost devices, in the order of their ids.
    pub fn list(&self) -> Vec<Arc<Device>> {
        self.members.read().clone()
    }

    /// Returns the log of joins, leaves and losses of devices.
    pub fn events(&self) -> &DeviceEvents {
        &self.events
    }

    /// Calls `listener` on each later join, leave and loss of a device, until the subscription is dropped. For each
    /// device that is already in the set, first calls `listener` on the calling thread with the device's join, and with
    /// its loss if the device is lost. So a listener misses no device and gets no event twice.
    ///
    /// All listeners get all events in the same order, on the thread on which a device joins, leaves or fails; for a
    /// loss this is the device's own thread. A listener must return at once. It may read the state of devices, but must
    /// not add or remove a device, subscribe, or wait for a device; it can wake another thread that does.
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

    /// Starts more devices and returns them. Each GPU takes some hundred milliseconds; the set can be used meanwhile.
    ///
    /// # Errors
    /// - [`DeviceError::CudaUnavailable`], [`DeviceError::NvrtcMissing`], [`DeviceError::NoSuchGpu`] or
    ///   [`DeviceError::Taken`] before any device is started.
    /// - [`DeviceError::Thread`], [`DeviceError::CardMemory`] or [`DeviceError::Start`]. The devices that this call
    ///   started before the error stay in the set.
    pub fn add(&self, spec: &DeviceSpec) -> Result<Vec<Arc<Device>>, DeviceError> {
        let _starting = self.starting.lock();
        let wanted = spec.resolve()?;
        self.refuse_taken(&wanted)?;
        wanted.into_iter().map(|one| self.start(one)).collect()
    }

    /// Halts the thread of every GPU after its current step. Blocks until all are halted or a timeout passes; a step
    /// that compiles a kernel takes seconds. Programs call this before the process ends, or use [`HaltingDevices`],
    /// because CUDA's libraries are unloaded before the threads end.
    pub fn halt(&self) {
        let devices = self.list().into_iter();
        let gpus = devices.filter(|device| device.kind() == DeviceKind::Cuda);
        let halting: Vec<Receiver<()>> = gpus.filter_map(|gpu| begin_halt(&gpu)).collect();
        for halted in halting {
            if halted.recv_timeout(HALT_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
                tracing::warn!("the thread of a GPU did not halt before the timeout");
            }
        }
    }

    /// Returns an error if a wanted GPU is already in the set, or is wanted twice.
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

    /// Removes a device from the set. The device continues to run the jobs of users that hold a handle of it.
    ///
    /// # Errors
    /// [`DeviceError::Unknown`] if the set has no such device.
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

/// Halts a device's thread after its current step, and then sends a message to the result. Returns `None` if the device
/// is lost, because it runs no jobs.
fn begin_halt(device: &Device) -> Option<Receiver<()>> {
    let (report, halted) = sync_channel(1);
    let job = move |_: &mut DeviceContext| -> Result<Step, JobError> {
        // The receiver is gone if `halt` has timed out.
        let _ = report.send(());
        loop {
            thread::park();
        }
    };
    device.submit(Box::new(job)).ok().map(|()| halted)
}

/// Devices that [halt](Devices::halt) when this value is dropped: for programs that start GPUs and end. Values that
/// need a GPU's thread, such as an open cuFile, are dropped before.
#[derive(Debug)]
pub struct HaltingDevices(Devices);

impl From<Devices> for HaltingDevices {
    fn from(devices: Devices) -> HaltingDevices {
        HaltingDevices(devices)
    }
}

impl Deref for HaltingDevices {
    type Target = Devices;

    fn deref(&self) -> &Devices {
        &self.0
    }
}

impl Drop for HaltingDevices {
    fn drop(&mut self) {
        self.0.halt();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{TryRecvError, channel};

    use super::*;

    fn host() -> Devices {
        let spec = "host:1".parse().expect("a valid specification");
        Devices::new(&spec, DeviceOptions::default()).expect("host devices start")
    }

    #[test]
    fn a_thread_halts_after_its_current_step_and_takes_no_other() {
        let devices = host();
        let device = devices.list().remove(0);
        let (begun, is_running) = channel();
        let (release, released) = channel::<()>();
        let (done, steps) = channel();
        let (first, second) = (done.clone(), done);
        let long = move |_: &mut DeviceContext| {
            begun.send(()).expect("the test listens");
            // Ends when the test drops the sender.
            let _ = released.recv();
            first.send("long").expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(long)).expect("room");
        is_running.recv().expect("the job runs");
        let halted = begin_halt(&device).expect("the device works");
        let never = move |_: &mut DeviceContext| {
            second.send("never").expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(never)).expect("room");
        assert_eq!(halted.try_recv(), Err(TryRecvError::Empty));
        drop(release);
        halted.recv().expect("the thread halts");
        assert_eq!(steps.try_recv(), Ok("long"));
        assert_eq!(steps.try_recv(), Err(TryRecvError::Empty));
    }

    #[test]
    fn only_gpus_are_halted() {
        let devices = HaltingDevices::from(host());
        let device = devices.list().remove(0);
        drop(devices);
        let (sender, receiver) = channel();
        let job = move |_: &mut DeviceContext| {
            sender.send(()).expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(job)).expect("room");
        receiver.recv().expect("a host device continues");
    }
}
