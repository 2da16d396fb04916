//! Rules of DataFusion 55 that are wrong for some plans, kept from these plans.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::Transformed;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan};
use datafusion::optimizer::optimizer::{ApplyOrder, Optimizer};
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::estimates::{BuildSides, Selectivities};
use crate::nan::NanRule;
use crate::padded::PaddedConstants;
use crate::semijoins::SemiJoins;

/// Returns DataFusion's rules of logical plans, with their limits, and one more.
pub(crate) fn optimizer_rules() -> Vec<Arc<dyn OptimizerRule + Send + Sync>> {
    let rules = Optimizer::new().rules.into_iter();
    let limited = rules.map(|rule| match rule.name() {
        "single_distinct_aggregation_to_group_by" => Arc::new(Distinct(rule)) as _,
        _ => rule,
    });
    limited
        .chain(std::iter::once(Arc::new(SemiJoins) as _))
        .collect()
}

/// Returns DataFusion's rules of physical plans, with their limits and corrections.
pub(crate) fn physical_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = vec![
        Arc::new(NanRule::Statistics),
        Arc::new(PaddedConstants),
        Arc::new(Selectivities),
    ];
    for rule in PhysicalOptimizer::new().rules {
        match rule.name() {
            "join_selection" => rules.extend([rule, Arc::new(BuildSides) as _]),
            name if name.starts_with("FilterPushdown") => rules.push(Arc::new(Pushdown(rule))),
            _ => rules.push(rule),
        }
    }
    rules
}

/// Counts distinct values by groups. Sums of decimals are summed again then, which gives them another type than the
/// plan expects.
#[derive(Debug)]
struct Distinct(Arc<dyn OptimizerRule + Send + Sync>);

impl OptimizerRule for Distinct {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        self.0.apply_order()
    }

    fn rewrite(
        &self,
        plan: LogicalPlan,
        config: &dyn OptimizerConfig,
    ) -> Result<Transformed<LogicalPlan>, DataFusionError> {
        let LogicalPlan::Aggregate(aggregate) = &plan else {
            return self.0.rewrite(plan, config);
        };
        let schema = aggregate.input.schema();
        let sums_decimals = aggregate.aggr_expr.iter().any(|expr| {
            let (Expr::AggregateFunction(call), Ok(data_type)) =
                (expr.clone().unalias(), expr.get_type(schema))
            else {
                return false;
            };
            call.func.name() == "sum" && matches!(data_type, DataType::Decimal128(..))
        });
        match sums_decimals {
            true => Ok(Transformed::no(plan)),
            false => self.0.rewrite(plan, config),
        }
    }
}

/// Moves filters towards tables. It finds columns by their names, so it takes the wrong one if a join returns two of
/// the same name.
#[derive(Debug)]
struct Pushdown(Arc<dyn PhysicalOptimizerRule + Send + Sync>);

impl PhysicalOptimizerRule for Pushdown {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match is_ambiguous(&plan) {
            true => Ok(plan),
            false => self.0.optimize(plan, config),
        }
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn schema_check(&self) -> bool {
        self.0.schema_check()
    }
}

/// Returns whether an operator that filters its input reads columns of the same name.
fn is_ambiguous(plan: &Arc<dyn ExecutionPlan>) -> bool {
    found(plan).is_ambiguous
}

/// What is known of a plan and its inputs.
#[derive(Debug, Default, Clone, Copy)]
struct Found {
    /// An operator returns columns of the same name.
    has_twins: bool,
    is_ambiguous: bool,
}

fn found(plan: &Arc<dyn ExecutionPlan>) -> Found {
    let filtered = filtered_input(plan);
    let mut all = Found::default();
    for input in plan.children() {
        let inside = found(input);
        let is_filtered = filtered.is_some_and(|filtered| Arc::ptr_eq(filtered, input));
        all.is_ambiguous |= inside.is_ambiguous || (is_filtered && inside.has_twins);
        all.has_twins |= inside.has_twins;
    }
    all.has_twins = all.has_twins || has_twins(plan);
    all
}

/// Returns the input that an operator may filter where it is read.
fn filtered_input(plan: &Arc<dyn ExecutionPlan>) -> Option<&Arc<dyn ExecutionPlan>> {
    if plan.is::<FilterExec>() {
        plan.children().first().copied()
    } else if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        Some(join.right())
    } else if let Some(sort) = plan.downcast_ref::<SortExec>() {
        sort.fetch().map(|_| sort.input())
    } else if let Some(aggregate) = plan.downcast_ref::<AggregateExec>() {
        let is_one = aggregate.group_expr().is_empty();
        is_one.then(|| aggregate.input())
    } else {
        None
    }
}

/// Returns whether a plan has columns of the same name.
fn has_twins(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let schema = plan.schema();
    let mut names = HashSet::new();
    let mut fields = schema.fields().iter();
    fields.any(|field| !names.insert(field.name().as_str()))
}
