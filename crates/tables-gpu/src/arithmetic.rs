//! Quotients, roundings and casts of integers and decimals as C++ of a kernel.
//!
//! A decimal is an integer of a scale. The CPU multiplies it by a power of ten before it divides. It rounds quotients
//! towards zero and casts to the nearest decimal. Kernels compute the same integers, within 128 bits. A divisor that
//! may be 0 is left to the CPU, which raises the error.

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use crate::expression::Code;
use crate::floats::{is_float, ordered};
use crate::reason::Reason;
use crate::value::{Kind, Value, bounds_of};

type Result<T> = std::result::Result<T, Reason>;

/// The smallest and the largest number.
type Bounds = (i128, i128);

/// Maximum number of digits that are rounded away: the powers of ten up to this one have 64 bits.
const DIGITS_MAX: i32 = 18;

/// How the number of steps in a number is rounded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounding {
    TowardsZero,
    Down,
    Up,
    /// To the nearest, of two the one that is farther from zero.
    Nearest,
}

impl Rounding {
    /// Returns its name in kernels.
    fn name(self) -> &'static str {
        match self {
            Rounding::TowardsZero => "kTowardsZero",
            Rounding::Down => "kDown",
            Rounding::Up => "kUp",
            Rounding::Nearest => "kNearest",
        }
    }

    /// Returns the number of steps. It never decreases while the number grows.
    fn steps(self, number: i128, step: i128) -> i128 {
        let (steps, rest) = (number / step, number % step);
        match self {
            Rounding::TowardsZero => steps,
            Rounding::Down => steps - i128::from(rest < 0),
            Rounding::Up => steps + i128::from(rest > 0),
            Rounding::Nearest => {
                steps + i128::from(rest >= step / 2) - i128::from(rest <= -(step / 2))
            }
        }
    }
}

impl Code<'_, '_> {
    /// Declares a quotient of integers or decimals, or what it leaves.
    ///
    /// # Errors
    /// If the divisor may be 0, or the result may leave its type.
    pub(crate) fn division(&mut self, binary: &BinaryExpr, data_type: &DataType) -> Result<Value> {
        let op = *binary.op();
        let types = (
            &self.data_type(binary.left())?,
            &self.data_type(binary.right())?,
        );
        let (of_dividend, of_divisor) = digits_added(types, op, data_type)?;
        let left = self.value(binary.left())?;
        let left = self.rescaled(&left, of_dividend)?;
        let right = self.value(binary.right())?;
        let right = self.rescaled(&right, of_divisor)?;
        let divisors = self.divisors(binary.right(), &right)?;
        let dividends = (left.min, left.max);
        let (name, bounds) = match op {
            Operator::Divide => ("kTowardsZero", bounds_of_quotients(dividends, &divisors)),
            _ => ("kRest", bounds_of_remainders(dividends, &divisors)),
        };
        check(op, bounds, data_type)?;
        let kind = left.kind.max(right.kind).max(kind_of(bounds)?);
        let (left_text, right_text) = (left.widened(kind), right.widened(kind));
        let text = format!("divided<{name}>({left_text}, {right_text})");
        let valid = self.all(&[left.valid.as_ref(), right.valid.as_ref()]);
        self.narrowed(&text, bounds, valid)
    }

    /// Declares a number in the narrowest kind for its bounds.
    fn narrowed(&mut self, text: &str, bounds: Bounds, valid: Option<String>) -> Result<Value> {
        let (kind, (min, max)) = (kind_of(bounds)?, bounds);
        let text = format!("static_cast<{}>({text})", kind.name());
        Ok(Value {
            text: self.declare(kind, &text),
            kind,
            valid,
            min,
            max,
        })
    }

    /// Returns the bounds of a divisor that are below zero, and those above.
    ///
    /// # Errors
    /// If it may be 0.
    fn divisors(&self, expr: &Arc<dyn PhysicalExpr>, value: &Value) -> Result<Vec<Bounds>> {
        let has_zero = (value.min..=value.max).contains(&0);
        // What is assumed of columns before their files are read tells nothing of zeros.
        let is_assumed = self.draft.scanned.facts.is_none() && value.min < value.max;
        if has_zero && !is_assumed && !self.is_nonzero(expr) {
            return Err(Reason::new("a divisor may be 0"));
        }
        let parts = [
            (value.min, value.max.min(-1)),
            (value.min.max(1), value.max),
        ];
        let parts = parts.into_iter().filter(|(min, max)| min <= max);
        Ok(parts.collect())
    }

    /// Returns whether an expression is never 0: `nullif(x, 0)`, or what the conditions of a `CASE` tell.
    fn is_nonzero(&self, expr: &Arc<dyn PhysicalExpr>) -> bool {
        let expr = self.uncast(expr);
        let call = expr.downcast_ref::<ScalarFunctionExpr>();
        call.is_some_and(is_null_if_zero) || self.function.nonzero.contains(expr)
    }

    /// Returns what an expression is a cast of that keeps all digits, or the expression.
    pub(crate) fn uncast<'e>(
        &self,
        mut expr: &'e Arc<dyn PhysicalExpr>,
    ) -> &'e Arc<dyn PhysicalExpr> {
        while let Some(cast) = expr.downcast_ref::<CastExpr>() {
            let own = self.data_type(cast.expr()).ok();
            let own = own.and_then(|it| scale_of(&it));
            let scales = own.zip(scale_of(cast.cast_type()));
            if scales.is_none_or(|(own, wanted)| own > wanted) {
                break;
            }
            expr = cast.expr();
        }
        expr
    }

    /// Declares how many times a power of ten with this many zeros is in a number.
    fn steps(&mut self, value: &Value, digits: i32, rounding: Rounding) -> Result<Value> {
        if digits <= 0 {
            return Ok(value.clone());
        }
        if digits > DIGITS_MAX {
            let text = format!("a number is rounded by more than {DIGITS_MAX} digits");
            return Err(Reason::new(text));
        }
        let step = 10_i128.pow(digits.unsigned_abs());
        let bounds = (
            rounding.steps(value.min, step),
            rounding.steps(value.max, step),
        );
        let kind = value.kind.max(kind_of((0, step))?).max(kind_of(bounds)?);
        let (name, number) = (rounding.name(), value.widened(kind));
        let step = format!("static_cast<{}>({step}ll)", kind.name());
        let text = format!("divided<{name}>({number}, {step})");
        self.narrowed(&text, bounds, value.valid.clone())
    }

    /// Declares an integer, a decimal or a condition as an integer or a decimal.
    ///
    /// # Errors
    /// If the types are others, or the cast may fail.
    pub(crate) fn cast_of(&mut self, of: &Arc<dyn PhysicalExpr>, to: &DataType) -> Result<Value> {
        let from = self.data_type(of)?;
        let refused = || Reason::new(format!("a cast from {from} to {to}"));
        if from == DataType::Boolean && to.is_integer() {
            let truth = self.condition(of)?;
            let text = truth.widened(Kind::Small);
            return self.narrowed(&text, (0, 1), truth.valid);
        }
        let (Some(own), Some(wanted)) = (scale_of(&from), scale_of(to)) else {
            return Err(refused());
        };
        let value = self.value(of)?;
        let rounding = match to.is_integer() {
            true => Rounding::TowardsZero,
            false => Rounding::Nearest,
        };
        let value = match own > wanted && wanted >= 0 {
            true => self.steps(&value, own - wanted, rounding)?,
            false => self.rescaled(&value, wanted - own)?,
        };
        let (low, high) = bounds_of(to).ok_or_else(refused)?;
        match value.min >= low && value.max <= high {
            true => Ok(value),
            false => Err(Reason::new(format!("a cast to {to} may fail"))),
        }
    }

    /// Declares the result of a function of integers or decimals; `None` if it is none of those that kernels have.
    pub(crate) fn number_call(&mut self, call: &ScalarFunctionExpr) -> Option<Result<Value>> {
        let (name, to) = (call.name(), call.return_type());
        if is_float(to) && !matches!(name, "nullif" | "signum") {
            return None;
        }
        Some(match (name, call.args()) {
            ("nullif", [value, other]) => self.null_if(value, other),
            ("greatest", [first, others @ ..]) => self.extreme(Operator::GtEq, first, others),
            ("least", [first, others @ ..]) => self.extreme(Operator::LtEq, first, others),
            ("signum", [of]) => self.sign(of),
            ("abs", [of]) => self.absolute(of, to),
            ("round_decimal", [of]) => self.cast_of(of, to),
            ("round", [of, places @ ..]) => self.rounded(of, places, to),
            ("trunc", [of, places @ ..]) => self.truncated(of, places),
            ("floor", [of]) => self.whole(of, Rounding::Down),
            ("ceil", [of]) => self.whole(of, Rounding::Up),
            _ => return None,
        })
    }

    /// Declares the sign of a float: -1, 0 or 1.
    fn sign(&mut self, of: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        let value = self.float_value(of)?;
        if value.largest_float().is_none() {
            return Err(Reason::new("floats may be infinite or NaN"));
        }
        let text = format!("static_cast<double>(({0} > 0) - ({0} < 0))", value.text);
        Ok(Value {
            text: self.declare(Kind::Float, &text),
            kind: Kind::Float,
            valid: value.valid,
            min: ordered(-1.0).into(),
            max: ordered(1.0).into(),
        })
    }

    fn absolute(&mut self, of: &Arc<dyn PhysicalExpr>, to: &DataType) -> Result<Value> {
        let value = self.value(of)?;
        if value.min >= 0 {
            return Ok(value);
        }
        let bounds = (0_i128.max(-value.max), value.max.max(-value.min));
        check("abs", bounds, to)?;
        let number = value.widened(value.kind.max(kind_of(bounds)?));
        let text = format!("{number} < 0 ? -{number} : {number}");
        self.narrowed(&text, bounds, value.valid)
    }

    /// Declares a number that is rounded to decimal places, or before the point if they are less than 0.
    fn rounded(
        &mut self,
        of: &Arc<dyn PhysicalExpr>,
        places: &[Arc<dyn PhysicalExpr>],
        to: &DataType,
    ) -> Result<Value> {
        let (from, places) = (self.data_type(of)?, places_of(places)?);
        let (Some(own @ 0..), Some(wanted)) = (scale_of(&from), scale_of(to)) else {
            return Err(Reason::new(format!("round of {from}")));
        };
        if let DataType::Decimal128(precision, _) = from
            && places < own - i32::from(precision)
        {
            return Err(Reason::new("a decimal that is rounded to 0"));
        }
        let value = self.value(of)?;
        if places >= own {
            return Ok(value);
        }
        let steps = self.steps(&value, own - places, Rounding::Nearest)?;
        let value = self.rescaled(&steps, wanted - places)?;
        check("round", (value.min, value.max), to)?;
        Ok(value)
    }

    /// Declares a decimal without the digits behind these decimal places.
    fn truncated(
        &mut self,
        of: &Arc<dyn PhysicalExpr>,
        places: &[Arc<dyn PhysicalExpr>],
    ) -> Result<Value> {
        let DataType::Decimal128(_, scale) = self.data_type(of)? else {
            return Err(Reason::new("trunc of other numbers than decimals"));
        };
        let digits = (i32::from(scale) - places_of(places)?).max(0);
        let value = self.value(of)?;
        let steps = self.steps(&value, digits, Rounding::TowardsZero)?;
        self.rescaled(&steps, digits)
    }

    /// Declares a decimal that is rounded to a whole number.
    fn whole(&mut self, of: &Arc<dyn PhysicalExpr>, rounding: Rounding) -> Result<Value> {
        let data_type = self.data_type(of)?;
        let DataType::Decimal128(_, scale) = data_type else {
            let text = format!("floor and ceil of {data_type}");
            return Err(Reason::new(text));
        };
        let digits = i32::from(scale).max(0);
        let value = self.value(of)?;
        let steps = self.steps(&value, digits, rounding)?;
        let value = self.rescaled(&steps, digits)?;
        check("rounding", (value.min, value.max), &data_type)?;
        Ok(value)
    }
}

/// Returns whether the source of a kernel divides or rounds numbers.
pub(crate) fn divides(source: &str) -> bool {
    source.contains("divided<")
}

/// Returns the narrowest kind of numbers within bounds.
fn kind_of((min, max): Bounds) -> Result<Kind> {
    Kind::of(min, max).ok_or_else(|| Reason::new("a number of more than 127 bits"))
}

/// Checks that the results of an operation stay in their type.
fn check(op: impl fmt::Display, (min, max): Bounds, data_type: &DataType) -> Result<()> {
    let bounds = bounds_of(data_type);
    match bounds.is_some_and(|(low, high)| low <= min && max <= high) {
        true => Ok(()),
        false => {
            let text = format!("{op} may leave the range of {data_type}");
            Err(Reason::new(text))
        }
    }
}

/// Returns the digits behind the point; `None` if a type has others than integers or decimals.
fn scale_of(data_type: &DataType) -> Option<i32> {
    match data_type {
        DataType::Decimal128(_, scale) => Some((*scale).into()),
        data_type if data_type.is_integer() => Some(0),
        _ => None,
    }
}

/// Returns how many digits the CPU adds to a dividend and to a divisor before it divides.
fn digits_added(
    (left, right): (&DataType, &DataType),
    op: Operator,
    result: &DataType,
) -> Result<(i32, i32)> {
    use DataType::Decimal128;
    match (left, right, result) {
        (Decimal128(_, left), Decimal128(_, right), Decimal128(_, scale)) => {
            let [left, right, scale] = [*left, *right, *scale].map(i32::from);
            Ok(match op {
                Operator::Divide => {
                    let digits = scale - left + right;
                    (digits.max(0), (-digits).max(0))
                }
                _ => (scale - left, scale - right),
            })
        }
        (left, right, result) if left == right && left == result && left.is_integer() => Ok((0, 0)),
        (left, right, _) => {
            let text = format!("{left} {op} {right} is not computed on GPUs");
            Err(Reason::new(text))
        }
    }
}

/// Returns the bounds of quotients, rounded towards zero, by divisors of which no bounds have zero between them.
fn bounds_of_quotients((min, max): Bounds, divisors: &[Bounds]) -> Bounds {
    // While one of both grows, the exact quotient only grows or only shrinks, as all divisors of a part have the same
    // sign. So it is smallest and largest at corners. Rounding keeps the order.
    let corners = divisors
        .iter()
        .flat_map(|(low, high)| [min / low, min / high, max / low, max / high]);
    let (least, largest) = (corners.clone().min(), corners.max());
    (least.unwrap_or(0), largest.unwrap_or(0))
}

/// Returns the bounds of what these quotients leave. It has the sign of the dividend, is not farther from zero, and
/// nearer to it than the divisor.
fn bounds_of_remainders((min, max): Bounds, divisors: &[Bounds]) -> Bounds {
    let farthest = divisors
        .iter()
        .flat_map(|(low, high)| [low.abs(), high.abs()]);
    let most = farthest.max().unwrap_or(1) - 1;
    (min.clamp(-most, 0), max.clamp(0, most))
}

/// Returns the decimal places of a call of `round` or `trunc`.
fn places_of(arguments: &[Arc<dyn PhysicalExpr>]) -> Result<i32> {
    let literal = match arguments {
        [] => return Ok(0),
        [places, ..] => places.downcast_ref::<Literal>().map(Literal::value),
    };
    let places = match literal {
        Some(ScalarValue::Int32(Some(places))) => Some(*places),
        Some(ScalarValue::Int64(Some(places))) => i32::try_from(*places).ok(),
        _ => None,
    };
    // So that differences of scales stay small.
    let places = places.filter(|it| it.unsigned_abs() <= 1 << 16);
    places.ok_or_else(|| Reason::new("decimal places that are no constant"))
}

/// Returns whether a constant is less than 0, 0 or more; `None` if it is NULL or no number.
pub(crate) fn sign_of(constant: &ScalarValue) -> Option<Ordering> {
    let zero = ScalarValue::new_zero(&constant.data_type()).ok()?;
    let sign = constant.partial_cmp(&zero);
    sign.filter(|_| !constant.is_null())
}

fn is_null_if_zero(call: &ScalarFunctionExpr) -> bool {
    let [_, other] = call.args() else {
        return false;
    };
    let other = other.downcast_ref::<Literal>().map(Literal::value);
    call.name() == "nullif" && other.and_then(sign_of) == Some(Ordering::Equal)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns all bounds of small numbers.
    fn all_bounds() -> impl Iterator<Item = Bounds> {
        (-7..=7).flat_map(|min| (min..=7).map(move |max| (min, max)))
    }

    #[test]
    fn bounds_of_divisions_are_those_of_all_numbers() {
        for dividends in all_bounds() {
            for divisors in all_bounds().filter(|(min, max)| min * max > 0) {
                let (min, max) = bounds_of_quotients(dividends, &[divisors]);
                let (least, most) = bounds_of_remainders(dividends, &[divisors]);
                let mut quotients = Vec::new();
                for dividend in dividends.0..=dividends.1 {
                    for divisor in divisors.0..=divisors.1 {
                        quotients.push(dividend / divisor);
                        assert!((least..=most).contains(&(dividend % divisor)));
                    }
                }
                let found = (quotients.iter().min(), quotients.iter().max());
                assert_eq!(found, (Some(&min), Some(&max)));
            }
        }
        let divisors = [(-3, -1), (1, 6)];
        assert_eq!(bounds_of_quotients((-9, 20), &divisors), (-20, 20));
        assert_eq!(bounds_of_remainders((-9, 20), &divisors), (-5, 5));
        assert_eq!(bounds_of_quotients((-9, 20), &[]), (0, 0));
        assert_eq!(bounds_of_remainders((-9, 20), &[]), (0, 0));
    }

    #[test]
    fn steps_are_rounded_as_on_the_cpu() {
        let of = |number: i128| {
            use Rounding::{Down, Nearest, TowardsZero, Up};
            [TowardsZero, Down, Up, Nearest].map(|it| it.steps(number, 10))
        };
        assert_eq!(of(24), [2, 2, 3, 2]);
        assert_eq!(of(25), [2, 2, 3, 3]);
        assert_eq!(of(30), [3, 3, 3, 3]);
        assert_eq!(of(-24), [-2, -3, -2, -2]);
        assert_eq!(of(-25), [-2, -3, -2, -3]);
        assert_eq!(of(-30), [-3, -3, -3, -3]);
    }

    #[test]
    fn dividends_and_divisors_get_the_digits_of_the_result() {
        let decimal = |scale| DataType::Decimal128(38, scale);
        let digits = |left, right, op, result| {
            let types = (&decimal(left), &decimal(right));
            digits_added(types, op, &decimal(result)).ok()
        };
        assert_eq!(digits(2, 0, Operator::Divide, 6), Some((4, 0)));
        assert_eq!(digits(2, 5, Operator::Divide, 6), Some((9, 0)));
        assert_eq!(digits(38, 0, Operator::Divide, 38), Some((0, 0)));
        assert_eq!(digits(2, -3, Operator::Divide, 4), Some((0, 1)));
        assert_eq!(digits(2, 5, Operator::Modulo, 5), Some((3, 0)));
        assert_eq!(digits(5, 2, Operator::Modulo, 5), Some((0, 3)));
        let types = (&DataType::Int32, &DataType::Int64);
        let other = digits_added(types, Operator::Divide, &DataType::Int64);
        assert!(other.is_err());
    }
}
