//! Damaged files: opening fails or the store recovers, but it never panics and never returns documents that were not
//! stored.

mod common;

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bson::{RawDocumentBuf, rawdoc};
use common::{create_index, insert, small_buffers};
use forebay_cancel::Stop;
use forebay_documents_store::{Dropped, IndexSpec, Store, StoreError, StoreOptions};

/// Number of offsets at which each file is damaged.
const PLACES: usize = 8;

type Contents = BTreeMap<u64, RawDocumentBuf>;

/// Fills a directory with flushed tables, compacted tables, and a journal whose end is not flushed.
fn fill(directory: &Path) -> Contents {
    for part in 0..3 {
        let store = Store::open(small_buffers(directory)).expect("opens");
        let collection = store.collection_or_create("db", "c").expect("creates");
        if part == 0 {
            create_index(&collection, IndexSpec::ascending("a")).expect("builds");
        }
        for id in 0..150 {
            insert(
                &collection,
                rawdoc! { "_id": part * 150 + id, "a": id % 7, "pad": format!("{id:0>120}") },
            );
        }
        store.sync().expect("syncs");
    }
    let store = Store::open(small_buffers(directory)).expect("opens");
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.sizes().storage_bytes == 0 {
        assert!(Instant::now() < deadline, "no table was written");
        std::thread::yield_now();
    }
    contents(&store).expect("reads")
}

fn contents(store: &Store) -> Result<Contents, StoreError> {
    let collection = store
        .collection("db", "c")
        .ok_or(StoreError::NamespaceNotFound {
            namespace: "db.c".to_owned(),
        })?;
    let report = collection.verify(&Stop::never())?;
    let found: Result<Contents, StoreError> = collection
        .scan(0)
        .map(|record| record.map(|(number, document)| (number, document.to_buf())))
        .collect();
    let found = found?;
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(collection.document_count(), found.len() as u64);
    Ok(found)
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("lists") {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            found.extend(files(&path))
        } else {
            found.push(path)
        }
    }
    found.sort();
    found
}

fn copy(from: &Path, to: &Path) {
    for file in files(from) {
        let target = to.join(file.strip_prefix(from).expect("is below"));
        std::fs::create_dir_all(target.parent().expect("has one")).expect("creates");
        std::fs::copy(&file, &target).expect("copies");
    }
}

/// Opens and reads a damaged copy. Returns `None` if the store reports an error.
fn read(directory: &Path, what: &str) -> Option<Contents> {
    let read = || Store::open(small_buffers(directory)).and_then(|store| contents(&store));
    match std::panic::catch_unwind(AssertUnwindSafe(read)) {
        Ok(Ok(found)) => Some(found),
        Ok(Err(StoreError::NamespaceNotFound { .. })) => {
            panic!("{what}: the collection is gone without an error")
        }
        Ok(Err(_)) => None,
        Err(_) => panic!("{what}: panicked"),
    }
}

/// Damages each file at each of `places` offsets, each time in a fresh copy of the directory. `damage` returns false if
/// it does not apply to the file.
fn each_file(
    judge: impl Fn(&str, &Path, Option<Contents>, &Contents),
    damage: impl Fn(&Path, usize) -> bool,
    places: usize,
) {
    let original = tempfile::tempdir().expect("a temporary directory");
    let expected = fill(original.path());
    for file in files(original.path()) {
        let name = file.strip_prefix(original.path()).expect("is below");
        for place in 0..places {
            let copied = tempfile::tempdir().expect("a temporary directory");
            copy(original.path(), copied.path());
            if damage(&copied.path().join(name), place) {
                let what = format!("{} at place {place}", name.display());
                judge(&what, name, read(copied.path(), &what), &expected);
            }
        }
    }
}

#[test]
fn flipped_bits_change_no_document() {
    let errors = std::cell::Cell::new(0);
    let judge = |what: &str, _: &Path, found: Option<Contents>, expected: &Contents| match found {
        Some(found) => assert!(
            found == *expected,
            "{what}: {} documents, {} expected",
            found.len(),
            expected.len()
        ),
        None => errors.set(errors.get() + 1),
    };
    let flip = |file: &Path, place: usize| {
        let mut bytes = std::fs::read(file).expect("reads");
        if bytes.is_empty() {
            return false;
        }
        let at = bytes.len() * place / PLACES + (place * 31) % (bytes.len() / PLACES).max(1);
        bytes[at.min(file.metadata().map_or(0, |data| data.len() as usize - 1))] ^=
            1 << (place % 8);
        std::fs::write(file, bytes).expect("writes");
        true
    };
    each_file(judge, flip, PLACES);
    assert!(
        errors.get() > 20,
        "only {} flips were noticed",
        errors.get()
    );
}

#[test]
fn a_flipped_bit_in_a_list_of_tables_is_an_error() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    fill(directory.path());
    let lists = files(directory.path()).into_iter().filter(|file| {
        let name = file.file_name().expect("is a file").to_string_lossy();
        name == "current"
    });
    let mut flipped = 0;
    for current in lists {
        let number = std::fs::read(&current).expect("reads");
        let number = u64::from_le_bytes(number[..8].try_into().expect("eight bytes"));
        for file in [current.with_file_name(format!("v{number}")), current] {
            let good = std::fs::read(&file).expect("reads");
            for place in 0..good.len() {
                let mut bad = good.clone();
                bad[place] ^= 1 << (place % 8);
                std::fs::write(&file, bad).expect("writes");
                let opened = Store::open(small_buffers(directory.path()));
                assert!(
                    matches!(opened, Err(StoreError::Corrupt { .. })),
                    "{} at {place}: {:?}",
                    file.display(),
                    opened.err()
                );
                flipped += 1;
            }
            std::fs::write(&file, good).expect("writes");
        }
    }
    assert!(flipped > 300, "only {flipped} bits were flipped");
    drop(Store::open(small_buffers(directory.path())).expect("opens again"));
}

#[test]
fn a_cut_journal_loses_its_end_only() {
    let judge = |what: &str, name: &Path, found: Option<Contents>, expected: &Contents| {
        let Some(found) = found else { return };
        if name.extension().is_some_and(|extension| extension == "jnl") {
            assert!(
                expected
                    .iter()
                    .zip(&found)
                    .all(|(expected, found)| expected == found),
                "{what}: not a prefix"
            );
        } else {
            assert!(
                found == *expected,
                "{what}: {} documents, {} expected",
                found.len(),
                expected.len()
            );
        }
    };
    let cut = |file: &Path, place: usize| {
        let bytes = std::fs::read(file).expect("reads");
        std::fs::write(file, &bytes[..bytes.len() * place / 3]).expect("writes");
        !bytes.is_empty()
    };
    each_file(judge, cut, 3);
}

#[test]
fn missing_files_are_noticed() {
    let judge = |what: &str, _: &Path, found: Option<Contents>, expected: &Contents| {
        assert!(found.is_none_or(|found| found == *expected), "{what}");
    };
    let remove = |file: &Path, _: usize| {
        std::fs::remove_file(file).expect("removes");
        true
    };
    each_file(judge, remove, 1);
}

/// Returns the path of a store's first journal, and the end of the journal's synced part.
fn unsynced_tail(directory: &Path) -> (PathBuf, u64) {
    let journal = directory.join("tables/0.jnl");
    let note = std::fs::read(directory.join("tables/synced")).expect("a sync is noted");
    let length = note[8..16].try_into().expect("eight bytes");
    (journal, u64::from_le_bytes(length))
}

/// Options without a periodic sync.
fn rarely_synced(directory: &Path) -> StoreOptions {
    StoreOptions {
        sync_interval: Duration::from_secs(3600),
        ..StoreOptions::directory(directory)
    }
}

/// Fills a store with 100 documents, of which the first 20 are synced.
fn fill_rarely_synced(directory: &Path) -> Store {
    let document = |id: i32| rawdoc! { "_id": id, "pad": format!("{id:0>500}") };
    let store = Store::open(rarely_synced(directory)).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    for id in 0..20 {
        insert(&collection, document(id));
    }
    store.sync().expect("syncs");
    for id in 20..100 {
        insert(&collection, document(id));
    }
    store
}

/// Opens a damaged store. Checks that something was dropped, that the store takes writes, and that it opens again.
/// Returns what was dropped, and the number of documents found.
fn open_damaged(directory: &Path) -> (Dropped, usize) {
    let store = Store::open(rarely_synced(directory)).expect("what was synced is there");
    let dropped = store.dropped();
    assert!(dropped.bytes > 0);
    let found = contents(&store).expect("reads").len();
    let collection = store.collection("db", "c").expect("is there");
    insert(&collection, rawdoc! { "_id": 1_000 });
    drop(collection);
    drop(store);
    let store = Store::open(rarely_synced(directory)).expect("opens again");
    assert_eq!(store.dropped(), Dropped::default());
    assert_eq!(contents(&store).expect("reads").len(), found + 1);
    (dropped, found)
}

#[test]
fn an_incomplete_batch_before_an_empty_journal_is_cut_off() {
    let original = tempfile::tempdir().expect("a temporary directory");
    let _store = fill_rarely_synced(original.path());
    let cut = tempfile::tempdir().expect("a temporary directory");
    copy(original.path(), cut.path());
    let (journal, _) = unsynced_tail(cut.path());
    let bytes = std::fs::read(&journal).expect("reads");
    let last = bytes.iter().rposition(|byte| *byte != 0);
    std::fs::write(&journal, &bytes[..last.expect("holds data") - 300]).expect("writes");
    let next = std::fs::File::create(journal.with_file_name("1.jnl")).expect("creates");
    next.set_len(64 << 20).expect("grows");
    let (dropped, found) = open_damaged(cut.path());
    assert!((200..2_000).contains(&dropped.bytes), "{dropped:?}");
    assert_eq!((dropped.batches, found), (0, 99));
}

#[test]
fn a_hole_in_what_was_not_synced_is_the_end_of_the_journal() {
    let original = tempfile::tempdir().expect("a temporary directory");
    let _store = fill_rarely_synced(original.path());
    let (_, synced) = unsynced_tail(original.path());
    for page in [synced / 4096 + 1, synced / 4096 + 4] {
        let cut = tempfile::tempdir().expect("a temporary directory");
        copy(original.path(), cut.path());
        let (journal, _) = unsynced_tail(cut.path());
        let mut bytes = std::fs::read(&journal).expect("reads");
        bytes[page as usize * 4096..][..4096].fill(0);
        std::fs::write(&journal, bytes).expect("writes");

        let (dropped, found) = open_damaged(cut.path());
        assert!(
            dropped.bytes > 20_000 && dropped.batches > 40,
            "{dropped:?}"
        );
        assert!((20..50).contains(&found), "{found} documents");
    }

    // A hole in the synced part is damage.
    let cut = tempfile::tempdir().expect("a temporary directory");
    copy(original.path(), cut.path());
    let (journal, synced) = unsynced_tail(cut.path());
    let mut bytes = std::fs::read(&journal).expect("reads");
    bytes[synced as usize - 600..][..512].fill(0);
    std::fs::write(&journal, bytes).expect("writes");
    let refused = Store::open(rarely_synced(cut.path())).err();
    assert!(
        matches!(refused, Some(StoreError::Corrupt { .. })),
        "{refused:?}"
    );
}
