//! Changes to a set of devices (joined, left, lost), for code that uses the devices and for operators.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::SystemTime;

use parking_lot::{Mutex, MutexGuard};

use crate::DeviceId;

/// Maximum events kept for [`DeviceEvents::latest`].
const EVENTS_MAX: usize = 100;

/// What happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The device started and now accepts data.
    Joined,
    /// The device was removed from the set.
    Left,
    /// The device failed.
    Lost {
        /// Text of the fault.
        why: String,
    },
}

impl Change {
    /// The names of all changes, in the order of [`DeviceEvents::counts`].
    pub const NAMES: [&'static str; 3] = ["joined", "left", "lost"];

    /// Returns the name of the change, as metrics and the status page show it.
    pub fn name(&self) -> &'static str {
        Change::NAMES[self.index()]
    }

    fn index(&self) -> usize {
        match self {
            Change::Joined => 0,
            Change::Left => 1,
            Change::Lost { .. } => 2,
        }
    }
}

/// An event: what happened to a device, and when.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvent {
    /// Time of the event.
    pub at: SystemTime,
    /// Id of the device.
    pub id: DeviceId,
    /// Name of the device.
    pub device: String,
    /// What happened to the device.
    pub change: Change,
}

type Listener = dyn Fn(&DeviceEvent) + Send + Sync;

/// Guard of a listener's subscription to the events of a set of devices; see
/// [`Devices::subscribe`](crate::Devices::subscribe). Once it is dropped, no new call of the listener begins; a call on
/// another thread may still be running.
#[must_use = "the subscription ends when this guard is dropped"]
pub struct Subscription {
    _listener: Arc<Listener>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").finish_non_exhaustive()
    }
}

/// The latest events of a set of devices, and the number of events of each kind.
#[derive(Debug, Default)]
pub struct DeviceEvents {
    feed: Mutex<Feed>,
}

/// State of [`DeviceEvents`]. Its lock is held while the set changes and while listeners run, so each listener gets
/// every event once, in the same order.
#[derive(Default)]
pub(crate) struct Feed {
    latest: VecDeque<DeviceEvent>,
    counts: [u64; Change::NAMES.len()],
    /// The events of each device in the set: its join, and its loss if it was lost.
    members: BTreeMap<DeviceId, Vec<DeviceEvent>>,
    /// Devices that were lost before they joined.
    lost_early: BTreeMap<DeviceId, Change>,
    /// Smallest id that has not joined yet; devices join in the order of their ids.
    next_id: u32,
    listeners: Vec<Weak<Listener>>,
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed")
            .field("counts", &self.counts)
            .field("listeners", &self.listeners.len())
            .finish_non_exhaustive()
    }
}

impl DeviceEvents {
    /// Locks the events; the set of devices changes under this lock.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Feed> {
        self.feed.lock()
    }

    /// Adds a listener, and calls it with the events of the devices now in the set.
    pub(crate) fn subscribe(&self, listener: Arc<Listener>) -> Subscription {
        let mut feed = self.feed.lock();
        feed.members
            .values()
            .flatten()
            .for_each(|event| listener(event));
        feed.listeners.push(Arc::downgrade(&listener));
        Subscription {
            _listener: listener,
        }
    }

    /// Returns the latest events, newest first.
    pub fn latest(&self) -> Vec<DeviceEvent> {
        self.feed.lock().latest.iter().cloned().collect()
    }

    /// Returns how often each change happened, in the order of [`Change::NAMES`].
    pub fn counts(&self) -> [u64; Change::NAMES.len()] {
        self.feed.lock().counts
    }
}

impl Feed {
    /// Records a change of a device and calls the listeners. The loss of a device that has not joined yet is recorded
    /// when the device joins.
    pub(crate) fn note(&mut self, id: DeviceId, device: &str, change: Change) {
        let has_joined = id.0 < self.next_id;
        match &change {
            Change::Joined => {
                self.next_id = id.0 + 1;
                self.publish(id, device, change);
                if let Some(lost) = self.lost_early.remove(&id) {
                    self.publish(id, device, lost);
                }
            }
            Change::Lost { .. } if !has_joined => drop(self.lost_early.insert(id, change)),
            Change::Left | Change::Lost { .. } => self.publish(id, device, change),
        }
    }

    fn publish(&mut self, id: DeviceId, device: &str, change: Change) {
        let event = DeviceEvent {
            at: SystemTime::now(),
            id,
            device: device.to_owned(),
            change,
        };
        self.counts[event.change.index()] += 1;
        match &event.change {
            Change::Joined => drop(self.members.insert(id, vec![event.clone()])),
            Change::Left => drop(self.members.remove(&id)),
            Change::Lost { .. } => {
                let member = self.members.get_mut(&id);
                member
                    .into_iter()
                    .for_each(|events| events.push(event.clone()));
            }
        }
        self.latest.truncate(EVENTS_MAX - 1);
        self.latest.push_front(event.clone());
        self.listeners.retain(|listener| {
            let listener = listener.upgrade();
            listener.map(|listener| listener(&event)).is_some()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events that a listener received, as text.
    type Heard = Arc<Mutex<Vec<String>>>;

    fn listen(events: &DeviceEvents) -> (Subscription, Heard) {
        let heard = Heard::default();
        let said = Arc::clone(&heard);
        let listener = move |event: &DeviceEvent| {
            let word = format!("{} {}", event.device, event.change.name());
            said.lock().push(word);
        };
        (events.subscribe(Arc::new(listener)), heard)
    }

    fn lost() -> Change {
        let why = "it broke".to_owned();
        Change::Lost { why }
    }

    #[test]
    fn the_latest_events_are_kept_and_all_are_counted() {
        let events = DeviceEvents::default();
        for number in 0..EVENTS_MAX as u32 + 5 {
            let name = format!("host:{number}");
            events.lock().note(DeviceId(number), &name, Change::Joined);
        }
        events.lock().note(DeviceId(0), "host:0", lost());
        let latest = events.latest();
        assert_eq!(latest.len(), EVENTS_MAX);
        assert_eq!(
            (latest[0].device.as_str(), latest[0].change.name()),
            ("host:0", "lost")
        );
        assert_eq!(latest[1].device, format!("host:{}", EVENTS_MAX + 4));
        assert_eq!(events.counts(), [EVENTS_MAX as u64 + 5, 0, 1]);
    }

    #[test]
    fn a_listener_gets_the_present_members_first_and_then_what_happens() {
        let events = DeviceEvents::default();
        for (id, name) in [(0, "a"), (1, "b"), (2, "c")] {
            events.lock().note(DeviceId(id), name, Change::Joined);
        }
        events.lock().note(DeviceId(0), "a", lost());
        events.lock().note(DeviceId(1), "b", Change::Left);
        let (subscription, heard) = listen(&events);
        assert_eq!(*heard.lock(), ["a joined", "a lost", "c joined"]);
        heard.lock().clear();
        // A device that has left may fail later, while it finishes its queued jobs.
        events.lock().note(DeviceId(1), "b", lost());
        events.lock().note(DeviceId(2), "c", Change::Left);
        assert_eq!(*heard.lock(), ["b lost", "c left"]);
        drop(subscription);
        events.lock().note(DeviceId(3), "d", Change::Joined);
        assert_eq!(heard.lock().len(), 2, "the subscription has ended");
        let (_subscription, heard) = listen(&events);
        assert_eq!(*heard.lock(), ["a joined", "a lost", "d joined"]);
    }

    #[test]
    fn a_device_that_fails_while_it_starts_is_lost_after_it_has_joined() {
        let events = DeviceEvents::default();
        let (_subscription, heard) = listen(&events);
        events.lock().note(DeviceId(0), "a", lost());
        assert!(heard.lock().is_empty());
        events.lock().note(DeviceId(0), "a", Change::Joined);
        assert_eq!(*heard.lock(), ["a joined", "a lost"]);
        assert_eq!(events.counts(), [1, 0, 1]);
    }
}
