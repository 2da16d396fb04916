//! Known content of the files, so that every measurement checks the bytes that it moved.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use forebay_movement::checksum;
use forebay_movement::storage::{Access, AlignedBytes, DataFile, PageCache};

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

/// The two files of a run: one that is read, and one that is written.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) read: PathBuf,
    pub(super) write: PathBuf,
    pub(super) bytes: u64,
}

impl Files {
    /// Makes the files if they do not exist in this size.
    ///
    /// # Errors
    /// If the disk is full or the folder cannot be written.
    pub(super) fn make(folder: &Path, bytes: u64) -> Result<Files> {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("making the folder {}", folder.display()))?;
        let files = Files {
            read: folder.join("read.bin"),
            write: folder.join("write.bin"),
            bytes,
        };
        make(&files.read, bytes, is_made)?;
        // Each measurement writes its own content.
        make(&files.write, bytes, |_| Ok(true))?;
        Ok(files)
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

/// Makes a file unless it has the right size and content.
fn make(path: &Path, bytes: u64, is_right: impl Fn(&DataFile) -> Result<bool>) -> Result<()> {
    let file = DataFile::create(path, PageCache::Bypass)?;
    if file.bytes() == bytes && is_right(&file)? {
        return Ok(());
    }
    drop(file);
    std::fs::File::create(path)?;
    let file = DataFile::create(path, PageCache::Bypass)?;
    let mut buffer = AlignedBytes::zeroed(PART_BYTES);
    for offset in (0..bytes).step_by(PART_BYTES) {
        let part = (bytes - offset).min(PART_BYTES as u64) as usize;
        fill(&mut buffer[..part], READ_SEED, offset);
        file.write_all_at(offset, &buffer[..part])?;
    }
    file.sync()?;
    Ok(())
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
        std::fs::write(&files.read, vec![0; 100_000]).expect("room");
        Files::make(folder.path(), 100_000).expect("room");
        let file = DataFile::open(&files.read, PageCache::Use).expect("it is made");
        assert!(is_made(&file).expect("readable"));
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
