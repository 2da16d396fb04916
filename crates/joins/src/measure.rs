//! Measures the rates from which [`predict`](crate::predict) predicts those of joins.

use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::Device;
use forebay_device::cuda::{Cuda, Stream};
use forebay_hash_index::{
    HostIndex, HostPartitions, HostRows, IndexBuilder, IndexError, ProbeKeys, Side, TableShape,
    Width, Workload,
};

use crate::predict::{PartitionRates, TableRates, per_s};
use crate::{JoinError, on_gpu, timed};

/// Rows of a measured table in device memory. Its 512 MiB are some times the L2 cache.
pub const GPU_ROWS: u64 = 1 << 24;
/// Rows of a measured table in host memory that a GPU uses. Its 2 GiB are about a third of the predicted table's,
/// because accesses over the bus are slower the more memory they touch.
pub const GPU_HOST_ROWS: u64 = 1 << 26;
/// Rows of a measured table on the CPU. Its 256 MiB are more than most caches have; twice as many rows probe it.
pub const CPU_ROWS: u64 = 1 << 23;

/// Times that a table in device memory is measured: an idle GPU begins at a low clock.
const DEVICE_ROUNDS: usize = 4;

/// The memory of the table that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableHome {
    /// Device memory.
    Device,
    /// Host memory, which kernels access over the bus.
    Host,
}

/// Measures a table with linear probing of `rows` rows with 8-byte keys and payloads. As many rows in device memory are
/// inserted, and as many probe it. Blocks; must not be called on an async worker thread or on a device's thread.
///
/// [`GPU_ROWS`] take 768 MiB of device memory at most. [`GPU_HOST_ROWS`] take 1 GiB of it and 2 GiB of pinned host
/// memory. All memory is free afterwards.
///
/// # Errors
/// If memory is too small, the measurement is stopped, or the device is not a GPU or is lost.
pub fn gpu_table(
    device: &Device,
    home: TableHome,
    rows: u64,
    stop: &Stop,
) -> Result<TableRates, JoinError> {
    let rounds = match home {
        TableHome::Device => DEVICE_ROUNDS,
        TableHome::Host => 1,
    };
    stop.check()?;
    // Kernels are compiled in the first run.
    gpu_table_once(device, home, (rows / 16).max(1))?;
    stop.check()?;
    let mut fastest = gpu_table_once(device, home, rows)?;
    for _ in 1..rounds {
        stop.check()?;
        let rates = gpu_table_once(device, home, rows)?;
        fastest = TableRates {
            inserts_per_s: fastest.inserts_per_s.max(rates.inserts_per_s),
            probes_per_s: fastest.probes_per_s.max(rates.probes_per_s),
        };
    }
    Ok(fastest)
}

fn gpu_table_once(device: &Device, home: TableHome, rows: u64) -> Result<TableRates, JoinError> {
    let workload = workload(rows, rows);
    let shape = TableShape::linear_probing(workload.width, rows);
    on_gpu(device, move |cuda| {
        let slots = match home {
            TableHome::Device => cuda.buffer::<u8>(shape.slot_bytes() as usize)?.all(),
            TableHome::Host => cuda.hybrid_memory(shape.slot_bytes(), 0)?.all(),
        };
        let side = timed::generate(cuda, &workload, (Side::Build, 0..rows))?;
        let begin =
            |cuda: &Cuda, stream: &Stream| IndexBuilder::in_memory(cuda, shape, slots, stream);
        let (index, build) = timed::build(cuda, begin, &side)?;
        drop(side);
        let side = timed::generate(cuda, &workload, (Side::Probe, 0..rows))?;
        let (totals, probe) = timed::probe(cuda, &index, &side)?;
        assert_eq!(totals.count, rows, "each row has a match");
        Ok(TableRates {
            inserts_per_s: per_s(rows, build),
            probes_per_s: per_s(rows, probe),
        })
    })
}

/// Measures joins of `rows` by twice as many rows of 8-byte keys and payloads in host memory, on all cores: by one
/// table of buckets, and in partitions. Blocks.
///
/// With [`CPU_ROWS`], this takes about 850 MiB of host memory; the process ends if the system does not have it. All
/// memory is free afterwards.
///
/// # Errors
/// If the measurement is stopped.
pub fn cpu(rows: u64, stop: &Stop) -> Result<(TableRates, PartitionRates), JoinError> {
    let threads = forebay_device::cores();
    let workload = workload(rows, 2 * rows);
    let [build, probe] = [Side::Build, Side::Probe].map(|side| columns(&workload, side, threads));
    let sides = [rows_of(&build), rows_of(&probe)];
    stop.check()?;
    let table = cpu_table(&workload, sides, threads).map_err(JoinError::Index)?;
    stop.check()?;
    let partitions = cpu_partitions(&workload, sides, threads).map_err(JoinError::Index)?;
    Ok((table, partitions))
}

fn cpu_table(
    workload: &Workload,
    [build, probe]: [HostRows<'_>; 2],
    threads: usize,
) -> Result<TableRates, IndexError> {
    let index = HostIndex::new(TableShape::bucketed(workload.width, workload.build_rows));
    let began = Instant::now();
    let index = index.build(build, threads)?;
    let built = began.elapsed();
    let began = Instant::now();
    let totals = index.probe(probe, threads);
    let probed = began.elapsed();
    assert_eq!(totals.count, workload.probe_rows, "each row has a match");
    Ok(TableRates {
        inserts_per_s: per_s(workload.build_rows, built),
        probes_per_s: per_s(workload.probe_rows, probed),
    })
}

fn cpu_partitions(
    workload: &Workload,
    sides: [HostRows<'_>; 2],
    threads: usize,
) -> Result<PartitionRates, IndexError> {
    let (width, bits) = (
        workload.width,
        HostPartitions::bits_for(workload.width, workload.build_rows),
    );
    let divide = |rows| HostPartitions::of(rows, width, bits, threads);
    let began = Instant::now();
    let [build, probe] = sides.map(divide);
    let divided = began.elapsed();
    // A join without probe rows only inserts.
    let no_rows = divide(HostRows {
        keys: &[],
        payloads: &[],
    });
    let began = Instant::now();
    build.join(&no_rows, threads)?;
    let inserted = began.elapsed();
    let began = Instant::now();
    let totals = build.join(&probe, threads)?;
    let probed = began.elapsed().saturating_sub(inserted);
    assert_eq!(totals.count, workload.probe_rows, "each row has a match");
    Ok(PartitionRates {
        divided_per_s: per_s(workload.build_rows + workload.probe_rows, divided),
        tables: TableRates {
            inserts_per_s: per_s(workload.build_rows, inserted),
            probes_per_s: per_s(workload.probe_rows, probed),
        },
    })
}

fn workload(build_rows: u64, probe_rows: u64) -> Workload {
    Workload {
        width: Width::Eight,
        build_rows,
        probe_rows,
        probe_keys: ProbeKeys::Uniform,
    }
}

/// Generates the keys and payloads of a side in host memory.
fn columns(workload: &Workload, side: Side, threads: usize) -> [Vec<u8>; 2] {
    let bytes = (workload.rows(side) * workload.width.payload_bytes()) as usize;
    let (mut keys, mut payloads) = (vec![0; bytes], vec![0; bytes]);
    workload.generate(side, (&mut keys, &mut payloads), threads);
    [keys, payloads]
}

fn rows_of([keys, payloads]: &[Vec<u8>; 2]) -> HostRows<'_> {
    HostRows { keys, payloads }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn all_rates_of_the_cpu_are_measured_unless_it_is_stopped() {
        let (table, partitions) = cpu(1 << 12, &Stop::never()).expect("nothing stops it");
        for rate in [
            table.inserts_per_s,
            table.probes_per_s,
            partitions.divided_per_s,
            partitions.tables.inserts_per_s,
            partitions.tables.probes_per_s,
        ] {
            assert!(rate.is_finite() && rate > 0.0, "{table:?}, {partitions:?}");
        }
        let stop = Stop::never();
        stop.cancelled.store(true, Ordering::Relaxed);
        let stopped = cpu(1 << 12, &stop);
        assert!(matches!(stopped, Err(JoinError::Stopped(_))), "{stopped:?}");
    }
}
