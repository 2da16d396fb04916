//! Rows that are divided by the slices of tables of joins.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::data::Sizes;
use super::devices::explained;
use super::emulated::{self, Emulated};
use super::random::compare_random;
use super::slices::{
    IN_SLICES, OF_RANDOM_BYTES, REPEATED, SEARCHES, SKEWED_SEARCH, of_keys, slices_of,
};
use super::{Fixture, compile_those};
use crate::engine::CANCELLED;
use crate::partitions::WAIT_FOR_ROOM;

const SIZES: Sizes = Sizes(&[3000, 1, 512, 513]);

/// The files of `w`, whose columns have other numbers and widths, and of `x`, which has a row for each key. Some rows
/// of `w` have no key, or one that `x` does not have.
const FILES: [(&str, &str, &str); 3] = [
    ("w/0", OF_W, "generate_series(1, 3000)"),
    ("w/1", OF_W, "generate_series(9000000, 9000700)"),
    (
        "x/0",
        "CAST(value AS INT) AS k, 't' || value AS name, value * 1000000007 AS far, CAST(value AS DOUBLE) / 7 AS f,
            CASE WHEN value % 5 > 0 THEN value * 31 END AS score",
        "generate_series(0, 399)",
    ),
];
const OF_W: &str = "CASE WHEN value % 11 > 0 THEN CAST(value * 7919 % 500 AS INT) END AS k, value AS v, CAST(5 AS INT) AS one,
    't' || (value * 7919 % 500) AS name, value * 7919 % 500 * 1000000007 AS far, CAST(value * 7919 % 500 AS DOUBLE) / 7 AS f,
    CASE WHEN value % 3 > 0 THEN CAST(value AS DOUBLE) / 3 END AS g";

/// A join by a key, whose table has 1,680 bytes.
const BY_KEY: &str =
    "SELECT count(*), count(score), sum(score), sum(v), max(g) FROM w JOIN x ON w.k = x.k";

/// Queries, and the room of their tables.
const QUERIES: &[(&str, u64)] = &[
    (BY_KEY, 300),
    (
        "SELECT w.k, g, score FROM w JOIN x ON w.k = x.k WHERE v % 50 = 1",
        300,
    ),
    (
        "SELECT w.name, count(*), sum(score), min(g) FROM w JOIN x ON w.name = x.name WHERE v % 3 > 0 GROUP BY w.name",
        300,
    ),
    // In hash tables.
    (
        "SELECT count(*), count(score), sum(v) FROM w LEFT JOIN x ON w.far = x.far AND v > 100",
        4 << 10,
    ),
    (
        "SELECT count(*), sum(v) FROM w JOIN x ON w.f = x.f",
        4 << 10,
    ),
    (
        "SELECT count(*), sum(v) FROM w WHERE k IN (SELECT k FROM x WHERE score % 2 = 0)",
        48,
    ),
    (
        "SELECT count(*), count(k), sum(v) FROM w WHERE k NOT IN (SELECT k FROM x WHERE score IS NULL)",
        48,
    ),
    (
        "SELECT count(*), sum(v) FROM w WHERE v < 100 OR EXISTS (SELECT 1 FROM x WHERE x.k = w.k AND score > 3000)",
        48,
    ),
    // No row, and a key that all rows have.
    (
        "SELECT count(*), sum(score) FROM w JOIN x ON w.k = x.k WHERE v % 7 = 9",
        300,
    ),
    (
        "SELECT count(*), sum(score), min(v) FROM w JOIN x ON w.one = x.k",
        300,
    ),
    // A whole table leaves out rows before they are divided.
    (
        "SELECT count(*), sum(score) FROM w JOIN d ON w.k = d.k JOIN x ON w.name = x.name WHERE label = 'x'",
        500,
    ),
];

/// Runs a query. Returns its plan, and how often kernels were launched.
async fn launched((fixture, emulated): (&Fixture, &Arc<Emulated>), query: &str) -> (String, u64) {
    let launches = || emulated.launches.load(Ordering::Relaxed);
    let before = launches();
    let plan = explained(fixture, query).await;
    (plan, launches() - before)
}

/// Returns a fixture with these tables, on one device.
async fn fixture(emulated: &Arc<Emulated>) -> Fixture {
    let fixture = Fixture::new(emulated::devices(emulated, 1), SIZES).await;
    for (file, columns, rows) in FILES {
        let path = fixture._folder.path().join(file).with_extension("parquet");
        let path = path.display();
        fixture
            .copy(&format!("COPY (SELECT {columns} FROM {rows}) TO '{path}'"))
            .await;
    }
    fixture.register("w").await;
    fixture.register("x").await;
    let always = &fixture.columns.always_divides;
    always.store(true, Ordering::Relaxed);
    fixture
}

/// Compares queries, with the room of their tables. The plan of each must print partitions and contain this text.
async fn compare_divided(fixture: &Fixture, queries: &[(&str, u64)], text: &str) {
    for (query, bytes) in queries {
        let room = &fixture.columns.tables_bytes_max;
        room.store(*bytes, Ordering::Relaxed);
        fixture.compare([query]).await;
        let plan = explained(fixture, query).await;
        let is_divided = plan.contains(" partitions of ") && plan.contains(text);
        assert!(is_divided, "{query}: {plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_divided_by_the_slices_of_tables() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.poisons.store(true, Ordering::Relaxed);
    let fixture = fixture(&emulated).await;
    compare_divided(&fixture, QUERIES, " MB, by ").await;
    // Joins that repeat rows, searches, and tables by different keys, whose slices are combined.
    let (query, bytes, _) = IN_SLICES[1];
    let others = [
        (query, bytes),
        REPEATED[0],
        REPEATED[1],
        REPEATED[5],
        SEARCHES[1],
        SEARCHES[2],
        SEARCHES[5],
    ];
    compare_divided(&fixture, &others, " MB, by ").await;
    compile_those(&emulated, |it| it.source.contains("kIsDividing = true"));
    // A list of any rows ends early, so only the rows of `x` are divided.
    let room = &fixture.columns.tables_bytes_max;
    room.store(300, Ordering::Relaxed);
    let query = "SELECT v, score FROM w JOIN x ON w.k = x.k LIMIT 5";
    let plan = explained(&fixture, query).await;
    assert!(plan.contains(", 400 rows in "), "{plan}");
    // A slice with too many rows is found when they are counted. Each attempt would have four launches for the
    // division, and one for each of three slices.
    compare_divided(&fixture, &[(SKEWED_SEARCH, 300)], " MB, by ").await;
    let (plan, launches) = launched((&fixture, &emulated), SKEWED_SEARCH).await;
    assert!((6..10).contains(&launches), "{launches}: {plan}");
}

/// The rows that are stored have a join of their own, so that only the others are divided.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_a_slice_read_the_partition_of_the_slice() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = fixture(&emulated).await;
    of_keys(&fixture).await;
    let query = "SELECT count(*), sum(n.score), sum(v) FROM w
        JOIN (SELECT s.near, x.score FROM s JOIN x ON s.id = x.k) AS n ON w.k = n.near";
    compare_divided(&fixture, &[(query, 2800)], " partitions of ").await;
    let plan = explained(&fixture, query).await;
    let slices = slices_of(&plan, "tables of joins").expect("slices");
    let is_divided = plan.contains(&format!(" rows in {slices} partitions of "));
    assert!(!is_divided, "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn divided_rows_without_room_on_the_device_are_in_memory_of_the_host() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.free_bytes.store(0, Ordering::Relaxed);
    let fixture = fixture(&emulated).await;
    let queries = [&QUERIES[..4], &[REPEATED[0], SEARCHES[1]]].concat();
    compare_divided(&fixture, &queries, " MB of them on the host, by ").await;
    // With room nowhere, rows are read again for each slice.
    let of = (&fixture, &emulated);
    let room = &fixture.columns.tables_bytes_max;
    room.store(300, Ordering::Relaxed);
    emulated.is_host_full.store(true, Ordering::Relaxed);
    fixture.compare([&BY_KEY]).await;
    let (plan, launches) = launched(of, BY_KEY).await;
    let are_read = slices_of(&plan, "tables of joins").is_some();
    assert!(are_read && !plan.contains(" partitions of "), "{plan}");
    // At most, kernels count the rows of each side.
    assert!(launches <= 3, "{launches}");
    // They are divided again after a while.
    emulated.is_host_full.store(false, Ordering::Relaxed);
    let plan = explained(&fixture, BY_KEY).await;
    assert!(!plan.contains(" partitions of "), "{plan}");
    {
        let mut refused = fixture.columns.refused_partitions.lock();
        let (_, at) = refused.as_mut().expect("there was no room");
        *at = at.checked_sub(WAIT_FOR_ROOM).expect("a time");
    }
    compare_divided(&fixture, &QUERIES[..1], " MB of them on the host, by ").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_copied_to_the_host_while_others_are_divided() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.free_bytes.store(0, Ordering::Relaxed);
    let fixture = fixture(&emulated).await;
    for file in 0..6 {
        let path = fixture._folder.path().join(format!("y/{file}.parquet"));
        let (path, first) = (path.display(), 1000 * file);
        let rows = format!("generate_series({first}, {})", first + 600);
        fixture
            .copy(&format!("COPY (SELECT {OF_W} FROM {rows}) TO '{path}'"))
            .await;
    }
    fixture.register("y").await;
    let query = "SELECT count(*), sum(score), sum(v), max(g) FROM y JOIN x ON y.k = x.k";
    compare_divided(&fixture, &[(query, 300)], " MB of them on the host, by ").await;
    // Both sides are counted, the rows of `x` are a batch, and the last launch reads all. The others are batches of
    // `y`, which take turns in two areas.
    let (plan, launches) = launched((&fixture, &emulated), query).await;
    assert!(launches >= 8, "{launches}: {plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitions_on_the_device_give_way_to_totals() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.free_bytes.store(0, Ordering::Relaxed);
    let fixture = fixture(&emulated).await;
    // The columns are in the host, and cannot make room.
    compare_divided(&fixture, &QUERIES[..1], " MB of them on the host, by ").await;
    emulated.free_bytes.store(u64::MAX, Ordering::Relaxed);
    let allocations = || emulated.allocations.load(Ordering::Relaxed);
    let before = allocations();
    let plan = explained(&fixture, BY_KEY).await;
    let is_on_device = plan.contains(" partitions of ") && !plan.contains("MB of them on the host");
    assert!(is_on_device, "{plan}");
    // The last one is for what kernels return.
    let last = allocations() + (allocations() - before) - 1;
    emulated.fails_at.store(last, Ordering::Relaxed);
    let plan = explained(&fixture, BY_KEY).await;
    assert!(plan.contains("MB of them on the host"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_of_the_host_are_divided_if_slices_are_many() {
    if !emulated::has_compiler() {
        return;
    }
    for (free_bytes, room, slices, is_divided) in [
        (u64::MAX, 128, 15, false),
        (0, 900, 2, false),
        (0, 128, 15, true),
    ] {
        let emulated = Emulated::new();
        emulated.free_bytes.store(free_bytes, Ordering::Relaxed);
        let fixture = fixture(&emulated).await;
        let columns = &fixture.columns;
        columns.always_divides.store(false, Ordering::Relaxed);
        columns.tables_bytes_max.store(room, Ordering::Relaxed);
        fixture.compare([&BY_KEY]).await;
        let plan = explained(&fixture, BY_KEY).await;
        assert_eq!(slices_of(&plan, "tables of joins"), Some(slices), "{plan}");
        assert_eq!(plan.contains(" partitions of "), is_divided, "{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_query_that_is_cancelled_while_rows_are_divided_returns_no_other_rows() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.poisons.store(true, Ordering::Relaxed);
    let fixture = fixture(&emulated).await;
    let room = &fixture.columns.tables_bytes_max;
    room.store(300, Ordering::Relaxed);
    let (wanted, _) = Fixture::rows(&fixture.without, BY_KEY).await;
    assert!(wanted.is_ok());
    for kernel in 0..6 {
        for looks in 0..4 {
            *emulated.cancels.lock() = Some((kernel, looks));
            match Fixture::rows(&fixture.with, BY_KEY).await.0 {
                Err(error) => assert!(error.contains(CANCELLED), "{error}"),
                rows => assert_eq!(rows, wanted, "kernel {kernel}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn divided_rows_give_the_rows_of_the_cpu_for_random_queries() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[6_000, 700])).await;
    let (columns, always) = (&fixture.columns, &fixture.columns.always_divides);
    let room = &columns.tables_bytes_max;
    room.store(OF_RANDOM_BYTES, Ordering::Relaxed);
    always.store(true, Ordering::Relaxed);
    let found = compare_random(&fixture, 8).await;
    assert!(found.divided > 0);
}
