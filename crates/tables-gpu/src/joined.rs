//! Joins in generated code: the rows of a join are a table by their keys, with the values that the other side needs.
//!
//! Keys are integers, as which floats and texts are numbered. The table has an element for each number between the
//! smallest and the largest, or, if they are far apart, for each slot of a hash table. An element has a bit that tells
//! whether there is a row, and the values of the row in as few bits as their bounds allow.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::Schema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{Column, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;
use datafusion::scalar::ScalarValue;

use crate::constants::{self, is_constant};
use crate::draft::Draft;
use crate::engine::MANY_MATCHES;
use crate::expression::Code;
use crate::floats::is_float;
use crate::fragment::{Exprs, Rows, over_rows, shifted};
use crate::halves::Halves;
use crate::join::{Join, JoinKind};
use crate::packed::is_text;
use crate::reason::Reason;
use crate::slice::KeyColumn;
use crate::value::{Kind, Value, condition};

type Result<T> = std::result::Result<T, Reason>;

/// Bytes of a table that stay in the L1 cache. Those of tests have few rows.
const CACHED_BYTES: u64 = if cfg!(test) { 8 } else { 64 << 10 };
/// Maximum number of elements of a table, for each row and for all.
const ELEMENTS_OF_ROW_MAX: u64 = 64;
const ELEMENTS_MAX: u64 = 1 << 32;
/// Maximum number of matches of joins that repeat rows, for the kernels of a launch, and how often a thread may go to
/// the next ones of its rows. The CPU computes what has more, as other queries wait for the kernels.
pub(crate) const MATCHES_MAX: u64 = if cfg!(test) { 1 << 18 } else { 1 << 34 };
pub(crate) const TURNS_MAX: u32 = if cfg!(test) { 1 << 14 } else { 1 << 20 };
/// The same for up to eight devices. Those that the threads of a device have not counted are fewer.
pub(crate) const MATCHES_BOUND: u64 = 1 << 38;
/// Number of slots of a hash table, a power of two.
pub(crate) const SLOTS_MIN: u64 = 1 << 10;
pub(crate) const SLOTS_MAX: u64 = 1 << 31;
/// Number of elements that a table may have with any number of rows.
const ELEMENTS_MIN: u64 = 1 << 20;

/// Returns the number of slots of a hash table for this many keys: at least two for each.
///
/// # Errors
/// If more than 2^31 slots are needed.
pub(crate) fn capacity(keys: u64) -> Result<u64> {
    let slots = keys.saturating_mul(2).max(SLOTS_MIN);
    let slots = slots.checked_next_power_of_two();
    let slots = slots.filter(|it| *it <= SLOTS_MAX);
    slots.ok_or_else(|| Reason::of_data(format!("{keys} keys in a hash table")))
}

/// Where the keys of rows lie: the smallest value of each, and the number of values up to the largest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Dense {
    pub(crate) ranges: Vec<(i64, u64)>,
}

impl Dense {
    /// Returns where keys lie; `None` if they have more than 2^64 combinations or are no numbers of 64 bits.
    fn of(keys: &[Value]) -> Option<Dense> {
        let ranges = keys.iter().map(|value| {
            let count = value.max.checked_sub(value.min)? + 1;
            Some((i64::try_from(value.min).ok()?, u64::try_from(count).ok()?))
        });
        let ranges = ranges.collect::<Option<_>>()?;
        Some(Dense { ranges }).filter(|dense| dense.elements().is_some())
    }

    /// Returns the number of elements of a table; `None` if they are more than 2^64.
    pub(crate) fn elements(&self) -> Option<u64> {
        let counts = self.ranges.iter().map(|(_, count)| count);
        counts.copied().try_fold(1, u64::checked_mul)
    }
}

/// A number that the table of a join has for each key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Out {
    /// The number, of 64 bits.
    text: String,
    bits: u32,
    /// Whether it is a common word, as `joins.cuh` tells.
    pub(crate) is_common: bool,
}

/// An expression over the rows of a join, in its table.
#[derive(Debug, Clone)]
pub(crate) struct OutValue {
    /// Index of the number above `min`; `None` if it is always that.
    number: Option<usize>,
    /// Index of the bit that tells whether the value is not NULL; `None` if it never is.
    valid: Option<usize>,
    kind: Kind,
    min: i128,
    max: i128,
}

/// Where a number of a table is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) word: usize,
    pub(crate) shift: u32,
    pub(crate) bits: u32,
}

/// A word of a table: the bits of each element, 1, 8, 16 or 32.
pub(crate) type Word = u32;

/// Returns where the numbers of a join are in the words of its table, and these words. The lowest bit of the first word
/// tells whether there is a row. If the join repeats rows, their words are in the order in which they were stored, as
/// `joins.cuh` tells.
///
/// If the join leaves out many rows, this bit is apart if that brings it to the L1 cache. One H100, SSB at scale factor
/// 100: queries 3.2 and 3.3 take 2.9 and 2.7 instead of 5.1 and 4.2 ms, with 200,000 elements. With 1.4 million, whose
/// bits are too many, query 4.2 takes 4.2 instead of 3.3 ms.
pub(crate) fn layout(draft: &Draft<'_>, join: &Join) -> (Vec<Place>, Vec<Word>) {
    let outs = &draft.outs;
    let bytes = draft.stored.as_ref().map_or(u64::MAX, |it| it.elements);
    let is_cached = bytes > CACHED_BYTES && bytes / 8 <= CACHED_BYTES;
    let is_apart = join.is_selective() && is_cached && !outs.is_empty() && !join.repeats;
    // No number has room in a word that is full.
    let mut used = vec![if is_apart { 32 } else { 1 }];
    let places = outs.iter().map(|out| {
        if out.bits > 32 {
            used.extend([32, out.bits - 32]);
            return Place {
                word: used.len() - 2,
                shift: 0,
                bits: out.bits,
            };
        }
        let word = used.iter().position(|it| it + out.bits <= 32);
        let word = word.unwrap_or_else(|| {
            used.push(0);
            used.len() - 1
        });
        let shift = used[word];
        used[word] += out.bits;
        Place {
            word,
            shift,
            bits: out.bits,
        }
    });
    let places = places.collect();
    if is_apart {
        used[0] = 1;
    }
    let words = used.into_iter().enumerate().map(|(word, bits)| match bits {
        1 if word == 0 && !join.repeats => 1,
        0..=8 => 8,
        9..=16 => 16,
        _ => 32,
    });
    (places, words.collect())
}

/// Returns the words of an element as code, from the numbers and where they are.
pub(crate) fn words_of(outs: &[Out], places: &[Place], count: usize) -> Vec<String> {
    let mut words = vec![vec![]; count];
    words[0].push("1u".to_owned());
    for (out, place) in outs.iter().zip(places) {
        let text = &out.text;
        words[place.word].push(format!("static_cast<u32>({text}) << {}", place.shift));
        if place.bits > 32 {
            words[place.word + 1].push(format!("static_cast<u32>({text} >> 32)"));
        }
    }
    words.iter().map(|parts| parts.join(" | ")).collect()
}

/// The element of a row in a table, in generated code.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) text: String,
    /// What holds if there is one.
    pub(crate) conditions: Vec<String>,
    /// Further conditions of a match: numbers of keys are equal, if equal fingerprints do not imply that.
    pub(crate) equal: Vec<String>,
}

impl Index {
    /// Returns the arguments of functions of `joins.cuh`: the element, and whether a row that is wanted has one.
    fn arguments(&self) -> String {
        let mut conditions = vec!["is_wanted"];
        conditions.extend(self.conditions.iter().map(String::as_str));
        format!("{}, {}", self.text, conditions.join(" & "))
    }

    /// Returns whether a row belongs to the slice of the table of a join that is there, in generated code.
    pub(crate) fn is_here(&self, join: usize) -> String {
        format!("is_here<{join}>(f, {})", self.arguments())
    }
}

/// Where the rows of a join are stored.
#[derive(Debug)]
pub(crate) struct Stored {
    /// Where the keys lie; `None` if elements are found by fingerprints.
    pub(crate) dense: Option<Dense>,
    /// The keys of the probe rows; `None` if one is a text or a float, which each join numbers for itself, or if they
    /// have fingerprints.
    pub(crate) keys: Option<Exprs>,
    /// The columns that tell places in the table: of the rows that are looked up, and of those that are stored.
    pub(crate) key_column: Option<KeyColumn>,
    pub(crate) own_column: Option<KeyColumn>,
    /// Number of elements of the table.
    pub(crate) elements: u64,
    /// Number of rows that are stored at most.
    pub(crate) rows: u64,
    /// How many times the mean the rows of a slice may be, if several may have the same key.
    pub(crate) skew: u64,
    /// Whether the elements are those of a hash table.
    pub(crate) is_hashed: bool,
    pub(crate) index: Index,
    /// Of `NOT IN`, if keys may be NULL: what tells whether that of a row is not.
    pub(crate) has_key: Option<String>,
}

impl Code<'_, '_> {
    /// Runs a function with the code that stores a row of a join.
    pub(crate) fn stored<T>(
        &mut self,
        join: usize,
        with: impl FnOnce(&mut Code<'_, '_>) -> Result<T>,
    ) -> Result<T> {
        let draft = &mut self.draft.joins[join];
        let function = std::mem::take(&mut draft.store);
        let mut code = Code { draft, function };
        let result = with(&mut code);
        let function = code.function;
        self.draft.joins[join].store = function;
        result
    }

    /// Returns an expression over columns of a join as one over its rows.
    pub(crate) fn over_join(
        &self,
        join: usize,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let of = &self.draft.rows.joins[join];
        over_rows(&shifted(expr, of.first)?, &of.rows.columns)
    }

    /// Declares whether a row has a match; `None` if all rows that come so far have one.
    pub(crate) fn matched(&mut self, join: usize) -> Option<String> {
        let kind = self.draft.rows.joins[join].kind;
        let are_all_kept = matches!(kind, JoinKind::Outer | JoinKind::Mark);
        are_all_kept.then(|| self.declare(Kind::Bool, &format!("is_matched<{join}>(joined)")))
    }

    /// Returns the value of an expression of a join for rows without a match, of which all columns are NULL.
    pub(crate) fn unmatched(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<ArrayRef> {
        if is_volatile(expr) {
            return Err(Reason::new(format!("{expr} differs from row to row")));
        }
        let schema = &self.draft.rows.schema;
        let of_nulls = Arc::clone(expr).transform_up(|node| {
            if !node.is::<Column>() {
                return Ok(Transformed::no(node));
            }
            let null = ScalarValue::try_new_null(&node.data_type(schema)?)?;
            Ok(Transformed::yes(Arc::new(Literal::new(null)) as _))
        });
        let of_nulls = of_nulls.data().map_err(Reason::of)?;
        let options = RecordBatchOptions::new().with_row_count(Some(1));
        let row = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options);
        let value = of_nulls.evaluate(&row.map_err(Reason::of)?);
        value.and_then(|it| it.into_array(1)).map_err(Reason::of)
    }

    /// Declares the value of an expression over columns of one join.
    ///
    /// # Errors
    /// Why kernels cannot compute it.
    pub(crate) fn of_join(&mut self, join: usize, expr: &Arc<dyn PhysicalExpr>) -> Result<Value> {
        let of_row = self.over_join(join, expr)?;
        let of = &self.draft.rows.joins[join];
        let mut keys = of.keys.iter().zip(&of.keys_of_rows);
        // The keys of a match are equal, so that the table of the join need not have those of the other rows. A float
        // may be 0 where the other is -0.
        if of.kind == JoinKind::Inner
            && let Some((own, _)) = keys.find(|(_, other)| other.eq(&&of_row))
            && !is_float(&self.type_of(own)?)
        {
            return self.value(own);
        }
        // The words of a match are not kept by a search.
        let value = match of.kind == JoinKind::Mark && is_constant(&of_row) {
            true => self.scalar(&constants::value(&of_row).map_err(Reason::of)?)?,
            false => self.out_of_join(join, &of_row)?,
        };
        let Some(matched) = self.matched(join) else {
            return Ok(value);
        };
        let unmatched = self.unmatched(expr)?;
        let unmatched = ScalarValue::try_from_array(&unmatched, 0).map_err(Reason::of)?;
        let unmatched = self.scalar(&unmatched)?;
        Ok(self.chosen(&matched, &value, &unmatched))
    }

    /// Declares the value of a constant.
    fn scalar(&mut self, scalar: &ScalarValue) -> Result<Value> {
        match scalar {
            ScalarValue::Boolean(Some(truth)) => Ok(condition(truth.to_string(), None)),
            ScalarValue::Boolean(None) => {
                let null = condition("false".to_owned(), Some("false".to_owned()));
                Ok(null)
            }
            number => self.literal(number),
        }
    }

    /// Declares the value that the table of a join has of an expression over its rows.
    ///
    /// # Errors
    /// Why the table cannot have it.
    pub(crate) fn out_of_join(
        &mut self,
        join: usize,
        of_row: &Arc<dyn PhysicalExpr>,
    ) -> Result<Value> {
        if let Some(halves) = of_row.downcast_ref::<Halves>() {
            return self.halves_of_join(join, halves);
        }
        let out = self.stored(join, |code| code.out_value(of_row))?;
        let valid = out
            .valid
            .map(|out| format!("out<{join}, {out}>(joined) != 0"));
        let valid = valid.map(|text| self.declare(Kind::Bool, &text));
        let number = match out.number {
            Some(number) => format!("out<{join}, {number}>(joined)"),
            None => "0ull".to_owned(),
        };
        if out.kind == Kind::Bool {
            let truth = self.declare(Kind::Bool, &format!("{number} != 0"));
            return Ok(condition(truth, valid));
        }
        let low = 2 * self.draft.uses.constant(out.min)?;
        let text = match out.kind {
            Kind::Small => format!(
                "static_cast<i32>(static_cast<u32>(f.constants[{low}]) + static_cast<u32>({number}))"
            ),
            Kind::Float => {
                format!("float_of(static_cast<i64>(f.constants[{low}] + {number}))")
            }
            _ => format!("static_cast<i64>(f.constants[{low}] + {number})"),
        };
        Ok(Value {
            text: self.declare(out.kind, &text),
            kind: out.kind,
            valid,
            min: out.min,
            max: out.max,
        })
    }

    /// Puts the value of an expression into the table of these rows.
    fn out_value(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<OutValue> {
        if let Some(known) = self.draft.requested.get(expr) {
            return Ok(known.clone());
        }
        let value = self.value(expr)?;
        let valid = value.valid.clone();
        let is_valid = valid.as_deref().unwrap_or("true");
        let (number, min, max) = if value.kind == Kind::Bool {
            let text = format!("static_cast<u64>({is_valid} & {})", value.text);
            (Some(self.out(text, 1)), 0, 1)
        } else {
            let value = match value.kind {
                Kind::Float => self.bits_of(&value),
                _ => value.clone(),
            };
            (self.out_number(&value)?, value.min, value.max)
        };
        let out = OutValue {
            number,
            valid: valid.map(|it| self.out(format!("static_cast<u64>({it})"), 1)),
            kind: value.kind,
            min,
            max,
        };
        self.draft.requested.insert(Arc::clone(expr), out.clone());
        Ok(out)
    }

    /// Puts the distance of a number from the smallest one into the table of these rows. Returns its index; `None` if
    /// all numbers are equal.
    ///
    /// # Errors
    /// If it may have more than 64 bits.
    pub(crate) fn out_number(&mut self, value: &Value) -> Result<Option<usize>> {
        if Kind::of(value.min, value.max).is_none_or(|it| it > Kind::Large) {
            return Err(Reason::new("numbers of more than 64 bits"));
        }
        let range = (value.max - value.min) as u64;
        let bits = u64::BITS - range.leading_zeros();
        let low = 2 * self.draft.uses.constant(value.min)?;
        let (is_valid, large) = (value.valid.as_deref(), value.widened(Kind::Large));
        let is_valid = is_valid.unwrap_or("true");
        let text = format!("({is_valid} ? static_cast<u64>({large}) - f.constants[{low}] : 0ull)");
        Ok((bits > 0).then(|| self.out(text, bits)))
    }

    pub(crate) fn out(&mut self, text: String, bits: u32) -> usize {
        let out = Out {
            text,
            bits,
            is_common: false,
        };
        let known = self.draft.outs.iter().position(|it| *it == out);
        known.unwrap_or_else(|| {
            self.draft.outs.push(out);
            self.draft.outs.len() - 1
        })
    }

    /// Declares the element of a row in the table of a join.
    ///
    /// # Errors
    /// Why kernels cannot look it up.
    pub(crate) fn element(&mut self, join: usize) -> Result<Index> {
        let of = &self.draft.rows.joins[join];
        self.check_pairs(join)?;
        let mut pairs = Vec::new();
        for (key, of_row) in of.keys.iter().zip(&of.keys_of_rows) {
            let other = of_row.data_type(&of.rows.schema).map_err(Reason::of)?;
            let own = self.type_of(key)?;
            if own != other {
                return Err(Reason::new(format!("a join of {own} with {other}")));
            }
            if is_text(&own) {
                pairs.push(self.texts_of_join(join, key, of_row)?);
            } else if is_float(&own) {
                pairs.push(self.floats_of_join(join, key, of_row)?);
            } else {
                let (own, others) = self.numbers_of_join(join, key, of_row)?;
                pairs.extend(own.into_iter().zip(others));
            }
        }
        let (values, of_rows): (Vec<_>, Vec<_>) = pairs.iter().cloned().unzip();
        let dense = Dense::of(&of_rows);
        if dense.is_none() {
            return self.element_by_fingerprint(join, pairs);
        }
        self.stored(join, |code| code.store_key(&of_rows, dense.clone()))?;
        self.tell_slices(join);
        self.index(&values, dense.as_ref())
    }

    /// Declares whether a row is kept by a join, in whose table it has this element. Afterwards the values of the
    /// join can be read.
    ///
    /// # Errors
    /// Why kernels cannot look it up.
    pub(crate) fn look_up(&mut self, join: usize, index: &Index) -> Result<String> {
        let of = &self.draft.rows.joins[join];
        let kind = of.kind;
        let text = format!("look_up<{join}>(f, joined, {})", index.arguments());
        let mut found = self.declare(Kind::Bool, &text);
        for equal in &index.equal {
            found = self.declare(Kind::Bool, &format!("{found} & ({equal})"));
        }
        let is_here = index.is_here(join);
        let found = match (&of.differ, &of.condition) {
            (Some((own, other)), _) => {
                let differs = self.differs(join, found, (own, other));
                // A search finds numbers that are far apart, too.
                differs.map_err(|reason| reason.of_same_keys(of.rows.source))?
            }
            (None, Some(condition)) => self.holds(found, condition)?,
            (None, None) => found,
        };
        let is_marked = kind == JoinKind::Mark && of.differ.is_some();
        let has_condition = of.condition.is_some() || !index.equal.is_empty();
        if is_marked || kind == JoinKind::Outer && has_condition {
            // If rows are repeated, the loop in `fragment.cuh` keeps one without a match once.
            self.unmatch(join, &found);
        }
        Ok(match kind {
            // The loop in `fragment.cuh` tells which rows are kept.
            _ if of.searches() => found,
            JoinKind::Inner | JoinKind::Semi => found,
            JoinKind::Anti => format!("{is_here} & !{found}"),
            JoinKind::Outer | JoinKind::Mark => is_here,
        })
    }

    /// Refuses a join of all pairs that surely has too many matches.
    fn check_pairs(&self, join: usize) -> Result<()> {
        let (rows, of) = (self.draft.rows, &self.draft.rows.joins[join]);
        let others = &of.rows;
        let is_of_all_pairs = of.keys.iter().chain(&of.keys_of_rows).all(is_constant);
        if !of.kind.has_columns()
            || !is_of_all_pairs
            || !others.filters.is_empty()
            || !others.joins.is_empty()
        {
            return Ok(());
        }
        let joined = rows.joined();
        let is_of_pair = |filter: &Arc<dyn PhysicalExpr>| {
            let columns = collect_columns(filter);
            columns.iter().any(|it| joined.contains(&it.index()))
        };
        let are_all_read = rows.joins.len() == 1 && rows.filters.iter().all(is_of_pair);
        let least = if are_all_read {
            self.draft.scanned.rows
        } else {
            1
        };
        let others = self.draft.joins[join].scanned.rows;
        match others > TURNS_MAX.into() || others.saturating_mul(least) > MATCHES_MAX {
            true => Err(Reason::of_data(MANY_MATCHES)),
            false => Ok(()),
        }
    }

    /// Notes what tells of the keys of a join in which slice of its table they are.
    pub(crate) fn tell_slices(&mut self, join: usize) {
        let (draft, of) = (&self.draft, &self.draft.rows.joins[join]);
        // Each join numbers texts and floats for itself.
        let are_numbered = of.keys.iter().any(|key| {
            self.type_of(key)
                .is_ok_and(|it| is_text(&it) || is_float(&it))
        });
        let Some(stored) = &draft.joins[join].stored else {
            return;
        };
        let ranges = stored.dense.as_ref().map(|it| it.ranges.as_slice());
        let column = |rows: &Rows, keys: &[Arc<dyn PhysicalExpr>]| match (keys, ranges) {
            ([key], Some([(first, _)])) if !are_numbered && !stored.is_hashed => {
                rows.key_column(key, *first, stored.elements)
            }
            _ => None,
        };
        let columns = [
            column(draft.rows, &of.keys),
            column(&of.rows, &of.keys_of_rows),
        ];
        let keys = (!are_numbered && ranges.is_some()).then(|| of.keys.clone());
        if let Some(stored) = &mut self.draft.joins[join].stored {
            [stored.key_column, stored.own_column] = columns;
            stored.keys = keys;
        }
    }

    /// Lets a row be one without a match unless a condition holds.
    fn unmatch(&mut self, join: usize, holds: &str) {
        let is_matched = format!("is_matched<{join}>(joined)");
        self.function.lines.extend([
            format!("if (!({holds})) unmatch<{join}>(joined);"),
            format!("const bool has_match{join} = {is_matched};"),
        ]);
        // What was declared before are the values of a match.
        self.function.values.clear();
        let known = &mut self.function.known;
        known.insert(format!("bool {is_matched}"), format!("has_match{join}"));
    }

    /// Puts the number that all rows of a key have into the table of these rows. Returns its index, and the smallest
    /// and the largest number.
    pub(crate) fn store_common(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> Result<(usize, i128, i128)> {
        let value = self.value(expr)?;
        // Two words are no numbers.
        if value.kind > Kind::Large || value.max - value.min >= i128::from(u32::MAX - 2) {
            return Err(Reason::new(format!(
                "{expr} with numbers that are far apart"
            )));
        }
        let first = 2 * self.draft.uses.constant(value.min)?;
        let text = format!(
            "(static_cast<u64>({}) - f.constants[{first}] + 1)",
            value.widened(Kind::Large)
        );
        if let Some(stored) = &mut self.draft.stored {
            stored.index.conditions.extend(value.valid);
        }
        self.draft.outs.push(Out {
            text,
            bits: u32::BITS,
            is_common: true,
        });
        Ok((self.draft.outs.len() - 1, value.min, value.max))
    }

    /// Declares where a row of a join is stored. `dense` says where the keys of all rows lie; `None` for
    /// fingerprints.
    ///
    /// # Errors
    /// Why kernels cannot store it.
    pub(crate) fn store_key(&mut self, keys: &[Value], dense: Option<Dense>) -> Result<()> {
        let of_rows = ELEMENTS_OF_ROW_MAX.saturating_mul(self.draft.scanned.rows);
        let elements_max = of_rows.saturating_add(ELEMENTS_MIN).min(ELEMENTS_MAX);
        let elements = dense.as_ref().and_then(Dense::elements);
        let elements = elements.filter(|it| *it <= elements_max);
        let index = self.index(keys, dense.as_ref())?;
        let (rows, spread) = (self.draft.scanned.rows, self.draft.rows.spread);
        let (rows, skew) = match self.draft.rows.are_repeated() {
            true => (rows.saturating_mul(spread), 1),
            false => (rows, spread),
        };
        self.draft.stored = Some(Stored {
            dense,
            keys: None,
            key_column: None,
            own_column: None,
            elements: match elements {
                Some(elements) => elements,
                None => capacity(rows)?,
            },
            rows,
            skew,
            is_hashed: elements.is_none(),
            index,
            has_key: None,
        });
        Ok(())
    }

    /// Declares the element that keys have, and whether they have one.
    fn index(&mut self, values: &[Value], dense: Option<&Dense>) -> Result<Index> {
        let Some(dense) = dense else {
            return self.fingerprint_of(values);
        };
        let distances = values.iter().zip(&dense.ranges).map(|(value, (first, _))| {
            let first = i128::from(*first);
            (value.min - first, value.max - first)
        });
        let distances: Vec<_> = distances.collect();
        // Distances modulo the type are those without, if they fit in the signed type.
        let fit = |kind: Kind| {
            let mut kinds = distances.iter().map(|(min, max)| Kind::of(*min, *max));
            kinds.all(|it| it.is_some_and(|it| it <= kind))
        };
        let is_small = dense.elements().is_some_and(|it| it < 1 << 31) && fit(Kind::Small);
        // Modulo 2^64, the distance of a number of 64 bits is below the count only if the number is in the range, which
        // ends before 2^63.
        let last = |(first, count): &(i64, u64)| i128::from(*first) + i128::from(*count) - 1;
        let are_large = values.iter().all(|it| it.kind <= Kind::Large)
            && dense
                .ranges
                .iter()
                .all(|it| last(it) <= i128::from(i64::MAX));
        if !are_large && !fit(Kind::Large) {
            return Err(Reason::new("a join by keys of more than 63 bits"));
        }
        let (kind, unsigned) = match is_small {
            true => (Kind::Small, "u32"),
            false => (Kind::Large, "u64"),
        };
        let (mut text, mut conditions) = (String::new(), Vec::new());
        for ((value, (first, count)), (min, max)) in
            values.iter().zip(&dense.ranges).zip(&distances)
        {
            conditions.extend(value.valid.clone());
            let first = 2 * self.draft.uses.constant((*first).into())?;
            let distance = format!(
                "(static_cast<{unsigned}>({}) - static_cast<{unsigned}>(f.constants[{first}]))",
                value.text
            );
            let is_inside = *min >= 0 && *max < i128::from(*count);
            if is_inside && text.is_empty() {
                text = distance;
                continue;
            }
            let count = 2 * self.draft.uses.constant((*count).into())?;
            let count = format!("static_cast<{unsigned}>(f.constants[{count}])");
            if !is_inside {
                let is_less = format!("{distance} < {count}");
                conditions.push(self.declare(Kind::Bool, &is_less));
            }
            text = match text.is_empty() {
                true => distance,
                false => format!("({text}) * {count} + {distance}"),
            };
        }
        conditions.dedup();
        let text = format!("static_cast<{}>({text})", kind.name());
        let text = self.declare(kind, &text);
        Ok(Index {
            text: format!("static_cast<{unsigned}>({text})"),
            conditions,
            equal: Vec::new(),
        })
    }
}
