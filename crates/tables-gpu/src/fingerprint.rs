//! Keys of groups and joins that are too wide for one number. A hash table stores a fingerprint of 64 bits of their
//! numbers instead.
//!
//! Two different keys may have the same fingerprint, so kernels compare all numbers but the last. The last number is
//! equal if the others and the fingerprints are. A group keeps the numbers as totals, like those of keys that other
//! keys determine. If the numbers of its rows differ, the query runs again with another seed. A join compares the
//! numbers of each match.

use std::collections::HashMap;

use datafusion::arrow::datatypes::DataType;

use crate::determined::Determined;
use crate::expression::Code;
use crate::fragment::{Exprs, Fragment};
use crate::groups::{Key, Values};
use crate::joined::Index;
use crate::keys::{DeterminedKey, check_different};
use crate::program::{Added, Group, Slots};
use crate::reason::Reason;
use crate::value::{Kind, Value};

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of seeds that a query tries.
pub(crate) const SEEDS: u64 = 3;
/// Factor of a seed: odd, with well mixed bits, so that the fingerprints of two seeds have nothing in common.
const SEED_STEP: u64 = 0x9E37_79B9_7F4A_7C15;
/// The reason why a run without fingerprints of groups fails.
pub(crate) const WIDE_GROUPS: &str = "groups by keys of more than 62 bits";
/// The reason why a run fails whose different keys have the same fingerprint.
pub(crate) const SAME_FINGERPRINT: &str = "keys whose fingerprints collide";

/// Returns whether a run with other fingerprints of the keys of groups may succeed.
pub(crate) fn is_of_groups(reason: &Reason) -> bool {
    reason.is(WIDE_GROUPS) || reason.is(SAME_FINGERPRINT)
}

/// Returns the initial value of the fingerprints with a seed.
pub(crate) fn start_of(seed: u64) -> u64 {
    seed.wrapping_mul(SEED_STEP)
}

/// Returns code that computes the fingerprint of integers, from the initial value `start`.
fn fingerprint<T: AsRef<str>>(start: &str, integers: impl IntoIterator<Item = T>) -> String {
    let all = integers
        .into_iter()
        .fold(start.to_owned(), |known, integer| {
            format!("with_number({known}, {})", unsigned(integer.as_ref()))
        });
    format!("as_key(f, {all}, is_wanted)")
}

/// Returns whether the source of a kernel computes fingerprints.
pub(crate) fn has_fingerprints(source: &str) -> bool {
    source.contains("with_number(")
}

/// Returns code that casts an integer to an unsigned one of 64 bits.
fn unsigned(integer: &str) -> String {
    format!("static_cast<u64>({integer})")
}

impl Fragment {
    /// Returns the fragment whose groups have the fingerprints of the next seed; `None` if all were tried, or the
    /// fingerprints that collide are those of a join.
    pub(crate) fn with_next_seed(&self, reason: &Reason) -> Option<Fragment> {
        let is_of_groups = self.seed > 0 || reason.is(WIDE_GROUPS);
        (is_of_groups && self.seed < SEEDS).then(|| Fragment {
            seed: self.seed + 1,
            ..self.clone()
        })
    }
}

impl DeterminedKey {
    /// Returns the integers that together identify the value.
    fn integers(&self) -> impl Iterator<Item = &String> {
        let all = [Some(&self.number), self.upper.as_ref(), self.valid.as_ref()];
        all.into_iter().flatten()
    }
}

impl Slots<'_, '_> {
    /// Declares the group of a row: the fingerprint of the keys that no other keys determine.
    ///
    /// # Errors
    /// Why kernels cannot compute a key.
    pub(crate) fn fingerprint(
        &mut self,
        (keys, are_determined): (&Exprs, &[bool]),
        seed: u64,
    ) -> Result<Group> {
        let mut told = Vec::new();
        for (index, expr) in keys.iter().enumerate() {
            if are_determined[index] {
                continue;
            }
            let key = self.code.determined_key(expr, (false, false))?;
            check_different(expr, &key.values)?;
            told.push((index, self.code.without_numbers_of_null(key)));
        }
        let uses = &mut self.code.draft.uses;
        let start = 2 * uses.constant(start_of(seed).into())?;
        let count = uses.constant(0)?;
        let integers = told.iter().flat_map(|(_, key)| key.integers());
        Ok(Group {
            number: fingerprint(&format!("f.constants[{start}]"), integers),
            keys: vec![Key::new(Values::Wide(DataType::UInt64), count)],
            mark_words: 0,
            told,
        })
    }

    /// Adds the keys of a fingerprint to the determined keys. For each number that all rows of a group must share,
    /// returns the slots of two totals: of the number, and of its complement.
    pub(crate) fn told(
        &mut self,
        told: Vec<(usize, DeterminedKey)>,
        determined: &mut HashMap<usize, Determined>,
    ) -> Vec<[usize; 2]> {
        let integers = told.iter().flat_map(|(_, key)| key.integers());
        let mut compared: Vec<String> = integers.map(|it| unsigned(it)).collect();
        compared.pop();
        let told = told.into_iter();
        determined.extend(told.map(|(index, key)| (index, self.kept(key))));
        let same = compared.into_iter().map(|number| {
            let complement = format!("~{number}");
            [number, complement].map(|it| self.slot(None, it, Added::Maximum))
        });
        same.collect()
    }
}

impl Code<'_, '_> {
    /// Returns the key with numbers that are 0 if it is NULL; they were arbitrary in this case.
    fn without_numbers_of_null(&mut self, mut key: DeterminedKey) -> DeterminedKey {
        if let Some(valid) = key.valid.clone() {
            let numbers = [Some(&mut key.number), key.upper.as_mut()];
            for number in numbers.into_iter().flatten() {
                let or_zero = format!("{valid} ? static_cast<i64>({number}) : 0");
                *number = self.declare(Kind::Large, &or_zero);
            }
        }
        key
    }

    /// Declares the element of a row in the table of a join by the fingerprint of its keys. A pair has a key of the
    /// probe rows, and the same key of the stored rows.
    ///
    /// # Errors
    /// Why kernels cannot look it up.
    pub(crate) fn element_by_fingerprint(
        &mut self,
        join: usize,
        mut pairs: Vec<(Value, Value)>,
    ) -> Result<Index> {
        let of = &self.draft.rows.joins[join];
        if pairs.len() > 1 && !of.kind.has_columns() && !of.repeats {
            // The table has one row for each fingerprint, but another row may have the key. A search finds it.
            let reason = Reason::new("a search by keys of more than 64 bits");
            return Err(reason.of_same_keys(of.rows.source));
        }
        // The table has all numbers but the last, which is the widest.
        pairs.sort_by_key(|(_, of_row)| of_row.max.checked_sub(of_row.min));
        let (values, of_rows): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        self.stored(join, |code| code.store_key(&of_rows, None))?;
        self.tell_slices(join);
        let mut index = self.fingerprint_of(&values)?;
        for (value, of_row) in values.iter().zip(&of_rows).take(values.len() - 1) {
            let out = self.stored(join, |code| code.out_number(of_row))?;
            let number = match out {
                Some(out) => format!("out<{join}, {out}>(joined)"),
                None => "0ull".to_owned(),
            };
            let first = 2 * self.draft.uses.constant(of_row.min)?;
            let own = unsigned(&value.widened(Kind::Large));
            let equal = format!("{own} - f.constants[{first}] == {number}");
            index.equal.push(equal);
        }
        Ok(index)
    }

    /// Declares the fingerprint of the keys of a row as its element.
    ///
    /// # Errors
    /// If a key has more than 64 bits.
    pub(crate) fn fingerprint_of(&mut self, keys: &[Value]) -> Result<Index> {
        if keys.iter().any(|it| it.kind > Kind::Large) {
            return Err(Reason::new("a join by a key of more than 63 bits"));
        }
        let integers = keys.iter().map(|it| it.widened(Kind::Large));
        let text = format!("static_cast<i64>({})", fingerprint("0ull", integers));
        let text = self.declare(Kind::Large, &text);
        let conditions = keys.iter().filter_map(|it| it.valid.clone());
        let mut conditions: Vec<_> = conditions.collect();
        conditions.dedup();
        Ok(Index {
            text: unsigned(&text),
            conditions,
            equal: Vec::new(),
        })
    }
}
