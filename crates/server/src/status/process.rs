//! Status of the process: uptime, memory and devices.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_device::{Change, Device, DeviceEvent, DeviceId, Devices};
use forebay_memory::{Account, Figures, resident_bytes};

/// The process-wide state whose status is reported.
#[derive(Debug)]
pub struct Process {
    started: Instant,
    devices: Arc<Devices>,
    memory: Account,
}

/// Status of the process at a point in time.
#[derive(Debug)]
pub struct ProcessStatus {
    /// Time since the start.
    pub uptime: Duration,
    /// Resident memory in bytes; 0 if the system does not report it.
    pub resident_bytes: u64,
    /// Figures of the memory account.
    pub memory: Figures,
    /// The devices ordered by id, including lost ones.
    pub devices: Vec<Arc<Device>>,
    /// The latest device events (joined, left, lost), the most recent first.
    pub device_events: Vec<DeviceEvent>,
    /// Number of device events of each kind, in the order of [`Change::NAMES`].
    pub device_event_counts: [u64; Change::NAMES.len()],
}

impl Process {
    /// Creates the status of a process that starts now, with these devices and this memory account.
    pub fn new(devices: Arc<Devices>, memory: Account) -> Process {
        Process {
            started: Instant::now(),
            devices,
            memory,
        }
    }

    /// Takes a snapshot.
    pub fn status(&self) -> ProcessStatus {
        let events = self.devices.events();
        ProcessStatus {
            uptime: self.started.elapsed(),
            resident_bytes: resident_bytes(),
            memory: self.memory.figures(),
            devices: self.devices.list(),
            device_events: events.latest(),
            device_event_counts: events.counts(),
        }
    }

    /// Returns the problem of the process as a sentence; `None` if it works properly.
    pub fn problem(&self) -> Option<String> {
        let devices = self.devices.list();
        let all_lost = !devices.is_empty() && devices.iter().all(|device| device.is_lost());
        all_lost.then(|| "every device is lost".to_owned())
    }
}

impl ProcessStatus {
    /// Returns the name of a device; `host` for buckets that no device holds.
    pub fn device_name(&self, id: Option<DeviceId>) -> String {
        let Some(id) = id else {
            return "host".to_owned();
        };
        let device = self.devices.iter().find(|device| device.id() == id);
        device.map_or_else(|| id.to_string(), |device| device.name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use forebay_device::{DeviceContext, DeviceOptions, Fault, Step};

    use super::*;

    #[test]
    fn the_loss_of_every_device_is_a_problem() {
        let spec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a thread");
        let process = Process::new(Arc::new(devices), Account::default());
        assert_eq!(process.problem(), None);
        let device = process.status().devices.remove(0);
        device.inject(Fault::FailAfter { checks: 0 });
        let (sender, receiver) = channel::<()>();
        let job = move |_: &mut DeviceContext| {
            sender.send(()).expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(job)).expect("room");
        assert!(receiver.recv().is_err(), "the job is dropped");
        assert_eq!(process.problem().as_deref(), Some("every device is lost"));
    }
}
