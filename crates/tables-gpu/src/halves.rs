//! Decimals of more than 64 bits. The device keeps such a column as two: the upper halves of its numbers, and the
//! lower ones. Kernels combine them. As keys of groups or joins, the halves are two keys.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, AsArray, Decimal128Array, RecordBatch};
use datafusion::arrow::datatypes::{DataType, Decimal128Type, Int64Type, Schema};
use datafusion::common::{DataFusionError, exec_datafusion_err, internal_datafusion_err};
use datafusion::error::Result;
use datafusion::logical_expr::{ColumnarValue, Operator};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{
    BinaryExpr, CaseExpr, CastExpr, InListExpr, IsNotNullExpr, IsNullExpr, NegativeExpr, NotExpr,
};

use crate::expression::Code;
use crate::fragment::column_of;
use crate::in_list::COMPARED_MAX;
use crate::reason::Reason;
use crate::value::{Kind, Value, bounds_of};

/// Bits of a half.
const HALF_BITS: u32 = 64;

/// The upper or the lower 64 bits of a decimal, as a signed integer. They are computed while a file is read.
#[derive(Debug, Eq)]
pub(crate) struct Half {
    of: Arc<dyn PhysicalExpr>,
    is_upper: bool,
}

// A derived one does not compile: it would move the expression.
impl PartialEq for Half {
    fn eq(&self, other: &Half) -> bool {
        self.is_upper == other.is_upper && self.of.eq(&other.of)
    }
}

impl Hash for Half {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_upper.hash(state);
        self.of.hash(state);
    }
}

impl Half {
    /// Returns both halves of a decimal: the upper one, and the lower.
    pub(crate) fn both(of: &Arc<dyn PhysicalExpr>) -> [Arc<dyn PhysicalExpr>; 2] {
        [true, false].map(|is_upper| -> Arc<dyn PhysicalExpr> {
            let of = Arc::clone(of);
            Arc::new(Half { of, is_upper })
        })
    }

    /// Returns which half of a column an expression is; `None` if it is another expression.
    pub(crate) fn name_of(expr: &Arc<dyn PhysicalExpr>) -> Option<&'static str> {
        let half = expr.downcast_ref::<Half>()?;
        column_of(&half.of)?;
        Some(half.name())
    }

    fn name(&self) -> &'static str {
        match self.is_upper {
            true => "upper half",
            false => "lower half",
        }
    }
}

impl fmt::Display for Half {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.name(), self.of)
    }
}

impl PhysicalExpr for Half {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(DataType::Int64)
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.of.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let numbers = self.of.evaluate(batch)?.into_array(batch.num_rows())?;
        let data_type = numbers.data_type();
        let bounds = bounds_of(data_type);
        let numbers = numbers.as_primitive_opt::<Decimal128Type>().zip(bounds);
        let (numbers, (min, max)) =
            numbers.ok_or_else(|| internal_datafusion_err!("halves of {data_type}"))?;
        let half = |number: i128| match (min..=max).contains(&number) {
            true if self.is_upper => Ok((number >> HALF_BITS) as i64),
            true => Ok(number as i64),
            // Files may have such, and kernels rely on the type.
            false => Err(exec_datafusion_err!("{number} has too many digits")),
        };
        let halves = numbers.try_unary::<_, Int64Type, DataFusionError>(half)?;
        Ok(ColumnarValue::Array(Arc::new(halves)))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.of]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let [of] = <[_; 1]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("a half of {} expressions", all.len()))?;
        let is_upper = self.is_upper;
        Ok(Arc::new(Half { of, is_upper }))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of ", self.name())?;
        self.of.fmt_sql(f)
    }
}

/// A decimal, from both halves.
#[derive(Debug, Eq)]
pub(crate) struct Halves {
    upper: Arc<dyn PhysicalExpr>,
    lower: Arc<dyn PhysicalExpr>,
    data_type: DataType,
}

impl PartialEq for Halves {
    fn eq(&self, other: &Halves) -> bool {
        let are_equal = self.upper.eq(&other.upper) && self.lower.eq(&other.lower);
        are_equal && self.data_type == other.data_type
    }
}

impl Hash for Halves {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.upper.hash(state);
        self.lower.hash(state);
    }
}

impl Halves {
    /// Returns the decimal of this type that has these halves.
    pub(crate) fn combined(
        [upper, lower]: [Arc<dyn PhysicalExpr>; 2],
        data_type: DataType,
    ) -> Arc<dyn PhysicalExpr> {
        Arc::new(Halves {
            upper,
            lower,
            data_type,
        })
    }
}

impl fmt::Display for Halves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} and {}", self.upper, self.lower)
    }
}

impl PhysicalExpr for Halves {
    fn data_type(&self, _: &Schema) -> Result<DataType> {
        Ok(self.data_type.clone())
    }

    fn nullable(&self, schema: &Schema) -> Result<bool> {
        self.upper.nullable(schema)
    }

    fn evaluate(&self, batch: &RecordBatch) -> Result<ColumnarValue> {
        let half = |of: &Arc<dyn PhysicalExpr>| of.evaluate(batch)?.into_array(batch.num_rows());
        let (upper, lower) = (half(&self.upper)?, half(&self.lower)?);
        let halves = upper.as_primitive_opt::<Int64Type>();
        let halves = halves.zip(lower.as_primitive_opt::<Int64Type>());
        let (upper, lower) =
            halves.ok_or_else(|| internal_datafusion_err!("{self} are no integers"))?;
        let numbers = upper.iter().zip(lower);
        let numbers = numbers.map(|(upper, lower)| {
            let both = upper.zip(lower);
            both.map(|(upper, lower)| number_of(upper.cast_unsigned(), lower.cast_unsigned()))
        });
        let numbers = decimals(numbers.collect(), &self.data_type)?;
        Ok(ColumnarValue::Array(numbers))
    }

    fn children(&self) -> Vec<&Arc<dyn PhysicalExpr>> {
        vec![&self.upper, &self.lower]
    }

    fn with_new_children(
        self: Arc<Self>,
        children: Vec<Arc<dyn PhysicalExpr>>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let halves = <[_; 2]>::try_from(children)
            .map_err(|all| internal_datafusion_err!("{} halves", all.len()))?;
        Ok(Halves::combined(halves, self.data_type.clone()))
    }

    fn fmt_sql(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.upper.fmt_sql(f)?;
        write!(f, " and ")?;
        self.lower.fmt_sql(f)
    }
}

impl Code<'_, '_> {
    /// Declares a decimal from both halves.
    ///
    /// # Errors
    /// If the kernel reads too many columns.
    pub(crate) fn halves(&mut self, halves: &Halves) -> std::result::Result<Value, Reason> {
        let both = [self.value(&halves.upper)?, self.value(&halves.lower)?];
        Ok(self.combined(halves, both))
    }

    /// Declares a decimal from both halves, which are in the table of a join.
    ///
    /// # Errors
    /// If the kernel that stores rows of the join reads too many columns.
    pub(crate) fn halves_of_join(
        &mut self,
        join: usize,
        halves: &Halves,
    ) -> std::result::Result<Value, Reason> {
        let upper = self.out_of_join(join, &halves.upper)?;
        let lower = self.out_of_join(join, &halves.lower)?;
        Ok(self.combined(halves, [upper, lower]))
    }

    fn combined(&mut self, halves: &Halves, [upper, lower]: [Value; 2]) -> Value {
        let text = format!("of_halves({}, {})", upper.text, lower.text);
        let (least, most) = bounds_of(&halves.data_type).unwrap_or((i128::MIN, i128::MAX));
        let (min, max) = bounds((upper.min, upper.max), (lower.min, lower.max));
        Value {
            text: self.declare(Kind::Huge, &text),
            kind: Kind::Huge,
            valid: upper.valid,
            min: min.max(least),
            max: max.min(most),
        }
    }

    /// Declares a numeric key of a join, for the probe rows and for the stored rows. A number of more than 64 bits is
    /// two keys, its halves.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn numbers_of_join(
        &mut self,
        join: usize,
        key: &Arc<dyn PhysicalExpr>,
        of_row: &Arc<dyn PhysicalExpr>,
    ) -> std::result::Result<(Vec<Value>, Vec<Value>), Reason> {
        self.data_type(key)?;
        let other = self.stored(join, |code| code.value(of_row))?;
        let own = self.value(key)?;
        if own.kind.max(other.kind) < Kind::Huge {
            return Ok((vec![own], vec![other]));
        }
        let others = self.stored(join, |code| code.both_halves(of_row))?;
        Ok((self.both_halves(key)?.into(), others.into()))
    }

    /// Declares both halves of a number, as signed integers: the upper one, which is NULL if the number is, and the
    /// lower.
    ///
    /// # Errors
    /// Why kernels cannot compute the number.
    pub(crate) fn both_halves(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> std::result::Result<[Value; 2], Reason> {
        if let Some(halves) = expr.downcast_ref::<Halves>() {
            let (upper, lower) = (self.value(&halves.upper)?, self.value(&halves.lower)?);
            let lower = Value {
                valid: None,
                ..lower
            };
            return Ok([upper, lower]);
        }
        let value = self.value(expr)?;
        let huge = value.widened(Kind::Huge);
        let mut half = |shift: &str, (min, max): (i128, i128), valid: Option<String>| Value {
            text: self.declare(Kind::Large, &format!("static_cast<i64>({huge}{shift})")),
            kind: Kind::Large,
            valid,
            min,
            max,
        };
        let upper = (value.min >> HALF_BITS, value.max >> HALF_BITS);
        let lower = bounds_of_lower(value.min, value.max);
        Ok([half(" >> 64", upper, value.valid), half("", lower, None)])
    }
}

/// Returns the bounds of the lower halves, as signed integers, of the numbers between two.
fn bounds_of_lower(min: i128, max: i128) -> (i128, i128) {
    let (first, last) = (i128::from(min as i64), i128::from(max as i64));
    // Lower halves have the order of the numbers if each number is its own lower half, or if all numbers have the
    // same upper half and the same sign of the lower one.
    let are_equal = (first, last) == (min, max);
    let have_upper = min >> HALF_BITS == max >> HALF_BITS && (first < 0) == (last < 0);
    match are_equal || have_upper {
        true => (first, last),
        false => (i64::MIN.into(), i64::MAX.into()),
    }
}

/// Returns the bounds of numbers whose halves, as signed integers, have these bounds.
fn bounds(upper: (i128, i128), (min, max): (i128, i128)) -> (i128, i128) {
    let one_below = i128::from(u64::MAX);
    // With the same upper half, numbers order as the lower halves do, of which those below 0 are the greatest.
    let lower = match upper.0 == upper.1 && (min < 0) == (max < 0) {
        true => (min & one_below, max & one_below),
        false => (0, one_below),
    };
    (
        upper.0 << HALF_BITS | lower.0,
        upper.1 << HALF_BITS | lower.1,
    )
}

/// Returns the number that has these halves.
pub(crate) fn number_of(upper: u64, lower: u64) -> i128 {
    (u128::from(upper) << HALF_BITS | u128::from(lower)).cast_signed()
}

/// Returns numbers as decimals of a type.
///
/// # Errors
/// If the type is another.
pub(crate) fn decimals(numbers: Vec<Option<i128>>, data_type: &DataType) -> Result<ArrayRef> {
    let DataType::Decimal128(precision, scale) = data_type else {
        return Err(internal_datafusion_err!(
            "numbers of 128 bits as {data_type}"
        ));
    };
    let decimals = Decimal128Array::from(numbers);
    let decimals = decimals.with_precision_and_scale(*precision, *scale)?;
    Ok(Arc::new(decimals))
}

/// Returns whether the source of a kernel combines halves, or aggregates numbers of 128 bits.
pub(crate) fn has_halves(source: &str) -> bool {
    let names = ["of_halves(", "part_of<", "ordered_high("];
    names.iter().any(|name| source.contains(name))
}

/// Returns whether kernels compute what an expression does with decimals of 128 bits. The CPU computes other
/// expressions while it reads the file.
pub(crate) fn is_of_kernels(expr: &Arc<dyn PhysicalExpr>) -> bool {
    if let Some(cast) = expr.downcast_ref::<CastExpr>() {
        let to = cast.cast_type();
        return to.is_integer() || matches!(to, DataType::Decimal128(..));
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
        return !matches!(binary.op(), Operator::Divide | Operator::Modulo);
    }
    if let Some(list) = expr.downcast_ref::<InListExpr>() {
        return list.len() <= COMPARED_MAX;
    }
    expr.is::<CaseExpr>()
        || expr.is::<IsNullExpr>()
        || expr.is::<IsNotNullExpr>()
        || expr.is::<NegativeExpr>()
        || expr.is::<NotExpr>()
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::Field;
    use datafusion::physical_expr::expressions::Column;

    use super::*;

    /// Numbers at the ends of halves and of decimals.
    const NUMBERS: [Option<i128>; 12] = [
        Some(0),
        Some(-1),
        None,
        Some(i64::MAX as i128),
        Some(i64::MAX as i128 + 1),
        Some(i64::MIN as i128),
        Some(i64::MIN as i128 - 1),
        Some(u64::MAX as i128),
        Some(u64::MAX as i128 + 1),
        None,
        Some(10_i128.pow(38) - 1),
        Some(1 - 10_i128.pow(38)),
    ];

    fn batch(numbers: &[Option<i128>], data_type: &DataType) -> RecordBatch {
        let numbers = decimals(numbers.to_vec(), data_type).expect("decimals");
        RecordBatch::try_from_iter_with_nullable([("n", numbers, true)]).expect("one column")
    }

    #[test]
    fn halves_of_slices_are_combined_again() {
        let data_type = DataType::Decimal128(38, 3);
        let batch = batch(&NUMBERS, &data_type);
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("n", 0));
        let both = Half::both(&column);
        for (first, rows) in [(0, 12), (1, 5), (2, 9), (9, 1), (11, 1)] {
            let slice = batch.slice(first, rows);
            let halves = both.each_ref().map(|half| {
                let values = half.evaluate(&slice).and_then(|it| it.into_array(rows));
                values.expect("halves")
            });
            let schema = ["upper", "lower"].map(|name| Field::new(name, DataType::Int64, true));
            let schema = Arc::new(Schema::new(schema.to_vec()));
            let halves = RecordBatch::try_new(schema, halves.to_vec()).expect("two columns");
            let columns = [("upper", 0), ("lower", 1)];
            let columns = columns.map(|(name, index)| Arc::new(Column::new(name, index)) as _);
            let combined = Halves::combined(columns, data_type.clone()).evaluate(&halves);
            let combined = combined.and_then(|it| it.into_array(rows));
            assert_eq!(
                &combined.expect("decimals"),
                slice.column(0),
                "{first} {rows}"
            );
        }
        assert_eq!(Half::name_of(&both[0]), Some("upper half"));
        assert_eq!(Half::name_of(&column), None);
    }

    #[test]
    fn numbers_with_more_digits_than_their_type_have_no_halves() {
        let batch = batch(&[Some(10_i128.pow(20))], &DataType::Decimal128(20, 0));
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new("n", 0));
        for half in Half::both(&column) {
            assert!(half.evaluate(&batch).is_err());
        }
    }

    #[test]
    fn bounds_are_those_of_numbers_with_the_halves() {
        let ends = |numbers: &[i128]| {
            let halves = numbers.iter().map(|it| ((it >> 64) as i64, *it as i64));
            let (upper, lower): (Vec<_>, Vec<_>) = halves.unzip();
            let range = |of: &[i64]| {
                let (min, max) = (of.iter().min(), of.iter().max());
                (
                    i128::from(min.copied().unwrap()),
                    i128::from(max.copied().unwrap()),
                )
            };
            bounds(range(&upper), range(&lower))
        };
        let (half, whole): (i128, i128) = (1 << 63, 1 << 64);
        // All lower halves are of the same sign, so that the bounds are exact.
        for numbers in [
            [5, 7, 6],
            [half, half + 9, half + 3],
            [-whole, -whole + 7, -whole + 2],
        ] {
            let sorted = (numbers.iter().min().copied(), numbers.iter().max().copied());
            let (min, max) = ends(&numbers);
            assert_eq!((Some(min), Some(max)), sorted);
        }
        assert_eq!(ends(&[half - 1, half]), (0, whole - 1));
        assert_eq!(ends(&[-1, whole + 5]), (-whole, 2 * whole - 1));
    }

    #[test]
    fn lower_halves_lie_between_their_bounds() {
        let (half, whole): (i128, i128) = (1 << 63, 1 << 64);
        let all = (i64::MIN.into(), i64::MAX.into());
        for (min, max, bounds) in [
            (-2, 5, (-2, 5)),
            (-half, half - 1, all),
            (whole + 3, whole + 9, (3, 9)),
            (half, half + 9, (-half, 9 - half)),
            (-whole, 7 - whole, (0, 7)),
            (half - 1, half, all),
            (whole - 1, whole, all),
            (-half - 1, -half, all),
        ] {
            assert_eq!(bounds_of_lower(min, max), bounds, "{min} {max}");
            for number in [min, min + 1, max - 1, max] {
                let lower = i128::from(number as i64);
                assert!((bounds.0..=bounds.1).contains(&lower), "{number}");
            }
        }
    }
}
