//! `forebay doctor` as a user runs it.

use std::fs::{self, File};
use std::io;
use std::process::{Command, Output};

use anyhow::{Result, ensure};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// The ways of reading a file to a device.
const PATHS: [&str; 5] = [
    "staged-uring",
    "staged-threads",
    "direct-sync",
    "direct-async",
    "direct-batch",
];

fn doctor(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.arg("doctor").args(arguments);
    command
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the error of a command that fails without a panic.
fn refused(mut command: Command) -> Result<String> {
    let output = command.output()?;
    let said = said(&output);
    assert_eq!(output.status.code(), Some(1), "{said}");
    ensure!(said.starts_with("forebay: "), "{said}");
    ensure!(said.lines().count() == 1, "{said}");
    Ok(said)
}

#[test]
fn a_measurement_names_every_path_and_leaves_only_its_rates() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().to_string_lossy();
    // What a killed measurement leaves.
    fs::write(folder.path().join("movement.json.scratch"), "old")?;
    let output = doctor(&["--measure", "--data", &data]).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    let report = String::from_utf8(output.stdout)?;
    for path in PATHS {
        let lines = report.lines();
        let of_path = lines.filter(|line| {
            line.starts_with(&format!("{path}: not measured: "))
                || line.contains(&format!("  {path} "))
        });
        assert_eq!(of_path.count(), 1, "{path} in {report}");
    }
    let is_predicted = report.contains("G TUPLES/S") || report.contains("joins: not predicted: ");
    ensure!(is_predicted, "{report}");
    let names = fs::read_dir(folder.path())?.map(|entry| Ok(entry?.file_name()));
    let names = names.collect::<io::Result<Vec<_>>>()?;
    assert_eq!(names, ["movement.json"]);
    let kept = || {
        Ok::<_, anyhow::Error>(String::from_utf8(
            doctor(&["--data", &data]).output()?.stdout,
        )?)
    };
    ensure!(kept()?.contains("\nfrom file: staged-"));
    fs::write(folder.path().join("movement.json"), "{")?;
    ensure!(kept()?.contains("movement.json is damaged"));
    Ok(())
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named() -> Result<()> {
    let file = tempfile::NamedTempFile::new()?;
    let path = file.path().to_string_lossy();
    let said = refused(doctor(&["--measure", "--data", &path]))?;
    ensure!(
        said.contains(&format!("{path} is not a directory; name")),
        "{said}"
    );
    let said = refused(doctor(&["--measure", "--data", "/proc/nothing"]))?;
    ensure!(said.contains("creating /proc/nothing: "), "{said}");
    Ok(())
}

#[test]
fn output_that_is_not_read_ends_the_command_without_an_error() -> Result<()> {
    let (reader, writer) = io::pipe()?;
    drop(reader);
    let output = doctor(&[]).stdout(writer).output()?;
    ensure!(output.status.success(), "{}", said(&output));
    assert_eq!(said(&output), "");
    let full = File::options().write(true).open("/dev/full")?;
    let said = said(&doctor(&[]).stdout(full).output()?);
    ensure!(
        said.starts_with("forebay: standard output cannot be written: No space"),
        "{said}"
    );
    Ok(())
}

#[test]
fn too_few_descriptors_are_an_error_with_a_remedy() -> Result<()> {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 8; exec \"$0\" doctor", BINARY]);
    let said = refused(command)?;
    ensure!(said.contains("ulimit -n"), "{said}");
    Ok(())
}
