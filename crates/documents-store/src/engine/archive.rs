//! A check of fjall's table files before fjall opens them.
//!
//! The trailer of a table file holds the position of the file's table of contents. The table of contents states the
//! number of its sections. fjall's reader allocates memory for this number of sections before it verifies any checksum.
//! One flipped bit in that number makes the reader allocate tens of gigabytes, which aborts the process. fjall verifies
//! all other checksums in table files, and [`manifest`](super::manifest) verifies the checksums of manifests.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::fjall::REMEDY;
use crate::error::{Result, StoreError};

const TRAILER_MAGIC: &[u8] = b"SFA!";
const CONTENTS_MAGIC: &[u8] = b"TOC!";
/// Size of the trailer: magic, version, kind of checksum, checksum, position and length of the table of contents.
const TRAILER_BYTES: u64 = 4 + 1 + 1 + 16 + 8 + 8;
/// Bytes of the trailer that hold the position of the table of contents.
const POSITION: std::ops::Range<usize> = 22..30;
/// Bytes of the table of contents before its sections: magic and number of sections.
const CONTENTS_HEAD_BYTES: usize = 8;
/// Minimum bytes of a section in the table of contents: position and length.
const SECTION_BYTES_MIN: u64 = 16;

/// Checks every table file below a directory.
///
/// # Errors
/// [`StoreError::Corrupt`] if a file's table of contents claims more sections than fit into the file.
pub(crate) fn check(directory: &Path) -> Result<()> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(list_failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(list_failed)?;
        if entry.file_type().map_err(list_failed)?.is_dir() {
            check(&entry.path())?;
        } else if !is_plausible(&entry.path()).map_err(list_failed)? {
            return Err(StoreError::Corrupt {
                file: entry.path(),
                why: "the table of contents is longer than the file".to_owned(),
                remedy: REMEDY,
            });
        }
    }
    Ok(())
}

fn list_failed(error: io::Error) -> StoreError {
    StoreError::io("check the tables", error)
}

/// Returns whether the table of contents fits into the file. Also returns true if the file has another format, or has
/// damage that fjall itself detects.
fn is_plausible(path: &Path) -> io::Result<bool> {
    let file = File::open(path)?;
    let file_bytes = file.metadata()?.len();
    let Some(trailer_at) = file_bytes.checked_sub(TRAILER_BYTES) else {
        return Ok(true);
    };
    let mut trailer = [0; TRAILER_BYTES as usize];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let position: [u8; 8] = trailer[POSITION].try_into().expect("the range has 8 bytes");
    let position = u64::from_le_bytes(position);
    let head_end = position.saturating_add(CONTENTS_HEAD_BYTES as u64);
    if !trailer.starts_with(TRAILER_MAGIC) || head_end > trailer_at {
        return Ok(true);
    }
    let mut head = [0; CONTENTS_HEAD_BYTES];
    file.read_exact_at(&mut head, position)?;
    let (magic, count) = head.split_at(CONTENTS_MAGIC.len());
    let count = u32::from_le_bytes(count.try_into().expect("4 of 8 bytes are left"));
    Ok(magic != CONTENTS_MAGIC || u64::from(count) * SECTION_BYTES_MIN <= trailer_at - head_end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(sections: u32, contents: &[u8]) -> Vec<u8> {
        let mut bytes = b"data".to_vec();
        let position = bytes.len() as u64;
        bytes.extend_from_slice(CONTENTS_MAGIC);
        bytes.extend_from_slice(&sections.to_le_bytes());
        bytes.extend_from_slice(contents);
        bytes.extend_from_slice(TRAILER_MAGIC);
        bytes.extend_from_slice(&[1, 0]);
        bytes.extend_from_slice(&[7; 16]);
        bytes.extend_from_slice(&position.to_le_bytes());
        bytes.extend_from_slice(&(contents.len() as u64).to_le_bytes());
        bytes
    }

    #[test]
    fn a_table_of_contents_fits_into_its_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("1");
        for (bytes, is_good) in [
            (file(2, &[0; 40]), true),
            (file(2 | 1 << 30, &[0; 40]), false),
            (file(3, &[0; 40]), false),
            (b"SFA!".to_vec(), true),
            (vec![0; 100], true),
        ] {
            std::fs::write(&path, &bytes).expect("writes");
            assert_eq!(check(directory.path()).is_ok(), is_good, "{bytes:?}");
        }
        assert!(check(&directory.path().join("absent")).is_ok());
    }
}
