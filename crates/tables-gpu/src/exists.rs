//! What `EXISTS` and `NOT IN` ask of the other rows of a join, in generated code.

use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::IsNotNullExpr;

use crate::expression::Code;
use crate::packed::is_text;
use crate::reason::Reason;
use crate::value::Kind;

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

    /// Declares whether a row that has other rows with its key has one with another number.
    ///
    /// # Errors
    /// If the numbers are not compared, or are far apart.
    pub(crate) fn differs(
        &mut self,
        join: usize,
        found: String,
        (own, other): (&Arc<dyn PhysicalExpr>, &Arc<dyn PhysicalExpr>),
    ) -> Result<String> {
        let rows = &self.draft.rows.joins[join].rows;
        let (data_type, of_rows) = (self.data_type(own)?, other.data_type(&rows.schema));
        if of_rows.map_err(Reason::of)? != data_type {
            return Err(Reason::new(format!(
                "{own} and {other} are not compared on GPUs"
            )));
        }
        let (number, min, max) = self.stored(join, |code| code.store_common(other))?;
        let own = self.value(own)?;
        if own.kind > Kind::Large {
            return Err(Reason::new("numbers of more than 64 bits"));
        }
        let first = 2 * self.draft.uses.constant(min)?;
        // Distances modulo the type are equal only if the numbers are.
        let distances = (own.min.min(min) - min, own.max.max(max) - min);
        let (kind, unsigned) = match Kind::of(distances.0, distances.1) {
            Some(Kind::Small) => (own.kind, "u32"),
            _ => (Kind::Large, "u64"),
        };
        let word = format!("static_cast<{unsigned}>(out<{join}, {number}>(joined))");
        let distance = format!(
            "static_cast<{unsigned}>({}) - static_cast<{unsigned}>(f.constants[{first}])",
            own.widened(kind)
        );
        let differs =
            format!("{found} & (({word} == kDifferentNumbers) | ({distance} + 1 != {word}))");
        let differs = self.declare(Kind::Bool, &differs);
        let both = self.all(&[Some(&differs), own.valid.as_ref()]);
        Ok(both.unwrap_or(differs))
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
