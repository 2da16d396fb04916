//! The operator that chooses between fragments of a device and a plan of the CPU when a query runs.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning,
    PlanProperties, ReplaceChildrenOptions,
};
use forebay_tables::{ALTERNATIVES_OPERATOR, GpuOptions, PlanAgain};
use futures_util::{StreamExt, TryStreamExt, stream};

use crate::engine::COMPILING;
use crate::operator::{GpuFragmentExec, kept};
use crate::reason::Reason;
use crate::work::NOT_THERE;

type Plan = Arc<dyn ExecutionPlan>;

/// Returns the rows of a plan whose fragments a device computes. If the device does not compute one of them, the
/// CPU's plan runs instead. It reads the tables once, where the CPU would read them for each fragment.
#[derive(Debug)]
pub(crate) struct AlternativesExec {
    cpu: Plan,
    /// Its partitions are dealt out to those of the CPU's plan.
    fragments: Plan,
    options: GpuOptions,
}

impl AlternativesExec {
    /// Returns the operator.
    ///
    /// # Errors
    /// If the CPU reads a table for the plan of fragments.
    pub(crate) fn new(
        cpu: Plan,
        fragments: &Plan,
        options: GpuOptions,
    ) -> Result<AlternativesExec> {
        // Fragments of kept plans fail if the device does not compute them.
        let fragments = kept(fragments);
        Ok(AlternativesExec {
            cpu,
            fragments: fragments.ok_or_else(|| internal_datafusion_err!("a scan of the CPU"))?,
            options,
        })
    }
}

/// Returns the uppermost fragments of a plan.
fn uppermost(plan: &Plan) -> Vec<&GpuFragmentExec> {
    match plan.downcast_ref::<GpuFragmentExec>() {
        Some(fragment) => vec![fragment],
        None => plan.children().into_iter().flat_map(uppermost).collect(),
    }
}

/// Runs the uppermost fragments of a plan, up to one that the device does not compute. Returns whether it computes
/// all.
async fn run_uppermost(plan: &Plan, context: &Arc<TaskContext>) -> bool {
    let mut are_all = true;
    for fragment in uppermost(plan) {
        // A fragment requests its columns and its kernels when it runs, so that a later run finds them.
        let is_run = are_all || reason(plan).is_some_and(|it| it.is(NOT_THERE) || it.is(COMPILING));
        if is_run {
            are_all &= fragment.run(context).await;
        }
    }
    are_all
}

/// Returns why the device did not compute one of the fragments of a plan that ran; `None` if it computed all.
fn reason(plan: &Plan) -> Option<&Reason> {
    // That of a fragment below is the cause.
    let below = plan.children().into_iter().find_map(reason);
    below.or_else(|| plan.downcast_ref::<GpuFragmentExec>()?.reason())
}

impl DisplayAs for AlternativesExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(ALTERNATIVES_OPERATOR)
    }
}

impl ExecutionPlan for AlternativesExec {
    fn name(&self) -> &str {
        ALTERNATIVES_OPERATOR
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.cpu.properties()
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false; 2]
    }

    fn children(&self) -> Vec<&Plan> {
        vec![&self.cpu, &self.fragments]
    }

    fn apply_expressions(
        &self,
        _f: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(
        self: Arc<Self>,
        children: Vec<Plan>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Plan> {
        let [cpu, fragments] = <[Plan; 2]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("{} inputs", all.len()))?;
        let options = self.options.clone();
        Ok(Arc::new(AlternativesExec::new(cpu, &fragments, options)?))
    }

    fn with_new_children(self: Arc<Self>, children: Vec<Plan>) -> Result<Plan> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let (cpu, fragments) = (Arc::clone(&self.cpu), Arc::clone(&self.fragments));
        let options = self.options.clone();
        let rows = stream::once(async move {
            // Both plans have the same rows in a partition only if there is one, or if hashes of rows tell it.
            let partitioning = &cpu.properties().partitioning;
            let count = partitioning.partition_count();
            let may_choose = count == 1 || matches!(partitioning, Partitioning::Hash(..));
            if run_uppermost(&fragments, &context).await {
                let all = partition..fragments.properties().partitioning.partition_count();
                let dealt = all.step_by(count);
                let dealt = dealt.map(|it| fragments.execute(it, Arc::clone(&context)));
                let dealt = stream::iter(dealt.collect::<Result<Vec<_>>>()?);
                let mut rows = dealt.flatten().boxed().peekable();
                let first = Pin::new(&mut rows).peek().await;
                // The join of the parts keeps all groups in memory; the CPU's plan can spill them to disk.
                let has_no_room = matches!(first, Some(Err(error)) if PlanAgain::may_help(error));
                if !has_no_room || !may_choose {
                    let rows = RecordBatchStreamAdapter::new(cpu.schema(), rows);
                    return Ok(Box::pin(rows) as SendableRecordBatchStream);
                }
            } else {
                let computed = uppermost(&fragments).into_iter();
                computed.for_each(GpuFragmentExec::release);
            }
            let reason = reason(&fragments).cloned();
            let reason =
                reason.unwrap_or_else(|| Reason::no_room("too little memory for its groups"));
            if options.strict {
                let text = format!("the GPU does not compute a part of the plan: {reason}");
                return Err(DataFusionError::Execution(text));
            }
            cpu.execute(partition, context)
        });
        let rows = rows.try_flatten().boxed();
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema(), rows)))
    }
}
