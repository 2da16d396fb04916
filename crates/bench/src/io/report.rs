//! The results of a run: printed, recorded and drawn.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::cell::{Cell, Sweep};
use super::fio::FioFound;
use super::measure::Found;
use super::plots;
use crate::output;
use crate::record::{self, Measured, Record, Run};
use crate::statistics::Summary;

/// A measured line of a plot: what is measured, the line, its place and its value.
#[derive(Clone, Debug)]
pub(super) struct Value {
    pub(super) cell: Cell,
    /// Line of the plot, as in `host, hot cache`.
    pub(super) line: String,
    /// Metric, as in `mb_per_s`.
    pub(super) metric: &'static str,
    pub(super) value: f64,
}

/// The results of a run so far.
pub(super) struct Report {
    json: bool,
    file: Option<PathBuf>,
    run: Run,
    values: Vec<Value>,
    /// Whether the table has its head.
    has_head: bool,
}

impl Report {
    pub(super) fn begin(json: bool, file: Option<PathBuf>) -> Report {
        Report {
            json,
            file,
            run: Run::begin("io"),
            values: Vec::new(),
            has_head: false,
        }
    }

    /// Prints a note to standard error; it is not recorded.
    pub(super) fn note(&self, text: &str) {
        output::note(text);
    }

    /// Prints and records a measurement.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn add(&mut self, cell: &Cell, found: &Found, devices: &str) -> Result<()> {
        let devices = match &found.taken {
            Some(taken) => format!("{devices} ({taken})"),
            None => devices.to_owned(),
        };
        let (p50, p99) = (found.latency_us(0.5), found.latency_us(0.99));
        let usage = &found.usage;
        let metrics = [
            ("mb_per_s", found.mb_per_s()),
            ("operations_per_s", found.operations_per_s()),
            ("latency_us_median", p50),
            ("latency_us_p99", p99),
            ("cpu_user_percent", found.percent(usage.user)),
            ("cpu_system_percent", found.percent(usage.system)),
            ("cpu_wait_percent", found.percent(usage.wait)),
        ];
        if !self.json {
            self.print(&row(cell, &cell.line(), found, &devices))?;
        }
        let by = Measured {
            engine: "forebay",
            devices: &devices,
            expect: None,
        };
        self.keep(cell, &cell.line(), by, &metrics, found.operations())
    }

    /// Prints and records a measurement of `fio`.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub(super) fn add_fio(&mut self, cell: &Cell, found: &FioFound, version: &str) -> Result<()> {
        let metrics = [
            ("mb_per_s", found.mb_per_s),
            ("operations_per_s", found.operations_per_s),
            ("latency_us_median", found.median_us),
            ("latency_us_p99", found.p99_us),
        ];
        if !self.json {
            self.print(&numbers(cell, version, metrics.map(|(_, value)| value)))?;
        }
        let threads = format!("{} threads", cell.parallel);
        let by = Measured {
            engine: version,
            devices: &threads,
            expect: None,
        };
        self.keep(cell, version, by, &metrics, 1)
    }

    /// Prints a row of the table, the first time after its head.
    fn print(&mut self, row: &str) -> Result<()> {
        if !self.has_head {
            self.has_head = true;
            output::print(&head())?;
        }
        output::print(row)
    }

    fn keep(
        &mut self,
        cell: &Cell,
        line: &str,
        by: Measured<'_>,
        metrics: &[(&'static str, f64)],
        operations: usize,
    ) -> Result<()> {
        let mut records: Vec<Record> = Vec::new();
        for &(metric, value) in metrics {
            let summary = Summary {
                count: operations,
                ..Summary::once(value)
            };
            records.push(self.run.record(&cell.case(), by, metric, summary));
            self.values.push(Value {
                cell: *cell,
                line: line.to_owned(),
                metric,
                value,
            });
        }
        if let Some(file) = &self.file {
            record::append(file, &records)?;
        }
        if self.json {
            for record in &records {
                output::print(&serde_json::to_string(record)?)?;
            }
        }
        Ok(())
    }

    /// Draws figures 2, 3 and 4.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub(super) fn draw(&self, folder: &Path) -> Result<()> {
        for sweep in [Sweep::Buffers, Sweep::Threads] {
            plots::draw(sweep, &self.values, folder)?;
        }
        Ok(())
    }
}

/// Head of the table; its columns are those of [`numbers`] and [`row`].
fn head() -> String {
    format!(
        "{:26} {:16} {:>8} {:>9} {:>10} {:>12} {:>10} {:>10}  {:>5} {:>5} {:>5}  (CPU use in percent of one core)",
        "path",
        "access",
        "buffer",
        "in flight",
        "MB/s",
        "operations/s",
        "median us",
        "p99 us",
        "user",
        "sys",
        "wait"
    )
}

/// Formats the cell and its rates and latencies.
fn numbers(cell: &Cell, line: &str, [mb, ops, p50, p99]: [f64; 4]) -> String {
    format!(
        "{line:26} {:16} {:>8} {:>9} {mb:>10.1} {ops:>12.1} {p50:>10.1} {p99:>10.1}",
        cell.panel(),
        short(cell.bytes),
        cell.parallel,
    )
}

fn row(cell: &Cell, line: &str, found: &Found, devices: &str) -> String {
    let values = [
        found.mb_per_s(),
        found.operations_per_s(),
        found.latency_us(0.5),
        found.latency_us(0.99),
    ];
    let usage = &found.usage;
    let [user, system, wait] =
        [usage.user, usage.system, usage.wait].map(|time| found.percent(time));
    let mut text = numbers(cell, line, values);
    text += &format!("  {user:>5.0} {system:>5.0} {wait:>5.0}");
    if found.taken.is_some() {
        text += &format!("  {devices}");
    }
    text
}

/// Formats a number of bytes, as in `64K`.
fn short(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1 << 20) => format!("{}M", bytes >> 20),
        bytes if bytes.is_multiple_of(1 << 10) => format!("{}K", bytes >> 10),
        bytes => bytes.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use forebay_movement::storage::StoragePath;

    use super::super::cell::{Cache, Operation, Pattern};
    use super::super::measure::Trace;
    use super::*;
    use crate::q6::usage::Usage;

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
        let mut report = Report::begin(false, Some(file.clone()));
        for sweep in [Sweep::Buffers, Sweep::Threads] {
            for parallel in [1, 2] {
                let cell = Cell {
                    sweep,
                    path: StoragePath::Host,
                    cache: Cache::Hot,
                    pattern: Pattern::Random,
                    operation: Operation::Read,
                    bytes: parallel << 20,
                    parallel,
                };
                let mut found = found();
                found.taken = (parallel == 2).then(|| "direct API, POSIX path".to_owned());
                report.add(&cell, &found, "host:2").expect("writable");
                let fio = FioFound {
                    mb_per_s: 3.0,
                    operations_per_s: 2.0,
                    median_us: 1.0,
                    p99_us: 4.0,
                };
                report.add_fio(&cell, &fio, "fio-3.36").expect("writable");
            }
        }
        report.draw(folder.path()).expect("writable");
        let text = std::fs::read_to_string(&file).expect("it is written");
        let records: Vec<Record> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("a record"))
            .collect();
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
        for name in [
            "figure-2-random-read-mb_per_s.svg",
            "figure-3-random-read-latency_us_median.svg",
            "figure-4-random-read-host--hot-cache.svg",
        ] {
            let svg = std::fs::read_to_string(folder.path().join(name)).expect(name);
            assert!(svg.contains("</svg>"), "{name}");
        }
    }

    #[test]
    fn sizes_are_short() {
        assert_eq!([4096, 1 << 20, 100].map(short), ["4K", "1M", "100"]);
    }
}
