//! Joins on a small file system, and with a limit of file sizes. A test runs again in a child process, which has the
//! file system or the limit for itself.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use forebay_device::AlignedBytes;
use forebay_movement::storage::{DataFile, PageCache};

use super::faults::{assert_uses, guard};
use super::{gpu, on_disk};
use crate::crew::Crew;
use crate::run_file::RunFile;
use crate::{JoinError, JoinPlan, PartitionedJoin};

/// Tells the child process of a test the folder.
const FOLDER: &str = "FOREBAY_TEST_FOLDER";
/// What a shell ends with if the system refuses what it is to prepare.
const REFUSED: i32 = 77;
/// Mounts a file system of 8 MiB, which only processes of this namespace see, at a folder.
const WITH_SMALL_DISK: &str = "mount -t tmpfs -o size=8m none \"$0\" || exit 77; exec \"$@\"";
/// Limits files to 1 or 2 MiB: shells differ in the unit. A larger file does not end the process.
const WITH_SMALL_FILES: &str = "trap '' XFSZ; ulimit -f 2048 || exit 77; exec \"$@\"";

/// Bytes of a run, and number of runs that are more than there is room for.
const RUN_BYTES: usize = 1 << 20;
const RUNS: usize = 9;

/// Runs a test again in a child process of a shell, and asserts that it passes there. Returns the folder in the child
/// process, and `None` in the parent. Where the system refuses what the shell prepares, prints that the test is
/// skipped.
fn folder_in_child(test: &str, shell: &[&str], script: &str) -> Option<PathBuf> {
    if let Some(folder) = env::var_os(FOLDER) {
        return Some(folder.into());
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_, module) = module_path!().split_once("::").expect("a crate");
    let name = format!("{module}::{test}");
    let ran = Command::new(shell[0])
        .args(&shell[1..])
        .args(["-c", script])
        .arg(folder.path())
        .arg(env::current_exe().expect("this test has a file"))
        .args([name.as_str(), "--exact", "--nocapture"])
        .env(FOLDER, folder.path())
        // GPUs may be out of reach in a namespace.
        .env_remove("FOREBAY_REQUIRE_GPU")
        .output();
    let ran = match ran {
        Ok(ran) => ran,
        Err(error) => {
            println!("skipped: {}: {error}", shell[0]);
            return None;
        }
    };
    let [output, errors] = [&ran.stdout, &ran.stderr].map(|text| String::from_utf8_lossy(text));
    match ran.status.code() {
        Some(0) => assert!(output.contains("1 passed"), "{output}"),
        // `unshare` ends with 1.
        Some(1 | REFUSED) => println!("skipped: {errors}"),
        _ => panic!("{}: {output}\n{errors}", ran.status),
    }
    None
}

/// Writes runs to a new file in a folder, which has no other, and asserts that no name is left.
fn write(folder: &Path, runs: usize) -> Result<(), JoinError> {
    let file = DataFile::temporary(folder, PageCache::Bypass).expect("a folder");
    let (file, stop) = (RunFile::new(file, RUN_BYTES as u64), guard());
    let run = AlignedBytes::zeroed(RUN_BYTES);
    let runs: Vec<(usize, &[u8])> = (0..runs).map(|index| (index, &run[..])).collect();
    let crew = Crew::new(&stop);
    file.write(&runs, &crew);
    let ended = crew.end();
    assert_eq!(fs::read_dir(folder).expect("it exists").count(), 0);
    ended?;
    file.end_writes()
}

/// Asserts that a join cannot use its file, and says what to do.
fn assert_says(error: &JoinError, wanted: [&str; 2]) {
    let text = error.to_string();
    assert!(matches!(error, JoinError::File(_)), "{text}");
    assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
}

const IS_FULL: [&str; 2] = ["no space is left", "free some"];

#[test]
fn a_full_disk_is_an_error_and_has_room_again_afterwards() {
    let test = "a_full_disk_is_an_error_and_has_room_again_afterwards";
    let shell = ["unshare", "--user", "--map-root-user", "--mount", "sh"];
    let Some(folder) = folder_in_child(test, &shell, WITH_SMALL_DISK) else {
        return;
    };
    for _ in 0..2 {
        assert_says(&write(&folder, RUNS).expect_err("8 MiB"), IS_FULL);
        write(&folder, RUNS - 2).expect("it has room for that");
    }
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let ([build, probe], plan, answer) = on_disk(&device);
    let plan = JoinPlan {
        spill_directory: Some(folder.clone()),
        ..plan
    };
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    let used = device.memory_used_bytes();
    for _ in 0..2 {
        let other = folder.join("other");
        fs::write(&other, vec![0; 7 << 20]).expect("room");
        let full = join.run((&build, &probe), &guard());
        assert_says(&full.expect_err("1 MiB"), IS_FULL);
        assert_uses(&device, used);
        fs::remove_file(&other).expect("just written");
        let joined = join.run((&build, &probe), &guard());
        assert_eq!(joined.expect("room").totals, answer);
    }
}

#[test]
fn a_file_above_the_limit_of_sizes_is_an_error() {
    let test = "a_file_above_the_limit_of_sizes_is_an_error";
    let Some(folder) = folder_in_child(test, &["sh"], WITH_SMALL_FILES) else {
        return;
    };
    let wanted = ["the file cannot grow", "`ulimit -f`"];
    assert_says(&write(&folder, RUNS).expect_err("2 MiB"), wanted);
    write(&folder, 1).expect("1 MiB");
}
