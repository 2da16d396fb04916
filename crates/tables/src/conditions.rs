//! Filters that compute their cheap conditions for all rows.
//!
//! DataFusion 55 computes the right side of `AND` only for the rows that the left side keeps, if these are at most a
//! fifth. It copies all columns of these rows first, which takes longer than to compare a column of numbers for all
//! rows.

use std::fmt;
use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, RecordBatch};
use datafusion::arrow::compute::{and, and_kleene};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, Column, IsNotNullExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::utils::{conjunction, conjunction_opt, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};

const COMPARISONS: [Operator; 6] = [
    Operator::Eq,
    Operator::NotEq,
    Operator::Lt,
    Operator::LtEq,
    Operator::Gt,
    Operator::GtEq,
];

/// The rule that plans such filters.
#[derive(Debug)]
pub(crate) struct CheapConditions;

impl PhysicalOptimizerRule for CheapConditions {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let Some(filter) = node.downcast_ref::<FilterExec>() else {
                return Ok(Transformed::no(node));
            };
            let Some(predicate) = grouped(filter.predicate(), &filter.input().schema()) else {
                return Ok(Transformed::no(node));
            };
            let filter = FilterExecBuilder::from(filter).with_predicate(predicate);
            Ok(Transformed::yes(Arc::new(filter.build()?) as _))
        })
        .data()
    }

    fn name(&self) -> &str {
        "cheap_conditions"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns a predicate whose cheap conditions come first; `None` if it has fewer than two.
fn grouped(predicate: &Arc<dyn PhysicalExpr>, columns: &Schema) -> Option<Arc<dyn PhysicalExpr>> {
    let conditions = split_conjunction(predicate).into_iter().cloned();
    // An equality stays, since the plan knows from it that a column has one value.
    let (cheap, others): (Vec<_>, Vec<_>) =
        conditions.partition(|condition| !is_equality(condition) && is_cheap(condition, columns));
    if cheap.len() < 2 {
        return None;
    }
    let cheap: Arc<dyn PhysicalExpr> = Arc::new(AllOf(cheap));
    conjunction_opt([cheap].into_iter().chain(others))
}

fn is_equality(condition: &Arc<dyn PhysicalExpr>) -> bool {
    let comparison = condition.downcast_ref::<BinaryExpr>();
    comparison.is_some_and(|it| *it.op() == Operator::Eq)
}

/// Returns whether a condition compares columns of short values, and cannot fail.
fn is_cheap(condition: &Arc<dyn PhysicalExpr>, columns: &Schema) -> bool {
    if let Some(inner) = condition.downcast_ref::<BinaryExpr>() {
        let sides = [inner.left(), inner.right()];
        return match inner.op() {
            Operator::And | Operator::Or => sides.iter().all(|side| is_cheap(side, columns)),
            op => COMPARISONS.contains(op) && sides.iter().all(|side| is_short(side, columns)),
        };
    }
    let tested = condition.downcast_ref::<IsNullExpr>().map(|it| it.arg());
    let tested = tested.or_else(|| condition.downcast_ref::<IsNotNullExpr>().map(|it| it.arg()));
    tested.is_some_and(|value| value.is::<Column>())
}

/// Returns whether an expression is a constant or a column of numbers, times or texts.
fn is_short(value: &Arc<dyn PhysicalExpr>, columns: &Schema) -> bool {
    let data_type = value.data_type(columns);
    let is_short = data_type.is_ok_and(|it| it.is_primitive() || matches!(it, DataType::Utf8View));
    is_short && (value.is::<Column>() || value.is::<Literal>())
}

/// Conditions of which all must be true, each computed for all rows.
#[derive(Debug, PartialEq, Eq, Hash)]
struct AllOf(Vec<Arc<dyn PhysicalExpr>>);

impl fmt::Display for AllOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", conjunction(self.0.iter().cloned()))
    }
}

impl PhysicalExpr for AllOf {
    fn data_type(&self, _schema: &Schema) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        for condition in &self.0 {
            if condition.nullable(schema)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let rows = batch.num_rows();
        let values = |condition: &Arc<dyn PhysicalExpr>| -> Result<_> {
            let values = condition.evaluate(batch)?.into_array(rows)?;
            Ok(values.as_boolean().clone())
        };
        let mut all = values(&self.0[0])?;
        for condition in &self.0[1..] {
            if !all.has_true() && all.null_count() == 0 {
                break;
            }
            let next = values(condition)?;
            all = match all.null_count() + next.null_count() {
                0 => and(&all, &next)?,
                _ => and_kleene(&all, &next)?,
            };
        }
        Ok(ColumnarValue::Array(Arc::new(all)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        self.0.iter().collect()
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(Arc::new(AllOf(children)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
