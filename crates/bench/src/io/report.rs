//! The table of a run.

use anyhow::Result;

use super::cell::{Cell, Sweep};
use super::fio::FioFound;
use super::measure::Found;
use crate::record::{Measured, Record};
use crate::results::{ResultArgs, Results};
use crate::size;
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
        let results = Results::begin("io", options, head())?;
        Ok(Report { results })
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        forebay_terminal::note(text);
    }

    /// Prints a measurement, and records it for each series that it is of.
    ///
    /// # Errors
    /// If the record cannot be written or printed.
    pub(super) fn add(
        &mut self,
        (cell, sweeps): (&Cell, &[Sweep]),
        found: &Found,
        devices: &str,
    ) -> Result<()> {
        let devices = match &found.taken {
            Some(taken) => format!("{devices} ({taken})"),
            None => devices.to_owned(),
        };
        let usage = &found.usage;
        let metrics = [
            ("mb_per_s", found.mb_per_s()),
            ("operations_per_s", found.operations_per_s()),
            ("latency_us_median", found.latency_us(0.5)),
            ("latency_us_p99", found.latency_us(0.99)),
            ("cpu_user_percent", found.percent(usage.user)),
            ("cpu_system_percent", found.percent(usage.system)),
            ("cpu_wait_percent", found.percent(usage.wait)),
        ];
        let by = Measured {
            engine: "forebay",
            devices: &devices,
            expect: None,
        };
        let taken = found.taken.as_ref().map(|_| devices.as_str());
        let row = row(
            cell,
            &cell.line(),
            metrics.map(|(_, value)| value).as_slice(),
            taken,
        );
        self.keep((cell, sweeps), by, &metrics, found.operations(), &row)
    }

    /// Prints and records a measurement of `fio`.
    ///
    /// # Errors
    /// If the record cannot be written or printed.
    pub(super) fn add_fio(
        &mut self,
        (cell, sweeps): (&Cell, &[Sweep]),
        found: &FioFound,
        version: &str,
    ) -> Result<()> {
        let metrics = [
            ("mb_per_s", found.mb_per_s),
            ("operations_per_s", found.operations_per_s),
            ("latency_us_median", found.median_us),
            ("latency_us_p99", found.p99_us),
        ];
        let threads = format!("{} threads", cell.parallel);
        let by = Measured {
            engine: version,
            devices: &threads,
            expect: None,
        };
        let row = row(
            cell,
            version,
            metrics.map(|(_, value)| value).as_slice(),
            None,
        );
        self.keep((cell, sweeps), by, &metrics, 1, &row)
    }

    fn keep(
        &mut self,
        (cell, sweeps): (&Cell, &[Sweep]),
        by: Measured<'_>,
        metrics: &[(&str, f64)],
        operations: usize,
        row: &str,
    ) -> Result<()> {
        let mut records: Vec<Record> = Vec::new();
        for sweep in sweeps {
            for &(metric, value) in metrics {
                let summary = Summary {
                    count: operations,
                    ..Summary::once(value)
                };
                let case = cell.case(*sweep);
                records.push(self.results.record(&case, by, metric, summary));
            }
        }
        self.results.add(records, row)
    }
}

/// Returns the head of the table; its columns are those of [`row`].
fn head() -> String {
    format!(
        "{:26} {:16} {:>8} {:>9} {:>10} {:>12} {:>10} {:>10} {:>5} {:>6} {:>8}  (CPU use in percent of one core)",
        "path",
        "access",
        "buffer",
        "in flight",
        "MB/s",
        "operations/s",
        "median us",
        "p99 us",
        "user",
        "system",
        "I/O wait"
    )
}

/// Returns a row: the rates, latencies and CPU use of a cell, and the path that cuFile took.
fn row(cell: &Cell, line: &str, values: &[f64], taken: Option<&str>) -> String {
    let mut text = format!(
        "{line:26} {:16} {:>8} {:>9}",
        cell.panel(),
        size::text(cell.bytes),
        cell.parallel
    );
    let columns = [(10, 1), (12, 1), (10, 1), (10, 1), (5, 0), (6, 0), (8, 0)];
    for (value, (width, digits)) in values.iter().zip(columns) {
        text += &format!(" {value:>width$.digits$}");
    }
    if let Some(taken) = taken {
        text += &format!("  {taken}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_movement::storage::StoragePath;

    use super::super::cell::{Cache, Operation, Pattern};
    use super::super::measure::Trace;
    use super::*;
    use crate::q6::usage::Usage;
    use crate::{plot, record};

    fn found() -> Found {
        let trace = Trace {
            latencies: vec![Duration::from_micros(250); 4],
            ..Trace::default()
        };
        let usage = Usage {
            elapsed: Duration::from_secs(1),
            system: Duration::from_millis(500),
            ..Usage::default()
        };
        Found::new(&[trace], usage, 1 << 20).expect("four operations")
    }

    #[test]
    fn results_are_recorded_and_drawn() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("io.jsonl");
        let options = ResultArgs {
            record: Some(file.clone()),
            ..ResultArgs::default()
        };
        let mut report = Report::begin(&options).expect("writable");
        for parallel in [1, 2] {
            let cell = Cell {
                path: StoragePath::Host,
                cache: Cache::Hot,
                pattern: Pattern::Random,
                operation: Operation::Read,
                bytes: parallel << 20,
                parallel,
            };
            let cell = (&cell, &[Sweep::Buffers, Sweep::Threads][..]);
            let mut found = found();
            found.taken = (parallel == 2).then(|| "direct API, POSIX path".to_owned());
            report.add(cell, &found, "host:2").expect("writable");
            let fio = FioFound {
                mb_per_s: 3.0,
                operations_per_s: 2.0,
                median_us: 1.0,
                p99_us: 4.0,
            };
            report.add_fio(cell, &fio, "fio-3.36").expect("writable");
        }
        plot::write(folder.path(), report.results.records()).expect("writable");
        let records = record::read(&file).expect("it is written");
        assert_eq!(records.len(), 4 * (7 + 4));
        let case = "io-threads-random-read: host, hot cache/2";
        let own = records
            .iter()
            .filter(|record| record.case == case && record.engine == "forebay");
        let metrics: Vec<(&str, f64)> = own
            .map(|record| (record.metric.as_str(), record.median))
            .collect();
        assert!(metrics.contains(&("latency_us_p99", 250.0)), "{metrics:?}");
        assert!(
            metrics.contains(&("cpu_system_percent", 50.0)),
            "{metrics:?}"
        );
        for (name, texts) in [
            ("io-random-read-by-buffer-rate.svg", ["fio-3.36", "1 MiB"]),
            (
                "io-random-read-by-threads-latency.svg",
                ["host, hot cache", "in flight"],
            ),
            (
                "io-random-read-cpu-use.svg",
                ["host, hot cache", "I/O wait"],
            ),
        ] {
            let svg = std::fs::read_to_string(folder.path().join(name)).expect(name);
            for text in texts {
                assert!(svg.contains(text), "{name}: {text}");
            }
        }
    }

    #[test]
    fn the_columns_stand_under_their_heads() {
        let cell = Cell {
            path: StoragePath::Host,
            cache: Cache::Cold,
            pattern: Pattern::Random,
            operation: Operation::Write,
            bytes: 1 << 20,
            parallel: 4,
        };
        let values = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let row = row(&cell, &cell.line(), &values, None);
        for (title, value) in [("buffer", "1 MiB"), ("p99 us", "4.0"), ("I/O wait", "7")] {
            let end = head().find(title).expect("a head") + title.len();
            assert!(row[..end].ends_with(value), "{title}: {row}");
        }
    }
}
