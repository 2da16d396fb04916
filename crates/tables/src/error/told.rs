//! Messages of Arrow and DataFusion, told as PostgreSQL does.

use super::{Code, SqlError};

/// Returns the error of a value that cannot be cast; `None` if the message is another.
pub(super) fn cast(message: &str) -> Option<SqlError> {
    let value = message.strip_prefix("Cannot cast string '");
    let value = value.or_else(|| message.strip_prefix("Cannot cast value '"));
    if let Some((value, wanted)) = value.and_then(|rest| rest.rsplit_once("' to value of ")) {
        let wanted = type_name(wanted.strip_suffix(" type")?);
        let digits = value.trim().trim_start_matches(['-', '+']);
        let is_whole = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        return Some(match wanted {
            "smallint" | "integer" | "bigint" if is_whole => SqlError::new(
                Code::NumericValueOutOfRange,
                format!("value \"{value}\" is out of range for type {wanted}"),
            ),
            _ => invalid(wanted, value),
        });
    }
    if let Some(rest) = message.strip_prefix("Can't cast value ") {
        let (value, wanted) = rest.rsplit_once(" to type ")?;
        let message = format!("{} out of range", type_name(wanted));
        return Some(
            SqlError::new(Code::NumericValueOutOfRange, message)
                .with_hint(format!("the value is {value}")),
        );
    }
    if let Some(rest) = message.strip_prefix("Error parsing timestamp from '") {
        let (value, _) = rest.rsplit_once("': ")?;
        return Some(invalid("timestamp", value));
    }
    digits(message)
}

/// Returns the error of a number with too many digits; `None` if the message is another.
pub(super) fn digits(message: &str) -> Option<SqlError> {
    let (value, rest) = message.split_once(" to store in a Decimal")?;
    let value = value.split(" is too ").next()?;
    let digits = rest.split_once("precision ").map_or(rest, |(_, rest)| rest);
    let digits = digits.split('.').next()?;
    Some(
        SqlError::new(Code::NumericValueOutOfRange, "numeric field overflow").with_hint(format!(
            "the value is {value}, and the type has {digits} digits"
        )),
    )
}

/// Returns the error of a call whose arguments have other types; `None` if the message is another.
pub(super) fn call(message: &str) -> Option<SqlError> {
    let (_, rest) =
        message.split_once("No function matches the given name and argument types '")?;
    let (call, _) = rest.split_once("'.")?;
    let (name, types) = call.split_once('(')?;
    let types = types.trim_end_matches(')').split(", ").map(type_name);
    let message = format!(
        "function {name}({}) does not exist",
        types.collect::<Vec<_>>().join(", ")
    );
    let hint = match rest.split_once("Candidate functions:\n\t") {
        Some((_, known)) => format!(
            "cast the arguments; there is {}",
            known.trim().replace("\n\t", ", ")
        ),
        None => "cast the arguments".to_owned(),
    };
    Some(SqlError::new(Code::UndefinedFunction, message).with_hint(hint))
}

/// Returns the text of an internal error without DataFusion's request to report it to that project.
pub(super) fn internal(text: &str) -> &str {
    let end = text.find("\nThis issue was likely caused by a bug in DataFusion");
    let text = &text[..end.unwrap_or(text.len())];
    text.strip_prefix("Internal error: ").unwrap_or(text)
}

fn invalid(data_type: &str, value: &str) -> SqlError {
    let code = match data_type {
        "date" | "time" | "timestamp" => Code::InvalidDatetimeFormat,
        _ => Code::InvalidTextRepresentation,
    };
    let message = format!("invalid input syntax for type {data_type}: \"{value}\"");
    SqlError::new(code, message)
}

/// Returns PostgreSQL's name of a type that Arrow names.
fn type_name(arrow: &str) -> &str {
    let name = arrow.split('(').next().unwrap_or(arrow);
    match name {
        "Boolean" => "boolean",
        "Int8" | "Int16" | "UInt8" => "smallint",
        "Int32" | "UInt16" => "integer",
        "Int64" | "UInt32" => "bigint",
        "Float16" | "Float32" => "real",
        "Float64" => "double precision",
        "Decimal32" | "Decimal64" | "Decimal128" | "Decimal256" | "UInt64" => "numeric",
        "Utf8" | "Utf8View" | "LargeUtf8" => "text",
        "Binary" | "BinaryView" | "LargeBinary" => "bytea",
        "Date32" | "Date64" => "date",
        "Time32" | "Time64" => "time",
        "Timestamp" => "timestamp",
        "Interval" | "Duration" => "interval",
        "Null" => "unknown",
        _ => arrow,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datafusion::arrow::error::ArrowError;
    use datafusion::error::DataFusionError;

    #[test]
    fn overflows_of_decimals_have_a_hint() {
        let message = "Arithmetic Overflow in AvgAccumulator".to_owned();
        let product = ArrowError::ArithmeticOverflow("Overflow happened on: 1 * 10000".to_owned());
        for error in [DataFusionError::Execution(message), product.into()] {
            let error = SqlError::from(error);
            assert_eq!(error.code, Code::NumericValueOutOfRange, "{error}");
            assert!(error.to_string().contains("; cast to double"), "{error}");
        }
    }

    #[test]
    fn casts_fail_as_in_postgresql() {
        let told = |message| {
            let error = cast(message).expect("a cast");
            (error.code, error.message)
        };
        let number = told("Cannot cast string 'it's' to value of Int32 type");
        let message = "invalid input syntax for type integer: \"it's\"".to_owned();
        assert_eq!(number, (Code::InvalidTextRepresentation, message));
        let large = told("Cannot cast string '-99999' to value of Int16 type");
        let message = "value \"-99999\" is out of range for type smallint".to_owned();
        assert_eq!(large, (Code::NumericValueOutOfRange, message));
        let digits =
            told("1234.00 is too large to store in a Decimal128 of precision 5. Max is 999.99");
        assert_eq!(digits.1, "numeric field overflow");
        let time = told("Error parsing timestamp from 'noon': error parsing date");
        assert_eq!(time.0, Code::InvalidDatetimeFormat);
        assert_eq!(cast("another"), None);
    }

    #[test]
    fn calls_fail_as_in_postgresql() {
        let message = "Function 'upper' expects 1 arguments. No function matches the given name and argument types \
            'upper(Int64, Utf8View)'. You might need to add explicit type casts.\n\tCandidate functions:\n\tupper(String)";
        let error = call(message).expect("a call");
        assert_eq!(error.message, "function upper(bigint, text) does not exist");
        assert_eq!(
            error.hint.as_deref(),
            Some("cast the arguments; there is upper(String)")
        );
    }
}
