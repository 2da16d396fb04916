//! Model of a collection of `{_id, name}`: its documents, and the expected results of searches.

use std::collections::BTreeMap;

use regex_automata::meta::Regex;

/// Values of `name` by `_id`; `None` for documents without the field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Model {
    documents: BTreeMap<i32, Option<String>>,
}

impl Model {
    /// Inserts or replaces a document.
    pub fn put(&mut self, id: i32, name: Option<String>) {
        self.documents.insert(id, name);
    }

    /// Removes a document.
    pub fn remove(&mut self, id: i32) {
        self.documents.remove(&id);
    }

    /// Returns the value of `name`; the outer `None` means that there is no such document.
    pub fn get(&self, id: i32) -> Option<&Option<String>> {
        self.documents.get(&id)
    }

    /// Returns all documents in the order of `_id`.
    pub fn iter(&self) -> impl Iterator<Item = (i32, Option<&str>)> {
        self.documents
            .iter()
            .map(|(id, name)| (*id, name.as_deref()))
    }

    /// Returns the number of documents.
    pub fn count(&self) -> usize {
        self.documents.len()
    }

    /// Returns the `_id`s of documents whose name matches a pattern. The pattern must have the same meaning in PCRE2
    /// and Rust.
    ///
    /// # Panics
    /// If the pattern is invalid.
    pub fn matching(&self, pattern: &str) -> Vec<i32> {
        let regex = Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let matches = self
            .iter()
            .filter(|(_, name)| name.is_some_and(|name| regex.is_match(name)));
        matches.map(|(id, _)| id).collect()
    }

    /// Returns the `_id`s of documents whose name does not match, including those without a name.
    ///
    /// # Panics
    /// As for [`Model::matching`].
    pub fn not_matching(&self, pattern: &str) -> Vec<i32> {
        let matching = self.matching(pattern);
        self.documents
            .keys()
            .copied()
            .filter(|id| matching.binary_search(id).is_err())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_matches_or_does_not() {
        let mut model = Model::default();
        model.put(1, Some("react".to_owned()));
        model.put(2, None);
        model.put(3, Some("vue".to_owned()));
        assert_eq!(model.matching("^re"), [1]);
        assert_eq!(model.not_matching("^re"), [2, 3]);
        model.remove(1);
        assert_eq!(model.matching("^re"), [0; 0]);
    }
}
