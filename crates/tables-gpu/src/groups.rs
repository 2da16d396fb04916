//! The groups of a fragment: numbers of rows that the values of the keys make.
//!
//! The number of a group is made of those of the values of its keys. For a key of a join, only values count that rows
//! of the join have which it keeps: the kernel that stores these rows marks them, and its values are numbered again.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, UInt64Array, new_empty_array};
use datafusion::arrow::compute::{cast, interleave, take};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::exec_err;
use parking_lot::Mutex;

use crate::column::Column;
use crate::fingerprint::WIDE_GROUPS;
use crate::halves::{decimals, number_of};
use crate::joined::{SLOTS_MAX, SLOTS_MIN, capacity};
use crate::packed::{array_of, decimals_of, is_text};
use crate::program::{THREADS, Total, group_words};
use crate::ranks::INTERVALS;
use crate::reason::{Kind, Reason};
use crate::slice::{HASH_PLACES, KeyColumn, Slice};

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of totals of a thread in shared memory, of 8 bytes each.
const PRIVATE_MAX: usize = 40;
/// Maximum number of totals of a block in shared memory.
const OF_BLOCK_MAX: usize = 8 << 10;
/// Number of combinations of values for each row, above which groups are in a hash table.
const GROUPS_OF_ROW: u64 = 4;
/// Number of combinations up to which they are not, with any number of rows: of values alone, and if a key is by all
/// numbers of a range.
const GROUPS_OF_VALUES: u64 = 1 << 22;
const GROUPS_OF_RANGES: u64 = 1 << 20;
/// Number of possible combinations of keys from which on groups cannot be in a hash table.
pub(crate) const HASHED_KEYS_MAX: u64 = 1 << 62;
/// Number of slots that a hash table has at most at first.
const SLOTS_FIRST: u64 = 1 << 24;
/// Minimum and maximum number of rows for which a list has room at first.
const LISTED_MIN: u64 = 1 << 10;
const LISTED_FIRST: u64 = 1 << 20;
/// Maximum bytes of a list. The CPU computes longer ones.
const LISTED_BYTES_MAX: u64 = if cfg!(test) { 256 << 10 } else { 128 << 20 };
/// The reason for a list without room.
pub(crate) const TOO_MANY_ROWS: &str = "too many rows are returned";
/// Maximum bytes of marks and groups that are kept for the next run.
const LAST_MARKED_BYTES_MAX: usize = 256 << 10;
/// The total of an interval of ranks.
const COUNT: [Total; 1] = [Total {
    is_maximum: false,
    word: 0,
    is_wide: false,
}];
/// Maximum bytes of all totals.
const TOTALS_BYTES_MAX: u64 = 16 << 30;

/// Where the totals of a kernel are while it runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Place {
    /// One group, in registers.
    #[default]
    Registers,
    /// Few groups, in shared memory, those of each thread apart.
    Private,
    /// More groups, in shared memory, one for all threads of a block.
    OfBlock,
    /// Many groups, in global memory.
    OfAll,
    /// Groups in a hash table, in global memory.
    Hashed,
    /// A group for each row, in global memory.
    Listed,
    /// No totals, but the numbers of rows in intervals of ranks, in shared memory.
    Counted,
}

impl Place {
    /// Returns whether each block has totals of its own, of 64 bits.
    pub(crate) fn is_of_blocks(self) -> bool {
        matches!(self, Place::Registers | Place::Private | Place::OfBlock)
    }

    /// Returns the class that has the totals.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Place::Registers => "Registers",
            Place::Private => "Private",
            Place::OfBlock => "OfBlock",
            Place::OfAll => "OfAll",
            Place::Hashed => "Hashed",
            Place::Listed => "Listed",
            Place::Counted => "Counted",
        }
    }
}

/// The texts of the rows of files, by the numbers of the rows.
#[derive(Debug, Clone)]
pub(crate) struct RowTexts {
    /// The column in each file. Weak, so that kept kernels do not keep it; a query that reads it holds it.
    columns: Vec<Weak<Column>>,
    /// The number of the first row of each file.
    firsts: Vec<u64>,
    rows: u64,
    /// Bytes of the longest.
    longest: usize,
    data_type: DataType,
}

impl RowTexts {
    /// Returns the texts of a column of files.
    pub(crate) fn new(files: &[Arc<Column>], data_type: DataType) -> RowTexts {
        let mut rows = 0;
        let firsts = files.iter().map(|file| {
            let first = rows;
            rows += file.rows();
            first
        });
        RowTexts {
            firsts: firsts.collect(),
            longest: files
                .iter()
                .map(|file| file.longest_text())
                .max()
                .unwrap_or(0),
            rows,
            columns: files.iter().map(Arc::downgrade).collect(),
            data_type,
        }
    }

    /// Returns the number of rows.
    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    /// Returns the number of the first row of each file.
    pub(crate) fn firsts(&self) -> &[u64] {
        &self.firsts
    }

    fn take(&self, numbers: &[u64]) -> datafusion::error::Result<ArrayRef> {
        let columns: Option<Vec<_>> = self.columns.iter().map(Weak::upgrade).collect();
        let Some(columns) = columns else {
            return exec_err!("texts are not in memory any more");
        };
        // The number of the first row of each chunk, and its texts.
        let (mut firsts, mut texts) = (Vec::new(), Vec::new());
        let mut first = 0;
        for chunk in columns.iter().flat_map(|column| &column.chunks) {
            firsts.push(first);
            texts.extend(chunk.texts.as_ref().map(|it| it as &dyn Array));
            first += u64::from(chunk.rows);
        }
        let places = numbers.iter().map(|number| {
            let chunk = firsts.partition_point(|first| first <= number) - 1;
            (chunk, (number - firsts[chunk]) as usize)
        });
        let places: Vec<_> = places.collect();
        match texts.is_empty() {
            true => Ok(new_empty_array(&self.data_type)),
            false => Ok(interleave(&texts, &places)?),
        }
    }
}

/// The values of a key, by their numbers.
#[derive(Debug, Clone)]
pub(crate) enum Values {
    Array(ArrayRef),
    /// Numbers from the first on, one step apart; in front of them NULL, if there may be rows with it.
    Range {
        first: i64,
        step: i64,
        count: usize,
        has_null: bool,
        data_type: DataType,
        /// Of floats, the exponent of the power of ten that divides numbers.
        exponent: Option<u32>,
    },
    /// Decimals with all combinations of upper and lower halves. Of each half, these are `counts` consecutive numbers
    /// from the one in `firsts` on. The value before them is NULL if rows may have it.
    Halves {
        firsts: [i64; 2],
        counts: [u64; 2],
        has_null: bool,
        data_type: DataType,
    },
    /// The texts of all rows.
    Rows(RowTexts),
    /// All numbers of 64 bits, or of 128.
    Wide(DataType),
}

impl Values {
    /// Returns the number of values.
    pub(crate) fn len(&self) -> usize {
        match self {
            Values::Array(values) => values.len(),
            Values::Range {
                count, has_null, ..
            } => count + usize::from(*has_null),
            Values::Halves {
                counts: [upper, lower],
                has_null,
                ..
            } => (upper * lower) as usize + usize::from(*has_null),
            Values::Rows(texts) => texts.rows() as usize,
            Values::Wide(_) => usize::MAX,
        }
    }

    /// Returns the bytes in memory.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Values::Array(values) => values.get_array_memory_size(),
            Values::Range { .. } | Values::Halves { .. } | Values::Rows(_) | Values::Wide(_) => 0,
        }
    }

    /// Returns the bytes of the longest text; 0 for numbers. Of texts of rows, the most that one in a chunk may have.
    pub(crate) fn text_bytes_max(&self) -> usize {
        match self {
            Values::Array(values) if is_text(values.data_type()) => {
                let texts = cast(values, &DataType::Utf8View).ok();
                let texts = texts
                    .iter()
                    .flat_map(|texts| texts.as_string_view().lengths());
                texts.max().unwrap_or(0) as usize
            }
            Values::Array(_) | Values::Range { .. } | Values::Halves { .. } | Values::Wide(_) => 0,
            Values::Rows(texts) => texts.longest,
        }
    }

    /// Returns the values with these numbers.
    ///
    /// # Errors
    /// If a number is no value of the type.
    pub(crate) fn take(&self, numbers: Vec<u64>) -> datafusion::error::Result<ArrayRef> {
        match self {
            Values::Array(values) => Ok(take(values, &UInt64Array::from(numbers), None)?),
            Values::Range {
                first,
                step,
                has_null,
                data_type,
                exponent,
                ..
            } => {
                let value = |number: u64| match (number, has_null) {
                    (0, true) => None,
                    (number, _) => {
                        let distance = number.cast_signed() - i64::from(*has_null);
                        Some(first.wrapping_add(distance.wrapping_mul(*step)))
                    }
                };
                let numbers = numbers.into_iter().map(value).collect();
                match exponent {
                    Some(exponent) => decimals_of(numbers, *exponent, data_type),
                    None => array_of(numbers, data_type),
                }
            }
            Values::Halves {
                firsts,
                counts: [_, lower],
                has_null,
                data_type,
            } => {
                let [first_upper, first_lower] = firsts.map(i64::cast_unsigned);
                let value = |number: u64| {
                    let place = number.checked_sub(u64::from(*has_null))?;
                    let upper = first_upper.wrapping_add(place / lower);
                    Some(number_of(upper, first_lower.wrapping_add(place % lower)))
                };
                decimals(numbers.into_iter().map(value).collect(), data_type)
            }
            Values::Rows(texts) => texts.take(&numbers),
            Values::Wide(data_type) => {
                let numbers = numbers.into_iter();
                array_of(
                    numbers.map(|it| Some(it.cast_signed())).collect(),
                    data_type,
                )
            }
        }
    }
}

/// A key of groups.
#[derive(Debug, Clone)]
pub(crate) struct Key {
    pub(crate) values: Values,
    /// Index of the constant that is the number of values.
    pub(crate) count: usize,
    /// For a key of a join, how its values are numbered again.
    pub(crate) marked: Option<Marked>,
    /// The column whose numbers tell those of its values.
    pub(crate) column: Option<KeyColumn>,
}

impl Key {
    /// Returns a key whose values are numbered once. `count` is the index of the constant that is their number.
    pub(crate) fn new(values: Values, count: usize) -> Key {
        Key {
            values,
            count,
            marked: None,
            column: None,
        }
    }
}

/// How the values of a key of a join are numbered again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Marked {
    /// Index of the first word with marks, one bit for each value.
    pub(crate) first: usize,
    /// Index of the table from old numbers to new ones.
    pub(crate) table: usize,
    /// The value of rows without a match.
    pub(crate) unmatched: Option<usize>,
}

/// What the kernels that store rows of joins marked in the last run, and the groups by it. The next run over the same
/// columns has the same, so that its last kernel need not wait for the marks.
#[derive(Debug, Default)]
pub(crate) struct LastMarked(Mutex<Option<MarksAndGroups>>);

type MarksAndGroups = (Arc<[u32]>, Arc<Groups>);

impl LastMarked {
    /// Returns the marks and the groups, if they are kept.
    pub(crate) fn get(&self) -> Option<MarksAndGroups> {
        self.0.lock().clone()
    }

    /// Keeps marks and their groups, unless they are large.
    pub(crate) fn put(&self, marks: &[u32], groups: &Arc<Groups>) {
        let tables = groups.tables.iter().map(|(_, table)| table.len());
        let words = marks.len() + tables.sum::<usize>();
        let values: usize = groups.keys.iter().map(Values::bytes).sum();
        if 4 * words + values <= LAST_MARKED_BYTES_MAX {
            *self.0.lock() = Some((marks.into(), Arc::clone(groups)));
        }
    }
}

/// What the groups needed the last time.
#[derive(Debug, Default)]
pub(crate) struct Needed {
    /// Slots of a hash table, or of a list.
    slots: AtomicUsize,
    /// Slices of a hash table, and 0 for one.
    slices: AtomicU64,
}

impl Needed {
    pub(crate) fn slots(&self) -> usize {
        self.slots.load(Ordering::Relaxed)
    }

    pub(crate) fn put_slots(&self, slots: usize) {
        self.slots.store(slots, Ordering::Relaxed);
    }

    pub(crate) fn slices(&self) -> u64 {
        self.slices.load(Ordering::Relaxed).max(1)
    }

    pub(crate) fn put_slices(&self, slices: usize) {
        let slices = slices.next_power_of_two() as u64;
        self.slices.store(slices, Ordering::Relaxed);
    }
}

/// The groups of a fragment.
#[derive(Debug, Clone, Default)]
pub(crate) struct Groups {
    pub(crate) place: Place,
    /// Number of groups, also of those without rows; of a hash table its slots, of a list the rows that have room.
    pub(crate) count: usize,
    /// Number of combinations of the values of the keys.
    pub(crate) combinations: u64,
    /// The combinations that are counted.
    pub(crate) slice: Slice,
    /// The column whose numbers tell those of the combinations; `None` of a hash table.
    pub(crate) key_column: Option<KeyColumn>,
    /// The rows of a list that are enough, if not all are wanted.
    pub(crate) enough: Option<usize>,
    /// Whether all rows are listed for functions over them, so that few may be returned.
    lists_all: bool,
    /// Number of rows that are grouped.
    rows: u64,
    /// The values of each key; the first key changes slowest.
    pub(crate) keys: Vec<Values>,
    /// Constants, by their index.
    pub(crate) constants: Vec<(usize, i128)>,
    /// Tables from old numbers to new ones, by their index.
    pub(crate) tables: Vec<(usize, Vec<u32>)>,
}

impl Groups {
    /// Returns the groups of keys over about this many rows, and at most the second number, with these totals each,
    /// from the marks of the kernels that store rows of joins, if there are any.
    ///
    /// # Errors
    /// If the combinations of several keys need more than 62 bits.
    pub(crate) fn new(
        keys: &[Key],
        totals: &[Total],
        (rows, rows_max): (u64, u64),
        marks: Option<&[u32]>,
    ) -> Result<Groups> {
        let mut groups = Groups {
            place: Place::Registers,
            count: 1,
            combinations: 1,
            rows: rows_max,
            ..Groups::default()
        };
        for key in keys {
            let mut values = key.values.clone();
            if let Some(marked) = key.marked {
                let (kept, table) = renumbered(values.len(), marked, marks.unwrap_or_default());
                values = Values::Array(values.take(kept).map_err(Reason::of)?);
                groups.tables.push((marked.table, table));
            }
            let count = values.len().max(1);
            groups.constants.push((key.count, count as i128));
            groups.keys.push(values);
            let product = groups.combinations.checked_mul(count as u64);
            groups.combinations = product
                .filter(|it| *it < HASHED_KEYS_MAX || keys.len() == 1)
                .ok_or_else(|| Reason::new(WIDE_GROUPS))?;
        }
        let are_of_ranges = keys
            .iter()
            .any(|it| matches!(it.values, Values::Range { .. } | Values::Halves { .. }));
        let more = match are_of_ranges {
            true => GROUPS_OF_RANGES,
            false => GROUPS_OF_VALUES,
        };
        let count_max = rows.saturating_mul(GROUPS_OF_ROW).max(more);
        let bytes = groups
            .combinations
            .saturating_mul(8 * group_words(totals) as u64);
        if groups.combinations > count_max.min(SLOTS_MAX) || bytes > TOTALS_BYTES_MAX {
            groups.place = Place::Hashed;
            let first = (rows / 4).clamp(SLOTS_MIN, SLOTS_FIRST);
            let first = first.next_power_of_two() as usize;
            groups.count = first.min(slots_max(rows_max, totals, TOTALS_BYTES_MAX));
            return Ok(groups);
        }
        if let [key] = keys {
            groups.key_column = key.column;
        }
        groups.count = groups.combinations as usize;
        groups.place = match groups.count * totals.len() {
            _ if keys.is_empty() => Place::Registers,
            // Additions of each thread to its own totals take long if few rows are left.
            0..=PRIVATE_MAX if marks.is_none() => Place::Private,
            0..=OF_BLOCK_MAX => Place::OfBlock,
            _ => Place::OfAll,
        };
        Ok(groups)
    }

    /// Returns a group for each of about `known` rows and at most `rows`, or for any of them if some are enough.
    /// `lists_all` tells that functions are computed over the rows, of which few may be returned.
    pub(crate) fn listed(
        totals: &[Total],
        (known, rows): (u64, u64),
        enough: Option<u64>,
        lists_all: bool,
    ) -> Groups {
        let enough = enough.filter(|it| *it < rows).map(|it| it.max(1) as usize);
        let first = match lists_all {
            true => (known / 8).max(LISTED_MIN),
            false => (rows / 64).clamp(LISTED_MIN, LISTED_FIRST),
        };
        let first = first.min(list_max(rows, totals, lists_all)) as usize;
        Groups {
            place: Place::Listed,
            count: first.min(enough.unwrap_or(usize::MAX)),
            combinations: 1,
            enough,
            lists_all,
            rows,
            ..Groups::default()
        }
    }

    /// Returns a group for each of this many rows.
    ///
    /// # Errors
    /// If they are too many.
    pub(crate) fn list_of(rows: u64, totals: &[Total]) -> Result<Groups> {
        if rows > listed_max(rows, totals) {
            return Err(Reason::of_data(TOO_MANY_ROWS));
        }
        Ok(Groups {
            place: Place::Listed,
            count: rows.max(1) as usize,
            combinations: 1,
            rows,
            ..Groups::default()
        })
    }

    /// Returns the intervals of ranks in which a kernel with these constants counts rows.
    pub(crate) fn counted(constants: Vec<(usize, i128)>) -> Groups {
        Groups {
            place: Place::Counted,
            count: INTERVALS,
            combinations: 1,
            constants,
            ..Groups::default()
        }
    }

    /// Returns the totals of a group, of those of the fragment.
    pub(crate) fn layout<'a>(&self, totals: &'a [Total]) -> &'a [Total] {
        match self.place {
            Place::Counted => &COUNT,
            _ => totals,
        }
    }

    /// Returns the bytes of the totals of all groups.
    pub(crate) fn bytes(&self, totals: &[Total]) -> usize {
        self.count * 8 * group_words(self.layout(totals))
    }

    /// Returns whether a list that is full has all rows that are wanted.
    pub(crate) fn has_enough(&self) -> bool {
        self.enough == Some(self.count)
    }

    /// Gives a hash table or a list that was full more slots, if their totals have room in this many bytes.
    ///
    /// # Errors
    /// If it has as many as all rows need, or as there is room for.
    pub(crate) fn grow(&mut self, totals: &[Total], room: u64) -> Result<()> {
        let (most, kind, text) = match self.place {
            Place::Listed => {
                let most = match self.lists_all {
                    // The sorted list has as much, and rows have two keys and two numbers while they are sorted.
                    true => room / (24 + 16 * group_words(totals) as u64),
                    false => u64::MAX,
                };
                let most = list_max(self.rows, totals, self.lists_all).min(most);
                (most as usize, Kind::Data, TOO_MANY_ROWS)
            }
            _ => (
                slots_max(self.rows, totals, room),
                Kind::Memory,
                "too many groups in a hash table",
            ),
        };
        match self.count < most {
            true => {
                let enough = self.enough.unwrap_or(usize::MAX);
                self.count = (8 * self.count).min(most).min(enough);
                Ok(())
            }
            false => Err(Reason::of_kind(kind, text)),
        }
    }

    /// Returns the groups in slices whose totals have room in this many bytes each: in as few as are enough, or, of a
    /// hash table, in `of_hashed`. They are in a hash table if they need more than `most`.
    pub(crate) fn sliced(
        &self,
        totals: &[Total],
        room: u64,
        (of_hashed, most): (u64, u64),
    ) -> Vec<Groups> {
        let count = self.count as u64;
        let (of, places) = match self.place {
            Place::OfAll => {
                let of_slice = room / (8 * group_words(totals) as u64).max(1);
                (count.div_ceil(of_slice.max(1)), count)
            }
            Place::Hashed => (of_hashed.min(most), HASH_PLACES),
            _ => (1, 1),
        };
        if self.place == Place::OfAll && of > most {
            let hashed = Groups {
                place: Place::Hashed,
                key_column: None,
                ..self.clone()
            };
            return hashed.sliced(totals, room, (of_hashed, most));
        }
        // The last slices would be empty.
        let of = places.div_ceil(places.div_ceil(of.max(1)).max(1)).max(1);
        let slots_max = slots_max(self.rows, totals, room);
        let slices = (0..of).map(|index| {
            let slice = Slice::nth(index, of, places);
            let count = match self.place {
                Place::Hashed => self.count.min(slots_max),
                // The last has what is left.
                _ => (count - slice.first).min(slice.count) as usize,
            };
            Groups {
                slice,
                count,
                ..self.clone()
            }
        });
        slices.collect()
    }

    /// Returns both halves of the groups of a hash table; `None` of others.
    pub(crate) fn halves(&self) -> Option<[Groups; 2]> {
        let halves = self
            .slice
            .halves(HASH_PLACES)
            .filter(|_| self.place == Place::Hashed);
        halves.map(|halves| {
            halves.map(|slice| Groups {
                slice,
                ..self.clone()
            })
        })
    }

    /// Returns the bytes of shared memory of a block.
    pub(crate) fn shared_bytes(&self, slots: usize) -> u32 {
        let totals = (self.count * slots * 8) as u32;
        match self.place {
            Place::Private => totals * THREADS,
            Place::OfBlock => totals,
            Place::Counted => 4 * self.count as u32,
            Place::Registers | Place::OfAll | Place::Hashed | Place::Listed => 0,
        }
    }
}

/// Returns the number of rows that are returned at most, of this many.
pub(crate) fn listed_max(rows: u64, totals: &[Total]) -> u64 {
    list_max(rows, totals, false)
}

/// Returns the number of rows that a list may have, of this many: those that are returned, or also others.
fn list_max(rows: u64, totals: &[Total], lists_all: bool) -> u64 {
    let (bytes, most) = match lists_all {
        // Rows have numbers of 32 bits.
        true => (TOTALS_BYTES_MAX, u32::MAX.into()),
        false => (LISTED_BYTES_MAX, u64::MAX),
    };
    let of_bytes = bytes / (8 + 8 * group_words(totals) as u64);
    rows.clamp(1, of_bytes.min(most))
}

/// Returns the number of slots that a hash table of the groups of this many rows may have in this many bytes.
fn slots_max(rows: u64, totals: &[Total], room: u64) -> usize {
    let of_bytes = room.min(TOTALS_BYTES_MAX) / (8 + 8 * group_words(totals) as u64);
    let of_rows = capacity(rows).unwrap_or(SLOTS_MAX);
    // A power of two, as the others are.
    of_rows.min(1 << of_bytes.max(2).ilog2()) as usize
}

/// Returns the values that are marked, and the table from all numbers to those of these values.
fn renumbered(count: usize, marked: Marked, marks: &[u32]) -> (Vec<u64>, Vec<u32>) {
    let is_marked = |number: &usize| {
        let word = marks.get(marked.first + number / 32);
        let bit = word.is_some_and(|word| word >> (number % 32) & 1 == 1);
        bit || marked.unmatched == Some(*number)
    };
    let kept: Vec<u64> = (0..count).filter(is_marked).map(|it| it as u64).collect();
    let mut table = vec![0; count.max(1)];
    for (new, old) in kept.iter().enumerate() {
        table[*old as usize] = new as u32;
    }
    (kept, table)
}
