//! Reads JSON arrays, JSON lines and pretty-printed JSON documents, in MongoDB's extended JSON.

use std::io::{BufRead, Read};

use bson::raw::CStr;
use bson::{Bson, RawArrayBuf, RawBson, RawDocumentBuf};
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::{Emit, INPUT_BYTES_MAX, Position, ReadError, Shape, read_line};

/// The parser's message for JSON that nests too deeply for it, and the message that users get instead.
const TOO_DEEP: (&str, &str) = (
    "recursion limit exceeded",
    "JSON nests at most 127 levels here; import deeper documents as BSON",
);

/// Reads one document per line. Skips empty lines. If a line contains only `{`, it and all later lines are read as
/// documents that span several lines.
///
/// # Errors
/// If a line is not a document.
pub fn read_lines(
    input: &mut dyn BufRead,
    shape: &Shape,
    emit: &mut Emit<'_>,
) -> Result<(), ReadError> {
    let mut line = 1;
    let mut count = 0;
    while let Some(bytes) = read_line(input, line, INPUT_BYTES_MAX)? {
        let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
        match text.trim_ascii() {
            b"" => {}
            b"{" => return read_spread(input, Start { line, count }, shape, emit),
            _ => {
                let document = parse_line(text, line, shape)?;
                if !emit(Position::Line(line), document) {
                    return Err(ReadError::Stopped);
                }
                count += 1;
            }
        }
        line += 1;
    }
    Ok(())
}

/// Start of the documents that span several lines: the line with the first brace. That line has already been read.
struct Start {
    line: u64,
    /// Number of documents before the line.
    count: u64,
}

/// Reads documents that span several lines.
fn read_spread(
    input: &mut dyn BufRead,
    start: Start,
    shape: &Shape,
    emit: &mut Emit<'_>,
) -> Result<(), ReadError> {
    let input = b"{\n".chain(input);
    let values = serde_json::Deserializer::from_reader(input).into_iter();
    for (number, value) in (start.count + 1..).zip(values) {
        let value = value.map_err(|error| fault(&error, start.line - 1))?;
        let no_document = |problem| ReadError::Document { number, problem };
        let document = document(value, shape).map_err(no_document)?;
        if !emit(Position::Document(number), document) {
            return Err(ReadError::Stopped);
        }
    }
    Ok(())
}

fn parse_line(text: &[u8], line: u64, shape: &Shape) -> Result<RawDocumentBuf, ReadError> {
    let value = serde_json::from_slice(text).map_err(|error| fault(&error, line - 1))?;
    document(value, shape).map_err(|problem| ReadError::Line { line, problem })
}

/// Converts a parser's error. The parsed text begins after `lines_before` lines of the input.
fn fault(error: &serde_json::Error, lines_before: u64) -> ReadError {
    if error.is_io() {
        return ReadError::Io(std::io::Error::other(error.to_string()));
    }
    let text = error.to_string();
    let problem = match text.split(" at line ").next().unwrap_or_default() {
        problem if problem == TOO_DEEP.0 => TOO_DEEP.1,
        problem => problem,
    };
    ReadError::Column {
        line: lines_before + error.line() as u64,
        column: error.column() as u64,
        problem: problem.to_owned(),
    }
}

/// Reads the documents of an array one by one, so that the array need not fit in memory.
///
/// # Errors
/// If an element is not a document, or the text is not JSON.
pub fn read_array(
    input: &mut dyn BufRead,
    shape: &Shape,
    emit: &mut Emit<'_>,
) -> Result<(), ReadError> {
    if input.fill_buf()?.starts_with(b"\xef\xbb\xbf") {
        input.consume(3);
    }
    let mut stopped = false;
    let mut deserializer = serde_json::Deserializer::from_reader(input);
    let elements = Elements {
        shape,
        emit,
        stopped: &mut stopped,
    };
    let read = deserializer
        .deserialize_seq(elements)
        .and_then(|()| deserializer.end());
    match read {
        Err(_) if stopped => Err(ReadError::Stopped),
        Err(error) => Err(fault(&error, 0)),
        Ok(()) => Ok(()),
    }
}

/// Visits the elements of the array one by one.
struct Elements<'a, 'b> {
    shape: &'a Shape,
    emit: &'a mut Emit<'b>,
    stopped: &'a mut bool,
}

impl<'de> Visitor<'de> for Elements<'_, '_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an array of documents")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut elements: A) -> Result<(), A::Error> {
        let mut number = 1;
        while elements
            .next_element_seed(Element {
                number,
                shape: self.shape,
                emit: self.emit,
                stopped: self.stopped,
            })?
            .is_some()
        {
            number += 1;
        }
        Ok(())
    }
}

struct Element<'a, 'b> {
    /// Number of the element, from 1.
    number: u64,
    shape: &'a Shape,
    emit: &'a mut Emit<'b>,
    stopped: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for Element<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        let value: Value = serde::Deserialize::deserialize(deserializer)?;
        let document = document(value, self.shape).map_err(D::Error::custom)?;
        if (self.emit)(Position::Document(self.number), document) {
            return Ok(());
        }
        *self.stopped = true;
        Err(D::Error::custom("stopped"))
    }
}

/// Converts a JSON value to a document. If `shape.field` is set, converts a string to a document with only that field.
fn document(value: Value, shape: &Shape) -> Result<RawDocumentBuf, String> {
    match (value, &shape.field) {
        (Value::Object(object), _) => object_to_document(object),
        (Value::String(text), Some(field)) => {
            let mut document = RawDocumentBuf::new();
            append(&mut document, field, RawBson::String(text))?;
            Ok(document)
        }
        (Value::String(_), None) => {
            Err("a string is not a document; --field NAME makes it one".to_owned())
        }
        (other, _) => Err(format!("{} is not a document", name_of(&other))),
    }
}

fn name_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

/// Converts a top-level object to a document, even if its field names look like extended JSON.
fn object_to_document(object: Map<String, Value>) -> Result<RawDocumentBuf, String> {
    let mut document = RawDocumentBuf::new();
    for (name, value) in object {
        append(&mut document, &name, to_bson(value)?)?;
    }
    Ok(document)
}

fn append(document: &mut RawDocumentBuf, name: &str, value: RawBson) -> Result<(), String> {
    let name: &CStr = name
        .try_into()
        .map_err(|_| format!("the field name {name:?} has a zero byte"))?;
    document.append(name, value);
    Ok(())
}

/// Converts a JSON value. Passes extended JSON to the BSON library: objects whose first field name begins with `$`.
fn to_bson(value: Value) -> Result<RawBson, String> {
    match value {
        Value::Null => Ok(RawBson::Null),
        Value::Bool(value) => Ok(RawBson::Boolean(value)),
        Value::Number(number) => Ok(number_to_bson(&number)),
        Value::String(text) => Ok(RawBson::String(text)),
        Value::Array(values) => {
            let mut array = RawArrayBuf::new();
            for value in values {
                array.push(to_bson(value)?);
            }
            Ok(RawBson::Array(array))
        }
        Value::Object(object) if is_extended(&object) => extended_to_bson(object),
        Value::Object(object) => Ok(RawBson::Document(object_to_document(object)?)),
    }
}

fn is_extended(object: &Map<String, Value>) -> bool {
    object
        .keys()
        .next()
        .is_some_and(|name| name.starts_with('$'))
}

fn extended_to_bson(object: Map<String, Value>) -> Result<RawBson, String> {
    let name = object.keys().next().cloned().unwrap_or_default();
    let invalid =
        |error: &dyn std::fmt::Display| format!("invalid extended JSON at {name}: {error}");
    let value = Bson::try_from(object).map_err(|error| invalid(&error))?;
    RawBson::try_from(value).map_err(|error| invalid(&error))
}

/// Converts a number to a 32-bit integer if it fits, else to a 64-bit integer, else to a double.
fn number_to_bson(number: &serde_json::Number) -> RawBson {
    match number.as_i64() {
        Some(integer) => match i32::try_from(integer) {
            Ok(integer) => RawBson::Int32(integer),
            Err(_) => RawBson::Int64(integer),
        },
        None => RawBson::Double(number.as_f64().unwrap_or(f64::NAN)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::tests::documents;
    use super::*;

    #[test]
    fn arrays_and_lines_give_the_same_documents() {
        let array = br#" [ {"a": 1, "b": [1.5, "x", null]}, {"c": {"d": true}} ] "#;
        let lines = b"{\"a\": 1, \"b\": [1.5, \"x\", null]}\r\n\n{\"c\": {\"d\": true}}";
        let expected = [r#"{"a":1,"b":[1.5,"x",null]}"#, r#"{"c":{"d":true}}"#];
        assert_eq!(
            documents(array, Format::Json, &Shape::default()).expect("valid"),
            expected
        );
        assert_eq!(
            documents(lines, Format::JsonLines, &Shape::default()).expect("valid"),
            expected
        );
    }

    #[test]
    fn documents_may_go_over_several_lines() {
        let spread = b"{\"a\": 1}\n{\n  \"b\": [\n    2\n  ]\n}\n{\n  \"c\": 3\n}\n{\"d\": 4}\n";
        assert_eq!(
            documents(spread, Format::JsonLines, &Shape::default()).expect("valid"),
            [r#"{"a":1}"#, r#"{"b":[2]}"#, r#"{"c":3}"#, r#"{"d":4}"#]
        );
    }

    #[test]
    fn extended_json_becomes_bson() {
        let text = br#"{"_id": {"$oid": "5f43a1b2c3d4e5f601020304"}, "n": {"$numberLong": "5"}, "d": {"$date": "2020-01-01T00:00:00Z"}}"#;
        let parsed = parse_line(text, 1, &Shape::default()).expect("valid");
        assert!(parsed.get_object_id("_id").is_ok());
        assert_eq!(parsed.get_i64("n").expect("a 64-bit integer"), 5);
        assert!(parsed.get_datetime("d").is_ok());
        let error =
            parse_line(br#"{"a": {"$oid": "xyz"}}"#, 1, &Shape::default()).expect_err("not an id");
        assert!(error.to_string().contains("$oid"), "{error}");
    }

    #[test]
    fn numbers_take_the_room_they_need() {
        let parsed = parse_line(b"[1]", 1, &Shape::default()).expect_err("an array");
        assert_eq!(parsed.to_string(), "line 1: an array is not a document");
        let parsed = parse_line(
            br#"{"a": 2147483647, "b": 2147483648, "c": 1e3, "d": 18446744073709551615, "e": 92.66692840712271}"#,
            1,
            &Shape::default(),
        );
        let parsed = parsed.expect("valid");
        assert_eq!(parsed.get_i32("a").expect("32 bits"), i32::MAX);
        assert_eq!(parsed.get_i64("b").expect("64 bits"), 1 << 31);
        assert!(parsed.get_f64("c").is_ok() && parsed.get_f64("d").is_ok());
        // The double is exact to the last bit.
        assert_eq!(parsed.get_f64("e").expect("a double"), 92.66692840712271);
    }

    #[test]
    fn strings_need_a_field() {
        let shape = Shape {
            field: Some("name".into()),
            ..Shape::default()
        };
        let expected = [r#"{"name":"x"}"#, r#"{"name":"y"}"#];
        assert_eq!(
            documents(br#"["x", "y"]"#, Format::Json, &shape).expect("valid"),
            expected
        );
        assert_eq!(
            documents(b"\"x\"\n\"y\"\n", Format::JsonLines, &shape).expect("valid"),
            expected
        );
        let error = documents(br#"["x"]"#, Format::Json, &Shape::default()).expect_err("no field");
        assert!(error.to_string().contains("--field"), "{error}");
    }

    #[test]
    fn faults_name_their_line() {
        let text = |bytes: &[u8], format| {
            documents(bytes, format, &Shape::default())
                .expect_err("bad")
                .to_string()
        };
        for (bytes, format, expected) in [
            (
                &b"{}\n{}\n{\"a\": }\n"[..],
                Format::JsonLines,
                "line 3, column 7: expected value",
            ),
            (
                b"{}\n{\"a\": \"x",
                Format::JsonLines,
                "line 2, column 8: EOF while parsing a string",
            ),
            (
                b"{} {}",
                Format::JsonLines,
                "line 1, column 4: trailing characters",
            ),
            (
                b"{}\n\"x\"",
                Format::JsonLines,
                "line 2: a string is not a document; --field NAME makes it one",
            ),
            (
                b"{}\n{\n  \"a\": 1\n  \"b\": 2\n}\n",
                Format::JsonLines,
                "line 4, column 3: expected `,` or `}`",
            ),
            (
                b"{}\n{\n  \"a\": 1\n}\n7\n",
                Format::JsonLines,
                "document 3: a number is not a document",
            ),
            (
                b"[{},\n{},\n7]",
                Format::Json,
                "line 3, column 2: a number is not a document",
            ),
            (
                b"[{},\n{}",
                Format::Json,
                "line 2, column 2: EOF while parsing a list",
            ),
        ] {
            assert_eq!(text(bytes, format), expected);
        }
        assert!(text(br#"{"a\u0000b": 1}"#, Format::JsonLines).contains("zero byte"));
        let nested = |levels| format!("{}1{}", "{\"a\":".repeat(levels), "}".repeat(levels));
        let deepest = documents(nested(127).as_bytes(), Format::JsonLines, &Shape::default());
        assert_eq!(deepest.expect("valid").len(), 1);
        let refused = text(nested(128).as_bytes(), Format::JsonLines);
        assert!(
            refused.ends_with("at most 127 levels here; import deeper documents as BSON"),
            "{refused}"
        );
    }
}
