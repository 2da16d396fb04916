//! The results of a run: checked, printed, recorded and kept for the plots.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::usage::Usage;
use crate::record::{Measured, Record};
use crate::results::{ResultArgs, Results};
use crate::statistics::Summary;

/// Times of the phases of a query, as in figure 5 of Miura et al. Phases of a serial loop add up to the elapsed time.
/// Phases of the ring overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Phases {
    /// Reading the file.
    pub(super) io: Duration,
    /// Copies between host and device.
    pub(super) transfer: Duration,
    /// The query itself.
    pub(super) compute: Duration,
}

/// One run of the query.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sample {
    /// Time and CPU time.
    pub(super) usage: Usage,
    /// Times of the phases; `None` if the variant has only one.
    pub(super) phases: Option<Phases>,
    /// Sum that the variant computed; `None` for a run that computes none.
    pub(super) sum: Option<u64>,
}

impl Sample {
    /// Returns a sample of which only the time is known.
    pub(super) fn of_time(took: Duration, sum: Option<u64>) -> Sample {
        let usage = Usage {
            elapsed: took,
            ..Usage::default()
        };
        Sample {
            usage,
            phases: None,
            sum,
        }
    }
}

/// What was measured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Case<'a> {
    /// Name, as in `q6-staged`.
    pub(super) name: &'a str,
    /// Program measured.
    pub(super) engine: &'a str,
    /// Devices of the program.
    pub(super) devices: &'a str,
    /// Bytes of a buffer; `None` if the variant has none.
    pub(super) buffer_bytes: Option<usize>,
    /// Bytes that each run read.
    pub(super) bytes: u64,
}

/// The results of a run so far.
pub(super) struct Report {
    pub(super) results: Results,
    /// Exact answer, which every variant must give.
    revenue: u64,
    /// The file that holds the exact answer.
    about: PathBuf,
}

impl Report {
    /// Starts a report. Every answer must be `revenue`, as the file `about` says.
    ///
    /// # Errors
    /// As for [`Results::begin`].
    pub(super) fn begin(options: &ResultArgs, (revenue, about): (u64, &Path)) -> Result<Report> {
        Ok(Report {
            results: Results::begin("q6", options, head())?,
            revenue,
            about: about.to_owned(),
        })
    }

    /// Checks the answers of all samples, then prints and records the case.
    ///
    /// # Errors
    /// If an answer is wrong, or the record cannot be written or printed.
    pub(super) fn add(&mut self, case: Case<'_>, samples: &[Sample]) -> Result<()> {
        for sum in samples.iter().filter_map(|sample| sample.sum) {
            ensure!(
                sum == self.revenue,
                "{}: the answer is {sum}, but {} says that {} is right; if that file was edited, remove it, and the \
                 columns are made again; otherwise this is a bug",
                case.name,
                self.about.display(),
                self.revenue
            );
        }
        let first = samples.first().context("no run was timed")?;
        let rate = |sample: &Sample| case.bytes as f64 / sample.usage.elapsed.as_secs_f64() / 1e9;
        let name = match case.buffer_bytes {
            Some(bytes) => format!("{}/{bytes}", case.name),
            None => case.name.to_owned(),
        };
        let mut records = vec![self.record(&name, case, "gb_per_s", samples, rate)?];
        for (metric, _, of) in METRICS {
            if first.usage.has_cpu_times() && of(first).is_some() {
                let seconds = |sample: &Sample| of(sample).unwrap_or_default().as_secs_f64();
                records.push(self.record(&name, case, metric, samples, seconds)?);
            }
        }
        let row = row(&name, case, &records);
        self.results.add(records, &row)
    }

    /// Compares the best rate of a case with that of a limit of the same run, in percent. Does nothing if one of them
    /// was not measured.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn compare(&mut self, name: &str, limit: &str, must_reach: f64) -> Result<()> {
        let (Some(own), Some(other)) = (self.fastest(name), self.fastest(limit)) else {
            return Ok(());
        };
        let percent = 100.0 * own.median / other.median;
        self.note(&format!(
            "{name}: {percent:.1} % of {limit} (must reach {must_reach:.0} %)"
        ));
        let metric = format!("percent_of_{}", limit.replace('-', "_"));
        self.keep_percent(name, &metric, percent)
    }

    /// Compares the CPU time of a case with that of another, in percent, each with its best buffer size. Does nothing
    /// if one of them was not measured.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn compare_cpu(&mut self, name: &str, other: &str) -> Result<()> {
        let (Some(own), Some(host)) = (self.cpu_seconds(name), self.cpu_seconds(other)) else {
            return Ok(());
        };
        self.note(&format!(
            "{name}: {own:.3} CPU seconds, {other} {host:.3} (must not be more)"
        ));
        let percent = 100.0 * own / host;
        let metric = format!("cpu_percent_of_{}", other.replace('-', "_"));
        self.keep_percent(name, &metric, percent)
    }

    fn keep_percent(&mut self, name: &str, metric: &str, percent: f64) -> Result<()> {
        let by = Measured {
            engine: "forebay",
            devices: "all",
            expect: None,
        };
        let summary = Summary::once(percent);
        let record = self.results.record(name, by, metric, summary);
        self.results.add_unprinted(vec![record])
    }

    /// Returns the rate of a case with the buffer size of its best rate.
    fn fastest(&self, name: &str) -> Option<&Record> {
        let is_own = |record: &&Record| {
            let buffer = record.case.strip_prefix(name);
            record.metric == "gb_per_s"
                && buffer.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let own = self.results.records().iter().filter(is_own);
        own.max_by(|a, b| a.median.total_cmp(&b.median))
    }

    /// Returns the CPU seconds of a case with the buffer size of its best rate.
    fn cpu_seconds(&self, name: &str) -> Option<f64> {
        let case = &self.fastest(name)?.case;
        let median = |metric: &str| {
            let mut records = self.results.records().iter();
            let found = records.find(|record| record.case == *case && record.metric == metric);
            found.map(|record| record.median)
        };
        Some(median("user_s")? + median("system_s")?)
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        forebay_terminal::note(text);
    }

    fn record(
        &self,
        name: &str,
        case: Case<'_>,
        metric: &str,
        samples: &[Sample],
        of: impl Fn(&Sample) -> f64,
    ) -> Result<Record> {
        let values: Vec<f64> = samples.iter().map(of).collect();
        let by = Measured {
            engine: case.engine,
            devices: case.devices,
            expect: samples[0].sum,
        };
        let summary = Summary::of(&values).context("no run was timed")?;
        Ok(self.results.record(name, by, metric, summary))
    }
}

/// A time of a sample; `None` if the variant has no such phase.
type Time = fn(&Sample) -> Option<Duration>;

/// The times that are recorded: metric, head of its column, and time.
const METRICS: [(&str, &str, Time); 8] = [
    ("elapsed_s", "elapsed", |sample| Some(sample.usage.elapsed)),
    ("io_s", "I/O", |sample| Some(sample.phases?.io)),
    ("transfer_s", "transfer", |sample| {
        Some(sample.phases?.transfer)
    }),
    ("compute_s", "compute", |sample| {
        Some(sample.phases?.compute)
    }),
    ("rest_s", "rest", rest),
    ("user_s", "user", |sample| Some(sample.usage.user)),
    ("system_s", "system", |sample| Some(sample.usage.system)),
    ("wait_s", "disk wait", |sample| Some(sample.usage.wait)),
];

/// Returns the elapsed time that belongs to no phase; zero if the phases overlap.
fn rest(sample: &Sample) -> Option<Duration> {
    let Phases {
        io,
        transfer,
        compute,
    } = sample.phases?;
    Some(sample.usage.elapsed.saturating_sub(io + transfer + compute))
}

/// Returns the head of the table.
fn head() -> String {
    let times = METRICS.map(|(_, head, _)| format!(" {head:>9}"));
    format!(
        "{:36} {:8} {:8} {:>9}{}  (times in seconds; medians)",
        "case",
        "program",
        "devices",
        "GB/s",
        times.concat()
    )
}

/// Returns a row of the table: the medians of records, the first of which is the rate.
fn row(name: &str, case: Case<'_>, records: &[Record]) -> String {
    let times = METRICS.map(|(metric, ..)| {
        let found = records.iter().find(|record| record.metric == metric);
        found.map_or_else(
            || " ".repeat(10),
            |record| format!(" {:>9.4}", record.median),
        )
    });
    let rate = records.first().map_or(0.0, |record| record.median);
    let text = format!(
        "{name:36} {:8} {:8} {rate:>9.2}{}",
        case.engine,
        case.devices,
        times.concat()
    );
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record;

    const CASE: Case<'static> = Case {
        name: "q6-cpu",
        engine: "forebay",
        devices: "host:2",
        buffer_bytes: Some(1 << 20),
        bytes: 2_000_000_000,
    };

    fn sample(seconds: u64, sum: u64) -> Sample {
        Sample {
            usage: Usage {
                elapsed: Duration::from_secs(seconds),
                user: Duration::from_secs(1),
                ..Usage::default()
            },
            phases: Some(Phases {
                io: Duration::from_millis(500),
                ..Phases::default()
            }),
            sum: Some(sum),
        }
    }

    #[test]
    fn a_case_is_recorded_with_its_times() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("q6.jsonl");
        let options = ResultArgs {
            record: Some(file.clone()),
            ..ResultArgs::default()
        };
        let mut report = Report::begin(&options, (7, Path::new("a.json"))).expect("writable");
        report
            .add(CASE, &[1, 4, 2].map(|seconds| sample(seconds, 7)))
            .expect("right");
        let limit = Case {
            name: "limit-disk",
            ..CASE
        };
        report
            .add(
                limit,
                &[Sample {
                    sum: None,
                    ..sample(1, 0)
                }],
            )
            .expect("no answer");
        report
            .compare("q6-cpu", "limit-disk", 95.0)
            .expect("writable");
        report
            .compare("q6-cpu", "no-such-limit", 95.0)
            .expect("nothing to do");
        report
            .compare_cpu("q6-cpu", "limit-disk")
            .expect("writable");
        let records = record::read(&file).expect("it is written");
        let find = |case: &str, metric: &str| {
            let mut found = records
                .iter()
                .filter(|record| record.case == case && record.metric == metric);
            let record = found.next().expect("it is there");
            assert!(found.next().is_none(), "once");
            record.median
        };
        assert_eq!(find("q6-cpu/1048576", "gb_per_s"), 1.0);
        assert_eq!(find("q6-cpu/1048576", "elapsed_s"), 2.0);
        assert_eq!(find("q6-cpu/1048576", "rest_s"), 1.5);
        assert_eq!(find("q6-cpu", "percent_of_limit_disk"), 50.0);
        assert_eq!(find("q6-cpu", "cpu_percent_of_limit_disk"), 100.0);
        assert_eq!(records.len(), 2 * (1 + METRICS.len()) + 2);
    }

    #[test]
    fn the_columns_stand_under_their_heads() {
        let mut report =
            Report::begin(&ResultArgs::default(), (7, Path::new("a.json"))).expect("writable");
        report.add(CASE, &[sample(2, 7)]).expect("right");
        let row = row("q6-cpu/1048576", CASE, report.results.records());
        let column = |title: &str| head().find(title).expect("a head") + title.len();
        assert!(row[..column("GB/s")].ends_with("1.00"), "{row}");
        assert!(row[..column("I/O")].ends_with("0.5000"), "{row}");
        assert!(row[..column("rest")].ends_with("1.5000"), "{row}");
    }

    #[test]
    fn a_wrong_answer_is_refused() {
        let mut report =
            Report::begin(&ResultArgs::default(), (7, Path::new("a.json"))).expect("writable");
        let error = report
            .add(CASE, &[sample(1, 7), sample(1, 8)])
            .expect_err("8 is wrong");
        let text = error.to_string();
        assert!(text.contains("the answer is 8"), "{text}");
        assert!(
            text.contains("a.json") && text.contains("remove it"),
            "{text}"
        );
        assert!(report.results.records().is_empty());
    }
}
