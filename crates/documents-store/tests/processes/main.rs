//! Tests that need separate processes, to kill them or to run them under limits of the operating system.
//!
//! This target has its own `main`. With the argument `child`, the executable is the child process of a test. Otherwise
//! it runs the tests: all of them, or those whose name contains the first argument.

mod kill;
mod limits;

#[path = "../common/mod.rs"]
mod common;

use std::panic::catch_unwind;
use std::path::Path;
use std::process::{Command, ExitCode};

/// Name and function of a test.
type Test = (&'static str, fn());

const TESTS: [Test; 5] = [
    (
        "nothing_acknowledged_is_lost_by_kills",
        kill::nothing_acknowledged_is_lost_by_kills,
    ),
    (
        "a_sync_needs_no_file_descriptor",
        limits::a_sync_needs_no_file_descriptor,
    ),
    (
        "a_full_disk_refuses_writes_and_keeps_the_rest",
        limits::a_full_disk_refuses_writes_and_keeps_the_rest,
    ),
    (
        "a_store_that_could_not_open_a_file_opens_later",
        limits::a_store_that_could_not_open_a_file_opens_later,
    ),
    (
        "nothing_synced_is_lost_by_failed_writes",
        limits::nothing_synced_is_lost_by_failed_writes,
    ),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [child, kind, directory, numbers @ ..] = arguments.as_slice()
        && child == "child"
    {
        let numbers = numbers.iter().map(|number| number.parse());
        let numbers: Result<Vec<u64>, _> = numbers.collect();
        run_child(kind, Path::new(directory), &numbers.expect("numbers"));
        return ExitCode::SUCCESS;
    }
    let filter = arguments.iter().find(|argument| !argument.starts_with('-'));
    let is_wanted = |name: &str| filter.is_none_or(|filter| name.contains(filter.as_str()));
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| is_wanted(name)) {
        let passed = catch_unwind(test).is_ok();
        println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
        failed += u8::from(!passed);
    }
    ExitCode::from(failed)
}

fn run_child(kind: &str, directory: &Path, numbers: &[u64]) {
    match (kind, numbers) {
        ("kill", [first, seed]) => kill::child(directory, *first, *seed),
        ("descriptors", []) => limits::child_without_descriptors(directory),
        ("full", []) => limits::child_on_full_disk(directory),
        ("open", [descriptors]) => limits::child_that_opens(directory, *descriptors),
        ("writes", [first, seed, life]) => {
            limits::child_with_failing_writes(directory, *first, *seed, *life);
        }
        _ => panic!("no such child: {kind} {numbers:?}"),
    }
}

/// Builds the command for a child. The child ignores SIGXFSZ, so that a write beyond the file size limit fails.
fn child(kind: &str, directory: &Path, numbers: &[u64]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "trap '' XFSZ; exec \"$0\" child \"$@\""])
        .arg(std::env::current_exe().expect("this test has a file"))
        .arg(kind)
        .arg(directory)
        .args(numbers.iter().map(u64::to_string));
    command
}
