//! Columns that are computed while a file is read: what a query computes of a column that a device cannot keep, such as
//! whether a comment is `LIKE` a pattern.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result as DataFusionResult;
use datafusion::logical_expr::Volatility;
use datafusion::physical_expr::expressions::{Column, NotExpr};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::fragment::{Exprs, Fragment, Rows, column_of};
use crate::halves::{Half, Halves, is_of_kernels};
use crate::join::Join;
use crate::kept::{Kept, Place};
use crate::packed::{is_packable, is_text};
use crate::pattern;
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
    /// Returns the fragment that does not read a column: each expression over it alone is a computed column, and of a
    /// decimal both halves are.
    ///
    /// # Errors
    /// Why the column cannot be on the device, if the fragment needs the column itself.
    pub(crate) fn without_column(&self, refused: &Refused) -> Result<Fragment> {
        let source = &self.sources[refused.source];
        let column = source.expr(refused.column);
        let data_type = column.data_type(&source.schema()).map_err(Reason::of)?;
        let fragment = match data_type {
            DataType::Decimal128(..) => self.with_halves(refused, column)?,
            _ => self.with_computed(refused, column)?,
        };
        let columns = &fragment.sources[refused.source].columns;
        match columns.contains(&refused.column) {
            true => Err(refused.reason.clone()),
            false => Ok(fragment),
        }
    }

    /// Returns the fragment that reads both halves of a decimal instead of the column that is refused.
    fn with_halves(&self, refused: &Refused, decimal: Arc<dyn PhysicalExpr>) -> Result<Fragment> {
        let mut fragment = self.clone();
        let halves = move |expr: &Arc<dyn PhysicalExpr>, column, schema: &SchemaRef| {
            if column_of(expr) == Some(column) {
                return Ok(Some(Instead::Halves(Half::both(&decimal))));
            }
            match is_of_kernels(expr) {
                true => Ok(None),
                false => computed_of(expr, column, schema),
            }
        };
        let (rows, over) = fragment.parts_mut();
        rows.replace(refused, over, &halves)?;
        fragment.number();
        Ok(fragment)
    }

    /// Returns the fragment with computed columns instead of expressions over the column that is refused, or with other
    /// forms of its texts.
    fn with_computed(&self, refused: &Refused, text: Arc<dyn PhysicalExpr>) -> Result<Fragment> {
        let mut fragment = self.clone();
        let (rows, over) = fragment.parts_mut();
        rows.replace(refused, over, &computed_of)?;
        let determined = fragment.determined();
        let is_refused = |source, column| (source, column) == (refused.source, refused.column);
        fragment.use_rows(&determined, &is_refused)?;
        let columns = &fragment.sources[refused.source].columns;
        if columns.contains(&refused.column) && Kept::place_of(&text).is_none() {
            let numbered: Arc<dyn PhysicalExpr> = Arc::new(Kept::new(text, Place::Dictionary));
            let number = move |expr: &Arc<dyn PhysicalExpr>, column, schema: &SchemaRef| {
                let is_text = is_text(&expr.data_type(schema)?);
                let is_it = is_text && column_of(expr) == Some(column);
                Ok(is_it.then(|| Instead::Computed(Arc::clone(&numbered))))
            };
            let (rows, over) = fragment.parts_mut();
            rows.replace(refused, over, &number)?;
            fragment.number();
        }
        Ok(fragment)
    }

    /// Returns the fragment with the texts of rows for keys that others determine, if several are columns of the same
    /// table: the number of its row, which the table of a join has, tells all of them.
    ///
    /// # Errors
    /// If a type is not known.
    pub(crate) fn with_shared_rows(&self) -> Result<Fragment> {
        let mut fragment = self.clone();
        let determined = self.determined();
        let mut texts = Vec::new();
        for (key, _) in self.keys.iter().zip(&determined).filter(|(_, it)| **it) {
            texts.extend(self.rows.text_of_join(key));
        }
        let is_shared = |source, column| {
            let of_source = texts.iter().filter(|(of, _)| *of == source);
            texts.contains(&(source, column)) && of_source.count() > 1
        };
        fragment.use_rows(&determined, &is_shared)?;
        Ok(fragment)
    }

    /// Reads the texts of rows for those determined keys that are wanted. Numbers the sources again.
    fn use_rows(
        &mut self,
        determined: &[bool],
        is_wanted: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        for index in (0..self.keys.len()).filter(|index| determined[*index]) {
            let Some(column) = column_of(&self.keys[index]) else {
                continue;
            };
            let (rows, over) = self.parts_mut();
            let is_alone = uses(over.iter().map(|it| &**it), column) == 1;
            // The keys are the first.
            if let Some(key) = over.into_iter().nth(index).filter(|_| is_alone) {
                rows.use_rows(key, is_wanted)?;
            }
        }
        self.number();
        Ok(())
    }
}

impl Rows {
    /// Returns the source and the column of a text of a join.
    fn text_of_join(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<(usize, usize)> {
        let column = column_of(expr)?;
        self.joins.iter().find_map(|join| {
            let of_row = join.rows.columns.get(column.checked_sub(join.first)?)?;
            join.rows.text_of_join(of_row).or_else(|| {
                let column = column_of(of_row)?;
                let is_own = column < join.rows.width();
                let is_text = is_own && is_text(join.rows.schema.field(column).data_type());
                is_text.then_some((join.rows.source, column))
            })
        })
    }

    /// Makes columns of what is computed of one that a device cannot keep, as `replacement` tells, in all expressions
    /// over rows of its source. `over` are those over these rows.
    fn replace(
        &mut self,
        refused: &Refused,
        over: Vec<&mut Arc<dyn PhysicalExpr>>,
        replacement: &Replacement,
    ) -> Result<()> {
        if self.source != refused.source {
            return self.joins.iter_mut().try_for_each(|join| {
                let differ = join.differ.iter_mut().map(|(_, other)| other);
                let over = join.keys_of_rows.iter_mut().chain(differ);
                join.rows.replace(refused, over.collect(), replacement)
            });
        }
        let mut schema = Arc::clone(&self.schema);
        let mut computed = std::mem::take(&mut self.computed);
        let keys = self.joins.iter_mut().flat_map(|join| {
            let differ = join.differ.iter_mut().map(|(own, _)| own);
            let own = join.keys.iter_mut().chain(differ);
            own.chain(&mut join.condition)
        });
        let own = self.filters.iter_mut().chain(&mut self.columns);
        for expr in own.chain(keys).chain(over) {
            let replaced = Arc::clone(expr).transform_down(|node| {
                let Some(instead) = replacement(&node, refused.column, &schema)? else {
                    return Ok(Transformed::no(node));
                };
                let mut column = |expr| computed_column(expr, (&mut schema, &mut computed));
                let instead: Arc<dyn PhysicalExpr> = match instead {
                    Instead::Computed(expr) => column(expr)?,
                    Instead::Opposite(expr) => Arc::new(NotExpr::new(column(expr)?)),
                    Instead::Halves([upper, lower]) => {
                        let data_type = node.data_type(&self.schema)?;
                        Halves::combined([column(upper)?, column(lower)?], data_type)
                    }
                };
                Ok(Transformed::new(instead, true, TreeNodeRecursion::Jump))
            });
            *expr = replaced.data().map_err(Reason::of)?;
        }
        (self.schema, self.computed) = (schema, computed);
        Ok(())
    }

    /// Reads the text of its row for a key that other keys determine, if the key is a text column of files that nothing
    /// else uses and `is_wanted`, by its source and index. Groups are not numbered by such a key, so one row of each is
    /// enough.
    fn use_rows(
        &mut self,
        key: &mut Arc<dyn PhysicalExpr>,
        is_wanted: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        let Some(index) = column_of(key) else {
            return Ok(());
        };
        let own = self.joins.iter().flat_map(Join::own);
        if uses(self.filters.iter().chain(own), index) > 0 {
            return Ok(());
        }
        for join in &mut self.joins {
            let place = index.checked_sub(join.first);
            let mut of_rows = std::mem::take(&mut join.rows.columns);
            let inner = place.and_then(|it| column_of(of_rows.get(it)?));
            let is_alone = inner.is_some_and(|it| uses(of_rows.iter(), it) == 1);
            let of_row = place.and_then(|it| of_rows.get_mut(it));
            let used = of_row.map(|it| match is_alone {
                true => join.rows.use_rows(it, is_wanted),
                false => Ok(()),
            });
            join.rows.columns = of_rows;
            if let Some(used) = used {
                return used;
            }
        }
        // A computed column is not computed again.
        let is_text = index < self.width() && is_text(self.schema.field(index).data_type());
        if is_text && !self.origin.is_plan() && is_wanted(self.source, index) {
            let of_row = Arc::new(Kept::new(Arc::clone(key), Place::Host));
            let with = (&mut self.schema, &mut self.computed);
            *key = computed_column(of_row, with).map_err(Reason::of)?;
        }
        Ok(())
    }
}

/// What is computed as columns in place of an expression.
enum Instead {
    Computed(Arc<dyn PhysicalExpr>),
    /// The opposite of the expression.
    Opposite(Arc<dyn PhysicalExpr>),
    /// The halves of a decimal.
    Halves([Arc<dyn PhysicalExpr>; 2]),
}

/// Returns what is computed in place of an expression, if it is of the column of this index.
type Replacement =
    dyn Fn(&Arc<dyn PhysicalExpr>, usize, &SchemaRef) -> DataFusionResult<Option<Instead>>;

/// Returns an expression that computes something of the column alone.
fn computed_of(
    expr: &Arc<dyn PhysicalExpr>,
    column: usize,
    schema: &SchemaRef,
) -> DataFusionResult<Option<Instead>> {
    let is_packed = is_of(expr, column) && is_packable(&expr.data_type(schema)?);
    // Each of several searches is a column.
    if !is_packed || pattern::are_searches(expr) {
        return Ok(None);
    }
    Ok(Some(match pattern::opposite_search(expr) {
        Some(searched) => Instead::Opposite(searched),
        None => Instead::Computed(Arc::clone(expr)),
    }))
}

/// Returns how many expressions have a column.
fn uses<'e>(exprs: impl Iterator<Item = &'e Arc<dyn PhysicalExpr>>, column: usize) -> usize {
    let has = |expr: &&Arc<dyn PhysicalExpr>| {
        let columns = collect_columns(expr);
        columns.iter().any(|it| it.index() == column)
    };
    exprs.filter(has).count()
}

/// Returns the column that an expression is computed as; adds it if there is none.
fn computed_column(
    expr: Arc<dyn PhysicalExpr>,
    (schema, computed): (&mut SchemaRef, &mut Exprs),
) -> DataFusionResult<Arc<dyn PhysicalExpr>> {
    let first = schema.fields().len() - computed.len();
    let known = computed.iter().position(|it| it == &expr);
    let index = known.unwrap_or(computed.len());
    let name = expr.to_string();
    if known.is_none() {
        let field = expr.return_field(schema)?;
        let field = Field::clone(&field).with_name(&name);
        let fields = schema.fields().iter().cloned();
        let fields: Vec<_> = fields.chain([Arc::new(field)]).collect();
        *schema = Arc::new(Schema::new(fields));
        computed.push(expr);
    }
    Ok(Arc::new(Column::new(&name, first + index)))
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
