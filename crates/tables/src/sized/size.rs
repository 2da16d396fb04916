//! Estimates of the bytes that functions return.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{
    DataType, Int64Type, IntervalMonthDayNano, IntervalMonthDayNanoType, IntervalUnit, TimeUnit,
};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use datafusion::scalar::ScalarValue;

use super::{PART_BYTES, may_be_long};
use crate::lengths::{array_bytes, leaves, value_bytes};

/// Bytes of a number, or of a text's or list's place in a list.
const ITEM_BYTES: usize = 16;
/// Maximum bytes of a number's text.
const NUMBER_BYTES: usize = 40;

/// How the arguments of a function tell the size of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Size {
    /// At most a few times the bytes of all arguments.
    Arguments,
    /// The second argument is the number of times that the first is repeated.
    Times,
    /// The second argument is the length of the result, in characters.
    Length,
    /// The second argument is the number of items, the third their value.
    Items,
    /// From the first argument to the second, in steps of the third. With one argument, from 0 to it.
    Range,
    /// The first argument between all others.
    Between,
    /// The second argument between the items of the first, and the third in place of NULLs.
    Joined,
    /// The first argument, with the third in place of the second.
    Replaced,
    /// The first argument, with the third in place of what the second matches, once or with the flag `g`.
    Matched,
    /// The first argument, with the third in place of each item.
    ItemsReplaced,
    /// A number. The arguments must be short, as the time is that of their product.
    Compared,
    /// A number: where the second argument is in the first.
    Found,
}

/// Some of the rows for which a function is computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    from: usize,
    pub(super) count: usize,
    /// All arguments are the same in all rows, so that there is one result.
    pub(super) are_one: bool,
}

impl Rows {
    pub(super) fn of(arguments: &ScalarFunctionArgs) -> Rows {
        let mut values = arguments.args.iter();
        let are_one = values.all(|value| matches!(value, ColumnarValue::Scalar(_)));
        Rows {
            from: 0,
            count: if are_one { 1 } else { arguments.number_rows },
            are_one,
        }
    }

    pub(super) fn of_arguments(self, arguments: &ScalarFunctionArgs) -> ScalarFunctionArgs {
        let mut part = arguments.clone();
        if !self.are_one {
            part.number_rows = self.count;
            part.args = arguments
                .args
                .iter()
                .map(|value| self.of_value(value))
                .collect();
        }
        part
    }

    fn of_value(self, value: &ColumnarValue) -> ColumnarValue {
        match value {
            ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(self.from, self.count)),
            ColumnarValue::Scalar(_) => value.clone(),
        }
    }
}

impl Size {
    /// Returns how many bytes are in use while a byte of the result is made: buffers of unknown length grow by copying.
    pub(super) fn work_factor(self) -> usize {
        match self {
            Size::Joined | Size::Replaced | Size::Matched => 3,
            _ => 1,
        }
    }

    /// Returns about the bytes of the result for all rows.
    pub(super) fn bytes(self, values: &[ColumnarValue], rows: Rows) -> usize {
        if matches!(self, Size::Arguments | Size::Compared | Size::Found) {
            let sizes = values.iter().map(|value| value_bytes(value, rows.count));
            return sizes.fold(0, usize::saturating_add);
        }
        let mut values: Vec<Argument> = values.iter().map(Argument::new).collect();
        if matches!(self, Size::Joined | Size::ItemsReplaced)
            && let [Argument::Rows { values: lists, .. }, rest @ ..] = &*values
            && rest
                .iter()
                .all(|value| matches!(value, Argument::Same { .. }))
        {
            // What each item adds is the same in all rows.
            values[0] = Argument::whole(lists);
            return self.row_bytes(&values, 0);
        }
        let each = (rows.from..rows.from + rows.count).map(|row| self.row_bytes(&values, row));
        each.fold(0, usize::saturating_add)
    }

    /// Returns the rows from `from` on that are computed at once, at least one, and the bytes of their result.
    pub(super) fn part(self, values: &[ColumnarValue], rows: Rows, from: usize) -> (Rows, usize) {
        let one = |row| Rows {
            from: row,
            count: 1,
            ..rows
        };
        let arguments: Vec<Argument> = values.iter().map(Argument::new).collect();
        let row_bytes = |row| match self {
            Size::Arguments | Size::Compared | Size::Found => {
                let values = values
                    .iter()
                    .map(|value| value_bytes(&one(row).of_value(value), 1));
                values.fold(0, usize::saturating_add)
            }
            _ => self.row_bytes(&arguments, row),
        };
        let (mut part, mut bytes) = (one(from), row_bytes(from));
        while from + part.count < rows.count {
            let more = bytes.saturating_add(row_bytes(from + part.count));
            if more > PART_BYTES {
                break;
            }
            (part.count, bytes) = (part.count + 1, more);
        }
        (part, bytes)
    }

    /// Returns the bytes of the result for a row, at least about as many as it will have.
    fn row_bytes(self, values: &[Argument], row: usize) -> usize {
        let bytes = |index: usize| values.get(index).map_or(0, |value| value.bytes(row));
        let items = |index: usize| values.get(index).map_or(0, |value| value.items(row));
        let number = |index: usize| values.get(index).map_or(0, |value| value.count(row));
        let texts =
            || (0..values.len()).fold(0, |sum: usize, index| sum.saturating_add(bytes(index)));
        match self {
            Size::Arguments | Size::Compared | Size::Found => texts(),
            Size::Times => number(1).saturating_mul(bytes(0).max(1)),
            Size::Length => number(1).saturating_mul(bytes(2).clamp(1, 4)),
            Size::Items => number(1).saturating_mul(bytes(2).max(ITEM_BYTES)),
            Size::Range => range_items(values, row).saturating_mul(8),
            Size::Between => {
                let others = (1..values.len()).map(items);
                texts().saturating_add(others.sum::<usize>().saturating_mul(bytes(0)))
            }
            Size::Joined => {
                let each = bytes(1)
                    .saturating_add(bytes(2))
                    .saturating_add(NUMBER_BYTES);
                bytes(0).saturating_add(items(0).saturating_mul(each))
            }
            Size::Replaced => {
                let count = bytes(0) / bytes(1).max(1) + 1;
                let made = |count: usize| bytes(0).saturating_add(count.saturating_mul(bytes(2)));
                match made(count) {
                    0..=PART_BYTES => made(count),
                    _ => made(values[0].text(row).matches(values[1].text(row)).count()),
                }
            }
            Size::Matched => {
                let text = |index: usize| values.get(index).map_or("", |value| value.text(row));
                let groups = text(2).matches(['\\', '$']).count();
                let count = match text(3).contains('g') {
                    true => bytes(0).saturating_add(1),
                    false => 1,
                };
                let copied = bytes(0).saturating_mul(groups.saturating_add(1));
                copied.saturating_add(count.saturating_mul(bytes(2)))
            }
            Size::ItemsReplaced => {
                let replaced = items(0).saturating_mul(bytes(2).max(ITEM_BYTES));
                bytes(0).saturating_add(replaced)
            }
        }
    }
}

/// An argument of a function.
pub(super) enum Argument<'a> {
    /// The same in all rows.
    Same {
        value: &'a ScalarValue,
        bytes: usize,
        items: usize,
        number: Option<i64>,
    },
    /// Another in each row. Numbers are those of numbers, and microseconds of times and intervals.
    Rows {
        values: &'a ArrayRef,
        numbers: Option<Int64Array>,
    },
}

impl<'a> Argument<'a> {
    pub(super) fn new(value: &'a ColumnarValue) -> Argument<'a> {
        match value {
            ColumnarValue::Array(values) => Argument::Rows {
                values,
                numbers: numbers(values),
            },
            ColumnarValue::Scalar(value) => {
                let array = match may_be_long(&value.data_type()) && !value.data_type().is_nested()
                {
                    true => None,
                    false => value.to_array().ok(),
                };
                let numbers = array.as_ref().and_then(numbers);
                Argument::Same {
                    value,
                    bytes: match value.try_as_str().flatten() {
                        Some(text) => text.len(),
                        None => value.data_type().primitive_width().unwrap_or(value.size()),
                    },
                    items: array.as_ref().map_or(1, |array| leaves(array)),
                    number: numbers.filter(|it| it.is_valid(0)).map(|it| it.value(0)),
                }
            }
        }
    }

    /// Returns an argument of one row that has all values.
    fn whole(values: &ArrayRef) -> Argument<'a> {
        static NULL: ScalarValue = ScalarValue::Null;
        Argument::Same {
            value: &NULL,
            bytes: array_bytes(values),
            items: leaves(values),
            number: None,
        }
    }

    fn bytes(&self, row: usize) -> usize {
        let values = match self {
            Argument::Same { bytes, .. } => return *bytes,
            Argument::Rows { values, .. } => values,
        };
        match values.data_type() {
            DataType::Utf8 => values.as_string::<i32>().value_length(row) as usize,
            DataType::LargeUtf8 => values.as_string::<i64>().value_length(row) as usize,
            DataType::Utf8View => values.as_string_view().views()[row] as u32 as usize,
            _ => array_bytes(&values.slice(row, 1)),
        }
    }

    /// Returns the number of items in a row's list.
    fn items(&self, row: usize) -> usize {
        match self {
            Argument::Same { items, .. } => *items,
            Argument::Rows { values, .. } => leaves(&values.slice(row, 1)),
        }
    }

    fn number(&self, row: usize) -> Option<i64> {
        match self {
            Argument::Same { number, .. } => *number,
            Argument::Rows { numbers, .. } => {
                let numbers = numbers.as_ref()?;
                numbers.is_valid(row).then(|| numbers.value(row))
            }
        }
    }

    /// Returns a number of times, items or characters.
    fn count(&self, row: usize) -> usize {
        usize::try_from(self.number(row).unwrap_or(0)).unwrap_or(0)
    }

    pub(super) fn text(&self, row: usize) -> &str {
        match self {
            Argument::Same { value, .. } => value.try_as_str().flatten().unwrap_or(""),
            Argument::Rows { values, .. } => match values.data_type() {
                DataType::Utf8 => values.as_string::<i32>().value(row),
                DataType::LargeUtf8 => values.as_string::<i64>().value(row),
                DataType::Utf8View => values.as_string_view().value(row),
                _ => "",
            },
        }
    }
}

/// Returns numbers, and times and intervals in microseconds; `None` for another type.
fn numbers(values: &ArrayRef) -> Option<Int64Array> {
    let data_type = values.data_type();
    if let DataType::Interval(_) = data_type {
        let values = cast(values, &DataType::Interval(IntervalUnit::MonthDayNano)).ok()?;
        let values = values.as_primitive::<IntervalMonthDayNanoType>().iter();
        return Some(values.map(|value| value.map(interval_micros)).collect());
    }
    let values = match data_type.is_temporal() {
        true => cast(values, &DataType::Timestamp(TimeUnit::Microsecond, None)).ok()?,
        false if data_type.is_integer() => Arc::clone(values),
        false => return None,
    };
    let values = cast(&values, &DataType::Int64).ok()?;
    Some(values.as_primitive::<Int64Type>().clone())
}

/// Returns the microseconds of an interval. Months are short.
fn interval_micros(value: IntervalMonthDayNano) -> i64 {
    let days = i64::from(value.months) * 28 + i64::from(value.days);
    days.saturating_mul(86_400_000_000)
        .saturating_add(value.nanoseconds / 1_000)
}

/// Returns the number of items of a range.
fn range_items(values: &[Argument], row: usize) -> usize {
    let number = |index: usize| values.get(index).and_then(|value| value.number(row));
    let (from, to) = match values {
        [_] => (Some(0), number(0)),
        _ => (number(0), number(1)),
    };
    let step = match values {
        [_, _, step, ..] => step.number(row),
        _ => Some(1),
    };
    let (Some(from), Some(to), Some(step)) = (from, to, step) else {
        return 0;
    };
    usize::try_from(to.abs_diff(from) / step.unsigned_abs().max(1))
        .unwrap_or(usize::MAX)
        .saturating_add(1)
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::StringArray;

    use super::*;

    fn rows(count: usize, are_one: bool) -> Rows {
        let from = 0;
        Rows {
            from,
            count,
            are_one,
        }
    }

    #[test]
    fn arguments_tell_the_bytes_of_a_result() {
        let text = |text: &str| ColumnarValue::Scalar(ScalarValue::from(text));
        let number = |number: i64| ColumnarValue::Scalar(ScalarValue::from(number));
        let time =
            |micros| ColumnarValue::Scalar(ScalarValue::TimestampMicrosecond(Some(micros), None));
        let second = ScalarValue::new_interval_mdn(0, 0, 1_000_000_000);
        for (size, values, bytes) in [
            (Size::Times, vec![text("ab"), number(1_000)], 2_000),
            (Size::Times, vec![text("ab"), number(-1)], 0),
            (Size::Length, vec![text("ab"), number(1_000)], 1_000),
            (Size::Range, vec![number(1), number(100), number(10)], 80),
            (
                Size::Range,
                vec![time(0), time(60_000_000), ColumnarValue::Scalar(second)],
                488,
            ),
            (
                Size::Replaced,
                vec![text("aaa"), text("a"), text("bbbb")],
                19,
            ),
            (Size::Matched, vec![text("aaa"), text("a"), text("bb")], 5),
            (
                Size::Matched,
                vec![text("aaa"), text("a"), text("bb"), text("g")],
                11,
            ),
            (Size::Between, vec![text("--"), text("a"), text("b")], 8),
        ] {
            assert_eq!(size.bytes(&values, rows(1, true)), bytes, "{size:?}");
        }
    }

    #[test]
    fn long_rows_are_parts_of_their_own() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec!["ab"; 4]));
        let counts = Int64Array::from(vec![Some(1), Some(PART_BYTES as i64), None, Some(3)]);
        let values = [
            ColumnarValue::Array(texts),
            ColumnarValue::Array(Arc::new(counts)),
        ];
        let part = |from| {
            let (part, bytes) = Size::Times.part(&values, rows(4, false), from);
            (part.from, part.count, bytes)
        };
        assert_eq!(part(0), (0, 1, 2));
        assert_eq!(part(1), (1, 1, 2 * PART_BYTES));
        assert_eq!(part(2), (2, 2, 6));
    }
}
