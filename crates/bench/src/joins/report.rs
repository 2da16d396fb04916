//! The results of a run: checked, printed and recorded.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use forebay_hash_index::{JoinTotals, Workload};

use crate::record::{Measured, Record};
use crate::results::{ResultArgs, Results};
use crate::statistics::Summary;

/// One join.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample {
    /// Allocation of the table in host memory; `None` if it lies in device memory, which is allocated at start.
    pub(super) allocation: Option<Duration>,
    /// The times of the join.
    pub(super) times: Times,
    /// The matches.
    pub(super) totals: JoinTotals,
}

/// The times of the parts of a join.
#[derive(Clone, Copy, Debug)]
pub(super) enum Times {
    /// One table: emptying it and inserting the build side, then probing.
    Table { build: Duration, probe: Duration },
    /// Partitions: dividing both sides, then building and probing the tables of all partitions.
    Partitions { divide: Duration, join: Duration },
}

impl Sample {
    /// Returns the time of the whole join.
    pub(super) fn time(&self) -> Duration {
        let (Times::Table {
            build: first,
            probe: second,
        }
        | Times::Partitions {
            divide: first,
            join: second,
        }) = self.times;
        first + second
    }

    /// Returns the times of building and probing one table.
    pub(super) fn of_table(&self) -> Option<(Duration, Duration)> {
        match self.times {
            Times::Table { build, probe } => Some((build, probe)),
            Times::Partitions { .. } => None,
        }
    }

    /// Returns the times of dividing and joining partitions.
    fn of_partitions(&self) -> Option<(Duration, Duration)> {
        match self.times {
            Times::Partitions { divide, join } => Some((divide, join)),
            Times::Table { .. } => None,
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    pub(super) name: &'a str,
    pub(super) devices: &'a str,
    pub(super) workload: &'a Workload,
}

/// The results of a run so far.
pub(super) struct Report {
    pub(super) results: Results,
}

/// A quantity of a sample: metric, head of its column, value. `None` if the sample has no such quantity.
type Metric = (
    &'static str,
    &'static str,
    fn(&Sample, &Workload) -> Option<f64>,
);

const METRICS: [Metric; 8] = [
    ("giga_tuples_per_s", "G tuples/s", |sample, workload| {
        let tuples = workload.build_rows + workload.probe_rows;
        Some(giga(tuples, sample.time()))
    }),
    ("probe_giga_tuples_per_s", "probe", |sample, workload| {
        Some(giga(workload.probe_rows, sample.of_table()?.1))
    }),
    ("probe_gb_per_s", "probe GB/s", |sample, workload| {
        let bytes = workload.probe_rows * workload.width.row_bytes();
        Some(giga(bytes, sample.of_table()?.1))
    }),
    ("build_s", "build s", |sample, _| {
        Some(sample.of_table()?.0.as_secs_f64())
    }),
    ("probe_s", "probe s", |sample, _| {
        Some(sample.of_table()?.1.as_secs_f64())
    }),
    ("divide_s", "divide s", |sample, _| {
        Some(sample.of_partitions()?.0.as_secs_f64())
    }),
    ("join_s", "join s", |sample, _| {
        Some(sample.of_partitions()?.1.as_secs_f64())
    }),
    ("allocation_s", "alloc. s", |sample, _| {
        Some(sample.allocation?.as_secs_f64())
    }),
];

/// Returns billions a second.
fn giga(count: u64, time: Duration) -> f64 {
    count as f64 / time.as_secs_f64() / 1e9
}

impl Report {
    /// Starts a report.
    ///
    /// # Errors
    /// As for [`Results::begin`].
    pub(super) fn begin(options: &ResultArgs) -> Result<Report> {
        let columns = METRICS.map(|(_, head, _)| format!(" {head:>10}"));
        let head = format!(
            "{:36} {:8}{}  (medians)",
            "case",
            "devices",
            columns.concat()
        );
        Ok(Report {
            results: Results::begin("joins", options, head)?,
        })
    }

    /// Checks the answers of the first run, which warms up, and of the timed ones. Then prints and records the times of
    /// these.
    ///
    /// # Errors
    /// If an answer is wrong, or the record cannot be written or printed.
    pub(super) fn add(
        &mut self,
        case: Case<'_>,
        answer: JoinTotals,
        (first, timed): (&Sample, &[Sample]),
    ) -> Result<()> {
        for sample in [first].into_iter().chain(timed) {
            ensure!(
                sample.totals == answer,
                "{}: the join gives {:?}, but the generator's formulas give {answer:?}; this is a bug",
                case.name,
                sample.totals
            );
        }
        let mut records = Vec::new();
        let mut row = format!("{:36} {:8}", case.name, case.devices);
        for (metric, _, of) in METRICS {
            let values = timed.iter().map(|sample| of(sample, case.workload));
            let values: Option<Vec<f64>> = values.collect();
            let summary = values.map(|values| Summary::of(&values).context("no run was timed"));
            let Some(summary) = summary.transpose()? else {
                row += &format!(" {:>10}", "-");
                continue;
            };
            row += &format!(" {:>10}", significant(summary.median));
            records.push(self.record(case.name, case.devices, (metric, summary), answer));
        }
        self.results.add(records, &row)
    }

    /// Records a quantity that was measured once, or is not that of a join; prints it as a note.
    ///
    /// # Errors
    /// If the record cannot be written or printed, or there is no sample.
    pub(super) fn add_apart(
        &mut self,
        (name, devices): (&str, &str),
        metric: &str,
        values: &[f64],
    ) -> Result<()> {
        let summary = Summary::of(values).context("no run was timed")?;
        let median = significant(summary.median);
        self.note(&format!("{name}: {metric} {median}"));
        let by = Measured {
            engine: "forebay",
            devices,
            expect: None,
        };
        let record = self.results.record(name, by, metric, summary);
        self.results.add_unprinted(vec![record])
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        forebay_terminal::note(text);
    }

    fn record(
        &self,
        name: &str,
        devices: &str,
        (metric, summary): (&str, Summary),
        answer: JoinTotals,
    ) -> Record {
        let by = Measured {
            engine: "forebay",
            devices,
            expect: Some(answer.count),
        };
        self.results.record(name, by, metric, summary)
    }
}

/// Formats a number with four significant digits, or six decimals if it has more.
fn significant(value: f64) -> String {
    let digits = 3.0 - value.abs().max(1e-9).log10().floor();
    format!("{value:.*}", digits.clamp(0.0, 6.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_hash_index::{ProbeKeys, Width};

    const WORKLOAD: Workload = Workload {
        width: Width::Eight,
        build_rows: 1_000_000_000,
        probe_rows: 3_000_000_000,
        probe_keys: ProbeKeys::Uniform,
    };

    fn sample(count: u64) -> Sample {
        Sample {
            allocation: None,
            times: Times::Table {
                build: Duration::from_millis(500),
                probe: Duration::from_millis(1500),
            },
            totals: JoinTotals {
                count,
                ..JoinTotals::default()
            },
        }
    }

    #[test]
    fn rates_count_both_sides_or_the_probe_side() {
        let of = METRICS.map(|(_, _, of)| of(&sample(1), &WORKLOAD));
        let expected = [Some(2.0), Some(2.0), Some(32.0), Some(0.5), Some(1.5)];
        assert_eq!(of[..5], expected);
        assert_eq!(of[5..], [None; 3]);
        let partitioned = Sample {
            times: Times::Partitions {
                divide: Duration::from_secs(3),
                join: Duration::from_secs(1),
            },
            ..sample(1)
        };
        let of = METRICS.map(|(_, _, of)| of(&partitioned, &WORKLOAD));
        assert_eq!(of[0], Some(1.0));
        assert_eq!(
            of[1..],
            [None, None, None, None, Some(3.0), Some(1.0), None]
        );
    }

    #[test]
    fn a_wrong_answer_is_an_error() {
        let mut report = Report::begin(&ResultArgs::default()).expect("no file is named");
        let case = Case {
            name: "join-a-device",
            devices: "cuda:0",
            workload: &WORKLOAD,
        };
        let answer = sample(7).totals;
        let mut add = |first, timed| report.add(case, answer, (&sample(first), &[sample(timed)]));
        add(7, 7).expect("both are right");
        // Also if the run is wrong that warms up.
        for (first, timed) in [(7, 8), (8, 7)] {
            let error = add(first, timed).expect_err("one is wrong");
            let error = error.to_string();
            assert!(error.contains("join-a-device: the join gives"), "{error}");
        }
    }
}
