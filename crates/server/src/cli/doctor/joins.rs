//! The section of `forebay doctor --measure` on joins: the rates that this machine's measured rates predict.

use std::path::Path;

use anyhow::{Result, ensure};
use bson::doc;
use forebay_cancel::Stop as Token;
use forebay_device::{Device, DeviceKind};
use forebay_joins::measure::{CPU_ROWS, GPU_HOST_ROWS, GPU_ROWS, TableHome, cpu, gpu_table};
use forebay_joins::predict::{
    OnDisk, WORKLOAD_A, in_partitions, in_partitions_on_disk, through_ring, with_hybrid_table,
};
use forebay_movement::method::TransferMethod;
use forebay_movement::pick::{Measurements, Way};
use forebay_movement::storage::StoragePath;

use super::meminfo;
use crate::cli::table;
use forebay_terminal::{OutputError, print_line};

/// Free host memory that measurements need with a GPU and without one, in KiB.
const GPU_FREE_KIB_MIN: u64 = 3 << 20;
const CPU_FREE_KIB_MIN: u64 = 1 << 20;
/// Fraction of the predicted hybrid table that is in device memory: the table is 1.5 times as large as this part.
const DEVICE_SHARE: f64 = 1.0 / 1.5;
/// Fraction of the bytes of both sides that spills in the predicted joins in partitions: all.
const SPILLED_SHARE: f64 = 1.0;

/// A join, and its rate in tuples per second or why that is not predicted.
type Prediction = (&'static str, Result<f64, String>);

/// Measures what predictions need, in a few seconds, and prints the predicted rates of joins; on a host device,
/// those of the CPU. What cannot be measured is printed with the reason. `cached` is why the measured reads of a file
/// are those of the page cache; `None` if they are those of the disk.
///
/// # Errors
/// If the report cannot be printed.
pub fn print_predictions(
    device: &Device,
    measurements: &Measurements,
    cached: Option<&str>,
    stop: &Token,
) -> Result<(), OutputError> {
    let predicted = match device.kind() {
        DeviceKind::Cuda => of_gpu(device, measurements, cached, stop),
        _ => of_cpu(stop),
    };
    match predicted {
        Ok(predictions) => print_line(format_args!(
            "\njoins of 2^27 by 2^31 rows with 8-byte keys and payloads, predicted; both sides count\n\n{}",
            rates(&predictions)
        )),
        Err(why) => print_line(format_args!("joins: not predicted: {why:#}")),
    }
}

/// Predicts the joins of a GPU.
///
/// # Errors
/// If no table can be measured in device memory.
fn of_gpu(
    device: &Device,
    measurements: &Measurements,
    cached: Option<&str>,
    stop: &Token,
) -> Result<Vec<Prediction>> {
    let table = gpu_table(device, TableHome::Device, GPU_ROWS, stop)?;
    let bus = bus_bytes_per_s(measurements);
    let host = check_free_memory(GPU_FREE_KIB_MIN)
        .and_then(|()| Ok(gpu_table(device, TableHome::Host, GPU_HOST_ROWS, stop)?));
    let hybrid = host.map(|host| with_hybrid_table([&table, &host], DEVICE_SHARE, &WORKLOAD_A));
    let ring = bus
        .clone()
        .map(|bus| through_ring(&table, bus, &WORKLOAD_A));
    let to_disk = bus.clone().and_then(|bus| {
        let disk = OnDisk {
            share: SPILLED_SHARE,
            bytes_per_s: disk_bytes_per_s(measurements, cached)?,
        };
        let spilled = SPILLED_SHARE;
        Ok(in_partitions_on_disk(
            &table,
            bus,
            spilled,
            disk,
            &WORKLOAD_A,
        ))
    });
    let to_host = bus.map(|bus| in_partitions(&table, bus, SPILLED_SHARE, &WORKLOAD_A));
    Ok(vec![
        ("all in device memory", Ok(table.join(&WORKLOAD_A))),
        ("probe side in pinned host memory, by the ring", ring),
        (
            "a third of the table in host memory",
            hybrid.map_err(|error| error.to_string()),
        ),
        (
            "both sides in pinned host memory, in partitions that spill there",
            to_host,
        ),
        (
            "the same, but to a disk that writes as fast as it reads",
            to_disk,
        ),
    ])
}

/// Predicts the joins of the CPU.
///
/// # Errors
/// If memory is too small, or `stop` ends the measurement.
fn of_cpu(stop: &Token) -> Result<Vec<Prediction>> {
    check_free_memory(CPU_FREE_KIB_MIN)?;
    let (table, partitions) = cpu(CPU_ROWS, stop)?;
    Ok(vec![
        ("on the CPU, one table", Ok(table.join(&WORKLOAD_A))),
        (
            "on the CPU, in partitions",
            Ok(partitions.join(&WORKLOAD_A)),
        ),
    ])
}

/// Checks that the host has this much free memory.
///
/// # Errors
/// If it has less.
fn check_free_memory(kib_min: u64) -> Result<()> {
    let free_kib = meminfo(Path::new("/"), "MemAvailable:").unwrap_or(u64::MAX);
    ensure!(
        free_kib >= kib_min,
        "{} MiB of host memory are free, and the measurement needs {}",
        free_kib >> 10,
        kib_min >> 10
    );
    Ok(())
}

/// Returns the measured rate of copies from pinned memory.
fn bus_bytes_per_s(measurements: &Measurements) -> Result<f64, String> {
    fastest(measurements, Way::Method(TransferMethod::PinnedCopy))
}

/// Returns the measured rate at which threads read a file into pinned memory, as a join in partitions does.
fn disk_bytes_per_s(measurements: &Measurements, cached: Option<&str>) -> Result<f64, String> {
    match cached {
        Some(why) => Err(format!(
            "the file was read through the page cache, not from the disk: {why}"
        )),
        None => fastest(measurements, Way::Path(StoragePath::StagedThreads)),
    }
}

/// Returns the highest measured rate of a way in bytes per second.
fn fastest(measurements: &Measurements, way: Way) -> Result<f64, String> {
    let own = measurements.rates.iter().filter(|rate| rate.way == way);
    let fastest = own.map(|rate| rate.bytes_per_s).reduce(f64::max);
    fastest.ok_or_else(|| format!("{way} was not measured"))
}

fn rates(predictions: &[Prediction]) -> String {
    let columns = [("PREDICTED JOIN", "join"), ("G TUPLES/S", "rate")];
    let row = |(join, rate): &Prediction| {
        let rate = match rate {
            Ok(rate) => two_digits(rate / 1e9),
            Err(why) => format!("not predicted: {why}"),
        };
        doc! { "join": *join, "rate": rate }
    };
    let rows: Vec<bson::Document> = predictions.iter().map(row).collect();
    table::of(&columns, &rows)
}

/// Formats a number with two significant digits, or all that it has before the point. Predictions are no more exact.
fn two_digits(number: f64) -> String {
    let decimals = 1.0 - number.max(1e-3).log10().floor();
    format!("{number:.*}", decimals.clamp(0.0, 4.0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_movement::Tier;
    use forebay_movement::pick::Rate;

    #[test]
    fn a_rate_that_is_missing_has_its_reason() {
        let predictions = [
            ("fast", Ok(123.4e9)),
            ("slow", Ok(0.0336e9)),
            ("none", Err("there is no bus".to_owned())),
        ];
        let text = rates(&predictions);
        let lines: Vec<&str> = text.lines().skip(1).map(str::trim_end).collect();
        let expected = [
            "fast            123",
            "slow            0.034",
            "none            not predicted: there is no bus",
        ];
        assert_eq!(lines, expected);
        assert_eq!([3.46, 20.1].map(two_digits), ["3.5", "20"]);
    }

    #[test]
    fn the_bus_is_as_fast_as_the_fastest_copy_of_pinned_memory() {
        let rate = |method, bytes_per_s| Rate {
            source: Tier::Pinned,
            way: Way::Method(method),
            chunk_bytes: 1 << 20,
            bytes_per_s,
            cpu_s_per_gb: None,
        };
        let bus = |rates: Vec<Rate>| {
            bus_bytes_per_s(&Measurements {
                rates,
                ..Measurements::default()
            })
        };
        let missing = Err("pinned-copy was not measured".to_owned());
        assert_eq!(bus(Vec::new()), missing);
        let measured = vec![
            rate(TransferMethod::PinnedCopy, 30e9),
            rate(TransferMethod::PinnedCopy, 54e9),
            rate(TransferMethod::ZeroCopy, 60e9),
        ];
        assert_eq!(bus(measured), Ok(54e9));
    }

    #[test]
    fn the_disk_is_as_fast_as_threads_read_past_the_page_cache() {
        let rate = |path, bytes_per_s| Rate {
            source: Tier::File,
            way: Way::Path(path),
            chunk_bytes: 4 << 20,
            bytes_per_s,
            cpu_s_per_gb: None,
        };
        let measurements = Measurements {
            rates: vec![
                rate(StoragePath::StagedUring, 1.9e9),
                rate(StoragePath::StagedThreads, 1.8e9),
            ],
            ..Measurements::default()
        };
        let disk = |cached| disk_bytes_per_s(&measurements, cached);
        assert_eq!(disk(None), Ok(1.8e9));
        let why = disk(Some("not supported")).expect_err("that is memory");
        assert!(why.ends_with("not from the disk: not supported"), "{why}");
        let missing = Err("staged-threads was not measured".to_owned());
        assert_eq!(disk_bytes_per_s(&Measurements::default(), None), missing);
    }
}
