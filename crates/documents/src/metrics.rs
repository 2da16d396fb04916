//! Counters of searches. Counting takes a few atomic additions and no lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_text::Tier;

use crate::search::NotUsed;

/// The source of a search's documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnsweredBy {
    /// The cache of field values.
    Cache,
    /// Ordinary indexes.
    Index,
    /// A scan of the collection.
    Scan,
}

impl AnsweredBy {
    /// Returns the name that logs, metrics and the status page use.
    pub fn name(self) -> &'static str {
        match self {
            AnsweredBy::Cache => "cache",
            AnsweredBy::Index => "index",
            AnsweredBy::Scan => "scan",
        }
    }
}

/// The category in which a search is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// The source of the documents.
    pub answered_by: AnsweredBy,
    /// The matching tier with which the cache compared values. `None` if the cache compared no values, as in a test for
    /// null.
    pub tier: Option<Tier>,
}

impl Kind {
    /// Returns all categories.
    pub fn all() -> impl Iterator<Item = Kind> {
        let kind = |answered_by| move |tier| Kind { answered_by, tier };
        let tiers = Tier::ALL.into_iter().map(Some).chain([None]);
        let others = [AnsweredBy::Index, AnsweredBy::Scan];
        tiers
            .map(kind(AnsweredBy::Cache))
            .chain(others.map(|answered_by| kind(answered_by)(None)))
    }

    /// Returns the tier's name, or `none` if no value was compared.
    pub fn tier_name(&self) -> &'static str {
        self.tier.map_or("none", Tier::name)
    }

    fn place(&self) -> Option<usize> {
        Kind::all().position(|kind| kind == *self)
    }
}

/// Number of categories.
const KINDS: usize = Tier::ALL.len() + 3;

/// Counts of durations in ranges.
#[derive(Debug, Default)]
pub struct Histogram {
    counts: [AtomicU64; Histogram::BOUNDS_US.len() + 1],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Upper bounds of the ranges in microseconds. The last range is unbounded.
    pub const BOUNDS_US: [u64; 16] = [
        50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
        1_000_000, 2_500_000, 10_000_000,
    ];

    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let ns = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
        let range = Histogram::BOUNDS_US.partition_point(|bound_us| bound_us * 1_000 < ns);
        self.counts[range].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn figures(&self) -> Durations {
        Durations {
            counts: self
                .counts
                .each_ref()
                .map(|count| count.load(Ordering::Relaxed)),
            sum: Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)),
        }
    }
}

/// The counts of a [`Histogram`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Durations {
    /// Number of durations in each range of [`Histogram::BOUNDS_US`]. The last element counts those beyond the last
    /// bound.
    pub counts: [u64; Histogram::BOUNDS_US.len() + 1],
    /// Sum of all durations.
    pub sum: Duration,
}

impl Durations {
    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// Counters of searches.
#[derive(Debug, Default)]
pub struct Metrics {
    durations: [Histogram; KINDS],
    not_used: [AtomicU64; NotUsed::NAMES.len()],
    rows: AtomicU64,
    bytes: AtomicU64,
    slow: AtomicU64,
    failed: AtomicU64,
}

/// A snapshot of the `Metrics`.
#[derive(Debug, Clone)]
pub struct SearchFigures {
    /// Durations of searches, by category.
    pub durations: Vec<(Kind, Durations)>,
    /// Number of searches that did not use the cache, for each reason.
    pub not_used: Vec<(&'static str, u64)>,
    /// Number of cache rows that searches have scanned.
    pub rows: u64,
    /// Number of cache bytes that searches have scanned.
    pub bytes: u64,
    /// Number of searches that were logged as slow.
    pub slow: u64,
    /// Number of searches that ended with an error.
    pub failed: u64,
}

impl Metrics {
    /// Counts a search.
    pub fn count(&self, kind: Kind, took: Duration) {
        if let Some(place) = kind.place() {
            self.durations[place].observe(took);
        }
    }

    /// Counts the reason why a search did not use the cache.
    pub fn count_not_used(&self, reason: &NotUsed) {
        self.not_used[reason.place()].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the rows and bytes of the cache that a search scanned.
    pub fn count_scanned(&self, rows: u64, bytes: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts a search that is logged as slow.
    pub fn count_slow(&self) {
        self.slow.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a search that ended with an error.
    pub fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn figures(&self) -> SearchFigures {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let durations = self.durations.iter().map(Histogram::figures);
        SearchFigures {
            durations: Kind::all().zip(durations).collect(),
            not_used: NotUsed::NAMES
                .into_iter()
                .zip(self.not_used.iter().map(load))
                .collect(),
            rows: load(&self.rows),
            bytes: load(&self.bytes),
            slow: load(&self.slow),
            failed: load(&self.failed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_fall_into_the_range_that_ends_with_them() {
        let histogram = Histogram::default();
        for us in [0, 50, 51, 10_000_000, 10_000_001] {
            histogram.observe(Duration::from_micros(us));
        }
        let figures = histogram.figures();
        assert_eq!(figures.counts[..3], [2, 1, 0]);
        assert_eq!(figures.counts[15..], [1, 1]);
        assert_eq!(
            (figures.count(), figures.sum),
            (5, Duration::from_micros(20_000_102))
        );
    }

    #[test]
    fn each_kind_has_its_place() {
        assert_eq!(Kind::all().count(), KINDS);
        let metrics = Metrics::default();
        for (times, kind) in (1..).zip(Kind::all()) {
            (0..times).for_each(|_| metrics.count(kind, Duration::ZERO));
        }
        let counts = metrics.figures().durations;
        for (times, (kind, durations)) in (1..).zip(counts) {
            assert_eq!(durations.count(), times, "{kind:?}");
        }
    }
}
