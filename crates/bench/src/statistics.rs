//! Median, minimum and maximum of repeated measurements.

use std::time::{Duration, Instant};

/// A summary of repeated measurements, in the unit of the measurements.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Middle measurement, or the mean of the two middle ones.
    pub median: f64,
    /// Smallest measurement.
    pub min: f64,
    /// Largest measurement.
    pub max: f64,
    /// Number of measurements.
    pub count: usize,
}

impl Summary {
    /// Summarises `samples`. Returns `None` if it is empty.
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

    /// Returns the summary of a single measurement.
    pub fn once(sample: f64) -> Summary {
        Summary {
            median: sample,
            min: sample,
            max: sample,
            count: 1,
        }
    }
}

/// Converts a duration to milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// When to stop repeating a measurement: after `count` runs, or once the time `budget` has passed. At least one run is
/// made.
#[derive(Clone, Copy, Debug)]
pub struct Repeat {
    /// Maximum runs.
    pub count: usize,
    /// Time after which no further run starts.
    pub budget: Duration,
}

impl Repeat {
    /// Returns whether another run should follow after `done` runs, the first of which began at `start`.
    pub fn continues(&self, done: usize, start: Instant) -> bool {
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
        assert!(repeat.continues(0, Instant::now()));
        assert!(!repeat.continues(1, Instant::now()));
    }
}
