//! The work of a fragment on a device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::{MemoryConsumer, MemoryReservation};
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricBuilder};
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use forebay_tables::GpuOptions;
use parking_lot::Mutex;

use crate::adding::{Counted, together};
use crate::columns::{Columns, Read, Resident};
use crate::computed::Refused;
use crate::constants;
use crate::engine::{FAR_APART, Launch, MANY_MATCHES, Ran};
use crate::explain::printed;
use crate::figures::Figures;
use crate::fingerprint::{SAME_FINGERPRINT, is_of_groups};
use crate::fragment::{Fragment, Source};
use crate::from_disk::FromDisk;
use crate::giving_way::Need;
use crate::groups::{Groups, Place, TOO_MANY_ROWS, listed_max};
use crate::launches::{Joins, factors};
use crate::load::{load, load_plan};
use crate::on_device::ToColumns;
use crate::operator::GpuFragmentExec;
use crate::placement::NO_ROOM;
use crate::program::{Compiled, group_words};
use crate::ranks::Selected;
use crate::reason::{Kind, Reason};
use crate::result::{Found, Made};
use crate::scanned::scanned;
use crate::skipped::Counting;
use crate::source::MANY_COLUMNS;
use crate::spread::Spread;

type Result<T> = std::result::Result<T, Reason>;

/// Maximum bytes of what kernels return.
pub(crate) const RESULTS_BYTES_MAX: usize = 256 << 20;

/// Maximum number of times that columns of a query make room for its tables and totals, after which it begins again.
const DEMOTIONS_MAX: usize = 3;

/// The reason if columns are missing on the device, for a session that does not wait for them.
pub(crate) const NOT_THERE: &str = "its columns are not in device memory yet";

/// Returns the files of each source of a fragment.
///
/// # Errors
/// If the scan of a source is not one of whole files.
pub(crate) fn reads(fragment: &Fragment) -> Result<Vec<Read>> {
    let sources = fragment.sources.iter();
    let reads = sources.map(|source| Ok((Arc::clone(source), source.origin.files()?)));
    reads.collect()
}

/// What computed a fragment.
#[derive(Debug)]
pub(crate) enum Outcome {
    Device(OnDevice),
    Cpu(Reason),
}

/// What another fragment reads of the groups of one.
pub(crate) enum Staying {
    Columns(Resident, String),
    Rows(OnDevice),
}

/// What a device returned.
#[derive(Debug)]
pub(crate) struct OnDevice {
    /// The rows of each partition.
    pub(crate) partitions: Mutex<Vec<Vec<RecordBatch>>>,
    pub(crate) figures: String,
    /// The memory of the rows, until the plan is dropped.
    pub(crate) held: Arc<MemoryReservation>,
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
    /// Tells the plan of the CPU from others.
    pub(crate) number: u64,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    pub(crate) context: Arc<TaskContext>,
    /// Whether the plans have run: then their state is reset before they run again.
    pub(crate) have_plans_run: Arc<AtomicBool>,
    /// Whether groups of a plan have stayed on the device.
    pub(crate) has_kept_groups: AtomicBool,
    /// Whether columns of the query made room for its tables and totals.
    pub(crate) has_demoted: AtomicBool,
    /// Whether divided rows of the last attempt took memory of the device.
    pub(crate) has_divided: AtomicBool,
    /// Microseconds of searches of texts on the device.
    pub(crate) searched_us: AtomicU64,
    /// What was read from column files.
    pub(crate) from_disk: Mutex<FromDisk>,
}

impl Work {
    pub(crate) async fn outcome(&self) -> Outcome {
        let mut device = self.on_device().await;
        // What is known of columns that stayed on the device is less than what rows tell.
        if device.is_err() && self.has_kept_groups.load(Ordering::Relaxed) {
            self.fragment.reads_rows.store(true, Ordering::Relaxed);
            device = self.on_device().await;
        }
        self.outcome_of(device)
    }

    /// Counts what has computed the fragment.
    pub(crate) fn outcome_of(&self, device: Result<OnDevice>) -> Outcome {
        match device {
            Ok(device) => {
                let partitions = device.partitions.lock();
                let rows = partitions.iter().flatten().map(RecordBatch::num_rows).sum();
                drop(partitions);
                MetricBuilder::new(&self.metrics).output_rows(0).add(rows);
                self.columns.counts.add_on_device();
                Outcome::Device(device)
            }
            Err(reason) => {
                self.columns.counts.add_on_cpu(&reason);
                let of_data = [MANY_MATCHES, TOO_MANY_ROWS, FAR_APART, SAME_FINGERPRINT];
                if of_data.iter().any(|it| reason.is(it)) || reason.repeated().is_some() {
                    self.columns.hopeless.add(self.number, &reason);
                }
                Outcome::Cpu(reason)
            }
        }
    }

    async fn on_device(&self) -> Result<OnDevice> {
        for _ in 0..DEMOTIONS_MAX {
            let tried = self.fragment.latest();
            let reason = match self.computed().await {
                Ok(device) => return Ok(device),
                Err(reason) => reason,
            };
            if tried.repeat(&reason) {
                return Box::pin(self.on_device()).await;
            }
            let missing = reason.missing().ok_or_else(|| reason.clone())?;
            // The next attempt divides rows to the host.
            self.has_demoted.store(true, Ordering::Relaxed);
            let had_divided = self.has_divided.swap(false, Ordering::Relaxed);
            let demoted = self.columns.demote(&reads(&self.fragment)?, missing).await;
            if let Err(why) = demoted {
                tracing::debug!(%why, "columns stay on the device");
                if !had_divided {
                    return Err(reason);
                }
            }
        }
        self.computed().await
    }

    /// Returns the rows, if all that the device needs has room there.
    async fn computed(&self) -> Result<OnDevice> {
        let mut figures = Figures::new(&self.context, self.columns.now());
        let mut ready = self.ready(true, &mut figures).await?;
        let compiled = Arc::clone(&ready.compiled);
        if let Some(ranking) = &compiled.ranking {
            ready.groups = Arc::new(self.first(&ready, ranking, &mut figures).await?);
        }
        let found = match self.are_selected(&ready.groups) {
            true => self.selected(&ready, &mut figures).await?,
            false => vec![self.all(&mut ready, &mut figures).await?],
        };
        self.returned(ready, found, figures).await
    }

    /// Returns the groups that are selected, slice by slice.
    async fn selected(&self, ready: &Ready, figures: &mut Figures) -> Result<Vec<Found>> {
        let (mut slices, mut found) = (self.slices(ready), Vec::new());
        while let Some(groups) = slices.pop_front() {
            let counted = self
                .counted(ready, (groups, true), &mut slices, figures)
                .await?;
            if let Some(counted) = counted {
                figures.group_bytes += counted.group_bytes();
                found.push(self.written(ready, &counted, figures).await?);
            }
        }
        ready.compiled.needed.put_slices(found.len());
        Ok(found)
    }

    /// Returns columns of the result that stay on the device, by their index, and what `EXPLAIN ANALYZE` prints; or the
    /// rows, if the groups are few or cannot stay.
    ///
    /// # Errors
    /// Why the device cannot compute the fragment.
    pub(crate) async fn columns(&self, wanted: &[usize]) -> Result<Staying> {
        let tried = self.fragment.latest();
        match self.staying(wanted).await {
            Err(reason) if is_of_groups(&reason) && tried.repeat(&reason) => {
                Box::pin(self.columns(wanted)).await
            }
            // Rows take less memory of the device.
            Err(reason) if reason.missing().is_some() || tried.repeat(&reason) => {
                tracing::debug!(%reason, "groups leave the device");
                Ok(Staying::Rows(self.on_device().await?))
            }
            staying => staying,
        }
    }

    async fn staying(&self, wanted: &[usize]) -> Result<Staying> {
        let mut figures = Figures::new(&self.context, self.columns.now());
        let mut ready = self.ready(true, &mut figures).await?;
        if !self.are_selected(&ready.groups) {
            let found = vec![self.all(&mut ready, &mut figures).await?];
            return Ok(Staying::Rows(self.returned(ready, found, figures).await?));
        }
        let (mut slices, mut count) = (self.slices(&ready), 0);
        let mut resident = Resident { files: Vec::new() };
        while let Some(groups) = slices.pop_front() {
            let counted = self.counted(&ready, (groups, false), &mut slices, &mut figures);
            let Some(counted) = counted.await? else {
                continue;
            };
            figures.group_bytes += counted.group_bytes();
            let reason = match self.kept(&ready, &counted, wanted, &mut figures).await {
                Ok(kept) => {
                    count += counted.selected.count as usize;
                    resident.files.extend(kept.files);
                    continue;
                }
                Err(reason) => reason,
            };
            tracing::debug!(%reason, "groups leave the device");
            if figures.group_slices == 1 && slices.is_empty() {
                let found = vec![self.written(&ready, &counted, &mut figures).await?];
                return Ok(Staying::Rows(self.returned(ready, found, figures).await?));
            }
            drop((ready, counted, resident));
            return Ok(Staying::Rows(self.on_device().await?));
        }
        ready.compiled.needed.put_slices(figures.group_slices);
        MetricBuilder::new(&self.metrics).output_rows(0).add(count);
        self.columns.counts.add_on_device();
        Ok(Staying::Columns(resident, figures.text(&ready.resident)))
    }

    /// Returns the source of the kernels, with the plan as comments. Those of joins run, as they tell where the totals
    /// of groups are.
    ///
    /// # Errors
    /// Why the device cannot compute the fragment.
    pub(crate) async fn kernels(&self) -> Result<String> {
        let mut figures = Figures::new(&self.context, self.columns.now());
        let tried = self.fragment.latest();
        let ready = match self.ready(false, &mut figures).await {
            Err(reason) if tried.repeat(&reason) => {
                return Box::pin(self.kernels()).await;
            }
            ready => ready?,
        };
        let scanned = scanned(&ready.fragment.rows, &ready.resident, &ready.stop.0)?;
        let (place, selects) = (ready.groups.place, self.are_selected(&ready.groups));
        let work = move || {
            let compiled = Compiled::with_comments(&ready.fragment, &scanned)?;
            Ok(printed(&ready.fragment, &compiled, place, selects))
        };
        let printed = tokio::task::spawn_blocking(work).await;
        printed.map_err(Reason::of)?
    }

    /// Writes the groups that are selected as columns on the device.
    async fn kept(
        &self,
        ready: &Ready,
        Counted {
            totals,
            selected,
            groups,
        }: &Counted,
        wanted: &[usize],
        figures: &mut Figures,
    ) -> Result<Resident> {
        let of = (&*ready.fragment, &*ready.compiled, groups);
        let to_columns = ToColumns::new(of, (&self.schema, wanted), (*selected, totals))?;
        let with = (&*self.columns, figures.used);
        let device = totals.memory.device;
        let need = Need::Query(figures.used);
        let memory = self.columns.allocate(device, to_columns.bytes(), need)?;
        let (launch, written) = to_columns.launch(totals, &memory, self.options.waits);
        self.found(device, launch, *selected, figures).await?;
        written.resident(wanted, with).await
    }

    /// Returns the totals of all groups.
    async fn all(&self, ready: &mut Ready, figures: &mut Figures) -> Result<Found> {
        if let Some(ran) = ready.ran.take() {
            return Ok(Found {
                ran,
                selected: None,
            });
        }
        self.of_groups(ready, &ready.groups, figures).await
    }

    /// Returns the rows of the groups that are here.
    async fn returned(
        &self,
        ready: Ready,
        found: Vec<Found>,
        figures: Figures,
    ) -> Result<OnDevice> {
        let held = Arc::new(MemoryConsumer::new("rows").register(self.context.memory_pool()));
        let made = Arc::new(Made {
            fragment: ready.fragment,
            compiled: ready.compiled,
            groups: ready.groups,
            schema: Arc::clone(&self.schema),
            partitioning: self.partitioning.clone(),
            stop: Arc::clone(&ready.stop.0),
            held: Arc::clone(&held),
        });
        let mut partitions = vec![Vec::new(); self.partitioning.partition_count()];
        for found in found {
            let of_slice = Arc::clone(&made)
                .partitions(found)
                .await
                .map_err(Reason::of)?;
            for (all, batches) in partitions.iter_mut().zip(of_slice) {
                all.extend(batches);
            }
        }
        self.learn(&figures, &partitions);
        Ok(OnDevice {
            partitions: Mutex::new(partitions),
            figures: figures.text(&ready.resident),
            held,
        })
    }

    /// Returns what the kernel that adds totals needs. `may_run` allows that kernel to run with those of joins.
    async fn ready(&self, may_run: bool, figures: &mut Figures) -> Result<Ready> {
        let used = figures.used;
        let fragment = self.fragment.latest();
        let constant = fragment.with_constants(constants::value)?;
        let original = constant.unwrap_or(fragment);
        let stop = StopOnDrop::default();
        let written = self.of_columns(&original, used, &stop).await;
        let (fragment, resident, compiled) = match written {
            Err(reason) if reason.is(MANY_COLUMNS) && !self.shares_rows() => {
                original.shares_rows.store(true, Ordering::Relaxed);
                self.of_columns(&original, used, &stop).await?
            }
            written => written?,
        };
        figures.searched = Duration::from_micros(self.searched_us.load(Ordering::Relaxed));
        figures.from_disk = self.from_disk.lock().clone();
        let rows = (compiled.kernel.of_source, &compiled.counting);
        let spread = self.columns.spread(&resident, rows)?;
        let mut ready = Ready {
            joins: spread.devices.iter().map(|_| Joins::default()).collect(),
            spread,
            groups: Arc::default(),
            fragment,
            compiled,
            resident,
            ran: None,
            stop,
        };
        match ready.compiled.kernel.builds.is_empty() {
            true => ready.groups = Arc::new(ready.compiled.groups(None)?),
            false => self.join(&mut ready, may_run, figures).await?,
        }
        let is_alone = ready.groups.enough.is_some() || !ready.is_worth_merging();
        if self.are_selected(&ready.groups) && is_alone {
            ready.spread = Spread::alone(ready.spread.devices[0]);
            ready.joins.truncate(1);
        }
        Ok(ready)
    }

    /// Stores the rows of joins. If the last run tells the groups, the kernel that adds the totals runs behind: keeps
    /// what it returned, if the groups are these.
    async fn join(&self, ready: &mut Ready, may_run: bool, figures: &mut Figures) -> Result<()> {
        let (used, waits) = (figures.used, self.options.waits);
        let compiled = Arc::clone(&ready.compiled);
        if compiled.repeats() && ready.rows().is_on_disk() {
            // Matches are not added up over passes.
            return Err(Reason::new("a join that repeats rows on the disk"));
        }
        let devices = ready.spread.devices.iter();
        let joins = devices.map(|device| Joins::new(&compiled, (&*self.columns, *device, used)));
        ready.joins = joins.collect::<Result<_>>()?;
        figures.table_slices = factors(&ready.joins);
        figures.table_bytes = ready.joins.first().map_or(0, Joins::whole_bytes);
        if may_run {
            self.divide(ready, figures).await?;
        }
        let mut slices = ready.joins.iter().map(Joins::turns);
        if compiled.mark_words == 0 && slices.all(|it| it > 1) {
            // The kernel that adds the totals runs after each slice.
            ready.groups = Arc::new(compiled.groups(Some(&[]))?);
            return Ok(());
        }
        if ready.has_turns() {
            let marks = self.marked_in_turns(ready, figures).await?;
            ready.groups = Arc::new(compiled.groups(Some(&marks))?);
            return Ok(());
        }
        let devices = ready.spread.devices.iter().zip(&ready.joins);
        let launches = devices.map(|(device, joins)| {
            let of = (&*ready.resident, &*compiled, *device);
            joins.made(of, &joins.turns, waits)
        });
        let mut launches = launches.collect::<Result<Vec<_>>>()?;
        let may_run = may_run && ready.joins.iter().all(|it| it.turns() == 1);
        let marked = match compiled.mark_words {
            0 => Some((Arc::default(), Arc::new(compiled.groups(Some(&[]))?))),
            _ => compiled.last_marked.get(),
        };
        let is_on_disk = ready.rows().is_on_disk();
        let marked =
            marked.filter(|(_, groups)| may_run && !is_on_disk && !self.are_selected(groups));
        let mut first = 0;
        if let Some((_, groups)) = &marked {
            let behind = ready.launches(groups, &[], waits)?;
            for (launch, behind) in launches.iter_mut().zip(behind) {
                first = launch.append(behind);
            }
        }
        let ran = self.run_all(&ready.spread, launches, figures).await?;
        // Each device has stored the same rows.
        let words = ran[0].results().as_chunks::<4>().0.iter();
        let words = words.take(compiled.mark_words);
        let words: Vec<u32> = words.map(|it| u32::from_le_bytes(*it)).collect();
        if let Some((_, groups)) = marked.filter(|(marks, _)| **marks == *words) {
            ready.groups = groups;
            let ran = ran.into_iter().map(|it| it.without_first(first));
            ready.ran = Some(together(&compiled.totals, ran.collect())?);
            return Ok(());
        }
        ready.groups = Arc::new(compiled.groups(Some(&words))?);
        compiled.last_marked.put(&words, &ready.groups);
        Ok(())
    }

    fn shares_rows(&self) -> bool {
        self.fragment.shares_rows.load(Ordering::Relaxed)
    }

    /// Returns the fragment as the device can compute it, its columns and its kernels.
    async fn of_columns(
        &self,
        original: &Arc<Fragment>,
        used: u64,
        stop: &StopOnDrop,
    ) -> Result<(Arc<Fragment>, Vec<Resident>, Arc<Compiled>)> {
        let fragment = match self.shares_rows() {
            true => Arc::new(original.with_shared_rows()?),
            false => Arc::clone(original),
        };
        let (fragment, resident) = self.loaded(&fragment, used, stop).await?;
        let compiled = self.compiled((original, &fragment), &resident, stop);
        let compiled = compiled.await?;
        Ok((fragment, resident, compiled))
    }

    /// Returns whether a kernel selects the groups that are wanted.
    fn are_selected(&self, groups: &Groups) -> bool {
        match groups.place {
            Place::OfAll => groups.count >= self.columns.engines[0].selects_from(),
            place => matches!(place, Place::Hashed | Place::Listed),
        }
    }

    /// Returns the fragment as the device can compute it, and its columns there: those of tables, and those of plans,
    /// which run for it.
    async fn loaded(
        &self,
        original: &Arc<Fragment>,
        used: u64,
        stop: &StopOnDrop,
    ) -> Result<(Arc<Fragment>, Vec<Resident>)> {
        let mut fragment = Arc::clone(original);
        let mut resident = loop {
            match self.resident(&fragment, used, stop).await? {
                Ok(resident) => break resident,
                Err(refused) => fragment = Arc::new(fragment.without_column(&refused)?),
            }
        };
        let sources = fragment.sources.iter().zip(&mut resident);
        let of_plans = sources.filter(|(source, _)| source.origin.is_plan());
        let ran_before = self.have_plans_run.swap(true, Ordering::Relaxed);
        for ((source, resident), plan) in of_plans.zip(&self.plans) {
            let plan = match ran_before {
                true => &reset_plan_states(Arc::clone(plan)).map_err(Reason::of)?,
                false => plan,
            };
            *resident = match self.groups(plan, source).await {
                Some(groups) => groups,
                None => {
                    let with = (used, &self.context);
                    load_plan(&self.columns, plan, source, with).await?
                }
            };
        }
        Ok((fragment, resident))
    }

    /// Returns groups that stay on the device, if a plan has such.
    async fn groups(&self, plan: &Arc<dyn ExecutionPlan>, source: &Source) -> Option<Resident> {
        let operator = plan.downcast_ref::<GpuFragmentExec>()?;
        let wanted = source.of_origin()?;
        if self.fragment.reads_rows.load(Ordering::Relaxed) {
            return None;
        }
        let groups = operator.columns(wanted, &self.context).await?;
        self.has_kept_groups.store(true, Ordering::Relaxed);
        Some(groups)
    }

    /// Returns the groups that are selected.
    async fn written(
        &self,
        ready: &Ready,
        Counted {
            totals,
            selected,
            groups,
        }: &Counted,
        figures: &mut Figures,
    ) -> Result<Found> {
        let layout = &ready.compiled.totals;
        if ready.fragment.is_listed && selected.count > listed_max(selected.count, layout) {
            return Err(Reason::of_data(TOO_MANY_ROWS));
        }
        let of = (groups.count as u32, group_words(layout));
        let selecting = &ready.compiled.selecting;
        let launch = selecting.writing(*selected, of, totals, self.options.waits);
        self.found(totals.memory.device, launch, *selected, figures)
            .await
    }

    /// Runs the kernel that writes the groups that are selected.
    async fn found(
        &self,
        device: usize,
        launch: Launch,
        selected: Selected,
        figures: &mut Figures,
    ) -> Result<Found> {
        let found = Found {
            ran: self.run(device, launch, figures).await?,
            selected: Some(selected.count as usize),
        };
        found.check()
    }

    /// Returns the columns of each source, brought to the device before if the session wants that; or one of them that
    /// cannot be there.
    async fn resident(
        &self,
        fragment: &Fragment,
        used: u64,
        stop: &StopOnDrop,
    ) -> Result<std::result::Result<Vec<Resident>, Refused>> {
        let reads = reads(fragment)?;
        if !self.options.loads {
            self.columns.check_left_to_cpu(&reads)?;
        }
        self.columns.forget_lost();
        self.columns.compile_searches(&reads).await?;
        self.search(&reads, used, stop).await?;
        let is_often_read = match self.columns.resident(&reads, &self.context) {
            Ok(Ok(resident)) => {
                self.promote(reads, &resident);
                return Ok(Ok(resident));
            }
            Ok(Err(is_often_read)) => is_often_read,
            Err(refused) => return Ok(Err(refused)),
        };
        if self.options.loads {
            let loading = Arc::clone(&self.columns.loading).lock_owned().await;
            let with = (Arc::clone(&self.context), Need::Query(self.columns.now()));
            let loaded = load(Arc::clone(&self.columns), reads.clone(), with, loading).await;
            let loaded = loaded.map(|from_disk| self.from_disk.lock().add(from_disk));
            self.search(&reads, used, stop).await?;
            return match self.columns.resident(&reads, &self.context) {
                Err(refused) => Ok(Err(refused)),
                Ok(resident) => {
                    loaded?;
                    let resident = resident.map(Ok);
                    resident.map_err(|_| Reason::no_room(NO_ROOM))
                }
            };
        }
        if is_often_read {
            self.columns.load_unawaited(reads, &self.context);
        }
        Err(Reason::of_kind(Kind::Loading, NOT_THERE))
    }

    /// Searches texts for the columns that are missing.
    async fn search(&self, reads: &[Read], used: u64, stop: &StopOnDrop) -> Result<()> {
        let took = self.columns.search(reads, used, &stop.0).await?;
        let us = took.as_micros() as u64;
        self.searched_us.fetch_add(us, Ordering::Relaxed);
        Ok(())
    }

    /// Starts to promote columns that are often read from memory of the host, while the query runs.
    fn promote(&self, reads: Vec<Read>, resident: &[Resident]) {
        let mut columns = resident
            .iter()
            .flat_map(|it| &it.files)
            .flat_map(|it| it.values());
        let are_wanted = !self.has_demoted.load(Ordering::Relaxed);
        if are_wanted && columns.any(|column| column.bytes.host > 0 || column.is_on_disk) {
            self.columns.promote_unawaited(reads);
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

/// What the kernel that adds totals needs.
pub(crate) struct Ready {
    pub(crate) fragment: Arc<Fragment>,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) resident: Vec<Resident>,
    pub(crate) spread: Spread,
    /// The tables of joins of each device of the spread.
    pub(crate) joins: Vec<Joins>,
    pub(crate) groups: Arc<Groups>,
    /// What the last kernel returned, if it ran with those of the joins.
    pub(crate) ran: Option<Ran>,
    pub(crate) stop: StopOnDrop,
}

impl Ready {
    /// Returns the columns of the rows that are added.
    pub(crate) fn rows(&self) -> &Resident {
        &self.resident[self.compiled.kernel.of_source]
    }
}

/// Sets a flag when it is dropped, so that what a statement computes ends with it.
#[derive(Debug, Default)]
pub(crate) struct StopOnDrop(pub(crate) Arc<AtomicBool>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
