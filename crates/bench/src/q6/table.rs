//! The layout of the columns on disk and in memory: row groups of a fixed number of rows.
//!
//! A row group has the values of 4,096 rows: the four columns that query 6 reads, one after another, each as 4,096
//! little-endian `i32`. A row group is 64 KiB, so groups are aligned for direct I/O, and each buffer of 64 KiB or more
//! holds whole groups.

use anyhow::{Context, Result, ensure};
use tpchgen::dates::{MIN_GENERATE_DATE, TPCHDate};
use tpchgen::generators::LineItem;

/// Rows per row group.
pub const GROUP_ROWS: usize = 4096;
/// Bytes of one column of a row group.
pub const COLUMN_BYTES: usize = GROUP_ROWS * size_of::<i32>();
/// Columns of a row group, in the order of [`Row`]'s fields.
pub const COLUMNS: usize = 4;
/// Bytes of a row group.
pub const GROUP_BYTES: usize = COLUMNS * COLUMN_BYTES;

/// Days from 1992-01-01 to 1994-01-01; 1992 is a leap year.
const SHIP_BEGIN_INDEX: i32 = 366 + 365;
/// First ship date that qualifies, in days since 1970-01-01.
pub const SHIP_BEGIN: i32 = TPCHDate::UNIX_EPOCH_OFFSET + SHIP_BEGIN_INDEX;
/// Number of ship dates that qualify: the days of 1994.
pub const SHIP_DAYS: u32 = 365;
/// Least discount that qualifies, in hundredths.
pub const DISCOUNT_MIN: i32 = 5;
/// Greatest discount that qualifies, in hundredths.
pub const DISCOUNT_MAX: i32 = 7;
/// A row qualifies if its quantity is below this.
pub const QUANTITY_END: i32 = 24;
/// Prices are below this many cents. So a loop may add 32 products of a price and a qualifying discount in 32 bits
/// before it widens the sum.
pub const PRICE_CENTS_END: i64 = 1 << 24;

/// The columns of one row, as they are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// `l_shipdate` in days since 1970-01-01.
    pub ship_date: i32,
    /// `l_discount` in hundredths.
    pub discount: i32,
    /// `l_quantity` in whole units.
    pub quantity: i32,
    /// `l_extendedprice` in cents.
    pub price: i32,
}

impl Row {
    /// A row that never qualifies; it fills up the last row group.
    pub const PADDING: Row = Row {
        ship_date: 0,
        discount: 0,
        quantity: i32::MAX,
        price: 0,
    };

    /// Returns the stored form of a row of the generator.
    ///
    /// # Errors
    /// If a value does not fit in its column.
    pub fn of(line: &LineItem<'_>) -> Result<Row> {
        let price = line.l_extendedprice.into_inner();
        ensure!(
            (0..PRICE_CENTS_END).contains(&price),
            "the price {price} does not fit in its column"
        );
        Ok(Row {
            ship_date: line.l_shipdate.to_unix_epoch(),
            discount: i32::try_from(line.l_discount.into_inner()).context("a large discount")?,
            quantity: i32::try_from(line.l_quantity).context("a large quantity")?,
            price: i32::try_from(price).context("a large price")?,
        })
    }
}

/// Returns what a row of the generator adds to the answer, in units of 0.0001: its price times its discount if it
/// qualifies. Uses only the generator's own values, not the stored columns.
pub fn exact(line: &LineItem<'_>) -> u64 {
    let begin = TPCHDate::new(MIN_GENERATE_DATE + SHIP_BEGIN_INDEX);
    let end = TPCHDate::new(MIN_GENERATE_DATE + SHIP_BEGIN_INDEX + SHIP_DAYS as i32);
    let discount = line.l_discount.into_inner();
    let qualifies = (begin..end).contains(&line.l_shipdate)
        && (i64::from(DISCOUNT_MIN)..=i64::from(DISCOUNT_MAX)).contains(&discount)
        && line.l_quantity < i64::from(QUANTITY_END);
    if qualifies {
        (line.l_extendedprice.into_inner() * discount).unsigned_abs()
    } else {
        0
    }
}

/// Appends the row groups of `rows` to `out`. The last group is filled up with [`Row::PADDING`].
pub fn encode(rows: &[Row], out: &mut Vec<u8>) {
    for group in rows.chunks(GROUP_ROWS) {
        let columns: [fn(&Row) -> i32; COLUMNS] = [
            |row| row.ship_date,
            |row| row.discount,
            |row| row.quantity,
            |row| row.price,
        ];
        for column in columns {
            out.extend(group.iter().flat_map(|row| column(row).to_le_bytes()));
            let padding = column(&Row::PADDING).to_le_bytes();
            (group.len()..GROUP_ROWS).for_each(|_| out.extend_from_slice(&padding));
        }
    }
}

/// Returns the checksum of row groups of which the first has this index in its file. The checksum of a whole is the
/// wrapping sum of the checksums of its parts, so parts are computed in any order.
///
/// # Panics
/// If the bytes are not whole groups.
pub fn checksum(groups: &[u8], first: u64) -> u64 {
    let (groups, rest) = groups.as_chunks::<GROUP_BYTES>();
    assert!(rest.is_empty(), "{} bytes after whole groups", rest.len());
    let parts = (first..).zip(groups);
    parts.fold(0, |sum, (index, group)| {
        sum.wrapping_add(group_checksum(group, index))
    })
}

/// Returns the checksum of one group: FNV-1a over its words in eight lanes, which start at values that depend on the
/// group's index.
fn group_checksum(group: &[u8; GROUP_BYTES], index: u64) -> u64 {
    const LANES: usize = 8;
    const PRIME: u64 = 0x0000_0100_0000_01B3;
    const BASIS: u64 = 0xCBF2_9CE4_8422_2325;
    let mut lanes = [0; LANES];
    for (lane, number) in lanes.iter_mut().zip(0_u64..) {
        *lane = (BASIS ^ (index * LANES as u64 + number)).wrapping_mul(PRIME);
    }
    let (words, _) = group.as_chunks::<8>();
    for block in words.chunks_exact(LANES) {
        for (lane, word) in lanes.iter_mut().zip(block) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(PRIME);
        }
    }
    let all = lanes.into_iter();
    all.fold(BASIS, |sum, lane| {
        (sum ^ (lane ^ lane >> 32)).wrapping_mul(PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dates_are_those_of_the_query() {
        let date = |index| TPCHDate::new(MIN_GENERATE_DATE + index).to_string();
        assert_eq!(date(SHIP_BEGIN_INDEX), "1994-01-01");
        assert_eq!(date(SHIP_BEGIN_INDEX + SHIP_DAYS as i32), "1995-01-01");
        // `date -u -d 1994-01-01 +%s` / 86400
        assert_eq!(SHIP_BEGIN, 757_382_400 / 86_400);
    }

    #[test]
    fn a_loop_may_add_32_products_in_32_bits() {
        let product = (PRICE_CENTS_END - 1) * i64::from(DISCOUNT_MAX);
        assert!(u32::try_from(32 * product).is_ok());
        assert!(
            u32::try_from(37 * product).is_err(),
            "the bound is not far away"
        );
    }

    #[test]
    fn columns_lie_one_after_another_and_the_last_group_is_filled_up() {
        let row = |number: i32| Row {
            ship_date: number,
            discount: number + 1,
            quantity: number + 2,
            price: number + 3,
        };
        let rows: Vec<Row> = (0..GROUP_ROWS as i32 + 2).map(row).collect();
        let mut bytes = Vec::new();
        encode(&rows, &mut bytes);
        assert_eq!(bytes.len(), 2 * GROUP_BYTES);
        let word = |at: usize| {
            let (word, _) = bytes[at..].split_first_chunk().expect("inside");
            i32::from_le_bytes(*word)
        };
        assert_eq!(word(4), 1);
        assert_eq!(word(COLUMN_BYTES), 1);
        assert_eq!(word(3 * COLUMN_BYTES + 4), 4);
        let last = GROUP_BYTES;
        assert_eq!(word(last + 4), GROUP_ROWS as i32 + 1);
        assert_eq!(word(last + 2 * COLUMN_BYTES + 8), Row::PADDING.quantity);
        assert_eq!(word(last + 4 * COLUMN_BYTES - 4), Row::PADDING.price);
    }

    #[test]
    fn a_checksum_is_that_of_its_parts_and_depends_on_every_place() {
        let mut bytes: Vec<u8> = (0..3 * GROUP_BYTES).map(|index| index as u8).collect();
        let whole = checksum(&bytes, 0);
        let (front, back) = bytes.split_at(GROUP_BYTES);
        assert_eq!(whole, checksum(front, 0).wrapping_add(checksum(back, 1)));
        assert_ne!(whole, checksum(&bytes, 1), "groups at another place");
        bytes[2 * GROUP_BYTES + 777] ^= 16;
        assert_ne!(whole, checksum(&bytes, 0), "a flipped bit");
    }
}
