//! Tables: versions, conflicts, faults and kills at every step, checkpoints and compaction.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::{AsArray, Int64Array, RecordBatch, StringViewArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use forebay_tables_delta::{Change, DataFile, Error, Probe, Snapshot, Step, Table};
use parking_lot::Mutex;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use tempfile::TempDir;

fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("a", DataType::Int64, false),
        Field::new("b", DataType::Utf8View, true),
    ]))
}

fn batch(numbers: &[i64]) -> RecordBatch {
    let texts = numbers.iter().map(|number| Some(format!("t{number}")));
    let texts: StringViewArray = texts.collect();
    let numbers = Int64Array::from(numbers.to_vec());
    RecordBatch::try_new(schema(), vec![Arc::new(numbers), Arc::new(texts)]).expect("a batch")
}

fn write(table: &Table, numbers: &[i64]) -> Result<Vec<Arc<DataFile>>, Error> {
    let mut writer = table.writer();
    writer.write(&batch(numbers))?;
    writer.finish()
}

fn insert(table: &Table, numbers: &[i64]) -> Result<(), Error> {
    change(table, write(table, numbers)?, Vec::new())
}

fn change(
    table: &Table,
    added: Vec<Arc<DataFile>>,
    removed: Vec<Arc<DataFile>>,
) -> Result<(), Error> {
    table.commit(&Change {
        operation: "WRITE",
        added,
        removed,
        is_data_change: true,
    })
}

fn numbers(snapshot: &Snapshot) -> Vec<i64> {
    let mut numbers = Vec::new();
    for file in snapshot.files() {
        let file = fs::File::open(file.path()).expect("a file of the version");
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).expect("Parquet");
        for batch in reader.build().expect("Parquet") {
            let batch = batch.expect("rows");
            numbers.extend(batch.column(0).as_primitive::<Int64Type>().values());
        }
    }
    numbers
}

fn current(table: &Table) -> Vec<i64> {
    numbers(&table.snapshot().expect("a version"))
}

fn reopened(path: &Path) -> Vec<i64> {
    current(&Table::open(path, None).expect("a table"))
}

fn data_files(path: &Path) -> usize {
    let entries = fs::read_dir(path).expect("a folder").flatten();
    entries
        .filter(|entry| {
            entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "parquet")
        })
        .count()
}

struct Fixture {
    folder: TempDir,
    table: Table,
}

impl Fixture {
    fn new(probe: Option<Probe>) -> Fixture {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("t");
        let table = Table::create(&path, "t", &schema(), probe).expect("a table");
        Fixture { folder, table }
    }
}

#[test]
fn readers_keep_their_version() {
    let Fixture { folder, table } = Fixture::new(None);
    insert(&table, &[1, 2]).expect("room");
    insert(&table, &[3]).expect("room");
    let before = table.snapshot().expect("a version");
    let removed = vec![Arc::clone(&before.files()[0])];
    change(&table, write(&table, &[4]).expect("room"), removed.clone()).expect("no conflict");
    assert_eq!(numbers(&before), [1, 2, 3]);
    assert_eq!(current(&table), [3, 4]);
    let again = change(&table, Vec::new(), removed);
    assert!(matches!(again, Err(Error::Conflict)), "{again:?}");
    drop(again);
    assert_eq!(data_files(table.path()), 3);
    drop(before);
    assert_eq!(data_files(table.path()), 2);
    let path = table.path().to_owned();
    assert_eq!(reopened(&path), [3, 4]);
    let kept = table.snapshot().expect("a version");
    table.delete();
    let late = insert(&table, &[5]);
    assert!(matches!(late, Err(Error::Dropped)), "{late:?}");
    let late = table.snapshot();
    assert!(matches!(late, Err(Error::Dropped)), "{late:?}");
    assert_eq!(numbers(&kept), [3, 4]);
    drop(kept);
    assert_eq!(data_files(&path), 0);
    drop(table);
    assert!(!path.exists());
    drop(folder);
}

#[test]
fn statistics_tell_rows_and_bounds() {
    let Fixture {
        folder: _folder,
        table,
    } = Fixture::new(None);
    insert(&table, &[7, -2]).expect("room");
    let snapshot = table.snapshot().expect("a version");
    let stats = snapshot.files()[0].stats().expect("statistics");
    assert_eq!(stats.num_records, Some(2));
    assert_eq!(stats.min_values["a"], -2);
    assert_eq!(stats.max_values["b"], "t7");
    assert_eq!(stats.null_count["b"], 0);
}

#[test]
fn a_second_process_that_appends_is_no_conflict() {
    let Fixture {
        folder: _folder,
        table,
    } = Fixture::new(None);
    insert(&table, &[1]).expect("room");
    let other = Table::open(table.path(), None).expect("a table");
    let seen = other.snapshot().expect("a version");
    insert(&table, &[2]).expect("room");
    insert(&other, &[3]).expect("the next version is tried");
    assert_eq!(current(&table), [1, 2, 3]);
    change(&table, Vec::new(), seen.files().to_vec()).expect("it is there");
    assert_eq!(current(&other), [2, 3]);
}

#[test]
fn nothing_changes_after_a_failure_at_any_step() {
    let steps = [
        Step::WriteData,
        Step::SyncData,
        Step::SyncFolder,
        Step::WriteLog,
        Step::SyncLog,
        Step::Publish,
        Step::SyncLogFolder,
    ];
    for failing in steps {
        let is_failing = Arc::new(Mutex::new(false));
        let probe: Probe = {
            let is_failing = Arc::clone(&is_failing);
            Arc::new(move |step| match step == failing && *is_failing.lock() {
                true => Err(io::ErrorKind::StorageFull.into()),
                false => Ok(()),
            })
        };
        let Fixture {
            folder: _folder,
            table,
        } = Fixture::new(Some(probe));
        insert(&table, &[1]).expect("room");
        *is_failing.lock() = true;
        let failed = insert(&table, &[2]);
        assert!(
            matches!(failed, Err(Error::Io { .. })),
            "{failing:?}: {failed:?}"
        );
        assert_eq!(current(&table), [1], "{failing:?}");
        assert_eq!(data_files(table.path()), 1, "{failing:?}");
        *is_failing.lock() = false;
        assert_eq!(reopened(table.path()), [1], "{failing:?}");
        insert(&table, &[3]).expect("room again");
        assert_eq!(reopened(table.path()), [1, 3], "{failing:?}");
    }
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("room");
    for entry in fs::read_dir(from).expect("a folder").flatten() {
        let target = to.join(entry.file_name());
        match entry.path().is_dir() {
            true => copy_folder(&entry.path(), &target),
            // A temporary file may be gone.
            false => drop(fs::copy(entry.path(), target)),
        }
    }
}

/// Copies the folder before each step, as a kill at that moment would leave it.
#[test]
fn a_kill_at_any_step_leaves_the_version_before_or_after() {
    let copies = tempfile::tempdir().expect("a temporary folder");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("t");
    let count = Arc::new(AtomicUsize::new(0));
    let probe: Probe = {
        let (path, copies, count) = (path.clone(), copies.path().to_owned(), Arc::clone(&count));
        Arc::new(move |_| {
            let number = count.fetch_add(1, Ordering::Relaxed);
            copy_folder(&path, &copies.join(number.to_string()));
            Ok(())
        })
    };
    let table = Table::create(&path, "t", &schema(), Some(probe)).expect("a table");
    let created = count.load(Ordering::Relaxed);
    insert(&table, &[1]).expect("room");
    let inserted = count.load(Ordering::Relaxed);
    let before = table.snapshot().expect("a version");
    change(
        &table,
        write(&table, &[2, 3]).expect("room"),
        before.files().to_vec(),
    )
    .expect("no conflict");
    let mut seen = BTreeSet::new();
    for number in created..count.load(Ordering::Relaxed) {
        let copy = copies.path().join(number.to_string());
        let found = reopened(&copy);
        let (old, new): (&[i64], &[i64]) = match number < inserted {
            true => (&[], &[1]),
            false => (&[1], &[2, 3]),
        };
        assert!(found == old || found == new, "{number}: {found:?}");
        assert!(data_files(&copy) <= 1, "{number}: leftovers stay");
        seen.insert(found);
        insert(&Table::open(&copy, None).expect("a table"), &[9]).expect("room");
    }
    assert_eq!(seen.len(), 3);
}

#[test]
fn many_small_writes_stay_few_files_and_few_versions_to_read() {
    let Fixture {
        folder: _folder,
        table,
    } = Fixture::new(None);
    let count = 450;
    for number in 0..count {
        insert(&table, &[number]).expect("room");
        table.compact().expect("no conflict");
    }
    let mut found = current(&table);
    found.sort_unstable();
    assert_eq!(found, (0..count).collect::<Vec<_>>());
    let snapshot = table.snapshot().expect("a version");
    assert!(snapshot.files().len() < 40, "{}", snapshot.files().len());
    assert_eq!(data_files(table.path()), snapshot.files().len());
    let log = table.path().join("_delta_log");
    let versions = fs::read_dir(&log).expect("a log").count();
    assert!(versions < 250, "{versions}");
    let mut reopened = reopened(table.path());
    reopened.sort_unstable();
    assert_eq!(reopened, found);
}

#[test]
fn writers_at_the_same_time_all_succeed() {
    let Fixture {
        folder: _folder,
        table,
    } = Fixture::new(None);
    let table = Arc::new(table);
    let writers = (0..4).map(|writer| {
        let table = Arc::clone(&table);
        std::thread::spawn(move || {
            for number in 0..20 {
                insert(&table, &[writer * 100 + number]).expect("room");
            }
        })
    });
    let writers: Vec<_> = writers.collect();
    for writer in writers {
        writer.join().expect("no panic");
    }
    assert_eq!(current(&table).len(), 80);
    assert_eq!(reopened(table.path()).len(), 80);
}

#[test]
fn logs_that_cannot_be_read_are_errors_that_name_the_file() {
    let Fixture {
        folder: _folder,
        table,
    } = Fixture::new(None);
    insert(&table, &[1]).expect("room");
    insert(&table, &[2]).expect("room");
    let log = table.path().join("_delta_log");
    let first = log.join(format!("{:020}.json", 1));
    let content = fs::read_to_string(&first).expect("a version");
    for (damaged, expected) in [
        ("{\"add\":", "1.json is damaged"),
        (
            "{\"protocol\":{\"minReaderVersion\":9,\"minWriterVersion\":2}}",
            "protocol 9, 2",
        ),
    ] {
        fs::write(&first, damaged).expect("room");
        let error = Table::open(table.path(), None).expect_err(damaged);
        assert!(error.to_string().contains(expected), "{error}");
    }
    fs::remove_file(&first).expect("it is there");
    let error = Table::open(table.path(), None).expect_err("a gap");
    assert!(
        error.to_string().contains("version 1 is missing"),
        "{error}"
    );
    fs::write(&first, content).expect("room");
    assert_eq!(reopened(table.path()), [1, 2]);
}
