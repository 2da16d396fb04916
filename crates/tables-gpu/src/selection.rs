//! What the plan above an aggregate keeps of its groups, and the kernel that selects these.
//!
//! A query may have a hundred million groups and return ten. The operators above the aggregate still run on the CPU:
//! the kernel selects at least the groups that they keep.

use std::fmt::Write;
use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::scalar::ScalarValue;
use forebay_device::cuda::{Program, ProgramSpec};

use crate::constants;
use crate::engine::{KernelLaunch, Launch};
use crate::launches::InMemory;
use crate::program::{Column, Float, Output, Total, WIDE_PART_BITS, group_words};
use crate::ranks::{INTERVALS, Ranks, Search, Selected};
use crate::reason::Reason;
use crate::source::{headers, options};
use crate::value::Kind;

/// Groups of a thread in a tile, as in `select.cuh`.
pub(crate) const GROUPS_OF_THREAD: u32 = 8;
/// Bytes of the counts of all intervals.
pub(crate) const COUNTS_BYTES: usize = 4 * INTERVALS;
/// Bits of a rank.
const RANK_BITS: u32 = 32;
/// Groups that may be selected besides those that are wanted, before they are counted in smaller intervals.
const MORE_MAX: u64 = 1 << 10;

/// Code that writes the totals of a group.
const WRITE_TOTALS: &str = "write_totals(f, to, number, group);";

/// Constants in front of the numbers of conditions, as in `select.cuh`.
const CONSTANTS: usize = 5;

/// A condition on an aggregate.
#[derive(Debug, Clone)]
pub(crate) struct Condition {
    /// Index of the aggregate.
    pub(crate) aggregate: usize,
    pub(crate) operator: Operator,
    /// The number that the aggregate is compared with, an expression without columns. Scalar subqueries in it are
    /// constants when kernels are written.
    pub(crate) value: Arc<dyn PhysicalExpr>,
    /// How many digits behind the point the number has more than the aggregate.
    pub(crate) exponent: u32,
}

impl Condition {
    /// Returns the number with which the aggregate's number, an integer, is compared.
    ///
    /// # Errors
    /// If the value is of another type, or cannot be computed.
    fn number(&self) -> Result<i128, Reason> {
        let value = match constants::value(&self.value).map_err(Reason::of)? {
            ScalarValue::Int64(value) => value.map(i128::from),
            ScalarValue::UInt64(value) => value.map(i128::from),
            ScalarValue::Decimal128(value, ..) => value,
            other => return Err(Reason::new(format!("groups cannot be selected by {other}"))),
        };
        let power = 10_i128.pow(self.exponent);
        // Beyond all decimals, so that the condition holds for none.
        let beyond = match self.operator {
            Operator::Gt | Operator::GtEq => i128::MAX,
            _ => i128::MIN,
        };
        Ok(match (self.operator, value) {
            (_, None) => beyond,
            (Operator::Eq, Some(value)) if value.rem_euclid(power) > 0 => beyond,
            (Operator::Lt | Operator::GtEq, Some(value)) => -(-value).div_euclid(power),
            (_, Some(value)) => value.div_euclid(power),
        })
    }
}

/// The groups that are the first in an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Top {
    /// Index of the aggregate that is ordered first.
    pub(crate) aggregate: usize,
    pub(crate) is_descending: bool,
    pub(crate) has_nulls_first: bool,
    pub(crate) count: u64,
}

/// What the plan above an aggregate keeps of its groups.
#[derive(Debug, Clone, Default)]
pub(crate) struct Selection {
    pub(crate) conditions: Vec<Condition>,
    /// Whether these are all conditions of the filter above, which has no limit.
    pub(crate) is_complete: bool,
    pub(crate) top: Option<Top>,
}

/// The kernel that selects groups.
#[derive(Debug)]
pub(crate) struct Selecting {
    program: Program,
    /// The source that tells which groups are selected.
    head: String,
    /// The numbers of the conditions.
    numbers: Vec<i128>,
    /// How many groups are wanted, if not all.
    wanted: Option<u64>,
}

/// Returns the code of a value of the group `group`, of a sum of floats a number that orders as it does, and of whether
/// it is not NULL.
fn value_of(column: &Column, totals: &[Total]) -> Option<(String, String)> {
    let word = |slot: usize| format!("group[{}]", totals[slot].word);
    let number = |slot: usize| match totals[slot].is_wide {
        true => format!(
            "wide_constant({}, group[{}])",
            word(slot),
            totals[slot].word + 1
        ),
        false => format!("static_cast<i64>({})", word(slot)),
    };
    let is_some = |rows: usize| format!("{} != 0", word(rows));
    match column.output {
        Output::Count(slot) | Output::Unsigned(slot) => Some((number(slot), "true".to_owned())),
        Output::Sum(slot, rows) => Some((number(slot), is_some(rows))),
        Output::Parts { ref slots, rows } => {
            // What could have more bits wraps.
            let (min, max) = column.bounds;
            Kind::of(min, max)?;
            let parts = slots.iter().enumerate();
            let parts = parts.map(|(index, slot)| {
                let shift = index * usize::from(WIDE_PART_BITS);
                format!("(static_cast<u128>({}) << {shift})", number(*slot))
            });
            let sum = parts.collect::<Vec<_>>().join(" + ");
            Some((format!("static_cast<i128>({sum})"), is_some(rows)))
        }
        Output::Max(slot, rows) if totals[slot].is_wide => {
            Some((wide_plain(totals[slot], ""), is_some(rows)))
        }
        Output::Min(slot, rows) if totals[slot].is_wide => {
            Some((wide_plain(totals[slot], "~"), is_some(rows)))
        }
        Output::Max(slot, rows) => Some((format!("plain({})", word(slot)), is_some(rows))),
        Output::Min(slot, rows) => Some((format!("plain(~{})", word(slot)), is_some(rows))),
        Output::Float(Float::Decimals {
            sum,
            rows,
            exponent,
        }) => {
            let power = 10_f64.powi(exponent as i32);
            let order = format!("order_of_decimals({}, {power:?})", number(sum));
            Some((order, is_some(rows)))
        }
        Output::Float(Float::Sum { slots, rows, .. }) => {
            let [high, middle, low] = slots.map(number);
            let order = format!("order_of_floats({high}, {middle}, {low})");
            Some((order, is_some(rows)))
        }
        Output::Some(_) | Output::Float(Float::Moment { .. }) => None,
    }
}

/// Returns the code of a maximum of two words of the group `group`; `~` before each if it is a minimum.
fn wide_plain(total: Total, sign: &str) -> String {
    let (first, second) = (total.word, total.word + 1);
    format!("of_halves(plain({sign}group[{first}]), static_cast<i64>({sign}group[{second}]))")
}

impl Selecting {
    /// Writes the kernel for groups with these totals. `outputs` are the states of each aggregate. For each number
    /// that all rows of a group must share, `same` has the slots of its total, and of that of its complement.
    ///
    /// # Errors
    /// If an aggregate of the selection is not one of the totals.
    pub(crate) fn new(
        selection: &Selection,
        outputs: &[Vec<Column>],
        (totals, same): (&[Total], &[[usize; 2]]),
    ) -> Result<Selecting, Reason> {
        let value = |aggregate: usize| {
            let value = match outputs[aggregate].as_slice() {
                [state] => value_of(state, totals),
                _ => None,
            };
            let text = "groups cannot be selected by an average, or a sum that may overflow";
            value.ok_or_else(|| Reason::new(text))
        };
        // The first total is the number of rows.
        let mut selected = format!("group[{}] != 0", totals[0].word);
        for slots in same {
            let [number, complement] = slots.map(|slot| totals[slot].word);
            let _ = write!(
                selected,
                " && has_one_number(f, group[{number}], group[{complement}])"
            );
        }
        let mut numbers = Vec::new();
        for condition in &selection.conditions {
            let (value, is_some) = value(condition.aggregate)?;
            let sign = match condition.operator {
                Operator::Eq => "==",
                Operator::Lt => "<",
                Operator::LtEq => "<=",
                Operator::Gt => ">",
                Operator::GtEq => ">=",
                other => return Err(Reason::new(format!("groups cannot be selected by {other}"))),
            };
            let constant = 2 * (CONSTANTS + numbers.len());
            let _ = write!(
                selected,
                " && {is_some} && static_cast<i128>({value}) {sign} wide_constant(f.constants[{constant}], f.constants[{}])",
                constant + 1
            );
            numbers.push(condition.number()?);
        }
        let top = selection.top.as_ref();
        let ranked = top.map(|top| Ok((top, value(top.aggregate)?)));
        let ranked = ranked.transpose()?;
        let rank = match &ranked {
            None => "0".to_owned(),
            Some((top, (value, is_some))) => {
                let rank = match top.is_descending {
                    true => format!("1 + rank_of({value})"),
                    false => format!("(1u << 31) - rank_of({value})"),
                };
                let of_null = if top.has_nulls_first {
                    "(1u << 31) + 1"
                } else {
                    "0"
                };
                format!("{is_some} ? {rank} : {of_null}")
            }
        };
        let wanted = ranked.map(|(top, _)| top.count);
        let head = head(&selected, &rank, totals);
        Ok(Selecting {
            program: Program::new(spec(&head, WRITE_TOTALS)),
            head,
            numbers,
            wanted,
        })
    }

    /// Returns the source of the kernel.
    pub(crate) fn source(&self) -> String {
        self.writing_as(WRITE_TOTALS).source.to_string()
    }

    /// Returns whether all groups are selected.
    pub(crate) fn keeps_all(&self) -> bool {
        self.numbers.is_empty() && self.wanted.is_none()
    }

    /// Begins a search for the groups that are selected.
    pub(crate) fn search(&self) -> Search {
        Search::new(RANK_BITS, self.wanted, MORE_MAX)
    }

    /// Adds the kernel that counts groups of these ranks to a launch.
    pub(crate) fn count(&self, ranks: Ranks, launch: &mut Launch, groups: u32, totals: &InMemory) {
        let kernel = self.kernel(ranks, None, groups, totals);
        launch.kernels.push(kernel);
        launch.results_bytes = launch.results_bytes.max(COUNTS_BYTES);
    }

    /// Returns the source of the kernel that writes the groups in another way. `write` is code that writes group
    /// `number` as the one of index `to`.
    pub(crate) fn writing_as(&self, write: &str) -> ProgramSpec {
        spec(&self.head, write)
    }

    /// Returns the constants of a kernel that writes the groups that are selected.
    pub(crate) fn constants(&self, selected: Selected) -> Vec<i128> {
        self.constants_of(selected.ranks, Some(selected.count))
    }

    fn constants_of(&self, ranks: Ranks, written: Option<u64>) -> Vec<i128> {
        let first: [i128; CONSTANTS] = [
            ranks.first.into(),
            ranks.end.into(),
            ranks.shift.into(),
            written.unwrap_or(0).into(),
            written.is_some().into(),
        ];
        first.iter().chain(&self.numbers).copied().collect()
    }

    fn kernel(
        &self,
        ranks: Ranks,
        written: Option<u64>,
        groups: u32,
        totals: &InMemory,
    ) -> KernelLaunch {
        let constants = self.constants_of(ranks, written);
        KernelLaunch {
            groups,
            shared_bytes: 4 * INTERVALS as u32,
            totals: Some(totals.address),
            own_keys: totals.keys,
            own_slice: totals.slice,
            are_groups_read: true,
            ..KernelLaunch::new(self.program.clone(), constants)
        }
    }

    /// Returns the launch that writes the groups that are selected, of as many groups with totals of as many words.
    pub(crate) fn writing(
        &self,
        selected: Selected,
        (groups, words): (u32, usize),
        totals: &InMemory,
        waits: bool,
    ) -> Launch {
        let count = selected.count as usize;
        let kernel = self.kernel(selected.ranks, Some(selected.count), groups, totals);
        Launch {
            kernels: vec![kernel],
            results_bytes: 8 * (1 + count * (1 + words)),
            memory: vec![totals.memory.clone()],
            ..Launch::new(waits)
        }
    }
}

/// Returns the numbers of groups in each interval of ranks, from what the kernel has counted.
pub(crate) fn counts(results: &[u8]) -> Vec<u64> {
    let counts = results.as_chunks::<4>().0.iter().take(INTERVALS);
    counts.map(|it| u32::from_le_bytes(*it).into()).collect()
}

/// Returns the functions that tell which groups are selected.
fn head(selected: &str, rank: &str, totals: &[Total]) -> String {
    let mut text = String::from("#include \"hash.cuh\"\n");
    let threads = crate::program::THREADS;
    let _ = writeln!(text, "constexpr u32 kThreads = {threads};");
    let _ = writeln!(text, "constexpr u32 kGroupWords = {};", group_words(totals));
    let functions = [
        (
            "bool is_selected(const Fragment& f, const u64* group)",
            selected,
        ),
        ("u32 rank_of_group(const u64* group)", rank),
    ];
    text += "__device__ inline u32 rank_of(i128 value);\n";
    for (head, result) in functions {
        let _ = writeln!(
            text,
            "__device__ inline {head} {{\n    return {result};\n}}"
        );
    }
    text + "#include \"select.cuh\"\n"
}

fn spec(head: &str, write: &str) -> ProgramSpec {
    let arguments = "const Fragment& f, u64 to, u64 number, const u64* group";
    let text =
        format!("{head}__device__ inline void write_group({arguments}) {{\n    {write}\n}}\n");
    ProgramSpec {
        name: "tables/select.cu".to_owned(),
        source: text.into(),
        headers: headers(),
        options: options(),
        entries: vec!["fragment".to_owned()],
    }
}

#[cfg(test)]
mod tests {
    use datafusion::physical_expr::expressions::Literal;

    use super::*;

    fn holds<T: Ord>(operator: Operator, left: T, right: T) -> bool {
        match operator {
            Operator::Eq => left == right,
            Operator::Lt => left < right,
            Operator::LtEq => left <= right,
            Operator::Gt => left > right,
            Operator::GtEq => left >= right,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_condition_on_integers_is_that_on_decimals() {
        use Operator::{Eq, Gt, GtEq, Lt, LtEq};
        for operator in [Eq, Lt, LtEq, Gt, GtEq] {
            for exponent in [0, 1, 2] {
                let number = |value: Option<i128>| {
                    let value = ScalarValue::Decimal128(value, 38, 6);
                    let condition = Condition {
                        aggregate: 0,
                        operator,
                        value: Arc::new(Literal::new(value)),
                        exponent,
                    };
                    condition.number().expect("a number")
                };
                for aggregate in -4..=4 {
                    let decimal = aggregate * 10_i128.pow(exponent);
                    for value in -310..=310 {
                        assert_eq!(
                            holds(operator, aggregate, number(Some(value))),
                            holds(operator, decimal, value),
                            "{aggregate} {operator} {value} / 10^{exponent}"
                        );
                    }
                    assert!(!holds(operator, aggregate, number(None)));
                }
            }
        }
    }
}
