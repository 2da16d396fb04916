//! Known content of the files, so that every measurement checks the bytes that it moved.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use forebay_movement::checksum;
use forebay_movement::storage::{Access, AlignedBytes, DataFile, PageCache};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};

/// Bytes of a write when a file is made.
const PART_BYTES: usize = 8 << 20;

/// Seed of the content of the file that is read.
const READ_SEED: u64 = 0;

/// Fills a buffer with content that depends on a seed and on the offset.
pub(super) fn fill(buffer: &mut [u8], seed: u64, offset: u64) {
    let first = offset / 8;
    for (index, word) in (first..).zip(buffer.as_chunks_mut::<8>().0) {
        let mixed = (index ^ seed.rotate_left(40)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        *word = (mixed ^ (mixed >> 27)).to_le_bytes();
    }
}

/// Returns the checksum of content.
pub(super) fn expected(bytes: usize, seed: u64, offset: u64) -> u64 {
    let mut buffer = vec![0; bytes];
    fill(&mut buffer, seed, offset);
    checksum(&buffer)
}

/// Returns the checksum of a range of the file that is read.
pub(super) fn expected_of_file(bytes: usize, offset: u64) -> u64 {
    expected(bytes, READ_SEED, offset)
}

/// Name of the file that is locked during a run, and that marks the two others as made by `bench io`.
const LOCK: &str = "forebay-io.lock";
/// Names of the files that are read and written.
const READ: &str = "forebay-io-read.bin";
const WRITE: &str = "forebay-io-write.bin";
/// Content of the file that is locked.
const MARK: &str =
    "`forebay bench io` made the files forebay-io-* of this folder, and overwrites them.\n";

/// The two files of a run: one that is read, and one that is written.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) read: PathBuf,
    pub(super) write: PathBuf,
    pub(super) bytes: u64,
    /// Locked until the run ends.
    _lock: File,
}

impl Files {
    /// Makes the files if they do not exist in this size, and locks the folder against other runs.
    ///
    /// # Errors
    /// If the disk is full, the folder cannot be written, another run uses it, or it has files of these names that
    /// `bench io` did not make.
    pub(super) fn make(folder: &Path, bytes: u64) -> Result<Files> {
        fs::create_dir_all(folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
        let (read, write) = (folder.join(READ), folder.join(WRITE));
        let lock = lock(folder, [&read, &write])?;
        make(&read, bytes, is_made)?;
        // Each measurement writes its own content.
        make(&write, bytes, |_| Ok(true))?;
        Ok(Files {
            read,
            write,
            bytes,
            _lock: lock,
        })
    }

    /// Returns why the page cache cannot be bypassed; `None` if it can.
    pub(super) fn refusal(&self) -> Result<Option<String>> {
        let file = DataFile::open(&self.read, PageCache::Bypass)?;
        Ok(match file.access() {
            Access::Direct => None,
            Access::Buffered { why } => Some(why),
        })
    }
}

/// Locks a folder, and marks its files as made by `bench io`.
///
/// # Errors
/// If another run holds the lock, or a file is there that `bench io` did not make.
fn lock(folder: &Path, files: [&Path; 2]) -> Result<File> {
    let path = folder.join(LOCK);
    for path in [&path, files[0], files[1]] {
        refuse_foreign_kind(path)?;
    }
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let opened = options.open(&path);
    let mut file = opened.with_context(|| format!("opening {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => bail!(
            "another `forebay bench io` uses {}; wait until it ends, or choose another --folder",
            folder.display()
        ),
        Err(TryLockError::Error(error)) => {
            return Err(error).with_context(|| format!("locking {}", path.display()));
        }
    }
    let mut mark = String::new();
    let read = (&file)
        .take(MARK.len() as u64 + 1)
        .read_to_string(&mut mark);
    if read.is_err() || !matches!(mark.as_str(), "" | MARK) {
        return Err(foreign(&path));
    }
    if mark.is_empty() {
        if let Some(found) = files.iter().find(|path| path.exists()) {
            return Err(foreign(found));
        }
        let marked = file.write_all(MARK.as_bytes());
        marked.with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(file)
}

/// Returns an error if a path names something else than a regular file, such as a link to the user's file.
fn refuse_foreign_kind(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() => Ok(()),
        Ok(_) => Err(foreign(path)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| path.display().to_string()),
    }
}

fn foreign(path: &Path) -> anyhow::Error {
    let path = path.display();
    anyhow::anyhow!("{path} exists and was not made by `forebay bench io`; choose another --folder")
}

/// Makes a file unless it has the right size and content. Removes it if it cannot be made as a whole.
fn make(path: &Path, bytes: u64, is_right: impl Fn(&DataFile) -> Result<bool>) -> Result<()> {
    let file = DataFile::create(path, PageCache::Bypass)?;
    if file.bytes() == bytes && is_right(&file)? {
        return Ok(());
    }
    drop(file);
    let written = write(path, bytes);
    if written.is_err() {
        // A file that could not be finished would keep the disk full. The first error is the one that matters.
        let _ = fs::remove_file(path);
    }
    written
}

fn write(path: &Path, bytes: u64) -> Result<()> {
    let empty = File::create(path).with_context(|| format!("emptying {}", path.display()))?;
    allocate(&empty, bytes).with_context(|| {
        let path = path.display();
        format!(
            "allocating {bytes} bytes for {path}; choose a smaller --file-size or another --folder"
        )
    })?;
    drop(empty);
    let file = DataFile::create(path, PageCache::Bypass)?;
    let mut buffer = AlignedBytes::zeroed(PART_BYTES);
    for offset in (0..bytes).step_by(PART_BYTES) {
        let part = (bytes - offset).min(PART_BYTES as u64) as usize;
        fill(&mut buffer[..part], READ_SEED, offset);
        file.write_all_at(offset, &buffer[..part])?;
    }
    Ok(file.sync()?)
}

/// Allocates the blocks of a file, so that a disk without room refuses it before anything is written. The file's length
/// stays 0, so that an interrupted run leaves no file that looks whole.
fn allocate(file: &File, bytes: u64) -> Result<()> {
    let bytes = i64::try_from(bytes).context("it is larger than any file")?;
    match fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, bytes) {
        // Not every file system can; there, a write fails when the disk is full.
        Ok(()) | Err(Errno::EOPNOTSUPP | Errno::ENOSYS) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Returns whether the last bytes of a file, which are written last, have their content.
fn is_made(file: &DataFile) -> Result<bool> {
    let bytes = file.bytes().min(4096) as usize;
    let offset = file.bytes() - bytes as u64;
    let mut last = vec![0; bytes];
    file.read_exact_at(offset, &mut last)?;
    Ok(checksum(&last) == expected_of_file(bytes, offset))
}

/// Checks blocks that were written with content of a seed, which begins again in each block.
///
/// # Errors
/// If a block has other content.
pub(super) fn check_written(path: &Path, blocks: &[u64], bytes: usize, seed: u64) -> Result<()> {
    /// Maximum bytes that are read again.
    const CHECK_BYTES: usize = 256 << 20;
    if blocks.is_empty() {
        return Ok(());
    }
    let file = DataFile::open(path, PageCache::Bypass)?;
    let right = expected(bytes, seed, 0);
    let mut buffer = AlignedBytes::zeroed(bytes);
    for &offset in blocks.iter().take((CHECK_BYTES / bytes).max(1)) {
        file.read_exact_at(offset, &mut buffer[..bytes])?;
        ensure!(
            checksum(&buffer[..bytes]) == right,
            "{}: the {bytes} bytes written at {offset} are not those read back",
            path.display()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_seed_and_offset() {
        let sums = [(0, 0), (0, 4096), (1, 0)].map(|(seed, offset)| expected(4096, seed, offset));
        assert_ne!(sums[0], sums[1]);
        assert_ne!(sums[0], sums[2]);
        let mut whole = vec![0; 8192];
        fill(&mut whole, 3, 0);
        assert_eq!(checksum(&whole[4096..]), expected(4096, 3, 4096));
    }

    #[test]
    fn files_are_made_once_and_repaired() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 100_000).expect("room");
        let file = DataFile::open(&files.read, PageCache::Use).expect("it is made");
        let mut back = vec![0; 8192];
        file.read_exact_at(50_000 / 8 * 8, &mut back)
            .expect("readable");
        assert_eq!(checksum(&back), expected_of_file(8192, 50_000 / 8 * 8));
        fs::write(&files.read, vec![0; 100_000]).expect("room");
        drop(files);
        let files = Files::make(folder.path(), 100_000).expect("room");
        let file = DataFile::open(&files.read, PageCache::Use).expect("it is made");
        assert!(is_made(&file).expect("readable"));
    }

    #[test]
    fn files_of_the_user_are_refused_and_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let refused = || {
            let error = Files::make(folder.path(), 8192).expect_err("a file of the user");
            assert!(error.to_string().contains("was not made by"), "{error:#}");
        };
        let write = folder.path().join(WRITE);
        fs::write(&write, "precious").expect("room");
        refused();
        assert_eq!(fs::read(&write).expect("it is kept"), b"precious");
        // A link is refused even in a folder that `bench io` has used.
        fs::remove_file(&write).expect("it is there");
        drop(Files::make(folder.path(), 8192).expect("room"));
        let other = folder.path().join("other");
        fs::write(&other, "precious").expect("room");
        fs::remove_file(&write).expect("it was made");
        std::os::unix::fs::symlink(&other, &write).expect("links");
        refused();
        assert_eq!(fs::read(&other).expect("it is kept"), b"precious");
        fs::remove_file(&write).expect("it is there");
        fs::write(folder.path().join(LOCK), "precious").expect("room");
        refused();
    }

    #[test]
    fn two_runs_on_one_folder_do_not_disturb_each_other() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 8192).expect("room");
        let error = Files::make(folder.path(), 4096).expect_err("the folder is in use");
        assert!(
            error.to_string().contains("another `forebay bench io`"),
            "{error:#}"
        );
        let kept = fs::metadata(&files.read).expect("it is kept").len();
        assert_eq!(kept, 8192);
        drop(files);
        Files::make(folder.path(), 4096).expect("the folder is free");
    }

    #[test]
    fn a_file_that_cannot_be_finished_is_removed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let error = Files::make(folder.path(), 1 << 62).expect_err("no file system has the room");
        assert!(
            error.to_string().contains("choose a smaller --file-size"),
            "{error:#}"
        );
        assert!(!folder.path().join(READ).exists());
    }

    #[test]
    fn a_block_that_was_not_written_is_found() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let files = Files::make(folder.path(), 8192).expect("room");
        let file = DataFile::create(&files.write, PageCache::Use).expect("it is made");
        let mut block = vec![0; 4096];
        fill(&mut block, 9, 0);
        file.write_all_at(4096, &block).expect("room");
        check_written(&files.write, &[4096], 4096, 9).expect("it was written");
        let error = check_written(&files.write, &[4096, 0], 4096, 9).expect_err("block 0 was not");
        assert!(error.to_string().contains("written at 0"), "{error}");
    }
}
