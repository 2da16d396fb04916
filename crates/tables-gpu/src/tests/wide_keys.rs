//! Keys of groups and joins that together need more bits than a number has.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::array::{
    ArrayRef, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};

use super::data::Sizes;
use super::devices::explained;
use super::edges::write_groups;
use super::emulated::{self, Emulated};
use super::slices::slices_of;
use super::{Fixture, compile_longest, is_full};
use crate::fingerprint::{SEEDS, has_fingerprints, start_of};

/// Queries of groups. Two pairs `a, b` have the same fingerprint with the first seed.
const GROUPS: &[&str] = &[
    "SELECT a, b, count(*), sum(n) FROM x GROUP BY a, b",
    "SELECT a, count(*), min(n), max(b) FROM x GROUP BY a",
    "SELECT c, count(*), count(c) FROM x GROUP BY c",
    "SELECT c, a, b, max(n) FROM x GROUP BY 1, 2, 3",
    "SELECT s, a, b, count(c) FROM x GROUP BY 1, 2, 3",
    "SELECT f, a, count(*) FROM x GROUP BY 1, 2",
    "SELECT f, count(*) FROM x GROUP BY f",
    // NULL has no number of its own here.
    "SELECT CASE WHEN n % 3 = 0 THEN a END AS p, c / 2 AS q, n % 2, count(*) FROM x GROUP BY 1, 2, 3",
    "SELECT a, b, sum(n) AS m FROM x GROUP BY a, b HAVING count(*) > 3 ORDER BY m DESC, a, b LIMIT 7",
    "SELECT b, c, min(c) AS m FROM x GROUP BY b, c ORDER BY m NULLS FIRST, b LIMIT 9",
    "SELECT DISTINCT b, c FROM x WHERE n > 10",
    "SELECT count(DISTINCT b), count(DISTINCT c), count(*) FROM x",
    "SELECT count(*), sum(m), max(c), count(c) FROM (SELECT b, c, count(*) AS m FROM x GROUP BY b, c)",
    "SELECT label, a, b, count(*) FROM x LEFT JOIN d ON n = k GROUP BY 1, 2, 3",
    "SELECT b, wide, count(*) FROM t GROUP BY b, wide",
];

/// Queries of joins. Two pairs `a, b` have the same fingerprint, and both tables have both pairs.
const JOINS: &[&str] = &[
    "SELECT count(*), sum(n), sum(v) FROM x JOIN y ON x.a = y.a AND x.b = y.b",
    "SELECT count(*), sum(m), sum(n) FROM x JOIN (SELECT a, b, count(*) AS m FROM y GROUP BY a, b) AS g
        ON x.a = g.a AND x.b = g.b",
    "SELECT count(*), sum(m), sum(n) FROM x JOIN (SELECT a, b, c, count(*) AS m FROM y GROUP BY a, b, c) AS g
        ON x.a = g.a AND x.b = g.b AND x.c = g.c",
    "SELECT count(*), sum(v) FROM x JOIN y ON x.s = y.s AND x.a = y.a AND x.b = y.b",
    "SELECT count(*), sum(v) FROM x JOIN y ON x.c = y.c AND n = v",
    "SELECT n, v, x.c FROM x JOIN y ON x.a = y.a AND x.b = y.b WHERE n < 2",
    "SELECT v, count(*), sum(n) FROM x LEFT JOIN y ON x.a = y.a AND x.b = y.b GROUP BY v",
    "SELECT count(*), sum(n), sum(m) FROM x LEFT JOIN (SELECT a, b, count(*) AS m FROM y GROUP BY a, b) AS g
        ON x.a = g.a AND x.b = g.b",
    "SELECT v, count(*), sum(n) FROM x LEFT JOIN y ON x.a = y.a AND x.b = y.b AND n > v GROUP BY v",
    "SELECT n, count(*), sum(v) FROM x RIGHT JOIN y ON x.a = y.a AND x.b = y.b GROUP BY n",
    "SELECT count(*), count(n), sum(v) FROM x FULL JOIN y ON x.a = y.a AND x.b = y.b",
    // A single key has no collisions.
    "SELECT count(*), sum(n) FROM x WHERE c IN (SELECT c FROM y WHERE v > 3)",
    "SELECT count(*), sum(n) FROM x WHERE c NOT IN (SELECT c FROM y)",
    "SELECT count(*), sum(n) FROM x WHERE c NOT IN (SELECT c FROM y WHERE c IS NOT NULL AND v > 3)",
    "SELECT count(*), sum(n) FROM x WHERE EXISTS (SELECT 1 FROM y WHERE y.a = x.a AND y.b = x.b)",
    "SELECT count(*), sum(n) FROM x WHERE NOT EXISTS (SELECT 1 FROM y WHERE y.a = x.a AND y.b = x.b AND v = n)",
    "SELECT count(*), sum(n) FROM x WHERE EXISTS (SELECT 1 FROM y WHERE y.a = x.a AND y.b = x.b AND v > n)",
    "SELECT count(*), sum(n) FROM x WHERE NOT EXISTS (SELECT 1 FROM y WHERE y.a = x.a AND y.b = x.b AND v <> n)",
    "SELECT count(*), sum(n) FROM x WHERE n < 3 OR EXISTS (SELECT 1 FROM y WHERE y.a = x.a AND y.b = x.b)",
    // `once` has one of two such pairs, and each of its pairs once.
    "SELECT count(*), sum(n), sum(v) FROM x JOIN once ON x.a = once.a AND x.b = once.b",
    "SELECT v, count(*), sum(n) FROM x LEFT JOIN once ON x.a = once.a AND x.b = once.b GROUP BY v",
    "SELECT count(*), sum(n) FROM x WHERE EXISTS (SELECT 1 FROM once WHERE once.a = x.a AND once.b = x.b)",
    "SELECT count(*), sum(n) FROM x WHERE NOT EXISTS (SELECT 1 FROM once WHERE once.a = x.a AND once.b = x.b)",
    "SELECT count(*), sum(n) FROM x WHERE n < 3 OR EXISTS (SELECT 1 FROM once WHERE once.a = x.a AND once.b = x.b)",
    "SELECT count(*) FROM t JOIN h ON a * 1000000000007 = far AND b = far",
    "SELECT count(*) FROM t JOIN f ON strange = x AND quantity = v",
];

/// Queries, the room of their tables and totals, and what is made in slices.
const IN_SLICES: &[(usize, &[&str], u64, &str)] = &[
    (0, GROUPS, 8 << 10, "groups"),
    (8, GROUPS, 8 << 10, "groups"),
    (0, JOINS, 4 << 10, "tables of joins"),
    (8, JOINS, 4 << 10, "tables of joins"),
    (18, JOINS, 4 << 10, "tables of joins"),
];

/// Queries that the CPU computes, and a part of the reason. In `z`, two pairs have the same fingerprint with each
/// seed. In `o`, the fingerprint of a pair has all bits set, which is no key.
const REFUSED: &[(&str, &str)] = &[
    (
        "SELECT a, b, count(*) FROM z GROUP BY a, b",
        "fingerprints collide",
    ),
    (
        "SELECT a, b, count(*) FROM o GROUP BY a, b",
        "fingerprints collide",
    ),
    (
        "SELECT count(*), sum(n) FROM x JOIN o ON x.a = o.a AND x.b = o.b",
        "fingerprints collide",
    ),
    (
        "SELECT count(*) FROM x JOIN y ON x.a = y.a AND x.b = y.b AND x.c = y.c",
        "joins with many columns",
    ),
];

/// Numbers at both ends of 64 bits, and around 0.
const ENDS: [i64; 7] = [i64::MIN, i64::MAX, 0, -1, 1, i64::MAX - 1, i64::MIN + 1];

/// The factors in `hash.cuh`.
const FACTORS: [u64; 2] = [0xFF51_AFD7_ED55_8CCD, 0xC4CE_B9FE_1A85_EC53];

type Pair = (i64, i64);

/// Mixes the bits of a key as `hash.cuh` does.
fn mixed(key: u64) -> u64 {
    FACTORS
        .iter()
        .fold(key, |key, factor| (key ^ key >> 33).wrapping_mul(*factor))
}

/// Returns the key that is mixed to this number.
fn unmixed(number: u64) -> u64 {
    FACTORS.iter().rev().fold(number, |number, factor| {
        // Each step doubles the number of correct bits.
        let inverse = (0..6).fold(*factor, |inverse: u64, _| {
            inverse.wrapping_mul(2_u64.wrapping_sub(factor.wrapping_mul(inverse)))
        });
        let key = number.wrapping_mul(inverse);
        key ^ key >> 33
    })
}

/// Returns two pairs that have the same fingerprint with a seed.
fn alike(seed: u64) -> [Pair; 2] {
    let first = |number: i64| mixed(start_of(seed) ^ number.cast_unsigned());
    let second = first(11) ^ 12 ^ first(-13);
    [(11, 12), (-13, second.cast_signed())]
}

/// Returns a pair whose fingerprint with a seed has all bits set.
fn without_key(seed: u64) -> Pair {
    let second = mixed(start_of(seed) ^ 5) ^ unmixed(u64::MAX);
    (5, second.cast_signed())
}

/// Returns pairs at the ends of 64 bits, so that the number of a value is the value itself, with others behind them.
fn with_ends(others: impl IntoIterator<Item = Pair>) -> Vec<Pair> {
    let ends = [(i64::MIN, i64::MAX), (i64::MAX, i64::MIN), (0, 0)];
    ends.into_iter().chain(others).collect()
}

/// Returns this many rows of a table. All but the last column are the same again after `period` rows, and begin with
/// these pairs. `number` is the name of the last column, of small numbers.
fn rows(pairs: &[Pair], (count, period): (usize, usize), number: &str) -> RecordBatch {
    let pair = |row: usize| match pairs.get(row) {
        Some(pair) => *pair,
        None => {
            let far = (row as u64 % 43).wrapping_mul(start_of(1));
            (ENDS[row % 7], far.cast_signed())
        }
    };
    let all = || (0..count).map(move |row| row % period);
    let c = all().map(|row| (row % 5 > 0).then(|| ENDS[row / 5 % 7] ^ (row % 3) as i64));
    let s = all().map(|row| (row % 6 > 0).then(|| format!("text {}", row % 4)));
    let f = all().map(|row| -((row % 30 + 1) as f64) / 7.0);
    let n = (0..count).map(|row| (row % 20) as i32);
    let columns: [(&str, ArrayRef, bool); 6] = [
        (
            "a",
            Arc::new(Int64Array::from_iter_values(all().map(|row| pair(row).0))),
            true,
        ),
        (
            "b",
            Arc::new(Int64Array::from_iter_values(all().map(|row| pair(row).1))),
            true,
        ),
        ("c", Arc::new(c.collect::<Int64Array>()), true),
        ("s", Arc::new(s.collect::<StringArray>()), true),
        ("f", Arc::new(Float64Array::from_iter_values(f)), true),
        (number, Arc::new(Int32Array::from_iter_values(n)), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).expect("columns of one length")
}

/// Returns a fixture with the tables.
async fn fixture(emulated: &Arc<Emulated>, devices: usize) -> Fixture {
    let devices = emulated::devices(emulated, devices);
    let fixture = Fixture::new(devices, Sizes(&[300, 40])).await;
    let collide = with_ends([alike(0), alike(1)].concat());
    let always = with_ends((1..=SEEDS).flat_map(alike));
    let no_keys = with_ends((0..=SEEDS).map(without_key));
    let tables = [
        ("x", rows(&collide, (1500, 301), "n")),
        // It has several rows of some pairs, and none of others.
        ("y", rows(&collide, (340, 200), "v")),
        ("once", rows(&with_ends([alike(0)[1]]), (40, 40), "v")),
        ("z", rows(&always, (20, 20), "v")),
        ("o", rows(&no_keys, (20, 20), "v")),
    ];
    for (name, batch) in tables {
        write_groups(&fixture._folder.path().join(name), &[batch]);
        fixture.register(name).await;
    }
    fixture
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_need_more_bits_than_a_number_has() {
    if !emulated::has_compiler() {
        return;
    }
    let emulated = Emulated::new();
    let fixture = fixture(&emulated, 2).await;
    let step = if is_full() { 1 } else { 2 };
    let all = GROUPS.iter().chain(JOINS);
    fixture.compare(all.step_by(step)).await;
    fixture.compare_refused(REFUSED).await;
    let room = &fixture.columns.tables_bytes_max;
    for (index, queries, bytes, wanted) in IN_SLICES {
        room.store(*bytes, Ordering::Relaxed);
        let query = &queries[*index];
        fixture.compare([query]).await;
        let plan = explained(&fixture, query).await;
        assert!(slices_of(&plan, wanted).is_some(), "{query}: {plan}");
    }
    compile_longest(&emulated, |it| has_fingerprints(&it.source), [2; 3]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_seed_is_tried_if_fingerprints_collide() {
    if !emulated::has_compiler() {
        return;
    }
    assert_eq!(unmixed(mixed(0x0123_4567_89AB_CDEF)), 0x0123_4567_89AB_CDEF);
    let emulated = Emulated::new();
    let fixture = fixture(&emulated, 1).await;
    let launches = |before: u64| emulated.launches.load(Ordering::Relaxed) - before;
    // The fingerprints of a single key do not collide.
    let mut counts = Vec::new();
    for key in ["a, b", "b"] {
        let before = launches(0);
        let query = format!("SELECT {key}, count(*) FROM x GROUP BY {key}");
        fixture.compare([&query.as_str()]).await;
        counts.push(launches(before));
    }
    // A run adds totals and then writes groups. The first run with `a, b` ends before it writes groups.
    assert_eq!(counts, [3, 2]);
}
