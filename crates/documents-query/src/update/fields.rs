//! The fields of a document that is being changed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;

use super::tree::Tree;
use crate::error::Error;
use crate::expr::evaluation;
use crate::sort::ALLOCATION_BYTES;

/// Maximum length of a list of fields that is never indexed.
const UNINDEXED_MAX: usize = 32;
/// Number of searches of a longer list before its names are indexed. Building the index takes about as long as a few
/// searches.
const UNINDEXED_SEARCHES: u32 = 4;

/// Fields in order. A name may occur several times; the first field with the name is the one that paths refer to.
#[derive(Debug, Clone, Default)]
pub(super) struct Fields<'a> {
    /// The fields. `None` is a field that was removed.
    slots: Vec<Option<Field<'a>>>,
    searches: u32,
    index: Option<Box<Index>>,
}

type Field<'a> = (Cow<'a, str>, Tree<'a>);

/// Bytes of a field in the list.
pub(super) const FIELD_BYTES: usize = size_of::<Option<Field<'_>>>();
/// Maximum memory of the list, as a multiple of the bytes of its fields.
const GROWTH: usize = 2;
/// Maximum bytes that the index takes for each field while it grows.
const INDEXED_BYTES: usize = 4 * size_of::<(u64, usize)>();

/// Maps the hashes of names to places: the indexes of slots. Slots of removed fields stay in the index.
#[derive(Debug, Clone, Default)]
struct Index {
    state: RandomState,
    /// The first place with each hash.
    first: HashMap<u64, usize>,
    /// Maps a place to the next place with the same hash, if there is one.
    next: HashMap<usize, usize>,
}

impl Index {
    fn of(slots: &[Option<Field<'_>>]) -> Index {
        let mut index = Index::default();
        index.first.reserve(slots.len());
        for (place, slot) in slots.iter().enumerate().rev() {
            if let Some((name, _)) = slot {
                index.insert_first(name, place);
            }
        }
        index
    }

    fn insert_first(&mut self, name: &str, place: usize) {
        if let Some(later) = self.first.insert(self.state.hash_one(name), place) {
            self.next.insert(place, later);
        }
    }

    /// Returns the places of the fields that may have the name, in order.
    fn places(&self, name: &str) -> impl Iterator<Item = usize> {
        let first = self.first.get(&self.state.hash_one(name)).copied();
        std::iter::successors(first, |place| self.next.get(place).copied())
    }
}

impl<'a> Fields<'a> {
    /// Creates a list of `count` fields.
    pub fn new(count: usize, fields: impl Iterator<Item = Field<'a>>) -> Fields<'a> {
        let mut slots = Vec::with_capacity(count);
        slots.extend(fields.map(Some));
        Fields {
            slots,
            ..Fields::default()
        }
    }

    /// Returns the place of the first field with this name.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for an index of the names.
    pub fn position(&mut self, name: &str) -> Result<Option<usize>, Error> {
        if self.index.is_none() && self.slots.len() > UNINDEXED_MAX {
            self.searches += 1;
            if self.searches > UNINDEXED_SEARCHES {
                evaluation::keep(self.slots.len() * INDEXED_BYTES)?;
                self.index = Some(Box::new(Index::of(&self.slots)));
            }
        }
        let is_named = |place: &usize| {
            let slot = &self.slots[*place];
            slot.as_ref().is_some_and(|(key, _)| key == name)
        };
        Ok(match &self.index {
            Some(index) => index.places(name).find(is_named),
            None => (0..self.slots.len()).find(is_named),
        })
    }

    /// Returns the value of the first field with this name.
    ///
    /// # Errors
    /// Those of [`Fields::position`].
    pub fn find(&mut self, name: &str) -> Result<Option<&mut Tree<'a>>, Error> {
        let place = self.position(name)?;
        Ok(place.and_then(|place| self.at(place)))
    }

    /// Returns the value at a place, or `None` if the field was removed.
    pub fn at(&mut self, place: usize) -> Option<&mut Tree<'a>> {
        let slot = self.slots.get_mut(place)?;
        slot.as_mut().map(|(_, value)| value)
    }

    /// Removes the field at a place. Other fields keep their places.
    pub fn remove(&mut self, place: usize) {
        self.slots[place] = None;
    }

    /// Appends a field. Its name must not be the name of another field.
    ///
    /// # Errors
    /// `ExceededMemoryLimit` if the server has no memory for the field.
    pub fn push(&mut self, name: &str, value: Tree<'a>) -> Result<(), Error> {
        let index_bytes = self.index.as_ref().map_or(0, |_| INDEXED_BYTES);
        evaluation::keep(GROWTH * FIELD_BYTES + name.len() + ALLOCATION_BYTES + index_bytes)?;
        if let Some(index) = &mut self.index {
            // Slots with the same hash may be in any order unless they have the same name, and no other slot has this
            // name.
            index.insert_first(name, self.slots.len());
        }
        self.slots.push(Some((Cow::Owned(name.to_owned()), value)));
        Ok(())
    }

    /// Iterates over the fields in order.
    pub fn iter(&self) -> impl Iterator<Item = &Field<'a>> {
        self.slots.iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use bson::raw::RawBson;

    use super::*;

    /// A model of [`Fields`]: a list without an index.
    #[derive(Default)]
    struct Model(Vec<(String, i32)>);

    fn value(fields: &mut Fields<'_>, name: &str) -> Option<i32> {
        match fields.find(name).expect("memory")? {
            Tree::Owned(RawBson::Int32(number)) => Some(*number),
            other => panic!("an unexpected value: {other:?}"),
        }
    }

    fn check(fields: &mut Fields<'_>, model: &Model) {
        for name in (0..60).map(|name| name.to_string()) {
            let expected = model.0.iter().find(|(key, _)| *key == name);
            assert_eq!(value(fields, &name), expected.map(|(_, number)| *number));
        }
        let names: Vec<_> = fields.iter().map(|(name, _)| name.to_string()).collect();
        let expected: Vec<_> = model.0.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn random_changes_have_the_same_effect_as_on_a_list() {
        let mut random = fastrand::Rng::with_seed(7);
        for count in [0, 31, 32, 33, 100] {
            // About half of the names occur more than once.
            let start: Vec<_> = (0..count)
                .map(|number| (random.u32(..60).to_string(), number))
                .collect();
            let owned = |number: i32| Tree::Owned(RawBson::Int32(number));
            let copies = start
                .iter()
                .map(|(name, number)| (Cow::Owned(name.clone()), owned(*number)));
            let mut fields = Fields::new(start.len(), copies);
            let mut model = Model(start);
            for number in 1000..1300 {
                let name = random.u32(..60).to_string();
                let place = model.0.iter().position(|(key, _)| *key == name);
                match (fields.position(&name).expect("memory"), place) {
                    (Some(at), Some(place)) if random.bool() => {
                        fields.remove(at);
                        model.0.remove(place);
                    }
                    (Some(at), Some(place)) => {
                        *fields.at(at).expect("a field") = owned(number);
                        model.0[place].1 = number;
                    }
                    (None, None) => {
                        fields.push(&name, owned(number)).expect("memory");
                        model.0.push((name, number));
                    }
                    (at, place) => panic!("{name}: {at:?} is not {place:?}"),
                }
                check(&mut fields, &model);
            }
        }
    }
}
