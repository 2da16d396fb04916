//! Paths of update operators: names, and the positional operators `$`, `$[]`, `$[identifier]`.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::hash::Hash;

use super::array_filters::ArrayFilters;
use super::tree::Tree;
use crate::error::{Code, Error};
use crate::expr::evaluation;
use crate::path::{COMPONENTS_MAX, is_index};
use crate::sort::ALLOCATION_BYTES;

/// One component of an update path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Step {
    /// A field name or an array index.
    Name(String),
    /// `$`: the element that the query matched.
    Matched,
    /// `$[]`: every element.
    All,
    /// `$[identifier]`: the elements that an array filter matches.
    Filtered(String),
}

/// The path of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UpdatePath {
    text: String,
    steps: Vec<Step>,
}

impl UpdatePath {
    /// Parses a path.
    ///
    /// # Errors
    /// `EmptyFieldName` if the path or a component is empty. `BadValue` if a positional operator comes first, or if `$`
    /// appears twice. `Overflow` if the path has too many components.
    pub fn parse(text: &str) -> Result<UpdatePath, Error> {
        if text.is_empty() {
            return Err(Error::new(
                Code::EmptyFieldName,
                "An empty update path is not valid.",
            ));
        }
        if text.split('.').nth(COMPONENTS_MAX).is_some() {
            return Err(Error::new(
                Code::Overflow,
                format!("An update path may have at most {COMPONENTS_MAX} components"),
            ));
        }
        let steps = text
            .split('.')
            .map(|name| step(text, name))
            .collect::<Result<Vec<_>, _>>()?;
        check_positional(text, &steps)?;
        Ok(UpdatePath {
            text: text.to_owned(),
            steps,
        })
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the identifiers of array filters in the path.
    pub fn identifiers(&self) -> impl Iterator<Item = &str> {
        self.steps.iter().filter_map(|step| match step {
            Step::Filtered(name) => Some(name.as_str()),
            _ => None,
        })
    }

    /// Returns whether the path must be resolved for each document.
    pub fn is_positional(&self) -> bool {
        self.steps.iter().any(|step| !matches!(step, Step::Name(_)))
    }

    /// Checks that two paths do not conflict.
    ///
    /// # Errors
    /// `ConflictingUpdateOperators` if the paths are equal, or one is inside the other.
    pub fn check_conflict(&self, other: &UpdatePath) -> Result<(), Error> {
        if !self.steps.starts_with(&other.steps) && !other.steps.starts_with(&self.steps) {
            return Ok(());
        }
        let shorter = if self.steps.len() < other.steps.len() {
            &self.text
        } else {
            &other.text
        };
        Err(conflict(&self.text, shorter))
    }

    /// Records the path as used by a change.
    ///
    /// # Errors
    /// `ConflictingUpdateOperators` if the path equals a recorded path, or if one of the two is inside the other.
    pub fn take<'u>(&'u self, places: &mut Places<&'u Step>) -> Result<(), Error> {
        match places.take(&self.steps) {
            None => Ok(()),
            Some(count) => {
                let met: Vec<&str> = self.text.split('.').take(count).collect();
                Err(conflict(&self.text, &met.join(".")))
            }
        }
    }

    /// Compares two paths by the order in which their changes are applied. Names are compared as text, indexes as
    /// numbers.
    pub fn order(&self, other: &UpdatePath) -> Ordering {
        let pairs = self.steps.iter().zip(&other.steps);
        let difference = pairs
            .map(|(a, b)| compare_steps(a, b))
            .find(|order| order.is_ne());
        difference.unwrap_or_else(|| self.steps.len().cmp(&other.steps.len()))
    }

    /// Returns the paths of names and indexes that this path resolves to in a document.
    ///
    /// # Errors
    /// `BadValue` if a positional operator refers to no element, or is applied to a value that is not an array.
    pub fn resolve(
        &self,
        root: &mut Tree<'_>,
        matched: Option<usize>,
        filters: &ArrayFilters,
    ) -> Result<Vec<Vec<String>>, Error> {
        let mut places = vec![Vec::with_capacity(self.steps.len())];
        for step in &self.steps {
            let mut next = Vec::new();
            for (index, place) in places.into_iter().enumerate() {
                evaluation::check_element(index)?;
                extend(root, place, step, matched, filters, &mut next)?;
            }
            places = next;
        }
        Ok(places)
    }
}

/// The paths that an update's changes use, as a tree of path components.
#[derive(Debug)]
pub(super) struct Places<S> {
    inside: HashMap<S, Places<S>>,
    is_taken: bool,
}

impl<S> Default for Places<S> {
    fn default() -> Places<S> {
        Places {
            inside: HashMap::new(),
            is_taken: false,
        }
    }
}

impl<S: Eq + Hash> Places<S> {
    /// Records a path. If the path equals a recorded path, or one of the two is inside the other, returns the number of
    /// components that both have in common.
    pub fn take(&mut self, steps: impl IntoIterator<Item = S>) -> Option<usize> {
        let (mut place, mut count) = (self, 0);
        for step in steps {
            if place.is_taken {
                return Some(count);
            }
            place = place.inside.entry(step).or_default();
            count += 1;
        }
        let meets = place.is_taken || !place.inside.is_empty();
        place.is_taken = true;
        meets.then_some(count)
    }
}

/// Builds the error for two changes that conflict.
pub(super) fn conflict(path: &str, at: &str) -> Error {
    let message = format!("Updating the path '{path}' would create a conflict at '{at}'");
    Error::new(Code::ConflictingUpdateOperators, message)
}

fn step(path: &str, name: &str) -> Result<Step, Error> {
    match name {
        "" => Err(Error::new(
            Code::EmptyFieldName,
            format!("The update path '{path}' contains an empty field name, which is not allowed."),
        )),
        "$" => Ok(Step::Matched),
        "$[]" => Ok(Step::All),
        name if name.starts_with("$[") && name.ends_with(']') => {
            Ok(Step::Filtered(name[2..name.len() - 1].to_owned()))
        }
        name => Ok(Step::Name(name.to_owned())),
    }
}

/// Checks positional operators: none may come first, and `$` may appear only once.
fn check_positional(path: &str, steps: &[Step]) -> Result<(), Error> {
    let first = match steps.first() {
        Some(Step::Matched) => Some("positional (i.e. '$')"),
        Some(Step::All | Step::Filtered(_)) => Some("array filter identifier (i.e. '$[<id>]')"),
        Some(Step::Name(_)) | None => None,
    };
    if let Some(operator) = first {
        return Err(Error::bad_value(format!(
            "Cannot have {operator} element in the first position in path '{path}'"
        )));
    }
    let matched = steps.iter().filter(|step| **step == Step::Matched);
    match matched.count() {
        0 | 1 => Ok(()),
        _ => Err(Error::bad_value(format!(
            "Too many positional (i.e. '$') elements found in path '{path}'"
        ))),
    }
}

fn compare_steps(a: &Step, b: &Step) -> Ordering {
    match (text_of(a), text_of(b)) {
        (a, b) if is_index(a) && is_index(b) => a.len().cmp(&b.len()).then_with(|| a.cmp(b)),
        (a, b) => a.cmp(b),
    }
}

fn text_of(step: &Step) -> &str {
    match step {
        Step::Name(name) | Step::Filtered(name) => name,
        Step::Matched => "$",
        Step::All => "$[]",
    }
}

/// Memory of a name in a resolved path, besides its text; also that of the path itself. Lists grow by doubling.
const NAME_BYTES: usize = 2 * size_of::<String>() + ALLOCATION_BYTES;

/// Adds a name to a resolved path.
fn longer(mut place: Vec<String>, name: String) -> Result<Vec<String>, Error> {
    evaluation::keep(NAME_BYTES + name.len())?;
    place.push(name);
    Ok(place)
}

fn extend(
    root: &mut Tree<'_>,
    place: Vec<String>,
    step: &Step,
    matched: Option<usize>,
    filters: &ArrayFilters,
    next: &mut Vec<Vec<String>>,
) -> Result<(), Error> {
    // Memory of one more copy of the path, with an index.
    let copy_bytes = place
        .iter()
        .map(|name| NAME_BYTES + name.len())
        .sum::<usize>()
        + 2 * NAME_BYTES;
    let with = |place: &[String], index: usize| {
        let index = [index.to_string()];
        place.iter().cloned().chain(index).collect::<Vec<_>>()
    };
    match step {
        Step::Name(name) => next.push(longer(place, name.clone())?),
        Step::Matched => {
            let index = matched.ok_or_else(|| {
                Error::bad_value(
                    "The positional operator did not find the match needed from the query.",
                )
            })?;
            next.push(longer(place, index.to_string())?);
        }
        Step::All => {
            let count = array_at(root, &place)?.len();
            evaluation::keep(count.saturating_mul(copy_bytes))?;
            next.extend((0..count).map(|index| with(&place, index)));
        }
        Step::Filtered(name) => {
            for (index, item) in array_at(root, &place)?.iter().enumerate() {
                evaluation::check_element(index)?;
                if filters.matches(name, &item.to_bson())? {
                    evaluation::keep(copy_bytes)?;
                    next.push(with(&place, index));
                }
            }
        }
    }
    Ok(())
}

fn array_at<'t, 'a>(
    root: &'t mut Tree<'a>,
    place: &[String],
) -> Result<&'t mut Vec<Tree<'a>>, Error> {
    let path = place.join(".");
    let Some(tree) = root.find(place)? else {
        let message = format!(
            "The path '{path}' must exist in the document in order to apply array updates."
        );
        return Err(Error::bad_value(message));
    };
    if tree.items()?.is_none() {
        let shown = crate::display::value(tree.to_bson().as_raw_bson_ref());
        let name = place.last().map_or("", String::as_str);
        return Err(Error::bad_value(format!(
            "Cannot apply array updates to non-array element {name}: {shown}"
        )));
    }
    Ok(tree.items()?.expect("the value was checked to be an array"))
}
