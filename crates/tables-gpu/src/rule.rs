//! The rule that gives fragments of plans to a device.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::config::ConfigOptions;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};
use forebay_tables::GpuOptions;

use crate::columns::Columns;
use crate::fragment::{Fragment, Source};
use crate::on_cpu::OnCpuExec;
use crate::operator::GpuAggregateExec;
use crate::packed::is_packable;
use crate::program::Compiled;
use crate::reason::Reason;
use crate::scanned::Scanned;

/// Puts an operator of a device above each partial aggregate that the device can compute.
#[derive(Debug)]
pub(crate) struct Fragments(pub(crate) Arc<Columns>);

impl PhysicalOptimizerRule for Fragments {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = config.extensions.get::<GpuOptions>().cloned();
        let options = options.unwrap_or_default();
        if !options.is_on {
            return Ok(plan);
        }
        plan.transform_up(|node| {
            let Some(aggregate) = node.downcast_ref::<AggregateExec>() else {
                return Ok(Transformed::no(node));
            };
            let steps = Steps::of(aggregate)?;
            match steps.partial().and_then(checked) {
                Ok(fragment) => {
                    let first = steps.first.clone().unwrap_or(Arc::clone(&node));
                    let first = Arc::new(GpuAggregateExec::new(
                        first,
                        Arc::new(fragment),
                        Arc::clone(&self.0),
                        options.clone(),
                    ));
                    Ok(Transformed::yes(steps.last(aggregate, first)?))
                }
                // Those of catalogues, and of other aggregates, are not the device's.
                Err(_) if is_last(aggregate) || !reads_files(&node) => Ok(Transformed::no(node)),
                Err(reason) if options.strict => {
                    let text = format!("the GPU does not compute a part of the plan: {reason}");
                    Err(DataFusionError::Plan(text))
                }
                Err(reason) => {
                    let node = OnCpuExec::new(node, reason);
                    Ok(Transformed::yes(Arc::new(node) as _))
                }
            }
        })
        .data()
    }

    fn name(&self) -> &str {
        "gpu_fragments"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns whether an aggregate combines those of another operator.
fn is_last(aggregate: &AggregateExec) -> bool {
    matches!(
        aggregate.mode(),
        AggregateMode::Final | AggregateMode::FinalPartitioned | AggregateMode::PartialReduce
    )
}

fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let scan = plan.downcast_ref::<DataSourceExec>();
    scan.is_some_and(|it| it.data_source().is::<FileScanConfig>())
        || plan.children().into_iter().any(reads_files)
}

/// The steps of an aggregate, of which the device computes the first.
struct Steps {
    first: Option<Arc<dyn ExecutionPlan>>,
    /// Partitions of the last step, if it has several.
    partitions: Option<Partitioning>,
    reason: Option<Reason>,
}

impl Steps {
    /// Returns the steps of an aggregate: itself, or two instead of one.
    fn of(aggregate: &AggregateExec) -> Result<Steps> {
        let mut steps = Steps {
            first: None,
            partitions: None,
            reason: None,
        };
        let input = match aggregate.mode() {
            AggregateMode::Single => aggregate.input(),
            AggregateMode::SinglePartitioned => {
                // Operators above rely on them.
                let partitions = &aggregate.properties().partitioning;
                if partitions.partition_count() > 1 {
                    if !is_by_columns(partitions) {
                        steps.reason = Some(Reason::new("rows that are partitioned"));
                        return Ok(steps);
                    }
                    steps.partitions = Some(partitions.clone());
                }
                let below = steps.partitions.as_ref().and_then(|_| by_keys(aggregate));
                below.unwrap_or(aggregate.input())
            }
            AggregateMode::Partial => {
                steps.first = Some(Arc::new(aggregate.clone()));
                return Ok(steps);
            }
            _ => {
                steps.reason = Some(Reason::new("an aggregate of aggregates"));
                return Ok(steps);
            }
        };
        steps.first = Some(Arc::new(AggregateExec::try_new(
            AggregateMode::Partial,
            aggregate.group_expr().clone(),
            aggregate.aggr_expr().to_vec(),
            aggregate.filter_expr().to_vec(),
            Arc::clone(input),
            aggregate.input_schema(),
        )?));
        Ok(steps)
    }

    /// Returns the first step.
    fn partial(&self) -> std::result::Result<&AggregateExec, Reason> {
        let first = self.first.as_ref().and_then(|it| it.downcast_ref());
        let reason = || {
            self.reason
                .clone()
                .unwrap_or_else(|| Reason::new("no aggregate"))
        };
        first.ok_or_else(reason)
    }

    /// Returns the aggregate over the results of its first step.
    fn last(
        &self,
        aggregate: &AggregateExec,
        first: Arc<dyn ExecutionPlan>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let groups = aggregate.group_expr().as_final();
        let (mode, input) = match (aggregate.mode(), &self.partitions) {
            (AggregateMode::Partial, _) => {
                // The device returns all rows in the first partition.
                let partitioning = &aggregate.properties().partitioning;
                return Ok(match is_by_columns(partitioning) {
                    true => Arc::new(RepartitionExec::try_new(first, partitioning.clone())?),
                    false => first,
                });
            }
            (_, Some(partitions)) => {
                let input = RepartitionExec::try_new(first, partitions.clone())?;
                (AggregateMode::FinalPartitioned, Arc::new(input) as _)
            }
            _ => (AggregateMode::Final, first),
        };
        Ok(Arc::new(AggregateExec::try_new(
            mode,
            groups,
            aggregate.aggr_expr().to_vec(),
            aggregate.filter_expr().to_vec(),
            input,
            aggregate.input_schema(),
        )?))
    }
}

/// Returns whether rows are partitioned by columns that are still there.
fn is_by_columns(partitioning: &Partitioning) -> bool {
    let Partitioning::Hash(keys, _) = partitioning else {
        return false;
    };
    !keys.iter().any(|it| it.is::<UnKnownColumn>())
}

/// Returns what is below the partitions by the keys of an aggregate.
fn by_keys(aggregate: &AggregateExec) -> Option<&Arc<dyn ExecutionPlan>> {
    let repartition = aggregate.input().downcast_ref::<RepartitionExec>()?;
    match repartition.partitioning() {
        Partitioning::Hash(keys, _) if *keys == aggregate.group_expr().input_exprs() => {
            Some(repartition.input())
        }
        _ => None,
    }
}

/// Returns the fragment of an aggregate.
fn checked(aggregate: &AggregateExec) -> std::result::Result<Fragment, Reason> {
    if aggregate.properties().output_ordering().is_some() {
        return Err(Reason::new("rows that are sorted"));
    }
    let is_known = |partitioning: &Partitioning| {
        use Partitioning::{Hash, RoundRobinBatch, UnknownPartitioning};
        matches!(
            partitioning,
            Hash(..) | RoundRobinBatch(_) | UnknownPartitioning(_)
        )
    };
    let partitioning = &aggregate.properties().partitioning;
    if partitioning.partition_count() > 1 && !is_known(partitioning) {
        return Err(Reason::new("rows that are partitioned by ranges"));
    }
    let fragment = Fragment::of(aggregate)?;
    let mut rows = vec![&fragment.rows];
    let mut assumed = vec![None; fragment.sources.len()];
    while let Some(of) = rows.pop() {
        let scanned = Scanned::assumed(Arc::clone(&of.schema), of.width());
        assumed[of.source] = Some(scanned);
        rows.extend(of.joins.iter().map(|join| &join.rows));
    }
    for source in &fragment.sources {
        check_columns(source)?;
    }
    let assumed: Vec<_> = assumed.into_iter().flatten().collect();
    Compiled::new(&fragment, &assumed)?;
    Ok(fragment)
}

/// Checks that the columns of a source can be kept on a device.
fn check_columns(source: &Source) -> std::result::Result<(), Reason> {
    let in_file = source.scan.file_source.table_schema().file_schema();
    for column in &source.columns {
        let field = source.schema().field(*column);
        // The values of partitions are those of a scan: the same file may have another one in the next.
        if *column >= in_file.fields().len() {
            let text = format!("the column {} is not in the files", field.name());
            return Err(Reason::new(text));
        }
        if !is_packable(field.data_type()) {
            let text = format!(
                "the column {} is of type {}",
                field.name(),
                field.data_type()
            );
            return Err(Reason::new(text));
        }
    }
    match source.columns.is_empty() {
        true => Err(Reason::new("it reads no column of a table")),
        false => Ok(()),
    }
}
