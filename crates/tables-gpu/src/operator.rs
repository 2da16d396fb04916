//! The operator that computes a fragment on a device, or on the CPU.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use datafusion::common::internal_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::config::ConfigOptions;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::reset_plan_states;
use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions, displayable,
};
use forebay_tables::{GPU_OPERATOR, GpuOptions, PlanAgain};
use futures_util::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use crate::columns::{Columns, Resident};
use crate::cost::Timer;
use crate::fragment::Fragment;
use crate::origin::Origin;
use crate::reason::Reason;
use crate::selection::Selection;
use crate::work::{OnDevice, Outcome, Staying, Work};

/// Computes a fragment on a device. If the device cannot, its input does, an operator of the CPU that returns the same.
#[derive(Debug)]
pub(crate) struct GpuFragmentExec {
    cpu: Arc<dyn ExecutionPlan>,
    /// The plans whose rows are joined, in the order of their sources.
    plans: Vec<Arc<dyn ExecutionPlan>>,
    fragment: Arc<Fragment>,
    columns: Arc<Columns>,
    options: GpuOptions,
    /// Tells the plan of the CPU from others.
    number: u64,
    /// Whether the input must not run: the plan was kept, so that the query is planned again instead, or the CPU has
    /// a better plan.
    is_kept: bool,
    /// Whether the rows have no order, although those of the CPU's operator have one.
    is_unordered: bool,
    /// Whether the plans have run.
    have_plans_run: Arc<AtomicBool>,
    /// What was decided when the first partition was read.
    outcome: Arc<OnceCell<Outcome>>,
    /// What kernels did if another fragment read the groups on the device.
    stayed: Arc<OnceCell<String>>,
    /// The timer of the CPU's plan, from when that plan first runs; `None` if its time corrects no rates.
    timer: Arc<OnceLock<Option<Arc<Timer>>>>,
    metrics: ExecutionPlanMetricsSet,
    properties: Arc<PlanProperties>,
}

impl GpuFragmentExec {
    /// Returns the operator that computes a fragment instead of an operator of the CPU.
    ///
    /// # Errors
    /// If the state of a plan whose rows are joined cannot be reset.
    pub(crate) fn new(
        cpu: Arc<dyn ExecutionPlan>,
        fragment: Arc<Fragment>,
        columns: Arc<Columns>,
        options: GpuOptions,
    ) -> Result<GpuFragmentExec> {
        let sources = fragment.sources.iter();
        let plans = sources.filter_map(|source| match &source.origin {
            Origin::Plan(plan, _) => Some(Arc::clone(plan)),
            Origin::Files(_) | Origin::Table(_) => None,
        });
        Ok(GpuFragmentExec {
            number: number_of(&cpu),
            properties: Arc::clone(cpu.properties()),
            // They are also below the operator of the CPU, which may run.
            plans: plans.map(reset_plan_states).collect::<Result<_>>()?,
            cpu,
            fragment,
            columns,
            options,
            is_kept: false,
            is_unordered: false,
            have_plans_run: Arc::default(),
            outcome: Arc::default(),
            stayed: Arc::default(),
            timer: Arc::default(),
            metrics: ExecutionPlanMetricsSet::new(),
        })
    }

    /// Returns the operator whose rows have no order.
    pub(crate) fn unordered(self) -> GpuFragmentExec {
        GpuFragmentExec {
            properties: properties_of(&self.cpu, true),
            is_unordered: true,
            ..self
        }
    }

    /// Returns the operator with another number that tells its plan from others.
    pub(crate) fn with_number(self, number: u64) -> GpuFragmentExec {
        GpuFragmentExec { number, ..self }
    }

    pub(crate) fn fragment(&self) -> &Fragment {
        &self.fragment
    }

    /// Returns the operator with another fragment for the device.
    pub(crate) fn with_fragment(&self, fragment: Fragment) -> GpuFragmentExec {
        GpuFragmentExec {
            fragment: Arc::new(fragment),
            ..self.renewed()
        }
    }

    /// Returns what the plan above keeps of the groups.
    pub(crate) fn selection(&self) -> &Selection {
        &self.fragment.selection
    }

    /// Returns the operator, which returns at least the groups that are selected.
    pub(crate) fn with_selection(&self, selection: Selection) -> GpuFragmentExec {
        let mut fragment = Fragment::clone(&self.fragment);
        fragment.selection = selection;
        self.with_fragment(fragment)
    }

    /// Returns the index of the aggregate that is a column of the result, if the totals of a group order as its values
    /// do.
    pub(crate) fn aggregate_of(&self, column: usize) -> Option<usize> {
        let index = column.checked_sub(self.fragment.keys.len())?;
        let Some(aggregate) = self.fragment.aggregate_at(index) else {
            // Numbers and ranks of rows.
            return self.fragment.window.as_ref().map(|_| index);
        };
        let name = aggregate.function.fun().name();
        ["count", "sum", "min", "max"]
            .contains(&name)
            .then_some(index)
    }

    /// Returns the operator without what a run has made.
    fn renewed(&self) -> GpuFragmentExec {
        GpuFragmentExec {
            cpu: Arc::clone(&self.cpu),
            plans: self.plans.clone(),
            fragment: Arc::clone(&self.fragment),
            columns: Arc::clone(&self.columns),
            options: self.options.clone(),
            number: self.number,
            is_kept: self.is_kept,
            is_unordered: self.is_unordered,
            have_plans_run: Arc::default(),
            outcome: Arc::default(),
            stayed: Arc::default(),
            timer: Arc::default(),
            metrics: ExecutionPlanMetricsSet::new(),
            properties: Arc::clone(&self.properties),
        }
    }

    /// Returns the operator of a plan that is kept; `None` if the CPU reads tables for it.
    fn kept(&self) -> Option<GpuFragmentExec> {
        let plans = self.plans.iter().map(kept);
        Some(GpuFragmentExec {
            plans: plans.collect::<Option<_>>()?,
            is_kept: true,
            ..self.renewed()
        })
    }

    /// Returns columns of the groups that stay on the device; `None` if they are to be read as rows, which the operator
    /// then has.
    pub(crate) async fn columns(
        &self,
        wanted: &[usize],
        context: &Arc<TaskContext>,
    ) -> Option<Resident> {
        if self.outcome.initialized() {
            return None;
        }
        let work = self.work(Arc::clone(context));
        let outcome = match Box::pin(work.columns(wanted)).await {
            Ok(Staying::Columns(columns, figures)) => {
                self.stayed.set(figures).ok();
                return Some(columns);
            }
            Ok(Staying::Rows(rows)) => work.outcome_of(Ok(rows)),
            Err(reason) => work.outcome_of(Err(reason)),
        };
        // The operator returns these rows when it runs, or lets the CPU.
        self.outcome.set(outcome).ok();
        None
    }

    /// Computes the fragment, unless it was computed. Returns whether the device does.
    pub(crate) async fn run(&self, context: &Arc<TaskContext>) -> bool {
        let work = self.work(Arc::clone(context));
        let outcome = self.outcome.get_or_init(|| work.outcome()).await;
        matches!(outcome, Outcome::Device(_))
    }

    /// Drops the rows that the device has returned, and frees their memory: a plan of the CPU runs instead.
    pub(crate) fn release(&self) {
        if let Some(Outcome::Device(device)) = self.outcome.get() {
            device.partitions.lock().clear();
            device.held.free();
        }
    }

    /// Returns why the device did not compute the fragment; `None` if it did, or nothing ran.
    pub(crate) fn reason(&self) -> Option<&Reason> {
        match self.outcome.get()? {
            Outcome::Cpu(reason) => Some(reason),
            Outcome::Device(_) => None,
        }
    }

    /// Returns the name of the device.
    pub(crate) fn device(&self) -> String {
        self.columns.device_names()
    }

    /// Returns the source of the kernels, with the plan as comments.
    ///
    /// # Errors
    /// Why the device cannot compute the fragment.
    pub(crate) async fn kernels(&self, context: &Arc<TaskContext>) -> Result<String, Reason> {
        let mut work = self.work(Arc::clone(context));
        work.options.waits = true;
        Box::pin(work.kernels()).await
    }

    /// Returns what computes the fragment on the device.
    fn work(&self, context: Arc<TaskContext>) -> Work {
        Work {
            schema: self.cpu.schema(),
            plans: self.plans.clone(),
            partitioning: self.properties.partitioning.clone(),
            fragment: Arc::clone(&self.fragment),
            columns: Arc::clone(&self.columns),
            options: self.options.clone(),
            number: self.number,
            metrics: self.metrics.clone(),
            context,
            have_plans_run: Arc::clone(&self.have_plans_run),
            has_kept_groups: AtomicBool::new(false),
            has_demoted: AtomicBool::new(false),
            has_divided: AtomicBool::new(false),
            searched_us: AtomicU64::new(0),
            from_disk: Mutex::default(),
        }
    }
}

/// Returns the properties of an operator's rows, which have its order or none.
fn properties_of(cpu: &Arc<dyn ExecutionPlan>, is_unordered: bool) -> Arc<PlanProperties> {
    let of_cpu = cpu.properties();
    if !is_unordered {
        return Arc::clone(of_cpu);
    }
    let mut equal = of_cpu.eq_properties.clone();
    equal.clear_orderings();
    let partitioning = of_cpu.partitioning.clone();
    let properties = PlanProperties::new(
        equal,
        partitioning,
        of_cpu.emission_type,
        of_cpu.boundedness,
    );
    Arc::new(properties)
}

/// Returns a number of a plan's text.
pub(crate) fn number_of(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let mut hasher = DefaultHasher::new();
    displayable(plan.as_ref())
        .indent(true)
        .to_string()
        .hash(&mut hasher);
    hasher.finish()
}

/// Returns a plan that is kept; `None` if the CPU reads tables for it. The dynamic filters of its scans would be those
/// of an earlier run.
pub(crate) fn kept(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(operator) = plan.downcast_ref::<GpuFragmentExec>() {
        return Some(Arc::new(operator.kept()?));
    }
    let children = plan.children();
    if children.is_empty() {
        return None;
    }
    let children = children.into_iter().map(kept).collect::<Option<_>>()?;
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    Arc::clone(plan).replace_children(children, options).ok()
}

impl DisplayAs for GpuFragmentExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GpuFragmentExec: device={}", self.device())?;
        let Selection {
            conditions, top, ..
        } = self.selection();
        if !conditions.is_empty() {
            write!(f, ", conditions={}", conditions.len())?;
        }
        let limit = top.map(|top| top.count).or(self.fragment.limit.count());
        if let Some(count) = limit {
            write!(f, ", limit={count}")?;
        }
        if let Some(figures) = self.stayed.get() {
            return write!(f, ", stayed there: {figures}");
        }
        match self.outcome.get() {
            None => Ok(()),
            Some(Outcome::Device(OnDevice { figures, .. })) => write!(f, ", ran there: {figures}"),
            Some(Outcome::Cpu(reason)) => write!(f, ", ran on the CPU: {reason}"),
        }
    }
}

impl ExecutionPlan for GpuFragmentExec {
    fn name(&self) -> &str {
        GPU_OPERATOR
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        std::iter::once(&self.cpu).chain(&self.plans).collect()
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        if children.len() != 1 + self.plans.len() {
            return internal_err!("{} inputs", children.len());
        }
        let plans = children.split_off(1);
        let cpu = children.swap_remove(0);
        Ok(Arc::new(GpuFragmentExec {
            properties: properties_of(&cpu, self.is_unordered),
            cpu,
            plans,
            ..self.renewed()
        }))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        let plans = self.plans.iter().cloned().map(reset_plan_states);
        Ok(Arc::new(GpuFragmentExec {
            plans: plans.collect::<Result<_>>()?,
            ..self.renewed()
        }))
    }

    /// With one partition, returns the operator of a plan that is kept.
    fn repartitioned(
        &self,
        partitions: usize,
        _config: &ConfigOptions,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let kept = (partitions == 1).then(|| self.kept()).flatten();
        Ok(kept.map(|kept| {
            let alone = Partitioning::UnknownPartitioning(1);
            let properties = PlanProperties::clone(&self.properties).with_partitioning(alone);
            Arc::new(GpuFragmentExec {
                properties: Arc::new(properties),
                ..kept
            }) as _
        }))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (cpu, outcome) = (Arc::clone(&self.cpu), Arc::clone(&self.outcome));
        let work = self.work(Arc::clone(&context));
        let (strict, is_kept) = (self.options.strict, self.is_kept);
        let (timer, columns) = (Arc::clone(&self.timer), Arc::clone(&self.columns));
        let rows = stream::once(async move {
            let outcome = outcome.get_or_init(|| work.outcome()).await;
            let rows: SendableRecordBatchStream = match outcome {
                Outcome::Device(OnDevice { partitions, .. }) => {
                    let rows = partitions.lock().get(partition).cloned();
                    let rows = rows.unwrap_or_default();
                    let rows = rows.into_iter().map(Ok);
                    Box::pin(RecordBatchStreamAdapter::new(
                        cpu.schema(),
                        stream::iter(rows),
                    ))
                }
                Outcome::Cpu(_) if is_kept => {
                    return Err(DataFusionError::External(Box::new(PlanAgain)));
                }
                Outcome::Cpu(reason) if strict => {
                    let text = format!("the GPU does not compute a part of the plan: {reason}");
                    return Err(DataFusionError::Execution(text));
                }
                Outcome::Cpu(_) => {
                    let timer = timer.get_or_init(|| columns.timer(&cpu));
                    Timer::timed(timer.as_ref(), cpu.execute(partition, context)?)
                }
            };
            Ok(rows)
        });
        let rows = rows.try_flatten().boxed();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }
}
