//! Joins over one GPU and over all.

use std::sync::Arc;
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::cuda::gpus;
use forebay_device::{Device, DeviceOptions, Devices, HaltingDevices};
use forebay_hash_index::{
    DeviceRows, InterleavedRows, JoinTotals, ProbeKeys, Side, TableShape, Width, Workload,
};

use crate::{
    GpuSides, InterleavedJoin, JoinError, join_in_partitions, join_replicated, on_gpu, timed,
};

#[test]
#[should_panic(expected = "interleaved tables do not support composite keys")]
fn interleaved_tables_refuse_composite_keys_at_once() {
    let shape = TableShape::linear_probing(Width::Composite, 8);
    let _ = InterleavedJoin::new(&[], shape, InterleavedRows::All);
}

#[test]
#[should_panic(expected = "interleaved tables do not support keys and payloads of two widths")]
fn interleaved_tables_refuse_rows_of_two_widths_at_once() {
    let shape = TableShape::linear_probing(Width::FourEight, 8);
    let _ = InterleavedJoin::new(&[], shape, InterleavedRows::All);
}

/// Returns the first GPU, and the first `most` if there are several that reach each other. Without one, prints that
/// the test is skipped, or panics if `FOREBAY_REQUIRE_GPU=1`.
pub(super) fn sets(most: usize) -> Vec<HaltingDevices> {
    let count = match gpus() {
        Ok(gpus) => gpus.len().min(most),
        Err(error) => {
            let required = std::env::var_os("FOREBAY_REQUIRE_GPU").is_some_and(|it| it == "1");
            assert!(!required, "{error}");
            println!("skipped: no GPU");
            return Vec::new();
        }
    };
    let options = DeviceOptions {
        cuda_memory_budget_bytes: Some(256 << 20),
        pinned_pool_bytes: 1 << 20,
        ..DeviceOptions::default()
    };
    let start = |count: usize| -> HaltingDevices {
        let names: Vec<String> = (0..count).map(|gpu| format!("cuda:{gpu}")).collect();
        let devices = Devices::new(&names.join(",").parse().expect("devices"), options.clone());
        devices.expect("the GPUs start").into()
    };
    let mut sets = vec![start(1)];
    if count > 1 {
        let all = start(count);
        let list = all.list();
        let reaches = |one: &Arc<Device>| {
            let mut others = list.iter().filter(|it| it.id() != one.id());
            others.all(|it| one.reaches(it))
        };
        match list.iter().all(reaches) {
            true => sets.push(all),
            false => {
                let are_peers = list.iter().all(|it| {
                    let peers = it.details().map(|gpu| gpu.peers.len());
                    peers == Some(count - 1)
                });
                assert!(!are_peers, "peers do not reach each other");
                println!("skipped: GPUs that do not reach each other");
            }
        }
    } else {
        println!("skipped: several GPUs");
    }
    sets
}

/// Returns generated rows of a side, of which each GPU has an equal part.
pub(super) fn spread(gpus: &[Arc<Device>], workload: Workload, side: Side) -> Vec<DeviceRows> {
    let (rows, count) = (workload.rows(side), gpus.len() as u64);
    let of_gpu = |(gpu, device): (u64, &Arc<Device>)| {
        let rows = rows * gpu / count..rows * (gpu + 1) / count;
        on_gpu(device, move |cuda| {
            timed::generate(cuda, &workload, (side, rows))
        })
        .expect("memory for the rows")
    };
    (0..).zip(gpus).map(of_gpu).collect()
}

/// Joins by every method, and asserts that each gives the answer.
fn check(gpus: &[Arc<Device>], (width, rows): (Width, u64), sides: &GpuSides, answer: JoinTotals) {
    let never = Stop::never();
    let report = join_in_partitions(gpus, width, sides, &never).expect("it runs");
    assert_eq!(report.totals, answer);
    let report = join_replicated(gpus, width, sides, &never).expect("it runs");
    assert_eq!(report.totals, answer, "replicated");
    if !width.is_uniform() {
        return;
    }
    let shape = TableShape::linear_probing(width, rows);
    for which in [InterleavedRows::All, InterleavedRows::Own] {
        if which == InterleavedRows::Own && !gpus.len().is_power_of_two() {
            continue;
        }
        let mut join = InterleavedJoin::new(gpus, shape, which).expect("memory for the table");
        // The second join empties the table of the first.
        for _ in 0..2 {
            let report = join.run(sides, &never).expect("it runs");
            assert_eq!(report.totals, answer, "{which:?}");
        }
    }
}

#[test]
fn gpus_join_the_rows_that_each_has() {
    for devices in sets(usize::MAX) {
        let gpus = devices.list();
        for (width, build_rows, probe_rows) in [
            (Width::Four, 1_000_003, 1_500_001),
            (Width::Eight, 300_000, 1_000_000),
            // Several chunks of 2 MiB on each GPU, and several partitions.
            (Width::Eight, 1_100_000, 100_000),
            (Width::FourEight, 300_000, 500_001),
            (Width::EightFour, 300_001, 500_000),
            (Width::Composite, 300_000, 500_001),
            (Width::Composite, 3, 0),
            (Width::Eight, 1, 33),
            (Width::Four, 5, 0),
            (Width::Four, 0, 0),
        ] {
            let workload = Workload {
                width,
                build_rows,
                probe_rows,
                probe_keys: ProbeKeys::Uniform,
            };
            let sides = GpuSides {
                build: spread(&gpus, workload, Side::Build),
                probe: spread(&gpus, workload, Side::Probe),
            };
            check(&gpus, (width, build_rows), &sides, workload.answer(2));
        }
    }
}

#[test]
fn keys_that_several_gpus_have_match_all_their_rows() {
    for devices in sets(usize::MAX) {
        let gpus = devices.list();
        let workload = Workload {
            width: Width::Eight,
            build_rows: 200_000,
            probe_rows: 300_000,
            probe_keys: ProbeKeys::Uniform,
        };
        // Every GPU reads the rows of all, so that each key of the build side occurs on each GPU.
        let build = spread(&gpus[..1], workload, Side::Build);
        let sides = GpuSides {
            build: vec![build[0].clone(); gpus.len()],
            probe: spread(&gpus, workload, Side::Probe),
        };
        let (one, times) = (workload.answer(2), gpus.len() as u64);
        let answer = JoinTotals {
            count: one.count * times,
            build_sum: one.build_sum.wrapping_mul(times),
            probe_sum: one.probe_sum.wrapping_mul(times),
        };
        let rows = workload.build_rows * times;
        check(&gpus, (workload.width, rows), &sides, answer);
    }
}

#[test]
fn joins_over_gpus_end_at_their_deadline() {
    for devices in sets(usize::MAX) {
        let gpus = devices.list();
        let workload = Workload {
            width: Width::Four,
            build_rows: 3_000_000,
            probe_rows: 3_000_000,
            probe_keys: ProbeKeys::Uniform,
        };
        let sides = GpuSides {
            build: spread(&gpus, workload, Side::Build),
            probe: spread(&gpus, workload, Side::Probe),
        };
        let shape = TableShape::linear_probing(workload.width, workload.build_rows);
        let mut table = InterleavedJoin::new(&gpus, shape, InterleavedRows::All).expect("memory");
        let (answer, never) = (workload.answer(2), Stop::never());
        // Kernels are compiled in the first joins; the times are those of the second ones.
        let times = (0..2).map(|_| {
            let began = Instant::now();
            let partitioned = join_in_partitions(&gpus, workload.width, &sides, &never);
            partitioned.expect("it runs");
            let of_partitioned = began.elapsed();
            table.run(&sides, &never).expect("it runs");
            let of_two = began.elapsed();
            let replicated = join_replicated(&gpus, workload.width, &sides, &never);
            replicated.expect("it runs");
            let of_all = began.elapsed();
            [of_partitioned, of_two - of_partitioned, of_all - of_two]
        });
        let times = times.last().expect("two rounds");
        let (mut stopped, mut ended) = ([0; 3], [0; 3]);
        for part in 0..40 {
            // The last ones are far away, whatever else the machine does.
            let parts = if part < 36 { part } else { 100 * part };
            let stop = |method: usize| Stop::at(Instant::now() + times[method] * parts / 20);
            let partitioned = join_in_partitions(&gpus, workload.width, &sides, &stop(0));
            let interleaved = table.run(&sides, &stop(1));
            let replicated = join_replicated(&gpus, workload.width, &sides, &stop(2));
            let totals = [
                partitioned.map(|it| it.totals),
                interleaved.map(|it| it.totals),
                replicated.map(|it| it.totals),
            ];
            for (method, result) in totals.into_iter().enumerate() {
                match result {
                    Ok(totals) => {
                        assert_eq!(totals, answer);
                        ended[method] += 1;
                    }
                    Err(JoinError::Stopped(_)) => stopped[method] += 1,
                    Err(error) => panic!("{error}"),
                }
            }
        }
        // The first deadlines have passed before the joins begin; some of the others pass later.
        let all = stopped.iter().all(|it| *it > 2) && ended.iter().all(|it| *it > 0);
        assert!(all, "{stopped:?} stopped, {ended:?} ended");
        let joined = join_in_partitions(&gpus, workload.width, &sides, &never);
        assert_eq!(joined.expect("it runs").totals, answer);
        assert_eq!(table.run(&sides, &never).expect("it runs").totals, answer);
        let joined = join_replicated(&gpus, workload.width, &sides, &never);
        assert_eq!(joined.expect("it runs").totals, answer);
    }
}
