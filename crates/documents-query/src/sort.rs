//! Sort specifications, sort keys, and top-n selection.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use bson::raw::{RawBsonRef, RawDocument};

use forebay_memory::{Full, Held};

use crate::element::elements;
use crate::error::{Code, Error};
use crate::key::{self, Direction};
use crate::number::Number;
use crate::path::Path;

/// Maximum fields of one sort specification.
pub const SORT_FIELDS_MAX: usize = 32;

/// A parsed sort specification: paths with their directions, most significant first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sort {
    parts: Vec<(Path, Direction)>,
}

/// The sort key of a document. The keys of documents, compared byte by byte, have the order of the documents.
pub type SortKey = Vec<u8>;

impl Sort {
    /// Parses `{a: 1, "b.c": -1}`.
    ///
    /// # Errors
    /// 15975 for a number other than 1 and -1 as a direction, 15974 for a direction that is not a number, `BadValue`
    /// for too many fields, `NotImplemented` for `$meta`.
    pub fn parse(spec: &RawDocument) -> Result<Sort, Error> {
        let parts = elements(spec)
            .take(SORT_FIELDS_MAX + 1)
            .map(|element| part(element.key, element.value()))
            .collect::<Result<Vec<_>, _>>()?;
        match parts.len() > SORT_FIELDS_MAX {
            true => Err(Error::bad_value(format!(
                "too many compound keys: at most {SORT_FIELDS_MAX}"
            ))),
            false => Ok(Sort { parts }),
        }
    }

    /// Builds a sort by one top-level field.
    pub fn by(field: &str, direction: Direction) -> Sort {
        Sort {
            parts: vec![(Path::field(field), direction)],
        }
    }

    /// Returns the paths with their directions.
    pub fn parts(&self) -> &[(Path, Direction)] {
        &self.parts
    }

    /// Returns whether the specification is empty.
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Returns the sort key of a document. Keys compare byte by byte in the order of the documents.
    pub fn key(&self, document: &RawDocument) -> SortKey {
        self.key_of(self.values(document))
    }

    /// Like [`Sort::key`], but charges the key to `held` before it is built.
    ///
    /// # Errors
    /// [`Full`] if the memory account has no room.
    pub fn charged_key(&self, document: &RawDocument, held: &mut Held) -> Result<SortKey, Full> {
        let values: Vec<_> = self.values(document).collect();
        let bytes_max = values.iter().map(|(value, _)| key::bytes_max(*value)).sum();
        held.take(bytes_max)?;
        let key = self.key_of(values.into_iter());
        held.give_back(bytes_max.saturating_sub(key.capacity()));
        Ok(key)
    }

    fn values<'d>(
        &self,
        document: &'d RawDocument,
    ) -> impl Iterator<Item = (RawBsonRef<'d>, Direction)> {
        self.parts.iter().map(|(path, direction)| {
            let value = path.sort_value(document, *direction == Direction::Descending);
            (value, *direction)
        })
    }

    fn key_of<'d>(&self, values: impl Iterator<Item = (RawBsonRef<'d>, Direction)>) -> SortKey {
        let mut out = Vec::with_capacity(self.parts.len() * 16);
        values.for_each(|(value, direction)| key::append_directed(&mut out, value, direction));
        out
    }

    /// Orders two documents.
    pub fn compare(&self, a: &RawDocument, b: &RawDocument) -> Ordering {
        self.key(a).cmp(&self.key(b))
    }
}

fn part(name: &str, direction: RawBsonRef<'_>) -> Result<(Path, Direction), Error> {
    if name.is_empty() || name.split('.').any(str::is_empty) {
        return Err(Error::new(
            Code::Location15998,
            "FieldPath field names may not be empty strings.",
        ));
    }
    if name.starts_with('$') {
        let message =
            "FieldPath field names may not start with '$'. Consider using $getField or $setField.";
        return Err(Error::new(Code::Location16410, message));
    }
    Ok((Path::new(name)?, self::direction(name, direction)?))
}

fn direction(name: &str, value: RawBsonRef<'_>) -> Result<Direction, Error> {
    if let RawBsonRef::Document(_) = value {
        return Err(Error::new(
            Code::NotImplemented,
            "$meta sorts are not supported by this server",
        ));
    }
    let Some(number) = Number::of(value) else {
        let shown = crate::display::field(name, value);
        return Err(Error::new(
            Code::Location15974,
            format!("Illegal key in $sort specification: {shown}"),
        ));
    };
    match number.to_i64_exact() {
        Some(1) => Ok(Direction::Ascending),
        Some(-1) => Ok(Direction::Descending),
        _ => Err(Error::new(
            Code::Location15975,
            "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
        )),
    }
}

/// Number of bytes that a small allocation takes besides its content, at most.
pub(crate) const ALLOCATION_BYTES: usize = 32;

/// Keeps the first `count` items by key. Items with equal keys stay in order of arrival.
#[derive(Debug)]
pub struct TopK<T> {
    count: usize,
    arrivals: u64,
    heap: BinaryHeap<Entry<T>>,
}

#[derive(Debug)]
struct Entry<T> {
    key: SortKey,
    arrival: u64,
    item: T,
}

/// Minimum capacity of a buffer that is not empty.
const CAPACITY_MIN: usize = 4;

/// The growth of a buffer: a larger buffer is allocated, the items are moved to it, and the old buffer is freed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Growth {
    /// Bytes of the buffer that is freed.
    pub old_bytes: usize,
    /// Bytes of the buffer that is allocated; 0 if the buffer does not grow.
    pub new_bytes: usize,
}

impl<T> PartialEq for Entry<T> {
    fn eq(&self, other: &Entry<T>) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for Entry<T> {}

impl<T> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Entry<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Entry<T> {
    fn cmp(&self, other: &Entry<T>) -> Ordering {
        (&self.key, self.arrival).cmp(&(&other.key, other.arrival))
    }
}

impl<T> TopK<T> {
    /// Creates a collector that keeps at most `count` items; `usize::MAX` keeps all.
    pub fn new(count: usize) -> TopK<T> {
        TopK {
            count,
            arrivals: 0,
            heap: BinaryHeap::new(),
        }
    }

    /// Returns whether an item with `key` would be kept.
    pub fn takes(&self, key: &[u8]) -> bool {
        self.heap.len() < self.count
            || self
                .heap
                .peek()
                .is_some_and(|last| key < last.key.as_slice())
    }

    /// Returns by how much the next `push` makes the buffer grow.
    pub(crate) fn growth(&self) -> Growth {
        let capacity = self.heap.capacity();
        if self.heap.len() < capacity {
            return Growth::default();
        }
        Growth {
            old_bytes: capacity * size_of::<Entry<T>>(),
            new_bytes: (2 * capacity).max(CAPACITY_MIN) * size_of::<Entry<T>>(),
        }
    }

    /// Adds an item. Returns the item that is not kept, if any: the new item or one that the new item displaces.
    pub fn push(&mut self, key: SortKey, item: T) -> Option<(SortKey, T)> {
        if !self.takes(&key) {
            return Some((key, item));
        }
        if self.heap.len() == self.heap.capacity() {
            self.heap.reserve_exact(self.heap.len().max(CAPACITY_MIN));
        }
        self.arrivals += 1;
        self.heap.push(Entry {
            key,
            arrival: self.arrivals,
            item,
        });
        if self.heap.len() > self.count {
            self.heap.pop().map(|entry| (entry.key, entry.item))
        } else {
            None
        }
    }

    /// Returns the number of items kept.
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns whether no item is kept.
    pub fn is_empty(&self) -> bool {
        self.heap.is_empty()
    }

    /// Returns the items in order.
    pub fn into_sorted(self) -> Vec<T> {
        self.heap
            .into_sorted_vec()
            .into_iter()
            .map(|entry| entry.item)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use forebay_memory::Account;

    use super::*;

    #[test]
    fn a_key_is_charged_before_it_is_built() {
        let document = rawdoc! { "a": { "a": { "a": "x".repeat(100_000) } } };
        let sort = Sort::parse(&rawdoc! { "a": 1, "a.a": -1, "a.a.a": 1 }).expect("it parses");
        let mut held = Held::new(&Account::new(400_000), 0);
        sort.charged_key(&document, &mut held)
            .expect_err("the key may have 600,000 bytes");
        assert_eq!(held.bytes(), 0);
        let mut held = Held::default();
        let key = sort
            .charged_key(&document, &mut held)
            .expect("there is room");
        assert_eq!(key, sort.key(&document));
        assert_eq!(held.bytes(), key.capacity());
    }
}
