//! Ordinals: the numbers of values in their order, with which kernels compare texts.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, RecordBatch, UInt32Array};
use datafusion::arrow::compute::{sort_to_indices, take};
use datafusion::arrow::datatypes::{DataType, Schema};
use datafusion::common::{exec_err, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::ColumnarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;

use crate::domain::Domain;
use crate::expression::Code;
use crate::reason::Reason;
use crate::value::{Kind, Value};

/// The ordinal of an expression's value: how many of all its values are less. Kernels read it from a table over the
/// values of a column; the CPU knows that of NULL alone, which is NULL.
#[derive(Debug, Clone, Eq)]
pub(crate) struct Ordinal {
    of: Arc<dyn PhysicalExpr>,
}

impl Ordinal {
    pub(crate) fn new(of: Arc<dyn PhysicalExpr>) -> Ordinal {
        Ordinal { of }
    }
}

impl PartialEq for Ordinal {
    fn eq(&self, other: &Ordinal) -> bool {
        self.of.eq(&other.of)
    }
}

impl Hash for Ordinal {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.of.hash(state);
    }
}

impl fmt::Display for Ordinal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ordinal of {}", self.of)
    }
}

impl PhysicalExpr for Ordinal {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Int32)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.of.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let values = self.of.evaluate(batch)?.into_array(batch.num_rows())?;
        match values.logical_null_count() == values.len() {
            true => Ok(ColumnarValue::Scalar(ScalarValue::Int32(None))),
            false => exec_err!("the ordinal of {} is not known", self.of),
        }
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.of]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let [of] = <[_; 1]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("an ordinal of {} expressions", all.len()))?;
        Ok(Arc::new(Ordinal { of }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ordinal of ")?;
        self.of.fmt_sql(f)
    }
}

impl Code<'_, '_> {
    /// Declares the ordinal of this row's value, from 0 on, or from 1 on if there may be NULL.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn ordinal(&mut self, ordinal: &Ordinal) -> std::result::Result<Value, Reason> {
        let domain = Domain::of(&ordinal.of, self.draft.scanned)?;
        let (mut table, values) = domain.keys(&ordinal.of)?;
        // NULL is the first.
        let order = sort_to_indices(&values, None, None).map_err(Reason::of)?;
        table.renumber(&ordinals_of(&order));
        let values = take(&values, &order, None).map_err(Reason::of)?;
        let first = values.logical_null_count() as i128;
        let last = (values.len() as i128 - 1).max(first);
        self.draft.in_order.insert(ordinal.clone(), values);
        let text = self.looked_up(&domain, table)?;
        let valid = (first > 0).then(|| self.declare(Kind::Bool, &format!("{text} != 0")));
        Ok(Value {
            text,
            kind: Kind::Small,
            valid,
            min: first,
            max: last,
        })
    }

    /// Returns the values of an expression by their ordinals, which have been declared.
    ///
    /// # Errors
    /// If they have not been declared.
    pub(crate) fn values_in_order(
        &mut self,
        ordinal: &Arc<dyn PhysicalExpr>,
    ) -> std::result::Result<ArrayRef, Reason> {
        if let Some(join) = self.draft.join_of(ordinal) {
            let of_row = self.over_join(join, ordinal)?;
            return self.stored(join, |code| code.values_in_order(&of_row));
        }
        let known = ordinal.downcast_ref::<Ordinal>();
        let known = known.and_then(|it| self.draft.in_order.get(it));
        known
            .cloned()
            .ok_or_else(|| Reason::new(format!("{ordinal} is of several columns")))
    }
}

/// Returns the ordinal of each value, from the indexes of the values in their order.
fn ordinals_of(order: &UInt32Array) -> Vec<u32> {
    let mut ordinals = vec![0; order.len()];
    for (ordinal, index) in order.values().iter().enumerate() {
        ordinals[*index as usize] = ordinal as u32;
    }
    ordinals
}
