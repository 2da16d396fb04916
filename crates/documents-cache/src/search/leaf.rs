//! Search for one condition on one field. Binary searches answer some conditions at once; scans answer the others.

use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_memory::Share as MemoryShare;
use forebay_text::{Program, Tier};
use tokio::task::JoinHandle;

use super::gpu::{self, GpuScan};
use super::lookup;
use super::pool::Pool;
use super::scan::{Abandon, MatchLimit, Order, Place, Scan, Share, Task};
use super::sink::Sink;
use super::threads;
use crate::answer::{LeafReport, SearchReport};
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::error::SearchError;
use crate::field::FieldState;
use crate::gpu::{DevicePartitions, GpuPartition, is_gpu};
use crate::numbers::NumberSet;
use crate::request::Predicate;
use crate::segment::Segment;

/// What to compute from the matching rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// Count the matching rows.
    Count,
    /// Collect the documents of the matching rows.
    Numbers,
    /// Collect the documents of at least this many matching rows, or of all if fewer match.
    AtLeast(usize),
}

impl Goal {
    /// Returns the number of matching rows after which the search may end.
    fn limit(self) -> usize {
        match self {
            Goal::AtLeast(limit) => limit,
            Goal::Count | Goal::Numbers => usize::MAX,
        }
    }
}

/// Maximum look-ups on the caller's thread. More look-ups run on a thread for long work.
const INLINE_LOOK_UPS_MAX: usize = 64;

/// What to find by binary search.
enum Key {
    /// Rows equal to one of these distinct values.
    Values(Vec<Vec<u8>>),
    /// Rows that begin with this prefix.
    Prefix(Vec<u8>),
}

impl Key {
    /// Returns the number of buckets to search.
    fn buckets(&self, state: &FieldState) -> usize {
        match self {
            Key::Values(values) if values.len() == 1 => 1,
            Key::Values(values) => {
                let positions = values.iter().map(|value| state.directory.position(value));
                positions.collect::<BTreeSet<_>>().len()
            }
            Key::Prefix(prefix) => state.directory.positions(prefix).len(),
        }
    }

    /// Returns the number of binary searches.
    fn look_ups(&self, state: &FieldState) -> usize {
        match self {
            Key::Values(values) => values.len(),
            Key::Prefix(_) => self.buckets(state),
        }
    }

    fn look_up(&self, state: &FieldState, limit: usize, sink: &mut Sink) {
        match self {
            Key::Values(values) => {
                values
                    .iter()
                    .for_each(|value| lookup::equal(state, value, sink, limit));
            }
            Key::Prefix(prefix) => lookup::prefix(state, prefix, sink, limit),
        }
    }
}

/// One condition to search for.
pub(super) struct LeafSearch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) field: usize,
    pub(super) state: &'a Arc<FieldState>,
    /// Number of documents in the collection.
    pub(super) documents: u64,
    pub(super) predicate: &'a Predicate,
    pub(super) goal: Goal,
    pub(super) stop: &'a Stop,
    pub(super) abandon: &'a Abandon,
    /// Reservation in the memory account for the condition's documents.
    pub(super) held: Arc<MemoryShare>,
}

/// A condition whose scans are running.
pub(super) struct Begun {
    sink: Sink,
    scans: Vec<Scan>,
    on_gpus: Vec<GpuScan>,
    shared: Arc<Shared>,
    /// A look-up that is too long for the caller's thread.
    look_up: Option<JoinHandle<Sink>>,
    report: LeafReport,
    held: Arc<MemoryShare>,
}

impl LeafSearch<'_> {
    /// Executes short look-ups, and starts the scans or the long look-up that the condition needs.
    pub(super) fn begin(&self) -> Result<Begun, SearchError> {
        match self.predicate {
            Predicate::Equals(value) => self.look_up(Key::Values(vec![value.clone()])),
            Predicate::In(values) => self.look_up(Key::Values(distinct(values))),
            Predicate::Program(program) if program.is_exact() => {
                self.look_up(Key::Values(vec![program.value_prefix().to_vec()]))
            }
            Predicate::Program(program) if program.is_prefix() => {
                self.look_up(Key::Prefix(program.value_prefix().to_vec()))
            }
            Predicate::Program(program) => self.scan(program),
            Predicate::IsMissing => Ok(self.look_up_sets(&[&self.state.missing])),
            Predicate::IsNull => Ok(self.look_up_sets(&[&self.state.missing, &self.state.null])),
        }
    }

    fn empty_sink(&self) -> Sink {
        match self.goal {
            Goal::Count => Sink::Count(0),
            Goal::Numbers | Goal::AtLeast(_) => Sink::numbers_among(self.documents),
        }
    }

    fn begun(&self, sink: Sink, report: LeafReport) -> Begun {
        Begun {
            sink,
            scans: Vec::new(),
            on_gpus: Vec::new(),
            look_up: None,
            report,
            shared: Arc::clone(self.shared),
            held: Arc::clone(&self.held),
        }
    }

    fn report(&self, tier: Option<Tier>) -> LeafReport {
        LeafReport {
            field: self.field,
            tier,
            buckets_searched: 0,
            buckets_total: self.state.directory.buckets().len(),
            rows: 0,
            bytes: 0,
        }
    }

    fn look_up(&self, key: Key) -> Result<Begun, SearchError> {
        let tier = if matches!(key, Key::Values(_)) {
            Tier::Exact
        } else {
            Tier::Prefix
        };
        let mut begun = self.begun(self.empty_sink(), self.report(Some(tier)));
        begun.report.buckets_searched = key.buckets(self.state);
        let work = key.look_ups(self.state);
        if work <= INLINE_LOOK_UPS_MAX || (tier == Tier::Prefix && self.goal != Goal::Numbers) {
            key.look_up(self.state, self.goal.limit(), &mut begun.sink);
            begun.sink.charge(&mut 0, &self.held)?;
        } else {
            let (state, limit) = (Arc::clone(self.state), self.goal.limit());
            let mut sink = self.empty_sink();
            begun.look_up = Some(threads::spawn(move || {
                key.look_up(&state, limit, &mut sink);
                sink
            }));
        }
        Ok(begun)
    }

    fn look_up_sets(&self, sets: &[&NumberSet]) -> Begun {
        let sink = match self.goal {
            Goal::Count => Sink::Count(sets.iter().map(|set| set.len()).sum()),
            _ => Sink::Set(
                sets.iter()
                    .map(|set| set.to_bitmap())
                    .fold(Default::default(), |a, b| a | b),
            ),
        };
        self.begun(sink, self.report(None))
    }

    fn scan(&self, program: &Arc<Program>) -> Result<Begun, SearchError> {
        let mut begun = self.begun(self.empty_sink(), self.report(Some(program.tier())));
        let order = Order {
            program: Arc::clone(program),
            stop: self.stop.clone(),
            abandoned: self.abandon.flag(),
            limit: MatchLimit::up_to(self.goal.limit()),
            empty: self.empty_sink(),
            held: Arc::clone(&self.held),
        };
        let positions = self.state.directory.positions(program.value_prefix());
        let device_partitions = self.state.directory.device_partitions(positions.clone());
        let on_host = begin_on_gpus(&device_partitions, &order, &mut begun);
        let buckets = &self.state.directory.buckets()[positions];
        begun.report.buckets_searched = buckets.len();
        let host_buckets = device_partitions
            .host_buckets
            .iter()
            .map(|&at| (at, &buckets[at]));
        let prefix = program.value_prefix();
        for (place, share) in self.places(prefix, host_buckets, on_host, &mut begun.report) {
            begun.scans.push(Scan::begin(place, share, order.clone())?);
        }
        Ok(begun)
    }

    /// Returns the scans of the delta and of the buckets that no GPU searches, each with the host device or host thread
    /// that runs it. `host` holds further tasks for host threads.
    fn places<'b>(
        &self,
        prefix: &[u8],
        buckets: impl Iterator<Item = (usize, &'b Arc<Bucket>)>,
        mut host: Vec<Vec<Task>>,
        report: &mut LeafReport,
    ) -> Vec<(Place, Share)> {
        let mut devices: BTreeMap<u32, (Arc<Device>, Vec<Task>)> = BTreeMap::new();
        for (bucket, state) in buckets {
            let tasks = sorted_tasks(&state.segments, prefix, bucket);
            // The host searches its master copy of a bucket that a GPU holds but does not search.
            match state.device().filter(|device| !is_gpu(device)) {
                Some(device) => {
                    let group = devices.entry(device.id().0);
                    group
                        .or_insert_with(|| (Arc::clone(device), Vec::new()))
                        .1
                        .extend(tasks);
                }
                None => host.push(tasks.collect::<Vec<_>>()),
            }
        }
        // All host devices read the master copy, so each can search buckets that are assigned to another host device.
        let on_devices = devices
            .into_values()
            .map(|(device, tasks)| (Place::Device(device), tasks));
        let on_host = shares(host).into_iter().map(|tasks| (Place::Host, tasks));
        let delta = vec![(Place::Delta, self.delta_tasks(prefix))];
        let groups: [Vec<_>; 3] = [on_devices.collect(), on_host.collect(), delta];
        let tasks = groups.iter().flatten().map(|(_, tasks)| tasks);
        tasks.for_each(|tasks| count_rows(tasks, report));
        groups.into_iter().flat_map(pooled).collect()
    }

    fn delta_tasks(&self, prefix: &[u8]) -> Vec<Task> {
        let mut tasks: Vec<Task> = sorted_tasks(&self.state.runs, prefix, 0).collect();
        let open = &self.state.open;
        tasks.extend(Task::new(open, 0..open.block().len(), 0));
        tasks
    }
}

impl Begun {
    /// Waits for the scans. Returns their matches, and the reservation in the memory account for them.
    pub(super) async fn finish(
        mut self,
        report: &mut SearchReport,
    ) -> Result<(Sink, Arc<MemoryShare>), SearchError> {
        if let Some(look_up) = self.look_up {
            let found = look_up.await.map_err(|_| SearchError::Panicked)?;
            found.charge(&mut 0, &self.held)?;
            self.sink.merge(found);
        }
        for scan in self.on_gpus {
            let (held, order) = (Arc::clone(&scan.held), scan.order.clone());
            match scan.finish(report).await? {
                Some(found) => self.sink.merge(found),
                None => self.scans.extend(scan_on_host(&held, &order)?),
            }
        }
        for scan in self.scans {
            self.sink.merge(scan.finish(report).await?);
        }
        report.leaves.push(self.report);
        Ok((self.sink, self.held))
    }
}

/// Queues searches on the GPUs. Returns the tasks that remain for the host, grouped by bucket.
fn begin_on_gpus(
    device_partitions: &DevicePartitions,
    order: &Order,
    begun: &mut Begun,
) -> Vec<Vec<Task>> {
    let mut on_host = Vec::new();
    for held in &device_partitions.gpus {
        match GpuScan::begin(held, order, &begun.shared) {
            Some(scan) => {
                begun.report.rows += held.rows;
                begun.report.bytes += held.bytes;
                begun.on_gpus.push(scan);
                on_host.push(gpu::oversize_tasks(held));
            }
            None => on_host.extend(gpu::tasks(held, order.program.value_prefix())),
        }
    }
    on_host
}

/// Starts scans with which the host searches the buckets that a GPU failed to search.
fn scan_on_host(held: &GpuPartition, order: &Order) -> Result<Vec<Scan>, SearchError> {
    let tasks = gpu::tasks(held, order.program.value_prefix());
    let on_host = shares(tasks).into_iter().map(|tasks| (Place::Host, tasks));
    pooled(on_host.collect())
        .into_iter()
        .map(|(place, share)| Scan::begin(place, share, order.clone()))
        .collect()
}

/// Returns tasks that cover, in sorted segments, the rows whose values begin with `prefix`.
fn sorted_tasks<'a>(
    segments: &'a [Segment],
    prefix: &'a [u8],
    bucket: usize,
) -> impl Iterator<Item = Task> + 'a {
    segments.iter().filter_map(move |segment| {
        Task::new(
            segment,
            lookup::rows_with_prefix(segment.block(), prefix),
            bucket,
        )
    })
}

/// Distributes the buckets that no device holds over one thread per core, round-robin. Returns the tasks of each
/// thread. All tasks of a bucket go to the same thread.
fn shares(buckets: Vec<Vec<Task>>) -> Vec<Vec<Task>> {
    let cores = forebay_device::cores();
    let mut shares = vec![Vec::new(); cores];
    for (index, tasks) in buckets.into_iter().enumerate() {
        shares[index % cores].extend(tasks);
    }
    shares
}

/// Puts the tasks of several devices or host threads into one pool. Returns each device or thread with
/// its share of the pool.
fn pooled(mut group: Vec<(Place, Vec<Task>)>) -> Vec<(Place, Share)> {
    group.retain(|(_, tasks)| !tasks.is_empty());
    let (places, tasks): (Vec<Place>, Vec<Vec<Task>>) = group.into_iter().unzip();
    let pool = Arc::new(Pool::new(&tasks));
    let share = |member| Share {
        pool: Arc::clone(&pool),
        member,
    };
    let members = places.into_iter().enumerate();
    members
        .map(|(member, place)| (place, share(member)))
        .collect()
}

fn count_rows(tasks: &[Task], report: &mut LeafReport) {
    report.rows += tasks.iter().map(|task| task.rows.len() as u64).sum::<u64>();
    report.bytes += tasks.iter().map(Task::bytes).sum::<u64>();
}

fn distinct(values: &[Vec<u8>]) -> Vec<Vec<u8>> {
    let mut values = values.to_vec();
    values.sort_unstable();
    values.dedup();
    values
}
