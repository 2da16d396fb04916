//! Makes the rows of `lineitem` with `tpchgen`, in parts on all cores.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use anyhow::{Context, Result};
use tpchgen::distribution::Distributions;
use tpchgen::generators::{LineItemGenerator, OrderGenerator};
use tpchgen::text::TextPool;

use super::table::{self, GROUP_ROWS, Row};

/// Orders of a part; an order has one to seven rows.
const PART_ORDERS: f64 = 65_536.0;
/// Bytes of the text from which comments are cut. No comment is stored, so little text is enough.
const TEXT_BYTES: i32 = 1 << 20;

/// Sums over the whole table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of rows, without padding.
    pub rows: u64,
    /// Answer of query 6 in units of 0.0001, from the generator's own values.
    pub revenue: u64,
    /// Number of row groups.
    pub groups: u64,
    /// Checksum of the row groups.
    pub checksum: u64,
}

/// Rows of one part, and their answer.
#[derive(Debug, Default)]
struct Part {
    rows: Vec<Row>,
    revenue: u64,
}

/// Minimum scale factor: `tpchgen` makes no rows, or panics, far below it.
pub const SCALE_FACTOR_MIN: f64 = 0.001;
/// Maximum scale factor, the largest of TPC-H.
pub const SCALE_FACTOR_MAX: f64 = 100_000.0;
/// Rows of an order, a little above the average.
const ORDER_ROWS: f64 = 4.2;

/// Returns about how many rows a table has; seldom fewer than it will have.
pub fn rows_expected(scale_factor: f64) -> u64 {
    (f64::from(OrderGenerator::SCALE_BASE) * scale_factor * ORDER_ROWS) as u64
}

/// Makes the table, and calls `write` with its row groups, in order, some groups at a time.
///
/// # Errors
/// If `write` fails, a value does not fit in its column, or a thread cannot be started.
pub fn table(
    scale_factor: f64,
    threads: usize,
    mut write: impl FnMut(&[u8]) -> Result<()>,
) -> Result<Totals> {
    let text = TextPool::new(TEXT_BYTES, Distributions::static_default());
    let parts = part_count(scale_factor);
    let make = |part| make_part(scale_factor, part, parts, &text);
    thread::scope(|scope| {
        let mut receivers = Vec::new();
        let workers = threads.clamp(1, parts as usize);
        for worker in 0..workers {
            let (sender, receiver) = sync_channel(1);
            let numbers = (1..=parts).skip(worker).step_by(workers);
            scope.spawn(move || send_all(numbers, &sender, make));
            receivers.push(receiver);
        }
        collect(parts, &receivers, &mut write)
    })
}

/// Returns the number of parts; `tpchgen` numbers them from 1.
fn part_count(scale_factor: f64) -> i32 {
    let orders = f64::from(OrderGenerator::SCALE_BASE) * scale_factor;
    ((orders / PART_ORDERS).ceil() as i32).max(1)
}

/// Makes parts and sends them, until all are made or the receiver is gone because of an error.
fn send_all(
    numbers: impl Iterator<Item = i32>,
    sender: &SyncSender<Result<Part>>,
    make: impl Fn(i32) -> Result<Part>,
) {
    for number in numbers {
        if sender.send(make(number)).is_err() {
            return;
        }
    }
}

fn make_part(scale_factor: f64, part: i32, parts: i32, text: &TextPool) -> Result<Part> {
    let distributions = Distributions::static_default();
    let generator = LineItemGenerator::new_with_distributions_and_text_pool(
        scale_factor,
        part,
        parts,
        distributions,
        text,
    );
    let mut made = Part::default();
    for line in generator.iter() {
        made.rows.push(Row::of(&line)?);
        made.revenue += table::exact(&line);
    }
    Ok(made)
}

/// Takes the parts in order, and writes their rows as row groups. Rows of the last, incomplete group of a part go into
/// the first group of the next part.
fn collect(
    parts: i32,
    receivers: &[Receiver<Result<Part>>],
    write: &mut impl FnMut(&[u8]) -> Result<()>,
) -> Result<Totals> {
    let mut totals = Totals::default();
    let (mut rows, mut bytes) = (Vec::new(), Vec::new());
    for (number, receiver) in (1..=parts).zip(receivers.iter().cycle()) {
        let part = receiver.recv().context("a thread has ended early")??;
        totals.revenue += part.revenue;
        totals.rows += part.rows.len() as u64;
        rows.extend_from_slice(&part.rows);
        let whole = rows.len() - rows.len() % GROUP_ROWS;
        let ready = if number == parts { rows.len() } else { whole };
        bytes.clear();
        table::encode(&rows[..ready], &mut bytes);
        rows.drain(..ready);
        totals.checksum = totals
            .checksum
            .wrapping_add(table::checksum(&bytes, totals.groups));
        totals.groups += (bytes.len() / table::GROUP_BYTES) as u64;
        write(&bytes)?;
    }
    Ok(totals)
}

/// Calls `write` with each row of the table in `tpchgen`'s own text form.
///
/// # Errors
/// If `write` fails.
pub fn lines(scale_factor: f64, mut write: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let text = TextPool::new(TEXT_BYTES, Distributions::static_default());
    let generator = LineItemGenerator::new_with_distributions_and_text_pool(
        scale_factor,
        1,
        1,
        Distributions::static_default(),
        &text,
    );
    generator
        .iter()
        .try_for_each(|line| write(&line.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q6::cpu;
    use crate::q6::table::GROUP_BYTES;

    fn made(scale_factor: f64, threads: usize) -> (Totals, Vec<u8>) {
        let mut bytes = Vec::new();
        let totals = table(scale_factor, threads, |groups| {
            bytes.extend_from_slice(groups);
            Ok(())
        });
        (totals.expect("the table fits"), bytes)
    }

    #[test]
    fn the_table_is_the_same_with_any_number_of_threads() {
        let (totals, bytes) = made(0.1, 1);
        assert_eq!(totals.groups as usize * GROUP_BYTES, bytes.len());
        assert_eq!(totals.checksum, table::checksum(&bytes, 0));
        assert!(part_count(0.1) > 2, "several parts");
        for threads in [2, 3, 64] {
            assert_eq!(made(0.1, threads), (totals, bytes.clone()));
        }
    }

    #[test]
    fn the_stored_columns_give_the_exact_answer() {
        // The number of rows at this scale factor, as the specification's own generator makes it.
        let (totals, bytes) = made(0.01, 2);
        assert_eq!(totals.rows, 60_175);
        assert_eq!(totals.groups, 60_175_u64.div_ceil(GROUP_ROWS as u64));
        assert!(totals.revenue > 0);
        assert_eq!(cpu::sum(&bytes), totals.revenue);
    }

    #[test]
    fn text_and_columns_are_of_the_same_rows() {
        let (_, bytes) = made(0.001, 1);
        let mut rows = Vec::new();
        let add = |line: &str| {
            let fields: Vec<&str> = line.split('|').collect();
            let hundredths = |text: &str| text.replace('.', "").parse::<i32>();
            rows.push((
                hundredths(fields[6])?,
                fields[4].parse()?,
                hundredths(fields[5])?,
            ));
            Ok(())
        };
        lines(0.001, add).expect("the fields are numbers");
        let word = |column: usize, row: usize| {
            let at = row / GROUP_ROWS * GROUP_BYTES
                + column * table::COLUMN_BYTES
                + row % GROUP_ROWS * 4;
            let (word, _) = bytes[at..].split_first_chunk().expect("inside");
            i32::from_le_bytes(*word)
        };
        assert!(rows.len() > GROUP_ROWS);
        for (row, fields) in rows.into_iter().enumerate() {
            assert_eq!((word(1, row), word(2, row), word(3, row)), fields);
        }
    }

    #[test]
    fn the_expected_rows_are_a_little_more_than_the_real_ones() {
        for scale_factor in [SCALE_FACTOR_MIN, 0.003, 0.01, 0.1] {
            let (totals, _) = made(scale_factor, 2);
            let expected = rows_expected(scale_factor);
            let range = totals.rows..=totals.rows + totals.rows / 10;
            assert!(range.contains(&expected), "{expected} rows, {totals:?}");
        }
    }

    #[test]
    fn an_error_of_the_writer_ends_the_work() {
        let error = table(0.1, 2, |_| anyhow::bail!("the disk is full"));
        assert_eq!(
            error.expect_err("it failed").to_string(),
            "the disk is full"
        );
    }
}
