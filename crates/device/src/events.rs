//! What happened to the set of devices, for people who watch it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::Mutex;

/// How many events are remembered.
const EVENTS_MAX: usize = 100;

/// What happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// It started, and takes data from now on.
    Joined,
    /// It was taken out of the set.
    Left,
    /// It failed.
    Lost {
        /// What happened.
        why: String,
    },
}

impl Change {
    /// The words for all changes, in the order of [`DeviceEvents::counts`].
    pub const NAMES: [&'static str; 3] = ["joined", "left", "lost"];

    /// The word for it, the same in metrics and on the status page.
    pub fn name(&self) -> &'static str {
        Change::NAMES[self.place()]
    }

    fn place(&self) -> usize {
        match self {
            Change::Joined => 0,
            Change::Left => 1,
            Change::Lost { .. } => 2,
        }
    }
}

/// A device, and what happened to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvent {
    /// When.
    pub at: SystemTime,
    /// Name of the device.
    pub device: String,
    /// What.
    pub change: Change,
}

/// The latest events of a set of devices, and the number of all.
#[derive(Debug, Default)]
pub struct DeviceEvents {
    latest: Mutex<VecDeque<DeviceEvent>>,
    counts: [AtomicU64; Change::NAMES.len()],
}

impl DeviceEvents {
    /// Notes what happened to a device now.
    pub(crate) fn note(&self, device: &str, change: Change) {
        self.counts[change.place()].fetch_add(1, Ordering::Relaxed);
        let event = DeviceEvent {
            at: SystemTime::now(),
            device: device.to_owned(),
            change,
        };
        let mut latest = self.latest.lock();
        latest.truncate(EVENTS_MAX - 1);
        latest.push_front(event);
    }

    /// The latest events, the last one first.
    pub fn latest(&self) -> Vec<DeviceEvent> {
        self.latest.lock().iter().cloned().collect()
    }

    /// How often each change happened, in the order of [`Change::NAMES`].
    pub fn counts(&self) -> [u64; Change::NAMES.len()] {
        self.counts
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_events_are_kept_and_all_are_counted() {
        let events = DeviceEvents::default();
        for number in 0..EVENTS_MAX + 5 {
            events.note(&format!("host:{number}"), Change::Joined);
        }
        let why = "it broke".to_owned();
        events.note("host:0", Change::Lost { why });
        let latest = events.latest();
        assert_eq!(latest.len(), EVENTS_MAX);
        assert_eq!(
            (latest[0].device.as_str(), latest[0].change.name()),
            ("host:0", "lost")
        );
        assert_eq!(latest[1].device, format!("host:{}", EVENTS_MAX + 4));
        assert_eq!(events.counts(), [EVENTS_MAX as u64 + 5, 0, 1]);
    }
}
