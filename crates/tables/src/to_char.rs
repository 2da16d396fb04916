//! `to_char`: times and numbers by PostgreSQL's patterns.

mod numbers;
mod times;

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, StringArray};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, TimeUnit};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};

use crate::error::{Code, SqlError};

/// Maximum bytes of a pattern.
const PATTERN_BYTES_MAX: usize = 1_000;

/// Returns the function.
pub(crate) fn to_char() -> ScalarUDF {
    ScalarUDF::new_from_impl(ToChar {
        signature: Signature::any(2, Volatility::Stable),
        aliases: vec!["date_format".to_owned()],
    })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct ToChar {
    signature: Signature,
    /// The other name of DataFusion's function, which this replaces.
    aliases: Vec<String>,
}

impl ScalarUDFImpl for ToChar {
    fn name(&self) -> &str {
        "to_char"
    }

    fn aliases(&self) -> &[String] {
        &self.aliases
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _types: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if is_strftime(&arguments.args[1]) {
            let function = datafusion::functions::datetime::to_char();
            return function.inner().invoke_with_args(arguments);
        }
        let is_scalar = arguments
            .args
            .iter()
            .all(|argument| matches!(argument, ColumnarValue::Scalar(_)));
        let rows = ColumnarValue::values_to_arrays(&arguments.args)?;
        let patterns = cast(&rows[1], &DataType::Utf8)?;
        let texts: ArrayRef = Arc::new(texts(&rows[0], patterns.as_string())?);
        Ok(match is_scalar {
            true => {
                ColumnarValue::Scalar(datafusion::scalar::ScalarValue::try_from_array(&texts, 0)?)
            }
            false => ColumnarValue::Array(texts),
        })
    }
}

/// Returns whether a pattern is one of DataFusion's own, such as `%Y`.
fn is_strftime(pattern: &ColumnarValue) -> bool {
    let ColumnarValue::Scalar(pattern) = pattern else {
        return false;
    };
    let text = pattern.try_as_str().flatten();
    text.is_some_and(|text| text.contains('%'))
}

fn texts(values: &ArrayRef, patterns: &StringArray) -> Result<StringArray> {
    let is_time = values.data_type().is_temporal();
    let values = match values.data_type() {
        DataType::Date32 | DataType::Date64 => {
            cast(values, &DataType::Timestamp(TimeUnit::Microsecond, None))?
        }
        DataType::Null => return Ok(StringArray::new_null(values.len())),
        DataType::Float32 => cast(values, &DataType::Float64)?,
        _ if is_time || values.data_type().is_numeric() => Arc::clone(values),
        other => {
            let message = format!("function to_char({other}, text) does not exist");
            return Err(failed(Code::UndefinedFunction, message));
        }
    };
    let options = FormatOptions::new()
        .with_timestamp_format(Some(times::FORMAT))
        .with_timestamp_tz_format(Some(times::FORMAT_WITH_ZONE))
        .with_time_format(Some(times::TIME_FORMAT));
    let formatter = ArrayFormatter::try_new(&values, &options)?;
    let text = |row: usize| {
        if values.is_null(row) || patterns.is_null(row) {
            return Ok(None);
        }
        let pattern = patterns.value(row);
        if pattern.len() > PATTERN_BYTES_MAX {
            let message = format!("a pattern of {} bytes is too long", pattern.len());
            return Err(failed(Code::LimitExceeded, message));
        }
        let value = formatter.value(row).try_to_string()?;
        match is_time {
            true => times::text(&value, pattern).map(Some),
            false => numbers::text(&value, pattern).map(Some),
        }
    };
    (0..values.len()).map(text).collect()
}

fn failed(code: Code, message: impl Into<String>) -> DataFusionError {
    DataFusionError::External(Box::new(SqlError::new(code, message)))
}
