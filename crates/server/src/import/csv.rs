//! Reads comma-separated values (RFC 4180) after a line of column names. Infers the type of each value.

use std::collections::HashSet;
use std::io::{self, BufRead};

use bson::raw::CStr;
use bson::{RawBson, RawDocumentBuf};

use super::{Emit, INPUT_BYTES_MAX, Position, ReadError, Shape, check_field_name, read_line};

/// Byte order mark, which some programs write before the first line.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// Reads all records after the line of column names. Omits the fields of empty values. Returns the columns of mixed
/// types, in which some values became strings and other values became numbers or booleans.
///
/// # Errors
/// If a record has more or fewer values than there are columns, or is not UTF-8.
pub fn read(
    input: &mut dyn BufRead,
    shape: &Shape,
    emit: &mut Emit<'_>,
) -> Result<Vec<String>, ReadError> {
    let mut records = Records {
        input,
        delimiter: shape.delimiter.unwrap_or(b','),
        line: 0,
        started_at: 0,
    };
    let Some(columns) = records.next()? else {
        return Ok(Vec::new());
    };
    check_columns(&columns).map_err(|problem| records.fault(problem))?;
    let mut columns: Vec<Column> = columns.into_iter().map(Column::named).collect();
    while let Some(values) = records.next()? {
        let is_blank_line = values.len() == 1 && values[0].text.is_empty() && columns.len() > 1;
        if is_blank_line {
            continue;
        }
        let document =
            to_document(&mut columns, values, shape).map_err(|problem| records.fault(problem))?;
        if !emit(Position::Line(records.started_at), document) {
            return Err(ReadError::Stopped);
        }
    }
    let mixed = columns
        .into_iter()
        .filter(|column| column.has_text && column.has_other);
    Ok(mixed.map(|column| column.name).collect())
}

/// Returns the semicolon or the tab if the line of column names contains it and contains no comma: then it is probably
/// the delimiter. Consumes nothing.
///
/// # Errors
/// If the input cannot be read.
pub fn other_delimiter(input: &mut dyn BufRead) -> io::Result<Option<&'static str>> {
    let names = input.fill_buf()?.split(|byte| *byte == b'\n').next();
    let names = names.unwrap_or_default();
    let found = [(b';', ";"), (b'\t', "\\t")]
        .into_iter()
        .find(|(byte, _)| names.contains(byte) && !names.contains(&b','));
    Ok(found.map(|(_, delimiter)| delimiter))
}

/// A column, and the types of its values so far.
#[derive(Debug, Default)]
struct Column {
    name: String,
    /// Whether a value became a string.
    has_text: bool,
    /// Whether a value became a number or a boolean.
    has_other: bool,
}

impl Column {
    fn named(field: Field) -> Column {
        Column {
            name: field.text,
            ..Column::default()
        }
    }
}

/// A value, and whether it was quoted. Quoted values are strings.
#[derive(Debug, Default, PartialEq, Eq)]
struct Field {
    text: String,
    quoted: bool,
}

/// Splits the input into records.
struct Records<'a> {
    input: &'a mut dyn BufRead,
    delimiter: u8,
    line: u64,
    started_at: u64,
}

impl Records<'_> {
    /// Reads the next record, which may span lines within quotes.
    fn next(&mut self) -> Result<Option<Vec<Field>>, ReadError> {
        let Some(mut record) = self.line()? else {
            return Ok(None);
        };
        self.started_at = self.line;
        if self.line == 1 && record.starts_with(BYTE_ORDER_MARK) {
            record.drain(..BYTE_ORDER_MARK.len());
        }
        let mut place = Place::FieldStart.after(&record, self.delimiter);
        while place == Place::InQuotes {
            let Some(more) = self.line()? else {
                return Err(self.fault("a quote is not closed".to_owned()));
            };
            place = place.after(&more, self.delimiter);
            record.push(b'\n');
            record.extend_from_slice(&more);
            if record.len() > INPUT_BYTES_MAX {
                return Err(self.fault(format!("a record is longer than {INPUT_BYTES_MAX} bytes")));
            }
        }
        let text =
            String::from_utf8(record).map_err(|_| self.fault("not valid UTF-8".to_owned()))?;
        split(&text, char::from(self.delimiter))
            .map(Some)
            .map_err(|problem| self.fault(problem))
    }

    fn line(&mut self) -> Result<Option<Vec<u8>>, ReadError> {
        self.line += 1;
        read_line(self.input, self.line, INPUT_BYTES_MAX)
    }

    fn fault(&self, problem: String) -> ReadError {
        ReadError::Line {
            line: self.started_at,
            problem,
        }
    }
}

/// State of the CSV parser before a byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// After a delimiter, or at the start of the record.
    FieldStart,
    /// In an unquoted field, where a quote is an ordinary character.
    InText,
    /// Between quotes.
    InQuotes,
    /// After a quote in a quoted field: it either closes the field or is the first of two that encode a quote.
    AfterQuote,
}

impl Place {
    /// Returns the state after `bytes`.
    fn after(self, bytes: &[u8], delimiter: u8) -> Place {
        bytes.iter().fold(self, |place, byte| match (place, *byte) {
            (Place::InQuotes, b'"') => Place::AfterQuote,
            (Place::InQuotes, _) => Place::InQuotes,
            (_, byte) if byte == delimiter => Place::FieldStart,
            (Place::FieldStart | Place::AfterQuote, b'"') => Place::InQuotes,
            _ => Place::InText,
        })
    }
}

/// Splits a record with balanced quotes into values.
fn split(record: &str, delimiter: char) -> Result<Vec<Field>, String> {
    let mut fields = Vec::new();
    let mut rest = record;
    loop {
        let (field, after) = take_field(rest, delimiter)?;
        fields.push(field);
        match after.strip_prefix(delimiter) {
            Some(next) => rest = next,
            None if after.is_empty() => return Ok(fields),
            None => return Err("text follows a closing quote".to_owned()),
        }
    }
}

fn take_field(rest: &str, delimiter: char) -> Result<(Field, &str), String> {
    let Some(mut inside) = rest.strip_prefix('"') else {
        let end = rest.find(delimiter).unwrap_or(rest.len());
        return Ok((
            Field {
                text: rest[..end].to_owned(),
                quoted: false,
            },
            &rest[end..],
        ));
    };
    let mut text = String::new();
    loop {
        let end = inside.find('"').ok_or("a quote is not closed")?;
        text.push_str(&inside[..end]);
        inside = &inside[end + 1..];
        match inside.strip_prefix('"') {
            Some(after) => {
                text.push('"');
                inside = after;
            }
            None => return Ok((Field { text, quoted: true }, inside)),
        }
    }
}

fn check_columns(columns: &[Field]) -> Result<(), String> {
    let mut seen = HashSet::new();
    for column in columns {
        let name = &column.text;
        match name.as_str() {
            "" => return Err("a column has no name".to_owned()),
            name if name.contains('\r') && !column.quoted => {
                return Err(
                    "the lines end with carriage returns alone; convert them (tr '\\r' '\\n')"
                        .to_owned(),
                );
            }
            name if name.starts_with(['{', '[']) => {
                return Err(format!(
                    "a column named {name:?}: this looks like JSON (--format json or json-lines)"
                ));
            }
            name if !seen.insert(name) => return Err(format!("two columns are named {name:?}")),
            name => check_field_name(name)?,
        }
    }
    Ok(())
}

fn to_document(
    columns: &mut [Column],
    values: Vec<Field>,
    shape: &Shape,
) -> Result<RawDocumentBuf, String> {
    if values.len() != columns.len() {
        return Err(format!(
            "{} values for {} columns",
            values.len(),
            columns.len()
        ));
    }
    let mut document = RawDocumentBuf::new();
    for (column, value) in columns.iter_mut().zip(values) {
        if value.text.is_empty() && !value.quoted {
            continue;
        }
        let value = match value.quoted || shape.as_text {
            true => RawBson::String(value.text),
            false => infer(value.text),
        };
        match value {
            RawBson::String(_) => column.has_text = true,
            _ => column.has_other = true,
        }
        let name: &CStr = column
            .name
            .as_str()
            .try_into()
            .map_err(|_| "a column name has a zero byte")?;
        document.append(name, value);
    }
    Ok(document)
}

/// Infers a boolean, integer, double or string. Numbers with leading zeros or a plus sign stay strings, because they
/// may be postal codes or phone numbers.
fn infer(text: String) -> RawBson {
    match text.as_str() {
        "true" => return RawBson::Boolean(true),
        "false" => return RawBson::Boolean(false),
        _ if !looks_numeric(&text) => return RawBson::String(text),
        _ => {}
    }
    if let Ok(integer) = text.parse::<i64>() {
        return i32::try_from(integer).map_or(RawBson::Int64(integer), RawBson::Int32);
    }
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && text.contains(['.', 'e', 'E']) => {
            RawBson::Double(number)
        }
        _ => RawBson::String(text),
    }
}

fn looks_numeric(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    let leading_zero = digits.len() > 1 && digits.starts_with('0') && !digits.starts_with("0.");
    digits.starts_with(|first: char| first.is_ascii_digit()) && !leading_zero
}

#[cfg(test)]
mod tests {
    use super::super::Format;
    use super::super::tests::documents;
    use super::*;

    fn read_csv(text: &str) -> Result<Vec<String>, String> {
        documents(text.as_bytes(), Format::Csv, &Shape::default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn types_are_guessed() {
        let text = "s,i,l,d,b,zip,e\nx,1,3000000000,1.5,true,01234,1e3\n-,-7,,0.5,false,+49,nan\n";
        let expected = [
            r#"{"s":"x","i":1,"l":3000000000,"d":1.5,"b":true,"zip":"01234","e":1000.0}"#,
            r#"{"s":"-","i":-7,"d":0.5,"b":false,"zip":"+49","e":"nan"}"#,
        ];
        assert_eq!(read_csv(text).expect("valid"), expected);
    }

    #[test]
    fn columns_of_strings_and_numbers_are_named() {
        let text = "zip,name,n,flag\n00012,a,1,true\n12345,b,2,no\n,\"3\",,\n";
        let mixed = |shape: &Shape| {
            super::super::read(&mut text.as_bytes(), Format::Csv, shape, &mut |_, _| true)
        };
        assert_eq!(mixed(&Shape::default()).expect("valid"), ["zip", "flag"]);
        let as_text = Shape {
            as_text: true,
            ..Shape::default()
        };
        assert!(mixed(&as_text).expect("valid").is_empty());
    }

    #[test]
    fn quotes_hold_anything() {
        let text = "a,b\r\n\"x, \"\"y\"\"\nz\",\"1\"\r\n\"\",2\n";
        assert_eq!(
            read_csv(text).expect("valid"),
            [r#"{"a":"x, \"y\"\nz","b":"1"}"#, r#"{"a":"","b":2}"#]
        );
    }

    #[test]
    fn quotes_inside_a_field_are_text() {
        let text = "a,b\n1,5\" pipe\n2,6\" pipe\n3,\"7\"\" x\ny\"\n";
        let expected = [
            r#"{"a":1,"b":"5\" pipe"}"#,
            r#"{"a":2,"b":"6\" pipe"}"#,
            r#"{"a":3,"b":"7\" x\ny"}"#,
        ];
        assert_eq!(read_csv(text).expect("valid"), expected);
    }

    #[test]
    fn faults_name_their_line() {
        assert_eq!(
            read_csv("a,b\n1,2\n\"x\ny\",3\n4\n"),
            Err("line 5: 1 values for 2 columns".to_owned())
        );
        assert_eq!(
            read_csv("a,b\n\"x\"y,2\n"),
            Err("line 2: text follows a closing quote".to_owned())
        );
        assert_eq!(
            read_csv("a,b\n1,\"2\n"),
            Err("line 2: a quote is not closed".to_owned())
        );
        assert_eq!(
            read_csv("a,a\n"),
            Err("line 1: two columns are named \"a\"".to_owned())
        );
        assert!(read_csv("a.b\n").is_err() && read_csv(",b\n").is_err());
        let old = read_csv("a,b\r1,2\r").expect_err("there is one line");
        assert!(old.contains("carriage returns alone"), "{old}");
        let json = read_csv("{\"a\": 1}\n{\"a\": 2}\n").expect_err("JSON is refused");
        assert!(
            json.ends_with("this looks like JSON (--format json or json-lines)"),
            "{json}"
        );
    }

    #[test]
    fn another_delimiter_is_suggested() {
        let suggested = |text: &str| other_delimiter(&mut text.as_bytes()).expect("memory");
        assert_eq!(suggested("name;age\nx;1,5\n"), Some(";"));
        assert_eq!(suggested("name\tage"), Some("\\t"));
        for text in ["", "name\na;b\n", "name,a;b\n"] {
            assert_eq!(suggested(text), None, "{text:?}");
        }
    }

    #[test]
    fn other_delimiters_and_plain_text() {
        let shape = Shape {
            delimiter: Some(b'\t'),
            as_text: true,
            ..Shape::default()
        };
        let read = documents(b"\xef\xbb\xbfa\tb\n1\ttrue\n", Format::Csv, &shape).expect("valid");
        assert_eq!(read, [r#"{"a":"1","b":"true"}"#]);
    }
}
