//! Aggregates in generated code: the totals of a group that make the states of each.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Literal, is_not_null};

use crate::floats::{PART_MAX, Parts};
use crate::fragment::Aggregate;
use crate::groups::Values;
use crate::ordinal::Ordinal;
use crate::packed::is_text;
use crate::program::{Added, Column, Float, Output, Slots, WIDE_PART_BITS};
use crate::reason::Reason;
use crate::scanned::Scanned;
use crate::value::{Kind, Value};
use crate::variance::{
    DISTANCE_MAX, Distances, HALF_BITS, ROWS_MAX, VARIANCES, decimals, integers,
};

type Result<T> = std::result::Result<T, Reason>;

/// Sums of integers up to this are exact as floats.
const FLOAT_MAX: u128 = 1 << 53;

impl Slots<'_, '_> {
    /// Returns the states of an aggregate.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Vec<Column>> {
        let scanned = self.code.draft.scanned;
        let function = &aggregate.function;
        let name = function.fun().name();
        if function.is_distinct() || !function.order_bys().is_empty() {
            return Err(Reason::new(format!("{name} of distinct or ordered values")));
        }
        let filter = aggregate.filter.as_ref();
        let filter = filter.map(|it| self.code.condition(it)).transpose()?;
        let filter = filter.map(|it| match it.valid {
            Some(valid) => self
                .code
                .declare(Kind::Bool, &format!("{} & {valid}", it.text)),
            None => it.text,
        });
        let [argument] = aggregate.arguments.as_slice() else {
            return Err(Reason::new(format!("{name} of several values")));
        };
        let types = function.state_fields().map_err(Reason::of)?;
        let types: Vec<DataType> = types.iter().map(|it| it.data_type().clone()).collect();
        let column = |output, index: usize, bounds| Column {
            output,
            data_type: types[index].clone(),
            bounds,
            values: None,
        };
        if name == "count" && aggregate.is_of_states {
            let value = self.code.value(argument)?;
            let sum = self.sum(&value, value.valid.as_deref());
            let largest = i128::try_from(self.largest(&value)).unwrap_or(i128::MAX);
            return Ok(vec![column(Output::Count(sum), 0, (0, largest))]);
        }
        if name == "count" {
            let rows = self.counted(argument, filter.as_deref(), scanned)?;
            return Ok(vec![column(Output::Count(rows), 0, self.of_counts())]);
        }
        if matches!(name, "min" | "max") && is_text(&self.code.type_of(argument)?) {
            let ordinal: Arc<dyn PhysicalExpr> = Arc::new(Ordinal::new(Arc::clone(argument)));
            let mut columns =
                self.of_numbers(&ordinal, filter.as_deref(), (name, &types), column)?;
            for column in &mut columns {
                column.values = Some(Values::Array(self.code.values_in_order(&ordinal)?));
            }
            return Ok(columns);
        }
        self.of_numbers(argument, filter.as_deref(), (name, &types), column)
    }

    /// Returns the bounds of a number of rows.
    fn of_counts(&self) -> (i128, i128) {
        (0, self.rows.into())
    }

    /// Returns the states of an aggregate of numbers, which has this name and states of these types.
    fn of_numbers(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        (name, types): (&str, &[DataType]),
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        if VARIANCES.contains(&name) && types.len() == 3 {
            return self.variance(argument, filter, column);
        }
        let integers = integers(argument, self.code.draft.scanned);
        let is_float = integers.is_some() && matches!(types.last(), Some(DataType::Float64));
        let argument = integers.filter(|_| name == "avg").unwrap_or(argument);
        let value = self.code.value(argument)?;
        if value.kind == Kind::Float {
            return self.of_floats((argument, &value), filter, (name, types), column);
        }
        let are_truths = matches!(name, "min" | "max" | "bool_and" | "bool_or");
        if value.kind == Kind::Huge {
            return self.of_wide((argument, &value), filter, (name, types), column);
        }
        if value.kind == Kind::Bool && !are_truths {
            return Err(Reason::new(format!("{name} of {argument}")));
        }
        let of_values = (value.min, value.max);
        let largest = i128::try_from(self.largest(&value)).unwrap_or(i128::MAX);
        let of_sums = (-largest, largest);
        let rows = self.rows_of(&value, filter);
        let kept = self.condition(&value, filter);
        let large = value.widened(Kind::Large);
        match (name, types) {
            ("sum", [DataType::Int64 | DataType::Decimal128(..)]) => {
                let sum = self.sum(&value, kept.as_deref());
                self.check_integers(&value, &types[0])?;
                Ok(vec![column(Output::Sum(sum, rows), 0, of_sums)])
            }
            ("avg", [DataType::UInt64, of_sum]) if of_sum.is_decimal() => {
                let sum = self.sum(&value, kept.as_deref());
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(Output::Sum(sum, rows), 1, of_sums)])
            }
            ("avg", [DataType::UInt64, DataType::Float64]) if is_float => {
                if self.largest(&value) >= FLOAT_MAX {
                    return Err(Reason::new("an average of integers may be rounded"));
                }
                let sum = Float::Decimals {
                    sum: self.sum(&value, kept.as_deref()),
                    rows,
                    exponent: 0,
                };
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(Output::Float(sum), 1, of_sums)])
            }
            ("min" | "bool_and", [_]) => {
                let value = format!("~ordered({large})");
                let slot = self.slot(kept.as_deref(), value, Added::Maximum);
                Ok(vec![column(Output::Min(slot, rows), 0, of_values)])
            }
            ("max" | "bool_or", [_]) => {
                let value = format!("ordered({large})");
                let slot = self.slot(kept.as_deref(), value, Added::Maximum);
                Ok(vec![column(Output::Max(slot, rows), 0, of_values)])
            }
            _ => Err(Reason::new(format!("{name} of {argument}"))),
        }
    }

    /// Returns the states of an aggregate of decimals of 128 bits, as [`Slots::of_numbers`] does.
    fn of_wide(
        &mut self,
        (argument, value): (&Arc<dyn PhysicalExpr>, &Value),
        filter: Option<&str>,
        (name, types): (&str, &[DataType]),
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        let rows = self.rows_of(value, filter);
        let kept = self.condition(value, filter);
        let largest = i128::try_from(self.largest(value)).unwrap_or(i128::MAX);
        let of_sums = (-largest, largest);
        let number = &value.text;
        match (name, types) {
            ("sum", [DataType::Decimal128(..)]) => {
                let slots = self.sum_in_parts(value, kept.as_deref());
                Ok(vec![column(Output::Parts { slots, rows }, 0, of_sums)])
            }
            ("avg", [DataType::UInt64, of_sum]) if of_sum.is_decimal() => {
                let slots = self.sum_in_parts(value, kept.as_deref());
                let count = column(Output::Some(rows), 0, self.of_counts());
                let sum = column(Output::Parts { slots, rows }, 1, of_sums);
                Ok(vec![count, sum])
            }
            ("min" | "max", [DataType::Decimal128(..)]) => {
                let (sign, output): (_, fn(usize, usize) -> Output) = match name {
                    "min" => ("~", Output::Min),
                    _ => ("", Output::Max),
                };
                let words =
                    format!("{sign}ordered_high({number}), {sign}static_cast<u64>({number})");
                let slot = self.slot(kept.as_deref(), words, Added::WideMaximum);
                let bounds = (value.min, value.max);
                Ok(vec![column(output(slot, rows), 0, bounds)])
            }
            _ => Err(Reason::new(format!("{name} of {argument}"))),
        }
    }

    /// Returns the slots of the parts of a sum of numbers of 128 bits, the lowest first. All parts of a number but the
    /// last are not negative.
    fn sum_in_parts(&mut self, value: &Value, condition: Option<&str>) -> Vec<usize> {
        let (mut slots, mut shift, mut left) = (Vec::new(), 0, value.largest());
        let most = 1_u128 << WIDE_PART_BITS;
        self.addend_max = self.addend_max.max(most);
        let number = &value.text;
        while left >= most {
            let part = format!("part_of<{WIDE_PART_BITS}>({number} >> {shift})");
            slots.push(self.slot(condition, part, Added::UpTo(most)));
            (shift, left) = (shift + WIDE_PART_BITS, left >> WIDE_PART_BITS);
        }
        let last = format!("static_cast<i64>({number} >> {shift})");
        slots.push(self.slot(condition, last, Added::UpTo(most)));
        slots
    }

    /// Returns the states of an aggregate of floats, as [`Slots::of_numbers`] does.
    fn of_floats(
        &mut self,
        (argument, value): (&Arc<dyn PhysicalExpr>, &Value),
        filter: Option<&str>,
        (name, types): (&str, &[DataType]),
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        let not_finite = || Reason::new(format!("{name} of floats that may be infinite or NaN"));
        let largest = value.largest_float().ok_or_else(not_finite)?;
        let rows = self.rows_of(value, filter);
        let kept = self.condition(value, filter);
        match (name, types) {
            ("min" | "max", [_]) => {
                let bits = self.code.bits_of(value).text;
                let (code, output): (_, fn(usize, usize) -> Output) = match name {
                    "min" => (format!("~ordered({bits})"), Output::Min),
                    _ => (format!("ordered({bits})"), Output::Max),
                };
                let slot = self.slot(kept.as_deref(), code, Added::Maximum);
                let bounds = (value.min, value.max);
                Ok(vec![column(output(slot, rows), 0, bounds)])
            }
            ("sum", [DataType::Float64]) => {
                let sum = self.sum_of_floats(argument, (largest, rows), kept.as_deref())?;
                Ok(vec![column(sum, 0, (0, 0))])
            }
            ("avg", [DataType::UInt64, DataType::Float64]) => {
                let sum = self.sum_of_floats(argument, (largest, rows), kept.as_deref())?;
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(sum, 1, (0, 0))])
            }
            _ => Err(Reason::new(format!("{name} of floats"))),
        }
    }

    /// Declares the integer of an argument that is a column of decimals. Returns it with their exponent. Floats of 32
    /// bits are aggregated as those of 64 bits that they are, which have more digits.
    fn decimals_of(&mut self, argument: &Arc<dyn PhysicalExpr>) -> Result<Option<(Value, u32)>> {
        let schema = &self.code.draft.scanned.schema;
        match argument.data_type(schema).map_err(Reason::of)? {
            DataType::Float64 => self.code.decimals(argument),
            _ => Ok(None),
        }
    }

    /// Returns the states of a variance or a standard deviation.
    fn variance(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        let (value, exponent) = match decimals(argument, self.code.draft.scanned) {
            Some((inner, exponent)) => (self.code.value(inner)?, exponent),
            None => {
                let decimals = self.decimals_of(argument)?;
                decimals.ok_or_else(|| Reason::new(format!("a variance of {argument}")))?
            }
        };
        let distance = value.max.saturating_sub(value.min);
        if value.kind > Kind::Large || distance > DISTANCE_MAX || self.rows > ROWS_MAX {
            return Err(Reason::new("a variance of numbers that are far apart"));
        }
        let rows = self.rows_of(&value, filter);
        let kept = self.condition(&value, filter);
        let first = value.min as i64;
        let constant = 2 * self.code.draft.uses.constant(first.into())?;
        let text = format!(
            "{} - static_cast<i64>(f.constants[{constant}])",
            value.widened(Kind::Large)
        );
        let text = self.code.declare(Kind::Large, &text);
        // That of NULL may be any number.
        let square =
            format!("static_cast<i64>(static_cast<u64>({text}) * static_cast<u64>({text}))");
        let square = self.code.declare(Kind::Large, &square);
        let low_max = (1_u128 << HALF_BITS) - 1;
        let parts = [
            (text, distance.unsigned_abs()),
            (format!("{square} >> {HALF_BITS}"), low_max),
            (format!("{square} & {low_max}ll"), low_max),
        ];
        let slots = parts.map(|(text, addend_max)| {
            self.addend_max = self.addend_max.max(addend_max);
            self.slot(kept.as_deref(), text, Added::UpTo(addend_max))
        });
        let moment = |is_mean| {
            Output::Float(Float::Moment {
                is_mean,
                slots,
                rows,
                distances: Distances { first, exponent },
            })
        };
        Ok(vec![
            column(Output::Unsigned(rows), 0, self.of_counts()),
            column(moment(true), 1, (0, 0)),
            column(moment(false), 2, (0, 0)),
        ])
    }

    /// Returns the sum of floats of at most this absolute value, whose rows a slot counts.
    fn sum_of_floats(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        (largest, rows): (f64, usize),
        condition: Option<&str>,
    ) -> Result<Output> {
        let decimals = self.decimals_of(argument)?;
        // Those of more digits would leave the 64 bits that a block has for a total.
        let is_small = |it: &(Value, u32)| it.0.largest() <= PART_MAX;
        if let Some((decimals, exponent)) = decimals.filter(is_small) {
            let sum = self.sum(&decimals, condition);
            return Ok(Output::Float(Float::Decimals {
                sum,
                rows,
                exponent,
            }));
        }
        let value = &self.code.value(argument)?;
        let of = (value.text.clone(), condition.map(str::to_owned));
        if let Some(known) = self.float_sums.get(&of) {
            return Ok(known.clone());
        }
        let parts = Parts::of(largest);
        let all = self.code.parts_of(value, (parts, condition))?;
        self.addend_max = self.addend_max.max(PART_MAX);
        let added = Added::UpTo(PART_MAX);
        let sum = Output::Float(Float::Sum {
            slots: all.map(|part| self.slot(condition, part, added)),
            rows,
            parts,
        });
        self.float_sums.insert(of, sum.clone());
        Ok(sum)
    }

    /// Returns the slot of the number of rows in which an argument is not NULL.
    fn counted(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        scanned: &Scanned,
    ) -> Result<usize> {
        let is_null = is_not_null(Arc::clone(argument));
        let literal = argument.downcast_ref::<Literal>();
        let is_some = literal.is_some_and(|it| !it.value().is_null());
        if is_some || !argument.nullable(&scanned.schema).map_err(Reason::of)? {
            return Ok(self.slot(filter, "1".to_owned(), Added::UpTo(1)));
        }
        let valid = self.code.value(&is_null.map_err(Reason::of)?)?;
        let value = Value {
            valid: Some(valid.text.clone()),
            ..valid
        };
        Ok(self.rows_of(&value, filter))
    }

    /// Returns the slot of the number of rows that count for a value.
    fn rows_of(&mut self, value: &Value, filter: Option<&str>) -> usize {
        let condition = self.condition(value, filter);
        self.slot(condition.as_deref(), "1".to_owned(), Added::UpTo(1))
    }

    fn condition(&mut self, value: &Value, filter: Option<&str>) -> Option<String> {
        match (value.valid.as_deref(), filter) {
            (Some(valid), Some(filter)) => {
                let both = format!("{valid} & {filter}");
                Some(self.code.declare(Kind::Bool, &both))
            }
            (one, other) => one.or(other).map(str::to_owned),
        }
    }

    fn sum(&mut self, value: &Value, condition: Option<&str>) -> usize {
        let addend_max = value.largest();
        self.addend_max = self.addend_max.max(addend_max);
        let added = Added::UpTo(addend_max);
        self.slot(condition, value.widened(Kind::Large), added)
    }

    /// Returns the largest absolute value that a sum over all rows may have.
    fn largest(&self, value: &Value) -> u128 {
        value.largest().saturating_mul(self.rows.into())
    }

    /// Checks that a sum of integers does not wrap.
    fn check_integers(&self, value: &Value, data_type: &DataType) -> Result<()> {
        let wraps = *data_type == DataType::Int64 && self.largest(value) >= 1 << 63;
        match wraps {
            true => Err(Reason::new("a sum may leave the range of Int64")),
            false => Ok(()),
        }
    }
}
