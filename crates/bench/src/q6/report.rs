//! The results of a run: checked, printed, recorded and kept for the plots.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::usage::Usage;
use crate::output;
use crate::record::{self, Measured, Record, Run};
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

/// A measured case, for the plots.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) name: String,
    pub(super) buffer_bytes: Option<usize>,
    /// The sample with the median time.
    pub(super) typical: Sample,
    pub(super) gb_per_s: f64,
}

/// The results of a run so far.
pub(super) struct Report {
    json: bool,
    file: Option<PathBuf>,
    run: Run,
    /// Exact answer, which every variant must give.
    revenue: u64,
    /// The file that holds the exact answer.
    about: PathBuf,
    outcomes: Vec<Outcome>,
}

impl Report {
    /// Starts a report, which is appended to `file`. Every answer must be `revenue`, as the file `about` says.
    pub(super) fn begin(
        json: bool,
        file: Option<PathBuf>,
        (revenue, about): (u64, &Path),
    ) -> Report {
        Report {
            json,
            file,
            run: Run::begin("q6"),
            revenue,
            about: about.to_owned(),
            outcomes: Vec::new(),
        }
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
        let mut sorted = samples.to_vec();
        sorted.sort_by_key(|sample| sample.usage.elapsed);
        let typical = *sorted.get(sorted.len() / 2).context("no run was timed")?;
        let rate = |sample: &Sample| case.bytes as f64 / sample.usage.elapsed.as_secs_f64() / 1e9;
        let name = match case.buffer_bytes {
            Some(bytes) => format!("{}/{bytes}", case.name),
            None => case.name.to_owned(),
        };
        let mut records = vec![self.record(&name, case, "gb_per_s", samples, rate)?];
        for (metric, of) in METRICS {
            if typical.usage.has_cpu_times() && of(&typical).is_some() {
                let seconds = |sample: &Sample| of(sample).unwrap_or_default().as_secs_f64();
                records.push(self.record(&name, case, metric, samples, seconds)?);
            }
        }
        if !self.json {
            output::print(&line(&name, case, &typical, records[0].median))?;
        }
        self.outcomes.push(Outcome {
            name: case.name.to_owned(),
            buffer_bytes: case.buffer_bytes,
            typical,
            gb_per_s: records[0].median,
        });
        self.keep(&records)
    }

    /// Compares the best rate of a case with that of a limit of the same run, in percent. Does nothing if one of them
    /// was not measured.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn compare(&mut self, name: &str, limit: &str, must_reach: f64) -> Result<()> {
        let (Some(own), Some(other)) = (self.best(name), self.best(limit)) else {
            return Ok(());
        };
        let percent = 100.0 * own / other;
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
        let (Some(own), Some(host)) = (self.fastest(name), self.fastest(other)) else {
            return Ok(());
        };
        let seconds =
            |of: &Outcome| (of.typical.usage.user + of.typical.usage.system).as_secs_f64();
        let (own, host) = (seconds(own), seconds(host));
        self.note(&format!(
            "{name}: {own:.3} CPU seconds, {other} {host:.3} (must not be more)"
        ));
        let percent = 100.0 * own / host;
        let metric = format!("cpu_percent_of_{}", other.replace('-', "_"));
        self.keep_percent(name, &metric, percent)
    }

    fn keep_percent(&self, name: &str, metric: &str, percent: f64) -> Result<()> {
        let by = Measured {
            engine: "forebay",
            devices: "all",
            expect: None,
        };
        let record = self.run.record(name, by, metric, Summary::once(percent));
        self.keep(&[record])
    }

    /// Returns a case with the buffer size of its best rate.
    fn fastest(&self, name: &str) -> Option<&Outcome> {
        let own = self.outcomes.iter().filter(|outcome| outcome.name == name);
        own.max_by(|a, b| a.gb_per_s.total_cmp(&b.gb_per_s))
    }

    fn best(&self, name: &str) -> Option<f64> {
        Some(self.fastest(name)?.gb_per_s)
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        output::note(text);
    }

    /// Returns the measured cases.
    pub(super) fn outcomes(&self) -> &[Outcome] {
        &self.outcomes
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
        Ok(self.run.record(name, by, metric, summary))
    }

    fn keep(&self, records: &[Record]) -> Result<()> {
        if let Some(file) = &self.file {
            record::append(file, records)?;
        }
        if self.json {
            for record in records {
                output::print(&serde_json::to_string(record)?)?;
            }
        }
        Ok(())
    }
}

/// A time of a sample; `None` if the variant has no such phase.
type Time = fn(&Sample) -> Option<Duration>;

/// The times that are recorded, with their metrics.
const METRICS: [(&str, Time); 8] = [
    ("elapsed_s", |sample| Some(sample.usage.elapsed)),
    ("io_s", |sample| sample.phases.map(|phases| phases.io)),
    ("transfer_s", |sample| {
        sample.phases.map(|phases| phases.transfer)
    }),
    ("compute_s", |sample| {
        sample.phases.map(|phases| phases.compute)
    }),
    ("rest_s", rest),
    ("user_s", |sample| Some(sample.usage.user)),
    ("system_s", |sample| Some(sample.usage.system)),
    ("wait_s", |sample| Some(sample.usage.wait)),
];

/// Returns the elapsed time that belongs to no phase; zero if the phases overlap.
pub(super) fn rest(sample: &Sample) -> Option<Duration> {
    let Phases {
        io,
        transfer,
        compute,
    } = sample.phases?;
    Some(sample.usage.elapsed.saturating_sub(io + transfer + compute))
}

fn line(name: &str, case: Case<'_>, sample: &Sample, gb_per_s: f64) -> String {
    let mut text = format!(
        "{name:28} {:10} {:8} {gb_per_s:>9.2} GB/s",
        case.engine, case.devices
    );
    let seconds = |time: Duration| time.as_secs_f64();
    text += &format!("  {:>9.4} s", seconds(sample.usage.elapsed));
    if let Some(phases) = sample.phases {
        text += &format!(
            "  io {:.3} transfer {:.3} compute {:.3} rest {:.3}",
            seconds(phases.io),
            seconds(phases.transfer),
            seconds(phases.compute),
            seconds(rest(sample).unwrap_or_default())
        );
    }
    if sample.usage.has_cpu_times() {
        text += &format!(
            "  user {:.3} system {:.3} wait {:.2}",
            seconds(sample.usage.user),
            seconds(sample.usage.system),
            seconds(sample.usage.wait)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

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

    fn records(path: &std::path::Path) -> Vec<Record> {
        let text = std::fs::read_to_string(path).expect("it is written");
        let lines = text.lines();
        lines
            .map(|line| serde_json::from_str(line).expect("a record"))
            .collect()
    }

    #[test]
    fn a_case_is_recorded_with_its_times() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("q6.jsonl");
        let mut report = Report::begin(false, Some(file.clone()), (7, Path::new("a.json")));
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
        let records = records(&file);
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
    fn a_wrong_answer_is_refused() {
        let mut report = Report::begin(true, None, (7, Path::new("a.json")));
        let error = report
            .add(CASE, &[sample(1, 7), sample(1, 8)])
            .expect_err("8 is wrong");
        let text = error.to_string();
        assert!(text.contains("the answer is 8"), "{text}");
        assert!(
            text.contains("a.json") && text.contains("remove it"),
            "{text}"
        );
        assert!(report.outcomes().is_empty());
    }
}
