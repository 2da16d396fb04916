//! Functions that clients call before they ask what they want to know. Most of them always return the same.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Int32Array, ListBuilder, StringArray, StringBuilder,
};
use datafusion::arrow::datatypes::{DataType, Field, Int64Type};
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::cast::as_string_array;
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::registry::FunctionRegistry;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, create_udf,
};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use parking_lot::Mutex;

use crate::variables::Variables;

/// Name of the function that returns the names of types.
pub(crate) const TYPE_NAMES: &str = "__forebay_type_names";

/// Adds the functions that are the same in all sessions.
pub(crate) fn register(context: &SessionContext) {
    let (text, number) = (DataType::Utf8, DataType::Int32);
    let yes = ScalarValue::Boolean(Some(true));
    let no = ScalarValue::Boolean(Some(false));
    let nothing = ScalarValue::Utf8(None);
    for (name, arguments, value) in [
        ("pg_my_temp_schema", vec![], ScalarValue::Int32(Some(0))),
        ("pg_is_in_recovery", vec![], no),
        (
            "pg_get_serial_sequence",
            vec![text.clone(), text.clone()],
            nothing.clone(),
        ),
        (
            "obj_description",
            vec![number.clone(), text.clone()],
            nothing.clone(),
        ),
        (
            "shobj_description",
            vec![number.clone(), text.clone()],
            nothing.clone(),
        ),
        (
            "col_description",
            vec![number.clone(), number.clone()],
            nothing.clone(),
        ),
        (
            "pg_get_function_result",
            vec![number.clone()],
            nothing.clone(),
        ),
        (
            "pg_get_function_arguments",
            vec![number.clone()],
            nothing.clone(),
        ),
        (
            "pg_get_function_identity_arguments",
            vec![number.clone()],
            nothing.clone(),
        ),
        ("pg_get_functiondef", vec![number.clone()], nothing.clone()),
        (
            "pg_get_function_sqlbody",
            vec![number.clone()],
            nothing.clone(),
        ),
        ("pg_tablespace_location", vec![number.clone()], nothing),
        ("pg_operator_is_visible", vec![number.clone()], yes.clone()),
        ("pg_ts_config_is_visible", vec![number.clone()], yes.clone()),
        ("pg_collation_is_visible", vec![number.clone()], yes.clone()),
        ("pg_function_is_visible", vec![number.clone()], yes.clone()),
        ("pg_type_is_visible", vec![number], yes),
    ] {
        context.register_udf(constant(name, arguments, value));
    }
    context.register_udf(pretty_size());
    context.register_udf(quote("quote_literal", false));
    context.register_udf(quote("quote_nullable", true));
    register_variadic(context);
    context.register_udf(ScalarUDF::new_from_impl(JsonBuildObject {
        signature: Signature::variadic_any(Volatility::Stable),
    }));
}

/// Adds the functions that take any arguments.
fn register_variadic(context: &SessionContext) {
    let yes = ScalarValue::Boolean(Some(true));
    for (name, value) in [
        ("pg_get_indexdef", ScalarValue::Utf8(None)),
        ("pg_database_size", ScalarValue::Int64(None)),
        ("pg_indexes_size", ScalarValue::Int64(None)),
        ("pg_relation_size", ScalarValue::Int64(None)),
        ("pg_table_size", ScalarValue::Int64(None)),
        ("pg_total_relation_size", ScalarValue::Int64(None)),
        ("has_column_privilege", yes.clone()),
        ("has_function_privilege", yes.clone()),
        ("has_sequence_privilege", yes),
    ] {
        let signature = Signature::variadic_any(Volatility::Stable);
        context.register_udf(ScalarUDF::new_from_impl(Always {
            name,
            signature,
            value,
        }));
    }
    if let Ok(format) = context.udf("format_type") {
        context.register_udf(ScalarUDF::new_from_impl(TypeNames {
            signature: Signature::any(1, Volatility::Stable),
            format,
        }));
    }
}

/// Returns a function that always returns the same.
fn constant(name: &str, arguments: Vec<DataType>, value: ScalarValue) -> ScalarUDF {
    let data_type = value.data_type();
    let implementation = move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(value.clone()));
    create_udf(
        name,
        arguments,
        data_type,
        Volatility::Stable,
        Arc::new(implementation),
    )
}

/// Returns `pg_get_userbyid`: the session's user owns what it sees.
pub(crate) fn user_by_id(user: &str) -> ScalarUDF {
    let name = ScalarValue::from(user);
    constant("pg_get_userbyid", vec![DataType::Int32], name)
}

/// Returns `pg_size_pretty`.
fn pretty_size() -> ScalarUDF {
    let implementation = |arguments: &[ColumnarValue]| {
        let rows = ColumnarValue::values_to_arrays(arguments)?;
        let sizes = rows[0].as_primitive::<Int64Type>().iter();
        let sizes: StringArray = sizes.map(|bytes| bytes.map(pretty)).collect();
        Ok(ColumnarValue::Array(Arc::new(sizes)))
    };
    create_udf(
        "pg_size_pretty",
        vec![DataType::Int64],
        DataType::Utf8,
        Volatility::Immutable,
        Arc::new(implementation),
    )
}

/// Returns bytes in the largest unit of which there are more than ten. From kB on, sizes are halves of the unit until
/// they are rounded.
fn pretty(bytes: i64) -> String {
    const UNITS: [&str; 6] = ["bytes", "kB", "MB", "GB", "TB", "PB"];
    if bytes.unsigned_abs() < 10 * 1024 {
        return format!("{bytes} {}", UNITS[0]);
    }
    let (mut halves, mut unit) = (bytes / 512, 1);
    while halves.unsigned_abs() >= 20 * 1024 - 1 && unit + 1 < UNITS.len() {
        halves /= 1024;
        unit += 1;
    }
    let sign = if halves < 0 { -1 } else { 1 };
    format!("{} {}", (halves + sign) / 2, UNITS[unit])
}

/// Returns a function that writes a text as a literal.
fn quote(name: &str, writes_null: bool) -> ScalarUDF {
    let implementation = move |arguments: &[ColumnarValue]| {
        let rows = ColumnarValue::values_to_arrays(arguments)?;
        let texts = as_string_array(&rows[0])?;
        let quoted = texts.iter().map(|text| match text {
            Some(text) => Some(literal(text)),
            None => writes_null.then(|| "NULL".to_owned()),
        });
        let quoted: StringArray = quoted.collect();
        Ok(ColumnarValue::Array(Arc::new(quoted)))
    };
    create_udf(
        name,
        vec![DataType::Utf8],
        DataType::Utf8,
        Volatility::Immutable,
        Arc::new(implementation),
    )
}

/// Returns a literal, with an escape string if there are backslashes.
fn literal(text: &str) -> String {
    let quoted = text.replace('\'', "''");
    match text.contains('\\') {
        true => format!("E'{}'", quoted.replace('\\', "\\\\")),
        false => format!("'{quoted}'"),
    }
}

/// Returns `set_config`, which changes a setting of a session.
pub(crate) fn set_config(variables: Arc<Mutex<Variables>>) -> ScalarUDF {
    let implementation = move |arguments: &[ColumnarValue]| {
        let rows = ColumnarValue::values_to_arrays(arguments)?;
        let (names, values) = (as_string_array(&rows[0])?, as_string_array(&rows[1])?);
        let mut variables = variables.lock();
        let mut set = |name: Option<&str>, value: Option<&str>| -> Result<Option<String>> {
            let (Some(name), Some(value)) = (name, value) else {
                return Ok(None);
            };
            let changed = variables.set(name, value);
            changed.map_err(|error| DataFusionError::External(Box::new(error)))?;
            Ok(variables.get(name).ok().map(str::to_owned))
        };
        let pairs = names.iter().zip(values.iter());
        let set: Result<StringArray> = pairs.map(|(name, value)| set(name, value)).collect();
        Ok(ColumnarValue::Array(Arc::new(set?)))
    };
    create_udf(
        "set_config",
        vec![DataType::Utf8, DataType::Utf8, DataType::Boolean],
        DataType::Utf8,
        Volatility::Volatile,
        Arc::new(implementation),
    )
}

/// A function that always returns the same, whatever its arguments are.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Always {
    name: &'static str,
    signature: Signature,
    value: ScalarValue,
}

impl ScalarUDFImpl for Always {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(self.value.data_type())
    }

    fn invoke_with_args(&self, _call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.value.clone()))
    }
}

/// The names of the types whose numbers a list or its text has, as `regtype[]` prints them.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TypeNames {
    signature: Signature,
    /// `format_type`.
    format: Arc<ScalarUDF>,
}

impl TypeNames {
    fn names(&self, numbers: Vec<i32>, call: &ScalarFunctionArgs) -> Result<ArrayRef> {
        let count = numbers.len();
        let number = Arc::new(Field::new("", DataType::Int32, true));
        let call = ScalarFunctionArgs {
            args: vec![
                ColumnarValue::Array(Arc::new(Int32Array::from(numbers))),
                ColumnarValue::Scalar(ScalarValue::Int32(None)),
            ],
            arg_fields: vec![Arc::clone(&number), number],
            number_rows: count,
            return_field: Arc::new(Field::new("", DataType::Utf8, true)),
            config_options: Arc::clone(&call.config_options),
        };
        self.format.invoke_with_args(call)?.into_array(count)
    }
}

impl ScalarUDFImpl for TypeNames {
    fn name(&self) -> &str {
        TYPE_NAMES
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::new_list(DataType::Utf8, true))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let lists = call.args[0].to_array(call.number_rows)?;
        let options = FormatOptions::default();
        let texts = ArrayFormatter::try_new(&lists, &options)?;
        let mut names = ListBuilder::new(StringBuilder::new());
        for row in 0..call.number_rows {
            if lists.is_null(row) {
                names.append_null();
                continue;
            }
            let numbers = numbers_in(&texts.value(row).to_string());
            if !numbers.is_empty() {
                let found = self.names(numbers, &call)?;
                for name in as_string_array(&found)? {
                    names.values().append_option(name);
                }
            }
            names.append(true);
        }
        Ok(ColumnarValue::Array(Arc::new(names.finish())))
    }
}

/// Returns the numbers that a text contains.
fn numbers_in(text: &str) -> Vec<i32> {
    let words = text.split(|letter: char| !letter.is_ascii_digit());
    words.filter_map(|word| word.parse().ok()).collect()
}

/// `json_build_object`: an object of names and values in turn.
#[derive(Debug, PartialEq, Eq, Hash)]
struct JsonBuildObject {
    signature: Signature,
}

impl ScalarUDFImpl for JsonBuildObject {
    fn name(&self) -> &str {
        "json_build_object"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arguments: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if call.args.len() % 2 == 1 {
            let message = "argument list must have even number of elements";
            return Err(DataFusionError::Execution(message.to_owned()));
        }
        let columns: Result<Vec<ArrayRef>> = call
            .args
            .iter()
            .map(|argument| argument.to_array(call.number_rows))
            .collect();
        let columns = columns?;
        let options = FormatOptions::default();
        let formatters = columns
            .iter()
            .map(|column| ArrayFormatter::try_new(column, &options));
        let formatters = formatters.collect::<Result<Vec<_>, _>>()?;
        let objects = (0..call.number_rows).map(|row| {
            let mut object = String::from("{");
            for (index, (column, formatter)) in columns.iter().zip(&formatters).enumerate() {
                let is_name = index % 2 == 0;
                let separator = match (is_name, index) {
                    (true, 0) => "",
                    (true, _) => ", ",
                    (false, _) => " : ",
                };
                object.push_str(separator);
                let value = formatter.value(row).to_string();
                let is_plain =
                    column.data_type().is_numeric() || *column.data_type() == DataType::Boolean;
                if column.is_null(row) {
                    object.push_str("null");
                } else if is_plain && !is_name {
                    object.push_str(&value);
                } else {
                    write_json(&mut object, &value);
                }
            }
            object.push('}');
            Some(object)
        });
        let objects: StringArray = objects.collect();
        Ok(ColumnarValue::Array(Arc::new(objects)))
    }
}

/// Writes a text as JSON.
fn write_json(out: &mut String, text: &str) {
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if letter < ' ' => {
                let _ = write!(out, "\\u{:04x}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_are_those_of_postgresql() {
        for (text, expected) in [("a", "'a'"), ("it's", "'it''s'"), ("a\\b'", "E'a\\\\b'''")] {
            assert_eq!(literal(text), expected);
        }
        let mut json = String::new();
        assert_eq!(numbers_in("[2276, 25]"), [2276, 25]);
        assert!(numbers_in("{}").is_empty());
        write_json(&mut json, "a\"\\\n");
        assert_eq!(json, "\"a\\\"\\\\\\u000a\"");
    }
}
