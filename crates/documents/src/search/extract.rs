//! Extracts the values of the declared fields from a document, in the form in which the cache stores them.
//!
//! In MongoDB, a predicate on `a.b` traverses arrays along the path and tests the elements of an array at its end. The
//! cache stores five kinds of values: missing, null, a string, an array of strings, and any other value without
//! strings. It evaluates every predicate on these values exactly. All other documents are rechecked: the store
//! evaluates the predicate on them.

use bson::RawDocument;
use forebay_documents_cache::{Batch, FieldValue};

use super::element::{Element, Elements, Malformed, kind};
use super::fields::{Field, FieldSet, Root};

/// Extracts the declared fields of documents.
#[derive(Clone, Debug)]
pub struct Extractor {
    fields: FieldSet,
}

impl Extractor {
    /// Returns an extractor of `fields`.
    pub fn new(fields: FieldSet) -> Extractor {
        Extractor { fields }
    }

    /// Returns the declared fields.
    pub fn fields(&self) -> &FieldSet {
        &self.fields
    }

    /// Returns the values of the declared fields of `document`, in declaration order, after one pass over its top-level
    /// keys.
    ///
    /// If a key occurs twice, only the first occurrence is used, as everywhere in the query language. A malformed
    /// document is rechecked for all its fields.
    pub fn extract<'a>(&self, document: &'a RawDocument) -> Vec<FieldValue<'a>> {
        let mut values = vec![FieldValue::Missing; self.fields.len()];
        self.fill_all(document, &mut values);
        values
    }

    /// Adds to a batch the values that [`extract`](Extractor::extract) would return for each document.
    pub fn gather<'a>(&self, documents: impl Iterator<Item = &'a RawDocument>, batch: &mut Batch) {
        let mut values = vec![FieldValue::Missing; self.fields.len()];
        for document in documents {
            values.fill(FieldValue::Missing);
            self.fill_all(document, &mut values);
            batch.push(&values);
        }
    }

    /// Sets `values` for the fields that a document has. The caller has set all `values` to `Missing`.
    fn fill_all<'a>(&self, document: &'a RawDocument, values: &mut [FieldValue<'a>]) {
        if self.fill(document, values).is_err() {
            values.fill(FieldValue::Recheck);
        }
    }

    fn fill<'a>(
        &self,
        document: &'a RawDocument,
        values: &mut [FieldValue<'a>],
    ) -> Result<(), Malformed> {
        let roots = self.fields.roots();
        let mut wanted = every_root(roots.len());
        let mut expected = 0;
        for element in Elements::of(document.as_bytes()) {
            let element = element?;
            let Some(place) = place_of(roots, element.key, expected) else {
                continue;
            };
            expected = place + 1;
            if wanted & (1 << place) == 0 {
                continue;
            }
            self.fill_root(&roots[place], &element, values)?;
            wanted &= !(1 << place);
            if wanted == 0 {
                break;
            }
        }
        Ok(())
    }

    fn fill_root<'a>(
        &self,
        root: &Root,
        element: &Element<'a>,
        values: &mut [FieldValue<'a>],
    ) -> Result<(), Malformed> {
        for Field { index, rest } in &root.fields {
            values[*index] = self.value_at(element, rest)?;
        }
        Ok(())
    }

    /// Returns the value at the path `rest` below `element`.
    #[inline]
    fn value_at<'a>(
        &self,
        element: &Element<'a>,
        rest: &[Box<[u8]>],
    ) -> Result<FieldValue<'a>, Malformed> {
        let Some((key, deeper)) = rest.split_first() else {
            return self.leaf(element);
        };
        match element.kind {
            kind::DOCUMENT => self.value_below(element, key, deeper),
            kind::ARRAY => self.value_through_array(element, rest),
            _ => Ok(FieldValue::Missing),
        }
    }

    fn value_below<'a>(
        &self,
        element: &Element<'a>,
        key: &[u8],
        deeper: &[Box<[u8]>],
    ) -> Result<FieldValue<'a>, Malformed> {
        for child in element.children() {
            let child = child?;
            if child.key == key {
                return self.value_at(&child, deeper);
            }
        }
        Ok(FieldValue::Missing)
    }

    /// Returns the value at a path through an array. The value is an array of strings if each element is a document
    /// whose field holds strings.
    ///
    /// Other documents are rechecked: a number in the path may be an array index, and an element without the field
    /// makes the document match null too.
    fn value_through_array<'a>(
        &self,
        array: &Element<'a>,
        rest: &[Box<[u8]>],
    ) -> Result<FieldValue<'a>, Malformed> {
        if rest[0].iter().all(u8::is_ascii_digit) {
            return Ok(FieldValue::Recheck);
        }
        let mut strings = Vec::new();
        for child in array.children() {
            let child = child?;
            if child.kind != kind::DOCUMENT {
                return Ok(FieldValue::Recheck);
            }
            match self.value_at(&child, rest)? {
                FieldValue::String(text) => strings.push(text),
                FieldValue::Strings(texts) => strings.extend(texts),
                _ => return Ok(FieldValue::Recheck),
            }
        }
        Ok(if strings.is_empty() {
            FieldValue::Recheck
        } else {
            FieldValue::Strings(strings)
        })
    }

    #[inline]
    fn leaf<'a>(&self, element: &Element<'a>) -> Result<FieldValue<'a>, Malformed> {
        Ok(match element.kind {
            kind::STRING => element
                .text()
                .map_or(FieldValue::Recheck, FieldValue::String),
            kind::NULL => FieldValue::Null,
            kind::ARRAY => self.leaf_array(element)?,
            kind::UNDEFINED | kind::REGEX | kind::SYMBOL => FieldValue::Recheck,
            _ => FieldValue::Other,
        })
    }

    /// Returns the value of an array at the end of the path: its strings, or `Other` if no string predicate can match
    /// it.
    fn leaf_array<'a>(&self, array: &Element<'a>) -> Result<FieldValue<'a>, Malformed> {
        let (mut strings, mut others) = (Vec::new(), false);
        for child in array.children() {
            match self.leaf_of_array(&child?) {
                Some(FieldValue::String(text)) => strings.push(text),
                Some(_) => others = true,
                None => return Ok(FieldValue::Recheck),
            }
        }
        Ok(match (strings.is_empty(), others) {
            (true, _) => FieldValue::Other,
            (false, false) => FieldValue::Strings(strings),
            (false, true) => FieldValue::Recheck,
        })
    }

    fn leaf_of_array<'a>(&self, child: &Element<'a>) -> Option<FieldValue<'a>> {
        match child.kind {
            kind::STRING => child.text().map(FieldValue::String),
            kind::NULL | kind::ARRAY | kind::UNDEFINED | kind::REGEX | kind::SYMBOL => None,
            _ => Some(FieldValue::Other),
        }
    }
}

/// Returns the position of a top-level key. The search starts at `expected`, because documents tend to have their keys
/// in the same order.
fn place_of(roots: &[Root], key: &[u8], expected: usize) -> Option<usize> {
    let is_it = |root: &Root| *root.key == *key;
    let (before, after) = roots.split_at(expected);
    let later = after.iter().position(is_it).map(|place| expected + place);
    later.or_else(|| before.iter().position(is_it))
}

/// Returns a mask whose lowest `roots` bits are set: one bit for each top-level key to find.
fn every_root(roots: usize) -> u64 {
    u64::MAX.checked_shr(64 - roots as u32).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bson::rawdoc;

    fn one<'a>(path: &str, document: &'a RawDocument) -> FieldValue<'a> {
        Extractor::new(FieldSet::new([path]))
            .extract(document)
            .remove(0)
    }

    #[test]
    fn top_level_values() {
        let document = rawdoc! {
            "s": "text", "n": bson::RawBson::Null, "i": 1, "u": bson::RawBson::Undefined,
            "y": bson::RawBson::Symbol("s".into()), "d": { "x": "y" },
            "c": bson::RawBson::JavaScriptCode("text".into()),
        };
        assert_eq!(one("s", &document), FieldValue::String(b"text"));
        assert_eq!(one("n", &document), FieldValue::Null);
        assert_eq!(one("none", &document), FieldValue::Missing);
        for other in ["i", "d", "c"] {
            assert_eq!(one(other, &document), FieldValue::Other, "{other}");
        }
        for recheck in ["u", "y"] {
            assert_eq!(one(recheck, &document), FieldValue::Recheck, "{recheck}");
        }
    }

    #[test]
    fn arrays_at_the_end() {
        let document = rawdoc! {
            "strings": ["a", "b"], "numbers": [1, 2], "empty": [], "mixed": ["a", 1],
            "null": ["a", bson::RawBson::Null], "nested": [["a"]], "documents": [{ "x": "y" }],
        };
        assert_eq!(
            one("strings", &document),
            FieldValue::Strings(vec![b"a", b"b"])
        );
        for other in ["numbers", "empty", "documents"] {
            assert_eq!(one(other, &document), FieldValue::Other, "{other}");
        }
        for recheck in ["mixed", "null", "nested"] {
            assert_eq!(one(recheck, &document), FieldValue::Recheck, "{recheck}");
        }
    }

    #[test]
    fn dotted_paths() {
        let document =
            rawdoc! { "a": { "b": { "c": "x" }, "n": bson::RawBson::Null }, "s": "text" };
        assert_eq!(one("a.b.c", &document), FieldValue::String(b"x"));
        assert_eq!(one("a.n", &document), FieldValue::Null);
        assert_eq!(one("a.b", &document), FieldValue::Other);
        for missing in ["a.b.d", "a.n.x", "s.x", "z.y"] {
            assert_eq!(one(missing, &document), FieldValue::Missing, "{missing}");
        }
    }

    #[test]
    fn arrays_on_the_way() {
        let document = rawdoc! {
            "all": [{ "n": "a" }, { "n": ["b", "c"] }], "some": [{ "n": "a" }, { "m": "b" }],
            "scalar": [{ "n": "a" }, 1], "empty": [],
        };
        assert_eq!(
            one("all.n", &document),
            FieldValue::Strings(vec![b"a", b"b", b"c"])
        );
        for recheck in ["some.n", "scalar.n", "empty.n", "all.0.n"] {
            assert_eq!(one(recheck, &document), FieldValue::Recheck, "{recheck}");
        }
    }

    #[test]
    fn several_fields_in_one_pass_and_the_first_of_two_equal_keys() {
        let mut document = rawdoc! { "b": "1", "x": 0, "a": { "c": "2", "d": "3" } };
        document.append(bson::raw::cstr!("b"), "later");
        let extractor = Extractor::new(FieldSet::new(["a.d", "b", "none", "a.c"]));
        let expected = [
            FieldValue::String(b"3"),
            FieldValue::String(b"1"),
            FieldValue::Missing,
            FieldValue::String(b"2"),
        ];
        assert_eq!(extractor.extract(&document), expected);
    }
}
