//! fjall's journal files: forced to the disk beside writers, and checked before recovery.
//!
//! fjall syncs under the lock of its writer, and its recovery drops everything behind the first entry that it cannot
//! read, be it the torn tail of a kill or a flipped bit in the middle. This module syncs through its own handle, and
//! tells tail and damage apart before fjall opens the files.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use super::fjall::REMEDY;
use crate::error::{Result, StoreError};

/// Forces the journal to the disk without taking the writer's lock.
pub struct JournalSync {
    directory: PathBuf,
    open: Mutex<Option<(PathBuf, File)>>,
}

impl JournalSync {
    /// Prepares for the journals in a directory.
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
            open: Mutex::new(None),
        }
    }

    /// Returns when everything handed to the operating system before the call is on the disk.
    ///
    /// Only the newest journal can hold such data: fjall syncs a journal before it starts the next one.
    pub fn sync(&self) -> Result<()> {
        let mut open = self.open.lock();
        let Some((_, newest)) = journals(&self.directory)?.pop() else {
            return Ok(());
        };
        if open.as_ref().is_none_or(|(path, _)| *path != newest) {
            let Some(file) = open_if_there(&newest)? else {
                return Ok(());
            };
            *open = Some((newest, file));
        }
        match open.as_ref() {
            Some((_, file)) => file
                .sync_data()
                .map_err(|error| StoreError::io("sync the journal", error)),
            None => Ok(()),
        }
    }
}

/// Opens a journal, unless it was evicted meanwhile: then all of it is in synced tables.
fn open_if_there(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(StoreError::io("open the journal", error)),
    }
}

/// All journals in a directory, oldest first.
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
    let stem = path.file_stem().and_then(|stem| stem.to_str());
    let id = stem.and_then(|stem| stem.parse().ok());
    id.ok_or_else(|| damaged(path, "a journal's name must be a number".to_owned()))
}

fn damaged(path: &Path, why: String) -> StoreError {
    StoreError::Corrupt {
        file: path.to_owned(),
        why,
        remedy: REMEDY,
    }
}

/// What the journals of a directory hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Journals {
    /// The highest sequence number in them; 0 where they hold no batch.
    pub last_sequence: u64,
    /// Whether there has only ever been one, so that all that was ever written is in it.
    pub only: bool,
}

impl Journals {
    /// Whether the batch with this sequence number, which is in a table, must be in a journal too or be older than
    /// all of them. A journal is removed only when newer ones took over.
    pub fn fit(&self, in_table: u64) -> bool {
        let holds_batches = self.last_sequence > 0;
        in_table <= self.last_sequence || !(holds_batches || self.only)
    }
}

/// Checks all journals of a directory before recovery.
///
/// # Errors
/// [`StoreError::Corrupt`] where recovery would drop entries that a kill cannot have torn.
pub fn check(directory: &Path) -> Result<Journals> {
    let journals = journals(directory)?;
    let Some((newest, _)) = journals.last() else {
        return no_journals(directory);
    };
    let mut sequence = 0;
    for (id, path) in &journals {
        let bytes = std::fs::read(path).map_err(|error| StoreError::io("read a journal", error))?;
        let end = scan(&bytes, &mut sequence).map_err(|why| damaged(path, why))?;
        if end == End::Torn && id != newest {
            return Err(damaged(
                path,
                "a batch is cut off although a later journal exists".to_owned(),
            ));
        }
    }
    Ok(Journals {
        last_sequence: sequence,
        only: *newest == 0,
    })
}

/// No journal is right for a new directory only.
fn no_journals(directory: &Path) -> Result<Journals> {
    match directory.join("version").exists() {
        true => Err(damaged(directory, "the journal is missing".to_owned())),
        false => Ok(Journals::default()),
    }
}

/// How a journal ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Behind a whole batch.
    Clean,
    /// Within a batch, as after a kill.
    Torn,
}

/// The end of every whole batch.
const TRAILER: &[u8] = b"FJL\x03";
/// Tags of entries.
const START: u8 = 1;
const ITEM: u8 = 2;
const FINISH: u8 = 3;
const CLEAR: u8 = 4;
/// A jump of sequence numbers beyond this within one journal is a damaged number, not a busy day.
const SEQUENCE_STEP_MAX: u64 = 1 << 32;

/// Why an entry could not be read.
enum Stop {
    /// The bytes end within it.
    Short,
    /// The bytes cannot be such an entry.
    Bad(&'static str),
}

/// Reads a journal, batch by batch. `sequence` is the last sequence number seen, over all journals.
fn scan(bytes: &[u8], sequence: &mut u64) -> std::result::Result<End, String> {
    let written = bytes
        .iter()
        .rposition(|byte| *byte != 0)
        .map_or(0, |last| last + 1);
    let bytes = &bytes[..written];
    let mut at = 0;
    while at < bytes.len() {
        match batch(bytes, at, *sequence) {
            Ok((next, number)) => {
                at = next;
                *sequence = number;
            }
            Err(stop) => return torn(bytes, at, stop),
        }
    }
    Ok(End::Clean)
}

/// Decides if an unreadable batch is the torn tail: then no whole batch ends behind its start.
fn torn(bytes: &[u8], at: usize, stop: Stop) -> std::result::Result<End, String> {
    let why = match stop {
        Stop::Short => "a length does not fit",
        Stop::Bad(why) => why,
    };
    let error = || format!("the batch at byte {at} cannot be read ({why})");
    match stop {
        Stop::Bad(_) => Err(error()),
        Stop::Short if ends_batch(&bytes[at..]) => Err(error()),
        Stop::Short => Ok(End::Torn),
    }
}

/// Whether the bytes hold the trailer of a batch, followed by another batch or by nothing.
fn ends_batch(bytes: &[u8]) -> bool {
    let trailers = bytes
        .windows(TRAILER.len())
        .enumerate()
        .filter(|(_, window)| *window == TRAILER);
    trailers
        .map(|(at, _)| at + TRAILER.len())
        .any(|next| bytes.get(next).is_none_or(|tag| *tag == START))
}

/// Reads one batch; gives where the next begins and the sequence number.
fn batch(bytes: &[u8], at: usize, sequence: u64) -> std::result::Result<(usize, u64), Stop> {
    let mut reader = Reader { bytes, at };
    if reader.byte()? != START {
        return Err(Stop::Bad("it does not begin with a start tag"));
    }
    let items = reader.number(4)?;
    let number = reader.number(8)?;
    let step = number
        .checked_sub(sequence)
        .filter(|step| sequence == 0 || (1..SEQUENCE_STEP_MAX).contains(step));
    if step.is_none() {
        return Err(Stop::Bad("its sequence number is out of order"));
    }
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
    fn skip(&mut self, count: usize) -> std::result::Result<&[u8], Stop> {
        let end = self.at.checked_add(count).ok_or(Stop::Short)?;
        let field = self.bytes.get(self.at..end).ok_or(Stop::Short)?;
        self.at = end;
        Ok(field)
    }

    fn byte(&mut self) -> std::result::Result<u8, Stop> {
        Ok(self.skip(1)?[0])
    }

    fn number(&mut self, bytes: usize) -> std::result::Result<u64, Stop> {
        let field = self.skip(bytes)?;
        Ok(field
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    fn length(&mut self, bytes: usize) -> std::result::Result<usize, Stop> {
        usize::try_from(self.number(bytes)?).map_err(|_| Stop::Bad("a length is too large"))
    }

    fn item(&mut self) -> std::result::Result<(), Stop> {
        match self.byte()? {
            ITEM => self.write(),
            CLEAR => self.skip(8).map(|_| ()),
            _ => Err(Stop::Bad("an entry has an unknown tag")),
        }
    }

    fn write(&mut self) -> std::result::Result<(), Stop> {
        if self.byte()? > 2 {
            return Err(Stop::Bad("an entry has an unknown type"));
        }
        if self.byte()? != 0 {
            return Err(Stop::Bad("an entry is compressed"));
        }
        self.skip(8)?;
        let key_bytes = self.length(2)?;
        let value_bytes = self.length(4)?;
        if self.length(4)? != value_bytes {
            return Err(Stop::Bad("the lengths of a value differ"));
        }
        self.skip(key_bytes + value_bytes).map(|_| ())
    }

    fn finish(&mut self) -> std::result::Result<(), Stop> {
        if self.byte()? != FINISH {
            return Err(Stop::Bad("its end tag is missing"));
        }
        self.skip(8)?;
        let trailer = self.skip(TRAILER.len())?;
        if trailer == TRAILER {
            Ok(())
        } else {
            Err(Stop::Bad("its end is damaged"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A batch of one item with a key of 3 and a value of 4 bytes.
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
        bytes.push(FINISH);
        bytes.extend_from_slice(&99_u64.to_le_bytes());
        bytes.extend_from_slice(TRAILER);
        bytes
    }

    fn three_batches() -> Vec<u8> {
        [one_batch(1), one_batch(2), one_batch(5)].concat()
    }

    #[test]
    fn whole_batches_and_the_room_behind_them_are_clean() {
        for room in [0, 1, 5_000] {
            let mut sequence = 0;
            let bytes = [three_batches(), vec![0; room]].concat();
            assert_eq!(scan(&bytes, &mut sequence), Ok(End::Clean));
            assert_eq!(sequence, 5);
        }
    }

    #[test]
    fn every_cut_within_the_last_batch_is_torn() {
        let bytes = three_batches();
        let last = bytes.len() / 3 * 2;
        for cut in last + 1..bytes.len() {
            for room in [0, 100] {
                let torn = [&bytes[..cut], &vec![0; room]].concat();
                assert_eq!(scan(&torn, &mut 0), Ok(End::Torn), "cut at {cut}");
            }
        }
    }

    #[test]
    fn structure_that_is_damaged_is_not_taken_for_a_torn_end() {
        let bytes = three_batches();
        let batch = bytes.len() / 3;
        // The partition, the key, the value and the checksum are for the checksum to judge. That the last batch has a
        // higher number than it had changes nothing.
        let harmless = |at: usize| {
            let judged_later = [16..24, 34..41, 42..50]
                .iter()
                .any(|field| field.contains(&(at % batch)));
            judged_later || (batch * 2 + 5..batch * 2 + 13).contains(&at)
        };
        for at in (0..bytes.len()).filter(|at| !harmless(*at)) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x80;
            assert!(scan(&damaged, &mut 0).is_err(), "byte {at}");
        }
    }

    #[test]
    fn rubbish_behind_the_last_batch_is_damage() {
        let mut bytes = [three_batches(), vec![0; 100]].concat();
        let last = bytes.len() - 1;
        bytes[last] = 7;
        assert!(scan(&bytes, &mut 0).is_err());
    }
}
