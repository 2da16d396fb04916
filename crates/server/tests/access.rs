//! Who may read and do what: files, roles, users that are gone, and places for strangers.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

const BINARY: &str = env!("CARGO_BIN_EXE_forebay");

/// The program, for an account that shows its files to all others.
fn with_open_umask(arguments: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "umask 022; exec \"$0\" \"$@\"", BINARY])
        .args(arguments);
    command
}

/// The files and folders below a folder, and the folder itself.
fn all_below(path: &Path) -> Result<Vec<std::path::PathBuf>> {
    let mut found = vec![path.to_owned()];
    if path.is_dir() {
        for entry in fs::read_dir(path)? {
            found.extend(all_below(&entry?.path())?);
        }
    }
    Ok(found)
}

fn ensure_private(folder: &Path) -> Result<()> {
    let all = all_below(folder)?;
    ensure!(all.len() > 3, "there is little in {folder:?}: {all:?}");
    for path in all {
        let mode = fs::metadata(&path)?.permissions().mode() & 0o777;
        ensure!(mode & 0o077 == 0, "{path:?} has mode {mode:o}");
    }
    Ok(())
}

#[test]
fn other_accounts_cannot_read_the_data() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let data = folder.path().join("data");
    let path = data.to_str().context("a plain name")?;
    let added = with_open_umask(&["user", "add", "ada", "--data", path])
        .env("FOREBAY_PASSWORD", "secret")
        .output()?;
    ensure!(added.status.success(), "{added:?}");
    ensure_private(&data)?;

    fs::remove_dir_all(&data)?;
    let mut server = with_open_umask(&["serve", "--until-stdin-ends"])
        .args(["--data", path, "--listen", "127.0.0.1:0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()?;
    drop(server.stdin.take());
    ensure!(server.wait()?.success());
    ensure_private(&data)
}
