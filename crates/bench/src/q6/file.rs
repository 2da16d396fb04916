//! The file of row groups, and the small file beside it that says what it holds.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use forebay_device::AlignedBytes;
use serde::{Deserialize, Serialize};

use super::generate;
use super::new_file::{NewFile, refuse_other_than_files};
use super::table::{self, GROUP_BYTES, GROUP_ROWS};

/// Version of the layout; files of other versions are made again.
const VERSION: u32 = 1;
/// Maximum bytes of a description.
const ABOUT_BYTES_MAX: u64 = 64 << 10;
/// Row groups that a thread reads at once when it verifies a file.
const VERIFY_GROUPS: usize = 64;

/// What a file of row groups holds.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
pub struct About {
    version: u32,
    /// Scale factor of TPC-H.
    pub scale_factor: f64,
    /// Number of rows, without padding.
    pub rows: u64,
    /// Number of row groups.
    pub groups: u64,
    /// Exact answer of query 6, in units of 0.0001.
    pub revenue: u64,
    /// Checksum of the row groups; see [`table::checksum`].
    pub checksum: u64,
}

impl About {
    /// Returns the number of bytes of the row groups.
    pub fn bytes(&self) -> u64 {
        self.groups * GROUP_BYTES as u64
    }
}

/// A verified file of row groups.
#[derive(Clone, Debug)]
pub struct TableFile {
    /// Path of the row groups.
    pub path: PathBuf,
    /// What the file holds.
    pub about: About,
}

impl TableFile {
    /// Returns the file for a scale factor in a folder. Makes it if it is missing, unfinished, truncated or of another
    /// version, and verifies it otherwise.
    ///
    /// # Errors
    /// If the file cannot be written or read, its bytes are not those that were written, or there is no room for it.
    pub fn open_or_make(folder: &Path, scale_factor: f64, threads: usize) -> Result<TableFile> {
        let path = folder.join(format!("lineitem-{scale_factor}.groups"));
        refuse_other_than_files(&path)?;
        let found = about_of(&path)?.filter(|about| {
            let bytes = fs::metadata(&path).map(|found| found.len()).ok();
            about.version == VERSION
                && about.scale_factor == scale_factor
                && bytes == Some(about.bytes())
        });
        let Some(about) = found else {
            let about = make(&path, scale_factor, threads)?;
            return Ok(TableFile { path, about });
        };
        let file = TableFile { path, about };
        file.verify(threads)?;
        Ok(file)
    }

    /// Returns the path of the file that says what this one holds.
    pub fn about_path(&self) -> PathBuf {
        about_path(&self.path)
    }

    /// Reads all row groups into memory and verifies them.
    ///
    /// # Errors
    /// If the file cannot be read, or its bytes are not those that were written.
    pub fn load(&self, threads: usize) -> Result<AlignedBytes> {
        let bytes = usize::try_from(self.about.bytes()).context("a table for a larger machine")?;
        let mut groups = AlignedBytes::zeroed(bytes);
        self.load_into(&mut groups, threads)?;
        Ok(groups)
    }

    /// Reads all row groups into memory of their size and verifies them.
    ///
    /// # Errors
    /// As for [`TableFile::load`].
    pub fn load_into(&self, groups: &mut [u8], threads: usize) -> Result<()> {
        let share = self.share(threads);
        self.check(thread::scope(|scope| {
            let parts = groups.chunks_mut(share * GROUP_BYTES).zip(0..);
            let running = parts.map(|(part, number)| {
                scope.spawn(move || self.read_groups((number * share) as u64, part))
            });
            let running: Vec<_> = running.collect();
            joined(running)
        })?)
    }

    fn open(&self) -> Result<File> {
        File::open(&self.path).with_context(|| format!("opening {}", self.path.display()))
    }

    /// Returns the number of row groups that each of `threads` threads reads.
    fn share(&self, threads: usize) -> usize {
        (self.about.groups as usize).div_ceil(threads.max(1)).max(1)
    }

    fn verify(&self, threads: usize) -> Result<()> {
        let (groups, share) = (self.about.groups as usize, self.share(threads));
        self.check(thread::scope(|scope| {
            let parts = (0..groups).step_by(share);
            let running = parts.map(|first| {
                let end = (first + share).min(groups);
                scope.spawn(move || self.verify_groups(first, end))
            });
            let running: Vec<_> = running.collect();
            joined(running)
        })?)
    }

    /// Returns the checksum of a range of row groups.
    fn verify_groups(&self, first: usize, end: usize) -> Result<u64> {
        let mut buffer = vec![0; VERIFY_GROUPS * GROUP_BYTES];
        let mut checksum = 0_u64;
        for begin in (first..end).step_by(VERIFY_GROUPS) {
            let bytes = (end - begin).min(VERIFY_GROUPS) * GROUP_BYTES;
            let part = self.read_groups(begin as u64, &mut buffer[..bytes])?;
            checksum = checksum.wrapping_add(part);
        }
        Ok(checksum)
    }

    /// Fills `into` with row groups and returns their checksum.
    fn read_groups(&self, first: u64, into: &mut [u8]) -> Result<u64> {
        let offset = first * GROUP_BYTES as u64;
        self.open()?
            .read_exact_at(into, offset)
            .with_context(|| format!("reading {} at byte {offset}", self.path.display()))?;
        Ok(table::checksum(into, first))
    }

    fn check(&self, checksum: u64) -> Result<()> {
        ensure!(
            checksum == self.about.checksum,
            "the bytes of {} are not those that were written; remove it, and it is made again",
            self.path.display()
        );
        Ok(())
    }
}

/// Returns the sum of the threads' checksums.
fn joined(running: Vec<thread::ScopedJoinHandle<'_, Result<u64>>>) -> Result<u64> {
    let mut sum = 0_u64;
    for part in running {
        let part = part.join().map_err(|_| anyhow!("a thread panicked"))??;
        sum = sum.wrapping_add(part);
    }
    Ok(sum)
}

/// Returns the path of the file that describes the row groups.
fn about_path(path: &Path) -> PathBuf {
    path.with_extension("json")
}

/// Returns the description; `None` if it is missing or of another version.
///
/// # Errors
/// If a file of this name is none that this program made, which would be overwritten.
fn about_of(path: &Path) -> Result<Option<About>> {
    let about = about_path(path);
    refuse_other_than_files(&about)?;
    let file = match File::open(&about) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            ensure!(!path.exists(), foreign(path));
            return Ok(None);
        }
        Err(error) => return Err(error).with_context(|| format!("opening {}", about.display())),
    };
    let mut text = String::new();
    let read = file.take(ABOUT_BYTES_MAX).read_to_string(&mut text);
    let is_ours = read.is_ok() && serde_json::from_str::<Versioned>(&text).is_ok();
    ensure!(is_ours, foreign(&about));
    Ok(serde_json::from_str(&text).ok())
}

/// What the descriptions of all versions have.
#[derive(Deserialize)]
struct Versioned {
    #[serde(rename = "version")]
    _version: u32,
    #[serde(rename = "scale_factor")]
    _scale_factor: f64,
}

fn foreign(path: &Path) -> String {
    format!(
        "{} was not made by `forebay bench q6`, or not completely; remove it, or choose another --folder",
        path.display()
    )
}

/// Returns about how many bytes the row groups have; seldom fewer than they will have.
fn bytes_expected(scale_factor: f64) -> u64 {
    let groups = generate::rows_expected(scale_factor).div_ceil(GROUP_ROWS as u64);
    groups * GROUP_BYTES as u64
}

/// Makes a file. The description appears first: a file without one is not ours, and a description without its file is
/// no harm.
fn make(path: &Path, scale_factor: f64, threads: usize) -> Result<About> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    }
    let mut file = NewFile::create(path, bytes_expected(scale_factor))?;
    let totals = generate::table(scale_factor, threads, |groups| {
        let written = file.write_all(groups);
        written.with_context(|| file.writing())
    })?;
    let about = About {
        version: VERSION,
        scale_factor,
        rows: totals.rows,
        groups: totals.groups,
        revenue: totals.revenue,
        checksum: totals.checksum,
    };
    let text = serde_json::to_string_pretty(&about)?;
    let text = text + "\n";
    let mut description = NewFile::create(&about_path(path), text.len() as u64)?;
    let written = description.write_all(text.as_bytes());
    written.with_context(|| description.writing())?;
    description.complete()?;
    file.complete()?;
    Ok(about)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCALE: f64 = 0.003;

    fn open(folder: &Path) -> Result<TableFile> {
        TableFile::open_or_make(folder, SCALE, 2)
    }

    fn modified(file: &TableFile) -> std::time::SystemTime {
        let found = fs::metadata(&file.path).and_then(|found| found.modified());
        found.expect("the file is there")
    }

    #[test]
    fn a_file_is_made_once_and_used_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = open(&folder.path().join("new/folder")).expect("it is made");
        let before = modified(&made);
        let again = open(&folder.path().join("new/folder")).expect("it is there");
        assert_eq!((&again.about, modified(&again)), (&made.about, before));
        let groups = made.load(3).expect("readable");
        assert_eq!(groups.len() as u64, made.about.bytes());
        assert_eq!(super::super::cpu::sum(&groups), made.about.revenue);
    }

    #[test]
    fn a_truncated_or_unfinished_file_is_made_again() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = open(folder.path()).expect("it is made");
        let whole = fs::read(&made.path).expect("readable");
        fs::write(&made.path, &whole[..whole.len() - 1]).expect("writable");
        open(folder.path()).expect("it is made again");
        assert_eq!(fs::read(&made.path).expect("readable"), whole);
        fs::remove_file(&made.path).expect("it is there");
        open(folder.path()).expect("it is made again");
        assert_eq!(fs::read(&made.path).expect("readable"), whole);
    }

    #[test]
    fn files_of_others_are_not_overwritten() {
        for name in ["lineitem-0.003.groups", "lineitem-0.003.json"] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let path = folder.path().join(name);
            fs::write(&path, "{}").expect("writable");
            let text = open(folder.path()).expect_err("not ours").to_string();
            assert!(
                text.contains(name) && text.contains("another --folder"),
                "{text}"
            );
            assert_eq!(fs::read(&path).expect("it is there"), b"{}");
        }
    }

    #[test]
    fn changed_bytes_are_refused() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let made = open(folder.path()).expect("it is made");
        let mut whole = fs::read(&made.path).expect("readable");
        whole[GROUP_BYTES + 5] ^= 1;
        fs::write(&made.path, whole).expect("writable");
        for error in [open(folder.path()).map(drop), made.load(2).map(drop)] {
            let text = error.expect_err("the checksum differs").to_string();
            assert!(
                text.contains("lineitem-0.003.groups") && text.contains("remove it"),
                "{text}"
            );
        }
    }

    #[test]
    fn pipes_in_place_of_the_files_are_refused() {
        for name in ["lineitem-0.003.groups", "lineitem-0.003.json"] {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let mode = nix::sys::stat::Mode::S_IRWXU;
            nix::unistd::mkfifo(&folder.path().join(name), mode).expect("a pipe");
            let text = open(folder.path()).expect_err("no file").to_string();
            assert!(
                text.contains(name) && text.contains("not a regular file"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_table_larger_than_the_disk_is_refused_before_it_is_made() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let huge = generate::SCALE_FACTOR_MAX * 1e6;
        let error = TableFile::open_or_make(folder.path(), huge, 2).expect_err("exabytes");
        assert!(error.to_string().contains("free some"), "{error}");
        let left = fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(left, 0, "nothing is left");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("a-file");
        fs::write(&file, "").expect("writable");
        let error = open(&file.join("data")).expect_err("a file is no folder");
        assert!(error.to_string().contains("a-file/data"), "{error}");
    }
}
