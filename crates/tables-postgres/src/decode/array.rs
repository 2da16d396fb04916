//! Values of arrays.
//!
//! Memory: a few dozen bytes for each element that the client sent. An element has at least two bytes in text and four
//! in binary, and the counts of binary arrays are checked against the bytes that are there.

use std::borrow::Cow;
use std::sync::Arc;

use datafusion::arrow::array::timezone::Tz;
use datafusion::arrow::array::{Array, ArrayRef, ListArray, new_empty_array};
use datafusion::arrow::buffer::OffsetBuffer;
use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::ScalarValue;
use forebay_tables::{Code, SqlError};
use pgwire::api::Type;

use super::numeric::{Numeric, common_type, of_binary, of_text};
use super::{invalid_binary, null, scalar_of_binary, scalar_of_text, unsupported, utf8};
use crate::encode::binary::DIMENSIONS_MAX;
use crate::types::arrow_type;

/// The elements of an array, and the lengths of its dimensions, outermost first. An empty array has no dimensions.
#[derive(Debug, Default)]
struct Items<'a> {
    dimensions: Vec<usize>,
    items: Vec<Option<Cow<'a, [u8]>>>,
}

/// Returns the array of elements of type `item`, as a list.
pub(super) fn value(
    item: &Type,
    binary: bool,
    bytes: &[u8],
    zone: Option<Tz>,
) -> Result<ScalarValue, SqlError> {
    let items = match binary {
        true => binary_items(item, bytes)?,
        false => text_items(utf8(bytes, false)?)?,
    };
    let elements = match *item {
        Type::NUMERIC => numerics(binary, &items.items)?,
        _ => elements(item, binary, &items.items, zone)?,
    };
    list(elements, &items.dimensions)
}

/// Returns the null of an array of `numeric`.
pub(super) fn null_of_numerics() -> ScalarValue {
    ScalarValue::new_null_list(super::numeric::null().data_type(), true, 1)
}

fn elements(
    item: &Type,
    binary: bool,
    items: &[Option<Cow<'_, [u8]>>],
    zone: Option<Tz>,
) -> Result<ArrayRef, SqlError> {
    let data_type = arrow_type(item).ok_or_else(|| unsupported(item))?;
    let element = |bytes: &Option<Cow<'_, [u8]>>| match bytes {
        None => null(item),
        Some(bytes) if binary => scalar_of_binary(item, bytes),
        Some(bytes) => scalar_of_text(item, utf8(bytes, false)?, zone),
    };
    array(&data_type, items.iter().map(element))
}

/// Returns numbers with the precision and scale that all need.
fn numerics(binary: bool, items: &[Option<Cow<'_, [u8]>>]) -> Result<ArrayRef, SqlError> {
    let number = |bytes: &Option<Cow<'_, [u8]>>| match bytes {
        None => Ok(None),
        Some(bytes) if binary => of_binary(bytes).map(Some),
        Some(bytes) => of_text(utf8(bytes, false)?).map(Some),
    };
    let numbers: Vec<Option<Numeric>> = items.iter().map(number).collect::<Result<_, _>>()?;
    let data_type = common_type(numbers.iter().flatten().copied())?;
    let scalar = |number: &Option<Numeric>| match number {
        None => ScalarValue::try_from(&data_type).map_err(SqlError::from),
        Some(number) => number.scalar_of_type(&data_type),
    };
    array(&data_type, numbers.iter().map(scalar))
}

/// Returns the array of values, up to the first error.
fn array(
    data_type: &DataType,
    mut values: impl Iterator<Item = Result<ScalarValue, SqlError>>,
) -> Result<ArrayRef, SqlError> {
    let Some(first) = values.next() else {
        return Ok(new_empty_array(data_type));
    };
    let mut failure = None;
    let values = std::iter::once(first)
        .chain(values)
        .map_while(|value| match value {
            Ok(value) => Some(value),
            Err(error) => {
                failure = Some(error);
                None
            }
        });
    let array = ScalarValue::iter_to_array(values);
    match failure {
        Some(error) => Err(error),
        None => array.map_err(SqlError::from),
    }
}

/// Returns the list of elements; with several dimensions, a list of lists.
fn list(elements: ArrayRef, dimensions: &[usize]) -> Result<ScalarValue, SqlError> {
    let whole = [elements.len()];
    let dimensions = if dimensions.is_empty() {
        &whole
    } else {
        dimensions
    };
    let mut values = elements;
    let mut result = None;
    for (depth, length) in dimensions.iter().enumerate().rev() {
        let count = dimensions[..depth].iter().product();
        let offsets = OffsetBuffer::from_lengths(std::iter::repeat_n(*length, count));
        let field = Arc::new(Field::new_list_field(values.data_type().clone(), true));
        let list = ListArray::try_new(field, offsets, values, None);
        let list = list.map_err(|error| SqlError::new(Code::InternalError, error.to_string()))?;
        values = Arc::new(list.clone());
        result = Some(list);
    }
    let list =
        result.ok_or_else(|| SqlError::new(Code::InternalError, "a list without dimensions"))?;
    Ok(ScalarValue::List(Arc::new(list)))
}

/// Bytes to read.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn int(&mut self) -> Option<i32> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(i32::from_be_bytes(*bytes))
    }

    /// Reads an element after its length.
    fn item(&mut self) -> Option<Option<Cow<'a, [u8]>>> {
        let length = self.int()?;
        if length == -1 {
            return Some(None);
        }
        let (item, rest) = self.rest.split_at_checked(usize::try_from(length).ok()?)?;
        self.rest = rest;
        Some(Some(Cow::Borrowed(item)))
    }
}

/// Reads the binary format: the count of dimensions, whether there are nulls, the type of the elements, the length and
/// lower bound of each dimension, and the elements.
fn binary_items<'a>(item: &Type, bytes: &'a [u8]) -> Result<Items<'a>, SqlError> {
    let invalid = || invalid_binary(item);
    let mut reader = Reader { rest: bytes };
    let dimension_count = reader.int().ok_or_else(invalid)?;
    let _has_nulls = reader.int().ok_or_else(invalid)?;
    let oid = reader.int().ok_or_else(invalid)?.cast_unsigned();
    if oid != item.oid() {
        let message = format!(
            "binary data has array element type {oid} instead of expected {}",
            item.oid()
        );
        return Err(SqlError::new(Code::InvalidBinaryRepresentation, message));
    }
    let dimension_count = usize::try_from(dimension_count).map_err(|_| invalid())?;
    let dimensions = dimensions(&mut reader, dimension_count)?.ok_or_else(invalid)?;
    let items = items(&mut reader, &dimensions).ok_or_else(invalid)?;
    match (items.is_empty(), reader.rest) {
        (_, [_, ..]) => Err(invalid()),
        (true, []) => Ok(Items::default()),
        (false, []) => Ok(Items { dimensions, items }),
    }
}

/// Reads the lengths of dimensions, and skips the lower bounds. Returns `None` if there are too few bytes.
fn dimensions(reader: &mut Reader<'_>, count: usize) -> Result<Option<Vec<usize>>, SqlError> {
    if count > DIMENSIONS_MAX {
        return Err(too_many_dimensions(count));
    }
    let mut dimension = || {
        let length = usize::try_from(reader.int()?).ok()?;
        reader.int()?;
        Some(length)
    };
    Ok((0..count).map(|_| dimension()).collect())
}

/// Reads the elements, after a check that the rest has enough bytes for their lengths.
fn items<'a>(reader: &mut Reader<'a>, dimensions: &[usize]) -> Option<Vec<Option<Cow<'a, [u8]>>>> {
    if dimensions.is_empty() {
        return Some(Vec::new());
    }
    let count = dimensions
        .iter()
        .try_fold(1_usize, |count, length| count.checked_mul(*length))?;
    if count > reader.rest.len() / size_of::<i32>() {
        return None;
    }
    (0..count).map(|_| reader.item()).collect()
}

fn too_many_dimensions(count: usize) -> SqlError {
    let message = format!(
        "number of array dimensions ({count}) exceeds the maximum allowed ({DIMENSIONS_MAX})"
    );
    SqlError::new(Code::LimitExceeded, message)
}

fn malformed(text: &str) -> SqlError {
    let message = format!("malformed array literal: \"{text}\"");
    SqlError::new(Code::InvalidTextRepresentation, message)
}

/// Reads a text like `{1,NULL,"a b"}` or `{{1,2},{3,4}}`.
fn text_items(text: &str) -> Result<Items<'_>, SqlError> {
    if text.trim_start().starts_with('[') {
        return Err(SqlError::unsupported("an array with lower bounds"));
    }
    let mut parser = Parser {
        rest: text,
        lengths: Vec::new(),
        items: Vec::new(),
        depth_max: 0,
    };
    parser.skip_space();
    let depth = parser.list(0);
    if parser.depth_max > DIMENSIONS_MAX {
        return Err(too_many_dimensions(parser.depth_max));
    }
    let depth = depth.ok_or_else(|| malformed(text))?;
    parser.skip_space();
    if !parser.rest.is_empty() || (!parser.items.is_empty() && depth != parser.lengths.len()) {
        return Err(malformed(text));
    }
    let is_empty = parser.items.is_empty();
    let dimensions = parser.lengths.into_iter().flatten().collect();
    Ok(Items {
        dimensions: if is_empty { Vec::new() } else { dimensions },
        items: parser.items,
    })
}

/// The state of reading a text.
struct Parser<'a> {
    rest: &'a str,
    /// The length of the lists of each depth, once one has ended.
    lengths: Vec<Option<usize>>,
    items: Vec<Option<Cow<'a, [u8]>>>,
    /// The deepest nesting so far.
    depth_max: usize,
}

impl<'a> Parser<'a> {
    fn skip_space(&mut self) {
        self.rest = self.rest.trim_start_matches(is_space);
    }

    fn skip(&mut self, letter: char) -> bool {
        let rest = self.rest.strip_prefix(letter);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Reads a list at `depth`, and returns the depth of its elements: how many lists each is in.
    ///
    /// Returns `None` if it is malformed, nests too deeply, or has lists that are empty or of different lengths or
    /// depths.
    fn list(&mut self, depth: usize) -> Option<usize> {
        self.depth_max = self.depth_max.max(depth + 1);
        if depth == DIMENSIONS_MAX || !self.skip('{') {
            return None;
        }
        if self.lengths.len() == depth {
            self.lengths.push(None);
        }
        let mut length = 0;
        let mut leaf_depth = None;
        self.skip_space();
        while length > 0 || !self.rest.starts_with('}') {
            let found = self.element(depth)?;
            if leaf_depth.is_some_and(|leaf_depth| leaf_depth != found) {
                return None;
            }
            leaf_depth = Some(found);
            length += 1;
            self.skip_space();
            if !self.skip(',') {
                break;
            }
            self.skip_space();
        }
        let is_same = *self.lengths[depth].get_or_insert(length) == length;
        let is_empty = length == 0 && depth > 0;
        (is_same && !is_empty && self.skip('}')).then_some(leaf_depth.unwrap_or(depth + 1))
    }

    /// Reads a list or a value, and returns the depth of the values.
    fn element(&mut self, depth: usize) -> Option<usize> {
        if self.rest.starts_with('{') {
            return self.list(depth + 1);
        }
        let item = match self.skip('"') {
            true => Some(self.quoted()?),
            false => self.bare()?,
        };
        self.items.push(item.map(bytes_of));
        Some(depth + 1)
    }

    /// Reads a value up to its closing quote.
    fn quoted(&mut self) -> Option<Cow<'a, str>> {
        let (raw, rest) = self.until(|letter| letter == '"')?;
        self.rest = rest.strip_prefix('"')?;
        Some(unescaped(raw))
    }

    /// Reads a value without quotes, or a null.
    fn bare(&mut self) -> Option<Option<Cow<'a, str>>> {
        let (raw, rest) = self.until(|letter| matches!(letter, ',' | '}' | '{' | '"'))?;
        self.rest = rest;
        let value = trimmed_end(raw);
        match value {
            "" => None,
            value if value.eq_ignore_ascii_case("null") => Some(None),
            value => Some(Some(unescaped(value))),
        }
    }

    /// Splits the rest before the first letter that `is_end`, and that no backslash precedes.
    fn until(&self, is_end: impl Fn(char) -> bool) -> Option<(&'a str, &'a str)> {
        let mut is_escaped = false;
        let end = self.rest.find(|letter: char| {
            let is_found = !is_escaped && is_end(letter);
            is_escaped = !is_escaped && letter == '\\';
            is_found
        });
        Some(self.rest.split_at(end?))
    }
}

fn is_space(letter: char) -> bool {
    matches!(letter, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// Removes white space at the end, except what a backslash precedes.
fn trimmed_end(raw: &str) -> &str {
    let value = raw.trim_end_matches(is_space);
    let backslashes = value.len() - value.trim_end_matches('\\').len();
    match backslashes % 2 == 1 {
        true => &raw[..raw.len().min(value.len() + 1)],
        false => value,
    }
}

/// Removes the backslashes that quote letters.
fn unescaped(raw: &str) -> Cow<'_, str> {
    if !raw.contains('\\') {
        return Cow::Borrowed(raw);
    }
    let mut text = String::with_capacity(raw.len());
    let mut letters = raw.chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.extend(letters.next()),
            letter => text.push(letter),
        }
    }
    Cow::Owned(text)
}

fn bytes_of(text: Cow<'_, str>) -> Cow<'_, [u8]> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
        Cow::Owned(text) => Cow::Owned(text.into_bytes()),
    }
}
