//! The value of one cached field in one document.

use crate::CacheSettings;

/// What a document holds under a cached field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// The field does not exist.
    Missing,
    /// The field is null.
    Null,
    /// The field exists and holds no string, null, or regular expression.
    Other,
    /// A string.
    String(&'a str),
    /// An array of strings only; an element that occurs twice counts once.
    Strings(Vec<&'a str>),
    /// Anything else: the store must judge this document itself.
    Residual,
}

/// A value as the cache keeps it: strings too long for a block have become [`FieldValue::Residual`], elements of
/// an array are distinct.
pub(crate) enum Kept<'a> {
    Missing,
    Null,
    Other,
    Row(&'a str),
    Rows(Vec<&'a str>),
    Residual,
}

impl<'a> FieldValue<'a> {
    /// The same for the same value at any time, so that a removal finds what an insertion made.
    pub(crate) fn kept<'v>(&'v self, settings: &CacheSettings) -> Kept<'a> {
        let fits = |value: &&str| value.len() <= settings.value_bytes_max;
        match self {
            FieldValue::Missing => Kept::Missing,
            FieldValue::Null => Kept::Null,
            FieldValue::Other => Kept::Other,
            FieldValue::String(value) if fits(value) => Kept::Row(value),
            FieldValue::Strings(values) if values.iter().all(fits) => {
                let mut values = values.clone();
                values.sort_unstable();
                values.dedup();
                Kept::Rows(values)
            }
            FieldValue::String(_) | FieldValue::Strings(_) | FieldValue::Residual => Kept::Residual,
        }
    }
}
