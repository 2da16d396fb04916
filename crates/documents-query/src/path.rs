//! Dotted paths, and how they are followed through documents and arrays.
//!
//! Sources: `ElementPath` and `BSONElementIterator` of the server. Where a path meets an array, it continues in every
//! document of the array. If the path's next component is an index, the path also continues in the element at this
//! index.

use std::cmp::Ordering;

use bson::raw::{RawArray, RawBsonRef, RawDocument};

use crate::compare::compare;
use crate::element::{array_elements, array_values, get};
use crate::error::{Code, Error};

/// Maximum number of components of one path.
pub const COMPONENTS_MAX: usize = 200;

/// A dotted field path, split into components.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Path {
    text: Box<str>,
    components: Box<[Box<str>]>,
}

/// What a path yields for an array at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaf {
    /// Each element, then the array itself. For comparisons.
    Expand,
    /// Only the array itself. For `$size` and `$elemMatch`.
    Whole,
}

/// A value that a path reaches.
#[derive(Debug, Clone, Copy)]
pub struct Visit<'a> {
    /// The value; `None` if the path reaches none.
    pub value: Option<RawBsonRef<'a>>,
    /// Index, in the outermost array, of the element that the path passed through. An array does not count if the path
    /// selects its element by an index component.
    pub index: Option<usize>,
}

impl Path {
    /// Parses a path from its dotted text.
    ///
    /// # Errors
    /// `Overflow` for more than [`COMPONENTS_MAX`] components.
    pub fn new(text: &str) -> Result<Path, Error> {
        let count = text.bytes().filter(|byte| *byte == b'.').count() + 1;
        if count > COMPONENTS_MAX {
            let message = format!("FieldPath is too long, maximum {COMPONENTS_MAX} components");
            return Err(Error::new(Code::Overflow, message));
        }
        let mut components = Vec::with_capacity(count);
        components.extend(text.split('.').map(Box::from));
        Ok(Path {
            text: text.into(),
            components: components.into_boxed_slice(),
        })
    }

    /// Builds the path of one top-level field. Dots are part of the field's name.
    pub fn field(name: &str) -> Path {
        Path {
            text: name.into(),
            components: Box::new([name.into()]),
        }
    }

    /// Builds the empty path, which refers to the value itself. Tests inside `$elemMatch` use it.
    pub fn empty() -> Path {
        Path {
            text: "".into(),
            components: Box::default(),
        }
    }

    /// Returns whether this is the empty path.
    pub fn is_empty(&self) -> bool {
        self.components.is_empty()
    }

    /// Returns the dotted text.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the components, in order.
    pub fn components(&self) -> impl ExactSizeIterator<Item = &str> {
        self.components.iter().map(AsRef::as_ref)
    }

    /// Returns the first component, or an empty string for the empty path.
    pub fn first(&self) -> &str {
        self.components.first().map_or("", AsRef::as_ref)
    }

    /// Returns whether this path equals `other` or refers to a field inside it.
    pub fn starts_with(&self, other: &Path) -> bool {
        self.components.starts_with(&other.components)
    }

    /// Calls `visit` with each value that the path reaches, until `visit` returns true. Returns whether `visit`
    /// returned true.
    pub fn any<'a>(
        &self,
        document: &'a RawDocument,
        leaf: Leaf,
        visit: &mut dyn FnMut(Visit<'a>) -> bool,
    ) -> bool {
        walk_document(document, &self.components, leaf, None, visit)
    }

    /// Returns every value that the path reaches in a document. `leaf` says how arrays at the end are treated.
    pub fn values<'a>(&self, document: &'a RawDocument, leaf: Leaf) -> Vec<RawBsonRef<'a>> {
        let mut values = Vec::new();
        self.any(document, leaf, &mut |visit| {
            values.extend(visit.value);
            false
        });
        values
    }

    /// Returns the value that a document sorts by. Of several values that the path reaches through arrays, this is the
    /// smallest in an ascending sort and the largest in a descending one. An empty array yields undefined. A path that
    /// reaches no value yields null.
    pub fn sort_value<'a>(&self, document: &'a RawDocument, descending: bool) -> RawBsonRef<'a> {
        let mut best = None;
        sort_values(document, &self.components, &mut |value| {
            let wanted = if descending {
                Ordering::Greater
            } else {
                Ordering::Less
            };
            if best.is_none_or(|best| compare(value, best) == wanted) {
                best = Some(value);
            }
        });
        best.unwrap_or(RawBsonRef::Null)
    }

    /// Calls `visit` with each value that `distinct` considers: the value at the path, or each element if that value is
    /// an array. Stops at the first error of `visit`.
    ///
    /// # Errors
    /// The error of `visit`.
    pub fn each_distinct<E>(
        &self,
        document: &RawDocument,
        mut visit: impl FnMut(RawBsonRef<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut outcome = Ok(());
        self.any(document, Leaf::Whole, &mut |found| {
            outcome = match found.value {
                Some(RawBsonRef::Array(array)) => array_values(array).try_for_each(&mut visit),
                Some(other) => visit(other),
                None => Ok(()),
            };
            outcome.is_err()
        });
        outcome
    }
}

impl std::fmt::Display for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

type Visitor<'v, 'a> = &'v mut dyn FnMut(Visit<'a>) -> bool;

fn walk_document<'a>(
    document: &'a RawDocument,
    path: &[Box<str>],
    leaf: Leaf,
    index: Option<usize>,
    visit: Visitor<'_, 'a>,
) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return visit(Visit {
            value: Some(RawBsonRef::Document(document)),
            index,
        });
    };
    match get(document, name) {
        None => visit(Visit { value: None, index }),
        Some(value) if rest.is_empty() => visit_leaf(value, leaf, index, visit),
        Some(RawBsonRef::Document(inner)) => walk_document(inner, rest, leaf, index, visit),
        Some(RawBsonRef::Array(array)) => walk_array(array, rest, leaf, index, visit),
        Some(_) => visit(Visit { value: None, index }),
    }
}

fn visit_leaf<'a>(
    value: RawBsonRef<'a>,
    leaf: Leaf,
    index: Option<usize>,
    visit: Visitor<'_, 'a>,
) -> bool {
    if let (RawBsonRef::Array(array), Leaf::Expand) = (value, leaf) {
        for (position, element) in array_values(array).enumerate() {
            if visit(Visit {
                value: Some(element),
                index: index.or(Some(position)),
            }) {
                return true;
            }
        }
    }
    visit(Visit {
        value: Some(value),
        index,
    })
}

fn walk_array<'a>(
    array: &'a RawArray,
    path: &[Box<str>],
    leaf: Leaf,
    index: Option<usize>,
    visit: Visitor<'_, 'a>,
) -> bool {
    let Some((name, rest)) = path.split_first() else {
        return visit_leaf(RawBsonRef::Array(array), leaf, index, visit);
    };
    for (position, element) in array_elements(array).enumerate() {
        let value = element.value();
        if let RawBsonRef::Document(inner) = value
            && walk_document(inner, path, leaf, index.or(Some(position)), visit)
        {
            return true;
        }
        if is_index(name) && &**name == element.key && walk_indexed(value, rest, leaf, index, visit)
        {
            return true;
        }
    }
    false
}

/// Continues at the array element that an index component selects. If the path ends at this element, and the element is
/// an array, the array is not expanded.
fn walk_indexed<'a>(
    value: RawBsonRef<'a>,
    rest: &[Box<str>],
    leaf: Leaf,
    index: Option<usize>,
    visit: Visitor<'_, 'a>,
) -> bool {
    if rest.is_empty() {
        return visit(Visit {
            value: Some(value),
            index,
        });
    }
    match value {
        RawBsonRef::Document(inner) => walk_document(inner, rest, leaf, index, visit),
        RawBsonRef::Array(inner) => walk_array(inner, rest, leaf, index, visit),
        _ => false,
    }
}

/// Returns whether MongoDB treats a component as an array index: it consists of digits.
pub(crate) fn is_index(component: &str) -> bool {
    !component.is_empty() && component.bytes().all(|byte| byte.is_ascii_digit())
}

fn sort_values<'a>(
    document: &'a RawDocument,
    path: &[Box<str>],
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    let Some((name, rest)) = path.split_first() else {
        return;
    };
    match get(document, name) {
        None => visit(RawBsonRef::Null),
        Some(value) => sort_value_at(value, rest, visit),
    }
}

fn sort_value_at<'a>(
    value: RawBsonRef<'a>,
    rest: &[Box<str>],
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    match value {
        RawBsonRef::Array(array) if array.is_empty() => {
            visit(if rest.is_empty() {
                RawBsonRef::Undefined
            } else {
                RawBsonRef::Null
            });
        }
        RawBsonRef::Array(array) => match indexed(array, rest) {
            Some(element) => sort_value_at(element, &rest[1..], visit),
            None => array_values(array).for_each(|element| sort_element(element, rest, visit)),
        },
        RawBsonRef::Document(inner) if !rest.is_empty() => sort_values(inner, rest, visit),
        value if rest.is_empty() => visit(value),
        _ => visit(RawBsonRef::Null),
    }
}

/// Visits the array element itself if the path ends there. Otherwise visits the values at the rest of the path if the
/// element is a document, and null if it is not.
fn sort_element<'a>(
    element: RawBsonRef<'a>,
    rest: &[Box<str>],
    visit: &mut dyn FnMut(RawBsonRef<'a>),
) {
    match element {
        value if rest.is_empty() => visit(value),
        RawBsonRef::Document(inner) => sort_values(inner, rest, visit),
        _ => visit(RawBsonRef::Null),
    }
}

/// Returns the element that the next component selects, if the component is an index and the element exists.
fn indexed<'a>(array: &'a RawArray, rest: &[Box<str>]) -> Option<RawBsonRef<'a>> {
    let name = rest.first()?;
    if !is_index(name) {
        return None;
    }
    array_elements(array)
        .find(|element| element.key == &**name)
        .map(|element| element.value())
}
