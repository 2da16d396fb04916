//! `$unwind`: one document for each element of an array.

use bson::raw::{RawArray, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};

use super::memory::Memory;
use super::{Run, Stream};
use crate::element::{Writer, elements, encoded_bytes, get};
use crate::error::Error;
use crate::path::Path;

/// Bytes of an embedded document besides its name and its fields: type, end of the name, length and terminator.
const LEVEL_BYTES: usize = 7;

/// A parsed `$unwind`.
#[derive(Debug, Clone)]
pub struct Unwind {
    /// The path of the array, without the dollar sign.
    pub path: Path,
    /// The field for the element's index.
    pub index_field: Option<Path>,
    /// Whether documents without array elements are kept.
    pub preserve_empty: bool,
}

/// The input document whose array is being unwound.
struct Begun {
    /// The document, with null in place of the array.
    rest: RawDocumentBuf,
    elements: Remaining,
}

/// The elements of an array that were not returned yet.
struct Remaining {
    /// The bytes of the array. `next` overwrites the four bytes before `offset` with a length, so that the rest of the
    /// array is a document of its own.
    bytes: Vec<u8>,
    /// Offset of the next element.
    offset: usize,
    /// Index of the next element.
    index: usize,
}

/// Bytes of a document's length.
const LENGTH_BYTES: usize = size_of::<i32>();

impl Remaining {
    fn new(array: &RawArray) -> Remaining {
        Remaining {
            bytes: array.as_bytes().to_vec(),
            offset: LENGTH_BYTES,
            index: 0,
        }
    }

    /// Returns the next element with its index.
    fn next(&mut self) -> Option<(usize, RawBsonRef<'_>)> {
        let start = self.offset - LENGTH_BYTES;
        let length = i32::try_from(self.bytes.len() - start).ok()?;
        self.bytes[start..self.offset].copy_from_slice(&length.to_le_bytes());
        let remaining = RawDocument::from_bytes(&self.bytes[start..]).ok()?;
        let element = elements(remaining).next()?;
        let index = self.index;
        self.offset += element.bytes.len();
        self.index += 1;
        Some((index, element.value()))
    }
}

impl Begun {
    fn bytes(&self) -> usize {
        self.rest.as_bytes().len() + self.elements.bytes.len()
    }
}

pub(super) fn run<'a, E: From<Error> + Send + 'a>(
    unwind: Unwind,
    mut input: Stream<'a, E>,
    run: &Run,
) -> Stream<'a, E> {
    let mut memory = Memory::without_limit(run);
    let mut begun: Option<Begun> = None;
    Box::new(std::iter::from_fn(move || {
        loop {
            if let Some(current) = &mut begun {
                match unwind.next(current) {
                    Some(document) => return Some(Ok(document)),
                    None => memory.give_back(current.bytes()),
                }
                begun = None;
            }
            let document = match input.next()? {
                Ok(document) => document,
                Err(error) => return Some(Err(error)),
            };
            match unwind.begin(document, &mut memory) {
                Ok(Unwound::Array(array)) => begun = Some(array),
                Ok(Unwound::One(document)) => return Some(Ok(document)),
                Ok(Unwound::Nothing) => {}
                Err(error) => return Some(Err(error.into())),
            }
        }
    }))
}

/// What an input document yields: several documents, one or none.
enum Unwound {
    Array(Begun),
    One(RawDocumentBuf),
    Nothing,
}

impl Unwind {
    fn begin(&self, document: RawDocumentBuf, memory: &mut Memory) -> Result<Unwound, Error> {
        let path: Vec<&str> = self.path.components().collect();
        let unwound = match value_at(&document, &path) {
            Some(RawBsonRef::Array(array)) if !array.is_empty() => {
                // The two parts together are as long as the document, because a null has no bytes.
                memory.take(document.as_bytes().len())?;
                let begun = Begun {
                    rest: replaced(&document, &path, Some(RawBsonRef::Null)),
                    elements: Remaining::new(array),
                };
                return Ok(Unwound::Array(begun));
            }
            Some(RawBsonRef::Array(_)) if self.preserve_empty => replaced(&document, &path, None),
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) if self.preserve_empty => {
                document
            }
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::Array(_)) => {
                return Ok(Unwound::Nothing);
            }
            Some(_) => document,
        };
        Ok(Unwound::One(self.with_index(unwound, None)))
    }

    /// Returns the document of the next element.
    fn next(&self, begun: &mut Begun) -> Option<RawDocumentBuf> {
        let path: Vec<&str> = self.path.components().collect();
        let (index, value) = begun.elements.next()?;
        let document = replaced(&begun.rest, &path, Some(value));
        Some(self.with_index(document, Some(index)))
    }

    fn with_index(&self, document: RawDocumentBuf, index: Option<usize>) -> RawDocumentBuf {
        let Some(field) = &self.index_field else {
            return document;
        };
        let index = index.map_or(RawBson::Null, |index| RawBson::Int64(index as i64));
        let path: Vec<&str> = field.components().collect();
        replaced(&document, &path, Some(index.as_raw_bson_ref()))
    }
}

/// Returns the value at a path, or `None` if the path does not exist or passes through anything but documents.
fn value_at<'a>(document: &'a RawDocument, path: &[&str]) -> Option<RawBsonRef<'a>> {
    let (name, rest) = path.split_first()?;
    match (get(document, name)?, rest) {
        (value, []) => Some(value),
        (RawBsonRef::Document(inner), rest) => value_at(inner, rest),
        _ => None,
    }
}

/// Returns the document with the value at a path replaced or removed. Creates missing parts of the path.
fn replaced(
    document: &RawDocument,
    path: &[&str],
    value: Option<RawBsonRef<'_>>,
) -> RawDocumentBuf {
    let names: usize = path.iter().map(|name| name.len() + LEVEL_BYTES).sum();
    let value_bytes = value.map_or(0, encoded_bytes);
    let mut writer = Writer::with_capacity(document.as_bytes().len() + names + value_bytes);
    write_replaced(document, path, value, &mut writer);
    writer.finish()
}

fn write_replaced(
    document: &RawDocument,
    path: &[&str],
    value: Option<RawBsonRef<'_>>,
    out: &mut Writer,
) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    let mut found = false;
    for element in elements(document) {
        if element.key != *name || found {
            out.element(&element);
            continue;
        }
        found = true;
        write_at(element.value().as_document(), name, rest, value, out);
    }
    if !found {
        write_at(None, name, rest, value, out);
    }
}

fn write_at(
    inner: Option<&RawDocument>,
    name: &str,
    rest: &[&str],
    value: Option<RawBsonRef<'_>>,
    out: &mut Writer,
) {
    if !rest.is_empty() {
        let empty = RawDocumentBuf::new();
        out.begin_document(name);
        write_replaced(inner.unwrap_or(&empty), rest, value, out);
        out.end();
    } else if let Some(value) = value {
        out.value(name, value);
    }
}
