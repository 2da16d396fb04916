//! `fio` as the yardstick of the host path.

use std::path::Path;
use std::process::{Command, Output};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::cell::{Cell, Operation, Pattern};
use super::content::Files;

/// What `fio` found.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FioFound {
    pub(super) mb_per_s: f64,
    pub(super) operations_per_s: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

/// Returns the version of the installed `fio`, as in `fio-3.36`; `None` if there is none.
pub(super) fn version() -> Option<String> {
    let output = Command::new("fio").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

/// Measures a cell of the host path with `fio`.
///
/// # Errors
/// If `fio` fails or prints something else.
pub(super) fn measure(cell: &Cell, files: &Files, seconds: f64) -> Result<FioFound> {
    let path = match cell.operation {
        Operation::Read => &files.read,
        Operation::Write => &files.write,
    };
    let output = Command::new("fio")
        .args(arguments(cell, path, files.bytes, seconds))
        .output();
    let output = output.context("running fio")?;
    if !output.status.success() {
        bail!("{cell}: fio failed: {}", cause(&output));
    }
    parse(&String::from_utf8(output.stdout)?, cell.operation)
}

fn arguments(cell: &Cell, path: &Path, file_bytes: u64, seconds: f64) -> Vec<String> {
    let random = match cell.pattern {
        Pattern::Sequential => "",
        Pattern::Random => "rand",
    };
    let part = file_bytes / cell.parallel as u64 / cell.bytes as u64 * cell.bytes as u64;
    vec![
        "--name=forebay".to_owned(),
        format!("--filename={}", path.display()),
        format!("--rw={random}{}", cell.operation),
        format!("--bs={}", cell.bytes),
        format!("--numjobs={}", cell.parallel),
        format!("--size={part}"),
        format!("--offset_increment={part}"),
        "--direct=1".to_owned(),
        "--ioengine=psync".to_owned(),
        "--thread".to_owned(),
        "--time_based".to_owned(),
        format!("--runtime={}ms", (seconds * 1e3).max(100.0) as u64),
        "--group_reporting".to_owned(),
        "--percentile_list=50:99".to_owned(),
        "--output-format=json".to_owned(),
    ]
}

/// Returns why `fio` failed. It prints errors of files to standard output, before or after its JSON.
fn cause(output: &Output) -> String {
    let texts = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
    let said = texts.iter().flat_map(|text| text.lines()).map(str::trim);
    let said: Vec<&str> = said.filter(|line| line.starts_with("fio")).collect();
    match said.is_empty() {
        true => format!("it ended with {} and gave no reason", output.status),
        false => format!("{}: {}", output.status, said.join("; ")),
    }
}

fn parse(text: &str, operation: Operation) -> Result<FioFound> {
    // Warnings may come before the JSON.
    let begin = text.find('{').context("fio printed no JSON")?;
    let all: Value = serde_json::from_str(&text[begin..]).context("fio's JSON")?;
    let found = &all["jobs"][0][operation.to_string()];
    let number = |value: &Value| {
        value
            .as_f64()
            .with_context(|| format!("no number in {found}"))
    };
    let percentile = &found["clat_ns"]["percentile"];
    Ok(FioFound {
        mb_per_s: number(&found["bw_bytes"])? / 1e6,
        operations_per_s: number(&found["iops"])?,
        median_us: number(&percentile["50.000000"])? / 1e3,
        p99_us: number(&percentile["99.000000"])? / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use forebay_movement::storage::StoragePath;

    use super::super::cell::Cache;
    use super::*;

    #[test]
    fn fios_json_is_read() {
        let text = r#"fio: a warning
            {"jobs": [{"read": {"bw_bytes": 2500000, "iops": 610.5, "clat_ns": {"percentile":
            {"50.000000": 1500, "99.000000": 9000}}}, "write": {"bw_bytes": 0}}]}"#;
        let found = parse(text, Operation::Read).expect("fio's format");
        let expected = FioFound {
            mb_per_s: 2.5,
            operations_per_s: 610.5,
            median_us: 1.5,
            p99_us: 9.0,
        };
        assert_eq!(found, expected);
        assert!(
            parse(text, Operation::Write).is_err(),
            "it has no percentiles"
        );
        assert!(parse("no JSON", Operation::Read).is_err());
    }

    #[test]
    fn a_failure_of_fio_has_a_cause() {
        let output = |stdout: &str, stderr: &str| Output {
            status: ExitStatus::from_raw(1 << 8),
            stdout: stdout.into(),
            stderr: stderr.into(),
        };
        let found = cause(&output("fio: file is too small\n{\"fio version\": 3}", ""));
        assert_eq!(found, "exit status: 1: fio: file is too small");
        assert!(cause(&output("{}", "fio: no room")).ends_with("fio: no room"));
        assert!(cause(&output("", "")).contains("exit status: 1"));
    }

    #[test]
    fn each_job_of_fio_has_its_own_part_of_the_file() {
        let cell = Cell {
            path: StoragePath::Host,
            cache: Cache::Bypass,
            pattern: Pattern::Random,
            operation: Operation::Write,
            bytes: 4096,
            parallel: 3,
        };
        let all = arguments(&cell, Path::new("/w"), 100_000, 0.5).join(" ");
        for part in [
            "--filename=/w",
            "--rw=randwrite",
            "--size=32768",
            "--runtime=500ms",
        ] {
            assert!(all.contains(part), "{part} in {all}");
        }
    }
}
