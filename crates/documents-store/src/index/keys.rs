//! Keys of a document in an index, by MongoDB's rules for arrays.
//!
//! An array at the end of a path yields one key per element. An array within a path yields the keys of each element
//! that is a document. Two fields of a compound index may pass through the same array, but not through two different
//! arrays. For example, if `a` is an array, `a.x` and `a.y` yield one key per element, with both values of the element.
//! A numeric path component selects the array element with that index. A missing value is `null`. An empty array at the
//! end of a path is `undefined`.

use bson::raw::RawArray;
use bson::{RawBsonRef, RawDocument};
use forebay_documents_query::element::Writer;
use forebay_documents_query::key;

use super::{IndexKind, IndexSpec};
use crate::engine::KEY_BYTES_MAX;
use crate::error::{Result, StoreError};

/// The keys of one document in one index, sorted and without duplicates.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DocumentKeys {
    /// The encoded keys.
    pub keys: Vec<Vec<u8>>,
    /// Whether a path passed through an array, even an array of one element.
    pub multikey: bool,
}

/// Encodes one field's value as a part of a key.
pub fn encode(value: RawBsonRef<'_>, kind: IndexKind, out: &mut Vec<u8>) {
    let direction = match kind {
        IndexKind::Descending => key::Direction::Descending,
        IndexKind::Ascending | IndexKind::Cache => key::Direction::Ascending,
    };
    key::append_directed(out, value, direction);
}

/// Computes the keys of a document in an index.
pub fn document_keys(spec: &IndexSpec, document: &RawDocument) -> Result<DocumentKeys> {
    let tuples = tuples(spec, document)?;
    let mut keys = Vec::with_capacity(tuples.tuples.len());
    for tuple in tuples
        .tuples
        .iter()
        .filter(|tuple| !spec.sparse || tuple.iter().any(Option::is_some))
    {
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

/// Returns the values of the document's fields whose encoding is `key`, for error messages. Missing values are `null`.
pub fn key_values(spec: &IndexSpec, document: &RawDocument, key: &[u8]) -> bson::RawDocumentBuf {
    let mut found = Writer::new();
    let tuples = tuples(spec, document)
        .map(|tuples| tuples.tuples)
        .unwrap_or_default();
    let matches =
        |tuple: &&Tuple<'_>| encode_tuple(spec, tuple).is_ok_and(|encoded| encoded == key);
    let tuple = tuples.iter().find(matches);
    for (at, field) in spec.fields.iter().enumerate() {
        let value = tuple.and_then(|tuple| tuple.get(at).copied().flatten());
        found.value(&field.path, value.unwrap_or(RawBsonRef::Null));
    }
    found.finish()
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

/// The values of one key, one for each field of the index; `None` for missing values.
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
    let fields = spec
        .fields
        .iter()
        .map(|field| Field::Open(document, field.path.as_str()))
        .collect();
    found.expand(spec, fields)?;
    Ok(found)
}

/// State of one field while its path is followed.
#[derive(Clone, Copy)]
enum Field<'a, 'p> {
    /// The field's value.
    Known(Option<RawBsonRef<'a>>),
    /// A document, and the rest of the path from there.
    Open(&'a RawDocument, &'p str),
    /// An array, and the rest of the path after it.
    Array(&'a RawArray, Option<&'p str>),
}

impl<'a> Tuples<'a> {
    /// Follows each path to its value or to its first array, then expands the elements of the array. All paths that
    /// meet an array must meet the same array.
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

    fn expand_elements(
        &mut self,
        spec: &IndexSpec,
        fields: &[Field<'a, '_>],
        array: &'a RawArray,
    ) -> Result<()> {
        self.multikey = true;
        let mut elements = array.into_iter().peekable();
        if elements.peek().is_none() {
            return self.expand(spec, fields.iter().map(|field| field.in_empty()).collect());
        }
        for element in elements {
            let element = element.map_err(invalid)?;
            self.expand(
                spec,
                fields
                    .iter()
                    .map(|field| field.in_element(element))
                    .collect(),
            )?;
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

    /// Returns the state of a field whose array is empty.
    fn in_empty(&self) -> Self {
        match self {
            Self::Array(_, None) => Self::Known(Some(RawBsonRef::Undefined)),
            Self::Array(_, Some(_)) => Self::Known(None),
            other => *other,
        }
    }

    /// Returns the field's state for one element of its array.
    fn in_element(&self, element: RawBsonRef<'a>) -> Self {
        match (*self, element) {
            (Self::Array(_, None), element) => Self::Known(Some(element)),
            (Self::Array(_, Some(rest)), RawBsonRef::Document(document)) => {
                Self::Open(document, rest)
            }
            (Self::Array(_, Some(_)), _) => Self::Known(None),
            (other, _) => other,
        }
    }
}

/// Follows a path through documents until it reaches its value or an array.
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
    path.split_once('.')
        .map_or((path, None), |(step, rest)| (step, Some(rest)))
}

/// Returns the array element that a numeric path component selects.
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
    let path = |at: usize| {
        spec.fields
            .get(at)
            .map_or_else(String::new, |field| field.path.clone())
    };
    StoreError::ParallelArrays {
        first: path(second),
        second: path(first),
    }
}

fn invalid(error: bson::error::Error) -> StoreError {
    StoreError::from(error)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;
    use crate::index::IndexField;

    fn spec(paths: &[&str]) -> IndexSpec {
        let field = |path: &&str| IndexField {
            path: (*path).to_owned(),
            kind: IndexKind::Ascending,
        };
        IndexSpec::new("test", paths.iter().map(field).collect())
    }

    /// Returns the keys of a document as BSON values, in document order, with `null` for missing values.
    fn values(paths: &[&str], document: bson::Document) -> Result<Vec<Vec<Bson>>> {
        let raw = bson::RawDocumentBuf::try_from(&document).expect("plain");
        let value = |value: &Option<RawBsonRef<'_>>| {
            value.map_or(Bson::Null, |value| Bson::try_from(value).expect("plain"))
        };
        let found = tuples(&spec(paths), &raw)?;
        Ok(found
            .tuples
            .iter()
            .map(|tuple| tuple.iter().map(value).collect())
            .collect())
    }

    fn single(path: &str, document: bson::Document) -> Vec<Bson> {
        values(&[path], document)
            .expect("one field is never parallel")
            .into_iter()
            .flatten()
            .collect()
    }

    fn list(values: impl IntoIterator<Item = impl Into<Bson>>) -> Vec<Bson> {
        values.into_iter().map(Into::into).collect()
    }

    #[test]
    fn paths_lead_through_documents() {
        assert_eq!(single("a", doc! { "a": 1 }), list([1]));
        assert_eq!(single("a.b", doc! { "a": { "b": "x" } }), list(["x"]));
        assert_eq!(single("a.b", doc! { "a": { "c": 1 } }), [Bson::Null]);
        assert_eq!(single("a.b", doc! { "a": 5 }), [Bson::Null]);
        assert_eq!(single("a", doc! {}), [Bson::Null]);
        assert_eq!(
            single("a", doc! { "a": { "b": 1 } }),
            [Bson::Document(doc! { "b": 1 })]
        );
    }

    #[test]
    fn arrays_give_a_key_an_element() {
        assert_eq!(
            single("a", doc! { "a": [1, "x"] }),
            [Bson::from(1), Bson::from("x")]
        );
        assert_eq!(single("a", doc! { "a": [] }), [Bson::Undefined]);
        assert_eq!(
            single("a", doc! { "a": [[1, 2], 3] }),
            [Bson::from(vec![1, 2]), Bson::from(3)]
        );
        assert_eq!(
            single(
                "a.b",
                doc! { "a": [{ "b": 1 }, { "b": [2, 3] }, { "c": 4 }, 5] }
            ),
            [
                Bson::from(1),
                Bson::from(2),
                Bson::from(3),
                Bson::Null,
                Bson::Null
            ]
        );
        assert_eq!(single("a.b", doc! { "a": [] }), [Bson::Null]);
    }

    #[test]
    fn a_number_in_a_path_picks_an_element() {
        assert_eq!(single("a.1", doc! { "a": [7, 8] }), list([8]));
        assert_eq!(single("a.1", doc! { "a": [7] }), [Bson::Null]);
        assert_eq!(
            single("a.0.b", doc! { "a": [{ "b": 7 }, { "b": 8 }] }),
            list([7])
        );
        assert_eq!(single("a.0", doc! { "a": { "0": 9 } }), list([9]));
        assert_eq!(single("a.0.1", doc! { "a": [[5, 6]] }), list([6]));
    }

    #[test]
    fn one_array_pairs_its_elements() {
        let pairs = values(
            &["a.x", "a.y"],
            doc! { "a": [{ "x": 1, "y": 2 }, { "x": 3 }] },
        )
        .expect("one array");
        assert_eq!(pairs, [list([1, 2]), vec![Bson::from(3), Bson::Null]]);
        let with_scalar = values(&["a", "b"], doc! { "a": [1, 2], "b": 9 }).expect("one array");
        assert_eq!(with_scalar, [list([1, 9]), list([2, 9])]);
        let whole = values(&["a", "a.x"], doc! { "a": [{ "x": 1 }] }).expect("one array");
        assert_eq!(
            whole,
            [vec![Bson::Document(doc! { "x": 1 }), Bson::from(1)]]
        );
    }

    #[test]
    fn two_arrays_are_refused() {
        let parallel = |paths: &[&str], document| {
            matches!(
                values(paths, document),
                Err(StoreError::ParallelArrays { .. })
            )
        };
        assert!(parallel(&["a", "b"], doc! { "a": [1], "b": [2] }));
        assert!(parallel(&["a", "b"], doc! { "a": [], "b": [] }));
        assert!(parallel(
            &["a.x", "a.y"],
            doc! { "a": [{ "x": [1], "y": [2] }] }
        ));
        assert!(parallel(
            &["a.x", "b.x"],
            doc! { "a": [{ "x": 1 }], "b": [{ "x": 1 }] }
        ));
        assert!(!parallel(
            &["a.x", "a.y"],
            doc! { "a": [{ "x": [1], "y": 2 }] }
        ));
    }

    #[test]
    fn sparse_leaves_out_what_has_no_field() {
        let keys = |document: bson::Document| {
            let raw = bson::RawDocumentBuf::try_from(&document).expect("plain");
            document_keys(&spec(&["a", "b"]).sparse(), &raw)
                .expect("no arrays")
                .keys
                .len()
        };
        assert_eq!(
            (
                keys(doc! {}),
                keys(doc! { "a": 1 }),
                keys(doc! { "b": null })
            ),
            (0, 1, 1)
        );
    }

    #[test]
    fn equal_elements_are_one_key() {
        let raw = bson::RawDocumentBuf::try_from(&doc! { "a": [1, 1.0, 2] }).expect("plain");
        let keys = document_keys(&spec(&["a"]), &raw).expect("one array");
        assert_eq!(keys.keys.len(), 2);
        assert!(keys.multikey);
    }
}
