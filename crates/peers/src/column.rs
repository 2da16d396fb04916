//! Programs that hold a column in memory and count matching values on all cores: one calls Rust's `regex` for each
//! value, the other runs Hyperscan or Vectorscan over the bytes of all values.
//!
//! Each program runs in its own process. It prints its version, then reads one pattern per line, and prints the count
//! and the milliseconds of the scan alone.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::io::{BufRead, BufReader, Write, stdin};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use regex::Regex;

use crate::cache_folder;

/// Source of the C program that searches with libhs. It is compiled on first use.
const LIBHS_SOURCE: &str = include_str!("libhs.c");

/// A program that searches a column, in a child process.
#[derive(Debug)]
pub struct ColumnSearch {
    name: String,
    child: Child,
    patterns: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl ColumnSearch {
    /// Starts `command`, which must call [`serve_regex_crate`], to search with Rust's `regex`.
    ///
    /// # Errors
    /// If the process does not start.
    pub fn regex_crate(command: Command) -> Result<ColumnSearch> {
        ColumnSearch::start(command, "Rust regex")
    }

    /// Starts a search with Hyperscan or Vectorscan, whichever is installed.
    ///
    /// # Errors
    /// If neither is installed with its header, or there is no C compiler.
    pub fn libhs(file: &Path) -> Result<ColumnSearch> {
        let mut command = Command::new(libhs_binary()?);
        command.arg(file);
        ColumnSearch::start(command, "libhs")
    }

    fn start(mut command: Command, name: &str) -> Result<ColumnSearch> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .with_context(|| format!("starting {command:?}"))?;
        let patterns = child
            .stdin
            .take()
            .context("the child's standard input is not a pipe")?;
        let answers = BufReader::new(
            child
                .stdout
                .take()
                .context("the child's standard output is not a pipe")?,
        );
        let mut search = ColumnSearch {
            name: String::new(),
            child,
            patterns,
            answers,
        };
        search.name = format!("{name} {}", search.line()?);
        Ok(search)
    }

    /// Returns the name and version of the program.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of matching values and the time of the scan in milliseconds.
    ///
    /// # Errors
    /// If the program refuses the pattern; its reason is on standard error.
    pub fn count(&mut self, pattern: &str) -> Result<(u64, f64)> {
        writeln!(self.patterns, "{pattern}")?;
        let line = self.line()?;
        let (count, time) = line.split_once(' ').context("no count and time")?;
        Ok((count.parse()?, time.parse()?))
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.answers.read_line(&mut line)? == 0 {
            bail!(
                "the process of the column search ended with {}",
                self.child.wait()?
            );
        }
        Ok(line.trim().to_owned())
    }
}

impl Drop for ColumnSearch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the path of the C program that searches with libhs. On first use, compiles it into the cache folder.
fn libhs_binary() -> Result<PathBuf> {
    let folder = cache_folder()?;
    let mut hasher = DefaultHasher::new();
    hasher.write(LIBHS_SOURCE.as_bytes());
    let path = folder.join(format!("libhs-column-{:016x}", hasher.finish()));
    if !path.exists() {
        let built = tempfile::tempdir_in(folder)?;
        let (source, binary) = (built.path().join("libhs.c"), built.path().join("libhs"));
        fs::write(&source, LIBHS_SOURCE)?;
        let mut command = Command::new("cc");
        command
            .args(["-O2", "-pthread", "-o"])
            .args([&binary, &source]);
        let output = command.arg("-lhs").output().context("cc did not start")?;
        if !output.status.success() {
            bail!("cc finds no libhs (on Debian: libvectorscan-dev or libhyperscan-dev)");
        }
        fs::rename(binary, &path)?;
    }
    Ok(path)
}

/// Searches the values of `file`, one per line. Runs in the process that [`ColumnSearch::regex_crate`] starts.
///
/// # Errors
/// If the file cannot be read, or a pattern is invalid.
pub fn serve_regex_crate(file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let values: Vec<&str> = text.lines().collect();
    println!("1");
    let mut last = None;
    for pattern in stdin().lines() {
        let pattern = pattern?;
        let regex = match last.take() {
            Some((known, regex)) if known == pattern => regex,
            _ => Regex::new(&pattern)?,
        };
        let start = Instant::now();
        let count = count_on_all_cores(&values, &regex);
        println!("{count} {:.6}", start.elapsed().as_secs_f64() * 1e3);
        last = Some((pattern, regex));
    }
    Ok(())
}

/// Counts matches on all cores. Each thread has a copy of the regex; otherwise threads contend for its scratch memory.
fn count_on_all_cores(values: &[&str], regex: &Regex) -> usize {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let share = values.len().div_ceil(cores).max(1);
    thread::scope(|scope| {
        let shares: Vec<_> = values
            .chunks(share)
            .map(|share| {
                let regex = regex.clone();
                scope.spawn(move || share.iter().filter(|value| regex.is_match(value)).count())
            })
            .collect();
        let counts = shares.into_iter().map(|share| share.join());
        counts.map(|count| count.expect("no panic")).sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_counted_once_however_many_cores_there_are() {
        let regex = Regex::new("^a").expect("a pattern");
        for count in [0, 1, 2, 7, 100] {
            let values = vec!["ab"; count];
            assert_eq!(count_on_all_cores(&values, &regex), count);
        }
    }
}
