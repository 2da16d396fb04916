//! Outer joins of inputs with constant columns.
//!
//! Where a join pads rows with NULLs, a constant column is constant no longer. DataFusion 55 forgets this, and leaves
//! out sorts by such a column.

use std::fmt;
use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::{EquivalenceProperties, PhysicalExpr};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::{
    ChildrenPropertiesMode, DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties,
    ReplaceChildrenOptions,
};

/// The rule. It runs before those of DataFusion.
#[derive(Debug)]
pub(crate) struct PaddedConstants;

impl PhysicalOptimizerRule for PaddedConstants {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(hidden).data()
    }

    fn name(&self) -> &str {
        "padded_constants"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Hides that columns of a join's inputs are constant where the join pads them.
fn hidden(plan: Arc<dyn ExecutionPlan>) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
    let join_type = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        *join.join_type()
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        *join.join_type()
    } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        join.join_type()
    } else {
        return Ok(Transformed::no(plan));
    };
    let is_padded = match join_type {
        JoinType::Left => [false, true],
        JoinType::Right => [true, false],
        JoinType::Full => [true, true],
        _ => return Ok(Transformed::no(plan)),
    };
    let mut is_changed = false;
    let children = plan.children().into_iter().zip(is_padded);
    let children: Vec<Arc<dyn ExecutionPlan>> = children
        .map(|(child, is_padded)| {
            if !is_padded
                || child
                    .properties()
                    .equivalence_properties()
                    .constants()
                    .is_empty()
            {
                return Arc::clone(child);
            }
            is_changed = true;
            Arc::new(PaddedExec::new(Arc::clone(child))) as _
        })
        .collect();
    if !is_changed {
        return Ok(Transformed::no(plan));
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute);
    Ok(Transformed::yes(plan.replace_children(children, options)?))
}

/// Passes rows on, without telling which columns are constant.
#[derive(Debug)]
struct PaddedExec {
    input: Arc<dyn ExecutionPlan>,
    properties: Arc<PlanProperties>,
}

impl PaddedExec {
    fn new(input: Arc<dyn ExecutionPlan>) -> PaddedExec {
        let unknown = EquivalenceProperties::new(input.schema());
        let properties = input.properties().as_ref().clone();
        PaddedExec {
            properties: Arc::new(properties.with_eq_properties(unknown)),
            input,
        }
    }
}

impl DisplayAs for PaddedExec {
    fn fmt_as(&self, _format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PaddedExec")
    }
}

impl ExecutionPlan for PaddedExec {
    fn name(&self) -> &str {
        "PaddedExec"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![&self.input]
    }

    fn apply_expressions(
        &self,
        _visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn benefits_from_input_partitioning(&self) -> Vec<bool> {
        vec![false]
    }

    fn replace_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
        _options: ReplaceChildrenOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(PaddedExec::new(children.swap_remove(0))))
    }

    fn with_new_children(
        self: Arc<Self>,
        mut children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(Arc::new(PaddedExec::new(children.swap_remove(0))))
    }

    fn execute(
        &self,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        self.input.execute(partition, context)
    }
}
