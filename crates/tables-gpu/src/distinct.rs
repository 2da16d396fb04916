//! Aggregates of distinct values (`count(DISTINCT a), count(DISTINCT b)`): for each of these arguments, kernels group
//! the rows by the keys and the argument, and aggregate these groups by the keys. The CPU joins the results by the
//! keys.

use std::sync::Arc;

use datafusion::common::{JoinType, NullEquality, internal_datafusion_err};
use datafusion::error::Result as DataFusionResult;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::{AggregateExprBuilder, AggregateFunctionExpr};
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::{CrossJoinExec, HashJoinExec, PartitionMode};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::fragment::{Exprs, column_of};
use crate::reason::Reason;

/// Maximum number of parts. Each part reads all rows, and the CPU would read them only once.
const PARTS_MAX: usize = 8;

type Plan = Arc<dyn ExecutionPlan>;
type Result<T> = std::result::Result<T, Reason>;

/// Aggregates of the same distinct values, or all that are not of distinct values.
pub(crate) struct Part {
    /// The argument of which each value counts once, and the condition of `FILTER`; empty if all rows count.
    values: Exprs,
    /// Indexes of the aggregates.
    aggregates: Vec<usize>,
}

/// Returns the aggregates by their distinct values. `first` is the first step of all.
///
/// # Errors
/// Why kernels do not compute one of them.
pub(crate) fn parts(first: &AggregateExec) -> Result<Vec<Part>> {
    let mut parts: Vec<Part> = Vec::new();
    let functions = first.aggr_expr().iter().zip(first.filter_expr());
    for (index, (function, filter)) in functions.enumerate() {
        let mut values = Exprs::new();
        if function.is_distinct() {
            let name = function.fun().name();
            values = function.expressions();
            if values.len() != 1 {
                return Err(Reason::new(format!("{name} of several values")));
            }
            // The CPU refuses others, such as `stddev`.
            let is_known = ["avg", "count", "max", "min", "sum"].contains(&name);
            if !is_known || !function.order_bys().is_empty() {
                let text = format!("{name} of distinct or ordered values");
                return Err(Reason::new(text));
            }
            values.extend(filter.clone());
        }
        match parts.iter_mut().find(|part| part.values == values) {
            Some(part) => part.aggregates.push(index),
            None => parts.push(Part {
                values,
                aggregates: vec![index],
            }),
        }
    }
    match parts.len() > PARTS_MAX {
        true => Err(Reason::new("distinct values of many arguments")),
        false => Ok(parts),
    }
}

/// Indexes of the keys by whose hash rows are partitioned, and the number of partitions.
pub(crate) type Hashed = (Vec<usize>, usize);

/// Returns how the rows of an aggregate are partitioned; `None` if not by a hash of its keys.
pub(crate) fn hashed(aggregate: &AggregateExec) -> Option<Hashed> {
    let Partitioning::Hash(by, count) = &aggregate.properties().partitioning else {
        return None;
    };
    let keys = aggregate.group_expr().expr().len();
    let key = |it| column_of(it).filter(|index| *index < keys);
    let by = by.iter().map(key).collect::<Option<Vec<_>>>()?;
    Some((by, *count))
}

impl Part {
    /// Returns the aggregate whose groups are the keys with each distinct value; `None` if all rows count.
    ///
    /// # Errors
    /// Why DataFusion refuses it.
    pub(crate) fn groups(&self, first: &AggregateExec) -> Result<Option<AggregateExec>> {
        if self.values.is_empty() {
            return Ok(None);
        }
        let values = self.values.iter().enumerate();
        let values = values.map(|(index, value)| (Arc::clone(value), format!("value {index}")));
        let keys = first.group_expr().expr().iter().cloned().chain(values);
        let groups = PhysicalGroupBy::new_single(keys.collect());
        single(groups, (Vec::new(), Vec::new()), first.input(), None).map(Some)
    }

    /// Returns the aggregate of these groups, or of all rows, by the keys.
    ///
    /// # Errors
    /// Why DataFusion refuses it.
    pub(crate) fn aggregate(
        &self,
        first: &AggregateExec,
        groups: Option<Plan>,
        hashed: Option<&Hashed>,
    ) -> Result<AggregateExec> {
        let functions = self.aggregates.iter().map(|it| &first.aggr_expr()[*it]);
        let Some(groups) = groups else {
            let filters = self.aggregates.iter().map(|it| &first.filter_expr()[*it]);
            let functions = (functions.cloned().collect(), filters.cloned().collect());
            return single(first.group_expr().clone(), functions, first.input(), hashed);
        };
        let keys = first.group_expr().expr().len();
        let functions = functions.map(|function| {
            let fun = Arc::new(function.fun().clone());
            let built = AggregateExprBuilder::new(fun, vec![column(&groups, keys)])
                .schema(groups.schema())
                .alias(function.name())
                .build();
            built.map(Arc::new).map_err(Reason::of)
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let filter = (self.values.len() > 1).then(|| column(&groups, keys + 1));
        let filters = vec![filter; functions.len()];
        let keys = first.group_expr().as_final();
        single(keys, (functions, filters), &groups, hashed)
    }
}

/// Functions and their conditions.
type Functions = (
    Vec<Arc<AggregateFunctionExpr>>,
    Vec<Option<Arc<dyn PhysicalExpr>>>,
);

/// Returns an aggregate in one step.
fn single(
    groups: PhysicalGroupBy,
    (functions, filters): Functions,
    input: &Plan,
    hashed: Option<&Hashed>,
) -> Result<AggregateExec> {
    let rows = Arc::clone(input);
    let (mode, rows): (_, Plan) = match hashed {
        Some((by, count)) => {
            let by = by.iter().map(|key| Arc::clone(&groups.expr()[*key].0));
            let partitioning = Partitioning::Hash(by.collect(), *count);
            let rows = RepartitionExec::try_new(rows, partitioning).map_err(Reason::of)?;
            (AggregateMode::SinglePartitioned, Arc::new(rows))
        }
        None => {
            let rows = CoalescePartitionsExec::new(rows);
            (AggregateMode::Single, Arc::new(rows))
        }
    };
    let aggregate = AggregateExec::try_new(mode, groups, functions, filters, rows, input.schema());
    aggregate.map_err(Reason::of)
}

/// Returns a column of a plan.
fn column(plan: &Plan, index: usize) -> Arc<dyn PhysicalExpr> {
    Arc::new(Column::new(plan.schema().field(index).name(), index))
}

/// Returns the rows of an aggregate, from the plans of its parts.
///
/// # Errors
/// If DataFusion refuses a part of it.
pub(crate) fn joined(
    aggregate: &AggregateExec,
    parts: Vec<(Part, Plan)>,
    hashed: Option<&Hashed>,
) -> DataFusionResult<Plan> {
    let mode = match hashed {
        Some(_) => PartitionMode::Partitioned,
        None => PartitionMode::CollectLeft,
    };
    let schema = aggregate.schema();
    let keys = aggregate.group_expr().expr().len();
    // For each column of the aggregate, its index in the joined rows.
    let mut indexes: Vec<usize> = (0..schema.fields().len()).collect();
    let mut all: Option<Plan> = None;
    for (part, plan) in parts {
        let first = all.as_ref().map_or(0, |all| all.schema().fields().len());
        for (position, index) in part.aggregates.iter().enumerate() {
            indexes[keys + index] = first + keys + position;
        }
        all = Some(match all {
            Some(all) => side_by_side(all, plan, keys, mode)?,
            None => plan,
        });
    }
    let all = all.ok_or_else(|| internal_datafusion_err!("no aggregate"))?;
    let columns = indexes.iter().zip(schema.fields());
    let columns = columns.map(|(index, field)| (column(&all, *index), field.name().clone()));
    let columns: Vec<_> = columns.collect();
    let ordered: Plan = Arc::new(ProjectionExec::try_new(columns, all)?);
    let partitioning = &aggregate.properties().partitioning;
    Ok(
        match hashed.is_some() || partitioning.partition_count() == 1 {
            true => ordered,
            false => Arc::new(RepartitionExec::try_new(ordered, partitioning.clone())?),
        },
    )
}

/// Returns the rows of two plans of the same groups, which have the keys as their first columns.
fn side_by_side(
    left: Plan,
    right: Plan,
    keys: usize,
    mode: PartitionMode,
) -> DataFusionResult<Plan> {
    if keys == 0 {
        return Ok(Arc::new(CrossJoinExec::new(left, right)));
    }
    let on = (0..keys).map(|key| (column(&left, key), column(&right, key)));
    let on = on.collect();
    let join = HashJoinExec::try_new(
        left,
        right,
        on,
        None,
        &JoinType::Inner,
        None,
        mode,
        NullEquality::NullEqualsNull,
        false,
    );
    Ok(Arc::new(join?))
}
