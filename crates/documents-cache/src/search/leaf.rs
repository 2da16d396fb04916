//! One condition on one field: what is looked up at once, and what is scanned.

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
use super::scan::{Abandon, Found, Order, Place, Scan, Share, Task};
use super::sink::Sink;
use super::threads;
use crate::answer::{LeafReport, SearchReport};
use crate::bucket::Bucket;
use crate::cache::Shared;
use crate::error::SearchError;
use crate::field::FieldState;
use crate::gpu::{Holders, OnGpu, is_gpu};
use crate::numbers::NumberSet;
use crate::request::Predicate;
use crate::segment::Segment;

/// What is wanted of the rows that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// How many.
    Count,
    /// Whose they are.
    Numbers,
    /// Whose this many of them are.
    Some(usize),
}

impl Goal {
    /// Rows after which the search may end.
    fn limit(self) -> usize {
        match self {
            Goal::Some(limit) => limit,
            Goal::Count | Goal::Numbers => usize::MAX,
        }
    }
}

/// Look-ups in more buckets than this go to a thread for long work.
const INLINE_BUCKETS_MAX: usize = 64;

/// What binary searches find.
enum Key {
    /// Values that equal one of these, which are distinct.
    Values(Vec<Vec<u8>>),
    /// Values that begin with this.
    Prefix(Vec<u8>),
}

impl Key {
    /// How many buckets are looked into.
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

    /// How many searches of a bucket it takes.
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

/// One condition to search.
pub(super) struct LeafSearch<'a> {
    pub(super) shared: &'a Arc<Shared>,
    pub(super) field: usize,
    pub(super) state: &'a Arc<FieldState>,
    /// Documents of the collection.
    pub(super) documents: u64,
    pub(super) predicate: &'a Predicate,
    pub(super) goal: Goal,
    pub(super) stop: &'a Stop,
    pub(super) abandon: &'a Abandon,
    /// What the condition's documents take of the account.
    pub(super) held: Arc<MemoryShare>,
}

/// A condition whose scans are running.
pub(super) struct Begun {
    sink: Sink,
    scans: Vec<Scan>,
    on_gpus: Vec<GpuScan>,
    shared: Arc<Shared>,
    /// A look-up that is too long for the thread of the caller.
    look_up: Option<JoinHandle<Sink>>,
    report: LeafReport,
    held: Arc<MemoryShare>,
}

impl LeafSearch<'_> {
    /// Looks up what can be, starts the scans that are needed.
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
            Goal::Numbers | Goal::Some(_) => Sink::numbers_among(self.documents),
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
        if work <= INLINE_BUCKETS_MAX || (tier == Tier::Prefix && self.goal != Goal::Numbers) {
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
            found: Found::up_to(self.goal.limit()),
            empty: self.empty_sink(),
            held: Arc::clone(&self.held),
        };
        let positions = self.state.directory.positions(program.value_prefix());
        let holders = self.state.directory.holders(positions.clone());
        let on_host = begin_on_gpus(&holders, &order, &mut begun);
        let buckets = &self.state.directory.buckets()[positions];
        begun.report.buckets_searched = buckets.len();
        let elsewhere = holders.elsewhere.iter().map(|&at| (at, &buckets[at]));
        let prefix = program.value_prefix();
        for (place, share) in self.places(prefix, elsewhere, on_host, &mut begun.report) {
            begun
                .scans
                .push(Scan::begin(place, share, order.clone(), &begun.shared)?);
        }
        Ok(begun)
    }

    /// What there is to scan in the buckets that no GPU holds and in the tail, by where it is scanned. `host` is what
    /// the host scans besides.
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
            // What a GPU holds, and does not search, has a master copy as all have.
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
        // Host devices read the master's memory, so each can search what another holds.
        let on_devices = devices
            .into_values()
            .map(|(device, tasks)| (Place::Device(device), tasks));
        let on_host = shares(host).into_iter().map(|tasks| (Place::Host, tasks));
        let tail = vec![(Place::Tail, self.tail_tasks(prefix))];
        let groups: [Vec<_>; 3] = [on_devices.collect(), on_host.collect(), tail];
        let tasks = groups.iter().flatten().map(|(_, tasks)| tasks);
        tasks.for_each(|tasks| count_rows(tasks, report));
        groups.into_iter().flat_map(pooled).collect()
    }

    fn tail_tasks(&self, prefix: &[u8]) -> Vec<Task> {
        let mut tasks: Vec<Task> = sorted_tasks(&self.state.runs, prefix, 0).collect();
        let open = &self.state.open;
        tasks.extend(Task::new(open, 0..open.block().len(), 0));
        tasks
    }
}

impl Begun {
    /// Waits for the scans. What they have found holds a share of the account.
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
            match scan.finish(report, &self.shared).await? {
                Some(found) => self.sink.merge(found),
                None => self.scans.extend(instead(&held, &order, &self.shared)?),
            }
        }
        for scan in self.scans {
            self.sink.merge(scan.finish(report).await?);
        }
        report.leaves.push(self.report);
        Ok((self.sink, self.held))
    }
}

/// Queues searches on the GPUs; returns what they leave to the host, by bucket.
fn begin_on_gpus(holders: &Holders, order: &Order, begun: &mut Begun) -> Vec<Vec<Task>> {
    let mut on_host = Vec::new();
    for held in &holders.gpus {
        match GpuScan::begin(held, order, &begun.shared) {
            Some(scan) => {
                begun.report.rows += held.rows;
                begun.report.bytes += held.bytes;
                begun.on_gpus.push(scan);
                on_host.push(gpu::tasks_aside(held));
            }
            None => on_host.extend(gpu::tasks(held, order.program.value_prefix())),
        }
    }
    on_host
}

/// Scans on the host of what a GPU was to search.
fn instead(held: &OnGpu, order: &Order, shared: &Arc<Shared>) -> Result<Vec<Scan>, SearchError> {
    let tasks = gpu::tasks(held, order.program.value_prefix());
    let on_host = shares(tasks).into_iter().map(|tasks| (Place::Host, tasks));
    pooled(on_host.collect())
        .into_iter()
        .map(|(place, share)| Scan::begin(place, share, order.clone(), shared))
        .collect()
}

/// A scan of the rows of sorted segments that begin with `prefix`.
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

/// Deals the tasks of buckets that no device holds out to as many threads as the machine has cores.
fn shares(buckets: Vec<Vec<Task>>) -> Vec<Vec<Task>> {
    let cores = forebay_device::cores();
    let mut shares = vec![Vec::new(); cores];
    for (index, tasks) in buckets.into_iter().enumerate() {
        shares[index % cores].extend(tasks);
    }
    shares
}

/// One pool of the tasks of some places, which each has its share in.
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
