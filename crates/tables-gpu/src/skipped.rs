//! Chunks of which no row counts, by the smallest and the largest numbers of their columns.

use std::collections::HashSet;
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, BooleanArray, UInt64Array};
use datafusion::arrow::datatypes::{DataType, SchemaRef};
use datafusion::common::Column as ColumnName;
use datafusion::common::pruning::PruningStatistics;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::conjunction;
use datafusion::physical_expr::expressions::{CastExpr, Column, TryCastExpr};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::scalar::ScalarValue;

use crate::column::Chunk;
use crate::columns::Resident;
use crate::fragment::{Fragment, Rows};
use crate::packed::{array_of, is_text};

/// For each source of a fragment and each file, whether rows of each chunk may count.
#[derive(Debug, Default)]
pub(crate) struct Counting(Vec<Vec<Vec<bool>>>);

impl Counting {
    /// Compares the conditions of a fragment with the numbers of the chunks.
    pub(crate) fn new(fragment: &Fragment, resident: &[Resident]) -> Counting {
        let mut counting = Counting(vec![Vec::new(); resident.len()]);
        counting.add(&fragment.rows, resident);
        counting
    }

    fn add(&mut self, rows: &Rows, resident: &[Resident]) {
        // Without conditions, or if they cannot be compared, all may count.
        let known = of_rows(rows, &resident[rows.source]);
        self.0[rows.source] = known.unwrap_or_default();
        for join in &rows.joins {
            self.add(&join.rows, resident);
        }
    }

    /// Returns the numbers of rows of the chunks of a source, file by file, with 0 for chunks of which none counts.
    pub(crate) fn rows(&self, source: usize, mut chunks: Vec<Vec<u32>>) -> Vec<Vec<u32>> {
        let known = self.0.get(source).map_or(&[][..], Vec::as_slice);
        for (of_file, may_count) in chunks.iter_mut().zip(known) {
            for (rows, may_count) in of_file.iter_mut().zip(may_count) {
                *rows *= u32::from(*may_count);
            }
        }
        chunks
    }
}

/// Returns whether rows of each chunk of each file may count; `None` if conditions do not tell.
fn of_rows(rows: &Rows, resident: &Resident) -> Option<Vec<Vec<bool>>> {
    if rows.origin.is_plan() {
        return None;
    }
    let schema = &rows.origin.schema();
    let is_usable = |expr: &&Arc<dyn PhysicalExpr>| {
        let mut columns = collect_columns(expr).into_iter();
        columns.all(|it| it.index() < rows.width()) && keeps_order(expr, schema)
    };
    let filters = rows.filters.iter().filter(is_usable);
    let filters = filters.map(|expr| named(expr, schema));
    let filters: Vec<_> = filters.collect::<Result<_>>().ok()?;
    let predicate = PruningPredicateBuilder::new()
        .with_file_schema(Arc::clone(schema))
        .try_build(conjunction(filters))
        .ok()?;
    if predicate.always_true() {
        return None;
    }
    let of_files = resident.files.iter().map(|columns| {
        let count = columns.values().next().map_or(0, |it| it.chunks.len());
        predicate.prune(&Numbers {
            schema,
            chunks: |column| columns.get(&column).map(|it| it.chunks.as_slice()),
            rows: columns.values().next().map_or(&[], |it| &it.chunks),
            count,
        })
    });
    of_files.collect::<Result<_>>().ok()
}

/// Returns whether all casts of an expression keep the order of values, as DataFusion takes for granted: the bounds of
/// a cast column are the casts of its bounds. -1 and 1 are both true, and 0 is false.
fn keeps_order(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> bool {
    let is_number = |data_type: &DataType| {
        data_type.is_integer() || matches!(data_type, DataType::Decimal128(..))
    };
    let keeps = |node: &Arc<dyn PhysicalExpr>| {
        let Some(cast) = node.downcast_ref::<CastExpr>() else {
            return !node.is::<TryCastExpr>();
        };
        let from = cast.expr().data_type(schema);
        from.is_ok_and(|from| match (&from, cast.cast_type()) {
            (DataType::Date32, DataType::Timestamp(_, None)) => true,
            (from, to) => from == to || is_number(from) && is_number(to),
        })
    };
    let mut all_keep = true;
    let _ = expr.apply(|node| {
        all_keep &= keeps(node);
        Ok(TreeNodeRecursion::Continue)
    });
    all_keep
}

/// Returns an expression whose columns have the names of the table.
fn named(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<Arc<dyn PhysicalExpr>> {
    let named = Arc::clone(expr).transform_up(|node| {
        Ok(match node.downcast_ref::<Column>() {
            Some(column) => {
                let name = schema.field(column.index()).name();
                Transformed::yes(Arc::new(Column::new(name, column.index())) as _)
            }
            None => Transformed::no(node),
        })
    });
    named.data()
}

/// What is known of the chunks of a file.
struct Numbers<'a, F: Fn(usize) -> Option<&'a [Chunk]>> {
    schema: &'a SchemaRef,
    /// Returns the chunks of a column.
    chunks: F,
    /// The chunks of any column.
    rows: &'a [Chunk],
    count: usize,
}

impl<'a, F: Fn(usize) -> Option<&'a [Chunk]>> Numbers<'a, F> {
    fn chunks(&self, column: &ColumnName) -> Option<(&'a [Chunk], usize)> {
        let index = self.schema.index_of(&column.name).ok()?;
        Some(((self.chunks)(index)?, index))
    }

    fn bounds(&self, column: &ColumnName, of: impl Fn((i64, i64)) -> i64) -> Option<ArrayRef> {
        let (chunks, index) = self.chunks(column)?;
        let data_type = self.schema.field(index).data_type();
        if is_text(data_type) {
            return None;
        }
        let bounds = chunks.iter().map(|it| it.range.map(&of));
        array_of(bounds.collect(), data_type).ok()
    }
}

impl<'a, F: Fn(usize) -> Option<&'a [Chunk]>> PruningStatistics for Numbers<'a, F> {
    fn min_values(&self, column: &ColumnName) -> Option<ArrayRef> {
        self.bounds(column, |(min, _)| min)
    }

    fn max_values(&self, column: &ColumnName) -> Option<ArrayRef> {
        self.bounds(column, |(_, max)| max)
    }

    fn num_containers(&self) -> usize {
        self.count
    }

    fn null_counts(&self, column: &ColumnName) -> Option<ArrayRef> {
        let (chunks, _) = self.chunks(column)?;
        let counts = chunks.iter().map(|it| match it.has_nulls() {
            false => Some(0),
            true => it.range.is_none().then(|| u64::from(it.rows)),
        });
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn row_counts(&self) -> Option<ArrayRef> {
        let counts = self.rows.iter().map(|it| Some(u64::from(it.rows)));
        Some(Arc::new(counts.collect::<UInt64Array>()))
    }

    fn contained(&self, _: &ColumnName, _: &HashSet<ScalarValue>) -> Option<BooleanArray> {
        None
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{Field, Schema, TimeUnit};
    use datafusion::physical_expr::expressions::{cast, col};

    use super::*;

    #[test]
    fn casts_that_keep_the_order_are_told() {
        let types = [
            ("number", DataType::Int32),
            ("day", DataType::Date32),
            ("moment", DataType::Timestamp(TimeUnit::Microsecond, None)),
        ];
        let fields = types.map(|(name, data_type)| Field::new(name, data_type, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        for (column, to, keeps) in [
            ("number", DataType::Decimal128(20, 2), true),
            ("number", DataType::Int64, true),
            ("number", DataType::Boolean, false),
            ("number", DataType::Utf8, false),
            ("day", seconds, true),
            ("moment", DataType::Time64(TimeUnit::Microsecond), false),
            ("moment", DataType::Date32, false),
        ] {
            let column_expr = col(column, &schema).expect("a column");
            let expr = cast(column_expr, &schema, to.clone()).expect("a cast");
            assert_eq!(keeps_order(&expr, &schema), keeps, "{column} as {to}");
        }
    }
}
