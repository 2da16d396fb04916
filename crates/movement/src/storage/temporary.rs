//! Files without a name: their disk space is free when the process ends, even by `kill -9`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Beginning of the name that a file has until it is unlinked.
const PREFIX: &str = ".forebay-unlinked-";
/// Mode of the files.
const OWNER_ONLY: u32 = 0o600;

/// Creates a file without a name in a folder, for reading and writing.
///
/// # Errors
/// If the folder does not exist or is not writable.
pub(super) fn unnamed(folder: &Path) -> io::Result<File> {
    match options().custom_flags(libc::O_TMPFILE).open(folder) {
        Err(error) if is_unsupported(&error) => unlinked(folder),
        made => made,
    }
}

/// Creates a file in a folder and unlinks it at once, for file systems without unnamed files. A kill between the two
/// leaves an empty file, which the next call removes.
fn unlinked(folder: &Path) -> io::Result<File> {
    remove_named(folder);
    let create = |path: &Path| options().create_new(true).open(path);
    let named = tempfile::Builder::new()
        .prefix(PREFIX)
        .make_in(folder, create)?;
    // Dropping the path unlinks the file, unless another process has.
    Ok(named.into_file())
}

/// Unlinks the files of [`unlinked`] in a folder that have a name: what kills left, and what other processes are
/// about to unlink.
fn remove_named(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if name.as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            // Those of other users may stay.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(OWNER_ONLY);
    options
}

/// Returns whether an error tells that the file system or the kernel has no unnamed files: some kernels open the
/// folder instead, or do not find a file.
fn is_unsupported(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EOPNOTSUPP | libc::EISDIR | libc::ENOENT | libc::EINVAL)
    )
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Tells a child process the folder, and the way in which it makes a file there.
    const FOLDER: &str = "FOREBAY_TEST_FOLDER";
    const WAY: &str = "FOREBAY_TEST_WAY";

    /// Holds a file with data until it is killed, or the parent process ends.
    fn hold(folder: &Path) {
        let made = match env::var_os(WAY) {
            Some(way) if way == "unlinked" => unlinked(folder),
            _ => unnamed(folder),
        };
        let mut file = made.expect("a folder");
        file.write_all(&[7; 100_000]).expect("room");
        println!("written");
        let _ = io::stdin().lines().next();
    }

    /// Starts this test again in a process that holds a file. Returns it when the file has data.
    fn holder(folder: &Path, way: &str) -> Child {
        let name = concat!(module_path!(), "::a_file_is_gone_after_a_kill");
        let (_, test) = name.split_once("::").expect("a crate");
        let mut child = Command::new(env::current_exe().expect("this test has a file"))
            .args([test, "--exact", "--nocapture"])
            .env(FOLDER, folder)
            .env(WAY, way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut lines = output.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains("written")), "{way}");
        child
    }

    /// Returns the bytes of the files without a name that a process has open in a folder.
    fn held_bytes(child: &Child, folder: &Path) -> u64 {
        let open = fs::read_dir(format!("/proc/{}/fd", child.id())).expect("it runs");
        let paths = open.flatten().map(|entry| entry.path());
        let held = paths.filter(|path| {
            let target = fs::read_link(path).unwrap_or_default();
            target.starts_with(folder) && target.to_string_lossy().ends_with("(deleted)")
        });
        held.map(|path| fs::metadata(path).expect("it is open").len())
            .sum()
    }

    #[test]
    fn a_file_is_gone_after_a_kill() {
        if let Some(folder) = env::var_os(FOLDER) {
            return hold(Path::new(&folder));
        }
        for way in ["unnamed", "unlinked"] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let folder = folder.path().canonicalize().expect("it exists");
            let mut child = holder(&folder, way);
            assert_eq!(held_bytes(&child, &folder), 100_000, "{way}");
            child.kill().expect("it runs");
            child.wait().expect("it was started");
            let left = fs::read_dir(&folder).expect("it exists").count();
            assert_eq!(left, 0, "{way}");
        }
    }

    #[test]
    fn a_name_that_a_kill_left_is_removed_and_other_files_stay() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let left = folder.path().join(format!("{PREFIX}abc"));
        let other = folder.path().join("table");
        fs::write(&left, "").expect("room");
        fs::write(&other, "precious").expect("room");
        let mut file = unlinked(folder.path()).expect("a folder");
        file.write_all(b"bytes").expect("room");
        let names = fs::read_dir(folder.path()).expect("it exists").flatten();
        let names: Vec<_> = names.map(|entry| entry.path()).collect();
        assert_eq!(names, [other]);
    }
}
