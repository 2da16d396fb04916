//! Expressions of floats as C++ of a kernel.
//!
//! Each operation is rounded as on the CPU, so that values are the same, bit for bit. Those that may become infinite or
//! NaN are left to the CPU: the bits of a NaN, and so its place in the order, differ between processors.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{CastExpr, Column};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use crate::draft::Draft;
use crate::expression::Code;
use crate::floats::{Parts, float_of, is_unique, ordered};
use crate::reason::Reason;
use crate::value::{Kind, Value, bounds_of};

type Result<T> = std::result::Result<T, Reason>;

/// Powers of ten up to this exponent are floats.
const EXACT_POWER_MAX: i8 = 22;

impl Value {
    /// Returns the smallest and the largest float.
    fn floats(&self) -> [f64; 2] {
        [self.min, self.max].map(|bound| float_of(bound as i64))
    }

    /// Returns whether a float may be -0.
    pub(crate) fn may_be_negative_zero(&self) -> bool {
        (self.min..=self.max).contains(&ordered(-0.0).into())
    }

    /// Returns whether floats are surely numbers other than 0 and -0.
    pub(crate) fn is_nonzero_float(&self) -> bool {
        let [min, max] = self.floats();
        min > 0.0 || max < 0.0
    }

    /// Returns the smallest and the largest float.
    ///
    /// # Errors
    /// If some may be infinite or NaN.
    fn finite_floats(&self) -> Result<[f64; 2]> {
        match self.largest_float() {
            Some(_) => Ok(self.floats()),
            None => Err(Reason::new("floats may be infinite or NaN")),
        }
    }

    /// Returns the largest absolute value of floats; `None` if some may be infinite or NaN.
    pub(crate) fn largest_float(&self) -> Option<f64> {
        let [min, max] = self.floats();
        let are_finite = min.is_finite() && max.is_finite();
        are_finite.then(|| min.abs().max(max.abs()))
    }
}

/// Returns the bounds of what is computed of finite floats within bounds. One is NaN if a corner is.
fn bounds_of_computed(
    (left, right): ([f64; 2], [f64; 2]),
    compute: fn(f64, f64) -> f64,
) -> [f64; 2] {
    // Rounding keeps the order, so that the results at the corners are bounds.
    let corners = left
        .into_iter()
        .flat_map(|left| right.map(|right| compute(left, right)));
    let mut corners: Vec<f64> = corners.collect();
    corners.sort_by(f64::total_cmp);
    let [min, .., max] = corners.as_slice() else {
        return [f64::NAN; 2];
    };
    // 0 times a negative number is -0.
    [if *min == 0.0 { -0.0 } else { *min }, *max]
}

/// Returns the integer that orders as a float does, of 0 for -0.
fn without_negative_zero(bound: i128) -> i128 {
    match bound == i128::from(ordered(-0.0)) {
        true => ordered(0.0).into(),
        false => bound,
    }
}

impl Draft<'_> {
    /// Returns the exponent of floats that are all decimals, at least `exponent_min`: those of a column, or the
    /// integers of a column. Returns `None` if some may be no decimals, or have other integers with this exponent.
    fn exponent_of(&self, expr: &Arc<dyn PhysicalExpr>, exponent_min: u32) -> Option<u32> {
        if self.join_of(expr).is_some() {
            return None;
        }
        let Some(cast) = expr.downcast_ref::<CastExpr>() else {
            let column = expr.downcast_ref::<Column>()?.index();
            let (exponent, _) = self.scanned.decimals_with(column, exponent_min)?;
            return Some(exponent);
        };
        let column = cast.expr().downcast_ref::<Column>()?.index();
        let are_integers = self.scanned.data_type(column).is_integer();
        let (min, max) = self.scanned.range(column).unwrap_or((0, 0));
        let is_exact = |integer: i64| {
            let integer = integer.checked_mul(10_i64.pow(exponent_min));
            integer.is_some_and(|it| is_unique(it, false))
        };
        let are_exact = are_integers && is_exact(min) && is_exact(max);
        (are_exact && *cast.cast_type() == DataType::Float64).then_some(exponent_min)
    }
}

impl Code<'_, '_> {
    /// Declares the float of this row in a column.
    pub(crate) fn float_column(&mut self, column: usize) -> Result<Value> {
        let is_single = self.draft.scanned.data_type(column) == DataType::Float32;
        let (min, max) = self.draft.scanned.range(column).unwrap_or((0, 0));
        let (number, cursor, valid) = self.packed_float(column)?;
        let text = format!("{cursor}.decoded<{is_single}>({number})");
        Ok(Value {
            text: self.declare(Kind::Float, &text),
            kind: Kind::Float,
            valid,
            min: min.into(),
            max: max.into(),
        })
    }

    /// Declares the integer of this row in a column of decimals, with the largest exponent of all chunks, or at least
    /// `exponent_min`.
    pub(crate) fn decimal_column(&mut self, column: usize, exponent_min: u32) -> Result<Value> {
        let scanned = self.draft.scanned;
        let decimals = scanned.decimals_with(column, exponent_min).ok_or_else(|| {
            let name = scanned.name(column);
            Reason::new(format!("{name} has floats that are no decimals"))
        });
        let (exponent, (min, max)) = decimals?;
        let (min, max) = (i128::from(min), i128::from(max));
        let (number, cursor, valid) = self.packed_float(column)?;
        let kind = Kind::of(min, max).unwrap_or(Kind::Large);
        let integer = format!("{cursor}.integer<{exponent}>({number})");
        let text = format!("static_cast<{}>({integer})", kind.name());
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid,
            min,
            max,
        })
    }

    /// Declares the number that is kept of the float of this row in a column. Returns it, where the row reads it, and
    /// whether it has a value.
    fn packed_float(&mut self, column: usize) -> Result<(String, String, Option<String>)> {
        let width = self.draft.scanned.width_of(column);
        let (cursor, valid) = self.cursor(column)?;
        let above = match width.is_some_and(|it| it <= 32) {
            true => format!("static_cast<u64>({cursor}.narrow(i, is_wanted))"),
            false => format!("{cursor}.wide(i, is_wanted)"),
        };
        let number = format!("static_cast<i64>(static_cast<u64>({cursor}.reference) + {above})");
        Ok((self.declare(Kind::Large, &number), cursor, valid))
    }

    /// Declares the integer of an expression that is a column of decimals. Returns it with their exponent.
    pub(crate) fn decimals(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> Result<Option<(Value, u32)>> {
        let column = expr.downcast_ref::<Column>().map(Column::index);
        let column = column.filter(|_| self.draft.join_of(expr).is_none());
        let Some(column) = column else {
            return Ok(None);
        };
        let decimals = self.draft.scanned.decimals(column);
        let Some((exponent, _)) = decimals else {
            return Ok(None);
        };
        Ok(Some((self.number(column)?, exponent)))
    }

    /// Declares the integer of a float that is a key: that of a decimal, with its exponent, or else one of the bits;
    /// `None` if equal keys may have several.
    pub(crate) fn float_key(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> Result<(Option<Value>, Option<u32>)> {
        if let Some((decimal, exponent)) = self.decimals(expr)? {
            return Ok((Some(decimal), Some(exponent)));
        }
        let value = self.value(expr).ok().filter(|value| {
            let is_finite = value.kind == Kind::Float && value.largest_float().is_some();
            is_finite && !value.may_be_negative_zero()
        });
        Ok((value.map(|value| self.bits_of(&value)), None))
    }

    /// Declares the numbers of a key of a join that is a float: of the rows that are joined, and of the other rows.
    /// They are those of decimals, which are close together, or else of the bits.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn floats_of_join(
        &mut self,
        join: usize,
        key: &Arc<dyn PhysicalExpr>,
        of_row: &Arc<dyn PhysicalExpr>,
    ) -> Result<(Value, Value)> {
        let exponent_of = |exponent_min| {
            let own = self.draft.exponent_of(key, exponent_min)?;
            let other = self.draft.joins[join].exponent_of(of_row, exponent_min)?;
            Some(own.max(other))
        };
        // With the exponent of the other side, one may have too many digits.
        let exponent = exponent_of(0).and_then(exponent_of);
        let of_row = self.stored(join, |code| code.joined_float(of_row, exponent))?;
        Ok((self.joined_float(key, exponent)?, of_row))
    }

    /// Declares the number of a float that is a key of a join: the integer of a decimal with this exponent, or else
    /// one that compares as the float does.
    fn joined_float(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        exponent: Option<u32>,
    ) -> Result<Value> {
        match (exponent, expr.downcast_ref::<Column>()) {
            (Some(exponent), Some(column)) => self.decimal_column(column.index(), exponent),
            (Some(exponent), None) => {
                let integer = expr.downcast_ref::<CastExpr>().map_or(expr, CastExpr::expr);
                let integer = self.value(integer)?;
                self.rescaled(&integer, exponent.cast_signed())
            }
            (None, _) => {
                let value = self.value(expr)?;
                let [min, max] = [value.min, value.max].map(without_negative_zero);
                Ok(Value {
                    text: self.rank_of(&value),
                    kind: Kind::Large,
                    valid: value.valid,
                    min,
                    max,
                })
            }
        }
    }

    /// Declares a constant.
    pub(crate) fn float_literal(&mut self, float: f64) -> Result<Value> {
        let low = 2 * self.draft.uses.constant(float.to_bits().into())?;
        let bits = format!("__longlong_as_double(static_cast<i64>(f.constants[{low}]))");
        Ok(Value {
            text: self.declare(Kind::Float, &bits),
            kind: Kind::Float,
            valid: None,
            min: ordered(float).into(),
            max: ordered(float).into(),
        })
    }

    /// Declares the integer that orders as a float does.
    pub(crate) fn bits_of(&mut self, value: &Value) -> Value {
        Value {
            text: self.declare(Kind::Large, &format!("ordered_bits({})", value.text)),
            kind: Kind::Large,
            ..value.clone()
        }
    }

    /// Declares the integer that compares as a float does: 0 and -0 are equal, as NaN of the same bits are.
    pub(crate) fn rank_of(&mut self, value: &Value) -> String {
        let text = match value.may_be_negative_zero() {
            true => self.declare(
                Kind::Float,
                &format!("without_sign_of_zero({})", value.text),
            ),
            false => value.text.clone(),
        };
        self.declare(Kind::Large, &format!("ordered_bits({text})"))
    }

    /// Declares a float with these bounds.
    fn float(&mut self, text: &str, [min, max]: [f64; 2], valid: Option<String>) -> Result<Value> {
        if !(min.is_finite() && max.is_finite()) {
            return Err(Reason::new("floats may be infinite or NaN"));
        }
        Ok(Value {
            text: self.declare(Kind::Float, text),
            kind: Kind::Float,
            valid,
            min: ordered(min).into(),
            max: ordered(max).into(),
        })
    }

    /// Declares a sum, a difference, a product or a quotient of floats.
    ///
    /// # Errors
    /// If it may be infinite or NaN.
    pub(crate) fn float_arithmetic(
        &mut self,
        op: Operator,
        left: &Value,
        right: &Value,
    ) -> Result<Value> {
        let bounds = (left.finite_floats()?, right.finite_floats()?);
        if op == Operator::Divide && !right.is_nonzero_float() {
            return Err(Reason::new("a divisor may be 0"));
        }
        let (name, compute): (_, fn(f64, f64) -> f64) = match op {
            Operator::Plus => ("__dadd_rn", |left, right| left + right),
            Operator::Minus => ("__dsub_rn", |left, right| left - right),
            Operator::Multiply => ("__dmul_rn", |left, right| left * right),
            Operator::Divide => ("__ddiv_rn", |left, right| left / right),
            op => return Err(Reason::new(format!("{op} of floats"))),
        };
        let bounds = bounds_of_computed(bounds, compute);
        let text = format!(
            "{name}({}, {})",
            left.widened(Kind::Float),
            right.widened(Kind::Float)
        );
        let valid = self.all(&[left.valid.as_ref(), right.valid.as_ref()]);
        self.float(&text, bounds, valid)
    }

    /// Declares the negative of a float.
    pub(crate) fn float_negative(&mut self, value: &Value) -> Result<Value> {
        let [min, max] = value.finite_floats()?;
        let text = format!("-{}", value.text);
        self.float(&text, [-max, -min], value.valid.clone())
    }

    /// Declares the result of a function of a float; `None` if it is none of those that kernels have.
    pub(crate) fn float_call(&mut self, call: &ScalarFunctionExpr) -> Option<Result<Value>> {
        let (name, compute): (_, fn(f64) -> f64) = match call.name() {
            "floor" => ("floor", f64::floor),
            "ceil" => ("ceil", f64::ceil),
            "round_to_even" => ("rint", f64::round_ties_even),
            "abs" => ("fabs", f64::abs),
            _ => return None,
        };
        let [argument] = call.args() else {
            return None;
        };
        (*call.return_type() == DataType::Float64).then(|| {
            let value = self.float_value(argument)?;
            let [min, max] = value.finite_floats()?;
            let bounds = match (name, min < 0.0 && max > 0.0) {
                ("fabs", true) => [0.0, max.max(-min)],
                ("fabs", false) => [min.abs().min(max.abs()), min.abs().max(max.abs())],
                _ => [compute(min), compute(max)],
            };
            self.float(&format!("{name}({})", value.text), bounds, value.valid)
        })
    }

    /// Declares a value as a float of 64 bits.
    pub(crate) fn cast_to_float(&mut self, value: &Value, from: &DataType) -> Result<Value> {
        if value.kind == Kind::Float {
            return Ok(value.clone());
        }
        let scale = match from {
            DataType::Decimal128(_, scale @ 0..=EXACT_POWER_MAX) => *scale,
            from if from.is_integer() => 0,
            from => return Err(Reason::new(format!("a cast from {from} to Float64"))),
        };
        if value.kind == Kind::Huge {
            return Err(Reason::new("floats of numbers of more than 64 bits"));
        }
        let power = 10_f64.powi(scale.into());
        let bounds = [value.min, value.max].map(|bound| bound as f64 / power);
        let text = format!("static_cast<double>({})", value.text);
        let text = match scale {
            0 => text,
            _ => format!("__ddiv_rn({text}, {power:?})"),
        };
        self.float(&text, bounds, value.valid.clone())
    }

    /// Declares a float as an integer, without the digits behind the point.
    pub(crate) fn cast_from_float(&mut self, value: &Value, to: &DataType) -> Result<Value> {
        let (low, high) = bounds_of(to)
            .filter(|_| to.is_integer())
            .ok_or_else(|| Reason::new(format!("a cast from a float to {to}")))?;
        let [min, max] = value.floats();
        // Saturates; NaN is 0.
        let (first, last) = (min as i128, max as i128);
        if !(min.is_finite() && max.is_finite()) || first < low || last > high {
            return Err(Reason::new(format!("a cast to {to} may fail")));
        }
        let kind = Kind::of(first, last).unwrap_or(Kind::Large);
        let text = format!("static_cast<{}>({})", kind.name(), value.text);
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid: value.valid.clone(),
            min: first,
            max: last,
        })
    }

    /// Declares the parts of a float as a sum adds them, where a condition holds. Returns all, the high one first.
    pub(crate) fn parts_of(
        &mut self,
        value: &Value,
        (parts, condition): (Parts, Option<&str>),
    ) -> Result<[String; 3]> {
        let mut scales = Vec::new();
        for scale in parts.scales() {
            scales.push(self.float_literal(scale)?.text);
        }
        let [of_high, others, least] = scales.as_slice() else {
            return Err(Reason::new("floats have three scales"));
        };
        let float = &value.text;
        let high = self.declare(Kind::Large, &format!("__double2ll_rn({float} * {of_high})"));
        let rest = format!("behind_high({float}, {others}, {high})");
        let rest = self.declare(Kind::Float, &rest);
        let middle = self.declare(Kind::Large, &format!("__double2ll_rn({rest})"));
        let low = self.declare(Kind::Large, &format!("low_part({rest}, {middle})"));
        let is_added = condition.unwrap_or("true");
        self.function.lines.push(format!(
            "if (is_wanted & {is_added} & is_too_small({float}, {least})) atomicMax(f.flag, kIsFarApart);"
        ));
        Ok([high, middle, low])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_tell_of_every_corner() {
        let add: fn(f64, f64) -> f64 = |left, right| left + right;
        let times: fn(f64, f64) -> f64 = |left, right| left * right;
        assert_eq!(
            bounds_of_computed(([-1.0, 2.0], [3.0, 4.0]), add),
            [2.0, 6.0]
        );
        assert_eq!(
            bounds_of_computed(([-1.0, 2.0], [-5.0, 4.0]), times),
            [-10.0, 8.0]
        );
        let [min, _] = bounds_of_computed(([0.0, 2.0], [-0.0, 4.0]), times);
        assert!(min.is_sign_negative());
        let [_, max] = bounds_of_computed(([1e300, 2e300], [1.0, 1e300]), times);
        assert!(max.is_infinite());
        let float = |[min, max]: [f64; 2]| Value {
            text: String::new(),
            kind: Kind::Float,
            valid: None,
            min: ordered(min).into(),
            max: ordered(max).into(),
        };
        let nan = f64::NAN.copysign(1.0);
        for bounds in [
            [-nan, 5.0],
            [-3.0, nan],
            [f64::NEG_INFINITY, 1.0],
            [-nan, nan],
        ] {
            assert!(float(bounds).finite_floats().is_err(), "{bounds:?}");
        }
        assert!(!float([-0.0, 5.0]).is_nonzero_float());
        assert!(float([0.5, 5.0]).finite_floats().is_ok());
    }
}
