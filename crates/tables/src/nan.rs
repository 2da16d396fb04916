//! NaN in Parquet files.
//!
//! Statistics of Parquet leave out NaN, which is greater than all numbers. DataFusion 55 takes them for the bounds of
//! all values. For `x > 17.5` it skips a row group whose largest number is 17.5, and loses the NaN in it. It also
//! returns 17.5 for `max(x)`. If all numbers of a file are 3, it returns 3 for the NaN of the file.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema, SchemaRef};
use datafusion::common::Statistics;
use datafusion::common::config::ConfigOptions;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, FileScanConfigBuilder, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CastExpr, Column, InListExpr, IsNotNullExpr, IsNullExpr, Literal,
};
use datafusion::physical_expr::utils::{collect_columns, conjunction, split_conjunction};
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::scalar::ScalarValue;

/// The rules.
#[derive(Debug)]
pub(crate) enum NanRule {
    /// Removes the maxima of floats from the statistics of files. It runs before all rules that use statistics.
    Statistics,
    /// Keeps row groups and pages in which NaN may meet the filter of a scan. It runs after the rules that move
    /// filters, and after the one that looks for filters of joins.
    Filters,
}

impl NanRule {
    /// Returns a plan whose scans of Parquet files treat NaN correctly.
    ///
    /// # Errors
    /// If DataFusion cannot rebuild the plan.
    pub(crate) fn applied(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        plan.transform_up(|node| {
            let changed = match self {
                NanRule::Statistics => without_largest(&node),
                NanRule::Filters => with_filter(&node),
            };
            Ok(match changed {
                Some(scan) => Transformed::yes(scan),
                None => Transformed::no(node),
            })
        })
        .data()
    }
}

impl PhysicalOptimizerRule for NanRule {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        _config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.applied(plan)
    }

    fn name(&self) -> &str {
        match self {
            NanRule::Statistics => "nan_statistics",
            NanRule::Filters => "nan_filters",
        }
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Returns the scan of Parquet files that a plan is; `None` if it is another plan or its table has no floats.
fn scan_of_floats(plan: &Arc<dyn ExecutionPlan>) -> Option<(&FileScanConfig, &ParquetSource)> {
    let scan = plan.downcast_ref::<DataSourceExec>()?;
    let scan = scan.data_source().downcast_ref::<FileScanConfig>()?;
    let source = scan.file_source.downcast_ref::<ParquetSource>()?;
    let schema = scan.file_source.table_schema().table_schema();
    let mut fields = schema.fields().iter();
    let has_floats = fields.any(|field| is_float(field.data_type()));
    has_floats.then_some((scan, source))
}

fn is_float(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(_, values) => values.is_floating(),
        other => other.is_floating(),
    }
}

/// Returns a scan that does not know the largest floats; `None` for other plans.
fn without_largest(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let (scan, _) = scan_of_floats(plan)?;
    let schema = scan.file_source.table_schema().table_schema();
    let mut groups = scan.file_groups.clone();
    for group in &mut groups {
        if let Some(statistics) = group.statistics_mut() {
            forget_largest(statistics, schema);
        }
        for index in 0..group.len() {
            if let Some(statistics) = &mut group[index].statistics {
                forget_largest(Arc::make_mut(statistics), schema);
            }
        }
    }
    let mut statistics = scan.statistics();
    forget_largest(&mut statistics, schema);
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_file_groups(groups)
        .with_statistics(statistics)
        .build();
    Some(DataSourceExec::from_data_source(scan))
}

fn forget_largest(statistics: &mut Statistics, schema: &Schema) {
    let columns = statistics.column_statistics.iter_mut();
    for (column, field) in columns.zip(schema.fields().iter()) {
        if is_float(field.data_type()) {
            column.max_value = Precision::Absent;
        }
    }
}

/// Returns a scan whose filter treats NaN correctly; `None` if it has no filter, and for other plans.
fn with_filter(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let (scan, source) = scan_of_floats(plan)?;
    let schema = scan.file_source.table_schema().table_schema();
    let filter = scan.file_source.filter()?;
    // DataFusion skips pages by each part that reads one column.
    let parts = split_conjunction(&filter).into_iter();
    let parts = parts.map(|part| match reads_floats(part, schema) {
        true => OverFloats::of(part, schema),
        false => Arc::clone(part),
    });
    let source = source.with_predicate(conjunction(parts));
    let scan = FileScanConfigBuilder::from(scan.clone())
        .with_source(Arc::new(source))
        .build();
    Some(DataSourceExec::from_data_source(scan))
}

/// Returns whether an expression reads a column of floats, or one that the schema does not have.
fn reads_floats(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    collect_columns(expr).iter().any(|column| {
        let field = schema.field_with_name(column.name());
        field.map_or(true, |it| is_float(it.data_type()))
    })
}

/// A condition over floats. DataFusion skips row groups and pages by its snapshot, which is safe for NaN. DataFusion
/// skips nothing by an expression that it does not know. This also holds for negated conditions, which it uses to find
/// row groups whose rows all match.
#[derive(Debug)]
struct OverFloats {
    condition: Arc<dyn PhysicalExpr>,
    /// The columns of the table.
    schema: SchemaRef,
}

impl OverFloats {
    fn of(condition: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Arc<dyn PhysicalExpr> {
        Arc::new(OverFloats {
            condition: Arc::clone(condition),
            schema: Arc::clone(schema),
        })
    }
}

// A derived `eq` would move the condition (https://github.com/rust-lang/rust/issues/78808).
impl PartialEq for OverFloats {
    fn eq(&self, other: &OverFloats) -> bool {
        self.condition.eq(&other.condition) && self.schema == other.schema
    }
}

impl Eq for OverFloats {}

impl Hash for OverFloats {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.condition.hash(state);
    }
}

impl fmt::Display for OverFloats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.condition)
    }
}

impl PhysicalExpr for OverFloats {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.condition.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.condition.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.condition.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.condition]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        Ok(OverFloats::of(&children[0], &self.schema))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.condition.fmt_sql(f)
    }

    /// Returns an equivalent condition. Of its parts over floats, DataFusion knows only those that statistics may
    /// decide. Before, DataFusion has replaced a dynamic filter by its current condition.
    fn snapshot(&self) -> Result<Option<Arc<dyn PhysicalExpr>>> {
        let known = Arc::clone(&self.condition).transform_down(|node| {
            if is_logic(&node) || !reads_floats(&node, &self.schema) {
                return Ok(Transformed::no(node));
            }
            let unknown = OverFloats::of(&node, &self.schema);
            let known: Arc<dyn PhysicalExpr> = match holds_for_nan(&node) {
                true => Arc::new(BinaryExpr::new(node, Operator::And, unknown)),
                false => unknown,
            };
            Ok(Transformed::new(known, true, TreeNodeRecursion::Jump))
        });
        known.data().map(Some)
    }
}

fn is_logic(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let expr = expr.downcast_ref::<BinaryExpr>();
    expr.is_some_and(|it| matches!(it.op(), Operator::And | Operator::Or))
}

/// Returns whether statistics without NaN may decide a condition over floats: if it is false for NaN, or only depends
/// on the count of NULL.
fn holds_for_nan(condition: &Arc<dyn PhysicalExpr>) -> bool {
    if let Some(list) = condition.downcast_ref::<InListExpr>() {
        return !list.negated() && is_column(list.expr()) && list.list().iter().all(is_key);
    }
    let Some(comparison) = condition.downcast_ref::<BinaryExpr>() else {
        return condition.is::<IsNullExpr>() || condition.is::<IsNotNullExpr>();
    };
    let (left, right) = (comparison.left(), comparison.right());
    match comparison.op() {
        Operator::Lt | Operator::LtEq => is_column(left) && number(right).is_some(),
        Operator::Gt | Operator::GtEq => number(left).is_some() && is_column(right),
        Operator::Eq => is_column(left) && is_key(right) || is_key(left) && is_column(right),
        _ => false,
    }
}

/// Returns whether an expression is a column, or a column that is cast to floats.
fn is_column(expr: &Arc<dyn PhysicalExpr>) -> bool {
    match expr.downcast_ref::<CastExpr>() {
        Some(cast) => cast.cast_type().is_floating() && cast.expr().is::<Column>(),
        None => expr.is::<Column>(),
    }
}

/// Returns whether an expression is a number other than 0. 0 and -0 are equal, but Bloom filters distinguish them.
fn is_key(expr: &Arc<dyn PhysicalExpr>) -> bool {
    number(expr).is_some_and(|number| number != 0.0)
}

/// Returns the float that an expression is; `None` for NaN and other expressions.
fn number(expr: &Arc<dyn PhysicalExpr>) -> Option<f64> {
    let value = match expr.downcast_ref::<Literal>()?.value() {
        ScalarValue::Float32(value) => value.map(f64::from),
        ScalarValue::Float64(value) => *value,
        _ => None,
    };
    value.filter(|value| !value.is_nan())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Field;
    use datafusion::common::ColumnStatistics;
    use datafusion::common::pruning::PrunableStatistics;
    use datafusion::physical_expr::expressions::{
        DynamicFilterPhysicalExpr, binary, cast, col, in_list, lit, not,
    };
    use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;

    use super::*;

    /// Returns whether a file whose numbers are 1 to 17.5 is read for a condition.
    fn is_read(condition: Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> bool {
        let column = ColumnStatistics {
            min_value: Precision::Exact(ScalarValue::from(1.0)),
            max_value: Precision::Exact(ScalarValue::from(17.5)),
            ..ColumnStatistics::new_unknown()
        };
        let statistics = Statistics {
            column_statistics: vec![column],
            ..Statistics::new_unknown(schema)
        };
        let files = PrunableStatistics::new(vec![Arc::new(statistics)], Arc::clone(schema));
        let predicate = PruningPredicateBuilder::new()
            .with_file_schema(Arc::clone(schema))
            .build(condition);
        predicate.is_none_or(|it| it.prune(&files).expect("a file")[0])
    }

    #[test]
    fn files_are_read_for_nan_and_left_out_for_numbers() {
        let field = Field::new("x", DataType::Float64, true);
        let schema = Arc::new(Schema::new(vec![field]));
        let x = || col("x", &schema).expect("the column");
        let compared =
            |left, operator, right| binary(left, operator, right, &schema).expect("types");
        let than = |operator, value: f64| compared(x(), operator, lit(value));
        let is_in = |values: [f64; 2]| {
            in_list(x(), values.map(lit).to_vec(), &false, &schema).expect("a list")
        };
        let (less, greater) = (Operator::Lt, Operator::Gt);
        let (greatest, low) = (than(greater, 17.5), than(less, 1.0));
        let single = cast(x(), &schema, DataType::Float32).expect("a cast");
        assert!(!is_read(Arc::clone(&greatest), &schema));
        for (condition, expected) in [
            (Arc::clone(&greatest), true),
            (than(Operator::GtEq, 20.0), true),
            (compared(lit(20.0), less, x()), true),
            (not(than(less, 20.0)).expect("a truth"), true),
            (than(Operator::Eq, f64::NAN), true),
            (than(Operator::Eq, 0.0), true),
            (is_in([20.0, f64::NAN]), true),
            (
                compared(Arc::clone(&greatest), Operator::Or, Arc::clone(&low)),
                true,
            ),
            (compared(greatest, Operator::And, Arc::clone(&low)), false),
            (low, false),
            (than(Operator::LtEq, 0.0), false),
            (compared(lit(0.0), greater, x()), false),
            (compared(single, less, lit(0.0_f32)), false),
            (than(Operator::Eq, 20.0), false),
            (is_in([20.0, 30.0]), false),
        ] {
            let text = condition.to_string();
            let changing = DynamicFilterPhysicalExpr::new(vec![x()], lit(true));
            changing.update(Arc::clone(&condition)).expect("a filter");
            let changing: Arc<dyn PhysicalExpr> = Arc::new(changing);
            for condition in [condition, changing] {
                let condition = OverFloats::of(&condition, &schema);
                assert_eq!(is_read(condition, &schema), expected, "{text}");
            }
        }
    }
}
