//! FerretDB 1.24.2 on SQLite: a MongoDB-compatible server that needs no other program, built from its Go module.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::cache_folder;
use crate::process::ServerProcess;

/// Version of FerretDB.
pub const VERSION: &str = "v1.24.2";
const MODULE: &str = "github.com/FerretDB/FerretDB";

/// A running FerretDB with an empty database in a temporary folder.
#[derive(Debug)]
pub struct FerretDb {
    process: ServerProcess,
    _folder: tempfile::TempDir,
}

impl FerretDb {
    /// Starts the server. Builds it first if this machine has no binary yet, which takes minutes.
    ///
    /// # Errors
    /// If Go is missing, the build fails or the server does not start.
    pub fn start() -> Result<FerretDb> {
        FerretDb::start_with(&[])
    }

    /// Starts the server like [`FerretDb::start`], with further arguments.
    ///
    /// # Errors
    /// As for [`FerretDb::start`].
    pub fn start_with(arguments: &[&str]) -> Result<FerretDb> {
        let folder = tempfile::tempdir()?;
        let mut command = Command::new(binary()?);
        command.args([
            "--handler=sqlite",
            "--listen-addr=127.0.0.1:0",
            "--telemetry=disable",
            "--debug-addr=-",
        ]);
        command.args(arguments);
        command.arg(format!("--sqlite-url=file:{}/", folder.path().display()));
        command.arg(format!("--state-dir={}", folder.path().display()));
        let process = ServerProcess::start(command, uri_in_line)?;
        Ok(FerretDb {
            process,
            _folder: folder,
        })
    }

    /// Returns the connection string.
    pub fn uri(&self) -> &str {
        self.process.uri()
    }
}

fn uri_in_line(line: &str) -> Option<String> {
    let (_, rest) = line.split_once("Listening on TCP ")?;
    let address = rest.split("...").next()?;
    Some(format!("mongodb://{address}"))
}

/// Returns the path of the server's binary, which is built into the cache folder on first use.
///
/// # Errors
/// If Go is missing or the build fails.
pub fn binary() -> Result<PathBuf> {
    let path = cache_folder()?.join(format!("ferretdb-{VERSION}"));
    if !path.exists() {
        build(&path)?;
    }
    Ok(path)
}

/// Folder of a module, as `go mod download` reports it.
#[derive(Deserialize)]
struct Download {
    #[serde(rename = "Dir")]
    dir: PathBuf,
}

/// Builds the binary, or waits for another process that is building it.
fn build(path: &Path) -> Result<()> {
    let lock = path.with_added_extension("lock");
    let locked = File::create(&lock).and_then(|file| file.lock().map(|()| file));
    let _locked = locked.with_context(|| format!("locking {}", lock.display()))?;
    if path.exists() {
        return Ok(());
    }
    eprintln!("Building FerretDB {VERSION}, which takes minutes, but only the first time ...");
    let folder = tempfile::tempdir_in(cache_folder()?)?;
    let module = format!("{MODULE}@{VERSION}");
    let download = go(folder.path(), ["mod", "download", "-json", &module])?;
    let download: Download =
        serde_json::from_slice(&download).context("reading the output of go mod download")?;
    let source = folder.path().join("source");
    copy_writable(&download.dir, &source)?;
    // The release's own build writes this file, without which the server does not start.
    fs::write(source.join("build/version/version.txt"), VERSION)?;
    let built = folder.path().join("ferretdb");
    let arguments = ["build", "-trimpath", "-o"].map(OsStr::new);
    go(
        &source,
        arguments
            .into_iter()
            .chain([built.as_os_str(), OsStr::new("./cmd/ferretdb")]),
    )?;
    fs::rename(built, path).with_context(|| format!("moving the binary to {}", path.display()))
}

/// Copies a folder. Modules in Go's cache are read-only, but the copy must be writable.
fn copy_writable(from: &Path, to: &Path) -> Result<()> {
    let status = Command::new("cp")
        .args(["-r", "--no-preserve=mode"])
        .args([from, to])
        .status()?;
    if !status.success() {
        bail!("copying {} failed", from.display());
    }
    Ok(())
}

/// Runs Go, and retries once if that fails, because Go does not retry failed downloads of modules.
fn go<S: AsRef<OsStr>>(folder: &Path, arguments: impl IntoIterator<Item = S>) -> Result<Vec<u8>> {
    let mut command = Command::new("go");
    command
        .args(arguments)
        .current_dir(folder)
        .env("CGO_ENABLED", "0");
    let mut run = || {
        command
            .output()
            .context("Go is needed to build FerretDB, but did not start")
    };
    let mut output = run()?;
    if !output.status.success() {
        output = run()?;
    }
    if !output.status.success() {
        bail!(
            "{command:?} failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_found_in_the_line_that_names_it() {
        let line = "2026-01-01T00:00:00.000Z\tINFO\tlistener.go:107\tListening on TCP 127.0.0.1:43329...\t{}";
        assert_eq!(
            uri_in_line(line).as_deref(),
            Some("mongodb://127.0.0.1:43329")
        );
        assert_eq!(uri_in_line("Starting FerretDB v1.24.2..."), None);
    }
}
