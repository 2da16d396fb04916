//! Functions whose result a client sizes by an argument: they are refused beyond a limit, before they take memory.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int64Array};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, FieldRef, Int64Type};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};

use crate::error::{Code, SqlError};

/// Maximum bytes that a function returns for one batch of rows.
const RESULT_BYTES_MAX: i64 = 64 << 20;
/// Bytes of a number in a list.
const ITEM_BYTES: i64 = 8;

/// How the arguments of a function tell the size of its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Size {
    /// The second argument is the number of times that the first is repeated.
    Times,
    /// The second argument is the length of the result, in characters.
    Length,
    /// The first argument is the value, the second the number of items.
    Items,
    /// From the first argument to the second, in steps of the third. With one argument, from 0 to it.
    Range,
    /// All arguments together.
    Sum,
    /// The first argument, with the third in place of the second.
    Replaced,
}

/// The functions.
const FUNCTIONS: [(&str, Size); 11] = [
    ("array_repeat", Size::Times),
    ("array_resize", Size::Items),
    ("concat", Size::Sum),
    ("concat_ws", Size::Sum),
    ("generate_series", Size::Range),
    ("list_repeat", Size::Times),
    ("lpad", Size::Length),
    ("range", Size::Range),
    ("repeat", Size::Times),
    ("replace", Size::Replaced),
    ("rpad", Size::Length),
];

/// Returns the function with a limit; `None` if it needs none.
pub(crate) fn limited(function: &Arc<ScalarUDF>) -> Option<ScalarUDF> {
    let mut known = FUNCTIONS.iter();
    let (_, size) = known.find(|(name, _)| *name == function.name())?;
    Some(ScalarUDF::new_from_impl(Limited {
        function: Arc::clone(function),
        size: *size,
    }))
}

/// A function with a limit.
#[derive(Debug)]
struct Limited {
    function: Arc<ScalarUDF>,
    size: Size,
}

impl PartialEq for Limited {
    fn eq(&self, other: &Limited) -> bool {
        self.function == other.function
    }
}

impl Eq for Limited {}

impl Hash for Limited {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
    }
}

impl ScalarUDFImpl for Limited {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn aliases(&self) -> &[String] {
        self.function.aliases()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.inner().return_field_from_args(arguments)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.inner().coerce_types(types)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = self.size.bytes(&arguments)?;
        if bytes > RESULT_BYTES_MAX {
            let message = format!(
                "{} would return {bytes} bytes for {} rows, {RESULT_BYTES_MAX} are allowed",
                self.name(),
                arguments.number_rows,
            );
            let error = SqlError::new(Code::LimitExceeded, message);
            return Err(DataFusionError::External(Box::new(error)));
        }
        self.function.inner().invoke_with_args(arguments)
    }
}

impl Size {
    /// Returns the bytes of the result, at least about as many as it will have.
    fn bytes(self, arguments: &ScalarFunctionArgs) -> Result<i64> {
        let values = &arguments.args;
        let total = match self {
            Size::Range => {
                let (Some(first), second) = (values.first(), values.get(1)) else {
                    return Ok(0);
                };
                let (from, to) = match second {
                    Some(second) => (numbers(first)?, numbers(second)?),
                    None => (None, numbers(first)?),
                };
                let step = values.get(2).map(numbers).transpose()?.flatten();
                lengths(from.as_ref(), to.as_ref(), step.as_ref())
            }
            Size::Sum => {
                let sizes = values
                    .iter()
                    .map(|value| text_bytes(value, arguments.number_rows));
                sizes.fold(0, i64::saturating_add)
            }
            Size::Replaced => {
                let [text, from, by, ..] = &**values else {
                    return Ok(0);
                };
                let rows = arguments.number_rows;
                let count = occurrences(text, from, rows);
                text_bytes(text, rows).saturating_add(count.saturating_mul(longest_text(by)))
            }
            Size::Times | Size::Length | Size::Items => {
                let Some(counts) = values.get(1) else {
                    return Ok(0);
                };
                let each = match self {
                    Size::Times => bytes_each(&values[0]),
                    Size::Length => 1,
                    _ => ITEM_BYTES,
                };
                let counts = numbers(counts)?;
                let sum = counts.iter().flatten().flatten();
                sum.map(|count| count.max(0))
                    .fold(0, i64::saturating_add)
                    .saturating_mul(each)
            }
        };
        Ok(total)
    }
}

/// Returns the bytes of the texts of an argument in all rows; 0 if it has another type.
fn text_bytes(value: &ColumnarValue, rows: usize) -> i64 {
    let bytes = match value {
        ColumnarValue::Array(array) => texts_of(array).map(str::len).sum(),
        ColumnarValue::Scalar(value) => {
            let bytes = value.try_as_str().flatten().map_or(0, str::len);
            bytes.saturating_mul(rows)
        }
    };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns the bytes of an argument's longest text.
fn longest_text(value: &ColumnarValue) -> i64 {
    let bytes = match value {
        ColumnarValue::Array(array) => texts_of(array).map(str::len).max().unwrap_or(0),
        ColumnarValue::Scalar(value) => value.try_as_str().flatten().map_or(0, str::len),
    };
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Returns how often a text is in another, in all rows. It may be at each byte if it differs between rows.
fn occurrences(text: &ColumnarValue, from: &ColumnarValue, rows: usize) -> i64 {
    let ColumnarValue::Scalar(from) = from else {
        return text_bytes(text, rows);
    };
    let from = match from.try_as_str().flatten() {
        None | Some("") => return 0,
        Some(from) => from,
    };
    let of = |text: &str| text.matches(from).count();
    let count = match text {
        ColumnarValue::Array(array) => texts_of(array).map(of).sum(),
        ColumnarValue::Scalar(value) => {
            let count = value.try_as_str().flatten().map_or(0, of);
            count.saturating_mul(rows)
        }
    };
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn texts_of(array: &ArrayRef) -> Box<dyn Iterator<Item = &str> + '_> {
    match array.data_type() {
        DataType::Utf8 => Box::new(array.as_string::<i32>().iter().flatten()),
        DataType::LargeUtf8 => Box::new(array.as_string::<i64>().iter().flatten()),
        DataType::Utf8View => Box::new(array.as_string_view().iter().flatten()),
        _ => Box::new(std::iter::empty()),
    }
}

/// Returns an argument as numbers; `None` if it has another type, such as a date.
fn numbers(value: &ColumnarValue) -> Result<Option<Int64Array>> {
    let array = match value {
        ColumnarValue::Array(array) => Arc::clone(array),
        ColumnarValue::Scalar(value) => value.to_array()?,
    };
    if !array.data_type().is_integer() {
        return Ok(None);
    }
    let array = cast(&array, &DataType::Int64)?;
    Ok(Some(array.as_primitive::<Int64Type>().clone()))
}

/// Returns the average bytes of a value, at least 1.
fn bytes_each(value: &ColumnarValue) -> i64 {
    let (bytes, count) = match value {
        ColumnarValue::Array(array) => (array.get_array_memory_size(), array.len()),
        ColumnarValue::Scalar(value) => (value.size(), 1),
    };
    i64::try_from(bytes / count.max(1))
        .unwrap_or(i64::MAX)
        .max(1)
}

/// Returns the bytes of lists from `from` to `to`.
fn lengths(from: Option<&Int64Array>, to: Option<&Int64Array>, step: Option<&Int64Array>) -> i64 {
    let Some(to) = to else {
        return 0;
    };
    let at = |array: Option<&Int64Array>, row: usize, default: i64| match array {
        Some(array) if array.len() == 1 => array.value(0),
        Some(array) if row < array.len() && array.is_valid(row) => array.value(row),
        _ => default,
    };
    let rows = from.map_or(to.len(), |from| from.len().max(to.len()));
    let items = (0..rows).map(|row| {
        let span = at(Some(to), row, 0).abs_diff(at(from, row, 0));
        let step = at(step, row, 1).unsigned_abs().max(1);
        i64::try_from(span / step).unwrap_or(i64::MAX)
    });
    items
        .fold(0, i64::saturating_add)
        .saturating_mul(ITEM_BYTES)
}
