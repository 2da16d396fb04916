//! What `EXISTS` and `NOT IN` ask of the other rows of a join, in generated code.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::IsNotNullExpr;

use crate::expression::Code;
use crate::packed::is_text;
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

impl Code<'_, '_> {
    /// Declares whether a row has other rows with its key, and the one that was read meets a condition.
    ///
    /// # Errors
    /// Why kernels cannot compute the condition.
    pub(crate) fn holds(
        &mut self,
        found: String,
        condition: &Arc<dyn PhysicalExpr>,
    ) -> Result<String> {
        let value = self.condition(condition)?;
        let holds = self.all(&[Some(&found), Some(&value.text), value.valid.as_ref()]);
        Ok(holds.unwrap_or(value.text))
    }

    /// Declares what `NOT IN` asks of a row without a match, as `joins.cuh` tells. Returns `None` if no key is NULL,
    /// or the join is another one.
    ///
    /// # Errors
    /// Why kernels cannot tell which keys are NULL.
    pub(crate) fn not_in(&mut self, join: usize) -> Result<Option<String>> {
        let of = &self.draft.rows.joins[join];
        if !of.is_null_aware {
            return Ok(None);
        }
        let ([key], [key_of_row]) = (of.keys.as_slice(), of.keys_of_rows.as_slice()) else {
            return Err(Reason::new("NOT IN of several columns"));
        };
        let own = self.not_null(key)?;
        let other = self.stored(join, |code| code.not_null(key_of_row))?;
        if own.is_none() && other.is_none() {
            return Ok(None);
        }
        let always = || "true".to_owned();
        if let Some(stored) = &mut self.draft.joins[join].stored {
            stored.has_key = Some(other.unwrap_or_else(always));
            // Each slice is told of all rows.
            stored.own_column = None;
        }
        let own = own.unwrap_or_else(always);
        Ok(Some(format!("is_not_in<{join}>(f, {own})")))
    }

    /// Declares whether a value is not NULL. Returns `None` if it never is.
    fn not_null(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Option<String>> {
        if !is_text(&self.type_of(expr)?) {
            return Ok(self.value(expr)?.valid);
        }
        let not_null: Arc<dyn PhysicalExpr> = Arc::new(IsNotNullExpr::new(Arc::clone(expr)));
        Ok(Some(self.condition(&not_null)?.text))
    }
}
