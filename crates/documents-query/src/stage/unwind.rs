//! `$unwind`: one document for each element of an array.

use std::collections::VecDeque;

use bson::raw::{RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_memory::Share;

use super::Stream;
use crate::element::{Writer, array_values, elements, get};
use crate::error::Error;
use crate::path::Path;
use crate::sort::ALLOCATION_BYTES;

/// Maximum total bytes of output documents that are built before they are read. A single document may be larger.
const AHEAD_BYTES: usize = 16 << 20;

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

pub(super) fn run<'a, E: From<Error> + Send + 'a>(
    unwind: Unwind,
    mut input: Stream<'a, E>,
    mut held: Share,
) -> Stream<'a, E> {
    let mut ready = VecDeque::new();
    // The current input document, and the number of its elements already returned.
    let mut begun: Option<(RawDocumentBuf, usize)> = None;
    Box::new(std::iter::from_fn(move || {
        loop {
            if let Some(document) = ready.pop_front() {
                return Some(Ok(document));
            }
            let (document, from) = match begun.take() {
                Some(begun) => begun,
                None => match input.next()? {
                    Ok(document) => (document, 0),
                    Err(error) => return Some(Err(error)),
                },
            };
            let count = (AHEAD_BYTES / document.as_bytes().len()).max(1);
            ready.extend(unwind.documents(&document, from, count));
            if let Err(full) = held.try_resize(bytes_ahead(&ready)) {
                ready.clear();
                return Some(Err(Error::from(full).into()));
            }
            if ready.len() == count {
                begun = Some((document, from + count));
            }
        }
    }))
}

/// Returns the bytes of the documents that wait for the reader.
fn bytes_ahead(ready: &VecDeque<RawDocumentBuf>) -> usize {
    let bytes: usize = ready.iter().map(|document| document.as_bytes().len()).sum();
    bytes + ready.len() * (size_of::<RawDocumentBuf>() + ALLOCATION_BYTES)
}

impl Unwind {
    /// Returns output documents of one input document. Skips the first `from` of them, and returns at most `count`.
    fn documents(&self, document: &RawDocument, from: usize, count: usize) -> Vec<RawDocumentBuf> {
        let path: Vec<&str> = self.path.components().collect();
        match value_at(document, &path) {
            Some(RawBsonRef::Array(array)) if !array.is_empty() => array_values(array)
                .enumerate()
                .skip(from)
                .take(count)
                .map(|(index, value)| {
                    self.with_index(replaced(document, &path, Some(value)), Some(index))
                })
                .collect(),
            // A value that is not an array yields at most one document.
            _ if from > 0 => Vec::new(),
            Some(RawBsonRef::Array(_)) if self.preserve_empty => {
                vec![self.with_index(replaced(document, &path, None), None)]
            }
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined) if self.preserve_empty => {
                vec![self.with_index(document.to_owned(), None)]
            }
            None | Some(RawBsonRef::Null | RawBsonRef::Undefined | RawBsonRef::Array(_)) => {
                Vec::new()
            }
            Some(_) => vec![self.with_index(document.to_owned(), None)],
        }
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
    let mut writer = Writer::with_capacity(document.as_bytes().len());
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
