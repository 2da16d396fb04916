//! Sums of decimals, which fail if they have more than 38 digits.
//!
//! DataFusion 55 adds decimals in 128 bits and wraps, so that the sum of two numbers of 38 digits is another number.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array};
use datafusion::arrow::datatypes::{DataType, Decimal128Type, FieldRef};
use datafusion::error::{DataFusionError, Result};
use datafusion::functions_aggregate::sum::Sum;
use datafusion::logical_expr::expr::AggregateFunction;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::AggregateOrderSensitivity;
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, Expr, GroupsAccumulator,
    Operator, ReversedUDAF, SetMonotonicity, Signature, StatisticsArgs,
};
use datafusion::physical_expr::NullState;
use datafusion::scalar::ScalarValue;

use crate::error::{Code, SqlError};

/// Bits of a half of a decimal.
const HALF_BITS: u32 = 64;
/// The bits of the lower half.
const LOWER: i128 = (1_i128 << HALF_BITS) - 1;
/// The smallest number that has too many digits.
const END: u128 = 10_u128.pow(38);

/// Returns DataFusion's `sum`, with checked sums of decimals.
pub(crate) fn sum() -> AggregateUDF {
    AggregateUDF::new_from_impl(CheckedSum(Sum::new()))
}

fn overflow() -> DataFusionError {
    let error = SqlError::new(Code::NumericValueOutOfRange, "numeric field overflow")
        .with_hint("a sum has at most 38 digits; cast what is added to double precision");
    DataFusionError::External(Box::new(error))
}

/// DataFusion's function, which still adds what is not a decimal.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedSum(Sum);

impl AggregateUDFImpl for CheckedSum {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.0.return_type(types)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.return_type().clone() {
            data_type @ DataType::Decimal128(..) if args.is_distinct => {
                let values = self.0.accumulator(args)?;
                Ok(Box::new(DistinctTotal { values, data_type }))
            }
            data_type @ DataType::Decimal128(..) => Ok(Box::new(Total::new(data_type))),
            _ => self.0.accumulator(args),
        }
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.0.state_fields(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.0.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(
        &self,
        args: AccumulatorArgs,
    ) -> Result<Box<dyn GroupsAccumulator>> {
        let data_type = args.return_type().clone();
        let unchecked = self.0.create_groups_accumulator(args)?;
        match data_type {
            DataType::Decimal128(..) => Ok(Box::new(Totals {
                sums: Vec::new(),
                seen: NullState::new(),
                data_type,
                of_rows: unchecked,
            })),
            _ => Ok(unchecked),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        match args.return_type().clone() {
            data_type @ DataType::Decimal128(..) if !args.is_distinct => {
                Ok(Box::new(Total::new(data_type)))
            }
            _ => self.0.create_sliding_accumulator(args),
        }
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        self.0.order_sensitivity()
    }

    /// Returns `sum(x) + number * count(x)` for `sum(x + number)`; `None` for decimals, because the count may have
    /// more digits than the type of the number.
    fn simplify_expr_op_literal(
        &self,
        call: &AggregateFunction,
        value: &Expr,
        op: Operator,
        number: &Expr,
        is_left: bool,
    ) -> Result<Option<Expr>> {
        match number {
            Expr::Literal(number, _) if number.data_type().is_decimal() => Ok(None),
            _ => self
                .0
                .simplify_expr_op_literal(call, value, op, number, is_left),
        }
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        self.0.reverse_expr()
    }

    fn value_from_stats(&self, args: &StatisticsArgs) -> Option<ScalarValue> {
        self.0.value_from_stats(args)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }

    fn set_monotonicity(&self, data_type: &DataType) -> SetMonotonicity {
        self.0.set_monotonicity(data_type)
    }
}

/// A sum of decimals, also of those in a window. The halves of the numbers are added apart: no part of the sum wraps,
/// so that its order does not matter.
#[derive(Debug)]
struct Total {
    /// Sum of the upper halves, which have a sign.
    upper: i128,
    /// Sum of the lower halves.
    lower: i128,
    /// Number of values that are not NULL.
    count: u64,
    data_type: DataType,
}

impl Total {
    fn new(data_type: DataType) -> Total {
        Total {
            upper: 0,
            lower: 0,
            count: 0,
            data_type,
        }
    }

    /// Returns the sum.
    ///
    /// # Errors
    /// If it has too many digits.
    fn sum(&self) -> Result<i128> {
        let upper = self.upper + (self.lower >> HALF_BITS);
        let sum = upper.checked_mul(1_i128 << HALF_BITS);
        let sum = sum.map(|it| it | (self.lower & LOWER));
        sum.filter(|it| it.unsigned_abs() < END)
            .ok_or_else(overflow)
    }
}

/// Returns the sums of the upper and of the lower halves of numbers.
fn halves(numbers: &Decimal128Array) -> [i128; 2] {
    let add = |[upper, lower]: [i128; 2], number: i128| {
        [upper + (number >> HALF_BITS), lower + (number & LOWER)]
    };
    match numbers.null_count() {
        0 => numbers.values().iter().copied().fold([0; 2], add),
        _ => numbers.iter().flatten().fold([0; 2], add),
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let numbers = values[0].as_primitive::<Decimal128Type>();
        let [upper, lower] = halves(numbers);
        self.upper += upper;
        self.lower += lower;
        self.count += (numbers.len() - numbers.null_count()) as u64;
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let sum = match self.count {
            0 => None,
            _ => Some(self.sum()?),
        };
        ScalarValue::new_primitive::<Decimal128Type>(sum, &self.data_type)
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let numbers = values[0].as_primitive::<Decimal128Type>();
        let [upper, lower] = halves(numbers);
        self.upper -= upper;
        self.lower -= lower;
        self.count -= (numbers.len() - numbers.null_count()) as u64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }
}

/// A sum of different decimals.
#[derive(Debug)]
struct DistinctTotal {
    /// DataFusion's accumulator, whose state is a list of the values.
    values: Box<dyn Accumulator>,
    data_type: DataType,
}

impl Accumulator for DistinctTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values.update_batch(values)
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let mut total = Total::new(self.data_type.clone());
        for state in self.values.state()? {
            if let ScalarValue::List(list) = state {
                total.update_batch(&[Arc::clone(list.values())])?;
            }
        }
        total.evaluate()
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.values.size()
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        self.values.state()
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.values.merge_batch(states)
    }
}

/// The sums of decimals of groups. A sum that leaves 128 bits on its way fails, too.
struct Totals {
    sums: Vec<i128>,
    /// Which groups have a value that is not NULL.
    seen: NullState,
    data_type: DataType,
    /// DataFusion's accumulator. It only makes states of single rows, which adds nothing.
    of_rows: Box<dyn GroupsAccumulator>,
}

impl GroupsAccumulator for Totals {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        let numbers = values[0].as_primitive::<Decimal128Type>();
        self.sums.resize(count, 0);
        let sums = &mut self.sums;
        let mut has_wrapped = false;
        self.seen
            .accumulate(groups, numbers, filter, count, |group, number| {
                let (sum, wraps) = sums[group].overflowing_add(number);
                sums[group] = sum;
                has_wrapped |= wraps;
            });
        match has_wrapped {
            true => Err(overflow()),
            false => Ok(()),
        }
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let sums = emit_to.take_needed(&mut self.sums);
        if sums.iter().any(|it| it.unsigned_abs() >= END) {
            return Err(overflow());
        }
        let sums = Decimal128Array::new(sums.into(), self.seen.build(emit_to));
        Ok(Arc::new(sums.with_data_type(self.data_type.clone())))
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(vec![self.evaluate(emit_to)?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.update_batch(states, groups, None, count)
    }

    fn convert_to_state(
        &self,
        values: &[ArrayRef],
        filter: Option<&BooleanArray>,
    ) -> Result<Vec<ArrayRef>> {
        self.of_rows.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.seen.size() + self.of_rows.size()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::datatypes::{Field, Schema};
    use datafusion::physical_expr::aggregate::AggregateExprBuilder;
    use datafusion::physical_expr::expressions::col;

    use super::*;

    const TYPE: DataType = DataType::Decimal128(38, 0);
    const LARGEST: i128 = 10_i128.pow(38) - 1;
    const WORD: i128 = 1 << 64;

    fn decimals(numbers: &[Option<i128>]) -> [ArrayRef; 1] {
        let numbers = Decimal128Array::from(numbers.to_vec());
        [Arc::new(numbers.with_data_type(TYPE))]
    }

    fn decimal(sum: i128) -> ScalarValue {
        ScalarValue::Decimal128(Some(sum), 38, 0)
    }

    #[test]
    fn totals_are_exact_beyond_128_bits() {
        let mut total = Total::new(TYPE);
        assert!(total.evaluate().expect("NULL").is_null());
        let many = decimals(&[Some(LARGEST); 1000]);
        total.update_batch(&many).expect("numbers");
        let error = SqlError::from(total.evaluate().expect_err("a sum of 41 digits"));
        assert_eq!(error.code, Code::NumericValueOutOfRange);
        assert!(error.to_string().contains("double precision"), "{error}");
        total.retract_batch(&many).expect("the same numbers");
        assert!(total.evaluate().expect("NULL").is_null());
        for (numbers, sum) in [
            ([Some(LARGEST), None, Some(-LARGEST)], 0),
            ([Some(-LARGEST), None, None], -LARGEST),
            ([Some(1), Some(-1), Some(LARGEST)], 0),
            ([Some(-3), Some(WORD), Some(2)], WORD - 1),
            ([Some(1), None, None], WORD),
        ] {
            total.update_batch(&decimals(&numbers)).expect("numbers");
            assert_eq!(total.evaluate().expect("a sum"), decimal(sum));
        }
        let large = decimals(&[Some(LARGEST)]);
        total.update_batch(&large).expect("a number");
        assert!(total.evaluate().is_err());
    }

    /// Returns the sums of three groups.
    fn of_groups(numbers: &[Option<i128>], groups: &[usize]) -> Result<ArrayRef> {
        let schema = Arc::new(Schema::new(vec![Field::new("x", TYPE, true)]));
        let function = AggregateExprBuilder::new(Arc::new(sum()), vec![col("x", &schema)?])
            .schema(schema)
            .alias("sum")
            .build()?;
        let mut sums = function.create_groups_accumulator()?;
        sums.update_batch(&decimals(numbers), groups, None, 3)?;
        sums.evaluate(EmitTo::All)
    }

    #[test]
    fn sums_of_groups_fail_beyond_38_digits() {
        let found = of_groups(&[Some(LARGEST), None, Some(-1), Some(1)], &[0, 2, 0, 1]);
        let expected = decimals(&[Some(LARGEST - 1), Some(1), None]);
        assert_eq!(&found.expect("sums"), &expected[0]);
        // The first sum has 128 bits, the second more.
        for number in [1, LARGEST] {
            let found = of_groups(&[Some(LARGEST), Some(number)], &[1, 1]);
            let error = SqlError::from(found.expect_err("too many digits"));
            assert_eq!(error.code, Code::NumericValueOutOfRange);
        }
    }
}
