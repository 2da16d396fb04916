//! The tables of the Star Schema Benchmark, by the rules of its generator dbgen. `docs/ssb.md` has the rules.

pub mod dates;
pub mod dimensions;
pub mod lineorder;
#[cfg(test)]
mod queries;
pub mod random;

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use arrow::array::RecordBatch;

use super::parquet_file::{Batches, Table, group_count};
use dates::Day;
use dimensions::{Customer, Part, Supplier};
use random::Random;

/// Rows of a batch, or orders of a batch.
const BATCH_ROWS: usize = 8_192;
/// Lines of an order on average.
const LINES: u64 = 4;

/// Numbers of rows at a scale factor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Number of orders.
    pub orders: u64,
    /// Number of customers.
    pub customers: i32,
    /// Number of suppliers.
    pub suppliers: i32,
    /// Number of parts.
    pub parts: i32,
}

impl Scale {
    /// Returns the numbers of a scale factor. Parts grow by its logarithm from 1 upwards.
    pub fn of(factor: f64) -> Scale {
        let rows = |base: f64| (base * factor).round().max(1.0);
        let parts = 200_000.0
            * if factor < 1.0 {
                factor
            } else {
                (1.0 + factor.log2()).floor()
            };
        Scale {
            orders: rows(1_500_000.0) as u64,
            customers: rows(30_000.0) as i32,
            suppliers: rows(2_000.0) as i32,
            parts: parts.round().max(1.0) as i32,
        }
    }
}

/// Returns the five tables at a scale factor.
pub fn tables(factor: f64) -> Vec<Table> {
    let scale = Scale::of(factor);
    vec![
        date(),
        dimension("supplier", scale.suppliers, Supplier::draw, Supplier::batch),
        dimension("customer", scale.customers, Customer::draw, Customer::batch),
        dimension("part", scale.parts, Part::draw, Part::batch),
        lineorder(scale),
    ]
}

fn date() -> Table {
    let batch = || dates::batch(&dates::days()[..dates::DATES]);
    table("date", 1, dates::batch(&[]), move |_| {
        Box::new(std::iter::once(batch()))
    })
}

/// Returns a table whose row with key `k` is `draw(random, k)`; the keys count from 1.
fn dimension<R: 'static>(
    name: &'static str,
    rows: i32,
    draw: fn(&mut Random, i32) -> R,
    batch: fn(&[R]) -> Result<RecordBatch>,
) -> Table {
    let groups = group_count(rows as u64);
    table(name, groups, batch(&[]), move |group| {
        let mut random = Random::of_group(name, group);
        let keys = part_of(rows as u64, groups, group);
        let batches = slices(keys).map(move |keys| {
            let rows: Vec<R> = keys.map(|key| draw(&mut random, key as i32 + 1)).collect();
            batch(&rows)
        });
        Box::new(batches)
    })
}

fn lineorder(scale: Scale) -> Table {
    let name = "lineorder";
    let groups = group_count(scale.orders * LINES);
    let days: Arc<[Day]> = dates::days().into();
    table(name, groups, lineorder::batch(&[], &[]), move |group| {
        let mut random = Random::of_group(name, group);
        let days = Arc::clone(&days);
        let mut lines = Vec::new();
        let orders = slices(part_of(scale.orders, groups, group));
        let batches = orders.map(move |orders| {
            lines.clear();
            for order in orders {
                lineorder::draw(&mut random, &scale, order as i64 + 1, &mut lines);
            }
            lineorder::batch(&lines, &days)
        });
        Box::new(batches)
    })
}

/// Returns a table with the columns of `empty`.
fn table(
    name: &'static str,
    groups: u64,
    empty: Result<RecordBatch>,
    rows: impl Fn(u64) -> Batches + Sync + 'static,
) -> Table {
    let empty = empty.expect("columns without rows have equal lengths");
    Table {
        name,
        schema: empty.schema(),
        groups,
        rows: Box::new(rows),
    }
}

/// Returns the part of `count` things that belongs to a row group.
fn part_of(count: u64, groups: u64, group: u64) -> Range<u64> {
    count * group / groups..count * (group + 1) / groups
}

/// Divides a range into ranges of [`BATCH_ROWS`].
fn slices(range: Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let starts = range.clone().step_by(BATCH_ROWS);
    starts.map(move |start| start..(start + BATCH_ROWS as u64).min(range.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_grow_with_the_scale_factor() {
        let of = |factor| {
            let scale = Scale::of(factor);
            (scale.orders, scale.customers, scale.suppliers, scale.parts)
        };
        assert_eq!(of(0.01), (15_000, 300, 20, 2_000));
        assert_eq!(of(1.0), (1_500_000, 30_000, 2_000, 200_000));
        assert_eq!(of(10.0), (15_000_000, 300_000, 20_000, 800_000));
        assert_eq!(of(2.5), (3_750_000, 75_000, 5_000, 400_000));
    }

    #[test]
    fn parts_of_a_range_are_the_range() {
        let parts: Vec<u64> = (0..7).flat_map(|group| part_of(100, 7, group)).collect();
        assert_eq!(parts, (0..100).collect::<Vec<_>>());
        let ranges: Vec<Range<u64>> = slices(5..20_000).collect();
        assert_eq!(ranges, [5..8_197, 8_197..16_389, 16_389..20_000]);
    }
}
