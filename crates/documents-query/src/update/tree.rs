//! The tree of a document that is being changed. Only the changed paths are decoded; the rest stays raw.

use std::borrow::Cow;

use bson::raw::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use bson::spec::ElementType;

use super::fields::{FIELD_BYTES, Fields};
use crate::display;
use crate::element::{Writer, array_values, count, elements, encoded_bytes, payload_bytes};
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::path::is_index;
use crate::sort::ALLOCATION_BYTES;

/// Maximum number of elements that one update of a document may add to fill gaps beyond the ends of arrays.
const PADDING_MAX: usize = 1_500_000;

/// Bytes of an element that fills a gap, in the tree and in the documents built from the tree.
const PADDING_BYTES: usize = size_of::<Tree<'_>>() + 2 * 10;

/// Bytes of an empty document: its length and its terminator.
const EMPTY_BYTES: usize = 5;

/// A value of the document, decoded or raw.
#[derive(Debug, Clone)]
pub(super) enum Tree<'a> {
    Value(RawBsonRef<'a>),
    Owned(RawBson),
    Document(Fields<'a>),
    Array(Vec<Tree<'a>>),
}

/// Number of elements that one update of a document may still add to fill gaps beyond the ends of arrays.
pub(super) struct Padding(usize);

impl Default for Padding {
    fn default() -> Padding {
        Padding(PADDING_MAX)
    }
}

impl Padding {
    fn take(&mut self, count: usize) -> Result<(), Error> {
        let error = || {
            let message = format!("can't backfill more than {PADDING_MAX} elements");
            Error::new(Code::CannotBackfillArray, message)
        };
        self.0 = self.0.checked_sub(count).ok_or_else(error)?;
        Ok(())
    }
}

/// What to do with the value at a path.
pub(super) enum Outcome<'a> {
    /// Keep the value.
    Keep,
    /// Replace the value by this one.
    Put(Tree<'a>),
    /// Remove the value. In an array, set it to null.
    Remove,
}

/// A path, and the current position in it.
#[derive(Clone, Copy)]
struct Way<'p> {
    path: &'p [String],
    at: usize,
}

impl<'p> Way<'p> {
    fn name(self) -> Option<&'p str> {
        self.path.get(self.at).map(String::as_str)
    }

    fn parent(self) -> &'p str {
        let before = self.at.checked_sub(1);
        before.map_or("", |before| &self.path[before])
    }

    fn next(self) -> Way<'p> {
        Way {
            at: self.at + 1,
            ..self
        }
    }

    /// Returns the names after the current one.
    fn rest(self) -> &'p [String] {
        self.path.get(self.at + 1..).unwrap_or_default()
    }
}

/// Decides what to do with the value at a path. `None` is a missing value.
pub(super) type Change<'f, 'a> =
    &'f mut dyn FnMut(Option<&mut Tree<'a>>) -> Result<Outcome<'a>, Error>;

impl<'a> Tree<'a> {
    /// Creates the tree of a document.
    pub fn of(document: &'a RawDocument) -> Tree<'a> {
        Tree::Value(RawBsonRef::Document(document))
    }

    /// Creates an empty array.
    pub fn empty_array() -> Tree<'a> {
        Tree::Array(Vec::new())
    }

    /// Returns the BSON type.
    pub fn kind(&self) -> ElementType {
        match self {
            Tree::Value(value) => value.element_type(),
            Tree::Owned(value) => value.element_type(),
            Tree::Document(_) => ElementType::EmbeddedDocument,
            Tree::Array(_) => ElementType::Array,
        }
    }

    /// Returns MongoDB's name of the type.
    pub fn type_name(&self) -> &'static str {
        crate::element::type_name(self.kind())
    }

    /// Returns the value if it is raw. Scalars always are.
    pub fn scalar(&self) -> Option<RawBsonRef<'_>> {
        match self {
            Tree::Value(value) => Some(*value),
            Tree::Owned(value) => Some(value.as_raw_bson_ref()),
            Tree::Document(_) | Tree::Array(_) => None,
        }
    }

    /// Returns the value as owned BSON.
    pub fn to_bson(&self) -> RawBson {
        match self {
            Tree::Value(value) => (*value).into(),
            Tree::Owned(value) => value.clone(),
            opened => {
                let mut writer = Writer::new();
                opened.write(&mut writer, "v");
                let document = writer.finish();
                crate::element::get(&document, "v").map_or(RawBson::Null, RawBson::from)
            }
        }
    }

    /// Decodes an array and returns its elements. Returns `None` for other values.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for the elements.
    pub fn items(&mut self) -> Result<Option<&mut Vec<Tree<'a>>>, Error> {
        self.open()?;
        Ok(match self {
            Tree::Array(items) => Some(items),
            _ => None,
        })
    }

    /// Decodes one level of a document or an array.
    fn open(&mut self) -> Result<(), Error> {
        let opened = match &*self {
            Tree::Value(value @ RawBsonRef::Document(document)) => {
                let fields = elements(document)
                    .map(|element| (Cow::Borrowed(element.key), Tree::Value(element.value())));
                Tree::Document(Fields::new(reserve_parts(*value, 0)?, fields))
            }
            Tree::Value(value @ RawBsonRef::Array(array)) => {
                let mut items = Vec::with_capacity(reserve_parts(*value, 0)?);
                items.extend(array_values(array).map(Tree::Value));
                Tree::Array(items)
            }
            Tree::Owned(RawBson::Document(document)) => {
                let count = reserve_copies(RawBsonRef::Document(document))?;
                let copied = elements(document).map(|element| {
                    let name = Cow::Owned(element.key.to_owned());
                    (name, Tree::Owned(element.value().into()))
                });
                Tree::Document(Fields::new(count, copied))
            }
            Tree::Owned(RawBson::Array(array)) => {
                let mut items = Vec::with_capacity(reserve_copies(RawBsonRef::Array(array))?);
                items.extend(array_values(array).map(|value| Tree::Owned(value.into())));
                Tree::Array(items)
            }
            _ => return Ok(()),
        };
        *self = opened;
        Ok(())
    }

    /// Returns the bytes of the encoded value. May be a few bytes too many.
    pub fn encoded_bytes(&self) -> usize {
        // Type and end of the name, besides the name and the value.
        let field_bytes = |name_bytes, value: &Tree<'_>| 2 + name_bytes + value.encoded_bytes();
        match self {
            Tree::Value(value) => encoded_bytes(*value),
            Tree::Owned(value) => encoded_bytes(value.as_raw_bson_ref()),
            Tree::Document(fields) => {
                let fields = fields.iter();
                let bytes = fields.map(|(name, value)| field_bytes(name.len(), value));
                EMPTY_BYTES + bytes.sum::<usize>()
            }
            Tree::Array(items) => {
                let name_bytes = items.len().checked_ilog10().unwrap_or(0) as usize + 1;
                let bytes = items.iter().map(|value| field_bytes(name_bytes, value));
                EMPTY_BYTES + bytes.sum::<usize>()
            }
        }
    }

    /// Returns the value at `path`. Decodes the levels above it.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for these levels.
    pub fn find(&mut self, path: &[String]) -> Result<Option<&mut Tree<'a>>, Error> {
        let Some((name, rest)) = path.split_first() else {
            return Ok(Some(self));
        };
        self.open()?;
        let inner = match self {
            Tree::Document(fields) => fields.find(name)?,
            Tree::Array(items) => index_of(name).and_then(|index| items.get_mut(index)),
            _ => None,
        };
        inner.map_or(Ok(None), |inner| inner.find(rest))
    }

    /// Calls `change` to decide about the value at `path`. Creates the path if `change` sets a value.
    ///
    /// # Errors
    /// `PathNotViable` if the path leads into a scalar, or has a name where an array needs an index. In these cases, a
    /// removal has no effect and is no error. `CannotBackfillArray` if filling an array takes more elements than
    /// `padding` still allows.
    pub fn change(
        &mut self,
        path: &[String],
        padding: &mut Padding,
        change: Change<'_, 'a>,
    ) -> Result<(), Error> {
        self.change_in(Way { path, at: 0 }, padding, change)
    }

    fn change_in(
        &mut self,
        way: Way<'_>,
        padding: &mut Padding,
        change: Change<'_, 'a>,
    ) -> Result<(), Error> {
        let Some(name) = way.name() else {
            return Ok(());
        };
        self.open()?;
        match self {
            Tree::Document(fields) => change_field(fields, name, way, padding, change),
            Tree::Array(items) => match index_of(name) {
                Some(index) => change_item(items, index, way, padding, change),
                None => self.refuse(way, change),
            },
            _ => self.refuse(way, change),
        }
    }

    /// Handles a path that cannot be created inside this value. Returns an error, unless `change` removes the value at
    /// the path.
    fn refuse(&self, way: Way<'_>, change: Change<'_, 'a>) -> Result<(), Error> {
        let (parent, name) = (way.parent(), way.name().unwrap_or_default());
        let element = || {
            let shown = display::value(self.to_bson().as_raw_bson_ref());
            format!("{{{parent}: {shown}}}")
        };
        let message = match change(None)? {
            Outcome::Put(_) => format!("Cannot create field '{name}' in element {}", element()),
            Outcome::Keep => format!(
                "Cannot use the part ({name}) of ({}) to traverse the element ({})",
                way.path.join("."),
                element()
            ),
            Outcome::Remove => return Ok(()),
        };
        Err(Error::new(Code::PathNotViable, message))
    }

    /// Writes the value as field `key`.
    pub fn write(&self, writer: &mut Writer, key: &str) {
        match self {
            Tree::Value(value) => writer.value(key, *value),
            Tree::Owned(value) => writer.owned(key, value),
            Tree::Document(fields) => {
                writer.begin_document(key);
                fields
                    .iter()
                    .for_each(|(name, value)| value.write(writer, name));
                writer.end();
            }
            Tree::Array(items) => {
                writer.begin_array(key);
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, value)| value.write(writer, &index.to_string()));
                writer.end();
            }
        }
    }

    /// Returns the document, with `_id` first. Charges its growth: the caller has memory for a document of
    /// `given_bytes`.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for the fields or the document.
    pub fn into_document(mut self, given_bytes: usize) -> Result<RawDocumentBuf, Error> {
        self.open()?;
        let bytes = self.encoded_bytes();
        evaluation::keep(bytes.saturating_sub(given_bytes))?;
        let mut writer = Writer::with_capacity(bytes);
        if let Tree::Document(fields) = &self {
            let (id, others): (Vec<_>, Vec<_>) = fields.iter().partition(|(name, _)| name == "_id");
            id.iter()
                .chain(&others)
                .for_each(|(name, value)| value.write(&mut writer, name));
        }
        Ok(writer.finish())
    }
}

impl From<RawBson> for Tree<'_> {
    fn from(value: RawBson) -> Self {
        match value {
            RawBson::Array(array) if array.is_empty() => {
                Tree::Owned(RawBson::Array(RawArrayBuf::new()))
            }
            other => Tree::Owned(other),
        }
    }
}

/// Reserves memory for a list of the fields or the elements of a value, each of which takes `part_bytes` more. Returns
/// their number.
fn reserve_parts(value: RawBsonRef<'_>, part_bytes: usize) -> Result<usize, Error> {
    let count = count(value);
    evaluation::keep(count * (FIELD_BYTES + part_bytes))?;
    Ok(count)
}

/// Like [`reserve_parts`], for copies of the names and the values.
fn reserve_copies(value: RawBsonRef<'_>) -> Result<usize, Error> {
    evaluation::keep(payload_bytes(value))?;
    reserve_parts(value, 2 * ALLOCATION_BYTES)
}

/// Returns the array index that a path component names.
pub(super) fn index_of(name: &str) -> Option<usize> {
    let canonical = name == "0" || !name.starts_with('0');
    (is_index(name) && canonical).then(|| name.parse().ok())?
}

fn change_field<'a>(
    fields: &mut Fields<'a>,
    name: &str,
    way: Way<'_>,
    padding: &mut Padding,
    change: Change<'_, 'a>,
) -> Result<(), Error> {
    let place = fields.position(name)?;
    match place.and_then(|place| fields.at(place)) {
        Some(value) if !way.rest().is_empty() => value.change_in(way.next(), padding, change),
        Some(value) => {
            match change(Some(value))? {
                Outcome::Keep => {}
                Outcome::Put(new) => *value = new,
                Outcome::Remove => place.into_iter().for_each(|place| fields.remove(place)),
            }
            Ok(())
        }
        None => {
            if let Outcome::Put(value) = change(None)? {
                fields.push(name, nest(way.rest(), value)?)?;
            }
            Ok(())
        }
    }
}

fn change_item<'a>(
    items: &mut Vec<Tree<'a>>,
    index: usize,
    way: Way<'_>,
    padding: &mut Padding,
    change: Change<'_, 'a>,
) -> Result<(), Error> {
    match items.get_mut(index) {
        Some(item) if !way.rest().is_empty() => item.change_in(way.next(), padding, change),
        Some(item) => {
            match change(Some(item))? {
                Outcome::Keep => {}
                Outcome::Put(value) => *item = value,
                Outcome::Remove => *item = Tree::Value(RawBsonRef::Null),
            }
            Ok(())
        }
        None => {
            if let Outcome::Put(value) = change(None)? {
                padding.take(index - items.len())?;
                evaluation::keep((index - items.len()) * PADDING_BYTES)?;
                items.resize_with(index, || Tree::Value(RawBsonRef::Null));
                items.push(nest(way.rest(), value)?);
            }
            Ok(())
        }
    }
}

/// Wraps a value in new documents, one for each name of `path`.
///
/// # Errors
/// `ExceededMemoryLimit` if the memory account has no room.
fn nest<'a>(path: &[String], value: Tree<'a>) -> Result<Tree<'a>, Error> {
    let document_bytes = |name: &String| FIELD_BYTES + 2 * ALLOCATION_BYTES + name.len();
    evaluation::keep(path.iter().map(document_bytes).sum())?;
    Ok(path.iter().rev().fold(value, |inner, name| {
        let field = (Cow::Owned(name.clone()), inner);
        Tree::Document(Fields::new(1, std::iter::once(field)))
    }))
}
