//! Numbers of rows that DataFusion 55 estimates wrongly, and the build sides of joins that it chooses by them.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Literal};
use datafusion::physical_expr::utils::split_conjunction;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::{HashJoinExec, PartitionMode};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

/// Percentage of rows that are assumed to remain if one text equals a constant, as DataFusion assumes, then two, then
/// more.
const SELECTED: [u8; 3] = [20, 4, 1];

/// Tells filters that compare several texts how many rows they keep; DataFusion assumes the same percentage for any
/// number of conditions. The rule comes before joins choose their build sides.
#[derive(Debug)]
pub(crate) struct Selectivities;

impl PhysicalOptimizerRule for Selectivities {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else {
                return Ok(Transformed::no(node));
            };
            let conditions = split_conjunction(filter.predicate()).into_iter();
            let texts = conditions.filter(|it| is_equality_of_text(it)).count();
            if texts < 2 {
                return Ok(Transformed::no(node));
            }
            let selected = SELECTED[texts.min(SELECTED.len()) - 1];
            let filter = FilterExecBuilder::from(filter).with_default_selectivity(selected);
            Ok(Transformed::yes(Arc::new(filter.build()?) as _))
        })
        .data()
    }

    fn name(&self) -> &str {
        "selectivities"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

fn is_equality_of_text(condition: &Arc<dyn PhysicalExpr>) -> bool {
    let Some(comparison) = condition.downcast_ref::<BinaryExpr>() else {
        return false;
    };
    let is_text = |side: &Arc<dyn PhysicalExpr>| {
        let literal = side.downcast_ref::<Literal>();
        literal.is_some_and(|it| it.value().data_type().is_string())
    };
    *comparison.op() == Operator::Eq && (is_text(comparison.left()) || is_text(comparison.right()))
}

/// Swaps the inputs of semi and anti joins back if the one with fewer rows was the build side before. DataFusion
/// compares bytes, and for an input that is a join it counts those of all rows that the join reads. The rule comes
/// right after the one that swaps.
///
/// Without it, query 21 of TPC-H makes a hash table of four million rows to look up 73,000.
#[derive(Debug)]
pub(crate) struct BuildSides;

impl PhysicalOptimizerRule for BuildSides {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let collected_max = config.optimizer.hash_join_single_partition_threshold_rows;
        plan.transform_up(|node| {
            let Some(join) = node.downcast_ref::<HashJoinExec>() else {
                return Ok(Transformed::no(node));
            };
            if !matches!(join.join_type(), JoinType::RightSemi | JoinType::RightAnti) {
                return Ok(Transformed::no(node));
            }
            let (left, right) = (rows(join.left())?, rows(join.right())?);
            let (Some(left), Some(right)) = (left, right) else {
                return Ok(Transformed::no(node));
            };
            if right >= left {
                return Ok(Transformed::no(node));
            }
            let mode = match right < collected_max {
                true => PartitionMode::CollectLeft,
                false => *join.partition_mode(),
            };
            join.swap_inputs(mode).map(Transformed::yes)
        })
        .data()
    }

    fn name(&self) -> &str {
        "build_sides"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns the estimated number of rows of a plan.
fn rows(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<usize>> {
    let statistics = StatisticsContext::new().compute(&**plan, &StatisticsArgs::new())?;
    Ok(statistics.num_rows.get_value().copied())
}
