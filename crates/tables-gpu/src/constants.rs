//! Scalar subqueries, whose values are constants once they have run.

use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::scalar::ScalarValue;

use crate::fragment::{Fragment, Rows};
use crate::reason::Reason;

/// Whether the expressions of a fragment have scalar subqueries; known after the first run. A clone, which may get
/// other expressions, does not know it.
#[derive(Debug, Default)]
pub(crate) struct HasSubqueries(OnceLock<bool>);

impl Clone for HasSubqueries {
    fn clone(&self) -> HasSubqueries {
        HasSubqueries::default()
    }
}

/// Returns the value of a scalar subquery.
///
/// # Errors
/// If it has not run.
pub(crate) fn value(subquery: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    let no_rows = RecordBatch::new_empty(Arc::new(Schema::empty()));
    match subquery.evaluate(&no_rows)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
    }
}

/// Returns NULL of the type of a scalar subquery, with which a plan is checked before it has run.
pub(crate) fn null_of(subquery: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    ScalarValue::try_new_null(&subquery.data_type(&Schema::empty())?)
}

impl Fragment {
    /// Returns the fragment with constants instead of scalar subqueries; `None` if it has none.
    ///
    /// # Errors
    /// If `value` fails.
    pub(crate) fn with_constants(
        &self,
        value: fn(&Arc<dyn PhysicalExpr>) -> Result<ScalarValue>,
    ) -> std::result::Result<Option<Fragment>, Reason> {
        if self.has_subqueries.0.get() == Some(&false) {
            return Ok(None);
        }
        let mut fragment = self.clone();
        let (rows, mut all) = fragment.parts_mut();
        add_all(rows, &mut all);
        let mut has_some = false;
        for expr in all {
            let replaced = Arc::clone(expr).transform_up(|node| {
                Ok(match node.is::<ScalarSubqueryExpr>() {
                    true => Transformed::yes(Arc::new(Literal::new(value(&node)?)) as _),
                    false => Transformed::no(node),
                })
            });
            let replaced = replaced.map_err(Reason::of)?;
            has_some |= replaced.transformed;
            *expr = replaced.data;
        }
        let _ = self.has_subqueries.0.set(has_some);
        Ok(has_some.then(|| {
            fragment.number();
            fragment
        }))
    }
}

/// Adds all expressions of rows and their joins.
fn add_all<'a>(rows: &'a mut Rows, all: &mut Vec<&'a mut Arc<dyn PhysicalExpr>>) {
    all.extend(rows.filters.iter_mut().chain(&mut rows.columns));
    for join in &mut rows.joins {
        let differ = join.differ.iter_mut();
        let differ = differ.flat_map(|(own, other)| [own, other]);
        let keys = join.keys.iter_mut().chain(&mut join.keys_of_rows);
        all.extend(keys.chain(differ).chain(&mut join.condition));
        add_all(&mut join.rows, all);
    }
}
