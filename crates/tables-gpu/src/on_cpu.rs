//! The operator that tells why a part of a plan runs on the CPU.

use std::fmt;
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};

use crate::cost::Timer;
use crate::reason::Reason;

/// Returns what its input returns. `EXPLAIN` prints the reason.
#[derive(Debug)]
pub(crate) struct OnCpuExec {
    input: Arc<dyn ExecutionPlan>,
    reason: Reason,
    timer: Option<Arc<Timer>>,
}

impl OnCpuExec {
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, reason: Reason) -> OnCpuExec {
        OnCpuExec {
            input,
            reason,
            timer: None,
        }
    }

    /// Returns the operator with a timer of its input.
    pub(crate) fn with_timer(self, timer: Option<Arc<Timer>>) -> OnCpuExec {
        OnCpuExec { timer, ..self }
    }

    pub(crate) fn reason(&self) -> &Reason {
        &self.reason
    }
}

impl DisplayAs for OnCpuExec {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OnCpuExec: {}", self.reason)
    }
}

impl ExecutionPlan for OnCpuExec {
    fn name(&self) -> &str {
        "OnCpuExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
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
        let input = children.pop();
        let input = input.ok_or_else(|| DataFusionError::Internal("no input".to_owned()))?;
        let operator = OnCpuExec::new(input, self.reason.clone());
        Ok(Arc::new(operator.with_timer(self.timer.clone())))
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
        self.replace_children(children, options)
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let rows = self.input.execute(partition, context)?;
        Ok(Timer::timed(self.timer.as_ref(), rows))
    }
}
