//! Tables of the server whose rows are computed when they are read.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::arrow::array::{
    ArrayRef, BooleanArray, Int32Array, RecordBatch, RecordBatchOptions, StringArray,
};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::catalog::{MemTable, Session, TableProvider};
use datafusion::config::ConfigOptions;
use datafusion::datasource::TableType;
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Expr, ScalarFunctionArgs};
use datafusion::scalar::ScalarValue;
use futures_util::future::BoxFuture;

use crate::boxed;

/// How a column is computed from the source object of a row.
#[derive(Debug)]
pub(crate) enum Cell<R: 'static> {
    Text(fn(&R) -> Option<String>),
    Number(fn(&R) -> Option<i32>),
    Truth(fn(&R) -> bool),
    /// The same text in all rows.
    Same(&'static str),
    /// NULL as a text, in all rows.
    NoText,
    /// NULL as a number, in all rows.
    NoNumber,
}

/// The columns of a table, by name.
pub(crate) type Columns<R> = [(&'static str, Cell<R>)];

impl<R> Cell<R> {
    fn data_type(&self) -> DataType {
        match self {
            Cell::Text(_) | Cell::Same(_) | Cell::NoText => DataType::Utf8,
            Cell::Number(_) | Cell::NoNumber => DataType::Int32,
            Cell::Truth(_) => DataType::Boolean,
        }
    }

    fn values(&self, rows: &[R]) -> ArrayRef {
        let count = rows.len();
        match self {
            Cell::Text(value) => Arc::new(rows.iter().map(value).collect::<StringArray>()),
            Cell::Number(value) => Arc::new(rows.iter().map(value).collect::<Int32Array>()),
            Cell::Truth(value) => {
                let values = rows.iter().map(|row| Some(value(row)));
                Arc::new(values.collect::<BooleanArray>())
            }
            Cell::Same(text) => Arc::new(StringArray::from(vec![*text; count])),
            Cell::NoText => Arc::new(StringArray::new_null(count)),
            Cell::NoNumber => Arc::new(Int32Array::new_null(count)),
        }
    }
}

fn schema<R>(columns: &Columns<R>) -> SchemaRef {
    let fields = columns
        .iter()
        .map(|(name, cell)| Field::new(*name, cell.data_type(), true));
    Arc::new(Schema::new(fields.collect::<Vec<_>>()))
}

fn batch<R>(columns: &Columns<R>, rows: &[R]) -> Result<RecordBatch> {
    let arrays = columns.iter().map(|(_, cell)| cell.values(rows)).collect();
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(
        schema(columns),
        arrays,
        &options,
    )?)
}

/// Finds the source objects of a table's rows.
pub(crate) trait Find: Debug + Send + Sync {
    /// The source object of a row.
    type Row: Debug + Send + Sync + 'static;

    /// Returns the source object of each row.
    fn rows<'all>(&'all self, state: &'all dyn Session) -> Rows<'all, Self::Row>;
}

/// Future of the source objects of rows.
pub(crate) type Rows<'all, R> = BoxFuture<'all, Result<Vec<R>>>;

/// A table whose rows are computed.
#[derive(Debug)]
pub(crate) struct Computed<F: Find> {
    columns: &'static Columns<F::Row>,
    schema: SchemaRef,
    find: F,
}

impl<F: Find> Computed<F> {
    /// Returns a view of the system.
    pub(crate) fn new(columns: &'static Columns<F::Row>, find: F) -> Computed<F> {
        Computed {
            columns,
            schema: schema(columns),
            find,
        }
    }
}

impl<F: Find + 'static> Computed<F> {
    fn scanned<'all>(
        &'all self,
        state: &'all dyn Session,
        projection: Option<&'all Vec<usize>>,
        filters: &'all [Expr],
        limit: Option<usize>,
    ) -> boxed::Scan<'all> {
        Box::pin(async move {
            let rows = self.find.rows(state).await?;
            let batch = batch(self.columns, &rows)?;
            let table = MemTable::try_new(self.schema(), vec![vec![batch]])?;
            table.scan(state, projection, filters, limit).await
        })
    }
}

impl<F: Find + 'static> TableProvider for Computed<F> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::View
    }

    boxed::scan!(scanned);
}

/// Returns a table without rows.
pub(crate) fn empty(fields: Vec<Field>) -> Result<Arc<dyn TableProvider>> {
    let schema = Arc::new(Schema::new(fields));
    Ok(Arc::new(MemTable::try_new(schema, vec![Vec::new()])?))
}

/// Returns a table without rows whose columns are texts.
pub(crate) fn empty_texts(names: &[&str]) -> Result<Arc<dyn TableProvider>> {
    let fields = names
        .iter()
        .map(|name| Field::new(*name, DataType::Utf8, true));
    empty(fields.collect())
}

/// Returns the text that a function of the session returns; `None` if it fails.
pub(crate) fn called(state: &dyn Session, name: &str, arguments: &[&str]) -> Option<String> {
    let function = state.scalar_functions().get(name)?;
    let values = arguments
        .iter()
        .map(|text| ColumnarValue::Scalar(ScalarValue::from(*text)));
    let fields = arguments
        .iter()
        .map(|_| Arc::new(Field::new("", DataType::Utf8, true)));
    let call = ScalarFunctionArgs {
        args: values.collect(),
        arg_fields: fields.collect(),
        number_rows: 1,
        return_field: Arc::new(Field::new(name, DataType::Utf8, true)),
        config_options: Arc::new(ConfigOptions::default()),
    };
    let value = match function.invoke_with_args(call).ok()? {
        ColumnarValue::Scalar(value) => value,
        ColumnarValue::Array(values) => ScalarValue::try_from_array(&values, 0).ok()?,
    };
    value.try_as_str().flatten().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_computed_from_rows() {
        let columns: &Columns<i32> = &[
            (
                "half",
                Cell::Number(|row| (row % 2 == 0).then_some(row / 2)),
            ),
            ("words", Cell::Text(|row| Some(format!("row {row}")))),
            ("is_odd", Cell::Truth(|row| row % 2 == 1)),
            ("same", Cell::Same("x")),
            ("nothing", Cell::NoNumber),
        ];
        let batch = batch(columns, &[4, 5]).expect("rows");
        let texts = |row: usize| -> Vec<String> {
            let value = |column: &ArrayRef| {
                datafusion::arrow::util::display::array_value_to_string(column, row)
            };
            let values = batch.columns().iter().map(value);
            values.map(|text| text.expect("a text")).collect()
        };
        assert_eq!(texts(0), ["2", "row 4", "false", "x", ""]);
        assert_eq!(texts(1), ["", "row 5", "true", "x", ""]);
    }
}
