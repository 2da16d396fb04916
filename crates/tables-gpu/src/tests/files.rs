//! Column files: what was packed is read again after a start.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_memory::Account;

use super::data::Sizes;
use super::devices::gpus;
use super::emulated;
use super::halves;
use super::limits;
use super::sessions::{Fixture, ON, replace, rows};
use super::slices::slices_of;
use crate::giving_way::Freeing;
use crate::gpu::open_all;

/// Queries of all types of columns, with NULLs.
const QUERIES: [&str; 4] = [
    "SELECT flag, sum(quantity), max(wide), min(moment), count(b) FROM t GROUP BY flag",
    "SELECT name, count(*), max(day) FROM t WHERE name <> 'ab' GROUP BY name",
    "SELECT label, count(*), sum(price) FROM t JOIN d ON a = k GROUP BY label",
    "SELECT count(*), max(ratio), min(price) FROM t WHERE ratio > 0.5",
];

/// Waits until there are as many column files as columns that were read, and returns them.
pub(super) async fn written(fixture: &Fixture) -> Vec<PathBuf> {
    let began = Instant::now();
    loop {
        let files = column_files(fixture);
        let columns = fixture.tables.gpu_figures()[0].columns;
        if columns > 0 && files.len() >= columns {
            return files;
        }
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "{columns}: {files:?}"
        );
        tokio::task::yield_now().await;
    }
}

fn column_files(fixture: &Fixture) -> Vec<PathBuf> {
    let entries = fs::read_dir(fixture.column_files()).expect("a folder");
    let mut files: Vec<PathBuf> = entries.map(|it| it.expect("an entry").path()).collect();
    files.retain(|it| it.extension().is_some_and(|it| it == "column"));
    files.sort();
    files
}

async fn compare(fixture: &Fixture) -> Vec<bool> {
    compare_all(fixture, &QUERIES).await
}

/// Runs queries on the engine, and compares their rows with those of the CPU. Returns whether each read column files.
async fn compare_all(fixture: &Fixture, queries: &[&str]) -> Vec<bool> {
    let mut with = fixture.session(ON).await;
    let mut without = fixture.session("SET forebay.gpu = off").await;
    let mut from_files = Vec::new();
    for query in queries {
        let plan = rows(&mut with, &format!("EXPLAIN ANALYZE {query}")).await;
        let plan = plan.expect(query).join("\n");
        assert!(plan.contains("ran there"), "{query}\n{plan}");
        from_files.push(plan.contains("MB read from disk by "));
        let wanted = rows(&mut without, query).await;
        assert_eq!(rows(&mut with, query).await, wanted, "{query}");
    }
    from_files
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_are_read_from_their_files_after_a_start() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[2100, 1])).started_again(1 << 30);
    assert_eq!(compare(&fixture).await, [false; 4]);
    let files = written(&fixture).await;
    let again = fixture.started_again(1 << 30);
    assert_eq!(compare(&again).await, [true; 4]);
    assert_eq!(written(&again).await, files);
    // Without room on the device, into memory of the host.
    let on_host = fixture.started_again(1 << 30);
    on_host.emulated.free_bytes.store(0, Ordering::Relaxed);
    assert_eq!(compare(&on_host).await, [true; 4]);
    let figures = on_host.tables.gpu_figures().remove(0);
    assert!(figures.column_bytes == 0 && figures.host_bytes > 0);
    // After their memory was given to others.
    again.freeing.free(0, u64::MAX);
    assert_eq!(compare(&again).await, [true; 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_halves_of_decimals_have_files() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[1]));
    halves::write(&fixture.files().join("w"));
    let fixture = fixture.started_again(1 << 30);
    let queries = ["SELECT count(*), min(n), max(n) FROM w WHERE id > 3"];
    assert_eq!(compare_all(&fixture, &queries).await, [false]);
    let files = written(&fixture).await;
    assert_eq!(files.len(), 3);
    let again = fixture.started_again(1 << 30);
    assert_eq!(compare_all(&again, &queries).await, [true]);
    assert_eq!(written(&again).await, files);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_damaged_or_of_old_tables_are_not_read() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[2100])).started_again(1 << 30);
    compare(&fixture).await;
    let files = written(&fixture).await;
    // A bit of each part: data, footer, and what is behind it.
    for from_end in [None, Some(40), Some(19), Some(11), Some(1)] {
        for path in &files {
            let file = OpenOptions::new().read(true).write(true).open(path);
            let file = file.expect("a file");
            let bytes = file.metadata().expect("a file").len();
            let at = from_end.map_or(0, |it| bytes - it);
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).expect("a byte");
            file.write_all_at(&[byte[0] ^ 4], at).expect("a byte");
        }
        let again = fixture.started_again(1 << 30);
        assert_eq!(compare(&again).await, [false; 4], "{from_end:?}");
        // They were written again.
        written(&again).await;
        let again = fixture.started_again(1 << 30);
        assert_eq!(compare(&again).await, [true; 4], "{from_end:?}");
    }
    fs::write(&files[0], "").expect("room");
    fs::write(fixture.column_files().join(".unfinished-x"), "x").expect("room");
    let again = fixture.started_again(1 << 30);
    compare(&again).await;
    assert!(!fixture.column_files().join(".unfinished-x").exists());
    // Another version of a table has other columns, whose files replace those of the old one.
    written(&again).await;
    replace(&fixture.files().join("t"), Sizes(&[2101]));
    let again = fixture.started_again(1 << 30);
    assert!(compare(&again).await.contains(&false));
    assert_eq!(written(&again).await.len(), files.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_were_used_longest_ago_give_way() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[2100])).started_again(1 << 30);
    compare(&fixture).await;
    let files = written(&fixture).await;
    let bytes = |fixture: &Fixture| fixture.tables.gpu_figures()[0].disk_bytes;
    let all = bytes(&fixture);
    let half = fixture.started_again(all / 2);
    assert!(bytes(&half) <= all / 2 && bytes(&half) > 0);
    assert!(column_files(&half).len() < files.len());
    compare(&half).await;
    let none = fixture.started_again(0);
    assert_eq!((bytes(&none), column_files(&none).len()), (0, 0));
    compare(&none).await;
    assert_eq!(column_files(&none).len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_without_room_in_memory_are_read_pass_by_pass() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(Sizes(&[2100, 1, 700, 2049])).started_again(1 << 30);
    let queries = [
        QUERIES[0],
        QUERIES[1],
        QUERIES[3],
        "SELECT count(*), sum(quantity) FROM t WHERE day < DATE '1900-01-01'",
        // Groups that are counted in memory of the device, and selected there.
        "SELECT a, b, sum(quantity) FROM t GROUP BY a, b ORDER BY 3 DESC, 1, 2 LIMIT 3",
        "SELECT a, sum(s) FROM (SELECT a, b, sum(quantity) AS s FROM t GROUP BY a, b) AS n GROUP BY a HAVING sum(s) > 40",
    ];
    let is_full = |fixture: &Fixture| {
        fixture.emulated.free_bytes.store(0, Ordering::Relaxed);
        fixture.emulated.is_host_full.store(true, Ordering::Relaxed);
    };
    is_full(&fixture);
    // The columns are packed into files at once, and read again with each query.
    let expected = [true, true, true, false, true, true];
    assert_eq!(compare_all(&fixture, &queries).await, expected);
    assert_eq!(compare_all(&fixture, &queries).await, expected);
    // Each slice of groups reads the rows from the disk.
    let room = &fixture.columns.tables_bytes_max;
    room.store(64 << 10, Ordering::Relaxed);
    assert_eq!(compare_all(&fixture, &queries).await, expected);
    let mut with = fixture.session(ON).await;
    let plan = rows(&mut with, &format!("EXPLAIN ANALYZE {}", queries[4])).await;
    let plan = plan.expect("a plan").concat();
    assert_eq!(slices_of(&plan, "groups"), Some(4), "{plan}");
    room.store(u64::MAX, Ordering::Relaxed);
    let figures = fixture.tables.gpu_figures().remove(0);
    assert_eq!((figures.column_bytes, figures.host_bytes), (0, 0));
    let files = written(&fixture).await;
    let again = fixture.started_again(1 << 30);
    is_full(&again);
    assert_eq!(compare_all(&again, &queries).await, expected);
    // A file that is damaged meanwhile is written again.
    let file = OpenOptions::new().write(true).open(&files[0]);
    file.expect("a file").write_all_at(b"xx", 9).expect("room");
    let mut without = again
        .session("SET forebay.gpu = on; SET forebay.compile = wait; SET forebay.strict = off")
        .await;
    for query in queries {
        assert!(rows(&mut without, query).await.is_ok());
    }
    assert_eq!(compare_all(&again, &queries).await, expected);
    // Joins look up rows that are in memory.
    let wanted = rows(
        &mut again.session("SET forebay.gpu = off").await,
        QUERIES[2],
    )
    .await;
    assert_eq!(rows(&mut without, QUERIES[2]).await, wanted);
    again.emulated.free_bytes.store(u64::MAX, Ordering::Relaxed);
    again.emulated.is_host_full.store(false, Ordering::Relaxed);
    let began = Instant::now();
    while again.tables.gpu_figures()[0].column_bytes == 0 {
        assert!(began.elapsed() < Duration::from_secs(60));
        compare_all(&again, &queries[..1]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gpu_reads_column_files() {
    let Some(devices) = gpus() else { return };
    let device = devices.list().remove(0);
    let fixture = Fixture::new(Sizes(&[600_000, 1, 262_145]));
    let open = || {
        // No memory of the host.
        let (devices, host) = (vec![Arc::clone(&device)], Account::new(1).share());
        open_all(devices, limits(256 << 20), host, None, &Freeing::default()).expect("room")
    };
    let started = |gpu| fixture.started_on(gpu, 1 << 30);
    let first = started(open());
    assert_eq!(compare(&first).await, [false; 4]);
    let files = written(&first).await;
    drop(first);
    let again = started(open());
    assert_eq!(compare(&again).await, [true; 4]);
    assert_eq!(column_files(&again), files);
    drop(again);
    // Some columns have no room, and are read with each query.
    let gpu = open();
    let held = gpu[0].allocate(236 << 20).expect("room");
    let small = started(gpu);
    for _ in 0..2 {
        assert!(
            compare_all(&small, &[QUERIES[0], QUERIES[1], QUERIES[3]])
                .await
                .contains(&true)
        );
    }
    drop((small, held));
    drop(device);
    devices.halt();
}
