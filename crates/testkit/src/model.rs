//! What a collection of `{_id, name}` must hold, and what searches over it must find.

use std::collections::BTreeMap;

use regex_automata::meta::Regex;

/// Documents by `_id`, with the value of `name`; `None` where the document has none.
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

    /// A document's name, if the document is there.
    pub fn get(&self, id: i32) -> Option<&Option<String>> {
        self.documents.get(&id)
    }

    /// All documents, by `_id`.
    pub fn iter(&self) -> impl Iterator<Item = (i32, Option<&str>)> {
        self.documents
            .iter()
            .map(|(id, name)| (*id, name.as_deref()))
    }

    /// How many documents there are.
    pub fn count(&self) -> usize {
        self.documents.len()
    }

    /// The `_id`s of documents whose name matches a pattern, which must mean the same to PCRE2 and to Rust.
    ///
    /// # Panics
    /// If the pattern is wrong: tests write it.
    pub fn matching(&self, pattern: &str) -> Vec<i32> {
        let regex = Regex::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
        let matches = self
            .iter()
            .filter(|(_, name)| name.is_some_and(|name| regex.is_match(name)));
        matches.map(|(id, _)| id).collect()
    }

    /// The `_id`s of documents whose name does not match, those without a name among them.
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
    fn matching_and_not_matching_share_out_all_documents() {
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
