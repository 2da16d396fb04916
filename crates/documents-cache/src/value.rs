//! The value of one cached field in one document.

/// The value of a cached field in a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue<'a> {
    /// The field does not exist.
    Missing,
    /// The field is null.
    Null,
    /// A value that meets no [`Predicate`](crate::Predicate), such as a number.
    Other,
    /// A string. The cache stores it if it is UTF-8 and not longer than
    /// [`value_bytes_max`](crate::CacheSettings::value_bytes_max). Otherwise the store must recheck the document.
    String(&'a [u8]),
    /// An array of only strings. An element that occurs twice counts once.
    Strings(Vec<&'a [u8]>),
    /// A value that the cache cannot judge, such as a regular expression or an array with nulls. The store must recheck
    /// the document.
    Recheck,
}

/// A value in the form that the cache stores: a string that is too long or not UTF-8 becomes `Recheck`, and array
/// elements are distinct.
pub(crate) enum Kept<'a> {
    Missing,
    Null,
    Other,
    Row(&'a [u8]),
    Rows(Vec<&'a [u8]>),
    Recheck,
}

impl<'a> FieldValue<'a> {
    /// Converts to the stored form. The result depends only on the value and on `value_bytes_max`, so that a removal
    /// finds the rows that the insertion created.
    #[inline]
    pub(crate) fn kept<'v>(&'v self, value_bytes_max: usize) -> Kept<'a> {
        let fits = |value: &&[u8]| value.len() <= value_bytes_max && is_utf8(value);
        match self {
            FieldValue::String(value) if fits(value) => Kept::Row(value),
            FieldValue::Missing => Kept::Missing,
            FieldValue::Null => Kept::Null,
            FieldValue::Other => Kept::Other,
            FieldValue::Strings(values) if values.iter().all(fits) => {
                let mut values = values.clone();
                values.sort_unstable();
                values.dedup();
                Kept::Rows(values)
            }
            FieldValue::String(_) | FieldValue::Strings(_) | FieldValue::Recheck => Kept::Recheck,
        }
    }
}

fn is_utf8(value: &[u8]) -> bool {
    is_ascii(value) || std::str::from_utf8(value).is_ok()
}

/// Like `<[u8]>::is_ascii`, but faster for short strings: it ORs all words and tests once.
#[inline]
fn is_ascii(value: &[u8]) -> bool {
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    let Some(last) = value.last_chunk::<8>() else {
        return value.iter().fold(0, |bits, byte| bits | byte) < 0x80;
    };
    let words = value.as_chunks::<8>().0.iter().chain([last]);
    let bits = words.fold(0, |bits, word| bits | u64::from_ne_bytes(*word));
    bits & HIGH_BITS == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_any_length_are_seen_to_be_ascii_or_not() {
        for length in 0..40 {
            let mut value = vec![0x7f; length];
            assert!(is_ascii(&value));
            for place in 0..length {
                value[place] = 0x80;
                assert!(!is_ascii(&value), "byte {place} of {length}");
                value[place] = 0;
            }
        }
    }
}
