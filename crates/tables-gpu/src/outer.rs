//! Aggregates above outer joins whose other side may have several rows for a key: the other rows are grouped by the key
//! first, so that there is one for each. What counts rows or values of them then adds their counts.

use std::sync::Arc;

use datafusion::common::{JoinType, NullEquality};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateExprBuilder;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode, PhysicalGroupBy};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::fragment::{Aggregate, Exprs, Fragment, is_moving, of_plan, over_rows, rows, shifted};
use crate::join::{Join, JoinKind};
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;
type Plan = Arc<dyn ExecutionPlan>;

/// An outer join below an aggregate.
pub(crate) struct OuterJoin<'a> {
    aggregate: &'a AggregateExec,
    join: &'a HashJoinExec,
    /// Whether all rows of the left side are kept.
    is_left: bool,
    /// The arguments of the aggregates, over the columns of the other side.
    arguments: Vec<Arc<dyn PhysicalExpr>>,
    /// The keys of the groups, over the columns of the side that is kept.
    keys: Exprs,
}

/// Returns the join below operators that return all its rows, and what their columns are over those of both sides.
fn join_below(plan: &Plan) -> Option<(&HashJoinExec, Exprs)> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let (join, columns) = join_below(projection.input())?;
        let exprs = projection.expr().iter();
        let exprs = exprs.map(|it| over_rows(&it.expr, &columns));
        return Some((join, exprs.collect::<Result<_>>().ok()?));
    }
    if is_moving(plan) {
        return join_below(plan.children()[0]);
    }
    let join = plan.downcast_ref::<HashJoinExec>()?;
    let fields = [join.left(), join.right()].map(|side| side.schema());
    let fields = fields.iter().flat_map(|schema| schema.fields()).enumerate();
    let all: Exprs = fields
        .map(|(index, field)| Arc::new(Column::new(field.name(), index)) as _)
        .collect();
    let columns = match &join.projection {
        Some(kept) => kept.iter().map(|it| Arc::clone(&all[*it])).collect(),
        None => all,
    };
    Some((join, columns))
}

/// Returns whether an expression is surely NULL if a column is: then rows without a match add nothing.
fn is_null_of_null(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let is_arithmetic = expr.downcast_ref::<BinaryExpr>().is_some_and(|binary| {
        matches!(
            binary.op(),
            Operator::Plus | Operator::Minus | Operator::Multiply
        )
    });
    let is_known = is_arithmetic || expr.is::<CastExpr>();
    let is_leaf = expr.is::<Column>() || expr.is::<Literal>();
    is_leaf || is_known && expr.children().into_iter().all(is_null_of_null)
}

impl<'a> OuterJoin<'a> {
    /// Returns the outer join below an aggregate, if the other rows can be grouped first: the side that is kept has the
    /// keys of the groups and smaller files, and the other side all that is aggregated.
    pub(crate) fn of(aggregate: &'a AggregateExec) -> Option<OuterJoin<'a>> {
        let (join, columns) = join_below(aggregate.input())?;
        let is_left = match join.join_type() {
            JoinType::Left => true,
            JoinType::Right => false,
            _ => return None,
        };
        let is_plain = join.filter().is_none() && join.fetch().is_none();
        if !is_plain || join.null_equality() != NullEquality::NullEqualsNothing {
            return None;
        }
        let left = join.left().schema().fields().len();
        // Returns an expression over the columns of one side, if all its columns are there.
        let of_side = |expr: &Arc<dyn PhysicalExpr>, is_of_left: bool| {
            let expr = over_rows(expr, &columns).ok()?;
            let own = collect_columns(&expr);
            let are_there = own.iter().all(|it| (it.index() < left) == is_of_left);
            let first = if is_of_left { 0 } else { left };
            let is_there = are_there && !own.is_empty();
            is_there.then(|| shifted(&expr, first).ok()).flatten()
        };
        let groups = aggregate.group_expr();
        if !groups.is_single() || groups.has_grouping_set() || groups.is_empty() {
            return None;
        }
        let keys = groups.expr().iter();
        let keys = keys
            .map(|(key, _)| of_side(key, is_left))
            .collect::<Option<_>>()?;
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        let arguments = functions.map(|(function, filter)| {
            let name = function.fun().name();
            let is_known = ["count", "sum", "min", "max"].contains(&name)
                && !function.is_distinct()
                && filter.is_none();
            match function.expressions().as_slice() {
                [argument] if is_known => of_side(argument, !is_left).filter(is_null_of_null),
                _ => None,
            }
        });
        Some(OuterJoin {
            arguments: arguments.collect::<Option<_>>()?,
            aggregate,
            join,
            is_left,
            keys,
        })
    }

    fn sides(&self) -> (&Plan, &Plan) {
        match self.is_left {
            true => (self.join.left(), self.join.right()),
            false => (self.join.right(), self.join.left()),
        }
    }

    /// Returns the keys of the join: of the side that is kept, and of the other.
    fn on(&self) -> (Exprs, Exprs) {
        let on = self.join.on().iter().cloned();
        let (left, right): (Exprs, Exprs) = on.unzip();
        match self.is_left {
            true => (left, right),
            false => (right, left),
        }
    }

    /// Returns the operator of the CPU that groups the other rows by the keys of the join.
    ///
    /// # Errors
    /// If there is none, or the other side has smaller files.
    pub(crate) fn grouped(&self) -> Result<AggregateExec> {
        let (kept, other) = self.sides();
        if rows(kept)?.origin.bytes() >= rows(other)?.origin.bytes() {
            return Err(Reason::new("an outer join with smaller files"));
        }
        let schema = other.schema();
        let functions = self.aggregate.aggr_expr().iter().zip(&self.arguments);
        let functions = functions.map(|(function, argument)| {
            let function = Arc::new(function.fun().clone());
            let built = AggregateExprBuilder::new(function, vec![Arc::clone(argument)])
                .schema(Arc::clone(&schema))
                .alias(argument.to_string())
                .build();
            built.map(Arc::new)
        });
        let functions = functions.collect::<std::result::Result<Vec<_>, _>>();
        let functions = functions.map_err(Reason::of)?;
        let keys = self.on().1.into_iter().enumerate();
        let keys = keys.map(|(index, key)| (key, format!("key {index}")));
        let filters = vec![None; functions.len()];
        AggregateExec::try_new(
            AggregateMode::Single,
            PhysicalGroupBy::new_single(keys.collect()),
            functions,
            filters,
            Arc::new(CoalescePartitionsExec::new(Arc::clone(other))),
            schema,
        )
        .map_err(Reason::of)
    }

    /// Returns the fragment of the aggregate, with the rows that [`OuterJoin::grouped`] returns as the other side.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn fragment(&self, grouped: &Plan) -> Result<Fragment> {
        let mut kept = rows(self.sides().0)?;
        let other = of_plan(grouped, Reason::new("groups of a GPU are below"));
        let keys = self.on().0;
        let keys_of_rows = other.columns[..keys.len()].to_vec();
        let first = kept.widen(&other, true)?;
        let of_group = |index: usize| {
            let column = first + keys.len() + index;
            Arc::new(Column::new(kept.schema.field(column).name(), column)) as _
        };
        let functions = self.aggregate.aggr_expr().iter().enumerate();
        let aggregates = functions.map(|(index, function)| Aggregate {
            function: Arc::clone(function),
            arguments: vec![of_group(index)],
            filter: None,
            is_of_states: true,
        });
        let aggregates = aggregates.collect();
        let over_kept = |exprs: &Exprs| {
            let over = exprs.iter().map(|it| over_rows(it, &kept.columns));
            over.collect::<Result<Exprs>>()
        };
        let (keys, of_groups) = (over_kept(&keys)?, over_kept(&self.keys)?);
        kept.joins.push(Join {
            kind: JoinKind::Outer,
            keys,
            rows: other,
            keys_of_rows,
            differ: None,
            condition: None,
            is_null_aware: false,
            first,
            repeats: false,
        });
        Ok(Fragment::of_groups(kept, of_groups, aggregates))
    }
}
