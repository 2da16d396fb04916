//! Joins in partitions of rows whose keys and payloads differ in width, or whose keys are composite.

use std::collections::BTreeMap;

use forebay_cancel::Stop;
use forebay_hash_index::{JoinTotals, ProbeKeys, Side, Width, Workload};

use super::first_pass::by;
use super::{generated, gpu, pinned_of, placed, plan_with};
use crate::{FirstPass, PartitionedJoin};

#[test]
fn a_gpu_joins_rows_of_all_widths_in_partitions() {
    const DEVICE_BYTES: u64 = 32 << 20;
    let Some((_devices, device)) = gpu(DEVICE_BYTES) else {
        return;
    };
    for width in Width::ALL.into_iter().filter(|width| !width.is_uniform()) {
        for (rows, has_filter) in [
            ([30_000, 100_001], false),
            ([60_001, 50_000], true),
            ([1, 4097], true),
            ([1000, 0], false),
            ([0, 0], true),
        ] {
            let workload = Workload {
                width,
                build_rows: rows[0],
                probe_rows: rows[1],
                probe_keys: ProbeKeys::Matching { thousandths: 400 },
            };
            let [build, probe] =
                [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
            let all = plan_with(has_filter, width, rows, DEVICE_BYTES);
            for plan in [
                placed(&all, [0, usize::MAX, 0]),
                placed(&all, [3, 4, 2]),
                placed(&all, [0, 0, 2]),
                by(FirstPass::Cpu, &placed(&all, [3, 4, 2])),
                all,
            ] {
                let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
                for _ in 0..2 {
                    let report = join.run((&build, &probe), &Stop::never());
                    let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                    assert_eq!(report.totals, workload.answer(2), "{plan:?}");
                }
            }
        }
    }
}

/// Returns rows of nine composite keys, which have numbers in common: one has all bits set.
fn often(random: &mut fastrand::Rng, rows: u64) -> Vec<(u128, u64)> {
    let row = |_| {
        let [first, second] = [(); 2].map(|()| u64::MAX - random.u64(..3));
        (u128::from(second) << 64 | u128::from(first), random.u64(..))
    };
    (0..rows).map(row).collect()
}

/// Returns the matches, by a map.
fn answer(build: &[(u128, u64)], probe: &[(u128, u64)]) -> JoinTotals {
    let mut map = BTreeMap::<u128, (u64, u64)>::new();
    for (key, payload) in build {
        let (count, sum) = map.entry(*key).or_default();
        (*count, *sum) = (*count + 1, sum.wrapping_add(*payload));
    }
    let mut totals = JoinTotals::default();
    for (key, payload) in probe {
        let (count, build_sum) = map.get(key).copied().unwrap_or_default();
        totals.add(JoinTotals {
            count,
            build_sum,
            probe_sum: count.wrapping_mul(*payload),
        });
    }
    totals
}

#[test]
fn a_gpu_finds_all_matches_of_composite_keys_that_runs_share() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let (mut random, rows) = (fastrand::Rng::with_seed(3), [9000, 20_000]);
    let sides = rows.map(|rows| often(&mut random, rows));
    let answer = answer(&sides[0], &sides[1]);
    let [build, probe] = sides.map(|side| {
        let keys: Vec<u8> = side.iter().flat_map(|row| row.0.to_le_bytes()).collect();
        let payloads: Vec<u8> = side.iter().flat_map(|row| row.1.to_le_bytes()).collect();
        pinned_of(Width::Composite, &device, (&keys, &payloads))
    });
    let in_host = plan_with(false, Width::Composite, rows, 4 << 20);
    for plan in [
        placed(&in_host, [1, 1, 2]),
        placed(&in_host, [0, 0, 2]),
        by(FirstPass::Cpu, &placed(&in_host, [1, 1, 2])),
        in_host,
    ] {
        let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
        let report = join.run((&build, &probe), &Stop::never());
        let report = report.expect("no chain is too long");
        assert_eq!((report.totals, report.heavy_keys), (answer, 0), "{plan:?}");
    }
}
