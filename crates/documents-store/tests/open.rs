//! Opening a store: reopening it, opening it twice at the same time, and directories in which no store can be opened.

mod common;

use std::ffi::OsString;
use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use bson::spec::BinarySubtype;
use bson::{Binary, rawdoc};
use common::{assert_clean, create_index, insert, small_buffers};
use forebay_documents_store::{IndexSpec, Store, StoreError, StoreOptions, holds_store};

#[test]
fn everything_is_there_again() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let uuid = {
        let store = Store::open(small_buffers(directory.path())).expect("opens");
        let collection = store.collection_or_create("db", "c").expect("creates");
        create_index(&collection, IndexSpec::ascending("a")).expect("builds");
        for id in 0..3_000 {
            insert(&collection, rawdoc! { "_id": id, "a": [id, id + 1] });
        }
        collection.delete(2_999).expect("deletes");
        store.collection_or_create("db", "gone").expect("creates");
        store.drop_collection("db", "gone").expect("drops");
        store.users().put("ann", b"secret").expect("writes");
        collection.uuid()
    };
    let store = Store::open(small_buffers(directory.path())).expect("opens again");
    assert_eq!(store.collections("db").len(), 1);
    let collection = store.collection("db", "c").expect("is there");
    assert_eq!(collection.uuid(), uuid);
    assert_eq!(
        (collection.document_count(), collection.next_number()),
        (2_999, 3_000)
    );
    let index = &collection.indexes()[1];
    assert!(index.complete && index.multikey);
    assert_eq!(
        store.users().get("ann").expect("reads"),
        Some(b"secret".to_vec())
    );
    assert_clean(&collection);
}

#[test]
fn a_second_server_learns_which_process_has_the_directory() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(StoreOptions::directory(directory.path())).expect("opens");
    let second = Store::open(StoreOptions::directory(directory.path())).err();
    let Some(StoreError::Locked { process, .. }) = second else {
        panic!("{second:?}")
    };
    assert_eq!(process, Some(std::process::id()));
    drop(store);
    Store::open(StoreOptions::directory(directory.path()))
        .expect("the lock is gone with the store");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("file");
    std::fs::write(&file, b"").expect("writes");
    let failed = Store::open(StoreOptions::directory(file.join("data"))).err();
    assert!(
        matches!(failed, Some(StoreError::NotWritable { .. })),
        "{failed:?}"
    );
    let message = failed.expect("is refused").to_string();
    assert!(
        message.ends_with("the path is a file or lies below a file: choose another directory"),
        "{message}"
    );
}

#[test]
fn an_unknown_format_is_refused() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    drop(Store::open(StoreOptions::directory(directory.path())).expect("opens"));
    let format = directory.path().join("FORMAT");
    std::fs::write(&format, "forebay store 2\n").expect("writes");
    let newer = Store::open(StoreOptions::directory(directory.path())).err();
    assert!(
        matches!(newer, Some(StoreError::UnknownFormat { .. })),
        "{newer:?}"
    );
    let message = newer.expect("is refused").to_string();
    let formats = "the format is \"forebay store 2\", and this release reads \"forebay store 1\"";
    assert!(message.contains(formats), "{message}");
    std::fs::remove_file(&format).expect("removes");
    let unmarked = Store::open(StoreOptions::directory(directory.path())).err();
    assert!(
        matches!(unmarked, Some(StoreError::UnknownFormat { .. })),
        "{unmarked:?}"
    );
}

/// Returns the mode of a directory and the names of its files.
fn state(directory: &Path) -> (u32, Vec<OsString>) {
    let mode = std::fs::metadata(directory)
        .expect("is there")
        .permissions()
        .mode();
    let entries = std::fs::read_dir(directory).expect("lists");
    let names = entries.map(|entry| entry.expect("lists").file_name());
    (mode, names.collect())
}

#[test]
fn a_directory_of_another_program_is_left_as_it_is() {
    for (name, is_format) in [
        ("WiredTiger", false),
        (".profile", false),
        ("LOCK", false),
        ("upstream-caches", false),
        ("FORMAT", true),
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let public = Permissions::from_mode(0o755);
        std::fs::set_permissions(directory.path(), public).expect("is ours");
        std::fs::write(directory.path().join(name), "another's").expect("writes");
        let before = state(directory.path());
        let refused = Store::open(StoreOptions::directory(directory.path())).err();
        match refused {
            Some(StoreError::UnknownFormat { .. }) => assert!(is_format, "{name}"),
            Some(error @ StoreError::ForeignFiles { .. }) => {
                let message = format!(
                    "{} holds files that are not Forebay's, such as {name:?}; choose an empty or new directory",
                    directory.path().display()
                );
                assert_eq!(error.to_string(), message);
            }
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(state(directory.path()), before, "{name}");
    }
}

#[test]
fn the_caches_of_a_proxy_are_told_from_another_programs_folder() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let caches = directory.path().join("upstream-caches");
    std::fs::create_dir(&caches).expect("creates");
    std::fs::write(caches.join("report.pdf"), "").expect("writes");
    let found = holds_store(directory.path());
    assert!(
        matches!(&found, Err(StoreError::ForeignFiles { name, .. }) if name == "upstream-caches"),
        "{found:?}"
    );
    std::fs::remove_file(caches.join("report.pdf")).expect("removes");
    drop(Store::open(StoreOptions::directory(&caches)).expect("opens"));
    assert!(!holds_store(directory.path()).expect("is ours"));
}

#[test]
fn a_directory_without_another_programs_files_becomes_a_store() {
    for names in [
        &["LOCK"][..],
        &["LOCK", "FORMAT.new"],
        &["lost+found"],
        &["movement.json"],
        &["upstream-caches", "upstream-caches.jsonl"],
    ] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in names {
            let path = directory.path().join(name);
            match *name {
                "lost+found" | "upstream-caches" => std::fs::create_dir(path),
                _ => std::fs::write(path, ""),
            }
            .expect("writes");
        }
        assert!(
            !holds_store(directory.path()).expect("is ours"),
            "{names:?}"
        );
        drop(Store::open(StoreOptions::directory(directory.path())).expect("opens"));
        assert!(holds_store(directory.path()).expect("is ours"), "{names:?}");
    }
    let cut = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(cut.path().join("LOCK"), "12\0\0\0\n").expect("writes");
    assert!(!holds_store(cut.path()).expect("is ours, after a power failure"));
    let new = tempfile::tempdir()
        .expect("a temporary directory")
        .path()
        .join("new");
    assert!(!holds_store(&new).expect("the directory does not exist") && !new.exists());
}

#[test]
fn a_drop_frees_the_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(small_buffers(directory.path())).expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    let mut random = fastrand::Rng::with_seed(7);
    for id in 0..500 {
        let noise: String = std::iter::repeat_with(|| random.alphanumeric())
            .take(2_000)
            .collect();
        insert(&collection, rawdoc! { "_id": id, "noise": noise });
    }
    drop(collection);
    store.drop_collection("db", "c").expect("drops");
    wait_for_space(directory.path());
}

/// The tables of a dropped partition stay on disk until everything in the older journals is flushed.
#[test]
fn a_drop_of_more_than_a_journal_holds_frees_the_disk() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(StoreOptions {
        write_buffer_bytes: 4 << 20,
        ..StoreOptions::directory(directory.path())
    });
    let store = store.expect("opens");
    let collection = store.collection_or_create("db", "c").expect("creates");
    let other = store.collection_or_create("db", "other").expect("creates");
    let mut random = fastrand::Rng::with_seed(7);
    let noise: Vec<u8> = std::iter::repeat_with(|| random.u8(..))
        .take(4 << 20)
        .collect();
    // All documents hold the same random bytes. They still do not compress, because the compressor's window is smaller
    // than one document.
    let noise = Binary {
        subtype: BinarySubtype::Generic,
        bytes: noise,
    };
    while journals(directory.path()) < 2 {
        insert(&other, rawdoc! { "_id": bson::oid::ObjectId::new() });
        insert(
            &collection,
            rawdoc! { "_id": bson::oid::ObjectId::new(), "noise": noise.clone() },
        );
    }
    drop(collection);
    store.drop_collection("db", "c").expect("drops");
    wait_for_space(directory.path());
    assert_clean(&other);
}

fn journals(directory: &Path) -> usize {
    let files = std::fs::read_dir(directory.join("tables")).expect("lists");
    let names = files.map(|file| file.expect("lists").path());
    names
        .filter(|path| path.extension().is_some_and(|extension| extension == "jnl"))
        .count()
}

/// Waits until the tables take few bytes. A flush in progress may keep its files for a moment.
fn wait_for_space(directory: &Path) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while table_bytes(directory) > 100_000 {
        assert!(
            Instant::now() < deadline,
            "{} bytes of tables are left",
            table_bytes(directory)
        );
        std::thread::yield_now();
    }
}

/// Returns the bytes of all files except journals, which are preallocated.
fn table_bytes(directory: &std::path::Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return 0;
    };
    let size = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.expect("lists").path();
        if path.is_dir() {
            table_bytes(&path)
        } else if path.extension().is_some_and(|extension| extension == "jnl") {
            0
        } else {
            path.metadata().map_or(0, |metadata| metadata.len())
        }
    };
    entries.map(size).sum()
}

#[test]
fn only_the_owner_enters_the_directories() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let data = directory.path().join("data");
    let mode = |path: &Path| {
        let metadata = std::fs::metadata(path).expect("is there");
        metadata.permissions().mode() & 0o777
    };
    for path in [data.clone(), data.join("tables")] {
        drop(Store::open(StoreOptions::directory(&data)).expect("opens"));
        assert_eq!(mode(&path), 0o700, "{}", path.display());
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("is ours");
        drop(Store::open(StoreOptions::directory(&data)).expect("opens"));
        assert_eq!(mode(&path), 0o700, "{}", path.display());
    }
}
