//! Scalar subqueries, whose values are constants once they have run.

use std::sync::{Arc, OnceLock};

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::scalar::ScalarValue;
use parking_lot::Mutex;

use crate::fragment::{Exprs, Fragment, Rows};
use crate::reason::Reason;

/// Maximum bytes of the values that a fragment remembers.
const VALUES_BYTES_MAX: usize = 1 << 10;

/// The scalar subqueries in the expressions of a fragment. A clone, which may get other expressions, does not know
/// them.
#[derive(Debug, Default)]
pub(crate) struct Subqueries {
    /// Known after the first use.
    all: OnceLock<Exprs>,
    /// Their last values, and the fragment with these. Its kernels are kept.
    last: Mutex<Option<(Vec<ScalarValue>, Arc<Fragment>)>>,
}

impl Clone for Subqueries {
    fn clone(&self) -> Subqueries {
        Subqueries::default()
    }
}

/// Returns whether an expression has the same value for all rows.
pub(crate) fn is_constant(expr: &Arc<dyn PhysicalExpr>) -> bool {
    collect_columns(expr).is_empty() && !is_volatile(expr)
}

/// Returns the value of an expression without columns.
///
/// # Errors
/// If it fails, or is of a scalar subquery that has not run.
pub(crate) fn value(expr: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    // Without a row, CASE tests no condition.
    let options = RecordBatchOptions::new().with_row_count(Some(1));
    let schema = Arc::new(Schema::empty());
    let row = RecordBatch::try_new_with_options(schema, Vec::new(), &options)?;
    match expr.evaluate(&row)? {
        ColumnarValue::Scalar(value) => Ok(value),
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0),
    }
}

/// Returns NULL of the type of a scalar subquery, with which a plan is checked before it has run.
pub(crate) fn null_of(subquery: &Arc<dyn PhysicalExpr>) -> Result<ScalarValue> {
    ScalarValue::try_new_null(&subquery.data_type(&Schema::empty())?)
}

impl Fragment {
    /// Returns the fragment with constants instead of scalar subqueries, the same one for the same values; `None` if it
    /// has none.
    ///
    /// # Errors
    /// If `value` fails.
    pub(crate) fn with_constants(
        &self,
        value: fn(&Arc<dyn PhysicalExpr>) -> Result<ScalarValue>,
    ) -> std::result::Result<Option<Arc<Fragment>>, Reason> {
        let all = self.subqueries.all.get_or_init(|| self.scalar_subqueries());
        if all.is_empty() {
            return Ok(None);
        }
        let values: Result<Vec<_>> = all.iter().map(value).collect();
        let values = values.map_err(Reason::of)?;
        let mut last = self.subqueries.last.lock();
        if let Some((of, fragment)) = &*last
            && *of == values
        {
            return Ok(Some(Arc::clone(fragment)));
        }
        let mut fragment = self.clone();
        fragment.replace(value).map_err(Reason::of)?;
        fragment.number();
        let fragment = Arc::new(fragment);
        let bytes: usize = values.iter().map(ScalarValue::size).sum();
        if bytes > VALUES_BYTES_MAX {
            return Ok(Some(fragment));
        }
        *last = Some((values, Arc::clone(&fragment)));
        Ok(Some(fragment))
    }

    fn scalar_subqueries(&self) -> Exprs {
        let (mut fragment, mut found) = (self.clone(), Exprs::new());
        for expr in fragment.exprs_mut() {
            let _ = expr.apply(|node| {
                if node.is::<ScalarSubqueryExpr>() {
                    found.push(Arc::clone(node));
                }
                Ok(TreeNodeRecursion::Continue)
            });
        }
        found
    }

    fn replace(&mut self, value: fn(&Arc<dyn PhysicalExpr>) -> Result<ScalarValue>) -> Result<()> {
        for expr in self.exprs_mut() {
            let replaced = Arc::clone(expr).transform_up(|node| {
                Ok(match node.is::<ScalarSubqueryExpr>() {
                    true => Transformed::yes(Arc::new(Literal::new(value(&node)?)) as _),
                    false => Transformed::no(node),
                })
            });
            *expr = replaced.data()?;
        }
        Ok(())
    }

    /// Returns all expressions.
    fn exprs_mut(&mut self) -> Vec<&mut Arc<dyn PhysicalExpr>> {
        let (rows, mut all) = self.parts_mut();
        add_all(rows, &mut all);
        all
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
