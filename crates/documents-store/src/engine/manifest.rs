//! Checking which tables make up the partitions, before fjall believes it.
//!
//! Each partition has a file `current`: the number of its manifest `v<number>` (8 bytes, little-endian), the manifest's
//! XXH3-128 checksum (16 bytes) and that checksum's kind (1 byte, 0). fjall 3 writes the checksum and does not compare it,
//! and a manifest with a wrong bit may name fewer tables than there are.

use std::fs;
use std::io;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use super::fjall::REMEDY;
use crate::error::{Result, StoreError};

/// Checks the manifests of all partitions, each in a directory below `partitions`.
///
/// # Errors
/// [`StoreError::Corrupt`] for a manifest that is not as it was written.
pub(crate) fn check(partitions: &Path) -> Result<()> {
    let partitions = match fs::read_dir(partitions) {
        Ok(partitions) => partitions,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("list the partitions", error)),
    };
    for partition in partitions {
        let partition = partition.map_err(|error| StoreError::io("list the partitions", error))?;
        check_partition(&partition.path())?;
    }
    Ok(())
}

/// A partition without `current`, or without any manifest, may be one that was dropped, whose removal was cut short: fjall
/// judges that.
fn check_partition(partition: &Path) -> Result<()> {
    let path = partition.join("current");
    let current = match fs::read(&path) {
        Ok(current) => current,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => return Err(StoreError::io("read which manifest counts", error)),
    };
    let damaged = |file: &Path| StoreError::Corrupt {
        file: file.to_owned(),
        why: "the list of a partition's tables is damaged".to_owned(),
        remedy: REMEDY,
    };
    let Some((number, rest)) = current.split_first_chunk::<8>() else {
        return Err(damaged(&path));
    };
    let Some((checksum, [0])) = rest.split_first_chunk::<16>() else {
        return Err(damaged(&path));
    };
    let path = partition.join(format!("v{}", u64::from_le_bytes(*number)));
    match fs::read(&path) {
        Ok(manifest) if xxh3_128(&manifest) == u128::from_le_bytes(*checksum) => Ok(()),
        Ok(_) => Err(damaged(&path)),
        Err(error) if is_absent(&error) && !has_manifest(partition) => Ok(()),
        Err(error) if is_absent(&error) => Err(damaged(&path)),
        Err(error) => Err(StoreError::io("read a manifest", error)),
    }
}

fn has_manifest(partition: &Path) -> bool {
    let files = fs::read_dir(partition).into_iter().flatten().flatten();
    let mut names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    names.any(|name| {
        name.strip_prefix('v')
            .is_some_and(|number| number.parse::<u64>().is_ok())
    })
}

fn is_absent(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}
