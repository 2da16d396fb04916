//! Query 6 on the CPU: a loop that the compiler turns into vector instructions, on all cores.

use std::thread;

use super::launch;
use super::table::{
    COLUMN_BYTES, COLUMNS, DISCOUNT_MAX, DISCOUNT_MIN, GROUP_BYTES, GROUP_ROWS, QUANTITY_END,
    SHIP_BEGIN, SHIP_DAYS,
};

/// Values that are compared and added side by side: the widest vector of `i32`.
const LANES: usize = 16;
/// Vectors per turn of the loop: the 32 products of a lane fit in 32 bits. See
/// [`PRICE_CENTS_END`](super::table::PRICE_CENTS_END).
const TURN_VECTORS: usize = 32;

/// Returns the answer over whole row groups, computed by the calling thread with the widest vectors of this processor.
///
/// # Panics
/// If the bytes are not whole groups.
pub fn sum(groups: &[u8]) -> u64 {
    launch::on_widest_vectors(groups)
}

/// Returns the answer over whole row groups, computed by `threads` threads.
///
/// # Panics
/// If the bytes are not whole groups.
pub fn sum_on(threads: usize, groups: &[u8]) -> u64 {
    let count = groups.len() / GROUP_BYTES;
    let share = count.div_ceil(threads.max(1)).max(1) * GROUP_BYTES;
    if groups.len() <= share {
        return sum(groups);
    }
    thread::scope(|scope| {
        let parts = groups.chunks(share);
        let running: Vec<_> = parts.map(|part| scope.spawn(|| sum(part))).collect();
        let sums = running.into_iter().map(|part| part.join());
        sums.map(|sum| sum.expect("the loop does not panic on whole groups"))
            .sum()
    })
}

/// The loop, compiled for the features of its caller.
#[inline(always)]
pub(super) fn sum_inline(groups: &[u8]) -> u64 {
    let (groups, rest) = groups.as_chunks::<GROUP_BYTES>();
    assert!(rest.is_empty(), "{} bytes after whole groups", rest.len());
    // A loop, not an iterator's method: a method may be compiled apart, without the caller's features.
    let mut total = 0;
    for group in groups {
        total += sum_group(group);
    }
    total
}

/// Returns the answer over one group.
#[inline(always)]
fn sum_group(group: &[u8; GROUP_BYTES]) -> u64 {
    let (columns, _) = group.as_chunks::<COLUMN_BYTES>();
    let [ship_date, discount, quantity, price] =
        std::array::from_fn::<_, COLUMNS, _>(|column| values(&columns[column]));
    let mut total = 0;
    for first in (0..GROUP_ROWS).step_by(TURN_VECTORS * LANES) {
        let mut lanes = [0_u32; LANES];
        for vector in 0..TURN_VECTORS {
            for (lane, sum) in lanes.iter_mut().enumerate() {
                let row = first + vector * LANES + lane;
                *sum = sum.wrapping_add(product(
                    i32::from_le_bytes(ship_date[row]),
                    i32::from_le_bytes(discount[row]),
                    i32::from_le_bytes(quantity[row]),
                    i32::from_le_bytes(price[row]),
                ));
            }
        }
        for sum in lanes {
            total += u64::from(sum);
        }
    }
    total
}

/// Returns the values of a column, as bytes.
#[inline(always)]
fn values(column: &[u8; COLUMN_BYTES]) -> &[[u8; 4]; GROUP_ROWS] {
    let (values, _) = column.as_chunks::<4>();
    values.first_chunk().expect("a column has this many values")
}

/// Returns what a row adds to the answer. Compares without branches: 2 % of the rows qualify, scattered at random.
#[inline(always)]
fn product(ship_date: i32, discount: i32, quantity: i32, price: i32) -> u32 {
    let is_of_year = ship_date.wrapping_sub(SHIP_BEGIN).cast_unsigned() < SHIP_DAYS;
    let span = (DISCOUNT_MAX - DISCOUNT_MIN).cast_unsigned();
    let is_discounted = discount.wrapping_sub(DISCOUNT_MIN).cast_unsigned() <= span;
    let qualifies = is_of_year & is_discounted & (quantity < QUANTITY_END);
    let product = price.wrapping_mul(discount).cast_unsigned();
    if qualifies { product } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q6::table::{PRICE_CENTS_END, Row, encode};

    const QUALIFIES: Row = Row {
        ship_date: SHIP_BEGIN,
        discount: DISCOUNT_MAX,
        quantity: QUANTITY_END - 1,
        price: PRICE_CENTS_END as i32 - 1,
    };

    fn sum_of(rows: &[Row]) -> u64 {
        let mut bytes = Vec::new();
        encode(rows, &mut bytes);
        let whole = sum(&bytes);
        assert_eq!(sum_inline(&bytes), whole, "the loop without wide vectors");
        whole
    }

    #[test]
    fn sums_of_the_greatest_prices_do_not_overflow() {
        let one = QUALIFIES.price as u64 * QUALIFIES.discount as u64;
        for rows in [0, 1, 31, 32, 33, GROUP_ROWS, GROUP_ROWS + 1, 3 * GROUP_ROWS] {
            assert_eq!(sum_of(&vec![QUALIFIES; rows]), rows as u64 * one);
        }
    }

    #[test]
    fn each_condition_has_its_exact_limits() {
        let with = |change: fn(&mut Row, i32), value| {
            let mut row = QUALIFIES;
            change(&mut row, value);
            sum_of(&[row]) > 0
        };
        let last = SHIP_BEGIN + SHIP_DAYS as i32 - 1;
        let date = |value| with(|row, value| row.ship_date = value, value);
        assert_eq!(
            [SHIP_BEGIN - 1, SHIP_BEGIN, last, last + 1].map(date),
            [false, true, true, false]
        );
        let discount = |value| with(|row, value| row.discount = value, value);
        assert_eq!(
            [4, 5, 6, 7, 8, -1].map(discount),
            [false, true, true, true, false, false]
        );
        let quantity = |value| with(|row, value| row.quantity = value, value);
        assert_eq!([1, 23, 24, 50].map(quantity), [true, true, false, false]);
        assert_eq!(sum_of(&[Row::PADDING]), 0);
    }

    #[test]
    fn threads_share_the_groups() {
        let rows: Vec<Row> = (0..7 * GROUP_ROWS as i32)
            .map(|price| Row { price, ..QUALIFIES })
            .collect();
        let mut bytes = Vec::new();
        encode(&rows, &mut bytes);
        for threads in [0, 1, 2, 3, 7, 100] {
            assert_eq!(sum_on(threads, &bytes), sum(&bytes));
        }
        assert_eq!(sum_on(3, &[]), 0);
    }
}
