//! Joins that every engine must compute, and the model that tells their answers.

use std::collections::BTreeMap;
use std::ops::Range;

use super::emulated::CHUNK_SLOTS;
use crate::kernels::JoinTotals;
use crate::shape::{HASH_FIRST, HASH_SECOND, hash_of};
use crate::{TableMethod, TableShape, Width};

/// A join of two lists of rows: key and payload. The first number of a composite key is the lower half.
#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) name: String,
    pub(super) shape: TableShape,
    pub(super) build: Vec<(u128, u64)>,
    pub(super) probe: Vec<(u128, u64)>,
}

impl Case {
    /// Returns the matches, by a map.
    pub(super) fn answer(&self) -> JoinTotals {
        let mut map = BTreeMap::<u128, (u64, u64)>::new();
        for (key, payload) in &self.build {
            let (count, sum) = map.entry(*key).or_default();
            (*count, *sum) = (*count + 1, sum.wrapping_add(*payload));
        }
        let mut totals = JoinTotals::default();
        for (key, payload) in &self.probe {
            let (count, build_sum) = map.get(key).copied().unwrap_or_default();
            let probe_sum = count.wrapping_mul(*payload);
            totals.add(JoinTotals {
                count,
                build_sum,
                probe_sum,
            });
        }
        totals
    }

    /// Returns whether it can be joined with interleaved tables.
    pub(super) fn is_uniform(&self) -> bool {
        self.shape.width().is_uniform()
    }
}

/// Returns the columns of rows as bytes.
pub(super) fn columns(rows: &[(u128, u64)], width: Width) -> (Vec<u8>, Vec<u8>) {
    let (key_bytes, bytes) = (width.key_bytes() as usize, width.payload_bytes() as usize);
    let keys = rows.iter().map(|row| row.0.to_le_bytes());
    let payloads = rows.iter().map(|row| row.1.to_le_bytes());
    (
        keys.flat_map(|key| key.into_iter().take(key_bytes))
            .collect(),
        payloads
            .flat_map(|payload| payload.into_iter().take(bytes))
            .collect(),
    )
}

const WIDTHS: [Width; 2] = [Width::Four, Width::Eight];

/// Returns the largest number of some bytes, at most 8.
fn largest(bytes: u64) -> u64 {
    u64::MAX >> (64 - 8 * bytes)
}

/// Returns the largest key of a width, which marks empty slots if the payloads are as wide.
fn marker(width: Width) -> u64 {
    largest(width.key_bytes())
}

/// Returns rows with keys from a list. Their payloads are the largest one, 0, and then random.
fn with_payloads(keys: impl IntoIterator<Item = u128>, width: Width) -> Vec<(u128, u64)> {
    let mut random = fastrand::Rng::with_seed(7);
    let most = largest(width.payload_bytes());
    let others = std::iter::repeat_with(|| random.u64(0..=most));
    let payloads = [most, 0].into_iter().chain(others);
    keys.into_iter().zip(payloads).collect()
}

/// Returns distinct keys at random places of the width, without the marker.
fn scattered(count: u64, width: Width) -> impl Iterator<Item = u64> + Clone {
    let factor = 0x9E37_79B9_7F4A_7C15 | 1;
    (0..count).map(move |key| (key + 1).wrapping_mul(factor) & (marker(width) >> 1))
}

fn linear(
    name: &str,
    width: Width,
    build: impl IntoIterator<Item = u64>,
    probe: impl IntoIterator<Item = u64>,
) -> Case {
    let build = build.into_iter().map(u128::from);
    linear_of(name, width, build, probe.into_iter().map(u128::from))
}

fn linear_of(
    name: &str,
    width: Width,
    build: impl IntoIterator<Item = u128>,
    probe: impl IntoIterator<Item = u128>,
) -> Case {
    let build = with_payloads(build, width);
    Case {
        name: format!("{name}, {width:?}"),
        shape: TableShape::linear_probing(width, build.len() as u64),
        build,
        probe: with_payloads(probe, width),
    }
}

/// Returns joins that have an answer.
pub(super) fn answered() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in WIDTHS {
        cases.extend(sizes(width));
        cases.extend(with_duplicates(width));
        cases.extend(full(width));
        cases.extend(dense(width));
    }
    for width in [Width::FourEight, Width::EightFour] {
        cases.extend(sizes(width).into_iter().step_by(4));
        cases.extend(with_duplicates(width));
        cases.extend(full(width).into_iter().take(1));
        cases.extend(dense(width));
    }
    let bucketed: Vec<Case> = cases.iter().filter_map(in_buckets).collect();
    let cases = cases.into_iter().chain(bucketed);
    cases.chain(composite()).collect()
}

/// Returns a composite key.
pub(super) fn pair(first: u64, second: u64) -> u128 {
    u128::from(second) << 64 | u128::from(first)
}

/// Returns `count` composite keys with the same hash.
fn of_hash(hash: u64, count: u64) -> impl Iterator<Item = u128> {
    let inverse = |odd: u64| {
        let better = |x: u64, _| x.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(x)));
        (0..5).fold(odd, better)
    };
    // The steps of `hash_of`, backwards.
    let key = hash.wrapping_mul(inverse(HASH_SECOND));
    let key = (key ^ (key >> 32)).wrapping_mul(inverse(HASH_FIRST));
    assert_eq!(hash_of(key), hash);
    (0..count).map(move |first| pair(first, hash_of(first) ^ key))
}

/// Returns joins with composite keys.
fn composite() -> Vec<Case> {
    let case = |name: &str, build: &[u128], probe: &[u128]| {
        let (build, probe) = (build.iter().copied(), probe.iter().copied());
        linear_of(name, Width::Composite, build, probe)
    };
    let scattered = |count| -> Vec<u128> {
        let keys = scattered(count, Width::Eight);
        keys.map(|key| pair(key, !key.rotate_left(32))).collect()
    };
    let grid = |firsts: u64, seconds: u64| -> Vec<u128> {
        let row = |first| (0..seconds).map(move |second| pair(first, second));
        (0..firsts).flat_map(row).collect()
    };
    let sizes: [(u64, usize); 6] = [(0, 33), (1, 257), (31, 1000), (64, 0), (257, 1), (1000, 65)];
    let sizes = sizes.map(|(build, probe)| {
        let name = format!("{build} by {probe} rows");
        let keys = scattered(2 * build.max(1)).into_iter().cycle();
        let probe: Vec<u128> = keys.take(probe).collect();
        case(&name, &scattered(build), &probe)
    });
    let marker = u64::MAX;
    let markers =
        [(marker, marker), (marker, 5), (5, marker), (5, 5)].map(|key| pair(key.0, key.1));
    let hashes = [0, 12345, marker - 1, marker];
    let of_hashes = |count| -> Vec<u128> {
        let keys = hashes.iter().flat_map(|hash| of_hash(*hash, count));
        keys.collect()
    };
    let mut full = case("all slots taken", &scattered(64), &scattered(128));
    full.shape = TableShape::with_slots(TableMethod::LinearProbing, Width::Composite, 64);
    let others = [
        case("one first number", &grid(1, 300), &grid(2, 400)),
        case("one second number", &grid(300, 1), &grid(400, 2)),
        case("numbers in the other order", &grid(30, 20), &grid(20, 30)),
        case("keys twice", &scattered(300).repeat(2), &scattered(600)),
        case("one key", &[pair(5, 6); 700], &[pair(5, 6), pair(6, 5)]),
        case("all bits set", &markers[..2], &markers.repeat(9)),
        case("all bits set, twice", &markers.repeat(2), &markers),
        case(
            "all bits set, without a match",
            &markers[1..],
            &markers[..1].repeat(40),
        ),
        case("keys of few hashes", &of_hashes(50), &of_hashes(100)),
        full,
    ];
    sizes.into_iter().chain(others).collect()
}

/// Returns the case with a table of buckets in place of linear probing.
fn in_buckets(case: &Case) -> Option<Case> {
    let slots = case.shape.slots();
    (case.shape.method() == TableMethod::LinearProbing).then(|| Case {
        name: format!("{}, in buckets", case.name),
        shape: TableShape::with_slots(TableMethod::Bucketed, case.shape.width(), slots),
        ..case.clone()
    })
}

/// Returns joins of sizes around those of a warp, and of a block with one row for each thread.
fn sizes(width: Width) -> Vec<Case> {
    let counts = [0, 1, 31, 32, 33, 63, 64, 65, 255, 256, 257, 1000];
    let case = |(index, build): (usize, u64)| {
        let probe = counts[counts.len() - 1 - index];
        let keys = scattered(build.max(1) * 2, width).cycle();
        let name = format!("{build} by {probe} rows");
        linear(
            &name,
            width,
            scattered(build, width),
            keys.take(probe as usize),
        )
    };
    counts.into_iter().enumerate().map(case).collect()
}

/// Returns joins with tables that are interleaved over 2 or 4 GPUs. Some have more rows than warps work on at once.
/// In others, all rows are the last GPU's own.
pub(super) fn over_gpus() -> Vec<Case> {
    let mut cases = Vec::new();
    for width in WIDTHS {
        let marker = marker(width);
        let with_markers = || scattered(1500, width).flat_map(move |key| [key, marker]);
        cases.extend([
            linear(
                "many rows",
                width,
                scattered(3001, width),
                scattered(2999, width).step_by(2),
            ),
            linear(
                "every second row a marker",
                width,
                with_markers(),
                with_markers().take(1001),
            ),
            linear("one key in many rows", width, [5; 3001], [5; 999]),
        ]);
        for rows in [1, 63, 64, 65, 127, 128, 129, 2003] {
            let keys = of_last_gpu(rows, width);
            let name = format!("{rows} rows of one GPU");
            cases.push(linear(&name, width, keys.clone(), keys.into_iter().rev()));
        }
    }
    cases
}

/// Returns distinct keys whose searches, in a table with linear probing for as many, begin in every fourth chunk.
fn of_last_gpu(count: u64, width: Width) -> Vec<u64> {
    let shape = TableShape::linear_probing(width, count);
    let chunk = |key: &u64| (hash_of(*key) >> shape.shift()) / CHUNK_SLOTS;
    let keys = scattered(16 * count + 100, width).filter(|key| chunk(key) % 4 == 3);
    let keys: Vec<u64> = keys.take(count as usize).collect();
    assert_eq!(keys.len() as u64, count);
    keys
}

/// Returns joins of which 5 and 9 may be heavy keys: with matches of all rows, of some, and of none. The keys of some
/// are composite.
pub(super) fn sifted() -> Vec<Case> {
    let with_heavy = |width| {
        let marker = marker(width);
        let build = scattered(900, width).chain([9; 1500]).chain([marker; 3]);
        let probe = scattered(1200, width).chain([9; 70]).chain([marker; 2]);
        linear("a key among others", width, build, probe)
    };
    let mut cases = Vec::new();
    for width in WIDTHS {
        cases.extend([
            linear("one key in all rows", width, [9; 9000], [9; 300]),
            with_heavy(width),
            linear(
                "no match",
                width,
                scattered(700, width),
                scattered(1700, width).skip(700),
            ),
            linear(
                "a tenth matches",
                width,
                scattered(1000, width),
                scattered(1900, width).skip(900),
            ),
            linear(
                "all match",
                width,
                scattered(1000, width),
                scattered(1000, width),
            ),
        ]);
    }
    let keys = |rows: Range<u64>| rows.map(|row| pair(row % 7, row));
    cases.push(linear_of(
        "a tenth matches",
        Width::Composite,
        keys(0..700),
        keys(630..1330),
    ));
    cases.extend([Width::FourEight, Width::EightFour].map(with_heavy));
    cases
}

fn with_duplicates(width: Width) -> Vec<Case> {
    let marker = marker(width);
    let twice = || scattered(300, width).chain(scattered(200, width).step_by(2));
    let with_markers = || {
        scattered(50, width)
            .chain([marker; 3])
            .chain([0, marker - 1])
    };
    vec![
        linear("keys twice", width, twice(), scattered(600, width)),
        linear("one key in all rows", width, [5; 700], [5; 300]),
        linear("one key that does not match", width, [5; 700], [6; 300]),
        linear("only markers", width, [marker; 100], [marker; 40]),
        linear("markers and others", width, with_markers(), with_markers()),
        linear("markers that do not match", width, [1, 2], [marker; 40]),
    ]
}

/// Returns joins with tables without a free slot.
fn full(width: Width) -> Vec<Case> {
    let of_slots = |slots: u64| {
        let mut case = linear(
            &format!("{slots} slots, all taken"),
            width,
            scattered(slots, width),
            scattered(2 * slots, width),
        );
        case.shape = TableShape::with_slots(TableMethod::LinearProbing, width, slots);
        case
    };
    vec![of_slots(32), of_slots(1024)]
}

/// Returns joins with tables by key.
fn dense(width: Width) -> Vec<Case> {
    let mut cases = Vec::new();
    for (first, count) in [
        (0, 0),
        (0, 1),
        (7, 33),
        (1000, 1000),
        (marker(width) - 500, 500),
    ] {
        let end = first + count;
        let all = (first..end).rev();
        let around = || (first.saturating_sub(40)..end.saturating_add(1)).chain([0, marker(width)]);
        let shape = TableShape::perfect(width, first..end);
        let build = with_payloads(all.map(u128::from), width);
        let some = build.iter().copied().step_by(3).collect();
        for (name, build) in [("all", build), ("a third", some)] {
            cases.push(Case {
                name: format!("{name} of {first}..{end}, {width:?}"),
                shape,
                build,
                probe: with_payloads(around().chain(around()).map(u128::from), width),
            });
        }
    }
    cases
}

/// Returns joins whose table cannot be built, each with a part of its error.
pub(super) fn refused() -> Vec<(Case, &'static str)> {
    let key = pair(9, 9);
    let long = linear_of("a long chain", Width::Composite, [key; 9000], [key]);
    let mut cases = vec![(long, "no slot is free among the 4096")];
    for width in WIDTHS {
        let mut small = linear("too many rows", width, scattered(33, width), [1]);
        small.shape = TableShape::with_slots(TableMethod::LinearProbing, width, 32);
        cases.push((small, "a table of 32 slots has no room for 33 rows"));
        let one_key = linear("a long chain", width, [9; 9000], [9]);
        let one_key_in_buckets = in_buckets(&one_key).expect("a table by hash");
        for case in [one_key, one_key_in_buckets] {
            cases.push((case, "no slot is free among the 4096"));
        }
        let perfect = |name: &str, keys: &[u64]| Case {
            shape: TableShape::perfect(width, 10..20),
            ..linear(name, width, keys.iter().copied(), [1])
        };
        let twice = perfect("a key twice", &[10, 11, 12, 11]);
        assert_eq!(twice.shape.method(), TableMethod::Perfect { first_key: 10 });
        cases.push((twice, "1 rows have a key that occurs before"));
        cases.push((
            perfect("a key before", &[10, 9]),
            "not in the range of the table, 10..20",
        ));
        cases.push((
            perfect("a key behind", &[20]),
            "not in the range of the table, 10..20",
        ));
    }
    cases
}
