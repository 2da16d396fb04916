//! Random queries whose joins have no room: each table of a join is made in slices.
//!
//! No room does that for all queries: the table of a semi join may have a bit for each key, and a slice of a hash
//! table has at least 64 slots. So each table is made in two slices even if it has room, and in more with
//! `FOREBAY_GPU_ROOM`.

use std::sync::atomic::Ordering;

use fastrand::Rng;
use forebay_memory::Share;

use super::data::Sizes;
use super::devices::gpus;
use super::random::{CONDITIONS, Compared, KEYS, compare, number, of_rows, seeds, set_room};
use super::{Fixture, emulated, is_full, limits};
use crate::giving_way::Freeing;
use crate::gpu::open_all;

/// Joins of `t`, of each kind: the join, or a condition that is one; and conditions and keys that it brings.
const JOINS: &[(&str, &str, &[&str], &[&str])] = &[
    (
        "JOIN u ON b = id",
        "",
        &["score > 9000", "score < b * 40", "u.r <> 11"],
        &["u.r", "id / 100", "score"],
    ),
    (
        "LEFT JOIN u ON b = id AND quantity * 900 > score",
        "",
        &["score IS NULL", "coalesce(score, 7) > 5000", "u.r < 12"],
        &["u.r", "coalesce(u.r, 0)"],
    ),
    (
        "RIGHT JOIN u ON b = id AND name <> 'x'",
        "",
        &["b IS NULL OR score > 9000", "id > 10", "u.r <> 10"],
        &["u.r", "score % 100"],
    ),
    (
        "FULL JOIN u ON b = id",
        "",
        &[
            "score IS NULL OR u.r < 12",
            "b IS NULL OR score > 3000",
            "coalesce(u.r, 10) = 10",
        ],
        &["u.r", "coalesce(u.r, 0)"],
    ),
    (
        "JOIN (SELECT b AS far, tiny AS small, quantity AS pieces FROM t) AS o ON b = far",
        "",
        &["pieces > 9", "pieces <> quantity", "small < a"],
        &["small", "pieces / 10"],
    ),
    // Several keys, and tables by different keys.
    (
        "JOIN p ON a = one AND quantity = two JOIN u ON b = id",
        "",
        &["cost > 20.05", "one > 2", "score > 9000"],
        &["one", "u.r"],
    ),
    // Keys of more than 64 bits.
    (
        "JOIN (SELECT b AS far, wide AS wider, tiny AS small FROM t) AS o ON b = far AND wide = wider",
        "",
        &["small < 9", "small <> quantity"],
        &["small"],
    ),
    (
        "LEFT JOIN c ON name = code AND quantity > n",
        "",
        &["n IS NULL", "n < 9 OR ok", "code = 'ab'"],
        &["code", "n"],
    ),
    ("", "b IN (SELECT id FROM u WHERE score > 9000)", &[], &[]),
    (
        "",
        "EXISTS (SELECT 1 FROM t AS o WHERE o.b = t.b AND o.quantity > t.quantity)",
        &[],
        &[],
    ),
    (
        "",
        "NOT EXISTS (SELECT 1 FROM u WHERE u.id = b AND u.score > quantity * 900)",
        &[],
        &[],
    ),
    (
        "",
        "ok OR EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity)",
        &[],
        &[],
    ),
    (
        "",
        "b NOT IN (SELECT score FROM u WHERE score > 300)",
        &[],
        &[],
    ),
];

/// Returns a random query with a join. As many consecutive seeds as there are joins have one of each.
fn joined(seed: u64, random: &mut Rng) -> String {
    let (from, required, more, more_keys) = JOINS[seed as usize % JOINS.len()];
    // Conditions on `t` leave out the rows of the other side without a match.
    let keeps_others = from.starts_with("RIGHT") || from.starts_with("FULL");
    let mut conditions = match keeps_others {
        true => Vec::new(),
        false => CONDITIONS.to_vec(),
    };
    // The table of all pairs is whole.
    conditions.retain(|it| !it.contains("FROM c "));
    let mut keys = KEYS.to_vec();
    (0..4).for_each(|_| conditions.extend(more));
    (0..3).for_each(|_| keys.extend(more_keys));
    of_rows(random, (from, required), (&conditions, &keys))
}

/// Runs random queries with joins with the engine, in slices, and without. If a seed is odd, rows are divided whenever
/// they can be.
async fn compare_joins(fixture: &Fixture, count: u64) {
    set_room(fixture);
    let least = &fixture.columns.slices_min;
    least.store(2, Ordering::Relaxed);
    let mut all = Compared::default();
    for divides in [false, true] {
        let always = &fixture.columns.always_divides;
        always.store(divides, Ordering::Relaxed);
        let seeds = seeds(count).filter(|seed| (seed % 2 == 1) == divides);
        let found = compare(fixture, seeds, joined).await;
        assert!(!divides || found.divided * 2 >= found.joined, "{found:?}");
        all = all + found;
    }
    assert!(all.joined * 2 > all.all, "{all:?}");
    // Tables without rows, or with one key, are whole.
    assert!(all.spilled * 10 >= all.joined * 9, "{all:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_joins_in_slices_give_the_rows_of_the_cpu() {
    if !emulated::has_compiler() {
        return;
    }
    let fixture = Fixture::new(emulated::device(), Sizes(&[6_000, 700])).await;
    let times = if is_full() { 8 } else { 1 };
    compare_joins(&fixture, times * JOINS.len() as u64).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 16)]
async fn a_gpu_gives_the_rows_of_the_cpu_for_random_joins_in_slices() {
    let Some(devices) = gpus() else { return };
    let freeing = Freeing::default();
    let limits = limits(1 << 30);
    let engines = open_all(devices.list(), limits, Share::default(), None, &freeing);
    let rows = number("FOREBAY_GPU_ROWS").map_or(6_000, |rows| rows as usize);
    let sizes: &[usize] = Box::leak(Box::new([rows, rows / 30 + 1]));
    let fixture = Fixture::new(engines.expect("room"), Sizes(sizes)).await;
    compare_joins(&fixture, 4 * JOINS.len() as u64).await;
    drop(fixture);
    devices.halt();
}
