//! The table of a run.

use anyhow::{Context, Result};

use crate::record::{Measured, Record};
use crate::results::{ResultArgs, Results};
use crate::statistics::Summary;

/// The results of a run so far.
pub(super) struct Report {
    pub(super) results: Results,
}

impl Report {
    /// Starts a report.
    ///
    /// # Errors
    /// As for [`Results::begin`].
    pub(super) fn begin(options: &ResultArgs) -> Result<Report> {
        let head = format!(
            "{:44} {:13} {:>10} {:>10} {:>10} {:>5}  unit",
            "case", "devices", "median", "min", "max", "runs"
        );
        let results = Results::begin("transfer", options, head)?;
        Ok(Report { results })
    }

    /// Prints, records and keeps a measurement. `devices` are those that took part.
    ///
    /// # Errors
    /// If there is no sample, or the record cannot be written or printed.
    pub(super) fn add(
        &mut self,
        case: String,
        devices: &str,
        metric: &str,
        samples: &[f64],
    ) -> Result<()> {
        let by = Measured {
            engine: "forebay",
            devices,
            expect: None,
        };
        let summary = Summary::of(samples).context("no run was timed")?;
        let record = self.results.record(&case, by, metric, summary);
        let row = row(&record, devices);
        self.results.add(vec![record], &row)
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        forebay_terminal::note(text);
    }
}

fn row(record: &Record, devices: &str) -> String {
    let [median, min, max] = [record.median, record.min, record.max].map(significant);
    let unit = unit(&record.metric);
    format!(
        "{:44} {devices:13} {median:>10} {min:>10} {max:>10} {:>5}  {unit}",
        record.case, record.n
    )
}

/// Returns the unit of a metric, and what it counts if the case does not say.
fn unit(metric: &str) -> &str {
    match metric {
        "gb_per_s" => "GB/s",
        "to_device_gb_per_s" => "GB/s, the part to the device",
        "to_host_gb_per_s" => "GB/s, the part to the host",
        "giga_reads_per_s" => "G reads/s",
        "latency_ns" => "ns a read",
        "allocation_s" => "s to allocate",
        "pinning_s" => "s to pin, within the move",
        other => other,
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

    #[test]
    fn small_numbers_keep_their_digits() {
        let texts = [0.0, 0.0004812, 0.048, 54.7, 1831.2].map(significant);
        assert_eq!(texts, ["0.000000", "0.000481", "0.04800", "54.70", "1831"]);
    }
}
