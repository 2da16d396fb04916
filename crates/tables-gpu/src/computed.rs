//! Columns that are computed while a file is read: what a query computes of a column that a device cannot keep, such as
//! whether a comment is `LIKE` a pattern.

use std::sync::Arc;

use datafusion::arrow::datatypes::{Field, Schema};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::fragment::{Fragment, Rows};
use crate::packed::is_packable;
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

/// A column that cannot be on a device.
#[derive(Debug)]
pub(crate) struct Refused {
    /// Index of the source.
    pub(crate) source: usize,
    /// Index of the column in it.
    pub(crate) column: usize,
    pub(crate) reason: Reason,
}

impl Fragment {
    /// Returns the fragment that does not read a column: each expression over it alone is a computed column.
    ///
    /// # Errors
    /// Why the column cannot be on the device, if the fragment needs the column itself.
    pub(crate) fn without_column(&self, refused: &Refused) -> Result<Fragment> {
        let mut fragment = self.clone();
        let (rows, over) = fragment.parts_mut();
        rows.compute(refused, over)?;
        fragment.number();
        let source = &fragment.sources[refused.source];
        match source.columns.contains(&refused.column) {
            true => Err(refused.reason.clone()),
            false => Ok(fragment),
        }
    }
}

impl Rows {
    /// Makes columns of what is computed of one that a device cannot keep, in all expressions over rows of its source.
    /// `over` are those over these rows.
    fn compute(&mut self, refused: &Refused, over: Vec<&mut Arc<dyn PhysicalExpr>>) -> Result<()> {
        if self.source != refused.source {
            return self.joins.iter_mut().try_for_each(|join| {
                let differ = join.differ.iter_mut().map(|(_, other)| other);
                let over = join.keys_of_rows.iter_mut().chain(differ);
                join.rows.compute(refused, over.collect())
            });
        }
        let mut schema = Arc::clone(&self.schema);
        let mut computed = std::mem::take(&mut self.computed);
        let keys = self.joins.iter_mut().flat_map(|join| {
            let differ = join.differ.iter_mut().map(|(own, _)| own);
            join.keys.iter_mut().chain(differ)
        });
        let own = self.filters.iter_mut().chain(&mut self.columns);
        for expr in own.chain(keys).chain(over) {
            let replaced = Arc::clone(expr).transform_down(|node| {
                if !is_of(&node, refused.column) || !is_packable(&node.data_type(&schema)?) {
                    return Ok(Transformed::no(node));
                }
                let first = schema.fields().len() - computed.len();
                let known = computed.iter().position(|it| it == &node);
                let index = known.unwrap_or(computed.len());
                if known.is_none() {
                    let field = node.return_field(&schema)?;
                    let field = Field::clone(&field).with_name(node.to_string());
                    let fields = schema.fields().iter().cloned();
                    schema = Arc::new(Schema::new(
                        fields.chain([Arc::new(field)]).collect::<Vec<_>>(),
                    ));
                    computed.push(Arc::clone(&node));
                }
                let column = Column::new(&node.to_string(), first + index);
                Ok(Transformed::new(
                    Arc::new(column) as _,
                    true,
                    TreeNodeRecursion::Jump,
                ))
            });
            *expr = replaced.data().map_err(Reason::of)?;
        }
        (self.schema, self.computed) = (schema, computed);
        Ok(())
    }
}

/// Returns whether an expression computes something of this column alone.
fn is_of(expr: &Arc<dyn PhysicalExpr>, column: usize) -> bool {
    let columns = collect_columns(expr);
    let is_alone = columns.iter().map(Column::index).eq([column]);
    is_alone && !expr.is::<Column>() && is_immutable(expr)
}

/// Returns whether an expression has the same value for the same row in every session.
fn is_immutable(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let may_vary = |node: &Arc<dyn PhysicalExpr>| {
        let call = node.downcast_ref::<ScalarFunctionExpr>();
        let volatility = call.map(|it| it.fun().signature().volatility);
        Ok(volatility.is_some_and(|it| it != Volatility::Immutable))
    };
    !is_volatile(expr) && expr.exists(may_vary).is_ok_and(|it| !it)
}
