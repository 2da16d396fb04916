//! Median, smallest, largest: what is reported of repeated measurements.

use std::time::{Duration, Instant};

/// A summary of repeated measurements, in whatever unit they were taken.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// The middle measurement, or the mean of the two in the middle.
    pub median: f64,
    /// The smallest measurement.
    pub min: f64,
    /// The largest measurement.
    pub max: f64,
    /// How many measurements there were.
    pub count: usize,
}

impl Summary {
    /// Summarises `samples`; `None` if there are none.
    pub fn of(samples: &[f64]) -> Option<Summary> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let upper = sorted.len() / 2;
        let lower = (sorted.len() - 1) / 2;
        Some(Summary {
            median: f64::midpoint(sorted[lower], sorted[upper]),
            min,
            max,
            count: sorted.len(),
        })
    }

    /// A single measurement.
    pub fn once(sample: f64) -> Summary {
        Summary {
            median: sample,
            min: sample,
            max: sample,
            count: 1,
        }
    }
}

/// A duration in milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// When to stop repeating a measurement: after `count` runs, or earlier once `budget` is spent (but never before one).
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    /// Runs wanted.
    pub count: usize,
    /// Time after which no further run is begun.
    pub budget: Duration,
}

impl Repeat {
    /// Whether another run should follow `done` runs that began at `start`.
    pub fn goes_on(&self, done: usize, start: Instant) -> bool {
        done == 0 || (done < self.count && start.elapsed() < self.budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_count_is_the_mean_of_the_middle_two() {
        let summary = Summary::of(&[4.0, 1.0, 3.0, 2.0]).expect("four samples");
        assert_eq!(
            summary,
            Summary {
                median: 2.5,
                min: 1.0,
                max: 4.0,
                count: 4
            }
        );
    }

    #[test]
    fn one_sample_is_its_own_median_and_none_has_no_summary() {
        assert_eq!(Summary::of(&[7.0]), Some(Summary::once(7.0)));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_measurement_runs_at_least_once_whatever_its_budget() {
        let repeat = Repeat {
            count: 5,
            budget: Duration::ZERO,
        };
        assert!(repeat.goes_on(0, Instant::now()));
        assert!(!repeat.goes_on(1, Instant::now()));
    }
}
