//! Lists as PostgreSQL's arrays; structures, maps and unions as JSON.

use std::ops::Range;

use bytes::{BufMut, BytesMut};
use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::{Array, ArrayRef, MapArray, StructArray, UnionArray};
use datafusion::arrow::buffer::ScalarBuffer;
use datafusion::arrow::datatypes::{DataType, FieldRef, Fields};
use forebay_tables::{Code, SqlError};

use super::binary::{DIMENSIONS_MAX, length_of, length_prefixed};
use super::text::{self, Style};
use super::values::{Column, Values, ranges};
use crate::types::{element, pg_type};

/// Bytes that force the quotes of an array's element.
const SPECIAL: &[u8] = b"\"\\{}, \t\n\r\x0b\x0c";

/// Lists: for each row, a range of the elements.
#[derive(Debug)]
pub(super) struct List {
    rows: Vec<Range<usize>>,
    elements: Column,
    /// The type of the innermost elements.
    oid: u32,
}

/// Structures: the names and values of the fields.
#[derive(Debug)]
pub(super) struct Record(Vec<(String, Column)>);

/// Maps: for each row, a range of the entries.
#[derive(Debug)]
pub(super) struct Map {
    rows: Vec<Range<usize>>,
    keys: Column,
    values: Column,
}

/// Unions: for each row, the field and the row in that field.
#[derive(Debug)]
pub(super) struct Union {
    rows: Vec<(i8, usize)>,
    fields: Vec<(i8, Column)>,
}

impl List {
    /// Returns lists whose elements are of type `data_type`.
    pub(super) fn of_rows(
        rows: Vec<Range<usize>>,
        elements: Column,
        data_type: &DataType,
    ) -> Values {
        let mut innermost = data_type;
        while let Some(inner) = element(innermost) {
            innermost = inner;
        }
        let oid = pg_type(innermost).oid();
        Values::List(Box::new(List {
            rows,
            elements,
            oid,
        }))
    }

    /// Writes the list of a row: `{1,2,NULL,"a b"}`. Empty lists in a list are left out if there is nothing else, as
    /// PostgreSQL's arrays without elements have no dimensions.
    pub(super) fn text(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        if self.is_hollow(row) {
            out.put_slice(b"{}");
            return Ok(());
        }
        out.put_u8(b'{');
        for (index, item) in self.rows[row].clone().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            self.item_text(item, out)?;
        }
        out.put_u8(b'}');
        Ok(())
    }

    /// Returns whether the list of a row has no elements, except lists without elements.
    fn is_hollow(&self, row: usize) -> bool {
        let mut items = self.rows[row].clone();
        match &self.elements.values {
            Values::List(inner) => {
                items.all(|item| !self.elements.is_null(item) && inner.is_hollow(item))
            }
            _ => items.is_empty(),
        }
    }

    fn item_text(&self, item: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        if self.elements.is_null(item) {
            out.put_slice(b"NULL");
            return Ok(());
        }
        let start = out.len();
        self.elements.values.text(item, out)?;
        if !matches!(self.elements.values, Values::List(_)) && needs_quotes(&out[start..]) {
            quote(start, out);
        }
        Ok(())
    }

    /// Writes the list of a row in binary: the dimensions, then each element with its length.
    ///
    /// # Errors
    /// If the lists of a list are null or differ in length, or nest too deeply for PostgreSQL.
    pub(super) fn binary(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        let dimensions = self.dimensions(row)?;
        let is_empty = dimensions.contains(&0);
        let dimensions = if is_empty { &[] } else { dimensions.as_slice() };
        out.put_i32(length_of(dimensions.len())?);
        let has_null_at = out.len();
        out.put_i32(0);
        out.put_u32(self.oid);
        for length in dimensions {
            out.put_i32(*length);
            out.put_i32(1);
        }
        let has_null = !is_empty && self.items_binary(row, out)?;
        out[has_null_at + 3] = u8::from(has_null);
        Ok(())
    }

    /// Writes the innermost elements, and returns whether there are nulls.
    fn items_binary(&self, row: usize, out: &mut BytesMut) -> Result<bool, SqlError> {
        let mut has_null = false;
        for item in self.rows[row].clone() {
            if let Values::List(inner) = &self.elements.values {
                has_null |= inner.items_binary(item, out)?;
            } else if self.elements.is_null(item) {
                out.put_i32(-1);
                has_null = true;
            } else {
                length_prefixed(out, |out| self.elements.values.binary(item, out))?;
            }
        }
        Ok(has_null)
    }

    /// Returns the lengths of the list of a row, outermost first.
    fn dimensions(&self, row: usize) -> Result<Vec<i32>, SqlError> {
        let items = self.rows[row].clone();
        let mut dimensions = vec![i32::try_from(items.len()).map_err(|_| too_large())?];
        if let Values::List(inner) = &self.elements.values {
            dimensions.extend(self.inner_dimensions(inner, items)?);
        }
        match dimensions.len() > DIMENSIONS_MAX {
            true => Err(too_large()),
            false => Ok(dimensions),
        }
    }

    fn inner_dimensions(&self, inner: &List, items: Range<usize>) -> Result<Vec<i32>, SqlError> {
        let mut common = None;
        for item in items {
            if self.elements.is_null(item) {
                return Err(ragged());
            }
            let dimensions = inner.dimensions(item)?;
            if common.as_ref().is_some_and(|common| *common != dimensions) {
                return Err(ragged());
            }
            common = Some(dimensions);
        }
        Ok(common.unwrap_or_default())
    }

    fn json(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        out.put_u8(b'[');
        for (index, item) in self.rows[row].clone().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            self.elements.json(item, out)?;
        }
        out.put_u8(b']');
        Ok(())
    }
}

fn ragged() -> SqlError {
    let message = "multidimensional arrays must have sub-arrays with matching dimensions";
    SqlError::new(Code::DataException, message)
        .with_hint("ask for the result as text, or flatten the list")
}

fn too_large() -> SqlError {
    SqlError::new(
        Code::LimitExceeded,
        "the array has too many elements or dimensions",
    )
}

/// Returns whether an array's element must be quoted.
fn needs_quotes(item: &[u8]) -> bool {
    item.is_empty()
        || item.eq_ignore_ascii_case(b"null")
        || item.iter().any(|byte| SPECIAL.contains(byte))
}

/// Quotes what `out` has from `start` on.
fn quote(start: usize, out: &mut BytesMut) {
    let item = out.split_off(start);
    out.reserve(item.len() + 2);
    out.put_u8(b'"');
    for byte in item {
        if matches!(byte, b'"' | b'\\') {
            out.put_u8(b'\\');
        }
        out.put_u8(byte);
    }
    out.put_u8(b'"');
}

impl Record {
    pub(super) fn new(fields: &Fields, array: &StructArray, zone: Tz) -> Result<Record, SqlError> {
        let field = |(field, values): (&FieldRef, &ArrayRef)| {
            Ok((field.name().clone(), Column::new(values, zone)?))
        };
        let columns = fields.iter().zip(array.columns()).map(field);
        columns.collect::<Result<_, SqlError>>().map(Record)
    }

    /// Writes the structure of a row: `{"a":1,"b":null}`.
    pub(super) fn json(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        out.put_u8(b'{');
        for (index, (name, values)) in self.0.iter().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            json_string(name, out);
            out.put_u8(b':');
            values.json(row, out)?;
        }
        out.put_u8(b'}');
        Ok(())
    }
}

impl Map {
    pub(super) fn new(array: &MapArray, zone: Tz) -> Result<Map, SqlError> {
        Ok(Map {
            rows: ranges(array.value_offsets()),
            keys: Column::new(array.keys(), zone)?,
            values: Column::new(array.values(), zone)?,
        })
    }

    /// Writes the map of a row: `{"a":1,"b":null}`.
    pub(super) fn json(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        out.put_u8(b'{');
        for (index, entry) in self.rows[row].clone().enumerate() {
            if index > 0 {
                out.put_u8(b',');
            }
            self.json_key(entry, out)?;
            out.put_u8(b':');
            self.values.json(entry, out)?;
        }
        out.put_u8(b'}');
        Ok(())
    }

    /// Writes the key of an entry, which JSON wants to be a string.
    fn json_key(&self, entry: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        let start = out.len();
        self.keys.json(entry, out)?;
        if out[start] != b'"' {
            let key = out.split_off(start);
            json_string(&String::from_utf8_lossy(&key), out);
        }
        Ok(())
    }
}

impl Union {
    pub(super) fn new(array: &UnionArray, zone: Tz) -> Result<Union, SqlError> {
        let ids: &ScalarBuffer<i8> = array.type_ids();
        let rows = ids.iter().enumerate();
        let rows = rows
            .map(|(row, id)| (*id, array.value_offset(row)))
            .collect();
        let DataType::Union(fields, _) = array.data_type() else {
            return Err(SqlError::unsupported("a malformed union"));
        };
        let field = |id: i8| Ok((id, Column::new(array.child(id), zone)?));
        let fields = fields.iter().map(|(id, _)| field(id));
        let fields = fields.collect::<Result<_, SqlError>>()?;
        Ok(Union { rows, fields })
    }

    /// Writes the value of a row, without the name of its field.
    pub(super) fn json(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        let (id, row) = self.rows[row];
        match self.fields.iter().find(|(field, _)| *field == id) {
            Some((_, values)) => values.json(row, out),
            None => Err(SqlError::new(
                Code::DataCorrupted,
                "a union's value has no field",
            )),
        }
    }
}

impl Column {
    /// Writes the value of a row as JSON, as `to_json` of PostgreSQL does.
    fn json(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        if self.is_null(row) {
            out.put_slice(b"null");
            return Ok(());
        }
        match &self.values {
            Values::Indexed(rows, values) => return values.json(rows[row], out),
            Values::List(list) => return list.json(row, out),
            Values::Text(array) => json_string(array.value(row), out),
            Values::LargeText(array) => json_string(array.value(row), out),
            Values::TextView(array) => json_string(array.value(row), out),
            Values::Boolean(bits) => out.put_slice(json_boolean(bits.value(row))),
            _ => return self.json_of_text(row, out),
        }
        Ok(())
    }

    /// Writes the text of a value, quoted unless it is a number, an object or a list.
    fn json_of_text(&self, row: usize, out: &mut BytesMut) -> Result<(), SqlError> {
        let start = out.len();
        self.values.styled_text(row, Style::Json, out)?;
        let is_finite = !out[start..].iter().any(u8::is_ascii_uppercase);
        if self.values.is_json() || (self.values.is_number() && is_finite) {
            return Ok(());
        }
        let text = out.split_off(start);
        json_string(&String::from_utf8_lossy(&text), out);
        Ok(())
    }
}

fn json_boolean(value: bool) -> &'static [u8] {
    if value { b"true" } else { b"false" }
}

/// Writes a string of JSON.
fn json_string(string: &str, out: &mut BytesMut) {
    out.put_u8(b'"');
    for byte in string.bytes() {
        match byte {
            b'"' | b'\\' => out.put_slice(&[b'\\', byte]),
            b'\n' => out.put_slice(b"\\n"),
            b'\r' => out.put_slice(b"\\r"),
            b'\t' => out.put_slice(b"\\t"),
            0x08 => out.put_slice(b"\\b"),
            0x0c => out.put_slice(b"\\f"),
            0..0x20 => {
                out.put_slice(b"\\u00");
                text::hex(&[byte], out);
            }
            _ => out.put_u8(byte),
        }
    }
    out.put_u8(b'"');
}
