//! The kernels of a fragment, and what the totals of the last mean.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::physical_expr::PhysicalExpr;

use crate::comments;
use crate::determined::Determined;
use crate::draft::Draft;
use crate::expression::{Code, Function};
use crate::floats::{PART_MAX, Parts};
use crate::fragment::{Aggregate, Exprs, Fragment};
use crate::groups::{Groups, Key, LastMarked, Needed, Place};
use crate::limit::{Limit, Ranking};
use crate::reason::Reason;
use crate::scanned::Scanned;
use crate::selection::Selecting;
use crate::skipped::Counting;
use crate::source::{Ending, Kernel};
use crate::uses::CURSORS_MAX;
use crate::value::{Kind, Value};
use crate::variance::{
    DISTANCE_MAX, Distances, HALF_BITS, ROWS_MAX, VARIANCES, decimals, integers,
};

type Result<T> = std::result::Result<T, Reason>;

/// Threads of a block.
pub(crate) const THREADS: u32 = 256;
/// Rows of a tile for each thread, as in `columns.cuh`.
pub(crate) const ROWS_OF_THREAD: u32 = 8;
/// Sums of integers up to this are exact as floats.
const FLOAT_MAX: u128 = 1 << 53;

/// Where a row is in its table: a number that is greater for a later row.
const PLACE: &str = "c.place + 32 * i";

const _: () = assert!((THREADS * ROWS_OF_THREAD) as usize == crate::packed::TILE_ROWS);

/// A total of each group.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Slot {
    /// The condition under which a row counts, and what is added.
    code: String,
    is_maximum: bool,
    /// Largest absolute value that a row adds.
    addend_max: u128,
}

impl Slot {
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
    Float(Float),
    /// The largest value, and the number of rows.
    Max(usize, usize),
    /// The smallest value, and the number of rows.
    Min(usize, usize),
}

/// A column of the result.
#[derive(Debug, Clone)]
pub(crate) struct Column {
    pub(crate) output: Output,
    pub(crate) data_type: DataType,
    /// Smallest and largest number.
    pub(crate) bounds: (i128, i128),
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
    /// The states of each aggregate.
    pub(crate) outputs: Vec<Vec<Column>>,
    /// The kernel that selects groups.
    pub(crate) selecting: Selecting,
    /// Largest absolute value that a row adds to a sum.
    pub(crate) addend_max: u128,
    /// Number of rows of the first source.
    rows: u64,
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
}

/// How rows change a total.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Added {
    /// It is the largest value.
    Maximum,
    /// It is a sum, to which a row adds a number of at most this absolute value.
    UpTo(u128),
}

/// The slots of a kernel while its code is written.
struct Slots<'k, 'a> {
    code: Code<'k, 'a>,
    slots: Vec<Slot>,
    /// The sums of floats, by the variable of the value and the condition.
    float_sums: HashMap<(String, Option<String>), Output>,
    addend_max: u128,
    rows: u64,
    /// Whether the function has the group of the row, so that a total is added as soon as it has a slot.
    has_group: bool,
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
        let rows = draft.scanned.rows;
        let steps = draft.steps()?;
        let mut slots = Slots {
            code: Code::new(&mut draft),
            slots: Vec::new(),
            float_sums: HashMap::new(),
            addend_max: 0,
            rows,
            has_group: false,
        };
        if !fragment.rows.joins.is_empty() || fragment.is_listed {
            // Joins, and conditions of lists, leave few rows, so that most warps have none.
            let lines = &mut slots.code.function.lines;
            lines.push("if (!is_wanted) return;".to_owned());
        }
        let are_determined = fragment.determined();
        let (group, keys, mark_words) = slots.group(&fragment.keys, &are_determined)?;
        slots.slot(None, "1".to_owned(), Added::UpTo(1));
        // Ranks are computed for all rows, so that their columns are the first to get cursors.
        let ranking = match &fragment.limit {
            Limit::First { by, count } => Some(slots.code.ranking(by, *count)?),
            Limit::None | Limit::Any(_) => None,
        };
        slots.code.draft.uses.may_look_up = fragment.is_listed;
        let of_list = fragment.is_listed.then_some((&*group, ranking.as_ref()));
        let determined = slots.determined((&fragment.keys, &are_determined), of_list)?;
        let place = fragment.has_order_of_table();
        let place = place.then(|| slots.slot(None, PLACE.to_owned(), Added::Maximum));
        let aggregates = fragment.aggregates.iter();
        let outputs = aggregates.map(|it| slots.aggregate(it));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        let addend_max = slots.addend_max;
        let (all, mut add) = slots.added(&group, ranking.as_ref());
        if has_comments {
            comments::add(&mut add, all.len(), fragment, (&outputs, &determined));
        }
        let totals = totals_of(&all, rows);
        let ending = Ending {
            totals: totals.clone(),
            add,
            words: Vec::new(),
            common_word: None,
            is_unique: false,
            is_hashed: false,
        };
        Ok(Compiled {
            kernel: Kernel::new(draft, steps, &ending)?,
            keys,
            determined,
            mark_words,
            selecting: Selecting::new(&fragment.selection, &outputs, &totals)?,
            totals,
            outputs,
            addend_max,
            rows,
            is_listed: fragment.is_listed,
            enough: match fragment.limit {
                Limit::Any(count) => Some(count),
                Limit::None | Limit::First { .. } => None,
            },
            ranking,
            place,
            needed: Needed::default(),
            counting: Counting::default(),
            last_marked: LastMarked::default(),
        })
    }

    /// Returns the groups, from the marks of the kernels that store rows of joins.
    ///
    /// # Errors
    /// If the combinations of their keys need more than 62 bits.
    pub(crate) fn groups(&self, marks: Option<&[u32]>) -> Result<Groups> {
        let mut groups = match self.is_listed {
            true => Groups::listed(&self.totals, self.rows, self.enough),
            false => Groups::new(&self.keys, &self.totals, self.rows, marks)?,
        };
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
        let largest = slot.addend_max.checked_mul(rows.into());
        let total = Total {
            is_maximum: slot.is_maximum,
            word,
            is_wide: largest.is_none_or(|it| it >= 1 << 63),
        };
        word += 1 + usize::from(total.is_wide);
        total
    });
    totals.collect()
}

impl Slots<'_, '_> {
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

    /// Declares the group of a row. Returns its number, the keys that no others determine, and the number of words with
    /// marks of their values.
    fn group(
        &mut self,
        keys: &Exprs,
        are_determined: &[bool],
    ) -> Result<(String, Vec<Key>, usize)> {
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
        Ok((group, all, mark_words))
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
            let (number, values, valid) = self
                .code
                .determined_key(key, (of_list.is_some(), is_wide))?;
            let mut slot = |number: String| {
                let number = format!("static_cast<u64>({number})");
                self.slot(None, number, Added::Maximum)
            };
            let determined = Determined {
                values,
                slot: slot(number),
                valid: valid.map(slot),
            };
            Ok((index, determined))
        });
        determined.collect()
    }

    /// Returns the slot of a total, a new one unless there is one of the same code.
    fn slot(&mut self, condition: Option<&str>, value: String, added: Added) -> usize {
        let (call, addend_max) = match added {
            Added::Maximum => ("raise", 0),
            Added::UpTo(addend_max) => ("add", addend_max),
        };
        let call = format!("totals.{call}(group, SLOT, {value})");
        let slot = Slot {
            code: match condition {
                Some(condition) => format!("if ({condition}) {call}"),
                None => call,
            },
            is_maximum: added == Added::Maximum,
            addend_max,
        };
        let known = self.slots.iter().position(|it| *it == slot);
        known.unwrap_or_else(|| {
            let index = self.slots.len();
            if self.has_group {
                self.code.function.lines.push(slot.line(index));
            }
            self.slots.push(slot);
            index
        })
    }

    fn aggregate(&mut self, aggregate: &Aggregate) -> Result<Vec<Column>> {
        let scanned = self.code.draft.scanned;
        let function = &aggregate.function;
        let name = function.fun().name();
        if function.is_distinct() || !function.order_bys().is_empty() {
            return Err(Reason::new(format!("{name} of distinct or ordered values")));
        }
        let filter = aggregate.filter.as_ref();
        let filter = filter.map(|it| self.code.condition(it)).transpose()?;
        let filter = filter.map(|it| match it.valid {
            Some(valid) => self
                .code
                .declare(Kind::Bool, &format!("{} & {valid}", it.text)),
            None => it.text,
        });
        let [argument] = aggregate.arguments.as_slice() else {
            return Err(Reason::new(format!("{name} of several values")));
        };
        let types = function.state_fields().map_err(Reason::of)?;
        let types: Vec<DataType> = types.iter().map(|it| it.data_type().clone()).collect();
        let column = |output, index: usize, bounds| Column {
            output,
            data_type: types[index].clone(),
            bounds,
        };
        if name == "count" && aggregate.is_of_states {
            let value = self.code.value(argument)?;
            let sum = self.sum(&value, value.valid.as_deref());
            let largest = i128::try_from(self.largest(&value)).unwrap_or(i128::MAX);
            return Ok(vec![column(Output::Count(sum), 0, (0, largest))]);
        }
        if name == "count" {
            let rows = self.counted(argument, filter.as_deref(), scanned)?;
            return Ok(vec![column(Output::Count(rows), 0, self.of_counts())]);
        }
        self.of_numbers(argument, filter.as_deref(), (name, &types), column)
    }

    /// Returns the bounds of a number of rows.
    fn of_counts(&self) -> (i128, i128) {
        (0, self.rows.into())
    }

    /// Returns the states of an aggregate of numbers, which has this name and states of these types.
    fn of_numbers(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        (name, types): (&str, &[DataType]),
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        if VARIANCES.contains(&name) && types.len() == 3 {
            return self.variance(argument, filter, column);
        }
        let integers = integers(argument, self.code.draft.scanned);
        let is_float = integers.is_some() && matches!(types.last(), Some(DataType::Float64));
        let argument = integers.filter(|_| name == "avg").unwrap_or(argument);
        let value = self.code.value(argument)?;
        if value.kind == Kind::Float {
            return self.of_floats((argument, &value), filter, (name, types), column);
        }
        if value.kind == Kind::Huge || value.kind == Kind::Bool {
            return Err(Reason::new(format!("{name} of {argument}")));
        }
        let of_values = (value.min, value.max);
        let largest = i128::try_from(self.largest(&value)).unwrap_or(i128::MAX);
        let of_sums = (-largest, largest);
        let rows = self.rows_of(&value, filter);
        let kept = self.condition(&value, filter);
        let large = value.widened(Kind::Large);
        match (name, types) {
            ("sum", [DataType::Int64 | DataType::Decimal128(..)]) => {
                let sum = self.sum(&value, kept.as_deref());
                self.check_integers(&value, &types[0])?;
                Ok(vec![column(Output::Sum(sum, rows), 0, of_sums)])
            }
            ("avg", [DataType::UInt64, DataType::Decimal128(..)]) => {
                let sum = self.sum(&value, kept.as_deref());
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(Output::Sum(sum, rows), 1, of_sums)])
            }
            ("avg", [DataType::UInt64, DataType::Float64]) if is_float => {
                if self.largest(&value) >= FLOAT_MAX {
                    return Err(Reason::new("an average of integers may be rounded"));
                }
                let sum = Float::Decimals {
                    sum: self.sum(&value, kept.as_deref()),
                    rows,
                    exponent: 0,
                };
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(Output::Float(sum), 1, of_sums)])
            }
            ("min", [_]) => {
                let value = format!("~ordered({large})");
                let slot = self.slot(kept.as_deref(), value, Added::Maximum);
                Ok(vec![column(Output::Min(slot, rows), 0, of_values)])
            }
            ("max", [_]) => {
                let value = format!("ordered({large})");
                let slot = self.slot(kept.as_deref(), value, Added::Maximum);
                Ok(vec![column(Output::Max(slot, rows), 0, of_values)])
            }
            _ => Err(Reason::new(format!("{name} of {argument}"))),
        }
    }

    /// Returns the states of an aggregate of floats, as [`Slots::of_numbers`] does.
    fn of_floats(
        &mut self,
        (argument, value): (&Arc<dyn PhysicalExpr>, &Value),
        filter: Option<&str>,
        (name, types): (&str, &[DataType]),
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        let not_finite = || Reason::new(format!("{name} of floats that may be infinite or NaN"));
        let largest = value.largest_float().ok_or_else(not_finite)?;
        let rows = self.rows_of(value, filter);
        let kept = self.condition(value, filter);
        match (name, types) {
            ("min" | "max", [_]) => {
                let bits = self.code.bits_of(value).text;
                let (code, output): (_, fn(usize, usize) -> Output) = match name {
                    "min" => (format!("~ordered({bits})"), Output::Min),
                    _ => (format!("ordered({bits})"), Output::Max),
                };
                let slot = self.slot(kept.as_deref(), code, Added::Maximum);
                let bounds = (value.min, value.max);
                Ok(vec![column(output(slot, rows), 0, bounds)])
            }
            ("sum", [DataType::Float64]) => {
                let sum = self.sum_of_floats(argument, (largest, rows), kept.as_deref())?;
                Ok(vec![column(sum, 0, (0, 0))])
            }
            ("avg", [DataType::UInt64, DataType::Float64]) => {
                let sum = self.sum_of_floats(argument, (largest, rows), kept.as_deref())?;
                let count = column(Output::Some(rows), 0, self.of_counts());
                Ok(vec![count, column(sum, 1, (0, 0))])
            }
            _ => Err(Reason::new(format!("{name} of floats"))),
        }
    }

    /// Declares the integer of an argument that is a column of decimals. Returns it with their exponent. Floats of 32
    /// bits are aggregated as those of 64 bits that they are, which have more digits.
    fn decimals_of(&mut self, argument: &Arc<dyn PhysicalExpr>) -> Result<Option<(Value, u32)>> {
        let schema = &self.code.draft.scanned.schema;
        match argument.data_type(schema).map_err(Reason::of)? {
            DataType::Float64 => self.code.decimals(argument),
            _ => Ok(None),
        }
    }

    /// Returns the states of a variance or a standard deviation.
    fn variance(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        column: impl Fn(Output, usize, (i128, i128)) -> Column,
    ) -> Result<Vec<Column>> {
        let (value, exponent) = match decimals(argument, self.code.draft.scanned) {
            Some((inner, exponent)) => (self.code.value(inner)?, exponent),
            None => {
                let decimals = self.decimals_of(argument)?;
                decimals.ok_or_else(|| Reason::new(format!("a variance of {argument}")))?
            }
        };
        let distance = value.max - value.min;
        if value.kind > Kind::Large || distance > DISTANCE_MAX || self.rows > ROWS_MAX {
            return Err(Reason::new("a variance of numbers that are far apart"));
        }
        let rows = self.rows_of(&value, filter);
        let kept = self.condition(&value, filter);
        let first = value.min as i64;
        let constant = 2 * self.code.draft.uses.constant(first.into())?;
        let text = format!(
            "{} - static_cast<i64>(f.constants[{constant}])",
            value.widened(Kind::Large)
        );
        let text = self.code.declare(Kind::Large, &text);
        // That of NULL may be any number.
        let square =
            format!("static_cast<i64>(static_cast<u64>({text}) * static_cast<u64>({text}))");
        let square = self.code.declare(Kind::Large, &square);
        let low_max = (1_u128 << HALF_BITS) - 1;
        let parts = [
            (text, distance.unsigned_abs()),
            (format!("{square} >> {HALF_BITS}"), low_max),
            (format!("{square} & {low_max}ll"), low_max),
        ];
        let slots = parts.map(|(text, addend_max)| {
            self.addend_max = self.addend_max.max(addend_max);
            self.slot(kept.as_deref(), text, Added::UpTo(addend_max))
        });
        let moment = |is_mean| {
            Output::Float(Float::Moment {
                is_mean,
                slots,
                rows,
                distances: Distances { first, exponent },
            })
        };
        Ok(vec![
            column(Output::Unsigned(rows), 0, self.of_counts()),
            column(moment(true), 1, (0, 0)),
            column(moment(false), 2, (0, 0)),
        ])
    }

    /// Returns the sum of floats of at most this absolute value, whose rows a slot counts.
    fn sum_of_floats(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        (largest, rows): (f64, usize),
        condition: Option<&str>,
    ) -> Result<Output> {
        let decimals = self.decimals_of(argument)?;
        // Those of more digits would leave the 64 bits that a block has for a total.
        let is_small = |it: &(Value, u32)| it.0.largest() <= PART_MAX;
        if let Some((decimals, exponent)) = decimals.filter(is_small) {
            let sum = self.sum(&decimals, condition);
            return Ok(Output::Float(Float::Decimals {
                sum,
                rows,
                exponent,
            }));
        }
        let value = &self.code.value(argument)?;
        let of = (value.text.clone(), condition.map(str::to_owned));
        if let Some(known) = self.float_sums.get(&of) {
            return Ok(known.clone());
        }
        let parts = Parts::of(largest);
        let all = self.code.parts_of(value, (parts, condition))?;
        self.addend_max = self.addend_max.max(PART_MAX);
        let added = Added::UpTo(PART_MAX);
        let sum = Output::Float(Float::Sum {
            slots: all.map(|part| self.slot(condition, part, added)),
            rows,
            parts,
        });
        self.float_sums.insert(of, sum.clone());
        Ok(sum)
    }

    /// Returns the slot of the number of rows in which an argument is not NULL.
    fn counted(
        &mut self,
        argument: &Arc<dyn PhysicalExpr>,
        filter: Option<&str>,
        scanned: &Scanned,
    ) -> Result<usize> {
        let is_null = datafusion::physical_expr::expressions::is_not_null(Arc::clone(argument));
        let literal = argument.downcast_ref::<datafusion::physical_expr::expressions::Literal>();
        let is_some = literal.is_some_and(|it| !it.value().is_null());
        if is_some || !argument.nullable(&scanned.schema).map_err(Reason::of)? {
            return Ok(self.slot(filter, "1".to_owned(), Added::UpTo(1)));
        }
        let valid = self.code.value(&is_null.map_err(Reason::of)?)?;
        let value = Value {
            valid: Some(valid.text.clone()),
            ..valid
        };
        Ok(self.rows_of(&value, filter))
    }

    /// Returns the slot of the number of rows that count for a value.
    fn rows_of(&mut self, value: &Value, filter: Option<&str>) -> usize {
        let condition = self.condition(value, filter);
        self.slot(condition.as_deref(), "1".to_owned(), Added::UpTo(1))
    }

    fn condition(&mut self, value: &Value, filter: Option<&str>) -> Option<String> {
        match (value.valid.as_deref(), filter) {
            (Some(valid), Some(filter)) => {
                let both = format!("{valid} & {filter}");
                Some(self.code.declare(Kind::Bool, &both))
            }
            (one, other) => one.or(other).map(str::to_owned),
        }
    }

    fn sum(&mut self, value: &Value, condition: Option<&str>) -> usize {
        let addend_max = value.largest();
        self.addend_max = self.addend_max.max(addend_max);
        let added = Added::UpTo(addend_max);
        self.slot(condition, value.widened(Kind::Large), added)
    }

    /// Returns the largest absolute value that a sum over all rows may have.
    fn largest(&self, value: &Value) -> u128 {
        value.largest().saturating_mul(self.rows.into())
    }

    /// Checks that a sum of integers does not wrap.
    fn check_integers(&self, value: &Value, data_type: &DataType) -> Result<()> {
        let wraps = *data_type == DataType::Int64 && self.largest(value) >= 1 << 63;
        match wraps {
            true => Err(Reason::new("a sum may leave the range of Int64")),
            false => Ok(()),
        }
    }
}
