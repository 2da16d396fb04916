//! Columns of texts with many values, kept in the forms that queries need.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;

/// How the texts of a column are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Place {
    /// Kernels read the number of the row; its text is looked up in host memory afterwards.
    Host,
    /// Searches read the texts, in memory of the engine.
    Engine,
    /// Kernels read the numbers of the texts, as of a column with few different ones. The CPU computes nothing of
    /// each text.
    Dictionary,
}

/// The texts of a column.
#[derive(Debug)]
pub(crate) struct Kept {
    text: Arc<dyn PhysicalExpr>,
    pub(crate) place: Place,
}

// A derived one does not compile: it would move the expression.
impl PartialEq for Kept {
    fn eq(&self, other: &Kept) -> bool {
        self.place == other.place && self.text.eq(&other.text)
    }
}

impl Eq for Kept {}

impl Hash for Kept {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place.hash(state);
        self.text.hash(state);
    }
}

impl Kept {
    pub(crate) fn new(text: Arc<dyn PhysicalExpr>, place: Place) -> Kept {
        Kept { text, place }
    }

    /// Returns where texts are kept, if an expression is these.
    pub(crate) fn place_of(expr: &Arc<dyn PhysicalExpr>) -> Option<Place> {
        expr.downcast_ref::<Kept>().map(|it| it.place)
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the texts of {}", self.text)
    }
}

impl PhysicalExpr for Kept {
    fn data_type(&self, schema: &Schema) -> Result<DataType> {
        self.text.data_type(schema)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.text.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        self.text.evaluate(batch)
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.text]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let [text] = <[_; 1]>::try_from(children)
            .map_err(|all| datafusion::common::internal_datafusion_err!("{} texts", all.len()))?;
        Ok(Arc::new(Kept::new(text, self.place)))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt_sql(f)
    }
}
