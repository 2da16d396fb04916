//! Joins on a GPU whose sides the CPU divides, or the processor that is faster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::{Device, Fault};
use forebay_hash_index::{IndexError, ProbeKeys, RunShape, Side, Width, Workload};
use forebay_movement::MoveError;

use super::faults::{assert_uses, guard};
use super::{answer, generated, gpu, pinned_rows, placed, plan, plan_with};
use crate::{FirstPass, JoinError, JoinPlan, JoinReport, PartitionedJoin, PinnedColumns};

/// Numbers of runs in device memory and in host memory, and of a half of the memory on the way to disk.
const PLACES: [[usize; 3]; 6] = [
    [usize::MAX, usize::MAX, 0],
    [3, usize::MAX, 0],
    [0, usize::MAX, 0],
    [3, 4, 2],
    [2, 0, 3],
    [0, 0, 2],
];

/// Returns the plan with another processor of the first pass.
pub(super) fn by(first_pass: FirstPass, plan: &JoinPlan) -> JoinPlan {
    JoinPlan {
        first_pass,
        ..plan.clone()
    }
}

/// Joins twice.
fn joined(device: &Arc<Device>, plan: &JoinPlan, sides: &[PinnedColumns; 2]) -> JoinReport {
    let mut join = PartitionedJoin::new(device, plan.clone()).expect("memory");
    let reports = [(); 2].map(|()| {
        let report = join.run((&sides[0], &sides[1]), &guard());
        report.unwrap_or_else(|error| panic!("{plan:?}: {error}"))
    });
    assert_eq!(reports[0].totals, reports[1].totals, "{plan:?}");
    reports[1]
}

#[test]
fn the_cpu_divides_sides_of_which_all_some_or_no_runs_spill() {
    const DEVICE_BYTES: u64 = 32 << 20;
    let Some((_devices, device)) = gpu(DEVICE_BYTES) else {
        return;
    };
    for (width, rows) in [
        (Width::Eight, [30_000, 100_001]),
        (Width::Four, [100_003, 30_000]),
        (Width::Eight, [1, 4096]),
        (Width::Four, [10_000, 0]),
        (Width::FourEight, [30_000, 50_001]),
        (Width::EightFour, [50_001, 30_000]),
        (Width::Composite, [30_000, 40_001]),
        (Width::Eight, [0, 0]),
    ] {
        let workload = Workload {
            width,
            build_rows: rows[0],
            probe_rows: rows[1],
            probe_keys: ProbeKeys::Uniform,
        };
        let sides = [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
        let all = plan(width, rows, DEVICE_BYTES);
        for places in PLACES {
            let plan = by(FirstPass::Cpu, &placed(&all, places));
            let report = joined(&device, &plan, &sides);
            assert_eq!(report.totals, workload.answer(2), "{plan:?}");
            assert!(report.is_by_cpu && report.sample.is_none());
        }
    }
    assert_uses(&device, 0);
}

/// With enough bits, the CPU collects rows to whole lines. One of the plans has several tables for each partition.
#[test]
fn both_first_passes_join_alike_with_duplicates_heavy_keys_and_filters() {
    let Some((_devices, device)) = gpu(16 << 20) else {
        return;
    };
    let side = |rows: u64, end: u64| -> Vec<(u64, u64)> {
        let key = |row: u64| match row % 4 {
            0 => 7,
            _ => 1000 + row % end,
        };
        (0..rows).map(|row| (key(row), row * row)).collect()
    };
    for (width, has_filter) in [
        (Width::Four, false),
        (Width::Eight, false),
        (Width::Four, true),
        (Width::Eight, true),
    ] {
        let (build, probe) = (side(40_000, 9000), side(30_000, 20_000));
        let sides = [&build, &probe].map(|rows| pinned_rows(&device, rows, width));
        let answer = answer(&build, &probe, width);
        let in_host = plan_with(has_filter, width, [40_000, 30_000], 3 << 20);
        let with_bits = |bits| {
            let mut plan = plan_with(has_filter, width, [40_000, 30_000], 14 << 20);
            plan.run = RunShape::new(width, plan.run.rows(), bits);
            placed(&plan, [2, usize::MAX, 0])
        };
        for plan in [
            placed(&in_host, [1, 1, 2]),
            placed(&in_host, [0, 0, 2]),
            with_bits(1),
            with_bits(10),
            in_host,
        ] {
            let [by_gpu, by_cpu] = [FirstPass::Gpu, FirstPass::Cpu]
                .map(|first_pass| joined(&device, &by(first_pass, &plan), &sides));
            assert_eq!((by_gpu.totals, by_gpu.heavy_keys), (answer, 1), "{plan:?}");
            assert_eq!((by_cpu.totals, by_cpu.heavy_keys), (answer, 1), "{plan:?}");
            assert_eq!(by_cpu.filtered_rows, by_gpu.filtered_rows, "{plan:?}");
            assert_eq!(by_cpu.filtered_rows > 0, has_filter, "{plan:?}");
            assert_eq!([by_cpu.is_by_cpu, by_gpu.is_by_cpu], [true, false]);
        }
    }
}

/// All rows of a run are of one partition, and no key is kept apart; or the key is, and no run has a row.
#[test]
fn the_cpu_divides_sides_with_one_key_in_every_row() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let side = |rows: u64| -> Vec<(u64, u64)> { (0..rows).map(|row| (5, row)).collect() };
    let (build, probe) = (side(2000), side(90_000));
    let sides = [&build, &probe].map(|rows| pinned_rows(&device, rows, Width::Eight));
    let apart = by(FirstPass::Cpu, &plan(Width::Eight, [2000, 90_000], 3 << 20));
    let mut in_tables = apart.clone();
    in_tables.samples = [0; 2];
    for plan in [
        placed(&in_tables, [1, 1, 2]),
        placed(&apart, [1, 1, 2]),
        in_tables,
        apart,
    ] {
        let report = joined(&device, &plan, &sides);
        assert_eq!(
            report.totals,
            answer(&build, &probe, Width::Eight),
            "{plan:?}"
        );
        assert_eq!(report.heavy_keys == 0, plan.samples == [0; 2]);
    }
    // A chain is too long: the memory is pinned again for the next join.
    let often = pinned_rows(&device, &side(42_000), Width::Eight);
    let mut plan = by(
        FirstPass::Cpu,
        &plan(Width::Eight, [42_000, 90_000], 3 << 20),
    );
    (plan.table_bytes, plan.samples) = (2 * plan.table_bytes, [0; 2]);
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    for _ in 0..2 {
        let error = join.run((&often, &sides[1]), &guard());
        let error = error.expect_err("a chain is too long");
        let is_chain = matches!(error, JoinError::Index(IndexError::ChainTooLong { .. }));
        assert!(is_chain, "{error}");
    }
}

const WORKLOAD: Workload = Workload {
    width: Width::Eight,
    build_rows: 200_000,
    probe_rows: 300_000,
    probe_keys: ProbeKeys::Uniform,
};

/// Returns both sides of [`WORKLOAD`], and the plan of a join whose first pass is `first_pass`.
fn large(device: &Device, first_pass: FirstPass) -> ([PinnedColumns; 2], JoinPlan) {
    let sides = [Side::Build, Side::Probe].map(|side| generated(device, &WORKLOAD, side));
    let rows = [WORKLOAD.build_rows, WORKLOAD.probe_rows];
    (sides, by(first_pass, &plan(WORKLOAD.width, rows, 4 << 20)))
}

/// The deadlines lie in all parts of a join: in the sample, in both passes and between them.
#[test]
fn joins_whose_sides_the_cpu_divides_end_at_their_deadline_and_join_again() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    for (first_pass, places) in [
        (FirstPass::Cpu, [2, usize::MAX, 0]),
        (FirstPass::Cpu, [2, 10, 4]),
        (FirstPass::Choose, [2, usize::MAX, 0]),
    ] {
        let (sides, plan) = large(&device, first_pass);
        let plan = placed(&plan, places);
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        let (mut stopped, mut ended) = (0, 0);
        let deadlines = (0..40_000).step_by(1000).chain([1_000_000_000]);
        for us in deadlines {
            let stop = Stop::at(Instant::now() + Duration::from_micros(us));
            match join.run((&sides[0], &sides[1]), &stop) {
                Ok(report) => {
                    assert_eq!(report.totals, WORKLOAD.answer(2));
                    ended += 1;
                }
                Err(JoinError::Stopped(_) | JoinError::Move(MoveError::Stopped(_))) => stopped += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(stopped > 1 && ended > 0, "{stopped} stopped, {ended} ended");
    }
}

#[test]
fn the_processor_with_the_shorter_time_of_a_sample_divides() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let (sides, plan) = large(&device, FirstPass::Choose);
    let mut measured = None;
    let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
    for _ in 0..3 {
        let report = join.run((&sides[0], &sides[1]), &guard());
        let report = report.expect("it runs");
        assert_eq!(report.totals, WORKLOAD.answer(2));
        let sample = report.sample.expect("a run is measured");
        assert_eq!(report.is_by_cpu, sample.cpu < sample.gpu);
        // The first join measures.
        assert_eq!(*measured.get_or_insert(sample), sample);
    }
    drop(join);
    // There is no room for a sample: the GPU divides.
    let report = joined(&device, &placed(&plan, [0, 0, 4]), &sides);
    assert_eq!(report.totals, WORKLOAD.answer(2));
    assert!(report.sample.is_none() && !report.is_by_cpu);
}

/// The device is lost before the first pass, in a copy of a run to it, or later.
#[test]
fn a_lost_device_ends_a_join_whose_sides_the_cpu_divides() {
    for checks in [0, 1, 2, 3, 5, 8, 20, 40] {
        let Some((_devices, device)) = gpu(8 << 20) else {
            return;
        };
        let (sides, plan) = large(&device, FirstPass::Cpu);
        let mut join = PartitionedJoin::new(&device, placed(&plan, [5, 5, 2])).expect("memory");
        device.inject(Fault::FailAfter { checks });
        let lost = join.run((&sides[0], &sides[1]), &guard());
        let error = lost.expect_err("the device is lost");
        let is_lost = matches!(
            error,
            JoinError::Move(MoveError::DeviceLost { .. } | MoveError::Job { .. })
        );
        assert!(is_lost, "{error}");
        drop((join, sides));
        assert_uses(&device, 0);
    }
}
