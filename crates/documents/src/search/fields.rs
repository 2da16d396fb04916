//! The declared fields of a collection, arranged for a single pass over a document.

use std::sync::Arc;

/// Maximum cached fields of one collection.
///
/// The limit is 64, because the extraction from a document marks the keys that it has found in one 64-bit word.
pub const FIELDS_MAX: usize = 64;

/// The declared fields in the order of the cache's columns.
///
/// Fields are grouped by their first path component, so that one pass over the top-level keys of a document finds all
/// of them.
#[derive(Clone, Debug, Default)]
pub struct FieldSet {
    paths: Vec<Arc<str>>,
    roots: Vec<Root>,
}

/// The fields that begin with one top-level key.
#[derive(Clone, Debug)]
pub struct Root {
    /// The top-level key.
    pub key: Box<[u8]>,
    /// The fields below it.
    pub fields: Vec<Field>,
}

/// One declared field below its top-level key.
#[derive(Clone, Debug)]
pub struct Field {
    /// The position among the declared fields.
    pub index: usize,
    /// The path components after the top-level key; empty for a top-level field.
    pub rest: Box<[Box<[u8]>]>,
}

impl FieldSet {
    /// Groups `paths`: at most [`FIELDS_MAX`] dotted paths without duplicates.
    pub fn new<P: AsRef<str>>(paths: impl IntoIterator<Item = P>) -> FieldSet {
        let mut set = FieldSet::default();
        for path in paths {
            set.push(path.as_ref());
        }
        set
    }

    fn push(&mut self, path: &str) {
        let index = self.paths.len();
        self.paths.push(path.into());
        let mut components = path.split('.').map(|part| Box::from(part.as_bytes()));
        let key = components.next().unwrap_or_default();
        let field = Field {
            index,
            rest: components.collect(),
        };
        match self.roots.iter_mut().find(|root| root.key == key) {
            Some(root) => root.fields.push(field),
            None => self.roots.push(Root {
                key,
                fields: vec![field],
            }),
        }
    }

    /// Returns the declared paths, in the order of the cache's columns.
    pub fn paths(&self) -> &[Arc<str>] {
        &self.paths
    }

    /// Returns the column of a declared path.
    pub fn index_of(&self, path: &str) -> Option<usize> {
        self.paths.iter().position(|declared| **declared == *path)
    }

    /// Returns the number of declared fields.
    pub fn len(&self) -> usize {
        self.paths.len()
    }

    /// Returns the fields, grouped by top-level key.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_by_top_level_key() {
        let set = FieldSet::new(["a", "b.c", "a.d.e", "b"]);
        assert_eq!(set.len(), 4);
        assert_eq!(set.index_of("a.d.e"), Some(2));
        assert_eq!(set.index_of("d"), None);
        let indices: Vec<Vec<usize>> = set
            .roots()
            .iter()
            .map(|root| root.fields.iter().map(|field| field.index).collect())
            .collect();
        assert_eq!(indices, [vec![0, 2], vec![1, 3]]);
        assert_eq!(&*set.roots()[0].fields[1].rest[1], b"e");
    }
}
