//! Limits of lists: of the rows, the plan above keeps a number of any, or those that are first in an order.
//!
//! A sort with a limit stays on the CPU, above the list. Each row has a rank, and a greater rank if it comes first. A
//! kernel counts the rows in intervals of ranks; the list then has at least the rows that the sort keeps.

use std::sync::Arc;

use datafusion::arrow::compute::SortOptions;
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::sorts::sort::SortExec;

use crate::constants::is_constant;
use crate::expression::Code;
use crate::figures::Figures;
use crate::fragment::{Fragment, of_tables, sorted_by};
use crate::groups::{Groups, listed_max};
use crate::order::SortWord;
use crate::ordinal::Ordinal;
use crate::ranks::{INTERVALS, Ranks, Search};
use crate::reason::Reason;
use crate::value::Kind;
use crate::window::Window;
use crate::work::{Ready, Work};

type Result<T> = std::result::Result<T, Reason>;

/// Rows that may be listed besides those that are wanted, before they are counted in smaller intervals.
const MORE_MAX: u64 = if cfg!(test) { 8 } else { 1 << 14 };
/// Maximum number of ranks.
const RANKS_MAX: u128 = 1 << 62;
/// Maximum bits of a rank that leaves out bits of its number: it has the leading ones.
const BITS_OF_RANK: u32 = 61;

/// The rows of a list that the plan above keeps at most.
#[derive(Debug, Clone, Default)]
pub(crate) enum Limit {
    #[default]
    None,
    /// This many, of any.
    Any(u64),
    /// Those that are first.
    First {
        by: Vec<PhysicalSortExpr>,
        count: u64,
    },
}

impl Limit {
    /// Returns how many rows are wanted, if not all.
    pub(crate) fn count(&self) -> Option<u64> {
        match self {
            Limit::None => None,
            Limit::Any(count) | Limit::First { count, .. } => Some(*count),
        }
    }

    /// Returns how many rows are wanted, if any of them are.
    pub(crate) fn enough(&self) -> Option<u64> {
        match self {
            Limit::Any(count) => Some(*count),
            Limit::None | Limit::First { .. } => None,
        }
    }

    /// Returns the expressions that rows are ordered by.
    pub(crate) fn exprs(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        let by = match self {
            Limit::First { by, .. } => by.as_slice(),
            Limit::None | Limit::Any(_) => &[],
        };
        by.iter().map(|it| &it.expr)
    }

    /// Returns the expressions that rows are ordered by.
    pub(crate) fn exprs_mut(&mut self) -> impl Iterator<Item = &mut Arc<dyn PhysicalExpr>> {
        let by = match self {
            Limit::First { by, .. } => by.as_mut_slice(),
            Limit::None | Limit::Any(_) => &mut [],
        };
        by.iter_mut().map(|it| &mut it.expr)
    }
}

/// The ranks of rows in generated code.
#[derive(Debug)]
pub(crate) struct Ranking {
    /// The code of the rank of a row.
    rank: String,
    /// Number of ranks.
    count: u64,
    /// Indexes of the constants that are the first rank, the number of ranks from it on, and the binary logarithm of
    /// the ranks of an interval.
    constants: [usize; 3],
    wanted: u64,
}

/// The rank of a row by one expression: it is greater if the row comes first.
struct Rank {
    /// The code: of 128 bits if there are more than 2^64 ranks, otherwise of 64.
    code: String,
    /// Number of ranks.
    count: u128,
    /// Whether rows of equal ranks have equal values.
    is_exact: bool,
}

impl Ranking {
    /// Returns the lines that leave out a row whose rank is not wanted, and that number its interval.
    pub(crate) fn lines(&self) -> [String; 4] {
        let [first, count, shift] = self.constants.map(|it| format!("f.constants[{}]", 2 * it));
        [
            format!("const u64 rank = {};", self.rank),
            format!("const u64 distance = rank - {first};"),
            format!("if (distance >= {count}) return;"),
            format!("const Totals::Key key = static_cast<Totals::Key>(distance >> {shift});"),
        ]
    }

    /// Returns a search for the ranks of the rows that are wanted, and of as many more.
    fn search(&self, more: u64) -> Search {
        let bits = u64::BITS - self.count.saturating_sub(1).leading_zeros();
        Search::new(bits, Some(self.wanted), more)
    }

    /// Returns the constants of a kernel for these ranks.
    fn constants_of(&self, ranks: Ranks) -> Vec<(usize, i128)> {
        let numbers = [
            ranks.first.into(),
            i128::from(ranks.end) - i128::from(ranks.first),
            ranks.shift.into(),
        ];
        self.constants.into_iter().zip(numbers).collect()
    }
}

impl Fragment {
    /// Returns the fragment with at least the rows that a sort with a limit keeps.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn of_first(sort: &SortExec) -> Result<Fragment> {
        let rows = of_tables(sort.input())?;
        let count = sort
            .fetch()
            .ok_or_else(|| Reason::new("a sort of all rows"))? as u64;
        let mut by = sorted_by(sort.expr().iter(), &rows)?;
        // What is equal in all rows orders none.
        by.retain(|it| !is_constant(&it.expr));
        let limit = match by.is_empty() {
            true => Limit::Any(count),
            false => Limit::First { by, count },
        };
        Ok(Fragment::listed(rows, limit, None))
    }
}

impl Code<'_, '_> {
    /// Declares the ranks of rows.
    ///
    /// # Errors
    /// If kernels cannot compute what rows are ordered by first.
    pub(crate) fn ranking(&mut self, by: &[PhysicalSortExpr], wanted: u64) -> Result<Ranking> {
        let mut all = self.rank(&by[0], RANKS_MAX)?;
        for by in &by[1..] {
            // Rows of equal ranks are all in the list, or none of them.
            if !all.is_exact {
                break;
            }
            let Ok(next) = self.rank(by, RANKS_MAX) else {
                break;
            };
            let count = all.count.checked_mul(next.count);
            let Some(count) = count.filter(|it| *it <= RANKS_MAX) else {
                break;
            };
            let of_next = self.unsigned(next.count, false)?;
            all = Rank {
                code: format!("({}) * {of_next} + {}", all.code, next.code),
                count,
                is_exact: next.is_exact,
            };
        }
        let mut constant = || self.draft.uses.constant(0);
        Ok(Ranking {
            rank: all.code,
            count: all.count as u64,
            constants: [constant()?, constant()?, constant()?],
            wanted,
        })
    }

    /// Declares the words that order the rows of a window.
    ///
    /// # Errors
    /// If kernels cannot compute what rows are sorted by.
    pub(crate) fn sort_words(&mut self, window: &Window) -> Result<Vec<SortWord>> {
        let mut words: Vec<SortWord> = Vec::new();
        for (index, by) in window.by.iter().enumerate() {
            if is_constant(&by.expr) {
                // What is equal in all rows orders none.
                continue;
            }
            for (code, bits) in self.sort_parts(by)? {
                self.add_word(&mut words, code, bits)?;
                let word = words.last_mut().expect("one was pushed");
                if index < window.of_partition {
                    word.not_of_partition = 0;
                }
                if index < window.of_peers {
                    word.not_of_peers = 0;
                }
            }
        }
        Ok(words)
    }

    /// Declares what orders rows by one expression: one or two numbers of at most 64 bits. Returns the code and the
    /// bits of each.
    fn sort_parts(&mut self, by: &PhysicalSortExpr) -> Result<Vec<(String, u32)>> {
        let rank = self.rank(by, u128::MAX)?;
        let bits = u128::BITS - (rank.count - 1).leading_zeros();
        let is_wide = bits > u64::BITS;
        // A rank is greater if the row comes first; words are sorted in ascending order.
        let last = self.unsigned(rank.count - 1, is_wide)?;
        let code = format!("({last} - ({}))", rank.code);
        if !is_wide {
            return Ok(vec![(code, bits)]);
        }
        let both = self.declare(Kind::Huge, &format!("static_cast<i128>{code}"));
        Ok(vec![
            (format!("static_cast<u64>({both} >> 64)"), bits - u64::BITS),
            (format!("static_cast<u64>({both})"), u64::BITS),
        ])
    }

    /// Adds a number of this many bits to the words that order rows.
    fn add_word(&mut self, words: &mut Vec<SortWord>, code: String, bits: u32) -> Result<()> {
        match words.last_mut() {
            Some(word) if word.bits + bits <= u64::BITS => {
                let shift = 2 * self.draft.uses.constant(bits.into())?;
                // C++ does not define a shift of 64 bits; a word without bits needs none.
                if word.bits > 0 {
                    word.code = format!("({} << f.constants[{shift}] | {code})", word.code);
                } else {
                    word.code = code;
                }
                word.bits += bits;
                word.not_of_partition += bits;
                word.not_of_peers += bits;
            }
            _ => words.push(SortWord {
                code,
                bits,
                not_of_partition: bits,
                not_of_peers: bits,
            }),
        }
        Ok(())
    }

    /// Declares the rank of a row by one expression: exact if there are at most `most` ranks.
    fn rank(&mut self, by: &PhysicalSortExpr, most: u128) -> Result<Rank> {
        let mut value = match self.value(&by.expr) {
            Ok(value) => value,
            Err(reason) => {
                let ordinal = Arc::new(Ordinal::new(Arc::clone(&by.expr)));
                self.value(&(ordinal as _)).map_err(|_| reason)?
            }
        };
        if value.kind == Kind::Float {
            value = self.bits_of(&value);
        }
        let SortOptions {
            descending,
            nulls_first,
        } = by.options;
        let mut largest = value.max.abs_diff(value.min);
        let of_null = u128::from(value.valid.is_some());
        let is_exact = largest + 1 + of_null <= most;
        let is_wide = largest + of_null > u128::from(u64::MAX);
        let number = match (value.kind, is_wide) {
            (Kind::Bool, _) => format!("static_cast<u64>({})", value.text),
            (_, false) => format!("static_cast<u64>({})", value.widened(Kind::Large)),
            (_, true) => format!("static_cast<u128>({})", value.widened(Kind::Huge)),
        };
        let mut distance = match descending {
            true => {
                let first = self.unsigned(value.min.cast_unsigned(), is_wide)?;
                format!("({number} - {first})")
            }
            false => {
                let last = self.unsigned(value.max.cast_unsigned(), is_wide)?;
                format!("({last} - {number})")
            }
        };
        if !is_exact {
            let bits = u128::BITS - largest.leading_zeros();
            let shift = bits.saturating_sub(BITS_OF_RANK);
            let by_shift = self.unsigned(shift.into(), false)?;
            distance = format!("static_cast<u64>({distance} >> {by_shift})");
            largest >>= shift;
        }
        let (code, count) = match (value.valid, nulls_first) {
            (None, _) => (distance, largest + 1),
            (Some(valid), true) => {
                let of_null = self.unsigned(largest + 1, is_wide && is_exact)?;
                let code = format!("({valid} ? {distance} : {of_null})");
                (code, largest + 2)
            }
            (Some(valid), false) => (format!("({valid} ? {distance} + 1 : 0ull)"), largest + 2),
        };
        Ok(Rank {
            code,
            count,
            is_exact,
        })
    }

    /// Returns the code of an unsigned constant: of 128 bits if it `is_wide`, otherwise of its lower 64 bits.
    fn unsigned(&mut self, number: u128, is_wide: bool) -> Result<String> {
        let low = 2 * self.draft.uses.constant(number.cast_signed())?;
        let high = low + 1;
        Ok(match is_wide {
            true => {
                format!("static_cast<u128>(wide_constant(f.constants[{low}], f.constants[{high}]))")
            }
            false => format!("f.constants[{low}]"),
        })
    }
}

impl Work {
    /// Returns a list with room for the rows that are first in an order, from the numbers of rows in intervals of
    /// ranks.
    ///
    /// # Errors
    /// If these are too many, or a device cannot count them.
    pub(crate) async fn first(
        &self,
        ready: &Ready,
        ranking: &Ranking,
        figures: &mut Figures,
    ) -> Result<Groups> {
        // To count again is to read rows on the disk again.
        let room = listed_max(u64::MAX, &ready.compiled.totals).saturating_sub(ranking.wanted);
        let more = match ready.rows().is_on_disk() {
            true => room,
            false => room.min(MORE_MAX),
        };
        let mut search = ranking.search(more);
        loop {
            let counted = Groups::counted(ranking.constants_of(search.ranks));
            let found = self.of_groups(ready, &counted, figures).await?;
            let counts = found
                .ran
                .results()
                .as_chunks::<8>()
                .0
                .iter()
                .take(INTERVALS);
            let counts: Vec<u64> = counts.map(|it| u64::from_le_bytes(*it)).collect();
            let Some(selected) = search.found(&counts) else {
                continue;
            };
            let mut groups = Groups::list_of(selected.count, &ready.compiled.totals)?;
            groups.constants = ranking.constants_of(selected.ranks);
            return Ok(groups);
        }
    }
}
