//! Ranks: numbers that order as rows or groups do. Of those that come first, kernels count how many have a rank in
//! each of a number of intervals, until it is known which ranks are wanted.

/// Intervals of ranks that are counted, as in `select.cuh`.
pub(crate) const INTERVALS: usize = 1 << BITS_OF_COUNT;
/// Bits of a rank that a count tells.
const BITS_OF_COUNT: u32 = 12;

/// Ranks from the first on, in intervals of `2^shift`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ranks {
    pub(crate) first: u64,
    /// The first rank behind them.
    pub(crate) end: u64,
    pub(crate) shift: u32,
}

/// The ranks that are wanted, and how many rows or groups have them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Selected {
    pub(crate) ranks: Ranks,
    pub(crate) count: u64,
}

/// A search for the greatest ranks.
#[derive(Debug)]
pub(crate) struct Search {
    /// What is to be counted.
    pub(crate) ranks: Ranks,
    /// The first number that is no rank.
    end: u64,
    /// How many are wanted, and how many more may be selected.
    wanted: u64,
    more: u64,
    /// How many have greater ranks than those that are counted.
    above: u64,
}

impl Search {
    /// Begins a search for the `wanted` greatest ranks of this many bits, or all.
    pub(crate) fn new(bits: u32, wanted: Option<u64>, more: u64) -> Search {
        let end = 1 << bits;
        Search {
            ranks: Ranks {
                first: 0,
                end,
                shift: bits.saturating_sub(BITS_OF_COUNT),
            },
            end,
            wanted: wanted.unwrap_or(u64::MAX),
            more,
            above: 0,
        }
    }

    /// Returns the ranks that are wanted, from the numbers of each interval; `None` if [`ranks`](Self::ranks) are to be
    /// counted next.
    pub(crate) fn found(&mut self, counts: &[u64]) -> Option<Selected> {
        let (mut interval, mut count, mut last) = (counts.len(), self.above, 0);
        while interval > 0 && count < self.wanted {
            interval -= 1;
            last = counts[interval];
            count += last;
        }
        let first = self.ranks.first + ((interval as u64) << self.ranks.shift);
        let is_enough = count <= self.wanted.saturating_add(self.more);
        if is_enough || self.ranks.shift == 0 {
            let ranks = Ranks {
                first,
                end: self.end,
                shift: 0,
            };
            return Some(Selected { ranks, count });
        }
        self.above = count - last;
        self.ranks = Ranks {
            first,
            end: first + (1 << self.ranks.shift),
            shift: self.ranks.shift.saturating_sub(BITS_OF_COUNT),
        };
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the numbers of each interval of ranks.
    fn counts(all: &[u64], ranks: Ranks) -> Vec<u64> {
        let mut counts = vec![0; INTERVALS];
        for rank in all {
            if (ranks.first..ranks.end).contains(rank) {
                counts[((rank - ranks.first) >> ranks.shift) as usize] += 1;
            }
        }
        counts
    }

    fn searched(all: &[u64], bits: u32, wanted: Option<u64>) -> Selected {
        let mut search = Search::new(bits, wanted, 2);
        loop {
            if let Some(selected) = search.found(&counts(all, search.ranks)) {
                return selected;
            }
        }
    }

    #[test]
    fn the_greatest_ranks_are_found() {
        let all: Vec<u64> = (0..10_000)
            .map(|it| it * it * 1_000_003 % (1 << 40))
            .collect();
        let mut sorted = all.clone();
        sorted.sort_unstable();
        for wanted in [1, 2, 10, 777, 9_999, 10_000, 20_000] {
            let selected = searched(&all, 40, Some(wanted));
            let has = all.iter().filter(|it| **it >= selected.ranks.first);
            assert_eq!(has.count() as u64, selected.count);
            let least = wanted.min(10_000);
            assert!((least..=wanted + 2).contains(&selected.count));
            let last = sorted[sorted.len() - least as usize];
            assert!(selected.ranks.first <= last);
        }
    }

    #[test]
    fn equal_ranks_are_all_found() {
        for bits in [0, 1, 12, 13, 62] {
            let rank = (1_u64 << bits) - 1;
            let selected = searched(&[rank; 100], bits, Some(3));
            assert_eq!(selected.count, 100);
        }
        assert_eq!(searched(&[], 62, Some(3)).count, 0);
        assert_eq!(searched(&[4; 9], 32, None).count, 9);
    }
}
