//! Joins whose device is lost, that lack memory, a permission, peer access or rows, or whose rows all have one key.
//! Each ends with an error or the right answer, and leaves no memory in use.

use std::iter::{once, successors};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::cuda::RegisterError;
use forebay_device::{Device, DeviceOptions, Devices, Fault, HaltingDevices, JobFailure};
use forebay_hash_index::{
    DeviceRows, HostRows, IndexError, InterleavedRows, JoinTotals, ProbeKeys, Side, TableMethod,
    TableShape, Width, Workload,
};
use forebay_movement::{MoveError, RingOptions};

use super::gpus::{sets, spread};
use super::{generated, gpu, pinned, plan, plan_with};
use crate::gpus::COPIED_ROWS;
use crate::measure::{TableHome, gpu_table};
use crate::{
    CoProcessing, CoProcessingOptions, GpuSides, InterleavedJoin, JoinError, PartitionedJoin,
    PinnedColumns, Strategy, join_in_partitions, join_on_cpu, join_replicated, on_gpu,
};

/// Maximum time of a join that fails.
const LIMIT: Duration = Duration::from_secs(30);

/// A join whose sides have 15 runs each, most of which spill.
const WORKLOAD: Workload = Workload {
    width: Width::Eight,
    build_rows: 60_000,
    probe_rows: 60_000,
    probe_keys: ProbeKeys::Uniform,
};
const ROWS: [u64; 2] = [WORKLOAD.build_rows, WORKLOAD.probe_rows];
/// Device memory of a join in partitions.
const JOIN_BYTES: u64 = 3 << 20;

/// Returns the token of a join that must not hang.
pub(super) fn guard() -> Stop {
    Stop::at(Instant::now() + LIMIT)
}

/// Returns how many checks of a device pass before it fails: 0, 1, 2, 3, 5, 8 and so on.
fn points() -> impl Iterator<Item = u32> {
    let numbers = successors(Some([1, 2]), |[one, next]| Some([*next, one + next]));
    once(0).chain(numbers.map(|[one, _]| one))
}

/// Returns both sides of a workload in pinned memory.
fn pinned_sides(device: &Device) -> [PinnedColumns; 2] {
    [Side::Build, Side::Probe].map(|side| generated(device, &WORKLOAD, side))
}

/// Returns a join by the CPU and a GPU, with batches of 64 KiB.
fn co_processing(device: &Arc<Device>, build_rows: u64) -> CoProcessing {
    let options = CoProcessingOptions {
        shape: TableShape::linear_probing(Width::Eight, build_rows),
        ring: RingOptions {
            slots: 3,
            slot_bytes: 64 << 10,
        },
        threads: 2,
    };
    CoProcessing::new(&[Arc::clone(device)], options).expect("memory")
}

fn assert_is_lost(error: &JoinError, case: &str) {
    let is_lost = matches!(error, JoinError::Move(MoveError::DeviceLost { .. }));
    let says_why = error.to_string().contains("injected fault");
    assert!(is_lost && says_why, "{case}: {error}");
}

/// Asserts that this number of bytes of a device is in use, when its thread has dropped what kernels used.
pub(super) fn assert_uses(device: &Device, bytes: u64) {
    let end = Instant::now() + LIMIT;
    while device.memory_used_bytes() != bytes {
        let used = device.memory_used_bytes();
        assert!(Instant::now() < end, "{used} bytes are in use, not {bytes}");
        thread::yield_now();
    }
}

#[test]
fn a_join_in_partitions_whose_gpu_is_lost_is_an_error_that_says_so() {
    [false, true].into_iter().for_each(lose_in_partitions);
}

/// Loses a GPU at each point of a join, with a filter or without.
fn lose_in_partitions(has_filter: bool) {
    let answer = WORKLOAD.answer(2);
    let after = points().map(|checks| Fault::FailAfter { checks });
    let mut lost = 0;
    for fault in once(Fault::LaunchFails).chain(after) {
        let Some((_devices, device)) = gpu(8 << 20) else {
            return;
        };
        let sides = pinned_sides(&device);
        let plan = plan_with(has_filter, WORKLOAD.width, ROWS, JOIN_BYTES);
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        let mut run = || join.run((&sides[0], &sides[1]), &guard());
        // A new set of devices joins after the loss of the one before.
        assert_eq!(run().expect("it runs").totals, answer);
        device.inject(fault);
        match run() {
            // The join ends before the fault.
            Ok(report) => {
                assert_eq!(report.totals, answer);
                break;
            }
            Err(error) => assert_is_lost(&error, &format!("{fault:?}")),
        }
        let again = run().expect_err("the device is lost");
        assert_is_lost(&again, "after the loss");
        drop((join, sides));
        assert_uses(&device, 0);
        lost += 1;
    }
    assert!(lost > 6, "the device was lost at {lost} points only");
}

#[test]
fn a_join_by_cpu_and_gpu_whose_gpu_is_lost_is_an_error_that_says_so() {
    let answer = WORKLOAD.answer(2);
    for checks in points() {
        let Some((_devices, device)) = gpu(16 << 20) else {
            return;
        };
        let sides = pinned_sides(&device);
        let mut join = co_processing(&device, WORKLOAD.build_rows);
        let mut run = || join.run(Strategy::GpuBuilds, (&sides[0], &sides[1]), &guard());
        assert_eq!(run().expect("it runs").totals, answer);
        device.inject(Fault::FailAfter { checks });
        match run() {
            // The GPU has built the table, and the join ends before the fault.
            Ok(report) => {
                assert_eq!(report.totals, answer);
                assert!(checks > 8, "the GPU inserts 15 batches");
                break;
            }
            Err(error) => assert_is_lost(&error, &format!("after {checks} checks")),
        }
        drop((join, sides));
        assert_uses(&device, 0);
    }
}

/// How several GPUs join.
#[derive(Debug, Clone, Copy)]
enum Method {
    Partitions,
    Replicated,
    Table(InterleavedRows),
}

const METHODS: [Method; 4] = [
    Method::Partitions,
    Method::Replicated,
    Method::Table(InterleavedRows::All),
    Method::Table(InterleavedRows::Own),
];

impl Method {
    fn join(
        self,
        gpus: &[Arc<Device>],
        (width, build_rows): (Width, u64),
        sides: &GpuSides,
    ) -> Result<JoinTotals, JoinError> {
        match self {
            Method::Partitions => Ok(join_in_partitions(gpus, width, sides, &guard())?.totals),
            Method::Replicated => Ok(join_replicated(gpus, width, sides, &guard())?.totals),
            Method::Table(rows) => {
                let shape = TableShape::linear_probing(width, build_rows);
                let mut join = InterleavedJoin::new(gpus, shape, rows)?;
                Ok(join.run(sides, &guard())?.totals)
            }
        }
    }

    /// Joins twice. During the second join, the last GPU fails after some checks. Returns whether that is an error.
    fn fails_after(self, gpus: &[Arc<Device>], checks: u32) -> bool {
        let sides = GpuSides {
            build: spread(gpus, WORKLOAD, Side::Build),
            probe: spread(gpus, WORKLOAD, Side::Probe),
        };
        let answer = WORKLOAD.answer(2);
        let join = || self.join(gpus, (WORKLOAD.width, WORKLOAD.build_rows), &sides);
        assert_eq!(join().expect("it runs"), answer, "{self:?}");
        let last = gpus.last().expect("a GPU");
        last.inject(Fault::FailAfter { checks });
        match join() {
            Ok(totals) => {
                assert_eq!(totals, answer, "{self:?}");
                return false;
            }
            Err(error) => assert_is_lost(&error, &format!("{self:?} after {checks} checks")),
        }
        drop(sides);
        gpus.iter().for_each(|gpu| assert_uses(gpu, 0));
        true
    }
}

#[test]
fn a_join_over_gpus_of_which_one_is_lost_is_an_error_that_says_so() {
    for method in METHODS {
        for checks in points() {
            let sets = sets(2);
            let failed = sets
                .iter()
                .filter(|devices| method.fails_after(&devices.list(), checks));
            if failed.count() == 0 {
                // All joins end before the fault: they check the device three times at least.
                assert!(checks > 2 || sets.is_empty(), "{method:?}");
                break;
            }
        }
    }
}

fn is_full(error: &JoinError) -> bool {
    let JoinError::Move(error) = error else {
        return false;
    };
    matches!(
        error,
        MoveError::DeviceMemory(_)
            | MoveError::Job {
                why: JobFailure::OutOfMemory(_),
                ..
            }
    )
}

#[test]
fn a_join_in_partitions_without_device_memory_is_an_error_and_leaves_none_in_use() {
    const BYTES: u64 = 8 << 20;
    let Some((_devices, device)) = gpu(BYTES) else {
        return;
    };
    let plan = plan(WORKLOAD.width, ROWS, JOIN_BYTES);
    device.inject(Fault::OutOfMemory);
    let refused = PartitionedJoin::new(&device, plan.clone()).expect_err("a test injected it");
    assert!(is_full(&refused), "{refused}");
    // The more memory there is, the later is the allocation that fails.
    let mut refused = 0;
    for left in (0..BYTES).step_by(128 << 10) {
        assert_uses(&device, 0);
        let _held = device.allocate(BYTES - left).expect("all is free");
        match PartitionedJoin::new(&device, plan.clone()) {
            Ok(_) => break,
            Err(error) => assert!(is_full(&error), "{error}"),
        }
        refused += 1;
    }
    assert!(refused > 10, "{refused} refused");
    let sides = pinned_sides(&device);
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    let (free, mut refused) = (BYTES - device.memory_used_bytes(), 0);
    for left in (0..free).step_by(2048) {
        assert_uses(&device, BYTES - free);
        let _held = device.allocate(free - left).expect("it is one range");
        match join.run((&sides[0], &sides[1]), &guard()) {
            Ok(report) => {
                assert_eq!(report.totals, WORKLOAD.answer(2));
                break;
            }
            Err(error) => assert!(is_full(&error), "{error}"),
        }
        refused += 1;
    }
    assert!(refused > 2, "{refused} refused");
}

#[test]
fn joins_on_a_host_that_cannot_pin_memory_are_an_error_and_leave_none_in_use() {
    let Some((_devices, device)) = gpu(16 << 20) else {
        return;
    };
    let [build, probe] = pinned_sides(&device);
    let [keys, payloads] = one_key(7, WORKLOAD.build_rows);
    let often = pinned(&device, (&keys, &payloads));
    let assert_refused = |error: JoinError| {
        let is_refused = matches!(error, JoinError::Register(RegisterError::Refused { .. }));
        let says_what_to_do = error.to_string().contains("ulimit -l");
        assert!(is_refused && says_what_to_do, "{error}");
    };
    let (mut plan, answer) = (plan(WORKLOAD.width, ROWS, JOIN_BYTES), WORKLOAD.answer(2));
    // A table has room for two runs of one key, whose chain is too long.
    plan.table_bytes *= 2;
    plan.samples = [0; 2];
    device.inject(Fault::CannotPin);
    assert_refused(PartitionedJoin::new(&device, plan.clone()).expect_err("a test injected it"));
    assert_uses(&device, 0);
    let mut join = PartitionedJoin::new(&device, plan).expect("memory");
    // A join for which the device has no memory keeps the pinned memory.
    device.inject(Fault::OutOfMemory);
    let full = join.run((&build, &probe), &guard());
    assert!(is_full(&full.expect_err("a test injected it")));
    device.inject(Fault::CannotPin);
    let joined = join.run((&build, &probe), &guard());
    assert_eq!(joined.expect("nothing is pinned").totals, answer);
    // A join after one that failed later pins memory again, unless it is stopped.
    let failed = join.run((&often, &probe), &guard());
    let error = failed.expect_err("a chain is too long");
    let is_chain = matches!(error, JoinError::Index(IndexError::ChainTooLong { .. }));
    assert!(is_chain, "{error}");
    let stop = Stop::never();
    stop.cancelled.store(true, Ordering::Relaxed);
    let stopped = join.run((&build, &probe), &stop);
    let stopped = stopped.expect_err("it is cancelled");
    assert!(matches!(stopped, JoinError::Stopped(_)), "{stopped}");
    let refused = join.run((&build, &probe), &guard());
    assert_refused(refused.expect_err("a test injected it"));
    let joined = join.run((&build, &probe), &guard());
    assert_eq!(joined.expect("memory").totals, answer);
    let mut join = co_processing(&device, WORKLOAD.build_rows);
    device.inject(Fault::CannotPin);
    let refused = join.run(Strategy::GpuBuilds, (&build, &probe), &guard());
    assert_refused(refused.expect_err("a test injected it"));
    let joined = join.run(Strategy::GpuBuilds, (&build, &probe), &guard());
    assert_eq!(joined.expect("memory").totals, answer);
    // A table in host memory that the GPU uses.
    device.inject(Fault::CannotPin);
    let refused = gpu_table(&device, TableHome::Host, 1 << 12, &guard());
    let error = refused.expect_err("a test injected it").to_string();
    assert!(error.contains("the host cannot pin"), "{error}");
    gpu_table(&device, TableHome::Host, 1 << 12, &guard()).expect("memory");
}

#[test]
fn joins_for_which_the_host_has_no_memory_are_an_error() {
    let assert_refused = |error: JoinError| {
        let is_refused = matches!(error, JoinError::HostMemory { needed, .. } if needed > 1 << 48);
        assert!(is_refused, "{error}");
    };
    let none = HostRows {
        keys: &[],
        payloads: &[],
    };
    let row = HostRows {
        keys: &[0; 8],
        payloads: &[0; 8],
    };
    let large = TableShape::with_slots(TableMethod::LinearProbing, Width::Eight, 1 << 45);
    let refused = join_on_cpu(large, (none, row), 2, &guard());
    assert_refused(refused.expect_err("512 TiB"));
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let mut plan = plan(WORKLOAD.width, ROWS, JOIN_BYTES);
    plan.in_host = 1 << 33;
    let refused = PartitionedJoin::new(&device, plan);
    assert_refused(refused.expect_err("hundreds of TiB"));
    assert_uses(&device, 0);
}

/// The devices of two sets have no peer access, even if they are one card.
#[test]
fn gpus_without_peer_access_join_with_a_table_on_each_or_not_at_all() {
    const BYTES: u64 = 128 << 20;
    let Some((_devices, device)) = gpu(BYTES) else {
        return;
    };
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(BYTES),
        pinned_pool_bytes: 1 << 20,
        ..DeviceOptions::default()
    };
    // The host device takes the id that the first set's GPU has.
    let others = Devices::new(&"host:1,cuda:0".parse().expect("devices"), options);
    let others: HaltingDevices = others.expect("the GPU starts").into();
    let gpus = [device, others.list().remove(1)];
    // Each copies the rows of the other in two pieces.
    let workload = Workload {
        width: Width::Four,
        build_rows: 2 * COPIED_ROWS + 3,
        probe_rows: 300_000,
        probe_keys: ProbeKeys::Uniform,
    };
    let sides = GpuSides {
        build: spread(&gpus, workload, Side::Build),
        probe: spread(&gpus, workload, Side::Probe),
    };
    for method in METHODS {
        let joined = method.join(&gpus, (workload.width, workload.build_rows), &sides);
        match (method, joined) {
            (Method::Replicated, Ok(totals)) => assert_eq!(totals, workload.answer(2)),
            (Method::Partitions | Method::Table(_), Err(JoinError::NoPeers { .. })) => (),
            (_, joined) => panic!("{method:?}: {joined:?}"),
        }
    }
    drop(sides);
    // It fails before its third job, which copies rows of the first GPU.
    assert!(Method::Replicated.fails_after(&gpus, 2));
}

/// Returns rows of one key, whose payloads are their indexes: the columns.
fn one_key(key: u64, rows: u64) -> [Vec<u8>; 2] {
    let keys = (0..rows).flat_map(|_| key.to_le_bytes());
    let payloads = (0..rows).flat_map(u64::to_le_bytes);
    [keys.collect(), payloads.collect()]
}

/// Returns the matches of two sides of one key with these numbers of rows.
fn all_pairs([build, probe]: [u64; 2]) -> JoinTotals {
    let sum = |rows: u64| rows * rows.saturating_sub(1) / 2;
    JoinTotals {
        count: build * probe,
        build_sum: probe * sum(build),
        probe_sum: build * sum(probe),
    }
}

/// Returns both sides of one key in the memory of GPUs, of which each has an equal part.
fn one_key_over(gpus: &[Arc<Device>], key: u64, rows: [u64; 2]) -> GpuSides {
    let count = gpus.len();
    let side = |rows: u64| -> Vec<DeviceRows> {
        let [keys, payloads] = one_key(key, rows);
        let at = |gpu: usize| 8 * (rows as usize * gpu / count);
        let of_gpu = |(gpu, device): (usize, &Arc<Device>)| {
            let part = at(gpu)..at(gpu + 1);
            let columns = pinned(device, (&keys[part.clone()], &payloads[part]));
            let copied = on_gpu(device, move |cuda| Ok(columns.copy(cuda)?));
            copied.expect("memory for the rows")
        };
        gpus.iter().enumerate().map(of_gpu).collect()
    };
    let [build, probe] = rows.map(side);
    GpuSides { build, probe }
}

/// Checks joins whose rows all have one key. A table holds at most 4,096 of them. Rows of the key that marks empty
/// slots are only counted, so that it holds any number: 2^33 matches.
fn check_one_key(join: impl Fn(u64, [u64; 2]) -> Result<JoinTotals, JoinError>) {
    for (key, rows, has_room) in [
        (7, [4096, 1000], true),
        (7, [4097, 1000], false),
        (u64::MAX, [1 << 17, 1 << 16], true),
    ] {
        match join(key, rows) {
            Ok(totals) if has_room => assert_eq!(totals, all_pairs(rows), "{rows:?} rows"),
            Err(JoinError::Index(IndexError::ChainTooLong { .. })) if !has_room => (),
            other => panic!("{rows:?} rows: {other:?}"),
        }
    }
}

#[test]
fn the_cpu_joins_one_key_in_every_row_or_refuses_it() {
    check_one_key(|key, rows| {
        let [build, probe] = rows.map(|rows| one_key(key, rows));
        let [build, probe] = [&build, &probe].map(|[keys, payloads]| HostRows { keys, payloads });
        let shape = TableShape::linear_probing(Width::Eight, rows[0]);
        Ok(join_on_cpu(shape, (build, probe), 2, &guard())?.totals)
    });
}

#[test]
fn a_gpu_and_the_cpu_join_one_key_in_every_row_or_refuse_it() {
    let Some((_devices, device)) = gpu(16 << 20) else {
        return;
    };
    for strategy in Strategy::ALL {
        check_one_key(|key, rows| {
            let [build, probe] = rows.map(|rows| {
                let [keys, payloads] = one_key(key, rows);
                pinned(&device, (&keys, &payloads))
            });
            let mut join = co_processing(&device, rows[0]);
            Ok(join.run(strategy, (&build, &probe), &guard())?.totals)
        });
    }
}

#[test]
fn gpus_join_one_key_in_every_row_or_refuse_it() {
    for devices in sets(2) {
        let gpus = devices.list();
        for method in METHODS {
            check_one_key(|key, rows| {
                let sides = one_key_over(&gpus, key, rows);
                method.join(&gpus, (Width::Eight, rows[0]), &sides)
            });
        }
    }
}

#[test]
fn gpus_find_no_match_of_a_side_without_rows() {
    for devices in sets(2) {
        let gpus = devices.list();
        for rows in [[0, 1000], [1000, 0], [0, 0]] {
            let sides = one_key_over(&gpus, 7, rows);
            for method in METHODS {
                let found = method.join(&gpus, (Width::Eight, rows[0]), &sides);
                let found = found.unwrap_or_else(|error| panic!("{method:?}, {rows:?}: {error}"));
                assert_eq!(found, JoinTotals::default(), "{method:?}, {rows:?}");
            }
        }
    }
}

/// 2^33 matches. If the key is not kept apart, each run of the build side fills a table of its own with the longest
/// chain that there is.
#[test]
fn a_join_in_partitions_counts_all_matches_of_one_key_in_every_row() {
    let Some((_devices, device)) = gpu(8 << 20) else {
        return;
    };
    let rows = [1 << 17, 1 << 16];
    for (key, is_sampled, tables) in [(7, true, 0), (7, false, 32), (u64::MAX, true, 32)] {
        let mut plan = plan(Width::Eight, rows, JOIN_BYTES);
        assert_eq!((plan.run.rows(), plan.table_bytes), (4096, 2 * 4096 * 16));
        if !is_sampled {
            plan.samples = [0; 2];
        }
        let mut join = PartitionedJoin::new(&device, plan).expect("memory");
        let [build, probe] = rows.map(|rows| {
            let [keys, payloads] = one_key(key, rows);
            pinned(&device, (&keys, &payloads))
        });
        let report = join.run((&build, &probe), &guard()).expect("it runs");
        assert_eq!((report.tables, report.totals), (tables, all_pairs(rows)));
    }
}
