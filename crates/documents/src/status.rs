//! A picture of the door at one moment, for people and programs that watch it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::{Device, DeviceEvent, DeviceId};
use forebay_documents_cache::BucketSummary;
use forebay_documents_store::StoreSizes;

use crate::documents::Documents;
use crate::host;
use crate::metrics::SearchFigures;
use crate::search::{FieldOverview, IndexState};

/// Maximum cells as which the buckets of a field are drawn.
const CELLS_MAX: usize = 240;

/// The door at one moment.
#[derive(Debug)]
pub struct Status {
    /// The devices in order of id, lost ones included.
    pub devices: Vec<DeviceStatus>,
    /// The latest joins, leaves and losses, the last one first.
    pub device_events: Vec<DeviceEvent>,
    /// How often devices joined, left and were lost, in the order of [`forebay_device::Change::NAMES`].
    pub device_event_counts: [u64; 3],
    /// The collections with cache indexes, in order of name.
    pub caches: Vec<CollectionStatus>,
    /// What was counted about searches.
    pub searches: SearchFigures,
    /// How often commands were run, by name.
    pub commands: Vec<(&'static str, u64)>,
    /// Open cursors.
    pub cursors: usize,
    /// Sizes of the store.
    pub store: StoreSizes,
    /// How far the caches of a collection lag behind the upstream, by namespace, where that is known.
    pub store_lag: BTreeMap<String, Duration>,
    /// How long the door has been open.
    pub uptime: Duration,
    /// Memory that the process occupies in bytes, 0 where the system does not say.
    pub resident_bytes: u64,
}

/// A device at one moment.
#[derive(Debug)]
pub struct DeviceStatus {
    /// The device.
    pub device: Arc<Device>,
    /// Buckets on it.
    pub buckets: u64,
}

/// The caches of a collection at one moment.
#[derive(Debug)]
pub struct CollectionStatus {
    /// `database.collection`.
    pub namespace: String,
    /// Name and state of each cache index.
    pub indexes: Vec<(String, IndexState)>,
    /// The cached fields.
    pub fields: Vec<FieldStatus>,
}

/// A cached field at one moment.
#[derive(Debug)]
pub struct FieldStatus {
    /// The dotted path.
    pub path: String,
    /// Values held; an array of strings counts as many as it has distinct elements.
    pub rows: u64,
    /// Bytes of those values.
    pub value_bytes: u64,
    /// Bytes of memory besides.
    pub overhead_bytes: u64,
    /// Values not yet in a bucket.
    pub delta_rows: u64,
    /// Documents whose field the store must judge.
    pub recheck_documents: u64,
    /// Buckets by the device that scans them; `None` is the host.
    pub buckets: BTreeMap<Option<DeviceId>, u64>,
    /// All buckets in order of value; neighbours are merged if there are more than can be drawn.
    pub cells: Vec<Cell>,
    /// Conditions searched since the cache was built, by tier; `none` for null and existence.
    pub searches: BTreeMap<&'static str, u64>,
}

/// Neighbouring buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Values held.
    pub rows: u64,
    /// Buckets by the device that scans them; `None` is the host.
    pub buckets: BTreeMap<Option<DeviceId>, u64>,
}

impl Documents {
    /// A picture of the door. Takes a moment for each hundred thousand buckets.
    pub fn status(&self) -> Status {
        let mut caches: Vec<CollectionStatus> = self
            .collections()
            .all()
            .iter()
            .map(|collection| CollectionStatus {
                namespace: collection.namespace.to_string(),
                indexes: collection.search.index_states(),
                fields: collection
                    .search
                    .overview()
                    .into_iter()
                    .map(field)
                    .collect(),
            })
            .filter(|collection| !collection.indexes.is_empty())
            .collect();
        caches.sort_by(|a, b| a.namespace.cmp(&b.namespace));
        let events = self.devices().events();
        Status {
            devices: devices(self, &caches),
            device_events: events.latest(),
            device_event_counts: events.counts(),
            caches,
            searches: self.metrics().figures(),
            commands: self.counters().all(),
            cursors: self.cursors().counts().0,
            store: self.store().sizes(),
            store_lag: self.store_lag.lock().clone(),
            uptime: self.started().elapsed(),
            resident_bytes: host::resident_bytes(),
        }
    }

    /// Why the door does not serve as it should, in sentences; nothing when it does. Asks the disk.
    pub fn problems(&self) -> Vec<String> {
        let refused = self.store().check_writable().err();
        let mut problems: Vec<String> = refused.iter().map(ToString::to_string).collect();
        let devices = self.devices().list();
        if !devices.is_empty() && devices.iter().all(|device| device.is_lost()) {
            problems.push("every device is lost".to_owned());
        }
        problems
    }

    /// Records how far the caches of a collection lag behind the upstream; `None` if that is no longer known.
    pub fn set_store_lag(&self, namespace: &str, lag: Option<Duration>) {
        let mut lags = self.store_lag.lock();
        match lag {
            Some(lag) => drop(lags.insert(namespace.to_owned(), lag)),
            None => drop(lags.remove(namespace)),
        }
    }
}

fn devices(documents: &Documents, caches: &[CollectionStatus]) -> Vec<DeviceStatus> {
    let mut buckets: BTreeMap<DeviceId, u64> = BTreeMap::new();
    for field in caches.iter().flat_map(|collection| &collection.fields) {
        for (device, count) in &field.buckets {
            if let Some(device) = device {
                *buckets.entry(*device).or_default() += count;
            }
        }
    }
    let devices = documents.devices().list().into_iter();
    devices
        .map(|device| DeviceStatus {
            buckets: buckets.get(&device.id()).copied().unwrap_or(0),
            device,
        })
        .collect()
}

fn field(overview: FieldOverview) -> FieldStatus {
    let stats = overview.stats;
    FieldStatus {
        buckets: by_device(&stats.buckets),
        cells: cells(&stats.buckets),
        path: stats.field,
        rows: stats.rows,
        value_bytes: stats.value_bytes,
        overhead_bytes: stats.overhead_bytes,
        delta_rows: stats.delta_rows,
        recheck_documents: stats.recheck,
        searches: overview.searches,
    }
}

fn by_device(buckets: &[BucketSummary]) -> BTreeMap<Option<DeviceId>, u64> {
    let mut counts = BTreeMap::new();
    for bucket in buckets {
        *counts.entry(bucket.device).or_default() += 1;
    }
    counts
}

fn cells(buckets: &[BucketSummary]) -> Vec<Cell> {
    let cells = buckets.len().min(CELLS_MAX);
    let bound = |cell: usize| buckets.len() * cell / cells;
    (0..cells)
        .map(|cell| {
            let together = &buckets[bound(cell)..bound(cell + 1)];
            Cell {
                rows: together.iter().map(|bucket| bucket.rows).sum(),
                buckets: by_device(together),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use forebay_device::{DeviceContext, DeviceOptions, Devices, Fault, Step};

    use super::*;
    use crate::Settings;

    fn documents() -> Arc<Documents> {
        let spec = "host:1".parse().expect("a device");
        let devices = Devices::new(&spec, DeviceOptions::default()).expect("a thread");
        Documents::open(Settings::default(), Arc::new(devices)).expect("in memory")
    }

    #[test]
    fn the_loss_of_every_device_is_a_problem() {
        let documents = documents();
        let device = documents.devices().list().remove(0);
        device.inject(Fault::FailAfter { checks: 0 });
        let (sender, receiver) = channel::<()>();
        let job = move |_: &mut DeviceContext| {
            sender.send(()).expect("the test listens");
            Ok(Step::Done)
        };
        device.submit(Box::new(job)).expect("room");
        assert!(receiver.recv().is_err(), "the job is dropped");
        assert_eq!(documents.problems(), ["every device is lost"]);
    }

    #[test]
    fn lag_is_told_where_it_is_known() {
        let documents = documents();
        let lag = Duration::from_millis(30);
        documents.set_store_lag("a.b", Some(lag));
        documents.set_store_lag("a.c", Some(lag));
        documents.set_store_lag("a.c", None);
        let known = BTreeMap::from([("a.b".to_owned(), lag)]);
        assert_eq!(documents.status().store_lag, known);
        assert!(documents.problems().is_empty());
    }

    fn bucket(number: usize) -> BucketSummary {
        BucketSummary {
            rows: number as u64,
            device: (!number.is_multiple_of(3)).then_some(DeviceId(number as u32 % 3)),
        }
    }

    #[test]
    fn every_bucket_is_in_one_cell() {
        for count in [0, 1, CELLS_MAX - 1, CELLS_MAX, CELLS_MAX + 1, 100_003] {
            let buckets: Vec<_> = (0..count).map(bucket).collect();
            let cells = cells(&buckets);
            assert_eq!(cells.len(), count.min(CELLS_MAX));
            let rows: u64 = cells.iter().map(|cell| cell.rows).sum();
            assert_eq!(rows, buckets.iter().map(|bucket| bucket.rows).sum::<u64>());
            let mut counts: BTreeMap<_, u64> = BTreeMap::new();
            for (device, count) in cells.iter().flat_map(|cell| &cell.buckets) {
                *counts.entry(*device).or_default() += count;
            }
            assert_eq!(counts, by_device(&buckets));
            let sizes = cells.iter().map(|cell| cell.buckets.values().sum::<u64>());
            let (least, most) = (sizes.clone().min(), sizes.max());
            assert!(
                most <= least.map(|least| least + 1),
                "{least:?} to {most:?}"
            );
        }
    }
}
