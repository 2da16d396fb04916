//! A check of fjall's journal files before recovery.
//!
//! fjall's recovery drops everything after the first entry that it cannot read, and fails at a wrong checksum. It does
//! not distinguish a write torn by a kill, unsynced pages lost in a power failure, and a bit flipped in the middle.
//! This module distinguishes them before fjall opens the files: an unreadable batch is damage if it was synced, and the
//! end of the journal if it was not.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::xxh3_64;

use super::fjall::REMEDY;
use super::synced::Position;
use crate::error::{Result, StoreError};

/// Returns the file name of a journal.
pub(crate) fn name_of(id: u64) -> String {
    format!("{id}.jnl")
}

/// Returns the number of the journal with this file name, or `None` if the file is not a journal.
pub(crate) fn id_of(name: &str) -> Option<u64> {
    name.strip_suffix(".jnl")?.parse().ok()
}

/// Returns all journals in a directory, oldest first.
fn journals(directory: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let entries = match std::fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StoreError::io("list the journals", error)),
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry
            .map_err(|error| StoreError::io("list the journals", error))?
            .path();
        if path.extension().is_some_and(|extension| extension == "jnl") {
            found.push((journal_id(&path)?, path));
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn journal_id(path: &Path) -> Result<u64> {
    let name = path.file_name().and_then(|name| name.to_str());
    let id = name.and_then(id_of);
    id.ok_or_else(|| damaged(path, "a journal's name must be a number".to_owned()))
}

fn damaged(path: &Path, why: String) -> StoreError {
    StoreError::Corrupt {
        file: path.to_owned(),
        why,
        remedy: REMEDY,
    }
}

/// Result of a check of the journals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Journals {
    /// The highest sequence number in the journals; 0 if they hold no batch.
    pub(crate) last_sequence: u64,
    /// Whether only one journal has ever existed. If true, that journal holds every batch ever written.
    pub(crate) only: bool,
    /// Position up to which the journals are synced. After the check, this is the end of the newest journal.
    pub(crate) synced: Position,
    /// The incomplete end that was cut off the newest journal that is not empty.
    pub(crate) dropped: Dropped,
}

/// The end of the journal, which recovery cut off: unsynced writes that a power failure or a kill left incomplete.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Number of discarded bytes.
    pub bytes: u64,
    /// Number of batches that end within the discarded bytes.
    pub batches: u64,
}

impl Dropped {
    /// Logs a warning if anything was discarded.
    pub(crate) fn report(self) {
        if self != Self::default() {
            let Self { bytes, batches } = self;
            tracing::warn!(
                bytes,
                batches,
                "dropped the end of the journal, which was incomplete and had never been synced"
            );
        }
    }
}

impl Journals {
    /// Returns whether the highest sequence number in the tables is consistent with the journals. A batch in a table
    /// must also be in a journal, or be older than all journals. A journal is removed only when a newer one exists.
    pub(crate) fn fit(&self, in_table: u64) -> bool {
        let holds_batches = self.last_sequence > 0;
        in_table <= self.last_sequence || !(holds_batches || self.only)
    }
}

/// Checks all journals of a directory before recovery. All of them are synced when the function returns.
///
/// Cuts off the newest journal that is not empty at the first batch that cannot be read, unless that batch was synced.
///
/// # Errors
/// [`StoreError::Corrupt`] if a synced batch cannot be read.
pub(crate) fn check(directory: &Path) -> Result<Journals> {
    let journals = journals(directory)?;
    let Some((newest, _)) = journals.last() else {
        return no_journals(directory);
    };
    let (last, bytes) = last_used(&journals)?;
    let (id, path) = &journals[last];
    let mut sequence = 0;
    for (_, path) in &journals[..last] {
        // fjall syncs a journal before it starts the next one, so all bytes of this journal were synced.
        let bytes = read(path)?;
        scan(&bytes, bytes.len(), &mut sequence).map_err(|why| damaged(path, why))?;
    }
    let synced = synced_length(directory, *id, *newest)?.unwrap_or(bytes.len());
    let end = scan(&bytes, synced, &mut sequence).map_err(|why| damaged(path, why))?;
    if end < bytes.len() || end > synced {
        rewrite(path, &bytes[..end])?;
    }
    Ok(Journals {
        last_sequence: sequence,
        only: *newest == 0,
        synced: Position {
            journal: *newest,
            length: if id == newest { end as u64 } else { 0 },
        },
        dropped: Dropped {
            bytes: (bytes.len() - end) as u64,
            batches: ends_of_batches(&bytes[end..]),
        },
    })
}

/// Returns the index and the bytes of the newest journal that is not empty. Returns those of the first journal if all
/// are empty.
///
/// A failed write may leave an incomplete batch at the end of a journal. fjall then writes no more batches, but its
/// background thread may still start another journal if this one is longer than 64 MB. The other journal then stays
/// empty.
fn last_used(journals: &[(u64, PathBuf)]) -> Result<(usize, Vec<u8>)> {
    for (index, (_, path)) in journals.iter().enumerate().rev() {
        let bytes = read(path)?;
        if index == 0 || !bytes.is_empty() {
            return Ok((index, bytes));
        }
    }
    Ok((0, Vec::new()))
}

/// Returns whether all journals of a directory are empty.
pub(crate) fn all_empty(directory: &Path) -> Result<bool> {
    for (_, path) in journals(directory)? {
        if !read(&path)?.is_empty() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns the result for a directory without journals. Only a new directory may have none.
fn no_journals(directory: &Path) -> Result<Journals> {
    if directory.join("version").exists() || Position::read(directory)?.is_some() {
        Err(damaged(directory, "the journal is missing".to_owned()))
    } else {
        Ok(Journals::default())
    }
}

/// Returns how many bytes of journal `id` are known to be synced; all newer journals must be empty. Returns `None` if
/// all bytes are synced, because a newer journal was.
fn synced_length(directory: &Path, id: u64, newest: u64) -> Result<Option<usize>> {
    let synced = Position::read(directory)?.unwrap_or_default();
    if synced.journal > newest {
        let missing = directory.join(name_of(synced.journal));
        return Err(damaged(&missing, "the journal is missing".to_owned()));
    }
    if synced.journal > id {
        return match synced.length {
            0 => Ok(None),
            length => {
                let empty = directory.join(name_of(synced.journal));
                let why = format!("the journal is empty, but {length} bytes were synced");
                Err(damaged(&empty, why))
            }
        };
    }
    let length = if synced.journal == id {
        synced.length
    } else {
        0
    };
    let length = usize::try_from(length).map_err(|_| {
        damaged(
            directory,
            "the record of the synced position is wrong".to_owned(),
        )
    })?;
    Ok(Some(length))
}

/// Reads a journal up to its last non-zero byte.
fn read(path: &Path) -> Result<Vec<u8>> {
    let bytes = File::open(path).and_then(|file| {
        let end = data_end(&file)?;
        let mut bytes = Vec::new();
        file.take(end).read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    let mut bytes = bytes.map_err(|error| StoreError::io("read a journal", error))?;
    let last = bytes.iter().rposition(|byte| *byte != 0);
    bytes.truncate(last.map_or(0, |last| last + 1));
    Ok(bytes)
}

/// Returns the end of a file's data. Journals are preallocated, and reading the empty rest would take time.
fn data_end(file: &File) -> io::Result<u64> {
    let mut end = 0;
    loop {
        let data = match seek(file, SeekFrom::Data(end)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::NOTSUP) => return Ok(file.metadata()?.len()),
            Err(error) => return Err(error.into()),
        };
        end = seek(file, SeekFrom::Hole(data))?;
    }
    seek(file, SeekFrom::Start(0))?;
    Ok(end)
}

/// Replaces a journal by `bytes`, a prefix of it, and syncs it.
///
/// Unsynced batches are written again, because an earlier sync of the journal may have failed. The batches may then be
/// only in page-cache pages that the kernel considers clean, and another sync of the same file would prove nothing.
fn rewrite(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = || {
        let temporary = path.with_extension("new");
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        crate::directory::sync(path.parent().unwrap_or(Path::new(".")))
    };
    written().map_err(|error| StoreError::io("rewrite the end of the journal", error))
}

/// Magic bytes at the end of every complete batch.
const TRAILER: &[u8] = b"FJL\x03";
/// Tags of journal entries.
const START: u8 = 1;
const ITEM: u8 = 2;
const FINISH: u8 = 3;
const CLEAR: u8 = 4;
/// Bytes of a batch before its items: tag, number of items, sequence number.
const HEAD_BYTES: usize = 1 + 4 + 8;
/// Bytes of a batch after its items: tag, checksum of the items, magic bytes.
const FINISH_BYTES: usize = 1 + 8 + TRAILER.len();
/// Maximum step between the sequence numbers of two consecutive batches. A larger step is damage.
const SEQUENCE_STEP_MAX: u64 = 1 << 32;

/// Why a batch cannot be read.
enum ReadError {
    /// The bytes end within the batch.
    Short,
    /// The bytes are not a valid batch.
    Bad(&'static str),
}

impl ReadError {
    fn reason(&self) -> &'static str {
        match self {
            Self::Short => "the batch ends too early",
            Self::Bad(why) => why,
        }
    }
}

/// Reads a journal batch by batch, and returns the end of the last complete batch. `sequence` is the last sequence
/// number of all journals read so far. The first `synced` bytes were synced, so an unreadable batch within them is
/// damage.
fn scan(bytes: &[u8], synced: usize, sequence: &mut u64) -> std::result::Result<usize, String> {
    let mut at = 0;
    while at < bytes.len() {
        match checked_batch(bytes, at, *sequence) {
            Ok((next, number)) => {
                at = next;
                *sequence = number;
            }
            Err(error) if at < synced => {
                let why = error.reason();
                return Err(format!("the batch at byte {at} cannot be read ({why})"));
            }
            Err(_) => return Ok(at),
        }
    }
    if at < synced {
        return Err(format!(
            "the journal ends at byte {at}, but {synced} bytes were synced"
        ));
    }
    Ok(at)
}

/// Returns the total bytes of the complete batches at the beginning of `bytes`. Does not verify their checksums.
pub(crate) fn whole_batches(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Ok((next, _)) = batch(bytes, at) {
        at = next;
    }
    at
}

/// Returns whether the bytes may be the beginning of an incomplete batch.
pub(crate) fn may_go_on(bytes: &[u8]) -> bool {
    matches!(batch(bytes, 0), Err(ReadError::Short))
}

/// Counts the ends of batches: magic bytes that are followed by another batch or are the last bytes.
fn ends_of_batches(bytes: &[u8]) -> u64 {
    let trailers = bytes
        .windows(TRAILER.len())
        .enumerate()
        .filter(|(_, window)| *window == TRAILER);
    let ends = trailers.filter(|(at, _)| {
        let next = bytes.get(at + TRAILER.len());
        next.is_none_or(|tag| *tag == START)
    });
    ends.count() as u64
}

/// Reads one batch. Checks that it is complete, and newer than the previous batch. Returns the batch's end and its
/// sequence number.
fn checked_batch(
    bytes: &[u8],
    at: usize,
    sequence: u64,
) -> std::result::Result<(usize, u64), ReadError> {
    let (end, number) = batch(bytes, at)?;
    let step = number
        .checked_sub(sequence)
        .filter(|step| sequence == 0 || (1..SEQUENCE_STEP_MAX).contains(step));
    if step.is_none() {
        return Err(ReadError::Bad("the sequence number is out of order"));
    }
    let (items, finish) =
        bytes[at + HEAD_BYTES..end].split_at(end - at - HEAD_BYTES - FINISH_BYTES);
    if xxh3_64(items).to_le_bytes() != finish[1..9] {
        return Err(ReadError::Bad("the checksum is wrong"));
    }
    Ok((end, number))
}

/// Reads the structure of one batch. Returns the batch's end and its sequence number.
fn batch(bytes: &[u8], at: usize) -> std::result::Result<(usize, u64), ReadError> {
    let mut reader = Reader { bytes, at };
    if reader.byte()? != START {
        return Err(ReadError::Bad("the start tag is missing"));
    }
    let items = reader.number(4)?;
    let number = reader.number(8)?;
    for _ in 0..items {
        reader.item()?;
    }
    reader.finish()?;
    Ok((reader.at, number))
}

/// Reads little-endian fields.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn skip(&mut self, count: usize) -> std::result::Result<&[u8], ReadError> {
        let end = self.at.checked_add(count).ok_or(ReadError::Short)?;
        let field = self.bytes.get(self.at..end).ok_or(ReadError::Short)?;
        self.at = end;
        Ok(field)
    }

    fn byte(&mut self) -> std::result::Result<u8, ReadError> {
        Ok(self.skip(1)?[0])
    }

    fn number(&mut self, bytes: usize) -> std::result::Result<u64, ReadError> {
        let field = self.skip(bytes)?;
        Ok(field
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> std::result::Result<usize, ReadError> {
        usize::try_from(self.number(bytes)?).map_err(|_| ReadError::Bad("a length is too large"))
    }

    fn item(&mut self) -> std::result::Result<(), ReadError> {
        match self.byte()? {
            ITEM => self.write(),
            CLEAR => self.skip(8).map(|_| ()),
            _ => Err(ReadError::Bad("an entry has an unknown tag")),
        }
    }

    fn write(&mut self) -> std::result::Result<(), ReadError> {
        if self.byte()? > 2 {
            return Err(ReadError::Bad("an entry has an unknown type"));
        }
        if self.byte()? != 0 {
            return Err(ReadError::Bad("an entry is compressed"));
        }
        self.skip(8)?;
        let key_bytes = self.length(2)?;
        let value_bytes = self.length(4)?;
        if self.length(4)? != value_bytes {
            return Err(ReadError::Bad("the two lengths of a value differ"));
        }
        self.skip(key_bytes + value_bytes).map(|_| ())
    }

    fn finish(&mut self) -> std::result::Result<(), ReadError> {
        if self.byte()? != FINISH {
            return Err(ReadError::Bad("the end tag is missing"));
        }
        self.skip(8)?;
        let trailer = self.skip(TRAILER.len())?;
        if trailer == TRAILER {
            Ok(())
        } else {
            Err(ReadError::Bad(
                "the magic bytes at the end of the batch are damaged",
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a batch of one item with a key of 3 bytes and a value of 4 bytes.
    fn one_batch(sequence: u64) -> Vec<u8> {
        let mut bytes = vec![START];
        bytes.extend_from_slice(&1_u32.to_le_bytes());
        bytes.extend_from_slice(&sequence.to_le_bytes());
        bytes.extend_from_slice(&[ITEM, 0, 0]);
        bytes.extend_from_slice(&7_u64.to_le_bytes());
        bytes.extend_from_slice(&3_u16.to_le_bytes());
        bytes.extend_from_slice(&4_u32.to_le_bytes());
        bytes.extend_from_slice(&4_u32.to_le_bytes());
        bytes.extend_from_slice(b"key");
        bytes.extend_from_slice(&[0; 4]);
        let checksum = xxh3_64(&bytes[HEAD_BYTES..]);
        bytes.push(FINISH);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes.extend_from_slice(TRAILER);
        bytes
    }

    fn three_batches() -> Vec<u8> {
        [one_batch(1), one_batch(2), one_batch(5)].concat()
    }

    /// Scans bytes that were all synced.
    fn scan_synced(bytes: &[u8]) -> std::result::Result<usize, String> {
        scan(bytes, bytes.len(), &mut 0)
    }

    #[test]
    fn whole_batches_are_read() {
        let mut sequence = 0;
        let bytes = three_batches();
        assert_eq!(scan(&bytes, bytes.len(), &mut sequence), Ok(bytes.len()));
        assert_eq!(sequence, 5);
        assert_eq!(whole_batches(&bytes), bytes.len());
        for room in [1, 5_000] {
            let bytes = [three_batches(), vec![0; room]].concat();
            assert_eq!(whole_batches(&bytes), bytes.len() - room);
            assert!(!may_go_on(&bytes[bytes.len() - room..]));
        }
    }

    #[test]
    fn a_batch_that_was_not_synced_and_is_cut_off_is_the_end() {
        let bytes = three_batches();
        let last = bytes.len() / 3 * 2;
        for cut in last + 1..bytes.len() {
            assert_eq!(scan(&bytes[..cut], last, &mut 0), Ok(last), "cut at {cut}");
            assert!(
                scan(&bytes[..cut], last + 1, &mut 0).is_err(),
                "cut at {cut}"
            );
            assert!(may_go_on(&bytes[last..cut]), "cut at {cut}");
        }
    }

    /// Damage to any byte is detected, except in the last sequence number, where a higher number has no effect.
    #[test]
    fn what_was_synced_and_cannot_be_read_is_damage_and_otherwise_the_end() {
        let bytes = three_batches();
        let batch = bytes.len() / 3;
        let harmless = batch * 2 + 5..batch * 2 + 13;
        for at in (0..bytes.len()).filter(|at| !harmless.contains(at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert!(scan_synced(&damaged).is_err(), "byte {at}");
            let before = at / batch * batch;
            let end = scan(&damaged, before, &mut 0).expect("nothing synced is damaged");
            // A sequence number that is too high is detected at the next batch.
            assert!(end == before || end == before + batch, "byte {at}");
        }
    }

    #[test]
    fn a_hole_in_what_was_not_synced_is_the_end() {
        let bytes: Vec<u8> = (1..100).flat_map(one_batch).collect();
        let batch = bytes.len() / 99;
        for hole in [batch * 10..batch * 11, batch * 10 + 3..batch * 50 - 7] {
            let mut torn = bytes.clone();
            torn[hole.clone()].fill(0);
            assert_eq!(scan(&torn, batch * 10, &mut 0), Ok(batch * 10), "{hole:?}");
            assert!(scan(&torn, batch * 11, &mut 0).is_err(), "{hole:?}");
            let ends = 99 - hole.end.div_ceil(batch) as u64;
            assert!(
                ends_of_batches(&torn[batch * 10..]).abs_diff(ends) <= 1,
                "{hole:?}"
            );
        }
    }

    /// Makes a directory with these journals. The recorded synced position is `synced`.
    fn directory(contents: &[&[u8]], synced: Position) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("keyspaces")).expect("creates");
        for (id, bytes) in (0..).zip(contents) {
            std::fs::write(folder.path().join(name_of(id)), bytes).expect("writes");
        }
        let note = folder.path().join("synced");
        std::fs::write(note, synced.encode()).expect("writes");
        folder
    }

    #[test]
    fn a_journal_started_after_a_failed_write_leaves_the_earlier_one_its_torn_end() {
        let whole = three_batches();
        let torn = [&whole[..], &one_batch(9)[..20]].concat();
        let at = |journal, length: usize| Position {
            journal,
            length: length as u64,
        };
        for synced in [0, whole.len()] {
            let folder = directory(&[&torn, &[0; 100]], at(0, synced));
            let checked = check(folder.path()).expect("nothing synced is damaged");
            assert_eq!(checked.last_sequence, 5);
            assert_eq!(checked.synced, at(1, 0));
            // The incomplete batch has 20 bytes. Zeros at its end are not counted, because a journal is read up to its
            // last byte that is not zero.
            assert!((1..=20).contains(&checked.dropped.bytes));
            let left = std::fs::read(folder.path().join(name_of(0))).expect("reads");
            assert_eq!(left, whole);
        }
        // In these cases the first journal was synced to its end, because the second one was synced or holds a batch.
        let newer = directory(&[&torn, &[0; 100]], at(1, 0));
        assert!(check(newer.path()).is_err());
        let lost = directory(&[&whole, &[0; 100]], at(1, 1));
        assert!(check(lost.path()).is_err());
        let used = directory(&[&torn, &one_batch(9)], at(0, whole.len()));
        assert!(check(used.path()).is_err());
        let cut = directory(&[&torn, &[]], at(0, whole.len() + 1));
        assert!(check(cut.path()).is_err());
    }

    #[test]
    fn a_journal_that_ends_before_what_was_synced_is_damaged() {
        let bytes = three_batches();
        assert!(scan(&bytes, bytes.len() + 1, &mut 0).is_err());
        assert!(scan(&[], 1, &mut 0).is_err());
    }
}
