//! The record of a benchmark: one JSON object per result.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::Command;

use serde::Serialize;

/// A line of the record.
#[derive(Serialize)]
struct Line<'a> {
    bench: &'static str,
    case: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    policy: Option<&'a str>,
    engine: &'static str,
    device: &'a str,
    driver: &'a str,
    metric: &'static str,
    median: f64,
    min: f64,
    max: f64,
    n: usize,
    expect: Option<u64>,
    commit: &'a str,
    date: &'a str,
    command: &'a str,
}

/// A result: the samples of one metric.
pub struct Figure<'a> {
    pub case: &'a str,
    /// The policy, if the benchmark compares several.
    pub policy: Option<&'a str>,
    /// Name of the metric, with its unit.
    pub metric: &'static str,
    pub samples: &'a [f64],
    /// Number of matches that the host engine finds; `None` if the result is not that of a search.
    pub expect: Option<u64>,
}

/// The fields that all results of a run share, and the file to which results are appended.
pub struct Record {
    bench: &'static str,
    device: String,
    driver: String,
    commit: String,
    date: String,
    command: String,
    file: Option<String>,
}

impl Record {
    /// Begins the record of a benchmark on the first GPU.
    pub fn begin(bench: &'static str, file: Option<String>) -> Record {
        let query = [
            "--query-gpu=name,driver_version",
            "--format=csv,noheader",
            "--id=0",
        ];
        let card = output_of("nvidia-smi", &query);
        let (device, driver) = card.split_once(", ").unwrap_or((&card, "unknown"));
        let commit = std::env::var("FOREBAY_COMMIT");
        let given: Vec<String> = std::env::args().skip(1).collect();
        let given = given.join(" ");
        Record {
            bench,
            device: device.to_owned(),
            driver: driver.to_owned(),
            commit: commit
                .unwrap_or_else(|_| output_of("git", &["rev-parse", "--short=12", "HEAD"])),
            date: output_of("date", &["-u", "+%FT%TZ"]),
            command: format!("cargo bench -p forebay-text-gpu --bench {bench} -- {given}"),
            file,
        }
    }

    /// Appends a result to the file. Returns its JSON line and its median.
    pub fn append(&self, figure: &Figure<'_>) -> (String, f64) {
        let mut samples = figure.samples.to_vec();
        samples.sort_by(f64::total_cmp);
        let median = samples[samples.len() / 2];
        let line = Line {
            bench: self.bench,
            case: figure.case,
            policy: figure.policy,
            engine: "forebay cuda",
            device: &self.device,
            driver: &self.driver,
            metric: figure.metric,
            median,
            min: samples[0],
            max: samples[samples.len() - 1],
            n: samples.len(),
            expect: figure.expect,
            commit: &self.commit,
            date: &self.date,
            command: &self.command,
        };
        let line = serde_json::to_string(&line).expect("numbers are finite");
        if let Some(path) = &self.file {
            let file = OpenOptions::new().create(true).append(true).open(path);
            let written = file.and_then(|mut file| writeln!(file, "{line}"));
            written.unwrap_or_else(|error| panic!("{path}: {error}"));
        }
        (line, median)
    }
}

/// Returns the output of a program, or `unknown`.
fn output_of(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    text.ok()
        .filter(|text| !text.is_empty())
        .unwrap_or_else(|| "unknown".to_owned())
}
