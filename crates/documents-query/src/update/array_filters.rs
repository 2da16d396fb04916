//! `arrayFilters`: filters for the array elements that `$[identifier]` refers to.

use std::collections::BTreeMap;

use bson::raw::{RawArray, RawBson, RawBsonRef, RawDocument};

use crate::element::{Writer, array_values, elements};
use crate::error::Error;
use crate::filter::Filter;
use crate::limits::Limits;

/// The array filters, by identifier.
#[derive(Debug, Clone, Default)]
pub(super) struct ArrayFilters {
    filters: BTreeMap<String, Filter>,
}

impl ArrayFilters {
    /// Parses the array filters.
    ///
    /// # Errors
    /// `FailedToParse` for a filter that does not have exactly one identifier, or whose identifier is already in use.
    /// The errors of [`Filter::parse`].
    pub fn parse(filters: Option<&RawArray>, limits: &Limits) -> Result<ArrayFilters, Error> {
        let mut parsed = ArrayFilters::default();
        for value in filters.into_iter().flat_map(array_values) {
            let RawBsonRef::Document(document) = value else {
                return Err(Error::type_mismatch(
                    "arrayFilters must be an array of objects",
                ));
            };
            let name = identifier(document)?;
            if parsed.has(name) {
                return Err(Error::parse(format!(
                    "Found multiple array filters with the same top-level field name {name}"
                )));
            }
            let filter = Filter::parse_element_query(document, limits)?;
            parsed.filters.insert(name.to_owned(), filter);
        }
        Ok(parsed)
    }

    /// Returns the identifiers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.filters.keys().map(String::as_str)
    }

    /// Returns whether there is a filter called `name`.
    pub fn has(&self, name: &str) -> bool {
        self.filters.contains_key(name)
    }

    /// Returns whether the filter called `name` matches an array element.
    ///
    /// # Errors
    /// [`Stopped`](forebay_cancel::Stopped) if the command is stopped during the evaluation.
    pub fn matches(&self, name: &str, element: &RawBson) -> Result<bool, Error> {
        let mut writer = Writer::new();
        writer.owned(name, element);
        let document = writer.finish();
        let filter = self.filters.get(name);
        filter.map_or(Ok(false), |filter| filter.try_matches(&document))
    }
}

/// Returns the filter's identifier: the first component of its paths, which must be the same in all paths.
fn identifier(filter: &RawDocument) -> Result<&str, Error> {
    let mut names = Vec::new();
    collect_names(filter, &mut names);
    let Some(first) = names.first().copied() else {
        return Err(Error::parse(
            "Cannot use an expression without a top-level field name in arrayFilters",
        ));
    };
    if let Some(other) = names.iter().find(|name| **name != first) {
        return Err(Error::parse(format!(
            "Error parsing array filter :: caused by :: Expected a single top-level field name, found '{first}' and '{other}'"
        )));
    }
    let valid = first.starts_with(|c: char| c.is_ascii_lowercase())
        && first.chars().all(|c| c.is_ascii_alphanumeric());
    match valid {
        true => Ok(first),
        false => Err(Error::bad_value(format!(
            "Error parsing array filter :: caused by :: The top-level field name must be an alphanumeric string beginning \
             with a lowercase letter, found '{first}'"
        ))),
    }
}

fn collect_names<'a>(filter: &'a RawDocument, names: &mut Vec<&'a str>) {
    for element in elements(filter) {
        match (element.key, element.value()) {
            ("$and" | "$or" | "$nor", RawBsonRef::Array(branches)) => {
                for branch in array_values(branches).filter_map(|branch| branch.as_document()) {
                    collect_names(branch, names);
                }
            }
            (key, _) if key.starts_with('$') => {}
            (key, _) => names.push(key.split('.').next().unwrap_or(key)),
        }
    }
}
