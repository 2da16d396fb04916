//! Joins by the CPU alone, and by GPUs with it, whose answers the generator's formulas give.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::{Device, Fault};
use forebay_hash_index::{
    HostRows, IndexError, JoinTotals, ProbeKeys, Side, TableMethod, TableShape, Width, Workload,
};
use forebay_movement::{MoveError, RingOptions};

use super::cpu::MORSEL_ROWS;
use super::{CoProcessing, CoProcessingOptions, CoProcessingReport, Strategy, join_on_cpu};
use crate::tests::{generated, gpu, pinned};
use crate::{JoinError, PinnedColumns};

/// The keys and payloads of a side in host memory.
struct Columns([Vec<u8>; 2]);

impl Columns {
    fn of(workload: &Workload, side: Side) -> Columns {
        let bytes = (workload.rows(side) * workload.width.payload_bytes()) as usize;
        let mut columns = [vec![0; bytes], vec![0; bytes]];
        let [keys, payloads] = &mut columns;
        workload.generate(side, (keys, payloads), 2);
        Columns(columns)
    }

    fn rows(&self) -> HostRows<'_> {
        let [keys, payloads] = &self.0;
        HostRows { keys, payloads }
    }
}

fn workload(width: Width, build_rows: u64, probe_rows: u64) -> Workload {
    Workload {
        width,
        build_rows,
        probe_rows,
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Returns a table for the build side of a workload.
fn shape(workload: &Workload) -> TableShape {
    TableShape::linear_probing(workload.width, workload.build_rows)
}

#[test]
#[should_panic(expected = "joins by CPU and GPUs do not support composite keys")]
fn composite_keys_are_refused_at_once() {
    let options = CoProcessingOptions {
        shape: TableShape::linear_probing(Width::Composite, 8),
        ring: RingOptions {
            slots: 2,
            slot_bytes: 64 << 10,
        },
        threads: 1,
    };
    let _ = CoProcessing::new(&[], options);
}

fn on_cpu(
    shape: TableShape,
    workload: &Workload,
    threads: usize,
    stop: &Stop,
) -> Result<CoProcessingReport, JoinError> {
    let [build, probe] = [Side::Build, Side::Probe].map(|side| Columns::of(workload, side));
    join_on_cpu(shape, (build.rows(), probe.rows()), threads, stop)
}

#[test]
fn the_cpu_joins_sides_of_no_row_one_row_and_several_morsels() {
    for width in [Width::Four, Width::Eight] {
        for (build_rows, probe_rows) in [
            (0, 0),
            (1, 0),
            (1, 1),
            (1000, MORSEL_ROWS),
            (2 * MORSEL_ROWS + 1, 3 * MORSEL_ROWS + 7),
        ] {
            let workload = workload(width, build_rows, probe_rows);
            for threads in [1, 4] {
                let report = on_cpu(shape(&workload), &workload, threads, &Stop::never());
                let report = report.unwrap_or_else(|error| panic!("{workload:?}: {error}"));
                assert_eq!(report.totals, workload.answer(2), "{workload:?}");
                assert_eq!(report.cpu_rows, probe_rows);
            }
        }
    }
    // Rows that probe an empty table.
    let zeros = vec![0; 8000];
    let empty = HostRows {
        keys: &[],
        payloads: &[],
    };
    let probe = HostRows {
        keys: &zeros,
        payloads: &zeros,
    };
    let shape = TableShape::linear_probing(Width::Eight, 0);
    let report = join_on_cpu(shape, (empty, probe), 2, &Stop::never()).expect("no row is inserted");
    assert_eq!(report.totals, JoinTotals::default());
    assert_eq!(report.cpu_rows, 1000);
}

#[test]
fn a_table_that_is_too_small_or_a_key_with_many_rows_is_an_error() {
    let workload = workload(Width::Eight, 3 * MORSEL_ROWS, MORSEL_ROWS);
    let small = TableShape::with_slots(TableMethod::LinearProbing, Width::Eight, 2 * MORSEL_ROWS);
    let error = on_cpu(small, &workload, 2, &Stop::never()).expect_err("too many rows");
    let is_full = matches!(error, JoinError::Index(IndexError::TooManyRows { .. }));
    assert!(is_full, "{error}");
    let zeros = vec![0; 80_000];
    let rows = HostRows {
        keys: &zeros,
        payloads: &zeros,
    };
    let shape = TableShape::linear_probing(Width::Eight, 10_000);
    let error = join_on_cpu(shape, (rows, rows), 2, &Stop::never()).expect_err("one key");
    let is_chain = matches!(error, JoinError::Index(IndexError::ChainTooLong { .. }));
    assert!(is_chain, "{error}");
}

#[test]
fn the_cpu_ends_a_join_that_is_cancelled_or_whose_deadline_passes() {
    let workload = workload(Width::Four, 1000, 20 * MORSEL_ROWS);
    let [build, probe] = [Side::Build, Side::Probe].map(|side| Columns::of(&workload, side));
    let join = |stop: &Stop| join_on_cpu(shape(&workload), (build.rows(), probe.rows()), 2, stop);
    let stop = Stop::never();
    stop.cancelled.store(true, Ordering::Relaxed);
    let error = join(&stop).expect_err("it is stopped");
    assert!(matches!(error, JoinError::Stopped(_)), "{error}");
    // The deadlines lie in all parts of a join.
    let mut ended = 0;
    for us in (0..2000).step_by(100).chain([1_000_000_000]) {
        let deadline = Instant::now() + Duration::from_micros(us);
        match join(&Stop::at(deadline)) {
            Ok(report) => {
                assert_eq!(report.totals, workload.answer(2));
                ended += 1;
            }
            Err(JoinError::Stopped(_)) => (),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(ended > 0);
}

/// Returns joins on one GPU that takes the place of several (`lanes`), with batches of 64 KiB.
fn on_gpu(device: &Arc<Device>, lanes: usize, shape: TableShape) -> CoProcessing {
    let options = CoProcessingOptions {
        shape,
        ring: RingOptions {
            slots: 3,
            slot_bytes: 64 << 10,
        },
        threads: 2,
    };
    CoProcessing::new(&vec![Arc::clone(device); lanes], options).expect("memory")
}

#[test]
fn a_gpu_and_the_cpu_join_with_every_strategy() {
    let Some((_devices, device)) = gpu(64 << 20) else {
        return;
    };
    for (width, build_rows, probe_rows) in [
        (Width::Eight, 30_000, 1_000_001),
        (Width::Four, 100_003, 2_000_000),
        (Width::Eight, 1, 1),
        (Width::Four, 1000, 0),
        (Width::Eight, 0, 0),
    ] {
        let workload = workload(width, build_rows, probe_rows);
        let sides = [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
        for lanes in [1, 2] {
            let mut join = on_gpu(&device, lanes, shape(&workload));
            // With the memory of an earlier copy, and without it.
            for strategy in [Strategy::GpuBuilds].into_iter().chain(Strategy::ALL) {
                let report = join.run(strategy, (&sides[0], &sides[1]), &Stop::never());
                let report = report.unwrap_or_else(|error| panic!("{strategy:?}: {error}"));
                let case = format!("{strategy:?} {workload:?} on {lanes}");
                assert_eq!(report.totals, workload.answer(2), "{case}");
                assert_took_part(&join, (strategy, &workload), &report, &case);
            }
        }
    }
}

/// Asserts what is certain of the CPU's part of a join.
fn assert_took_part(
    join: &CoProcessing,
    (strategy, workload): (Strategy, &Workload),
    report: &CoProcessingReport,
    case: &str,
) {
    let (rows, all) = (report.cpu_rows, workload.probe_rows);
    let is_right = match strategy {
        Strategy::Cpu => rows == all,
        Strategy::Gpu => rows == 0,
        Strategy::GpuAndCpu | Strategy::GpuBuilds => rows <= all,
    };
    assert!(is_right, "{case}: {rows} rows");
    let has_copy = join.memory.is_some();
    let has_own_table = report.allocate > Duration::ZERO && !has_copy;
    match strategy {
        Strategy::Gpu => assert!(!has_copy, "{case}"),
        Strategy::Cpu | Strategy::GpuAndCpu => assert!(has_own_table, "{case}"),
        // A second GPU may take all rows before the first has a table to copy.
        Strategy::GpuBuilds if join.lanes.len() == 1 && all > 0 => assert!(has_copy, "{case}"),
        Strategy::GpuBuilds => (),
    }
}

#[test]
fn rows_that_probe_an_empty_table_have_no_match_on_any_processor() {
    let Some((_devices, device)) = gpu(64 << 20) else {
        return;
    };
    let zeros = vec![0; 8 * 200_000];
    let (build, probe) = (
        pinned(&device, (&[], &[])),
        pinned(&device, (&zeros, &zeros)),
    );
    let mut join = on_gpu(&device, 1, TableShape::linear_probing(Width::Eight, 0));
    for strategy in Strategy::ALL {
        let report = join.run(strategy, (&build, &probe), &Stop::never());
        let report = report.expect("no row is inserted");
        assert_eq!(report.totals, JoinTotals::default(), "{strategy:?}");
    }
}

#[test]
fn a_join_on_a_gpu_that_fails_or_is_stopped_ends_and_the_next_one_is_right() {
    let Some((_devices, device)) = gpu(64 << 20) else {
        return;
    };
    let workload = workload(Width::Eight, 100_000, 1_000_000);
    let sides = [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
    let sides: (&PinnedColumns, &PinnedColumns) = (&sides[0], &sides[1]);
    let small = TableShape::with_slots(TableMethod::LinearProbing, Width::Eight, 1 << 16);
    let mut full = on_gpu(&device, 1, small);
    let mut join = on_gpu(&device, 1, shape(&workload));
    let answer = workload.answer(2);
    for strategy in Strategy::ALL {
        let error = full.run(strategy, sides, &Stop::never());
        let error = error.expect_err("too many rows");
        let is_full = matches!(error, JoinError::Index(IndexError::TooManyRows { .. }));
        assert!(is_full, "{strategy:?}: {error}");
        for us in (0..8000).step_by(400) {
            let deadline = Instant::now() + Duration::from_micros(us);
            match join.run(strategy, sides, &Stop::at(deadline)) {
                Ok(report) => assert_eq!(report.totals, answer),
                Err(JoinError::Stopped(_)) => (),
                Err(error) => panic!("{strategy:?}: {error}"),
            }
        }
        let report = join.run(strategy, sides, &Stop::never());
        assert_eq!(report.expect("it runs").totals, answer, "{strategy:?}");
    }
}

#[test]
fn a_gpu_that_is_lost_during_a_join_is_an_error() {
    // With tables of their own, the CPU may end the join before a GPU that is lost later.
    for (strategy, checks) in [
        (Strategy::Gpu, 0),
        (Strategy::Gpu, 5),
        (Strategy::GpuAndCpu, 0),
        (Strategy::GpuBuilds, 0),
        (Strategy::GpuBuilds, 5),
    ] {
        let Some((_devices, device)) = gpu(64 << 20) else {
            return;
        };
        let workload = workload(Width::Eight, 30_000, 1_000_000);
        let sides = [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
        let mut join = on_gpu(&device, 1, shape(&workload));
        device.inject(Fault::FailAfter { checks });
        let lost = join.run(strategy, (&sides[0], &sides[1]), &Stop::never());
        let error = lost.expect_err("the device is lost");
        let is_lost = matches!(
            error,
            JoinError::Move(MoveError::DeviceLost { .. } | MoveError::Job { .. })
        );
        assert!(is_lost, "{strategy:?}: {error}");
    }
}
