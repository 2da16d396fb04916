//! The work of a fragment on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use forebay_tables::GpuOptions;

use crate::columns::{Bytes, Columns, Read, Resident, files};
use crate::computed::Refused;
use crate::constants;
use crate::engine::{Launch, Ran};
use crate::fragment::{Fragment, Origin, Rows};
use crate::groups::{Groups, Place};
use crate::launches::{InMemory, Joins, joins_of, last};
use crate::load::{load, load_plan};
use crate::program::{Compiled, group_words};
use crate::reason::Reason;
use crate::result::{Found, Made};
use crate::scanned::Scanned;
use crate::skipped::Counting;

type Result<T> = std::result::Result<T, Reason>;

/// Maximum bytes of what kernels return.
const RESULTS_BYTES_MAX: usize = 256 << 20;

/// What computed a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    Device(OnDevice),
    Cpu(Reason),
}

/// What a device returned.
#[derive(Debug)]
pub(crate) struct OnDevice {
    /// The rows of each partition.
    pub(crate) partitions: Vec<Vec<RecordBatch>>,
    pub(crate) figures: String,
    /// The memory of the rows, until the plan is dropped.
    _held: MemoryReservation,
}

/// What is needed to compute a fragment on a device.
pub(crate) struct Work {
    pub(crate) schema: SchemaRef,
    /// The plans whose rows are joined, in the order of their sources.
    pub(crate) plans: Vec<Arc<dyn ExecutionPlan>>,
    pub(crate) partitioning: Partitioning,
    pub(crate) fragment: Arc<Fragment>,
    pub(crate) columns: Arc<Columns>,
    pub(crate) options: GpuOptions,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    pub(crate) context: Arc<TaskContext>,
}

impl Work {
    pub(crate) async fn outcome(&self) -> Outcome {
        match self.on_device().await {
            Ok(device) => {
                let rows = device.partitions.iter().flatten();
                let rows = rows.map(RecordBatch::num_rows).sum();
                MetricBuilder::new(&self.metrics).output_rows(0).add(rows);
                self.columns.counts.add_on_device();
                Outcome::Device(device)
            }
            Err(reason) => {
                self.columns.counts.add_on_cpu(&reason);
                Outcome::Cpu(reason)
            }
        }
    }

    async fn on_device(&self) -> Result<OnDevice> {
        let began = Instant::now();
        let used = self.columns.now();
        let constant = self.fragment.with_constants(constants::value)?;
        let original = constant.map_or_else(|| Arc::clone(&self.fragment), Arc::new);
        let (fragment, resident) = self.loaded(&original, used).await?;
        let stop = StopOnDrop::default();
        let compiled = self
            .compiled((&original, &fragment), &resident, &stop)
            .await?;
        let mut figures = Figures::new(&self.context, used);
        let (mut joins, mut marks) = (Joins::default(), None);
        if !compiled.kernel.builds.is_empty() {
            let (launch, tables) = joins_of(
                &resident,
                &compiled,
                (&self.columns, used),
                self.options.waits,
            )?;
            let ran = self.run(launch, &mut figures).await?;
            if ran.is_full() {
                return Err(Reason::new("keys of a join that collide in a hash table"));
            }
            let words = ran.results().as_chunks::<4>().0.iter();
            let words: Vec<u32> = words.map(|it| u32::from_le_bytes(*it)).collect();
            (joins, marks) = (tables, Some(words));
        }
        let groups = compiled.groups(marks.as_deref())?;
        let are_selected = match groups.place {
            Place::OfAll => groups.count >= self.columns.engine.selects_from(),
            place => matches!(place, Place::Hashed | Place::Listed),
        };
        let found = if are_selected {
            let of = (&*compiled, &groups);
            let found = self.selected(of, (&resident, &joins), &mut figures);
            found.await?.check()?
        } else {
            let of = (&*compiled, &groups, &joins);
            let launch = last(&resident, of, None, self.options.waits)?;
            Found {
                ran: self.run(launch, &mut figures).await?,
                selected: None,
            }
        };
        let made = Made {
            fragment,
            compiled,
            groups,
            schema: Arc::clone(&self.schema),
            partitioning: self.partitioning.clone(),
            stop: Arc::clone(&stop.0),
        };
        let partitions = made.partitions(found).await.map_err(Reason::of)?;
        let batches = partitions.iter().flatten();
        let bytes = batches.map(RecordBatch::get_array_memory_size).sum();
        figures.held.try_resize(bytes).map_err(Reason::of)?;
        Ok(OnDevice {
            partitions,
            figures: figures.text(&resident, began.elapsed()),
            _held: figures.held,
        })
    }

    /// Returns the fragment as the device can compute it, and its columns there: those of tables, and those of plans,
    /// which run for it.
    async fn loaded(
        &self,
        original: &Arc<Fragment>,
        used: u64,
    ) -> Result<(Arc<Fragment>, Vec<Resident>)> {
        let mut fragment = Arc::clone(original);
        let mut resident = loop {
            match self.resident(&fragment).await? {
                Ok(resident) => break resident,
                Err(refused) => fragment = Arc::new(fragment.without_column(&refused)?),
            }
        };
        let sources = fragment.sources.iter().zip(&mut resident);
        let of_plans = sources.filter(|(source, _)| matches!(source.origin, Origin::Plan(..)));
        for ((source, resident), plan) in of_plans.zip(&self.plans) {
            let with = (used, &self.context);
            *resident = load_plan(&self.columns, plan, source, with).await?;
        }
        Ok((fragment, resident))
    }

    /// Runs kernels.
    ///
    /// # Errors
    /// If the device cannot, or there is no room for what they return.
    async fn run(&self, launch: Launch, figures: &mut Figures) -> Result<Ran> {
        figures.add(&launch);
        let bytes = launch.results_bytes;
        // The thread of the device copies them, and others wait for it.
        if bytes > RESULTS_BYTES_MAX {
            return Err(Reason::new(format!("{bytes} bytes of groups")));
        }
        // As bytes, as numbers, and as rows.
        figures.held.try_grow(4 * bytes).map_err(Reason::of)?;
        // Columns that were used longest ago give way to results.
        drop(self.columns.allocate(bytes as u64, figures.used)?);
        let ran = self.columns.engine.run(launch).await?;
        figures.took += ran.took;
        figures.compiled += ran.compiled;
        Ok(ran)
    }

    /// Adds the totals in memory of the engine. Returns how many groups are selected, and what the kernel that selects
    /// them has written.
    async fn selected(
        &self,
        (compiled, groups): (&Compiled, &Groups),
        (resident, joins): (&[Resident], &Joins),
        figures: &mut Figures,
    ) -> Result<Found> {
        let waits = self.options.waits;
        let mut groups = groups.clone();
        'groups: loop {
            let totals = InMemory::new(compiled, &groups, (&self.columns, figures.used))?;
            let count = groups.count as u32;
            let mut search = compiled.selecting.search();
            let mut launch = last(resident, (compiled, &groups, joins), Some(&totals), waits)?;
            let selected = loop {
                search.count(&mut launch, count, &totals);
                let ran = self.run(launch, figures).await?;
                if ran.is_full() {
                    let grown = groups.grow(&compiled.totals);
                    compiled.slots.store(groups.count, Ordering::Relaxed);
                    grown?;
                    continue 'groups;
                }
                if let Some(selected) = search.found(ran.results()) {
                    break selected;
                }
                launch = Launch {
                    memory: vec![totals.memory.clone()],
                    ..Launch::new(waits)
                };
            };
            let words = group_words(&compiled.totals);
            let launch = compiled
                .selecting
                .writing(selected, (count, words), &totals, waits);
            return Ok(Found {
                ran: self.run(launch, figures).await?,
                selected: Some(selected.count as usize),
            });
        }
    }

    /// Returns the columns of each source, brought to the device before if the session wants that; or one of them that
    /// cannot be there.
    async fn resident(
        &self,
        fragment: &Fragment,
    ) -> Result<std::result::Result<Vec<Resident>, Refused>> {
        let sources = fragment.sources.iter();
        let reads = sources.map(|source| {
            let files = match &source.origin {
                Origin::Files(scan) => files(scan)?,
                Origin::Plan(..) => Vec::new(),
            };
            Ok((Arc::clone(source), files))
        });
        let reads: Vec<Read> = reads.collect::<Result<_>>()?;
        if !self.options.loads && !Columns::are_worth_it(&reads) {
            return Err(Reason::new("its files are small"));
        }
        let is_often_read = match self.columns.resident(&reads) {
            Ok(Ok(resident)) => {
                self.raise(reads, &resident);
                return Ok(Ok(resident));
            }
            Ok(Err(is_often_read)) => is_often_read,
            Err(refused) => return Ok(Err(refused)),
        };
        let load = |loading| {
            let columns = Arc::clone(&self.columns);
            load(columns, reads.clone(), Arc::clone(&self.context), loading)
        };
        let loading = Arc::clone(&self.columns.loading);
        if self.options.loads {
            let loaded = load(loading.lock_owned().await).await;
            return match self.columns.resident(&reads) {
                Err(refused) => Ok(Err(refused)),
                Ok(resident) => {
                    loaded?;
                    let resident = resident.map(Ok);
                    resident.map_err(|_| Reason::new("there is no room for its columns"))
                }
            };
        }
        // If another load runs, a later query brings the columns there.
        if is_often_read && let Ok(loading) = loading.try_lock_owned() {
            let load = load(loading);
            tokio::spawn(async move {
                if let Err(reason) = load.await {
                    tracing::debug!(%reason, "columns stay on the CPU");
                }
            });
        }
        Err(Reason::new("its columns are not in device memory yet"))
    }

    /// Brings columns that are often read from memory of the host to that of the device, while the query runs.
    fn raise(&self, reads: Vec<Read>, resident: &[Resident]) {
        let mut columns = resident
            .iter()
            .flat_map(|it| &it.files)
            .flat_map(|it| it.values());
        if columns.any(|column| column.bytes.host > 0)
            && let Ok(loading) = Arc::clone(&self.columns.loading).try_lock_owned()
        {
            let columns = Arc::clone(&self.columns);
            tokio::spawn(async move {
                columns.raise(&reads, columns.now()).await;
                drop(loading);
            });
        }
    }

    /// Returns the kernels. They are written on a thread for work that blocks: expressions are computed for all values
    /// of a column.
    async fn compiled(
        &self,
        (original, fragment): (&Arc<Fragment>, &Arc<Fragment>),
        resident: &[Resident],
        stop: &StopOnDrop,
    ) -> Result<Arc<Compiled>> {
        let kept = &self.columns.written;
        if let Some(compiled) = kept.get(original, resident) {
            return Ok(compiled);
        }
        let scanned = scanned(&fragment.rows, resident, &stop.0)?;
        let (fragment, columns) = (Arc::clone(fragment), resident.to_vec());
        let work = move || {
            let mut compiled = Compiled::new(&fragment, &scanned)?;
            compiled.counting = Counting::new(&fragment, &columns);
            Ok::<_, Reason>(Arc::new(compiled))
        };
        let compiled = tokio::task::spawn_blocking(work).await;
        let compiled = compiled.map_err(Reason::of)??;
        kept.put(original, resident, &compiled);
        Ok(compiled)
    }
}

/// Returns what is known of each source of rows and of their joins.
fn scanned(rows: &Rows, resident: &[Resident], stop: &Arc<AtomicBool>) -> Result<Vec<Scanned>> {
    let mut all = vec![resident[rows.source].scanned(rows, stop)?];
    for join in &rows.joins {
        all.extend(scanned(&join.rows, resident, stop)?);
    }
    Ok(all)
}

/// What kernels did.
#[derive(Debug)]
struct Figures {
    /// The memory for what they return.
    held: MemoryReservation,
    /// When the query began to use its columns.
    used: u64,
    kernels: usize,
    columns: usize,
    /// Number of rows that they read.
    rows: u64,
    /// Bytes of these columns.
    bytes: Bytes,
    took: Duration,
    compiled: Duration,
}

impl Figures {
    fn new(context: &TaskContext, used: u64) -> Figures {
        Figures {
            used,
            held: MemoryConsumer::new("totals").register(context.memory_pool()),
            kernels: 0,
            columns: 0,
            rows: 0,
            bytes: Bytes::default(),
            took: Duration::ZERO,
            compiled: Duration::ZERO,
        }
    }

    fn add(&mut self, launch: &Launch) {
        self.kernels += launch.kernels.len();
        let columns = launch.kernels.iter().map(|it| it.columns);
        self.columns += columns.sum::<usize>();
        let chunks = launch.kernels.iter().flat_map(|it| &it.chunks).flatten();
        self.rows += chunks.map(|rows| u64::from(*rows)).sum::<u64>();
        for column in &launch.held {
            self.bytes.device += column.bytes.device;
            self.bytes.host += column.bytes.host;
        }
    }

    /// Returns what `EXPLAIN ANALYZE` prints.
    fn text(&self, resident: &[Resident], took: Duration) -> String {
        let mut rows = self.rows.to_string();
        let all: u64 = resident.iter().map(Resident::rows).sum();
        if self.rows < all {
            // The others are in chunks of which no row counts.
            rows = format!("{rows} of {all}");
        }
        let kernels = match self.kernels {
            1 => "a kernel".to_owned(),
            several => format!("{several} kernels"),
        };
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let mut text = format!(
            "{rows} rows of {} columns, {:.1} MB on the device",
            self.columns,
            megabytes(self.bytes.device),
        );
        if self.bytes.host > 0 {
            text += &format!(" and {:.1} MB on the host", megabytes(self.bytes.host));
        }
        let ms = |took: Duration| took.as_secs_f64() * 1e3;
        text += &format!(", by {kernels} in {:.3} ms", ms(self.took));
        if !self.compiled.is_zero() {
            text += &format!(", compiled in {:.0} ms", ms(self.compiled));
        }
        text + &format!(", {:.3} ms with what is before and after", ms(took))
    }
}

/// Sets a flag when it is dropped, so that what a statement computes ends with it.
#[derive(Default)]
struct StopOnDrop(Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
