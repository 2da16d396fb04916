//! The fields of documents that a replica holds, and which filters it can evaluate with them.

use bson::{Document, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};

/// Bytes of the length prefix of a BSON document.
const LENGTH_BYTES: usize = size_of::<i32>();

/// The top-level fields that a replica holds: `_id`, and the first components of the cached paths.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReplicaFields {
    /// The cached fields, as dotted paths.
    fields: Vec<String>,
}

/// How much of a filter a replica can evaluate.
#[derive(Debug, PartialEq)]
pub enum Judgement {
    /// The replica can evaluate all conditions, so it finds exactly the matching documents.
    Whole,
    /// The replica can evaluate only these conditions.
    Part(RawDocumentBuf),
    /// The filter has no condition on a cached field.
    None,
}

impl ReplicaFields {
    /// Creates the replicated fields for caches of `fields` (dotted paths).
    pub fn new(fields: Vec<String>) -> ReplicaFields {
        ReplicaFields { fields }
    }

    /// Returns the part of a document that the replica holds: whole top-level fields in their order. Copies raw bytes,
    /// because strings may not be UTF-8.
    pub fn project(&self, document: &RawDocument) -> RawDocumentBuf {
        let bytes = document.as_bytes();
        let (mut held, mut at) = (Vec::new(), LENGTH_BYTES);
        for element in document.iter_elements().map_while(Result::ok) {
            let name = element.key().as_str();
            // An element is its type byte, the name with a terminator, and the value.
            let end = at + 1 + name.len() + 1 + element.size();
            if self.holds(name) {
                held.extend_from_slice(&bytes[at..end]);
            }
            at = end;
        }
        document_of(&[&held])
    }

    /// Returns the projection for queries at the upstream.
    pub fn projection(&self) -> Document {
        let shown = |root: &str| (root.to_owned(), 1.into());
        self.roots().map(shown).collect()
    }

    /// Returns the names of the top-level fields.
    fn roots(&self) -> impl Iterator<Item = &str> {
        let roots = self.fields.iter().map(|path| root(path));
        std::iter::once("_id").chain(roots)
    }

    /// Returns whether the replica holds everything at `path`.
    pub fn holds(&self, path: &str) -> bool {
        self.roots().any(|held| held == root(path))
    }

    /// Returns how much of `filter` the replica can evaluate; [`Judgement::None`] if no condition is on a cached field.
    pub fn judge(&self, filter: &RawDocument) -> Judgement {
        let mut conditions = RawArrayBuf::new();
        let (mut whole, mut cached) = (true, false);
        for (name, value) in filter.into_iter().flatten() {
            match self.condition(name.as_str(), value) {
                None => whole = false,
                Some(names_cached) => {
                    let mut condition = RawDocumentBuf::new();
                    condition.append(name, value);
                    conditions.push(condition);
                    cached |= names_cached;
                }
            }
        }
        match (cached, whole) {
            (false, _) => Judgement::None,
            (true, true) => Judgement::Whole,
            (true, false) => Judgement::Part(rawdoc! { "$and": conditions }),
        }
    }

    /// Returns whether a condition of a filter is on a cached field, or contains such a condition. Returns `None` if
    /// the replica cannot evaluate the condition.
    fn condition(&self, name: &str, value: RawBsonRef<'_>) -> Option<bool> {
        match name {
            "$and" | "$or" | "$nor" => {
                let mut cached = false;
                for branch in value.as_array()?.into_iter().flatten() {
                    for (name, value) in branch.as_document()?.into_iter().flatten() {
                        cached |= self.condition(name.as_str(), value)?;
                    }
                }
                Some(cached)
            }
            "$comment" => Some(false),
            operator if operator.starts_with('$') => None,
            path if self.holds(path) => Some(self.fields.iter().any(|field| field == path)),
            _ => None,
        }
    }
}

/// Builds a document from raw elements.
pub fn document_of(elements: &[&[u8]]) -> RawDocumentBuf {
    let mut bytes = vec![0; LENGTH_BYTES];
    elements
        .iter()
        .for_each(|part| bytes.extend_from_slice(part));
    bytes.push(0);
    let length = bytes.len() as i32;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    RawDocumentBuf::from_bytes(bytes).expect("the bytes have a length and a terminator")
}

/// Returns the raw elements of a document.
pub fn elements(document: &RawDocument) -> &[u8] {
    let bytes = document.as_bytes();
    &bytes[LENGTH_BYTES..bytes.len() - 1]
}

/// Returns the first component of a path.
fn root(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

/// Returns the distinct fields in the definitions of cache indexes. Skips definitions of other indexes.
pub fn cached_fields<'a>(definitions: impl IntoIterator<Item = &'a RawDocument>) -> Vec<String> {
    let mut fields: Vec<String> = Vec::new();
    for definition in definitions {
        let key = definition
            .get_document("key")
            .ok()
            .filter(|_| is_cache(definition));
        for (path, _) in key.into_iter().flatten().flatten() {
            if !fields.iter().any(|field| field == path.as_str()) {
                fields.push(path.as_str().to_owned());
            }
        }
    }
    fields
}

/// Returns whether this is the definition of a cache index.
pub fn is_cache(definition: &RawDocument) -> bool {
    let Ok(key) = definition.get_document("key") else {
        return false;
    };
    let mut kinds = key.into_iter().flatten().map(|(_, kind)| kind);
    kinds.any(|kind| kind == RawBsonRef::String("cache"))
}

/// Returns `filter` with the additional condition that `_id` is in `ids`.
pub fn narrowed(filter: &RawDocument, ids: RawArrayBuf) -> RawDocumentBuf {
    let mut both = RawArrayBuf::new();
    both.push(rawdoc! { "_id": { "$in": ids } });
    both.push(filter.to_owned());
    let mut narrowed = RawDocumentBuf::new();
    narrowed.append(cstr!("$and"), both);
    narrowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replica_fields() -> ReplicaFields {
        ReplicaFields::new(vec!["name".to_owned(), "a.b".to_owned()])
    }

    #[test]
    fn a_filter_on_held_fields_is_judged_whole() {
        for filter in [
            rawdoc! { "name": "x" },
            rawdoc! { "name": { "$not": { "$regex": "x" } }, "_id": { "$gt": 5 } },
            rawdoc! { "$or": [{ "a.b": "x" }, { "a.c": 1 }], "$comment": "why" },
        ] {
            assert_eq!(
                replica_fields().judge(&filter),
                Judgement::Whole,
                "{filter:?}"
            );
        }
    }

    #[test]
    fn a_filter_on_other_fields_is_not_judged() {
        for filter in [
            rawdoc! {},
            rawdoc! { "_id": 1 },
            rawdoc! { "a.c": 1 },
            rawdoc! { "names": "x" },
            rawdoc! { "$or": [{ "name": "x" }, { "other": 1 }] },
            rawdoc! { "$expr": { "$eq": ["$name", "x"] } },
        ] {
            assert_eq!(
                replica_fields().judge(&filter),
                Judgement::None,
                "{filter:?}"
            );
        }
        let mixed = rawdoc! { "name": "x", "other": 1 };
        let part = rawdoc! { "$and": [{ "name": "x" }] };
        assert_eq!(replica_fields().judge(&mixed), Judgement::Part(part));
    }

    #[test]
    fn documents_keep_whole_fields_in_their_order() {
        let document = rawdoc! { "x": 1, "a": { "b": 1, "c": 2 }, "_id": 5, "name": "n" };
        let expected = rawdoc! { "a": { "b": 1, "c": 2 }, "_id": 5, "name": "n" };
        assert_eq!(replica_fields().project(&document), expected);
    }

    #[test]
    fn strings_that_are_not_utf8_are_kept() {
        let element = |name: &str, value: &[u8]| {
            let length = (value.len() as i32 + 1).to_le_bytes();
            [&b"\x02"[..], name.as_bytes(), b"\0", &length, value, b"\0"].concat()
        };
        let (other, name) = (element("other", b"\xe9"), element("name", b"caf\xe9"));
        let held = replica_fields().project(&document_of(&[&other, &name]));
        assert_eq!(elements(&held), name);
        assert_eq!(document_of(&[]), rawdoc! {});
    }

    #[test]
    fn the_fields_of_cache_indexes_are_found() {
        let definitions = [
            rawdoc! { "key": { "_id": 1 } },
            rawdoc! { "key": { "a": "cache", "b": "cache" } },
            rawdoc! { "key": { "b": "cache" } },
        ];
        assert_eq!(
            cached_fields(definitions.iter().map(|it| &**it)),
            ["a", "b"]
        );
    }
}
