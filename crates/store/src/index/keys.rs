//! Which keys a document has in an index, by MongoDB's rules for arrays.
//!
//! An array at the end of a path gives one key an element; an array within a path gives the keys of each element that
//! is a document. Two fields of a compound index may meet the same array (`a.x` and `a.y` where `a` is an array: keys
//! pair up by element), but not two different ones. A numeric step picks that element of an array. Missing is `null`,
//! an empty array at the end of a path is `undefined`.

use bson::raw::RawArray;
use bson::{RawBsonRef, RawDocument};
use forebay_query::key;

use super::{IndexKind, IndexSpec};
use crate::engine::KEY_BYTES_MAX;
use crate::error::{Result, StoreError};

/// The keys of one document in one index: sorted, each once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentKeys {
    /// Encoded keys.
    pub keys: Vec<Vec<u8>>,
    /// Whether an array was met, even one with a single element.
    pub multikey: bool,
}

/// Encodes one value as a part of a key.
pub fn encode(value: RawBsonRef<'_>, kind: IndexKind, out: &mut Vec<u8>) {
    let direction = match kind {
        IndexKind::Descending => key::Direction::Descending,
        IndexKind::Ascending | IndexKind::Cache => key::Direction::Ascending,
    };
    key::append_directed(out, value, direction);
}

/// The keys of a document in an index.
pub fn document_keys(spec: &IndexSpec, document: &RawDocument) -> Result<DocumentKeys> {
    let tuples = tuples(spec, document)?;
    let mut keys = Vec::with_capacity(tuples.tuples.len());
    for tuple in tuples.tuples.iter().filter(|tuple| !spec.sparse || tuple.iter().any(Option::is_some)) {
        keys.push(encode_tuple(spec, tuple)?);
    }
    if keys.len() > 1 {
        keys.sort_unstable();
        keys.dedup();
    }
    Ok(DocumentKeys {
        keys,
        multikey: tuples.multikey,
    })
}

/// The values behind an encoded key of a document, for messages; `null` where the document has none.
pub fn key_values(spec: &IndexSpec, document: &RawDocument, key: &[u8]) -> bson::RawDocumentBuf {
    let mut found = bson::Document::new();
    let tuples = tuples(spec, document).map(|tuples| tuples.tuples).unwrap_or_default();
    let matches = |tuple: &&Tuple<'_>| encode_tuple(spec, tuple).is_ok_and(|encoded| encoded == key);
    let tuple = tuples.iter().find(matches);
    for (at, field) in spec.fields.iter().enumerate() {
        let value = tuple.and_then(|tuple| tuple.get(at).copied().flatten());
        let value = value.and_then(|value| bson::Bson::try_from(value).ok());
        found.insert(field.path.clone(), value.unwrap_or(bson::Bson::Null));
    }
    bson::RawDocumentBuf::try_from(&found).unwrap_or_default()
}

fn encode_tuple(spec: &IndexSpec, tuple: &Tuple<'_>) -> Result<Vec<u8>> {
    let mut key = Vec::with_capacity(24);
    for (value, field) in tuple.iter().zip(&spec.fields) {
        encode(value.unwrap_or(RawBsonRef::Null), field.kind, &mut key);
    }
    if key.len() > KEY_BYTES_MAX {
        return Err(StoreError::KeyTooLong {
            index: spec.name.clone(),
            bytes: key.len(),
            bytes_max: KEY_BYTES_MAX,
        });
    }
    Ok(key)
}

/// One value a field; `None` where the document has none.
type Tuple<'a> = Vec<Option<RawBsonRef<'a>>>;

struct Tuples<'a> {
    tuples: Vec<Tuple<'a>>,
    multikey: bool,
}

fn tuples<'a>(spec: &IndexSpec, document: &'a RawDocument) -> Result<Tuples<'a>> {
    let mut found = Tuples {
        tuples: Vec::with_capacity(1),
        multikey: false,
    };
    let fields = spec.fields.iter().map(|field| Field::Open(document, field.path.as_str())).collect();
    found.expand(spec, fields)?;
    Ok(found)
}

/// What is known of one field of a tuple.
#[derive(Clone, Copy)]
enum Field<'a, 'p> {
    /// Its value.
    Known(Option<RawBsonRef<'a>>),
    /// What is left of its path, from this document on.
    Open(&'a RawDocument, &'p str),
    /// What is left of its path, behind this array.
    Array(&'a RawArray, Option<&'p str>),
}

impl<'a> Tuples<'a> {
    /// Follows the paths to values or to the first array, and goes through its elements.
    fn expand<'p>(&mut self, spec: &IndexSpec, mut fields: Vec<Field<'a, 'p>>) -> Result<()> {
        let mut array: Option<(&'a RawArray, usize)> = None;
        for (at, field) in fields.iter_mut().enumerate() {
            if let Field::Open(document, path) = *field {
                *field = follow(document, path)?;
            }
            let Field::Array(met, _) = field else {
                continue;
            };
            match array {
                Some((first, other)) if !std::ptr::eq(first.as_bytes(), met.as_bytes()) => {
                    return Err(parallel(spec, other, at));
                }
                _ => array = Some((met, at)),
            }
        }
        match array {
            Some((array, _)) => self.expand_elements(spec, &fields, array),
            None => {
                self.tuples.push(fields.iter().map(Field::known).collect());
                Ok(())
            }
        }
    }

    fn expand_elements(&mut self, spec: &IndexSpec, fields: &[Field<'a, '_>], array: &'a RawArray) -> Result<()> {
        self.multikey = true;
        let mut elements = array.into_iter().peekable();
        if elements.peek().is_none() {
            return self.expand(spec, fields.iter().map(|field| field.in_empty()).collect());
        }
        for element in elements {
            let element = element.map_err(invalid)?;
            self.expand(spec, fields.iter().map(|field| field.in_element(element)).collect())?;
        }
        Ok(())
    }
}

impl<'a> Field<'a, '_> {
    fn known(&self) -> Option<RawBsonRef<'a>> {
        match self {
            Self::Known(value) => *value,
            Self::Open(..) | Self::Array(..) => None,
        }
    }

    /// The field, given that its array is empty.
    fn in_empty(&self) -> Self {
        match self {
            Self::Array(_, None) => Self::Known(Some(RawBsonRef::Undefined)),
            Self::Array(_, Some(_)) => Self::Known(None),
            other => *other,
        }
    }

    /// The field, given an element of its array.
    fn in_element(&self, element: RawBsonRef<'a>) -> Self {
        match (*self, element) {
            (Self::Array(_, None), element) => Self::Known(Some(element)),
            (Self::Array(_, Some(rest)), RawBsonRef::Document(document)) => Self::Open(document, rest),
            (Self::Array(_, Some(_)), _) => Self::Known(None),
            (other, _) => other,
        }
    }
}

/// Follows a path through documents, up to its value or the first array.
fn follow<'a, 'p>(document: &'a RawDocument, path: &'p str) -> Result<Field<'a, 'p>> {
    let (mut document, mut path) = (document, path);
    loop {
        let (step, rest) = split(path);
        let mut value = document.get(step).map_err(invalid)?;
        let mut rest = rest;
        while let (Some(RawBsonRef::Array(array)), Some(path)) = (value, rest) {
            let (step, behind) = split(path);
            let Some(element) = picked(array, step)? else {
                break;
            };
            (value, rest) = (Some(element), behind);
        }
        match (value, rest) {
            (Some(RawBsonRef::Array(array)), rest) => return Ok(Field::Array(array, rest)),
            (Some(RawBsonRef::Document(inner)), Some(rest)) => (document, path) = (inner, rest),
            (_, Some(_)) => return Ok(Field::Known(None)),
            (value, None) => return Ok(Field::Known(value)),
        }
    }
}

fn split(path: &str) -> (&str, Option<&str>) {
    path.split_once('.').map_or((path, None), |(step, rest)| (step, Some(rest)))
}

/// The element of an array that a numeric step picks.
fn picked<'a>(array: &'a RawArray, step: &str) -> Result<Option<RawBsonRef<'a>>> {
    if !step.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    match step.parse() {
        Ok(index) => array.get(index).map_err(invalid),
        Err(_) => Ok(None),
    }
}

fn parallel(spec: &IndexSpec, first: usize, second: usize) -> StoreError {
    let path = |at: usize| spec.fields.get(at).map_or_else(String::new, |field| field.path.clone());
    StoreError::ParallelArrays {
        first: path(second),
        second: path(first),
    }
}

fn invalid(error: bson::error::Error) -> StoreError {
    StoreError::from(error)
}
