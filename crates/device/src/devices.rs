//! The set of devices.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::RwLock;

use crate::{Device, DeviceError, DeviceId, DeviceSpec};

/// Limits of each device that is started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceOptions {
    /// Bytes of data a device may hold. A host device shares the bytes of the master copy and is charged for them.
    pub memory_budget_bytes: u64,
    /// Jobs that may wait or run on a device at a time.
    pub queue_depth: usize,
}

impl Default for DeviceOptions {
    /// Half of this machine's memory for each device, 1,024 jobs.
    fn default() -> Self {
        DeviceOptions {
            memory_budget_bytes: host_memory_bytes() / 2,
            queue_depth: 1024,
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
}

impl Devices {
    /// Starts the devices that `spec` names.
    ///
    /// # Errors
    /// [`DeviceError::Thread`] when the system gives no thread.
    pub fn new(spec: &DeviceSpec, options: DeviceOptions) -> Result<Devices, DeviceError> {
        let devices = Devices {
            options,
            members: RwLock::default(),
            next_id: AtomicU32::new(0),
        };
        devices.add(spec)?;
        Ok(devices)
    }

    /// The devices of the set in order of id, lost ones included.
    pub fn list(&self) -> Vec<Arc<Device>> {
        self.members.read().clone()
    }

    /// The device with this id, if it is of the set.
    pub fn get(&self, id: DeviceId) -> Option<Arc<Device>> {
        self.members
            .read()
            .iter()
            .find(|device| device.id() == id)
            .cloned()
    }

    /// Starts more devices and returns them.
    ///
    /// # Errors
    /// [`DeviceError::Thread`] when the system gives no thread; the devices started before it stay.
    pub fn add(&self, spec: &DeviceSpec) -> Result<Vec<Arc<Device>>, DeviceError> {
        (0..spec.host_devices()).map(|_| self.add_host()).collect()
    }

    fn add_host(&self) -> Result<Arc<Device>, DeviceError> {
        let mut members = self.members.write();
        let id = DeviceId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let device = Device::start_host(id, format!("host:{id}"), &self.options)?;
        members.push(Arc::clone(&device));
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
        Ok(device)
    }
}
