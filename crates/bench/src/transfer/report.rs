//! The results of a run: printed, recorded and kept for the plots.

use std::path::PathBuf;

use anyhow::{Context, Result};

use crate::output;
use crate::record::{self, Measured, Record, Run};
use crate::statistics::Summary;

/// A measured quantity.
#[derive(Clone, Debug)]
pub(super) struct Measurement {
    /// Name of the case, as in `move/pinned-copy/to-device/1048576`.
    pub(super) case: String,
    /// Quantity, unit last, as in `gb_per_s`.
    pub(super) metric: &'static str,
    /// Median of the samples.
    pub(super) median: f64,
}

/// The results of a run so far.
pub(super) struct Report {
    json: bool,
    file: Option<PathBuf>,
    run: Run,
    results: Vec<Measurement>,
}

impl Report {
    /// Starts a report, which is appended to `file`.
    pub(super) fn begin(json: bool, file: Option<PathBuf>) -> Report {
        Report {
            json,
            file,
            run: Run::begin("transfer"),
            results: Vec::new(),
        }
    }

    /// Prints, records and keeps a measurement. `devices` are those that took part.
    ///
    /// # Errors
    /// If there is no sample, or the record cannot be written or printed.
    pub(super) fn add(
        &mut self,
        case: String,
        devices: &str,
        metric: &'static str,
        samples: &[f64],
    ) -> Result<()> {
        let by = Measured {
            engine: "forebay",
            devices,
            expect: None,
        };
        let summary = Summary::of(samples).context("no run was timed")?;
        let record = self.run.record(&case, by, metric, summary);
        if let Some(file) = &self.file {
            record::append(file, std::slice::from_ref(&record))?;
        }
        if self.json {
            output::print(&serde_json::to_string(&record)?)?;
        } else {
            output::print(&line(&record, devices))?;
        }
        let median = summary.median;
        self.results.push(Measurement {
            case,
            metric,
            median,
        });
        Ok(())
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        output::note(text);
    }

    /// Returns all results.
    pub(super) fn results(&self) -> &[Measurement] {
        &self.results
    }
}

fn line(record: &Record, devices: &str) -> String {
    let Record {
        case,
        metric,
        median,
        min,
        max,
        n,
        ..
    } = record;
    format!("{case:48} {devices:8} {median:>12.3} {metric:14} ({min:.3} to {max:.3}, n {n})")
}
