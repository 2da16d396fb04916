//! Benchmark results as JSON lines, as in `bench/record/`.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::statistics::Summary;

/// One measured result.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Record {
    /// Group of the benchmark, as in `documents`.
    pub bench: String,
    /// Name of the case, as in `count-literal`.
    pub case: String,
    /// Program measured: `forebay`, `ripgrep 13.0.0`, ...
    pub engine: String,
    /// Devices of the program, with the processor or GPU.
    pub device: String,
    /// Version of the GPU's driver; `none` for the host, also in lines without this field.
    #[serde(default = "no_driver")]
    pub driver: String,
    /// Quantity measured, unit last, as in `client_ms`.
    pub metric: String,
    /// Median of the measurements.
    pub median: f64,
    /// Smallest measurement.
    pub min: f64,
    /// Largest measurement.
    pub max: f64,
    /// Number of measurements.
    pub n: usize,
    /// Count that was checked, if the case has one.
    pub expect: Option<u64>,
    /// Commit measured.
    pub commit: String,
    /// Date and time in UTC.
    pub date: String,
    /// Command line of the run.
    pub command: String,
}

fn no_driver() -> String {
    "none".to_owned()
}

/// Fields that all records of a run share.
#[derive(Clone, Debug)]
pub struct Run {
    bench: &'static str,
    commit: String,
    date: String,
    command: String,
    processor: String,
    gpu: Option<Gpu>,
}

/// The first GPU, as `nvidia-smi` reports it.
#[derive(Clone, Debug)]
struct Gpu {
    model: String,
    driver: String,
}

impl Run {
    /// Returns the description of a run that starts now.
    pub fn begin(bench: &'static str) -> Run {
        let date = bson::DateTime::now()
            .try_to_rfc3339_string()
            .unwrap_or_default();
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("forebay {}", arguments.join(" "));
        Run {
            bench,
            commit: commit(),
            date,
            command,
            processor: processor(),
            gpu: gpu(),
        }
    }

    /// Returns the devices of a result with their hardware, and the version of the GPU's driver.
    fn hardware(&self, devices: &str) -> (String, String) {
        match &self.gpu {
            Some(gpu) if devices.contains("cuda") => {
                (format!("{devices} of {}", gpu.model), gpu.driver.clone())
            }
            _ => (format!("{devices} of {}", self.processor), no_driver()),
        }
    }

    /// Returns a record of this run.
    pub fn record(&self, case: &str, by: Measured<'_>, metric: &str, summary: Summary) -> Record {
        let Summary {
            median,
            min,
            max,
            count,
        } = summary;
        let (device, driver) = self.hardware(by.devices);
        Record {
            bench: self.bench.to_owned(),
            case: case.to_owned(),
            engine: by.engine.to_owned(),
            device,
            driver,
            metric: metric.to_owned(),
            median,
            min,
            max,
            n: count,
            expect: by.expect,
            commit: self.commit.clone(),
            date: self.date.clone(),
            command: self.command.clone(),
        }
    }

    /// Returns the day of the run, as in `2026-11-21`.
    pub fn day(&self) -> &str {
        self.date.split('T').next().unwrap_or(&self.date)
    }
}

/// Program and devices of a measurement, and the count that was checked.
#[derive(Clone, Copy, Debug)]
pub struct Measured<'a> {
    /// Program, as in [`Record::engine`].
    pub engine: &'a str,
    /// Devices, as in `host:2` or `1 thread`.
    pub devices: &'a str,
    /// Count that was checked, as in [`Record::expect`].
    pub expect: Option<u64>,
}

/// Appends records to a file of JSON lines. Creates the file and its folder if they do not exist.
///
/// # Errors
/// If the file cannot be written.
pub fn append(path: &Path, records: &[Record]) -> Result<()> {
    let writing = || format!("writing {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(writing)?;
    }
    let mut lines = Vec::new();
    for record in records {
        serde_json::to_writer(&mut lines, record)?;
        lines.push(b'\n');
    }
    let mut options = OpenOptions::new();
    // A pipe without a reader is an error; opening it would wait for ever.
    let options = options
        .create(true)
        .append(true)
        .custom_flags(libc::O_NONBLOCK);
    let file = options.open(path);
    file.and_then(|mut file| file.write_all(&lines))
        .with_context(writing)
}

/// Reads the records of a file of JSON lines. Empty lines are skipped.
///
/// # Errors
/// If the file cannot be read, or a line of it is not a record.
pub fn read(path: &Path) -> Result<Vec<Record>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let lines = (1..).zip(text.lines());
    let filled = lines.filter(|(_, line)| !line.trim_ascii().is_empty());
    let parse = |(number, line): (usize, &str)| {
        let parsed = parse_record(line);
        parsed.with_context(|| format!("line {number} of {} is no record", path.display()))
    };
    filled.map(parse).collect()
}

fn parse_record(line: &str) -> Result<Record> {
    let record: Record = serde_json::from_str(line)?;
    let texts = [&record.case, &record.engine, &record.device, &record.metric];
    let steers =
        |text: &&String| text.contains(|letter: char| letter.is_control() || letter == '|');
    ensure!(
        !texts.iter().any(steers),
        "its texts have a control character or `|`, which would break tables"
    );
    Ok(record)
}

/// Returns `FOREBAY_COMMIT` if set. Otherwise returns the commit of the current checkout, with `+` if files were
/// changed. Returns `unknown` if there is no checkout.
fn commit() -> String {
    if let Ok(commit) = std::env::var("FOREBAY_COMMIT") {
        return commit;
    }
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(hash) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])
        .is_some_and(|files| !files.is_empty());
    if changed { format!("{hash}+") } else { hash }
}

fn gpu() -> Option<Gpu> {
    let query = [
        "--query-gpu=name,driver_version",
        "--format=csv,noheader",
        "--id=0",
    ];
    let output = Command::new("nvidia-smi").args(query).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (model, driver) = text.trim().split_once(", ")?;
    Some(Gpu {
        model: model.to_owned(),
        driver: driver.to_owned(),
    })
}

/// Returns the number of cores and the name of the processor.
fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{} x {}", cores, name.unwrap_or("unknown processor").trim())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns a record of one measurement.
    pub(crate) fn record(bench: &'static str, case: &str, metric: &str, value: f64) -> Record {
        let by = Measured {
            engine: "forebay",
            devices: "host:2",
            expect: None,
        };
        Run::begin(bench).record(case, by, metric, Summary::once(value))
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("pipe");
        let made = Command::new("mkfifo").arg(&path).status();
        assert!(made.expect("a tool of every system").success());
        let error = append(&path, &[]).expect_err("nothing reads it");
        assert!(error.to_string().contains("writing"), "{error}");
    }

    #[test]
    fn records_are_appended_a_line_each() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("record/today.jsonl");
        let by = Measured {
            engine: "forebay",
            devices: "host:1",
            expect: Some(3),
        };
        let record = Run::begin("documents").record("count", by, "client_ms", Summary::once(1.5));
        append(&path, std::slice::from_ref(&record)).expect("the folder is writable");
        append(&path, &[record]).expect("the folder is writable");
        let text = fs::read_to_string(&path).expect("just written");
        let lines: Vec<serde_json::Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .collect();
        assert_eq!(lines.len(), 2);
        assert_eq!(
            (&lines[1]["metric"], &lines[1]["expect"]),
            (&"client_ms".into(), &3.into())
        );
    }
}
