//! Tables of joins and totals that have no room as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_memory::Share;

use super::data::Sizes;
use super::devices::{explained, gpus};
use super::emulated::{self, Emulated};
use super::random::compare_random;
use super::{Fixture, QUERIES, compile_those, floats, joins};
use crate::giving_way::Freeing;
use crate::gpu::open_all;

const SIZES: Sizes = Sizes(&[3000, 1, 512, 513]);

/// Queries, the room of their tables and totals, and what `EXPLAIN ANALYZE` says of them.
const IN_SLICES: &[(&str, u64, &str)] = &[
    // Two tables by the same key are made together, two by other keys in all combinations.
    (
        "SELECT flag, count(*) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v <> quantity - 20 AND v < 6)
            AND NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND quantity - 25 <> v AND v > 2) GROUP BY flag",
        128,
        "tables of joins in",
    ),
    (
        "SELECT count(*), max(one.score), max(other.score) FROM t JOIN u one ON b = one.id JOIN u other ON b + 1 = other.id",
        4 << 10,
        "tables of joins in",
    ),
    (
        "SELECT count(*), sum(v), max(v) FROM t JOIN h ON a * 1000000000007 = far",
        8 << 10,
        "tables of joins in",
    ),
    // Each slice is told of all rows.
    (
        "SELECT count(*), sum(quantity) FROM t WHERE b NOT IN (SELECT score FROM u WHERE score IS NOT NULL)",
        4 << 10,
        "tables of joins in",
    ),
    (
        "SELECT day, flag, count(*), sum(b) FROM t GROUP BY 1, 2",
        8 << 10,
        "groups in",
    ),
    (
        "SELECT b, count(*), sum(quantity) FROM t GROUP BY b",
        8 << 10,
        "groups in",
    ),
    // A hash table instead of too many slices.
    (
        "SELECT a * 6000 + quantity, count(*), sum(b) FROM t GROUP BY 1",
        8 << 10,
        "groups in",
    ),
];

/// Creates a table `w` of 530,000 rows with a column in order, of which the planner does not know that.
async fn in_order(fixture: &Fixture) {
    let copy = "COPY (SELECT CAST(CAST(value AS VARCHAR) AS BIGINT) AS n, value % 9000 AS price, value % 7 AS flag
        FROM generate_series(1, 530000)) TO";
    let path = fixture._folder.path().join("w/0.parquet");
    fixture.copy(&format!("{copy} '{}'", path.display())).await;
    fixture.register("w").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_and_groups_without_room_are_made_in_slices() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for devices in [1, 2] {
        let fixture = Fixture::new(emulated::devices(&emulated, devices), SIZES).await;
        let room = &fixture.columns.tables_bytes_max;
        for (query, bytes, wanted) in IN_SLICES {
            room.store(*bytes, Ordering::Relaxed);
            fixture.compare([query]).await;
            let plan = explained(&fixture, query).await;
            assert!(plan.contains(wanted), "{query}: {plan}");
        }
        room.store(8 << 10, Ordering::Relaxed);
        let all = QUERIES.iter().chain(floats::QUERIES);
        let all = all.chain(joins::QUERIES).chain(joins::OF_LARGE);
        fixture.compare(all.chain(joins::LISTS)).await;
        room.store(200, Ordering::Relaxed);
        fixture.compare(&joins::QUERIES[..30]).await;
    }
    compile_those(&emulated, |it| it.source.contains("kIsSliced = true"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_without_rows_of_a_slice_are_not_read() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[7])).await;
    in_order(&fixture).await;
    // The three chunks have 262,144 rows, as many, and 5,712. The second of three slices has rows of the first two.
    for (query, bytes, rows) in [
        (
            "SELECT n, count(*), sum(price) AS s FROM w GROUP BY n ORDER BY s DESC NULLS LAST, 1 LIMIT 5",
            3 << 20,
            1_054_288,
        ),
        (
            "SELECT count(*), sum(o.n) FROM w JOIN (SELECT n, flag FROM w WHERE flag <> 3) AS o ON w.n = o.n",
            24 << 10,
            2 * 1_054_288,
        ),
    ] {
        fixture
            .columns
            .tables_bytes_max
            .store(bytes, Ordering::Relaxed);
        fixture.compare([&query]).await;
        let plan = explained(&fixture, query).await;
        assert!(plan.contains(&format!("ran there: {rows} rows")), "{plan}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_device_makes_slices_beside_a_large_one() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    emulated.small.store(2, Ordering::Relaxed);
    let fixture = Fixture::new(emulated::devices(&emulated, 2), Sizes(&[7])).await;
    in_order(&fixture).await;
    let query = "SELECT count(*), sum(price), sum(o.n) FROM w
        JOIN (SELECT n FROM w WHERE flag <> 3) AS o ON w.n = o.n";
    fixture.compare([&query]).await;
    let plan = explained(&fixture, query).await;
    assert!(plan.contains("tables of joins in 3 slices"), "{plan}");
    assert!(plan.contains("on each of 2 GPUs"), "{plan}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_make_room_for_tables() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 1), SIZES).await;
    let query = "SELECT label, count(*), sum(price) FROM t JOIN d ON a = k GROUP BY label";
    fixture.compare([&query]).await;
    let plan = explained(&fixture, query).await;
    assert!(!plan.contains("on the host"), "{plan}");
    // Columns of other queries give way first, of which there are none.
    emulated.failing.store(2, Ordering::Relaxed);
    fixture.compare([&query]).await;
    assert_eq!(emulated.failing.load(Ordering::Relaxed), 0);
    let plan = explained(&fixture, query).await;
    assert!(plan.contains("MB on the host"), "{plan}");
    // Without room in the host, the query is the CPU's, and columns stay.
    emulated.failing.store(2, Ordering::Relaxed);
    emulated.is_host_full.store(true, Ordering::Relaxed);
    let (refused, _) = Fixture::rows(&fixture.with, query).await;
    assert!(refused.is_err_and(|it| it.contains("full")));
    fixture.compare([&query]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_give_the_rows_of_the_cpu_for_random_queries() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[6_000, 700])).await;
    fixture
        .columns
        .tables_bytes_max
        .store(600, Ordering::Relaxed);
    compare_random(&fixture, 24).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_gpu_gives_the_rows_of_the_cpu_by_slices() {
    let Some(devices) = gpus() else { return };
    let device = devices.list().remove(0);
    let open = || {
        let (devices, freeing) = (vec![Arc::clone(&device)], Freeing::default());
        open_all(devices, 1 << 30, Share::default(), None, &freeing).expect("room")
    };
    for (sizes, bytes, random) in [
        (Sizes(&[600_000, 1, 262_145]), 2 << 20, 0),
        (Sizes(&[20_000, 700]), 16 << 10, 100),
    ] {
        let fixture = Fixture::new(open(), sizes).await;
        let room = &fixture.columns.tables_bytes_max;
        room.store(bytes, Ordering::Relaxed);
        fixture.compare(QUERIES.iter().chain(joins::QUERIES)).await;
        if random > 0 {
            compare_random(&fixture, random).await;
        }
    }
    drop(device);
    devices.halt();
}
