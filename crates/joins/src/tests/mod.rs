//! Joins on a GPU, whose answers the generator's formulas give.

mod disk;
mod faults;
mod first_pass;
mod gpus;
mod widths;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::gpus;
use forebay_device::{AlignedBytes, Device, DeviceOptions, Devices, Fault, HaltingDevices};
use forebay_hash_index::{IndexError, JoinTotals, ProbeKeys, RunShape, Side, Width, Workload};
use forebay_movement::storage::{DataFile, FileError, PageCache};
use forebay_movement::{MoveError, RingOptions};

use self::faults::{assert_uses, guard};
use crate::join::MakeFile;
use crate::measure::{GPU_ROWS, TableHome, gpu_table};
use crate::{FirstPass, JoinError, JoinOptions, JoinPlan, PartitionedJoin, PinnedColumns};

/// Returns the first GPU, of which tests use this much memory. Without one, prints that the test is skipped, or panics
/// if `FOREBAY_REQUIRE_GPU=1`.
pub(crate) fn gpu(bytes: u64) -> Option<(HaltingDevices, Arc<Device>)> {
    if let Err(error) = gpus() {
        let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no GPU");
        return None;
    }
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(bytes),
        pinned_pool_bytes: 1 << 20,
        ..DeviceOptions::default()
    };
    let devices = Devices::new(&"cuda:0".parse().expect("a device"), options);
    let devices = devices.expect("the GPU starts");
    let device = devices.list().remove(0);
    Some((devices.into(), device))
}

/// Returns columns of keys and payloads of 8 bytes in pinned memory.
pub(crate) fn pinned(device: &Device, columns: (&[u8], &[u8])) -> PinnedColumns {
    pinned_of(Width::Eight, device, columns)
}

/// Returns columns in pinned memory.
fn pinned_of(width: Width, device: &Device, (keys, payloads): (&[u8], &[u8])) -> PinnedColumns {
    let column = |bytes: &[u8]| {
        let mut memory = AlignedBytes::zeroed(bytes.len());
        memory[..bytes.len()].copy_from_slice(bytes);
        let registered = device.register(memory).map_err(|(_, error)| error);
        Arc::new(registered.expect("the memory can be pinned"))
    };
    let rows = payloads.len() as u64 / width.payload_bytes();
    PinnedColumns::new(column(keys), column(payloads), width, rows)
}

pub(crate) fn generated(device: &Device, workload: &Workload, side: Side) -> PinnedColumns {
    let (rows, width) = (workload.rows(side), workload.width);
    let column = |of_value: u64| vec![0; (rows * of_value) as usize];
    let (mut keys, mut payloads) = (column(width.key_bytes()), column(width.payload_bytes()));
    workload.generate(side, (&mut keys, &mut payloads), 2);
    pinned_of(width, device, (&keys, &payloads))
}

/// Returns the plan of a join without a filter, whose ring has chunks of 64 KiB.
fn plan(width: Width, rows: [u64; 2], device_bytes: u64) -> JoinPlan {
    plan_with(false, width, rows, device_bytes)
}

/// Returns the plan of a join with a filter or without, whose ring has chunks of 64 KiB.
fn plan_with(has_filter: bool, width: Width, rows: [u64; 2], device_bytes: u64) -> JoinPlan {
    let ring = RingOptions {
        slots: 4,
        slot_bytes: 64 << 10,
    };
    let options = JoinOptions {
        device_bytes,
        host_bytes: 1 << 30,
        spill_directory: None,
        ring,
        has_filter,
        first_pass: FirstPass::Gpu,
        threads: 3,
    };
    JoinPlan::new(width, rows, options).expect("enough memory")
}

/// Returns the plan with at most these numbers of runs in device memory and in host memory, and the others on disk.
/// They pass through halves of `half` runs.
fn placed(plan: &JoinPlan, [resident, in_host, half]: [usize; 3]) -> JoinPlan {
    let resident = resident.min(plan.resident);
    let spilled = plan.runs.iter().sum::<usize>() - resident;
    JoinPlan {
        resident,
        in_host: in_host.min(spilled),
        half,
        spill_directory: Some(std::env::temp_dir()),
        ..plan.clone()
    }
}

#[test]
fn a_gpu_joins_sides_of_which_all_some_or_no_runs_spill() {
    const DEVICE_BYTES: u64 = 32 << 20;
    // A join uses no more memory than it may.
    let Some((_devices, device)) = gpu(DEVICE_BYTES) else {
        return;
    };
    for (width, rows) in [
        (Width::Eight, [30_000, 100_001]),
        (Width::Four, [100_003, 30_000]),
        (Width::Eight, [1, 4096]),
        (Width::Four, [0, 10_000]),
        (Width::Eight, [10_000, 0]),
        (Width::Four, [0, 0]),
    ] {
        let workload = Workload {
            width,
            build_rows: rows[0],
            probe_rows: if rows[0] == 0 { 0 } else { rows[1] },
            probe_keys: ProbeKeys::Uniform,
        };
        let build = generated(&device, &workload, Side::Build);
        // The keys of a generated probe side are those of the build side.
        let probe = match workload.probe_rows == rows[1] {
            true => generated(&device, &workload, Side::Probe),
            false => {
                let zeros = vec![0; (rows[1] * width.payload_bytes()) as usize];
                pinned_of(width, &device, (&zeros, &zeros))
            }
        };
        let all = plan(width, rows, DEVICE_BYTES);
        for runs in [
            [usize::MAX, usize::MAX, 0],
            [3, usize::MAX, 0],
            [0, usize::MAX, 0],
            [3, 4, 2],
            [2, 0, 3],
            [0, 0, 2],
        ] {
            let plan = placed(&all, runs);
            let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
            for _ in 0..3 {
                let report = join.run((&build, &probe), &Stop::never());
                let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                assert_eq!(report.totals, workload.answer(2), "{plan:?}");
            }
        }
    }
}

/// Few keys in many rows, the marker of empty slots among them, so that partitions differ and some have no build row.
#[test]
fn a_gpu_finds_all_matches_of_keys_that_runs_share() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    for width in [Width::Four, Width::Eight] {
        for (keys, rows) in [
            (1, [2000, 5000]),
            (7, [9000, 20_000]),
            (3000, [30_000, 20_000]),
        ] {
            let mut random = fastrand::Rng::with_seed(keys);
            let mut side = |rows: u64| -> Vec<(u64, u64)> {
                let row = |_| (u64::MAX - random.u64(..keys), random.u64(..));
                (0..rows).map(row).collect()
            };
            let (build, probe) = (side(rows[0]), side(rows[1]));
            let sides = [&build, &probe].map(|rows| pinned_rows(&device, rows, width));
            let apart = plan(width, rows, 3 << 20);
            let mut in_host = apart.clone();
            // No key is kept apart. On disk, some partitions are larger than a half of the memory.
            in_host.samples = [0; 2];
            for plan in [
                placed(&in_host, [1, 1, 2]),
                placed(&in_host, [0, 0, 2]),
                in_host,
                apart,
            ] {
                let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
                let report = join.run((&sides[0], &sides[1]), &Stop::never());
                let found = report.expect("no chain is too long").totals;
                assert_eq!(
                    found,
                    answer(&build, &probe, width),
                    "{keys} keys, {plan:?}"
                );
            }
        }
    }
}

/// Returns rows in pinned memory.
fn pinned_rows(device: &Device, rows: &[(u64, u64)], width: Width) -> PinnedColumns {
    let column = |of: fn(&(u64, u64)) -> u64| -> Vec<u8> {
        let bytes = width.payload_bytes() as usize;
        let values = rows.iter().map(of);
        values
            .flat_map(|it| it.to_le_bytes().into_iter().take(bytes))
            .collect()
    };
    pinned_of(width, device, (&column(|row| row.0), &column(|row| row.1)))
}

/// Returns the matches, by a map.
fn answer(build: &[(u64, u64)], probe: &[(u64, u64)], width: Width) -> JoinTotals {
    let cut = |value: u64| match width.payload_bytes() {
        4 => u64::from(value as u32),
        _ => value,
    };
    let mut map = BTreeMap::<u64, (u64, u64)>::new();
    for (key, payload) in build {
        let (count, sum) = map.entry(*key).or_default();
        (*count, *sum) = (*count + 1, sum.wrapping_add(cut(*payload)));
    }
    let mut totals = JoinTotals::default();
    for (key, payload) in probe {
        let (count, build_sum) = map.get(key).copied().unwrap_or_default();
        totals.add(JoinTotals {
            count,
            build_sum,
            probe_sum: count.wrapping_mul(cut(*payload)),
        });
    }
    totals
}

/// Rows that the filter drops are in no run. One of the plans has several tables for each partition.
#[test]
fn a_gpu_drops_rows_of_the_probe_side_that_a_filter_does_not_have() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    for (width, thousandths) in [
        (Width::Eight, 0),
        (Width::Four, 100),
        (Width::Eight, 100),
        (Width::Four, 1000),
    ] {
        let workload = Workload {
            width,
            build_rows: 60_000,
            probe_rows: 100_001,
            probe_keys: ProbeKeys::Matching { thousandths },
        };
        let [build, probe] =
            [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
        let answer = workload.answer(2);
        let unmatched = workload.probe_rows - answer.count;
        let rows = [workload.build_rows, workload.probe_rows];
        for has_filter in [false, true] {
            let in_host = plan_with(has_filter, width, rows, 4 << 20);
            let mut few = in_host.clone();
            few.run = RunShape::new(width, in_host.run.rows(), 1);
            let filtered = match has_filter {
                true => unmatched * 4 / 5..unmatched + 1,
                false => 0..1,
            };
            for plan in [
                placed(&in_host, [3, 4, 2]),
                placed(&in_host, [0, 0, 2]),
                few,
                in_host,
            ] {
                let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
                for _ in 0..2 {
                    let report = join.run((&build, &probe), &Stop::never());
                    let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                    assert_eq!(report.totals, answer, "{plan:?}");
                    assert!(filtered.contains(&report.filtered_rows), "{report:?}");
                    assert!(plan.partitions() > 2 || report.tables > 2, "{report:?}");
                }
            }
        }
    }
}

/// The sample has all rows; or it has none at first, so that a table with the key's rows is too full.
#[test]
fn a_gpu_keeps_a_key_with_thousands_of_rows_apart() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    for (index, width) in [Width::Four, Width::Eight].into_iter().enumerate() {
        let side = |rows: u64| -> Vec<(u64, u64)> {
            let key = |row: u64| {
                if row.is_multiple_of(4) {
                    7
                } else {
                    1000 + row % 9000
                }
            };
            (0..rows).map(|row| (key(row), row * row)).collect()
        };
        let (build, probe) = (side(40_000), side(30_000));
        let sides = [&build, &probe].map(|rows| pinned_rows(&device, rows, width));
        let answer = answer(&build, &probe, width);
        for samples in [[1 << 20, 1 << 20], [0, 1 << 20]] {
            let mut in_host = plan_with(index == 0, width, [40_000, 30_000], 3 << 20);
            in_host.table_bytes *= 8;
            in_host.samples = samples;
            for plan in [placed(&in_host, [1, 1, 2]), in_host] {
                let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
                let report = join.run((&sides[0], &sides[1]), &Stop::never());
                let report = report.unwrap_or_else(|error| panic!("{plan:?}: {error}"));
                assert_eq!((report.totals, report.heavy_keys), (answer, 1), "{plan:?}");
            }
        }
    }
}

/// A table has room for thousands of rows of one key, but not for a thousand of each: their slots touch. Wherever
/// rows go, one of the table of 65 keys, with 2^17 slots, is at least 4,514 slots away from that of its hash.
#[test]
fn a_gpu_joins_many_keys_whose_slots_would_touch() {
    const DEVICE_BYTES: u64 = 64 << 20;
    let Some((_devices, device)) = gpu(DEVICE_BYTES) else {
        return;
    };
    let side = |rows: u64| -> Vec<(u64, u64)> {
        let row = |row: u64| (1000 + row % 131, row);
        (0..rows).map(row).collect()
    };
    let (build, probe) = (side(131_000), side(10_000));
    let sides = [&build, &probe].map(|rows| pinned_rows(&device, rows, Width::Eight));
    let apart = plan(Width::Eight, [131_000, 10_000], DEVICE_BYTES);
    let mut in_tables = apart.clone();
    assert_eq!((apart.partitions(), apart.table_bytes), (2, 16 << 18));
    in_tables.samples = [0; 2];
    let run = |plan| {
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        join.run((&sides[0], &sides[1]), &Stop::never())
    };
    let report = run(apart).expect("no table has their rows");
    let expected = (answer(&build, &probe, Width::Eight), 131);
    assert_eq!((report.totals, report.heavy_keys), expected);
    let error = run(in_tables).expect_err("a chain is too long");
    let is_chain = matches!(error, JoinError::Index(IndexError::ChainTooLong { .. }));
    assert!(is_chain, "{error}");
}

/// The device has as much memory as the join may use. The filter takes a third of it, and runs what is left.
#[test]
fn a_gpu_joins_with_a_filter_in_the_memory_that_it_may_use() {
    const DEVICE_BYTES: u64 = 12 << 20;
    let Some((_devices, device)) = gpu(DEVICE_BYTES) else {
        return;
    };
    let workload = Workload {
        width: Width::Four,
        build_rows: 4_000_000,
        probe_rows: 100_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let [build, probe] = [Side::Build, Side::Probe].map(|side| generated(&device, &workload, side));
    let plan = plan_with(true, workload.width, [4_000_000, 100_000], DEVICE_BYTES);
    assert!(plan.resident > 0 && plan.spill_bytes() > 0, "{plan:?}");
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    let report = join.run((&build, &probe), &Stop::never());
    assert_eq!(report.expect("memory").totals, workload.answer(2));
}

/// A table has room for as many rows as a run has: fewer than one of these keys has. No key is kept apart.
#[test]
fn a_gpu_joins_a_partition_with_several_tables_and_refuses_a_key_with_thousands_of_rows() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let side = |keys: &[u64]| {
        let bytes: Vec<u8> = keys.iter().flat_map(|key| key.to_le_bytes()).collect();
        pinned(&device, (&bytes, &bytes))
    };
    let often: Vec<u64> = (0..42_000).map(|row| row % 7).collect();
    let once: Vec<u64> = (0..24).collect();
    let mut plan = plan(Width::Eight, [42_000, 24], 3 << 20);
    assert_eq!(plan.table_bytes, 16 * 2 * plan.run.rows());
    plan.samples = [0; 2];
    let mut join = PartitionedJoin::new(&device, plan.clone()).expect("memory");
    // Here a table has room for two runs of one key, whose chain is too long.
    plan.table_bytes *= 2;
    let mut refusing = PartitionedJoin::new(&device, plan.clone()).expect("memory");
    let probe = side(&once);
    for _ in 0..2 {
        let report = join.run((&side(&often), &probe), &Stop::never());
        let report = report.expect("every table has room");
        // Two for each key, or fewer where keys share partitions.
        assert!(report.tables > 7, "{report:?}");
        let sum = 6000 * (0..7).sum::<u64>();
        let expected = JoinTotals {
            count: 42_000,
            build_sum: sum,
            probe_sum: sum,
        };
        assert_eq!(report.totals, expected);
        let refused = refusing.run((&side(&[7; 42_000]), &probe), &Stop::never());
        let error = refused.expect_err("a chain is too long");
        let is_chain = matches!(error, JoinError::Index(IndexError::ChainTooLong { .. }));
        assert!(is_chain, "{error}");
    }
}

/// The deadlines lie in all parts of a join: chunks, copies and kernels are in flight.
#[test]
fn a_gpu_ends_joins_at_their_deadline_and_joins_again() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let workload = Workload {
        width: Width::Eight,
        build_rows: 200_000,
        probe_rows: 200_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let build = generated(&device, &workload, Side::Build);
    let probe = generated(&device, &workload, Side::Probe);
    let [in_host, with_filter] = [false, true]
        .map(|has_filter| plan_with(has_filter, workload.width, [200_000; 2], 3 << 20));
    let on_disk = placed(&with_filter, [3, 10, 4]);
    let answer = workload.answer(2);
    for (plan, last_us, step) in [
        (in_host, 8000, 100),
        (with_filter, 8000, 100),
        (on_disk, 60_000, 3000),
    ] {
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        let (mut stopped, mut ended) = (0, 0);
        // Kernels are compiled in the first join.
        for us in [1_000_000_000]
            .into_iter()
            .chain((0..last_us).step_by(step))
        {
            let deadline = Instant::now() + Duration::from_micros(us);
            match join.run((&build, &probe), &Stop::at(deadline)) {
                Ok(report) => {
                    assert_eq!(report.totals, answer);
                    ended += 1;
                }
                Err(JoinError::Stopped(_) | JoinError::Move(MoveError::Stopped(_))) => stopped += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!(stopped > 1 && ended > 0, "{stopped} stopped, {ended} ended");
        let report = join.run((&build, &probe), &Stop::never());
        assert_eq!(report.expect("it runs").totals, answer);
    }
}

/// Returns sides of 100,000 rows, the plan of their join with a filter and runs in all three places, and its answer.
fn on_disk(device: &Device) -> ([PinnedColumns; 2], JoinPlan, JoinTotals) {
    let workload = Workload {
        width: Width::Eight,
        build_rows: 100_000,
        probe_rows: 100_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let sides = [Side::Build, Side::Probe].map(|side| generated(device, &workload, side));
    let plan = plan_with(true, workload.width, [100_000; 2], 3 << 20);
    let plan = placed(&plan, [2, 3, 2]);
    (sides, plan, workload.answer(2))
}

/// Creates a temporary file on a disk that has room for some bytes of it.
fn with_room<const BYTES: u64>(folder: &Path) -> Result<DataFile, FileError> {
    let mut file = DataFile::temporary(folder, PageCache::Bypass)?;
    file.inject_full_disk(BYTES);
    Ok(file)
}

/// The disk is full from the beginning, or after some runs of the build side or of the probe side.
#[test]
fn a_gpu_ends_joins_whose_file_cannot_be_made_or_written_and_joins_again() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let ([build, probe], plan, answer) = on_disk(&device);
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    let (temporary, used) = (join.make_file, device.memory_used_bytes());
    let failing: [(MakeFile, &str); 5] = [
        (
            |folder| DataFile::temporary(&folder.join("no/such/folder"), PageCache::Bypass),
            "there is no such file",
        ),
        // It can be read alone.
        (
            |_| DataFile::open(&std::env::current_exe().expect("it runs"), PageCache::Use),
            "os error",
        ),
        (with_room::<0>, "free some"),
        (with_room::<{ 300 << 10 }>, "free some"),
        (with_room::<{ 2 << 20 }>, "free some"),
    ];
    for (make_file, why) in failing {
        join.make_file = make_file;
        let error = join.run((&build, &probe), &guard());
        let error = error.expect_err("nothing can be written");
        assert!(matches!(error, JoinError::File(_)), "{error}");
        assert!(error.to_string().contains(why), "{error}");
        assert_uses(&device, used);
        join.make_file = temporary;
        let report = join.run((&build, &probe), &Stop::never());
        assert_eq!(report.expect("it runs").totals, answer);
    }
}

/// The device is lost before the first pass, or in one of both.
#[test]
fn a_lost_device_ends_a_join_with_runs_on_disk() {
    for checks in [0, 20, 60] {
        let Some((_devices, device)) = gpu(8 << 20) else {
            return;
        };
        let ([build, probe], plan, _) = on_disk(&device);
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        device.inject(Fault::FailAfter { checks });
        let lost = join.run((&build, &probe), &Stop::never());
        let error = lost.expect_err("the device is lost");
        let is_lost = matches!(
            error,
            JoinError::Move(MoveError::DeviceLost { .. } | MoveError::Job { .. })
        );
        assert!(is_lost, "{error}");
    }
}

#[test]
fn a_gpu_measures_tables_in_both_memories_and_frees_them() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let used = device.memory_used_bytes();
    for home in [TableHome::Device, TableHome::Host] {
        let rates = gpu_table(&device, home, 1 << 12, &Stop::never());
        let rates = rates.unwrap_or_else(|error| panic!("{home:?}: {error}"));
        assert!(rates.inserts_per_s > 0.0 && rates.probes_per_s > 0.0);
        // There is no room for as many rows.
        let refused = gpu_table(&device, home, GPU_ROWS, &Stop::never());
        refused.expect_err("more than 8 MiB");
        assert_eq!(device.memory_used_bytes(), used, "{home:?}");
    }
}
