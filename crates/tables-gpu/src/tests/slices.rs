//! Tables of joins and totals that have no room as a whole.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_device::Fault;
use forebay_memory::Share;

use super::data::Sizes;
use super::devices::{explained, gpus};
use super::emulated::{self, Emulated, LOST};
use super::random::compare_random;
use super::{Fixture, QUERIES, compile_those, floats, is_full, joins, limits};
use crate::giving_way::Freeing;
use crate::gpu::open_all;

const SIZES: Sizes = Sizes(&[3000, 1, 512, 513]);

/// Room that most tables of joins of random queries with `m` and `p` exceed.
pub(super) const OF_RANDOM_BYTES: u64 = 300;

/// A query whose groups are many in each table.
const OF_MANY_GROUPS: &str = "SELECT b, count(*), sum(quantity) FROM t GROUP BY b";

/// Queries, the room of their tables and totals, and what is made in slices.
pub(super) const IN_SLICES: &[(&str, u64, &str)] = &[
    // Two tables by the same key are made together, two by other keys in all combinations.
    (
        "SELECT flag, count(*) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v <> quantity - 20 AND v < 6)
            AND NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND quantity - 25 <> v AND v > 2) GROUP BY flag",
        128,
        "tables of joins",
    ),
    (
        "SELECT count(*), max(one.score), max(other.score) FROM t JOIN u one ON b = one.id JOIN u other ON b + 1 = other.id",
        4 << 10,
        "tables of joins",
    ),
    (
        "SELECT count(*), sum(v), max(v) FROM t JOIN h ON a * 1000000000007 = far",
        8 << 10,
        "tables of joins",
    ),
    // Each slice is told of all other rows: with and without NULL among their keys, and without rows.
    (
        "SELECT count(*), sum(quantity) FROM t WHERE b NOT IN (SELECT score FROM u WHERE score IS NOT NULL)",
        4 << 10,
        "tables of joins",
    ),
    (
        "SELECT count(*), sum(quantity) FROM t WHERE b NOT IN (SELECT score FROM u)",
        4 << 10,
        "tables of joins",
    ),
    (
        "SELECT count(*), count(a), sum(b) FROM t WHERE a * 6200 NOT IN (SELECT score FROM u WHERE score IS NOT NULL)",
        4 << 10,
        "tables of joins",
    ),
    (
        "SELECT count(*), count(a), sum(b) FROM t WHERE a * 6200 NOT IN (SELECT score FROM u WHERE id + score < 0)",
        4 << 10,
        "tables of joins",
    ),
    (
        "SELECT day, flag, count(*), sum(b) FROM t GROUP BY 1, 2",
        8 << 10,
        "groups",
    ),
    (
        "SELECT b, count(*), sum(quantity) FROM t GROUP BY b",
        8 << 10,
        "groups",
    ),
    // A hash table instead of too many slices.
    (
        "SELECT a * 6000 + quantity, count(*), sum(b) FROM t GROUP BY 1",
        8 << 10,
        "groups",
    ),
];

/// Queries with joins that repeat rows, and the room of their tables.
pub(super) const REPEATED: &[(&str, u64)] = &[
    (
        "SELECT flag, count(*), sum(v), min(v), max(quantity * v) FROM t JOIN m ON a = k GROUP BY flag",
        200,
    ),
    // Some matches, all or none of a row meet the condition.
    (
        "SELECT flag, count(*), count(v), sum(v) FROM t LEFT JOIN m ON a = k AND quantity < v * 4 GROUP BY flag",
        200,
    ),
    (
        "SELECT a, v, b FROM t JOIN m ON a = k WHERE quantity = 7",
        200,
    ),
    // Two in all combinations, of which groups have keys.
    (
        "SELECT one.v, other.v, count(*) FROM t JOIN m one ON a = one.k JOIN m other ON tiny = other.k WHERE quantity < 20
            GROUP BY 1, 2",
        420,
    ),
    // Rows that are repeated themselves.
    (
        "SELECT count(*), sum(quantity), sum(w) FROM t JOIN (SELECT one.k, one.v, other.v AS w FROM m AS one
            JOIN m AS other ON one.k = other.k) AS n ON a = n.k",
        1200,
    ),
    // In a hash table.
    (
        "SELECT count(*), sum(one.quantity), max(other.a) FROM t AS one JOIN t AS other ON one.b = other.b",
        64 << 10,
    ),
];

/// Queries that search the rows of a key for one that meets a condition, and the room of their tables. Some rows have
/// no key, or one that no row of the table has.
pub(super) const SEARCHES: &[(&str, u64)] = &[
    (
        "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity)",
        200,
    ),
    (
        "SELECT flag, count(*), count(a), sum(b) FROM t WHERE NOT EXISTS
            (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity) GROUP BY flag",
        200,
    ),
    (
        "SELECT count(*), count(a), sum(b) FROM t WHERE ok OR EXISTS
            (SELECT 1 FROM m WHERE m.k = a AND v < quantity AND v + quantity > 12)",
        200,
    ),
    (
        "SELECT a, quantity, b FROM t WHERE quantity < 20 AND NOT EXISTS
            (SELECT 1 FROM m WHERE m.k = a AND v > quantity - 9)",
        200,
    ),
    // NOT IN with a further condition, also with NULL among the other keys.
    (
        "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE k IS NOT NULL AND v * 9 > quantity)",
        200,
    ),
    (
        "SELECT count(*), count(a) FROM t WHERE a NOT IN (SELECT k FROM m WHERE v * 9 > quantity)",
        200,
    ),
    // Two by the same key are made together, two by other keys in all combinations.
    (
        "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity)
            AND NOT EXISTS (SELECT 1 FROM m AS other WHERE other.k = a AND other.v > b)",
        400,
    ),
    (
        "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity)
            AND (ok OR EXISTS (SELECT 1 FROM m AS other WHERE other.k = tiny AND other.v > quantity - 9))",
        420,
    ),
    // For each row that a join repeats.
    (
        "SELECT v, count(*), sum(b) FROM t JOIN m ON a = k WHERE NOT EXISTS
            (SELECT 1 FROM m AS other WHERE other.k = tiny AND other.v > m.v) GROUP BY v",
        420,
    ),
    // In a hash table.
    (
        "SELECT count(*), sum(b) FROM t WHERE NOT EXISTS
            (SELECT 1 FROM h WHERE far = a * 1000000000007 AND pieces > quantity)",
        4 << 10,
    ),
    // The table of all pairs is whole.
    (
        "SELECT count(*), sum(v) FROM t JOIN m ON a = k WHERE NOT EXISTS (SELECT 1 FROM c WHERE b < n)",
        300,
    ),
];

/// A join, and a search, in which most rows have the same key.
const SKEWED: &str = "SELECT count(*), sum(v) FROM t
    JOIN (SELECT CASE WHEN v < 7 THEN 2 ELSE k END AS n, v FROM m) AS s ON a = s.n";
pub(super) const SKEWED_SEARCH: &str = "SELECT count(*), sum(b) FROM t WHERE EXISTS (SELECT 1 FROM
    (SELECT CASE WHEN v < 7 THEN 2 ELSE k END AS n, v FROM m) AS s WHERE s.n = a AND v > quantity - 9)";

/// Queries with joins by the keys of `s`, whose tables take the same room: more than [`OF_KEYS_BYTES`] as a whole.
const OF_KEYS: &[&str] = &[
    "SELECT count(*), sum(v), max(quantity * v) FROM t JOIN s ON a = near",
    "SELECT flag, count(*), count(a), sum(b), sum(v) FROM t LEFT JOIN s ON a = near AND quantity < v * 4 GROUP BY flag",
    // Kernels mark the keys of the groups before.
    "SELECT v, count(*), sum(b) FROM t JOIN s ON a = near GROUP BY v",
    "SELECT a, v, b FROM t JOIN s ON a = near WHERE quantity = 7",
    "SELECT count(*), count(a), sum(b) FROM t WHERE NOT EXISTS (SELECT 1 FROM s WHERE near = a AND v * 5 > quantity)",
];
const OF_KEYS_BYTES: u64 = 2000;

/// Returns the number of slices of tables or groups that `EXPLAIN ANALYZE` prints; `None` if they are whole.
pub(super) fn slices_of(plan: &str, of: &str) -> Option<u64> {
    let of = format!("{of} of ");
    let mut parts = plan.split(", ").filter_map(|it| it.strip_prefix(&*of));
    let (_, slices) = parts.find_map(|it| it.split_once(" MB in "))?;
    let slices = slices.strip_suffix(" slices")?.split(" x ");
    slices.map(|it| it.parse::<u64>().ok()).product()
}

/// Returns the number of slices of each table of a join in the fragments of a plan, as `EXPLAIN ANALYZE` prints them;
/// 1 for the tables of a fragment that are all whole.
pub(super) fn slices_of_tables(plan: &str) -> Vec<u64> {
    let parts = plan.split(", ");
    let parts = parts.filter_map(|it| it.strip_prefix("tables of joins of "));
    let slices = parts.flat_map(|it| {
        let slices = it.split_once(" MB in ").map_or("1", |(_, it)| it);
        slices.trim_end_matches(" slices").split(" x ")
    });
    slices.map(|it| it.parse().expect("a number")).collect()
}

/// Runs queries with the room of their tables, which must be made in slices.
async fn compare_in_slices(fixture: &Fixture, queries: &[(&str, u64)]) {
    for (query, bytes) in queries {
        let room = &fixture.columns.tables_bytes_max;
        room.store(*bytes, Ordering::Relaxed);
        fixture.compare([query]).await;
        let plan = explained(fixture, query).await;
        let slices = slices_of(&plan, "tables of joins");
        assert!(slices.is_some(), "{query}: {plan}");
    }
}

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
            assert!(slices_of(&plan, wanted).is_some(), "{query}: {plan}");
        }
        room.store(8 << 10, Ordering::Relaxed);
        let all = QUERIES.iter().chain(floats::QUERIES);
        let all = all.chain(joins::QUERIES).chain(joins::OF_LARGE);
        let all = all.chain(joins::LISTS);
        // One device computes every second query, and two the others, unless all tests run.
        let (first, step) = if is_full() { (0, 1) } else { (devices - 1, 2) };
        fixture.compare(all.skip(first).step_by(step)).await;
        room.store(200, Ordering::Relaxed);
        let few = joins::QUERIES[..30].iter();
        fixture.compare(few.skip(first).step_by(step)).await;
    }
    compile_those(&emulated, |it| it.source.contains("kIsSliced = true"));
}

/// Creates a table `s` of 512 rows with keys from 0 to 63. In `even`, each key has eight rows. In `near`, the first
/// eight keys have most of the rows. `id` numbers the rows.
pub(super) async fn of_keys(fixture: &Fixture) {
    let copy = "COPY (SELECT CAST(value AS INT) AS id, value % 7 AS v, CAST(value % 64 AS INT) AS even,
        CAST(CASE WHEN value < 448 THEN value % 8 ELSE value % 64 END AS INT) AS near FROM generate_series(0, 511)) TO";
    let path = fixture._folder.path().join("s/0.parquet");
    fixture.copy(&format!("{copy} '{}'", path.display())).await;
    fixture.register("s").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slice_with_too_many_rows_is_divided_while_the_query_runs() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 1), SIZES).await;
    of_keys(&fixture).await;
    let room = &fixture.columns.tables_bytes_max;
    room.store(OF_KEYS_BYTES, Ordering::Relaxed);
    for query in OF_KEYS {
        let even = query.replace("near", "even");
        fixture.compare([query, &&*even]).await;
        let slices = [
            explained(&fixture, &even).await,
            explained(&fixture, query).await,
        ];
        let [whole, divided] = slices.each_ref().map(|it| slices_of(it, "tables of joins"));
        assert!(whole > Some(1) && divided > whole, "{query}: {slices:?}");
    }
    // The first attempt finds that rows repeat. The second one has a launch for each slice, to mark keys and to add
    // totals, and one for each slice that it divides. Another attempt would have more.
    for (query, passes) in [(OF_KEYS[0], 1), (OF_KEYS[2], 2)] {
        let even = query.replace("near", "even");
        let mut whole = None;
        for query in [&*even, query] {
            let before = emulated.launches.load(Ordering::Relaxed);
            let plan = explained(&fixture, query).await;
            let launches = emulated.launches.load(Ordering::Relaxed) - before;
            let slices = slices_of(&plan, "tables of joins").expect("slices");
            let divisions = slices - *whole.get_or_insert(slices);
            assert_eq!(launches, 1 + passes * slices + divisions, "{query}: {plan}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn joins_that_repeat_rows_are_made_in_slices() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for devices in [1, 2] {
        let fixture = Fixture::new(emulated::devices(&emulated, devices), SIZES).await;
        compare_in_slices(&fixture, REPEATED).await;
        // The table that does not repeat rows is the larger one: it alone is in slices.
        let query =
            "SELECT count(*), sum(v), max(score) FROM t JOIN m ON a = m.k JOIN u ON b = u.id";
        let room = &fixture.columns.tables_bytes_max;
        room.store(4 << 10, Ordering::Relaxed);
        fixture.compare([&query]).await;
        let plan = explained(&fixture, query).await;
        assert_eq!(slices_of(&plan, "tables of joins"), Some(3), "{plan}");
        let mut of_tables = slices_of_tables(&plan);
        of_tables.sort_unstable();
        assert_eq!(of_tables, [1, 3], "{plan}");
    }
    compile_those(&emulated, |it| {
        it.source.contains("kIsSliced = true") && it.source.contains("kOwnRepeats = 1")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_are_searched_in_slices() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    for devices in [1, 2] {
        let fixture = Fixture::new(emulated::devices(&emulated, devices), SIZES).await;
        compare_in_slices(&fixture, SEARCHES).await;
    }
    compile_those(&emulated, |it| {
        it.source.contains("kIsSliced = true") && it.source.contains("Search::k")
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slices_with_many_rows_of_a_key_are_made_smaller() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = Fixture::new(emulated::devices(&emulated, 1), SIZES).await;
    let room = &fixture.columns.tables_bytes_max;
    // The first run of the join finds that rows repeat. The next one, and the first of the search, finds that a slice
    // has too many.
    for (query, least) in [(SKEWED, 3), (SKEWED_SEARCH, 2)] {
        let before = emulated.launches.load(Ordering::Relaxed);
        compare_in_slices(&fixture, &[(query, 300)]).await;
        // `EXPLAIN ANALYZE` runs it, too.
        let launches = emulated.launches.load(Ordering::Relaxed) - before;
        assert!(launches >= 2 * least, "{query}: {launches}");
    }
    // All rows of a key are in one slice.
    room.store(100, Ordering::Relaxed);
    let refused = [SKEWED, SKEWED_SEARCH].map(|query| (query, "there is room for 100"));
    fixture.compare_refused(&refused).await;
    room.store(64, Ordering::Relaxed);
    let of_all_pairs = [
        "SELECT count(*), max(n) FROM t JOIN c ON b < n",
        "SELECT count(*) FROM t WHERE EXISTS (SELECT 1 FROM c WHERE b < n)",
    ];
    let refused = of_all_pairs.map(|query| (query, "there is room for 64"));
    fixture.compare_refused(&refused).await;
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
    assert_eq!(slices_of(&plan, "tables of joins"), Some(3), "{plan}");
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
    assert!(plan.contains(", tables of joins of 0.0 MB, "), "{plan}");
    // Columns of other queries give way first, of which there are none.
    emulated.failing.store(2, Ordering::Relaxed);
    fixture.compare([&query]).await;
    assert_eq!(emulated.failing.load(Ordering::Relaxed), 0);
    let plan = explained(&fixture, query).await;
    assert!(
        plan.contains(" %) and ") && plan.contains("MB on the host"),
        "{plan}"
    );
    // Without room in the host, the query is the CPU's, and columns stay.
    emulated.failing.store(2, Ordering::Relaxed);
    emulated.is_host_full.store(true, Ordering::Relaxed);
    let (refused, _) = Fixture::rows(&fixture.with, query).await;
    assert!(refused.is_err_and(|it| it.contains("full")));
    fixture.compare([&query]).await;
}

/// Returns the rows of the CPU and those of a session that may use it, and what `EXPLAIN ANALYZE` then says.
async fn on_lost(fixture: &Fixture, query: &str) -> (Vec<String>, Vec<String>, String) {
    let (without, _) = Fixture::rows(&fixture.without, query).await;
    let (found, _) = Fixture::rows(&fixture.lenient, query).await;
    let explained = format!("EXPLAIN ANALYZE {query}");
    let (plan, _) = Fixture::rows(&fixture.lenient, &explained).await;
    let plan = plan.expect(query).concat();
    (without.expect(query), found.expect(query), plan)
}

/// A device is lost in the middle of the kernels of a query. The other one, if any, has all rows afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_answers_if_a_device_is_lost_while_slices_run() {
    if !emulated::has_compiler() {
        return;
    }
    for devices in [1, 2] {
        let emulated = Emulated::new();
        let fixture = Fixture::new(emulated::devices(&emulated, devices), SIZES).await;
        let (columns, left) = (&fixture.columns, &emulated.kernels_left);
        for (query, bytes, wanted) in IN_SLICES {
            columns.tables_bytes_max.store(*bytes, Ordering::Relaxed);
            // The first run may find that it needs more slices. The second tells the number of kernels.
            explained(&fixture, query).await;
            left.store(u64::MAX, Ordering::Relaxed);
            let plan = explained(&fixture, query).await;
            assert!(plan.contains(wanted), "{query}: {plan}");
            let kernels = u64::MAX - left.load(Ordering::Relaxed);
            left.store(kernels / 2, Ordering::Relaxed);
            let (without, found, plan) = on_lost(&fixture, query).await;
            assert_eq!(found, without, "{query}");
            assert_ne!(emulated.lost.load(Ordering::Relaxed), 0, "{query}");
            match devices {
                1 => assert!(plan.contains(LOST), "{query}: {plan}"),
                _ => assert!(plan.contains(wanted), "{query}: {plan}"),
            }
            // The devices work again, and columns are read again.
            emulated.lost.store(0, Ordering::Relaxed);
            columns.known.lock().columns.clear();
        }
        let on_cpu = columns.counts.on_cpu();
        let [(why, count)] = &on_cpu[..] else {
            panic!("{on_cpu:?}");
        };
        let is_right = why == LOST && *count >= IN_SLICES.len() as u64;
        assert!(is_right, "{on_cpu:?}");
        let kinds = columns.counts.on_cpu_kinds();
        assert!(kinds.contains(&("device_lost", *count)), "{kinds:?}");
    }
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
        .store(OF_RANDOM_BYTES, Ordering::Relaxed);
    let found = compare_random(&fixture, 8).await;
    assert!(found.in_slices > 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_cpu_answers_if_a_gpu_is_lost_while_slices_run() {
    let (query, bytes, wanted) = IN_SLICES[1];
    let mut lost = 0;
    for checks in 0..6 {
        let Some(devices) = gpus() else { return };
        let device = devices.list().remove(0);
        let freeing = Freeing::default();
        let limits = limits(1 << 30);
        let engines = open_all(devices.list(), limits, Share::default(), None, &freeing);
        let fixture = Fixture::new(engines.expect("room"), SIZES).await;
        let room = &fixture.columns.tables_bytes_max;
        room.store(bytes, Ordering::Relaxed);
        let plan = explained(&fixture, query).await;
        assert!(plan.contains(wanted), "{plan}");
        device.inject(Fault::FailAfter { checks });
        let (without, found, plan) = on_lost(&fixture, query).await;
        assert_eq!(found, without, "after {checks} checks");
        if device.is_lost() {
            lost += 1;
            let says_why = plan.contains("ran on the CPU") && plan.contains("lost");
            assert!(says_why, "{plan}");
        }
        drop(fixture);
        devices.halt();
    }
    assert!(lost > 2, "the GPU was lost at {lost} points only");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_gpu_gives_the_rows_of_the_cpu_by_slices() {
    let Some(devices) = gpus() else { return };
    let device = devices.list().remove(0);
    let open = || {
        let (devices, freeing) = (vec![Arc::clone(&device)], Freeing::default());
        open_all(devices, limits(1 << 30), Share::default(), None, &freeing).expect("room")
    };
    for (sizes, bytes, random) in [
        (Sizes(&[600_000, 1, 262_145]), 2 << 20, 0),
        (Sizes(&[20_000, 700]), 16 << 10, 100),
        (Sizes(&[6_000, 700]), OF_RANDOM_BYTES, 100),
    ] {
        let fixture = Fixture::new(open(), sizes).await;
        let room = &fixture.columns.tables_bytes_max;
        room.store(bytes, Ordering::Relaxed);
        if bytes > OF_RANDOM_BYTES {
            fixture.compare(QUERIES.iter().chain(joins::QUERIES)).await;
            let plan = explained(&fixture, OF_MANY_GROUPS).await;
            assert!(slices_of(&plan, "groups").is_some(), "{bytes}: {plan}");
        }
        if random > 0 {
            let divides = bytes == OF_RANDOM_BYTES;
            let always = &fixture.columns.always_divides;
            always.store(divides, Ordering::Relaxed);
            let found = compare_random(&fixture, random).await;
            let is_divided = found.divided > 0;
            assert!(found.in_slices > 0 && is_divided == divides, "{found:?}");
        }
    }
    let fixture = Fixture::new(open(), SIZES).await;
    let room = &fixture.columns.tables_bytes_max;
    for divides in [false, true] {
        let always = &fixture.columns.always_divides;
        always.store(divides, Ordering::Relaxed);
        for (query, bytes) in REPEATED.iter().chain(SEARCHES) {
            room.store(*bytes, Ordering::Relaxed);
            fixture.compare([query]).await;
        }
    }
    drop(fixture);
    drop(device);
    devices.halt();
}
