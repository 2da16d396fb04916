//! The kernels of a fragment, and what the totals of the last mean.

use std::collections::HashMap;

use datafusion::arrow::datatypes::DataType;

use crate::comments;
use crate::determined::Determined;
use crate::draft::Draft;
use crate::expression::{Code, Function};
use crate::floats::Parts;
use crate::fragment::{Exprs, Fragment};
use crate::groups::{Groups, Key, LastMarked, Needed, Place, Values};
use crate::joined::{MATCHES_MAX, TURNS_MAX};
use crate::keys::DeterminedKey;
use crate::limit::{Limit, Ranking};
use crate::order::{Order, OrderSlots, SortWord};
use crate::reason::Reason;
use crate::scanned::Scanned;
use crate::selection::Selecting;
use crate::skipped::Counting;
use crate::source::{Ending, Kernel};
use crate::turns::LastTurns;
use crate::uses::CURSORS_MAX;
use crate::variance::Distances;
use crate::window::{Frame, Function as OfWindow, Window};

type Result<T> = std::result::Result<T, Reason>;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;
/// Rows of a tile for each thread, as in `columns.cuh`.
pub(crate) const ROWS_OF_THREAD: u32 = 8;

/// Where a row is in its table: a number that is greater for a later row.
const PLACE: &str = "c.place + 32 * i";

const _: () = assert!((THREADS * ROWS_OF_THREAD) as usize == crate::packed::TILE_ROWS);

/// A total of each group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    /// The condition under which a row counts, and what is added.
    code: String,
    added: Added,
}

impl Slot {
    /// A slot that the kernels of a window fill, or the one behind a maximum of two words. No row adds to it.
    const COMPUTED: Slot = Slot {
        code: String::new(),
        added: Added::Maximum,
    };

    /// Returns the line of the kernel, with the number of the slot.
    fn line(&self, index: usize) -> String {
        self.code.replace("SLOT", &index.to_string()) + ";"
    }
}

/// A total of each group in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Total {
    pub(crate) is_maximum: bool,
    /// Index of its first word of 64 bits in those of the group.
    pub(crate) word: usize,
    /// Whether it has two words.
    pub(crate) is_wide: bool,
}

/// Returns the number of words of a group with these totals.
pub(crate) fn group_words(totals: &[Total]) -> usize {
    let last = totals.last();
    last.map_or(0, |it| it.word + 1 + usize::from(it.is_wide))
}

/// A float that is made of totals; the numbers are those of slots.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Float {
    /// A sum of floats; NULL if the number of rows is 0.
    Sum {
        slots: [usize; 3],
        rows: usize,
        parts: Parts,
    },
    /// A sum of integers that a power of ten divides; NULL if the number of rows is 0.
    Decimals {
        sum: usize,
        rows: usize,
        exponent: u32,
    },
    /// The mean, or else the sum of the squares of differences from it; 0 without rows. The slots are those of the sums
    /// of distances and of both halves of their squares.
    Moment {
        is_mean: bool,
        slots: [usize; 3],
        rows: usize,
        distances: Distances,
    },
}

/// What a column of the result is made of: indexes of slots.
#[derive(Debug, Clone)]
pub(crate) enum Output {
    /// A number of rows.
    Count(usize),
    /// The same, unsigned.
    Unsigned(usize),
    /// A number of rows; NULL instead of 0.
    Some(usize),
    /// A sum; NULL if the number of rows in the second slot is 0.
    Sum(usize, usize),
    /// A sum in parts, the lowest first, each of [`WIDE_PART_BITS`]; NULL if the number of rows is 0.
    Parts {
        slots: Vec<usize>,
        rows: usize,
    },
    Float(Float),
    /// The largest value, and the number of rows.
    Max(usize, usize),
    /// The smallest value, and the number of rows.
    Min(usize, usize),
}

/// Bits of a part of a sum in parts: the sums of a block have 64.
pub(crate) const WIDE_PART_BITS: u8 = 40;

/// A column of the result.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) output: Output,
    pub(crate) data_type: DataType,
    /// Smallest and largest number.
    pub(crate) bounds: (i128, i128),
    /// The values, if the numbers are ordinals.
    pub(crate) values: Option<Values>,
}

/// The kernels of a fragment.
#[derive(Debug)]
pub(crate) struct Compiled {
    /// The kernel that adds the totals. Those that fill the tables of its joins run before.
    pub(crate) kernel: Kernel,
    /// The keys of the groups that no other keys determine; the first changes slowest.
    pub(crate) keys: Vec<Key>,
    /// The others, by their index among all keys.
    pub(crate) determined: HashMap<usize, Determined>,
    /// Number of words with marks of values of keys.
    pub(crate) mark_words: usize,
    /// The totals of a group. The first is its number of rows.
    pub(crate) totals: Vec<Total>,
    /// The states of each aggregate or window function.
    pub(crate) outputs: Vec<Vec<Column>>,
    /// The kernel that sorts the rows of a list and computes window functions; `None` if there is no window.
    pub(crate) order: Option<Order>,
    /// The kernel that selects groups.
    pub(crate) selecting: Selecting,
    /// Largest absolute value that a row adds to a sum.
    pub(crate) addend_max: u128,
    /// Number of rows of the first source, and of rows after the joins at most.
    rows: u64,
    rows_max: u64,
    /// Whether each row is returned, and how many are enough.
    is_listed: bool,
    enough: Option<u64>,
    /// The ranks of rows, if those that are first are wanted.
    pub(crate) ranking: Option<Ranking>,
    /// The total that tells where a row is in its table, if rows have the order of the table.
    pub(crate) place: Option<usize>,
    /// What the groups needed the last time.
    pub(crate) needed: Needed,
    /// The chunks of which rows may count.
    pub(crate) counting: Counting,
    /// What the kernels of joins marked in the last run.
    pub(crate) last_marked: LastMarked,
    /// The slices of tables of joins that the last run has divided.
    pub(crate) last_turns: LastTurns,
}

/// The group of a row, in generated code.
pub(crate) struct Group {
    pub(crate) number: String,
    /// The keys whose values give the number.
    pub(crate) keys: Vec<Key>,
    /// Number of words with marks of their values.
    pub(crate) mark_words: usize,
    /// If the number is a fingerprint: the keys of the fragment that it stands for, with their indexes.
    pub(crate) told: Vec<(usize, DeterminedKey)>,
}

/// How rows change a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Added {
    /// It is the largest value.
    Maximum,
    /// The same with two words, of which the first is the upper.
    WideMaximum,
    /// It is a sum, to which a row adds a number of at most this absolute value.
    UpTo(u128),
}

/// The slots of a kernel while its code is written.
pub(crate) struct Slots<'k, 'a> {
    pub(crate) code: Code<'k, 'a>,
    slots: Vec<Slot>,
    /// The sums of floats, by the variable of the value and the condition.
    pub(crate) float_sums: HashMap<(String, Option<String>), Output>,
    pub(crate) addend_max: u128,
    pub(crate) rows: u64,
    /// Whether the function has the group of the row, so that a total is added as soon as it has a slot.
    has_group: bool,
    /// Index of the first slot that equal totals share. Earlier slots are not reused.
    first_shared: usize,
}

impl Compiled {
    /// Writes the kernels of a fragment over the columns of its sources.
    ///
    /// # Errors
    /// Why the GPU cannot compute the fragment.
    pub(crate) fn new(fragment: &Fragment, scanned: &[Scanned]) -> Result<Compiled> {
        Compiled::written(fragment, scanned, false)
    }

    /// Writes the kernels with the plan as comments, to be printed. The comments name columns and constants, so that
    /// queries of one shape would not share a compiled kernel.
    ///
    /// # Errors
    /// Why the GPU cannot compute the fragment.
    pub(crate) fn with_comments(fragment: &Fragment, scanned: &[Scanned]) -> Result<Compiled> {
        Compiled::written(fragment, scanned, true)
    }

    fn written(fragment: &Fragment, scanned: &[Scanned], has_comments: bool) -> Result<Compiled> {
        let mut draft = Draft::new(&fragment.rows, scanned, has_comments);
        let (rows, rows_max, steps) = (draft.scanned.rows, draft.rows_max(), draft.steps()?);
        let mut slots = Slots::new(&mut draft, fragment, rows_max);
        let are_determined = fragment.determined();
        let of = (&fragment.keys, &*are_determined);
        let group = match fragment.seed {
            0 => slots.group(of)?,
            seed => slots.fingerprint(of, seed)?,
        };
        slots.slot(None, "1".to_owned(), Added::UpTo(1));
        // Ranks are computed for all rows, so that their columns are the first to get cursors.
        let ranking = match &fragment.limit {
            Limit::First { by, count } => Some(slots.code.ranking(by, *count)?),
            Limit::None | Limit::Any(_) => None,
        };
        let words = slots.sort_slots(fragment)?;
        slots.code.draft.uses.may_look_up = fragment.is_listed;
        let of_list = fragment
            .is_listed
            .then_some((&*group.number, ranking.as_ref()));
        let mut determined = slots.determined(of, of_list)?;
        let same = slots.told(group.told, &mut determined);
        let place = fragment.has_order_of_table();
        let place = place.then(|| slots.slot(None, PLACE.to_owned(), Added::Maximum));
        let (outputs, of_window) = slots.outputs(fragment, words)?;
        let addend_max = slots.addend_max;
        let (all, mut add) = slots.added(&group.number, ranking.as_ref());
        if has_comments {
            comments::add(&mut add, all.len(), fragment, (&outputs, &determined));
        }
        let totals = totals_of(&all, rows_max);
        let ending = Ending {
            totals: totals.clone(),
            add,
            words: Vec::new(),
            common_word: None,
            is_unique: false,
            is_hashed: false,
            repeats: false,
            tells_of_all: false,
        };
        Ok(Compiled {
            kernel: Kernel::new(draft, steps, &ending)?,
            keys: group.keys,
            determined,
            mark_words: group.mark_words,
            order: Order::of(fragment.window.as_ref().zip(of_window), &totals)?,
            selecting: Selecting::new(&fragment.selection, &outputs, (&totals, &same))?,
            totals,
            outputs,
            addend_max,
            rows,
            rows_max,
            is_listed: fragment.is_listed,
            enough: fragment.limit.enough(),
            ranking,
            place,
            needed: Needed::default(),
            counting: Counting::default(),
            last_marked: LastMarked::default(),
            last_turns: LastTurns::default(),
        })
    }

    /// Returns the maximum number of rows that the joins of a kernel add in a block to those that it reads.
    pub(crate) fn matches_max(&self) -> u64 {
        // The loops of several joins may each take one more turn before they end.
        let of_thread = u64::from(ROWS_OF_THREAD * TURNS_MAX) + 2 * u64::from(ROWS_OF_THREAD) * 64;
        let of_block = u64::from(THREADS) * of_thread;
        // Threads may not have counted their last.
        (self.rows_max - self.rows)
            .min(2 * MATCHES_MAX)
            .min(of_block)
    }

    /// Returns whether the list has all rows of window functions, of which few may be returned.
    fn lists_all(&self) -> bool {
        self.order.as_ref().is_some_and(Order::has_functions)
    }

    /// Returns whether a join repeats rows.
    pub(crate) fn repeats(&self) -> bool {
        self.kernel.builds.iter().any(|it| it.repeats)
    }

    /// Returns the groups, from the marks of the kernels that store rows of joins.
    ///
    /// # Errors
    /// If the combinations of several keys need more than 62 bits.
    pub(crate) fn groups(&self, marks: Option<&[u32]>) -> Result<Groups> {
        let mut groups = match self.is_listed {
            true => {
                let rows = (self.rows, self.rows_max);
                Groups::listed(&self.totals, rows, self.enough, self.lists_all())
            }
            false => Groups::new(&self.keys, &self.totals, (self.rows, self.rows_max), marks)?,
        };
        let rows = self.rows.saturating_add(self.matches_max());
        let largest = self.addend_max.saturating_mul(rows.into());
        if self.repeats() && largest >= 1 << 63 && groups.place.is_of_blocks() {
            // Totals of all blocks have 128 bits.
            groups.place = Place::OfAll;
        }
        if groups.place == Place::Hashed || self.is_listed {
            let known = groups.count.max(self.needed.slots());
            groups.count = known.min(groups.enough.unwrap_or(usize::MAX));
        }
        Ok(groups)
    }
}

/// Returns the totals of a group that this many rows may be added to.
fn totals_of(slots: &[Slot], rows: u64) -> Vec<Total> {
    let mut word = 0;
    let totals = slots.iter().map(|slot| {
        let largest = |addend_max: u128| addend_max.checked_mul(rows.into());
        let (is_maximum, is_wide) = match slot.added {
            Added::Maximum => (true, false),
            Added::WideMaximum => (true, true),
            Added::UpTo(most) => (false, largest(most).is_none_or(|it| it >= 1 << 63)),
        };
        let total = Total {
            is_maximum,
            word,
            is_wide,
        };
        word += 1 + usize::from(total.is_wide);
        total
    });
    totals.collect()
}

impl<'k, 'a> Slots<'k, 'a> {
    /// Begins the function that adds a row, of at most `rows`.
    fn new(draft: &'k mut Draft<'a>, fragment: &Fragment, rows: u64) -> Slots<'k, 'a> {
        let mut slots = Slots {
            code: Code::new(draft),
            slots: Vec::new(),
            float_sums: HashMap::new(),
            addend_max: 0,
            rows,
            has_group: false,
            first_shared: 0,
        };
        if !fragment.rows.joins.is_empty() || fragment.is_listed {
            // Joins, and conditions of lists, leave few rows, so that most warps have none.
            let lines = &mut slots.code.function.lines;
            lines.push("if (!is_wanted) return;".to_owned());
        }
        slots
    }

    /// Returns the slots, and the function that adds a row to the totals of its group.
    fn added(mut self, group: &str, ranking: Option<&Ranking>) -> (Vec<Slot>, Function) {
        if !self.has_group {
            self.begin_group(group, ranking);
        }
        (self.slots, self.code.function)
    }

    /// Writes the group of the row, and what is added to its totals so far.
    fn begin_group(&mut self, group: &str, ranking: Option<&Ranking>) {
        let lines = &mut self.code.function.lines;
        if let Some(ranking) = ranking {
            lines.extend(ranking.lines());
        } else {
            lines.push(format!("const Totals::Key key = {group};"));
        }
        lines.push("if (!is_wanted) return;".to_owned());
        lines.push("const u32 group = totals.group_of(f, key);".to_owned());
        lines.push("if (Totals::kMayBeFull && group == kNoSlot) return;".to_owned());
        let slots = self.slots.iter().enumerate();
        lines.extend(slots.map(|(index, slot)| slot.line(index)));
        self.has_group = true;
    }

    /// Declares the group of a row, by the keys that no others determine.
    fn group(&mut self, (keys, are_determined): (&Exprs, &[bool])) -> Result<Group> {
        let mut group = String::from("0");
        let (mut all, mut mark_words) = (Vec::new(), 0);
        let keys = keys.iter().enumerate();
        for key in keys.filter(|(index, _)| !are_determined[*index]) {
            let (number, key) = self.code.group_key(key, mark_words)?;
            if key.marked.is_some() {
                mark_words += key.values.len().div_ceil(32);
            }
            group = match all.is_empty() {
                true => format!("static_cast<Totals::Key>({number})"),
                false => format!(
                    "({group}) * static_cast<Totals::Key>(f.constants[{}]) + static_cast<Totals::Key>({number})",
                    2 * key.count
                ),
            };
            all.push(key);
        }
        Ok(Group {
            number: group,
            keys: all,
            mark_words,
            told: Vec::new(),
        })
    }

    /// Returns the keys that other keys determine. All rows of a group have the same number of each.
    fn determined(
        &mut self,
        (keys, are_determined): (&Exprs, &[bool]),
        of_list: Option<(&str, Option<&Ranking>)>,
    ) -> Result<HashMap<usize, Determined>> {
        let is_wide = of_list.is_some() && keys.len() > CURSORS_MAX;
        let keys = keys.iter().enumerate();
        let keys = keys.filter(|(index, _)| are_determined[*index]);
        let determined = keys.map(|(index, key)| {
            if let Some((group, ranking)) = of_list
                && !self.has_group
                && self.code.draft.uses.columns.len() >= CURSORS_MAX
            {
                // The values of a wide row have no room in registers. Each is stored before the next is read.
                self.begin_group(group, ranking);
            }
            let key = self
                .code
                .determined_key(key, (of_list.is_some(), is_wide))?;
            Ok((index, self.kept(key)))
        });
        determined.collect()
    }

    /// Adds totals that keep a key, which is the same in all rows of a group.
    pub(crate) fn kept(&mut self, key: DeterminedKey) -> Determined {
        let mut slot = |number: String| {
            let number = format!("static_cast<u64>({number})");
            self.slot(None, number, Added::Maximum)
        };
        Determined {
            values: key.values,
            slot: slot(key.number),
            upper: key.upper.map(&mut slot),
            valid: key.valid.map(slot),
        }
    }

    /// Returns the slot of a total, a new one unless there is one of the same code.
    pub(crate) fn slot(&mut self, condition: Option<&str>, value: String, added: Added) -> usize {
        let call = match added {
            Added::Maximum => "raise",
            Added::WideMaximum => "raise_wide",
            Added::UpTo(_) => "add",
        };
        let call = format!("totals.{call}(group, SLOT, {value})");
        let slot = Slot {
            code: match condition {
                Some(condition) => format!("if ({condition}) {call}"),
                None => call,
            },
            added,
        };
        let mut shared = self.slots[self.first_shared..].iter();
        let known = shared.position(|it| *it == slot);
        if let Some(index) = known {
            return self.first_shared + index;
        }
        let index = self.push(slot);
        if added == Added::WideMaximum {
            // Where a block has the second word.
            self.push(Slot::COMPUTED);
        }
        index
    }

    /// Adds a slot, and returns its index.
    fn push(&mut self, slot: Slot) -> usize {
        let index = self.slots.len();
        if self.has_group {
            self.code.function.lines.push(slot.line(index));
        }
        self.slots.push(slot);
        index
    }

    /// Declares the words that the rows of a window are sorted by. Returns each word with its slot.
    fn sort_slots(&mut self, fragment: &Fragment) -> Result<Vec<(SortWord, usize)>> {
        let words = fragment.window.as_ref();
        let words = words.map(|window| self.code.sort_words(window));
        let words = words.transpose()?.unwrap_or_default().into_iter();
        let slots = words.map(|word| {
            let slot = self.slot(None, word.code.clone(), Added::Maximum);
            (word, slot)
        });
        Ok(slots.collect())
    }

    /// Returns the columns behind the keys, and the slots that the kernels of a window use.
    fn outputs(
        &mut self,
        fragment: &Fragment,
        words: Vec<(SortWord, usize)>,
    ) -> Result<(Vec<Vec<Column>>, Option<OrderSlots>)> {
        if let Some(window) = &fragment.window {
            let (outputs, slots) = self.window(fragment, window, words)?;
            return Ok((outputs, Some(slots)));
        }
        let aggregates = fragment.aggregates.iter();
        let outputs = aggregates.map(|it| self.aggregate(it));
        Ok((outputs.collect::<Result<_>>()?, None))
    }

    /// Returns the columns of window functions, and the slots that their kernels use. Until these run, the totals of
    /// a row are those of the row alone.
    ///
    /// # Errors
    /// If kernels do not compute an aggregate.
    fn window(
        &mut self,
        fragment: &Fragment,
        window: &Window,
        words: Vec<(SortWord, usize)>,
    ) -> Result<(Vec<Vec<Column>>, OrderSlots)> {
        let first = self.slots.len();
        self.first_shared = first;
        let aggregates = fragment.aggregates.iter().map(|it| self.aggregate(it));
        let mut aggregates = aggregates.collect::<Result<Vec<_>>>()?;
        let mut slots = OrderSlots {
            words,
            states: first..self.slots.len(),
            ..OrderSlots::default()
        };
        if window.frame != Frame::Rows && !aggregates.is_empty() {
            slots.start = Some(self.push(Slot::COMPUTED));
        }
        let rows = (0, self.rows.into());
        let columns = window.functions.iter().map(|function| {
            let slot = match function {
                OfWindow::Aggregate(index) => return std::mem::take(&mut aggregates[*index]),
                OfWindow::RowNumber => &mut slots.row_number,
                OfWindow::Rank => &mut slots.rank,
                OfWindow::DenseRank => &mut slots.dense_rank,
            };
            let slot = *slot.get_or_insert_with(|| self.push(Slot::COMPUTED));
            vec![Column {
                output: Output::Unsigned(slot),
                data_type: DataType::UInt64,
                bounds: rows,
                values: None,
            }]
        });
        Ok((columns.collect(), slots))
    }
}
