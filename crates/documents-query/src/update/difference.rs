//! The changes of an update, as change streams report them: paths with new values, and removed paths.
//!
//! Two versions of a document are read in parallel. A field whose position has changed is reported with its new value.
//!
//! # Sources
//! `src/mongo/db/update/document_diff_calculator.cpp` of the MongoDB server.

use std::collections::HashSet;

use bson::raw::{RawArray, RawBsonRef, RawDocument, RawDocumentBuf};

use crate::element::{Element, Writer, array_elements, elements};

/// Returns `{updatedFields, removedFields, truncatedArrays}`: the changes that convert `old` to `new`, except for the
/// order of fields.
///
/// For a nested document or array, lists the changed parts if they are shorter than the whole new value.
pub fn describe(old: &RawDocument, new: &RawDocument) -> RawDocumentBuf {
    let mut difference = Difference::default();
    difference.documents("", old, new);
    difference.finish()
}

#[derive(Default)]
struct Difference<'a> {
    updated: Vec<(String, Element<'a>)>,
    removed: Vec<String>,
    truncated: Vec<(String, i32)>,
    bytes: usize,
}

impl<'a> Difference<'a> {
    fn documents(&mut self, path: &str, old: &'a RawDocument, new: &'a RawDocument) {
        let mut new = elements(new).peekable();
        let mut gone = Vec::new();
        for before in elements(old) {
            match new.next_if(|after| after.key == before.key) {
                Some(after) => self.values(join(path, after.key), before, after),
                None => gone.push(before.key),
            }
        }
        let mut added = HashSet::new();
        for after in new {
            added.insert(after.key);
            self.update(join(path, after.key), after);
        }
        gone.retain(|key| !added.contains(key));
        gone.iter().for_each(|key| self.remove(join(path, key)));
    }

    fn arrays(&mut self, path: &str, old: &'a RawArray, new: &'a RawArray) {
        let mut old = array_elements(old);
        let mut count = 0;
        for after in array_elements(new) {
            let path = join(path, &count.to_string());
            match old.next() {
                Some(before) => self.values(path, before, after),
                None => self.update(path, after),
            }
            count += 1;
        }
        if old.next().is_some() {
            self.bytes += path.len();
            self.truncated.push((path.to_owned(), count));
        }
    }

    fn values(&mut self, path: String, before: Element<'a>, after: Element<'a>) {
        if before.kind() == after.kind() && before.value_bytes() == after.value_bytes() {
            return;
        }
        let mut parts = Difference::default();
        match (before.value(), after.value()) {
            // A path cannot pass through a field with an empty name.
            _ if path.is_empty() => return self.update(path, after),
            (RawBsonRef::Document(old), RawBsonRef::Document(new))
                if has_plain_names(old) && has_plain_names(new) =>
            {
                parts.documents(&path, old, new)
            }
            (RawBsonRef::Array(old), RawBsonRef::Array(new)) => parts.arrays(&path, old, new),
            _ => return self.update(path, after),
        }
        match parts.bytes < path.len() + after.value_bytes().len() {
            true => self.append(parts),
            false => self.update(path, after),
        }
    }

    fn update(&mut self, path: String, value: Element<'a>) {
        self.bytes += path.len() + value.value_bytes().len();
        self.updated.push((path, value));
    }

    fn remove(&mut self, path: String) {
        self.bytes += path.len();
        self.removed.push(path);
    }

    fn append(&mut self, mut parts: Difference<'a>) {
        self.updated.append(&mut parts.updated);
        self.removed.append(&mut parts.removed);
        self.truncated.append(&mut parts.truncated);
        self.bytes += parts.bytes;
    }

    fn finish(self) -> RawDocumentBuf {
        let mut writer = Writer::with_capacity(self.bytes + 128);
        writer.begin_document("updatedFields");
        for (path, value) in &self.updated {
            writer.element_as(path, value);
        }
        writer.end();
        writer.begin_array("removedFields");
        for (index, path) in self.removed.iter().enumerate() {
            writer.value(&index.to_string(), RawBsonRef::String(path));
        }
        writer.end();
        writer.begin_array("truncatedArrays");
        for (index, (path, size)) in self.truncated.iter().enumerate() {
            writer.begin_document(&index.to_string());
            writer.value("field", RawBsonRef::String(path));
            writer.value("newSize", RawBsonRef::Int32(*size));
            writer.end();
        }
        writer.end();
        writer.finish()
    }
}

fn join(path: &str, name: &str) -> String {
    match path {
        "" => name.to_owned(),
        path => format!("{path}.{name}"),
    }
}

/// Returns whether every field name of a document can be a component of a dotted path.
fn has_plain_names(document: &RawDocument) -> bool {
    elements(document).all(|element| {
        let name = element.key;
        !name.is_empty() && !name.starts_with('$') && !name.contains('.')
    })
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[track_caller]
    fn check(
        old: RawDocumentBuf,
        new: RawDocumentBuf,
        updated: RawDocumentBuf,
        removed: &[&str],
        truncated: &[(&str, i32)],
    ) {
        let removed: bson::RawArrayBuf = removed.iter().copied().collect();
        let truncated = truncated
            .iter()
            .map(|(field, size)| rawdoc! { "field": *field, "newSize": *size });
        let expected = rawdoc! {
            "updatedFields": updated,
            "removedFields": removed,
            "truncatedArrays": truncated.collect::<bson::RawArrayBuf>(),
        };
        assert_eq!(describe(&old, &new), expected);
    }

    #[test]
    fn fields_are_told_by_their_paths() {
        check(
            rawdoc! { "_id": 1, "a": 1, "b": { "c": 1, "d": { "e": 1, "f": "long enough a string" } }, "g": 1 },
            rawdoc! { "_id": 1, "a": 2_i64, "b": { "c": 1, "d": { "e": 2, "f": "long enough a string" } }, "h": null },
            rawdoc! { "a": 2_i64, "b.d.e": 2, "h": null },
            &["g"],
            &[],
        );
    }

    #[test]
    fn a_type_is_a_difference() {
        check(
            rawdoc! { "a": 1, "b": -0.0 },
            rawdoc! { "a": 1_i64, "b": 0.0 },
            rawdoc! { "a": 1_i64, "b": 0.0 },
            &[],
            &[],
        );
    }

    #[test]
    fn arrays_are_told_by_places_and_lengths() {
        let long = "a long string that is the same before and after";
        check(
            rawdoc! { "a": [long, 1, 2, 3] },
            rawdoc! { "a": [long, 1, 5] },
            rawdoc! { "a.2": 5 },
            &[],
            &[("a", 3)],
        );
        check(
            rawdoc! { "a": [long, { "b": 1, "c": long }] },
            rawdoc! { "a": [long, { "b": 2, "c": long }, 7] },
            rawdoc! { "a.1.b": 2, "a.2": 7 },
            &[],
            &[],
        );
    }

    #[test]
    fn what_is_shorter_whole_is_told_whole() {
        check(
            rawdoc! { "a long path": [1, 2, 3], "b": { "a long name": 1, "another": 2 } },
            rawdoc! { "a long path": [4, 5, 6], "b": { "x": 1 } },
            rawdoc! { "a long path": [4, 5, 6], "b": { "x": 1 } },
            &[],
            &[],
        );
    }

    #[test]
    fn names_that_no_path_can_hold_are_told_with_what_holds_them() {
        let long = "a long string that is the same before and after";
        check(
            rawdoc! { "a": { "b.c": 1, "d": long } },
            rawdoc! { "a": { "b.c": 2, "d": long } },
            rawdoc! { "a": { "b.c": 2, "d": long } },
            &[],
            &[],
        );
    }

    #[test]
    fn another_order_is_a_difference() {
        check(
            rawdoc! { "_id": 1, "a": 1, "b": 2 },
            rawdoc! { "_id": 1, "b": 2, "a": 1 },
            rawdoc! { "a": 1 },
            &[],
            &[],
        );
    }
}
