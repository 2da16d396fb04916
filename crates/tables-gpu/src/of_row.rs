//! A column whose numbers are those of the rows, and whose texts are in host memory.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

/// The text of each row. Kernels read the number of the row; the text is looked up in host memory afterwards.
#[derive(Debug)]
pub(crate) struct TextOfRow(Arc<dyn PhysicalExpr>);

// A derived one does not compile: it would move the expression.
impl PartialEq for TextOfRow {
    fn eq(&self, other: &TextOfRow) -> bool {
        self.0.eq(&other.0)
    }
}

impl Eq for TextOfRow {}

impl Hash for TextOfRow {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl TextOfRow {
    pub(crate) fn new(text: Arc<dyn PhysicalExpr>) -> TextOfRow {
        TextOfRow(text)
    }
}

impl fmt::Display for TextOfRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the row", self.0)
    }
}

impl PhysicalExpr for TextOfRow {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.0.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.0.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.0.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.0]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let [text] = <[_; 1]>::try_from(children)
            .map_err(|all| datafusion::common::internal_datafusion_err!("{} texts", all.len()))?;
        Ok(Arc::new(TextOfRow(text)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt_sql(f)
    }
}
