//! Measurements at smoke size: they check what they read and move.

mod common;

use common::{gpu, gpus};
use forebay_movement::measure::{
    Pattern, Plan, Prepared, Reading, rate_methods, read_by_cpu, read_by_device, read_peer,
};
use forebay_movement::method::{Direction, StagedOptions, TransferMethod};
use forebay_movement::{MoveError, has_bulk};

/// Bytes of the pinned pool, enough for a staged copy.
const PINNED_BYTES: u64 = 64 << 20;

fn check(readings: &[Reading], patterns: impl Iterator<Item = Pattern>) {
    let measured: Vec<Pattern> = readings.iter().map(|reading| reading.pattern).collect();
    assert_eq!(measured, patterns.collect::<Vec<_>>());
    for reading in readings {
        assert_eq!(reading.times.len(), Plan::smoke().repeat);
        let rates = [
            reading.accesses_per_s(),
            reading.bytes_per_s(),
            reading.access_ns(),
        ];
        assert!(
            rates
                .iter()
                .flatten()
                .all(|rate| *rate > 0.0 && rate.is_finite())
        );
        println!("{reading:?}");
    }
}

fn all(
    readings: Result<impl Iterator<Item = Result<Reading, MoveError>>, MoveError>,
) -> Vec<Reading> {
    let readings = readings.and_then(Iterator::collect);
    readings.unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn the_processor_reads_its_memory() {
    let readings = all(Ok(read_by_cpu(Plan::smoke())));
    let patterns = Pattern::ALL.into_iter();
    check(
        &readings,
        patterns.filter(|pattern| *pattern != Pattern::SequentialBulk),
    );
}

#[test]
fn a_gpu_reads_its_own_and_the_hosts_memory() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let arch = device.details().expect("a GPU").arch;
    let has = |pattern: &Pattern| *pattern != Pattern::SequentialBulk || has_bulk(arch);
    for of_host in [false, true] {
        let readings = all(read_by_device(&device, of_host, Plan::smoke()));
        check(&readings, Pattern::ALL.into_iter().filter(has));
    }
    assert_eq!(device.memory_used_bytes(), 0);
}

#[test]
fn a_gpu_reads_the_memory_of_a_peer_or_says_that_it_cannot() {
    let Some((_devices, list)) = gpus(2, PINNED_BYTES) else {
        return;
    };
    let readings = read_peer(&list[0], &list[1], Plan::smoke());
    let readings = readings.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(readings.is_some(), list[0].reaches(&list[1]));
    assert!(readings.is_none_or(|readings| all(Ok(readings)).len() >= 7));
}

#[test]
fn every_method_has_a_rate_or_a_reason() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let rates = rate_methods(&device, 1 << 20).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(rates.len(), TransferMethod::ALL.len());
    for rate in rates {
        println!("{rate:?}");
        assert!(
            rate.bytes_per_s
                .is_ok_and(|both| both.iter().all(|rate| *rate > 0.0))
                || { rate.allocated_bytes_per_s == 0.0 }
        );
    }
}

#[test]
fn bytes_that_did_not_move_are_noticed() {
    let Some((_devices, device)) = gpu(PINNED_BYTES) else {
        return;
    };
    let device = &device;
    let mut prepared =
        Prepared::allocate(device, TransferMethod::PinnedCopy, 1 << 20).expect("1 MiB");
    let run = |prepared: &mut Prepared, direction| {
        let staged = StagedOptions::default();
        prepared
            .run(device, direction, 64 << 10, staged)
            .expect("the device works");
    };
    for direction in Direction::ALL {
        prepared
            .forget(device, direction)
            .expect("the device works");
        let error = prepared
            .verify(device, direction)
            .expect_err("nothing moved");
        assert!(matches!(error, MoveError::WrongSum { .. }), "{error}");
        run(&mut prepared, direction);
        prepared.verify(device, direction).expect("all bytes moved");
    }
}
