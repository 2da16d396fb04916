//! Checks of partitions' manifests before fjall reads them, and protection of the current manifest against overwriting.
//!
//! A manifest lists the tables of a partition. Its file is called `v<number>`. The file `current` identifies the
//! current manifest: it holds the manifest's number (8 bytes, little-endian), the manifest's XXH3-128 checksum (16
//! bytes) and the kind of checksum (1 byte, 0). fjall 3 writes the checksum but does not verify it, and a manifest with
//! a flipped bit may omit tables.
//!
//! fjall writes a manifest, syncs it, writes a new `current` that refers to it, and syncs `current` and the folder. If
//! one of the last two syncs fails, `current` refers to the new manifest, but fjall considers that manifest not
//! written, and its next attempt overwrites the file. A power failure during that attempt would leave a `current` that
//! does not match its manifest. [`set_aside`] prevents that by moving the current manifest to a number that fjall does
//! not use.

use std::fs::{self, File};
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use fjall::{AbstractTree, AnyTree};
use lsm_tree::{SeqNo, SequenceNumberCounter};
use xxhash_rust::xxh3::xxh3_128;

use super::fjall::{LIST, REMEDY, translate};
use crate::error::{Result, StoreError};

/// Name of the file that identifies a partition's current manifest.
const CURRENT: &str = "current";
/// Added to the number of a manifest to move the manifest beyond the numbers that fjall uses until the next start.
const ASIDE: u64 = 1 << 32;

/// Content of the file `current`.
struct Current {
    number: u64,
    checksum: u128,
}

impl Current {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (number, rest) = bytes.split_first_chunk::<8>()?;
        let (checksum, [0]) = rest.split_first_chunk::<16>()? else {
            return None;
        };
        Some(Self {
            number: u64::from_le_bytes(*number),
            checksum: u128::from_le_bytes(*checksum),
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend_from_slice(&self.checksum.to_le_bytes());
        bytes.push(0);
        bytes
    }

    fn manifest(&self, partition: &Path) -> PathBuf {
        partition.join(format!("v{}", self.number))
    }
}

/// Returns the number of the current manifest.
///
/// # Errors
/// [`StoreError::Io`], and [`StoreError::Corrupt`] for a malformed `current`.
pub(crate) fn number(partition: &Path) -> Result<u64> {
    Ok(read_current(partition)?.number)
}

fn read_current(partition: &Path) -> Result<Current> {
    let path = partition.join(CURRENT);
    let bytes = fs::read(&path)
        .map_err(|error| StoreError::io("read the number of the current manifest", error))?;
    Current::decode(&bytes).ok_or_else(|| damaged(&path))
}

/// Copies the current manifest to a number that fjall does not use until the next start, and makes the copy current.
///
/// # Errors
/// [`StoreError::Io`] and [`StoreError::DiskFull`].
pub(crate) fn set_aside(partition: &Path) -> Result<()> {
    let current = read_current(partition)?;
    let aside = Current {
        number: current.number + ASIDE,
        checksum: current.checksum,
    };
    let copied = || {
        let manifest = fs::read(current.manifest(partition))?;
        write_synced(&aside.manifest(partition), &manifest)?;
        crate::directory::sync(partition)?;
        let new = partition.join("current.new");
        write_synced(&new, &aside.encode())?;
        fs::rename(&new, partition.join(CURRENT))?;
        crate::directory::sync(partition)
    };
    copied().map_err(|error| StoreError::io("copy a manifest", error))
}

fn write_synced(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Checks the manifests of all partitions, each in its own directory below `partitions`.
///
/// # Errors
/// [`StoreError::Corrupt`] for a manifest that does not match its checksum.
pub(crate) fn check(partitions: &Path) -> Result<()> {
    let found = match fs::read_dir(partitions) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(StoreError::io("list the partitions", error)),
    };
    let mut damages = Vec::new();
    for partition in found {
        let partition = partition.map_err(|error| StoreError::io("list the partitions", error))?;
        match check_partition(&partition.path()) {
            Ok(()) => {}
            Err(error @ StoreError::Corrupt { .. }) => damages.push((partition.file_name(), error)),
            Err(error) => return Err(error),
        }
    }
    // The list of partitions comes first, because it decides whether damage to another partition matters.
    damages.sort_by_key(|(name, _)| name != LIST);
    for (name, damage) in damages {
        if name == LIST || is_listed(partitions, name.to_str().unwrap_or_default())? {
            return Err(damage);
        }
    }
    Ok(())
}

/// Returns whether the partition in this folder is listed. Deleted partitions may leave files behind, which fjall
/// removes.
fn is_listed(partitions: &Path, folder: &str) -> Result<bool> {
    let Ok(number) = folder.parse::<u64>() else {
        return Ok(true);
    };
    let mut key = b"n".to_vec();
    key.extend_from_slice(&number.to_be_bytes());
    let Some(list) = open_list(partitions)? else {
        return Ok(false);
    };
    let name = list.get(key, SeqNo::MAX);
    Ok(name
        .map_err(|error| unreadable(partitions, error))?
        .is_some())
}

/// Returns the highest sequence number in the list of partitions, or 0 if there is no list. The next sequence number
/// must be higher, which fjall itself does not ensure: if a power failure removed a partition's folder, fjall reuses
/// the partition's number, and the new list entry must override the old one.
///
/// # Errors
/// [`StoreError::Corrupt`] for a damaged list, and [`StoreError::Io`].
pub(crate) fn list_sequence(partitions: &Path) -> Result<SeqNo> {
    let list = open_list(partitions)?;
    let highest = list.and_then(|list| list.get_highest_persisted_seqno());
    Ok(highest.unwrap_or(0))
}

/// Opens the list of partitions if it exists. fjall must not have it open.
fn open_list(partitions: &Path) -> Result<Option<AnyTree>> {
    let list = partitions.join(LIST);
    if !list.join(CURRENT).exists() {
        return Ok(None);
    }
    let counter = SequenceNumberCounter::default;
    let config = lsm_tree::Config::new(&list, counter(), counter());
    // `open` panics on some kinds of damage.
    match catch_unwind(AssertUnwindSafe(|| config.open())) {
        Ok(opened) => opened
            .map(Some)
            .map_err(|error| unreadable(partitions, error)),
        Err(_) => Err(damaged(&list)),
    }
}

fn unreadable(partitions: &Path, error: lsm_tree::Error) -> StoreError {
    let list = partitions.join(LIST);
    translate(&list, "read the list of partitions", error.into())
}

fn damaged(file: &Path) -> StoreError {
    StoreError::Corrupt {
        file: file.to_owned(),
        why: "the list of a partition's tables is damaged".to_owned(),
        remedy: REMEDY,
    }
}

/// Verifies a manifest's checksum. Accepts a partition without `current` or without any manifest: such a partition may
/// have been dropped and only partly removed, which fjall handles.
fn check_partition(partition: &Path) -> Result<()> {
    let path = partition.join(CURRENT);
    let current = match fs::read(&path) {
        Ok(current) => Current::decode(&current).ok_or_else(|| damaged(&path))?,
        Err(error) if is_absent(&error) => return Ok(()),
        Err(error) => {
            return Err(StoreError::io(
                "read the number of the current manifest",
                error,
            ));
        }
    };
    let path = current.manifest(partition);
    match fs::read(&path) {
        Ok(manifest) if xxh3_128(&manifest) == current.checksum => Ok(()),
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
