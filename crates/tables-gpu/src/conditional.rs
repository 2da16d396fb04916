//! `CASE` and other choices between values as C++ of a kernel.

use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Literal};
use datafusion::scalar::ScalarValue;

use crate::arithmetic::sign_of;
use crate::expression::Code;
use crate::fragment::Exprs;
use crate::reason::Reason;
use crate::value::{Kind, Value, condition};

type Result<T> = std::result::Result<T, Reason>;

impl Code<'_, '_> {
    /// Declares the value of a `CASE`. The CPU evaluates a part only for rows that no earlier condition decides, so
    /// that these conditions may guard a division.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn case(&mut self, case: &CaseExpr) -> Result<Value> {
        let (base, branches) = (case.expr(), case.when_then_expr());
        // What is not 0 where no condition before is true.
        let mut others = vec![Exprs::new()];
        for (index, (when, _)) in branches.iter().enumerate() {
            let mut nonzero = others[index].clone();
            self.add_nonzero((base, when), false, &mut nonzero);
            others.push(nonzero);
        }
        let nonzero = others.pop().unwrap_or_default();
        let mut result = match case.else_expr() {
            Some(otherwise) => self.where_nonzero(nonzero, |code| code.value(otherwise))?,
            None => self.literal(&ScalarValue::Null)?,
        };
        for ((when, then), nonzero) in branches.iter().zip(others).rev() {
            self.data_type(then)?;
            let mut of_then = Exprs::new();
            self.add_nonzero((base, when), true, &mut of_then);
            let (when, then) = self.where_nonzero(nonzero, |code| {
                let when = code.when(base, when)?;
                let then = code.where_nonzero(of_then, |code| code.value(then))?;
                Ok((when, then))
            })?;
            let is_true = self.all(&[Some(&when.text), when.valid.as_ref()]);
            let is_true = is_true.unwrap_or(when.text);
            result = self.chosen(&is_true, &then, &result);
        }
        Ok(result)
    }

    /// Declares the condition of a branch of `CASE`, which may be a value that is compared.
    fn when(
        &mut self,
        base: Option<&Arc<dyn PhysicalExpr>>,
        when: &Arc<dyn PhysicalExpr>,
    ) -> Result<Value> {
        match base {
            Some(base) => self.equal_bits(base, when).map(|(_, equal)| equal),
            None => self.condition(when),
        }
    }

    /// Declares a value, and whether another one equals it.
    ///
    /// # Errors
    /// If they are of different types, or the other one is a float that may be 0 or NaN: the CPU compares the bits.
    fn equal_bits(
        &mut self,
        value: &Arc<dyn PhysicalExpr>,
        other: &Arc<dyn PhysicalExpr>,
    ) -> Result<(Value, Value)> {
        self.check_scales(value, other)?;
        let (value, other) = (self.value(value)?, self.value(other)?);
        if other.kind == Kind::Float && !other.is_nonzero_float() {
            return Err(Reason::new("a comparison with 0 or NaN"));
        }
        let equal = self.compared(Operator::Eq, &value, &other);
        Ok((value, equal))
    }

    /// Computes something where expressions are not 0, or are NULL. Only there, values of it are used again.
    fn where_nonzero<T>(
        &mut self,
        nonzero: Exprs,
        compute: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        if nonzero.is_empty() {
            return compute(self);
        }
        let values = self.function.values.clone();
        let known = self.function.nonzero.len();
        self.function.nonzero.extend(nonzero);
        let computed = compute(self);
        self.function.nonzero.truncate(known);
        self.function.values = values;
        computed
    }

    /// Adds the expressions that are not 0, or are NULL, where the condition of a branch of `CASE` is true, or where
    /// it is not.
    fn add_nonzero(
        &self,
        (base, when): (Option<&Arc<dyn PhysicalExpr>>, &Arc<dyn PhysicalExpr>),
        is_true: bool,
        nonzero: &mut Exprs,
    ) {
        let (left, op, right) = match (base, when.downcast_ref::<BinaryExpr>()) {
            (Some(base), _) => (base, Operator::Eq, when),
            (None, Some(binary)) => (binary.left(), *binary.op(), binary.right()),
            (None, None) => return,
        };
        match (op, is_true) {
            (Operator::And, true) | (Operator::Or, false) => {
                self.add_nonzero((None, left), is_true, nonzero);
                self.add_nonzero((None, right), is_true, nonzero);
            }
            _ => {
                let op = if is_true { Some(op) } else { op.negate() };
                let literal = right.downcast_ref::<Literal>();
                let excludes = op.zip(literal);
                if excludes.is_some_and(|(op, literal)| excludes_zero(op, literal.value())) {
                    nonzero.push(Arc::clone(self.uncast(left)));
                }
            }
        }
    }

    /// Declares `nullif`: a value, unless another one equals it.
    pub(crate) fn null_if(
        &mut self,
        value: &Arc<dyn PhysicalExpr>,
        other: &Arc<dyn PhysicalExpr>,
    ) -> Result<Value> {
        let (value, equal) = self.equal_bits(value, other)?;
        let is_equal = self.all(&[Some(&equal.text), equal.valid.as_ref()]);
        let is_equal = is_equal.unwrap_or(equal.text);
        let valid = match &value.valid {
            Some(valid) => format!("{valid} & !{is_equal}"),
            None => format!("!{is_equal}"),
        };
        Ok(Value {
            valid: Some(self.declare(Kind::Bool, &valid)),
            ..value
        })
    }

    /// Declares the greatest (`>=`) or the least (`<=`) of values that are not NULL.
    pub(crate) fn extreme(
        &mut self,
        op: Operator,
        first: &Arc<dyn PhysicalExpr>,
        others: &[Arc<dyn PhysicalExpr>],
    ) -> Result<Value> {
        self.data_type(first)?;
        let mut result = self.value(first)?;
        for other in others {
            self.check_scales(first, other)?;
            let other = self.value(other)?;
            result = self.extreme_of(op, &result, &other);
        }
        Ok(result)
    }

    fn extreme_of(&mut self, op: Operator, left: &Value, right: &Value) -> Value {
        let is_left = self.compared(op, left, right).text;
        let is_left = match (&left.valid, &right.valid) {
            (None, None) => is_left,
            (Some(left), None) => format!("{left} & {is_left}"),
            (None, Some(right)) => format!("(!{right} | {is_left})"),
            (Some(left), Some(right)) => format!("{left} & (!{right} | {is_left})"),
        };
        let is_left = self.declare(Kind::Bool, &is_left);
        let chosen = self.chosen(&is_left, left, right);
        let best = |one: i128, other: i128| match op {
            Operator::GtEq => one.max(other),
            _ => one.min(other),
        };
        let (mut min, mut max) = (best(left.min, right.min), best(left.max, right.max));
        // One that is NULL leaves the other.
        for (one, other) in [(left, right), (right, left)] {
            if other.valid.is_some() {
                (min, max) = (min.min(one.min), max.max(one.max));
            }
        }
        let both = left.valid.as_ref().and(right.valid.as_ref());
        Value {
            valid: both.and(chosen.valid),
            min,
            max,
            ..chosen
        }
    }

    /// Declares `IS DISTINCT FROM` or `IS NOT DISTINCT FROM`, which are never NULL.
    pub(crate) fn distinct(&mut self, binary: &BinaryExpr) -> Result<Value> {
        self.check_scales(binary.left(), binary.right())?;
        let left = self.value(binary.left())?;
        let right = self.value(binary.right())?;
        let equal = self.compared(Operator::Eq, &left, &right);
        let mut are_same = match &equal.valid {
            Some(valid) => format!("{valid} & {}", equal.text),
            None => equal.text,
        };
        if let (Some(left), Some(right)) = (&left.valid, &right.valid) {
            are_same = format!("{are_same} | !{left} & !{right}");
        }
        let text = match binary.op() {
            Operator::IsNotDistinctFrom => are_same,
            _ => format!("!({are_same})"),
        };
        Ok(condition(self.declare(Kind::Bool, &text), None))
    }
}

/// Returns whether a number that compares so with a constant is not 0.
fn excludes_zero(op: Operator, constant: &ScalarValue) -> bool {
    sign_of(constant).is_some_and(|sign| match op {
        Operator::NotEq => sign.is_eq(),
        Operator::Eq => sign.is_ne(),
        Operator::Gt => sign.is_ge(),
        Operator::GtEq => sign.is_gt(),
        Operator::Lt => sign.is_le(),
        Operator::LtEq => sign.is_lt(),
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comparisons_tell_that_a_number_is_not_zero() {
        let ops = [
            Operator::NotEq,
            Operator::Eq,
            Operator::Gt,
            Operator::GtEq,
            Operator::Lt,
            Operator::LtEq,
        ];
        let excluded = |constant: i64| {
            let constant = ScalarValue::Int64(Some(constant));
            ops.map(|op| excludes_zero(op, &constant))
        };
        assert_eq!(excluded(0), [true, false, true, false, true, false]);
        assert_eq!(excluded(2), [false, true, true, true, false, false]);
        assert_eq!(excluded(-2), [false, true, false, false, true, true]);
        assert!(!excludes_zero(Operator::Eq, &ScalarValue::Int64(None)));
    }
}
