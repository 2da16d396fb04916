//! Predicts the rates of joins from a few measured rates.
//!
//! Each prediction is a pure function, whose result is tuples of both sides per second, as `forebay bench joins` counts
//! them.

use std::time::Duration;

use forebay_hash_index::{ProbeKeys, Width, Workload};

/// Workload A of *Pump Up the Volume* (Lutz et al., SIGMOD 2020, table 2).
pub const WORKLOAD_A: Workload = Workload {
    width: Width::Eight,
    build_rows: 1 << 27,
    probe_rows: 1 << 31,
    probe_keys: ProbeKeys::Uniform,
};

/// Rate of copies to a GPU while copies from it run too, as a fraction of their rate alone.
///
/// PERF: pinned copies between host and H100 on PCIe 5, November 28, 2026: 47 instead of 53 GB/s (decision 0052).
const BOTH_WAYS: f64 = 47.0 / 53.0;

/// Rates at which rows are inserted into a table and probe it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TableRates {
    /// Inserted rows per second; the time includes emptying the table.
    pub inserts_per_s: f64,
    /// Probing rows per second.
    pub probes_per_s: f64,
}

/// Rates of a join in partitions on the CPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PartitionRates {
    /// Rows of both sides per second that are copied into partitions.
    pub divided_per_s: f64,
    /// The rates of the tables of all partitions.
    pub tables: TableRates,
}

/// The part of a join in partitions that goes to disk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnDisk {
    /// Fraction of the bytes of both sides.
    pub share: f64,
    /// Bytes that the disk reads per second. It writes as many.
    pub bytes_per_s: f64,
}

impl TableRates {
    /// Returns the rate of a join by one table: the time is the rows of each side by their rate.
    pub fn join(&self, join: &Workload) -> f64 {
        rate(join, self.seconds(join))
    }

    fn seconds(&self, join: &Workload) -> f64 {
        join.build_rows as f64 / self.inserts_per_s + self.probe_s(join)
    }

    fn probe_s(&self, join: &Workload) -> f64 {
        join.probe_rows as f64 / self.probes_per_s
    }
}

impl PartitionRates {
    /// Returns the rate of a join in partitions on the CPU: one step after the other.
    pub fn join(&self, join: &Workload) -> f64 {
        let divide_s = tuples(join) / self.divided_per_s;
        rate(join, divide_s + self.tables.seconds(join))
    }
}

/// Returns the rate of a join whose probe side comes through the ring from pinned host memory. Copies and probes run at
/// the same time, so the slower of them decides.
///
/// # Sources
/// Decision 0043, `join-a-pinned/ring`.
pub fn through_ring(table: &TableRates, bus_bytes_per_s: f64, join: &Workload) -> f64 {
    let build_s = join.build_rows as f64 / table.inserts_per_s;
    let copy_s = join.probe_rows as f64 * row_bytes(join) / bus_bytes_per_s;
    rate(join, build_s + copy_s.max(table.probe_s(join)))
}

/// Returns the rate of a join whose table has the fraction `device_share` (h) in device memory and the rest in host
/// memory: 1/J = h/G + (1-h)/C, for the rates G and C of joins whose table is in one of both.
///
/// # Sources
/// Decision 0049, after Lutz et al. (SIGMOD 2020, section 5.2).
pub fn with_hybrid_table(
    [device, host]: [&TableRates; 2],
    device_share: f64,
    join: &Workload,
) -> f64 {
    1.0 / (device_share / device.join(join) + (1.0 - device_share) / host.join(join))
}

/// Returns the rate of a join of sides in pinned host memory, of whose bytes the fraction `spilled_share` spills. All
/// rows cross the bus in the first pass; what spills goes back meanwhile, and comes once more in the second pass. This
/// takes at least as long as inserts and probes of all rows do.
///
/// # Sources
/// Decision 0052, after Lutz et al. (SIGMOD 2022).
pub fn in_partitions(
    table: &TableRates,
    bus_bytes_per_s: f64,
    spilled_share: f64,
    join: &Workload,
) -> f64 {
    let passes_s = passes_s(table, bus_bytes_per_s, spilled_share, join);
    rate(join, passes_s.iter().sum())
}

/// Returns the rate of a join as [`in_partitions`] does, if some of what spills goes to disk. The disk writes it in the
/// first pass and reads it in the second. The GPU works meanwhile, so the slower of both decides in each pass.
///
/// # Sources
/// Decision 0060.
pub fn in_partitions_on_disk(
    table: &TableRates,
    bus_bytes_per_s: f64,
    spilled_share: f64,
    disk: OnDisk,
    join: &Workload,
) -> f64 {
    let disk_s = tuples(join) * row_bytes(join) * disk.share / disk.bytes_per_s;
    let passes_s = passes_s(table, bus_bytes_per_s, spilled_share, join);
    rate(join, passes_s.iter().map(|pass_s| pass_s.max(disk_s)).sum())
}

/// Returns the seconds of both passes of a join in partitions.
fn passes_s(
    table: &TableRates,
    bus_bytes_per_s: f64,
    spilled_share: f64,
    join: &Workload,
) -> [f64; 2] {
    let all_s = tuples(join) * row_bytes(join) / bus_bytes_per_s;
    let spilled_s = all_s * spilled_share;
    let first_s = all_s - spilled_s + spilled_s / BOTH_WAYS;
    [first_s, spilled_s.max(table.seconds(join))]
}

/// Returns the number of rows of both sides.
fn tuples(join: &Workload) -> f64 {
    (join.build_rows + join.probe_rows) as f64
}

/// Returns the bytes of a key and a payload.
fn row_bytes(join: &Workload) -> f64 {
    join.width.row_bytes() as f64
}

fn rate(join: &Workload, seconds: f64) -> f64 {
    tuples(join) / seconds
}

/// Returns rows per second.
pub(crate) fn per_s(rows: u64, took: Duration) -> f64 {
    rows as f64 / took.as_secs_f64().max(1e-9)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::*;

    /// An H100 with a table of 2^24 rows, which are those that the doctor measures: `join-a-device/linear-probing` at
    /// scale 0.125 in `2026-11-28-h100-joins.jsonl`.
    const H100: TableRates = TableRates {
        inserts_per_s: (1 << 24) as f64 / 0.002_578_3,
        probes_per_s: 24.503e9,
    };

    fn workload(build_rows: u64, probe_rows: u64) -> Workload {
        Workload {
            build_rows,
            probe_rows,
            ..WORKLOAD_A
        }
    }

    /// Asserts that a prediction by a recorded rate, in G tuples/s, is within limits.
    fn assert_within(predicted: f64, recorded: f64, limits: Range<f64>) {
        let of_recorded = predicted / 1e9 / recorded;
        assert!(
            limits.contains(&of_recorded),
            "{predicted:e} predicted, {recorded} G/s recorded"
        );
    }

    /// `join-a-device/linear-probing` at scale 1, whose table is eight times as large (`2026-11-27-h100-joins.jsonl`
    /// and `2026-11-28-h100-joins-2.jsonl`).
    #[test]
    fn a_table_in_device_memory_is_predicted_within_six_percent() {
        for recorded in [20.116, 20.034] {
            assert_within(H100.join(&WORKLOAD_A), recorded, 1.0..1.06);
        }
    }

    /// `join-a-pinned/ring/linear-probing`, with the rate of `join-a-pinned/limit` on the same host: three hosts at
    /// scale 1, and one at 0.125.
    #[test]
    fn a_probe_side_through_the_ring_is_predicted_within_six_percent() {
        for (gb_per_s, recorded) in [(51.602, 3.1422), (52.597, 3.3233), (53.890, 3.4389)] {
            let predicted = through_ring(&H100, gb_per_s * 1e9, &WORKLOAD_A);
            assert_within(predicted, recorded, 1.0..1.06);
        }
        let small = workload(1 << 24, 1 << 28);
        assert_within(through_ring(&H100, 53.095e9, &small), 3.4428, 0.98..1.0);
        // A bus that is faster than the probes does not matter.
        let predicted = through_ring(&H100, 1e12, &WORKLOAD_A);
        assert!((predicted / H100.join(&WORKLOAD_A) - 1.0).abs() < 1e-9);
    }

    /// `join-hybrid/linear-probing` in `2026-11-28-h100-joins.jsonl`: 2^28 by 2^26 rows, the table is 8 GiB. Its times
    /// of builds and probes with all of the table on the device and with none. With little of it in host memory the
    /// model is wrong by a factor of two.
    #[test]
    fn a_hybrid_table_is_predicted_within_a_quarter_up_to_three_quarters_on_the_device() {
        let join = workload(1 << 28, 1 << 26);
        let rates = |build_s: f64, probe_s: f64| TableRates {
            inserts_per_s: join.build_rows as f64 / build_s,
            probes_per_s: join.probe_rows as f64 / probe_s,
        };
        let (device, host) = (rates(0.041_939, 0.003_015_7), rates(10.101, 1.9585));
        for (share, recorded, limits) in [
            (1.0, 7.4614, 0.99..1.01),
            (0.900_39, 0.547_86, 0.45..0.55),
            (0.75, 0.142_21, 0.75..1.0),
            (0.667_97, 0.109_26, 0.75..1.0),
            (0.5, 0.064_003, 0.75..1.0),
            (0.0, 0.027_825, 0.99..1.01),
        ] {
            let predicted = with_hybrid_table([&device, &host], share, &join);
            assert_within(predicted, recorded, limits);
        }
    }

    /// `join-triton/partitioned` in `2026-11-28-h100-spilled-joins.jsonl`, chunks of 32 MiB: of 32.8 GB, 26.03 spill.
    /// The second rate is that of another host.
    #[test]
    fn partitions_that_spill_are_predicted_within_13_percent() {
        let join = workload(1_024_000_000, 1_024_000_000);
        let predicted = in_partitions(&H100, 53e9, 26.03 / 32.768, &join);
        assert_within(predicted, 1.6361, 1.0..1.08);
        assert_within(predicted, 1.5518, 1.0..1.13);
        // What stays on the device crosses the bus once, before it is joined.
        let resident = in_partitions(&H100, 53e9, 0.0, &join);
        assert!(resident > 1.4 * predicted, "{resident:e}");
    }

    /// An H200 with 2 and 1 GiB of device memory and chunks of 16 MiB, `2026-11-29-h200-joins-3.jsonl` and
    /// `2026-11-29-h200-spilled-joins.jsonl`: of 8.192 GB, 6.640 and 7.562 spill.
    #[test]
    fn partitions_of_little_device_memory_are_predicted_within_30_percent() {
        let join = workload(256_000_000, 256_000_000);
        for (spilled_gb, recorded) in [(6.640, 1.4598), (7.562, 1.2852)] {
            let predicted = in_partitions(&H100, 53e9, spilled_gb / 8.192, &join);
            assert_within(predicted, recorded, 1.1..1.3);
        }
    }

    /// The second of these joins with 2 GiB of host memory: 5.895 GB go to disk. The rate of the disk is that of
    /// `scan-disk` on another H200 (`2026-11-27-h200-column-files.jsonl`).
    #[test]
    fn partitions_on_disk_are_predicted_within_five_percent() {
        let join = workload(256_000_000, 256_000_000);
        let of_disk = |bytes_per_s| {
            let disk = OnDisk {
                share: 5.895 / 8.192,
                bytes_per_s,
            };
            in_partitions_on_disk(&H100, 53e9, 7.562 / 8.192, disk, &join)
        };
        assert_within(of_disk(1.8604e9), 0.082_324, 0.95..1.05);
        // A disk that is faster than the bus does not matter.
        let in_memory = in_partitions(&H100, 53e9, 7.562 / 8.192, &join);
        assert!((of_disk(1e12) / in_memory - 1.0).abs() < 1e-9);
    }

    /// `join-cpu/a/linear-probing` of 16 cores: at scale 0.125 in `2026-11-28-h100-joins.jsonl`, and at scale 1 on
    /// another host in `2026-11-27-h100-joins.jsonl`.
    #[test]
    fn a_table_in_host_memory_is_predicted_within_a_tenth() {
        let table = TableRates {
            inserts_per_s: (1 << 24) as f64 / 0.136_65,
            probes_per_s: 0.251_72e9,
        };
        assert_within(table.join(&WORKLOAD_A), 0.216_61, 1.0..1.1);
    }

    /// Two cores, in `2026-11-28-cpu-joins.jsonl`: `join-cpu/b/partitioned`, whose build side is small, gives the rates
    /// of dividing and probing for `join-cpu/a/partitioned`. The rate of inserts is that of the rest of A's second
    /// step.
    #[test]
    fn partitions_on_the_cpu_are_predicted_within_an_eighth() {
        let join = workload(1 << 23, 1 << 27);
        let (divide_s, probe_s, join_s) = (0.331_37, 0.399_81, 0.531_14);
        let partitions = PartitionRates {
            divided_per_s: tuples(&workload(1 << 18, 1 << 27)) / divide_s,
            tables: TableRates {
                inserts_per_s: join.build_rows as f64 / (join_s - probe_s),
                probes_per_s: join.probe_rows as f64 / probe_s,
            },
        };
        assert_within(partitions.join(&join), 0.145_83, 1.0..1.125);
    }
}
