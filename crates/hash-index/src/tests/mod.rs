//! Every engine against a model: the host engine, the kernels emulated on the CPU, and the kernels on a GPU.

mod cases;
mod emulated;
mod faults;
mod gpu;

use std::collections::BTreeSet;

use forebay_device::cuda::{Arch, compile, nvrtc_version};

use crate::{
    HostBuilder, HostCopy, HostIndex, HostPartitions, HostRows, IndexError, InterleavedRows,
    JoinTotals, ProbeKeys, Side, TableMethod, TableShape, Width, Workload, kernels,
};
use cases::{Case, answered, columns, over_gpus, refused, sifted};
use emulated::{Emulated, has_compiler};

/// Returns the rows of a generated side.
fn side_of(workload: &Workload, side: Side) -> Vec<(u128, u64)> {
    let rows = (0..workload.rows(side)).map(|row| workload.row(side, row));
    rows.map(|(number, payload)| (workload.key(number), payload))
        .collect()
}

/// Joins both sides of a case on the host.
fn on_host(case: &Case, threads: usize) -> Result<JoinTotals, IndexError> {
    let width = case.shape.width();
    let (build, probe) = (columns(&case.build, width), columns(&case.probe, width));
    let rows = |(keys, payloads): &(Vec<u8>, Vec<u8>)| -> Result<JoinTotals, IndexError> {
        let build = HostRows {
            keys: &build.0,
            payloads: &build.1,
        };
        let index = HostIndex::new(case.shape).build(build, threads)?;
        assert_eq!(index.rows(), case.build.len() as u64);
        Ok(index.probe(HostRows { keys, payloads }, threads))
    };
    rows(&probe)
}

/// Joins both sides of a case on the host, a few rows at a time. Two threads insert. A table with linear probing is
/// also probed in a copy.
fn by_morsels(case: &Case) -> Result<JoinTotals, IndexError> {
    const ROWS: usize = 7;
    let width = case.shape.width();
    let (key_bytes, bytes) = (width.key_bytes() as usize, width.payload_bytes() as usize);
    let (build, probe) = (columns(&case.build, width), columns(&case.probe, width));
    let morsels = |(keys, payloads): &(Vec<u8>, Vec<u8>)| -> Vec<(Vec<u8>, Vec<u8>)> {
        let both = keys.chunks(ROWS * key_bytes);
        let both = both.zip(payloads.chunks(ROWS * bytes));
        both.map(|(keys, payloads)| (keys.to_vec(), payloads.to_vec()))
            .collect()
    };
    let (build, probe) = (morsels(&build), morsels(&probe));
    let builder = HostBuilder::new(case.shape, 2);
    let (first, second) = build.split_at(build.len() / 2);
    let insert = |some: &[(Vec<u8>, Vec<u8>)]| {
        some.iter()
            .try_for_each(|(keys, payloads)| builder.insert(HostRows { keys, payloads }))
    };
    let inserted = std::thread::scope(|scope| {
        let other = scope.spawn(|| insert(second));
        [insert(first), other.join().expect("no panic")]
    });
    for result in inserted {
        result?;
    }
    let index = builder.finish()?;
    let matches = |probe_here: &dyn Fn(HostRows<'_>) -> JoinTotals| {
        let mut totals = JoinTotals::default();
        for (keys, payloads) in &probe {
            totals.add(probe_here(HostRows { keys, payloads }));
        }
        totals
    };
    let totals = matches(&|rows| index.probe_here(rows));
    if case.shape.method() == TableMethod::LinearProbing {
        let copy = HostCopy::of_host(&index);
        assert_eq!(matches(&|rows| copy.probe_here(rows)), totals);
    }
    Ok(totals)
}

/// Joins both sides of a case by partitions on the host.
fn by_partitions(case: &Case, bits: u32, threads: usize) -> Result<JoinTotals, IndexError> {
    let width = case.shape.width();
    let [build, probe] = [&case.build, &case.probe].map(|side| {
        let (keys, payloads) = columns(side, width);
        let rows = HostRows {
            keys: &keys,
            payloads: &payloads,
        };
        HostPartitions::of(rows, width, bits, threads)
    });
    build.join(&probe, threads)
}

/// Checks an engine on all cases.
fn check(join: impl Fn(&Case) -> Result<JoinTotals, IndexError>) {
    for case in answered() {
        let found = join(&case).unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(found, case.answer(), "{}", case.name);
    }
    for (case, part) in refused() {
        let error = join(&case).expect_err(&case.name).to_string();
        assert!(error.contains(part), "{}: {error}", case.name);
    }
}

#[test]
fn the_host_engine_agrees_with_the_model() {
    for threads in [1, 2, 7] {
        check(|case| on_host(case, threads));
    }
}

#[test]
fn tables_on_the_host_that_take_rows_in_morsels_agree_with_the_model() {
    check(by_morsels);
}

#[test]
fn a_table_without_room_for_all_rows_is_not_finished() {
    let shape = TableShape::with_slots(TableMethod::LinearProbing, Width::Eight, 32);
    let builder = HostBuilder::new(shape, 1);
    let zeros = vec![0; 33 * 8];
    let rows = HostRows {
        keys: &zeros,
        payloads: &zeros,
    };
    let error = builder.insert(rows).expect_err("33 rows");
    assert!(matches!(error, IndexError::TooManyRows { .. }), "{error}");
    let error = builder.finish().expect_err("33 rows");
    let has_rows = matches!(
        error,
        IndexError::TooManyRows {
            rows: 33,
            slots: 32
        }
    );
    assert!(has_rows, "{error}");
}

#[test]
fn partitions_on_the_host_agree_with_the_model() {
    for (bits, threads) in [(0, 1), (1, 7), (5, 2), (10, 3)] {
        for case in answered() {
            let found = by_partitions(&case, bits, threads);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert_eq!(found, case.answer(), "{} in 2^{bits} partitions", case.name);
        }
        for (case, part) in refused() {
            if case.build.len() > 1000 {
                let error = by_partitions(&case, bits, threads).expect_err(&case.name);
                assert!(error.to_string().contains(part), "{}: {error}", case.name);
            }
        }
    }
}

/// More rows than a run has, most of them in one partition, which all threads join.
#[test]
fn large_sides_are_joined_by_several_runs_and_a_heavy_partition_by_all_threads() {
    let workload = Workload {
        width: Width::Four,
        build_rows: 300_000,
        probe_rows: 700_000,
        probe_keys: ProbeKeys::Uniform,
    };
    for width in [Width::EightFour, Width::Composite] {
        let workload = Workload { width, ..workload };
        let case = Case {
            name: format!("several runs, {width:?}"),
            shape: TableShape::linear_probing(width, 300_000),
            build: side_of(&workload, Side::Build),
            probe: side_of(&workload, Side::Probe),
        };
        let found = by_partitions(&case, 3, 2).expect("a join");
        assert_eq!(found, workload.answer(2), "{}", case.name);
    }
    let mut case = Case {
        name: "several runs".to_owned(),
        shape: TableShape::bucketed(Width::Four, 300_000),
        build: side_of(&workload, Side::Build),
        probe: side_of(&workload, Side::Probe),
    };
    let bits = HostPartitions::bits_for(Width::Four, 300_000);
    assert_eq!(bits, 2);
    let found = by_partitions(&case, bits, 2).expect("a join");
    assert_eq!(found, workload.answer(2));
    for row in &mut case.probe[1000..] {
        row.0 = 77;
    }
    for bits in [bits, 4] {
        let found = by_partitions(&case, bits, 3).expect("a join");
        assert_eq!(found, case.answer(), "2^{bits} partitions");
    }
}

#[test]
fn kernels_emulated_on_the_cpu_agree_with_the_model() {
    if !has_compiler() {
        return;
    }
    let emulated = Emulated::shared();
    check(|case| emulated.join(case, (0, 1, None), 3));
    for case in answered().iter().step_by(3) {
        let found = emulated.join(case, (8, 1, None), 1);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        assert_eq!(found, case.answer(), "{} by single values", case.name);
    }
}

/// With own rows, each GPU reads all rows and works on its own: all, none, or some of those that a warp reads.
/// Without, one GPU works on all rows.
#[test]
fn kernels_of_interleaved_tables_emulated_on_the_cpu_agree_with_the_model() {
    if !has_compiler() {
        return;
    }
    let emulated = Emulated::shared();
    let is_by_slots =
        |case: &Case| case.shape.method() == TableMethod::LinearProbing && case.is_uniform();
    let cases = answered().into_iter().filter(is_by_slots);
    for (index, case) in cases.chain(over_gpus()).enumerate() {
        let (gpus, blocks) = ([2, 4][index % 2], [1, 2, 3][index % 3]);
        // At this offset, no row is in a vector.
        let offset = match index % 5 {
            0 => case.shape.width().payload_bytes() as usize,
            _ => 0,
        };
        for (gpus, rows) in [(gpus, InterleavedRows::Own), (1, InterleavedRows::All)] {
            let found = emulated.join(&case, (offset, gpus, Some(rows)), blocks);
            let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.name));
            assert_eq!(found, case.answer(), "{} on {gpus} GPUs", case.name);
        }
    }
    let is_long = |case: &Case| is_by_slots(case) && case.build.len() > 1000;
    for (case, part) in refused().into_iter().filter(|(case, _)| is_long(case)) {
        for (gpus, rows) in [(2, InterleavedRows::Own), (1, InterleavedRows::All)] {
            let error = emulated.join(&case, (0, gpus, Some(rows)), 2);
            let error = error.expect_err(&case.name).to_string();
            assert!(error.contains(part), "{}: {error}", case.name);
        }
    }
}

/// Returns the bytes of this number of slots of a table with linear probing.
fn linear_bytes(case: &Case, slots: u64) -> u64 {
    TableShape::with_slots(TableMethod::LinearProbing, case.shape.width(), slots).slot_bytes()
}

/// Several runs, of which the last is shorter; also with tables that have no room for all runs of a partition.
#[test]
fn kernels_of_partitions_emulated_on_the_cpu_agree_with_the_model() {
    if !has_compiler() {
        return;
    }
    let emulated = Emulated::shared();
    let is_by_hash = |case: &Case| case.shape.method() == TableMethod::LinearProbing;
    let cases = answered().into_iter().filter(is_by_hash);
    let (uniform, others): (Vec<Case>, Vec<Case>) = cases.partition(Case::is_uniform);
    let cases = uniform.into_iter().chain(others.into_iter().step_by(3));
    for (index, case) in cases.enumerate() {
        let (run_rows, bits, slots) = [(100, 2, 256), (1000, 0, 2048), (33, 3, 128)][index % 3];
        let bytes = linear_bytes(&case, slots);
        let found = emulated.join_partitions(&case, (run_rows, bits), (bytes, None), 3);
        let found = found.unwrap_or_else(|error| panic!("{}: {error}", case.name));
        let expected = (case.answer(), 0);
        assert_eq!(found, expected, "{} in 2^{bits} partitions", case.name);
    }
}

/// Rows of heavy keys are in no partition, nor are rows without a match, or most of these.
#[test]
fn kernels_of_sieves_emulated_on_the_cpu_agree_with_the_model() {
    if !has_compiler() {
        return;
    }
    let emulated = Emulated::shared();
    for (index, case) in sifted().iter().enumerate() {
        let (run_rows, bits, slots) = [(1000, 2, 2048), (333, 0, 2048), (500, 1, 1024)][index % 3];
        let bytes = linear_bytes(case, slots);
        let keys: BTreeSet<u128> = case.build.iter().map(|row| row.0).collect();
        let unmatched = case.probe.iter().filter(|row| !keys.contains(&row.0));
        let unmatched = unmatched.count() as u64;
        for asked in [(&[5, 9][..], index % 2 == 0), (&[], true)] {
            if asked.0.is_empty() && case.build.len() > 4096 {
                // A table has no room for as many rows of a key.
                continue;
            }
            if !asked.0.is_empty() && !case.shape.width().is_single() {
                // Composite keys are not kept apart.
                continue;
            }
            let name = format!("{}, {asked:?}", case.name);
            let found = emulated.join_partitions(case, (run_rows, bits), (bytes, Some(asked)), 3);
            let (totals, filtered) = found.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(totals, case.answer(), "{name}");
            let expected = if asked.1 {
                unmatched * 4 / 5..unmatched + 1
            } else {
                0..1
            };
            assert!(
                expected.contains(&filtered),
                "{name}: {filtered} of {unmatched}"
            );
        }
    }
}

#[test]
fn the_emulated_kernel_generates_what_the_host_does() {
    if !has_compiler() {
        return;
    }
    let emulated = Emulated::shared();
    let matching = |thousandths| ProbeKeys::Matching { thousandths };
    for (width, build_rows, probe_keys) in [
        (Width::Four, 1, ProbeKeys::Uniform),
        (Width::Eight, 33, ProbeKeys::Uniform),
        (Width::Four, 1000, matching(0)),
        (Width::Four, 1000, matching(300)),
        (Width::Eight, 1000, matching(1000)),
        (Width::FourEight, 1000, ProbeKeys::Uniform),
        (Width::EightFour, 33, matching(300)),
        (Width::Composite, 1000, matching(300)),
    ] {
        let workload = Workload {
            width,
            build_rows,
            probe_rows: 500,
            probe_keys,
        };
        for side in [Side::Build, Side::Probe] {
            let expected = columns(&side_of(&workload, side), width);
            assert_eq!(
                emulated.generate(&workload, side),
                expected,
                "{workload:?} {side:?}"
            );
        }
    }
}

#[test]
fn the_answer_of_a_workload_is_that_of_the_host_engine() {
    for (width, probe_keys) in [
        (Width::Four, ProbeKeys::Uniform),
        (Width::Eight, ProbeKeys::Uniform),
        (Width::Four, ProbeKeys::Matching { thousandths: 400 }),
        (Width::Eight, ProbeKeys::Zipf { hundredths: 125 }),
        (Width::FourEight, ProbeKeys::Uniform),
        (Width::EightFour, ProbeKeys::Uniform),
        (Width::Composite, ProbeKeys::Matching { thousandths: 400 }),
    ] {
        let workload = Workload {
            width,
            build_rows: 1000,
            probe_rows: 5000,
            probe_keys,
        };
        let case = Case {
            name: format!("{workload:?}"),
            shape: match width.is_single() {
                true => TableShape::perfect(width, 0..workload.build_rows),
                false => TableShape::linear_probing(width, workload.build_rows),
            },
            build: side_of(&workload, Side::Build),
            probe: side_of(&workload, Side::Probe),
        };
        assert_eq!(on_host(&case, 2).expect("a table"), workload.answer(3));
    }
}

#[test]
#[should_panic(expected = "tables of buckets do not support composite keys")]
fn tables_of_buckets_refuse_composite_keys() {
    let _ = TableShape::bucketed(Width::Composite, 1);
}

/// Rows of two widths are as wide in slots and buckets as the wider number, and in a table by key as their payloads.
#[test]
fn slots_have_the_bytes_of_their_rows() {
    let bytes = |shape: TableShape| shape.slot_bytes() / shape.slots();
    for (width, perfect, by_hash) in [
        (Width::Four, 4, 8),
        (Width::Eight, 8, 16),
        (Width::FourEight, 8, 16),
        (Width::EightFour, 4, 16),
    ] {
        assert_eq!(bytes(TableShape::perfect(width, 0..100)), perfect);
        assert_eq!(bytes(TableShape::linear_probing(width, 100)), by_hash);
        assert_eq!(bytes(TableShape::bucketed(width, 100)), by_hash);
    }
    let composite = TableShape::linear_probing(Width::Composite, 100);
    assert_eq!(bytes(composite), 32);
}

#[test]
fn kernels_compile_for_every_architecture_and_do_not_spill() {
    if let Err(error) = nvrtc_version() {
        let required = std::env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no NVRTC");
        return;
    }
    for major in [8, 9, 10] {
        let arch = Arch { major, minor: 0 };
        for spec in kernels() {
            let cubin = compile(&spec, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(cubin.entries.len(), spec.entries.len());
            for kernel in &cubin.entries {
                println!("{arch} {kernel:?}");
                assert_eq!(kernel.local_bytes, 0, "{} for {arch}", kernel.name);
            }
        }
    }
}
