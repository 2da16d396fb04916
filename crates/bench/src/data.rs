//! The data of the demonstration and the benchmarks: real package names and films, or generated names.
//!
//! Real data is fetched with the npm client and kept in the user's cache folder. The releases of the npm packages are
//! pinned, so that the counts that benchmarks expect are right on every machine.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use bson::Document;
use forebay_peers::cache_folder;

/// npm package with the names of all npm packages. The counts that benchmarks expect are those of this release.
const NAMES_PACKAGE: &str = "all-the-package-names@2.0.2578";
/// npm package with films, flights and airports.
const VEGA_PACKAGE: &str = "vega-datasets@3.2.1";
/// Films, of which some fields are null.
const MOVIES: &str = "movies.json";
/// Flights in the United States in 2001: three million rows.
const FLIGHTS: &str = "flights-3m.parquet";
/// Airports in the United States.
const AIRPORTS: &str = "airports.csv";
/// Number of names in the pinned release.
pub const NAMES_COUNT: usize = 4_499_322;
/// Seed of the generated names.
const GENERATED_SEED: u64 = 0x666f_7265_6261_7901;

/// Returns the path of a file with all package names, one per line. Fetches it on first use.
///
/// # Errors
/// If npm is missing or cannot reach its registry, or the disk is full.
pub fn names_file() -> Result<PathBuf> {
    let path = cache_folder()?.join(format!("{}.txt", NAMES_PACKAGE.replace('@', "-")));
    if !path.exists() {
        let json = Archive::fetch(NAMES_PACKAGE)?.read("package/names.json")?;
        let names: Vec<String> = serde_json::from_slice(&json).context("reading names.json")?;
        write_lines(&path, names.iter().map(String::as_str))?;
    }
    Ok(path)
}

/// Returns all package names.
///
/// # Errors
/// As for [`names_file`].
pub fn names() -> Result<Vec<String>> {
    let path = names_file()?;
    let text = fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns the films: documents with `Title`, `Director`, `Distributor`, `IMDB Rating` and more, many of them null.
///
/// # Errors
/// As for [`names_file`].
pub fn movies() -> Result<Vec<Document>> {
    let path = vega_file(MOVIES)?;
    let bytes = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&bytes).context("reading movies.json")
}

/// Returns the paths of the flights, a Parquet file, and of the airports, a CSV file. Fetches them on first use.
///
/// # Errors
/// As for [`names_file`].
#[cfg(feature = "tables")]
pub fn flights() -> Result<[PathBuf; 2]> {
    Ok([vega_file(FLIGHTS)?, vega_file(AIRPORTS)?])
}

/// Returns the path of a file of the npm package of films and flights. If it is missing, fetches all files.
fn vega_file(name: &str) -> Result<PathBuf> {
    let folder = cache_folder()?;
    let path = |name| folder.join(format!("{}-{name}", VEGA_PACKAGE.replace('@', "-")));
    if !path(name).exists() {
        let archive = Archive::fetch(VEGA_PACKAGE)?;
        for name in [MOVIES, FLIGHTS, AIRPORTS] {
            replace_file(&path(name), &archive.read(&format!("package/data/{name}"))?)?;
        }
    }
    Ok(path(name))
}

/// Generates names that look like package names, for machines without npm and for small runs. Every call generates the
/// same names.
pub fn generated_names(count: usize) -> Vec<String> {
    let mut random = fastrand::Rng::with_seed(GENERATED_SEED);
    (0..count)
        .map(|number| generated_name(&mut random, number))
        .collect()
}

fn generated_name(random: &mut fastrand::Rng, number: usize) -> String {
    const WORDS: [&str; 24] = [
        "react", "vue", "babel", "plugin", "webpack", "loader", "cli", "utils", "core", "api",
        "postgres", "mysql", "mongo", "stream", "native", "hook", "form", "css", "icon", "server",
        "client", "async", "query", "test",
    ];
    let mut name = String::new();
    if random.u8(..4) == 0 {
        name.push_str("@scope/");
    }
    for index in 0..random.usize(1..4) {
        if index > 0 {
            name.push('-');
        }
        name.push_str(WORDS[random.usize(..WORDS.len())]);
    }
    name.push_str(&format!("-{number}"));
    name
}

/// Writes `lines` to `path`; on failure, `path` is unchanged.
///
/// # Errors
/// If the disk is full or the folder cannot be written.
pub fn write_lines<'a>(path: &Path, lines: impl Iterator<Item = &'a str>) -> Result<()> {
    write_file(path, |writer| {
        for line in lines {
            writer.write_all(line.as_bytes())?;
            writer.write_all(b"\n")?;
        }
        Ok(())
    })
}

/// Writes the output of `write` to `path`; on failure, `path` is unchanged.
///
/// # Errors
/// As for [`write_lines`].
pub fn write_file(path: &Path, write: impl FnOnce(&mut dyn Write) -> Result<()>) -> Result<()> {
    let temporary = temporary_beside(path)?;
    let mut writer = BufWriter::new(temporary.as_file());
    write(&mut writer)?;
    writer.flush()?;
    drop(writer);
    temporary
        .persist(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

fn replace_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let temporary = temporary_beside(path)?;
    temporary.as_file().write_all(bytes)?;
    temporary
        .persist(path)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

/// Returns a new temporary file in the folder of `path`, for a rename to `path` when it is whole.
pub(crate) fn temporary_beside(path: &Path) -> Result<tempfile::NamedTempFile> {
    let folder = path
        .parent()
        .context("the path of the file to write has no folder")?;
    tempfile::NamedTempFile::new_in(folder)
        .with_context(|| format!("writing to {}", folder.display()))
}

/// An npm package in a temporary folder.
struct Archive {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl Archive {
    /// Fetches a package with the npm client, which checks it.
    fn fetch(package: &str) -> Result<Archive> {
        let folder = tempfile::tempdir_in(cache_folder()?)?;
        let mut npm = Command::new("npm");
        npm.args(["pack", package, "--silent", "--pack-destination"])
            .arg(folder.path());
        run(&mut npm, "npm (it comes with Node.js)")?;
        let path = fs::read_dir(folder.path())?
            .next()
            .with_context(|| format!("`npm pack` wrote no archive for {package}"))??
            .path();
        Ok(Archive {
            path,
            _folder: folder,
        })
    }

    /// Reads a file of the package with tar.
    fn read(&self, file: &str) -> Result<Vec<u8>> {
        let mut tar = Command::new("tar");
        tar.arg("-xzOf").arg(&self.path).arg(file);
        run(&mut tar, "tar")
    }
}

/// Runs a tool and returns its output. An error contains the tool's message.
fn run(command: &mut Command, tool: &str) -> Result<Vec<u8>> {
    let output = command
        .output()
        .with_context(|| format!("{tool} is needed to fetch the data, but did not start"))?;
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
    use std::collections::HashSet;

    #[test]
    fn generated_names_are_distinct_and_the_same_every_time() {
        let names = generated_names(1_000);
        assert_eq!(names, generated_names(1_000));
        assert_eq!(names.iter().collect::<HashSet<_>>().len(), 1_000);
    }

    #[test]
    fn lines_are_written_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("lines.txt");
        write_lines(&path, ["a", "", "b c"].into_iter()).expect("the folder is writable");
        assert_eq!(
            fs::read_to_string(&path).expect("just written"),
            "a\n\nb c\n"
        );
    }

    #[test]
    fn a_missing_tool_is_named() {
        let error = run(&mut Command::new("no-such-tool-here"), "no-such-tool-here")
            .expect_err("not there");
        assert!(
            format!("{error:#}").contains("no-such-tool-here is needed"),
            "{error:#}"
        );
    }
}
