//! The table `lineorder`.

use std::ops::RangeInclusive;

use anyhow::Result;
use arrow::array::RecordBatch;
use tpchgen::distribution::Distributions;

use super::Scale;
use super::dates::Day;
use super::dimensions::price;
use super::random::Random;
use crate::tables::columns::Columns;

/// Number of days on which orders come in: from 1992-01-01 to 1998-08-02.
pub const ORDER_DAYS: usize = 2_406;
/// Maximum lines of an order; the minimum is 1.
pub const LINES_MAX: i32 = 7;
/// Days from an order to the date that is promised.
const COMMIT_DAYS: RangeInclusive<i32> = 30..=90;
/// Customers whose key is a multiple of this number never order.
const IDLE_CUSTOMER: i32 = 3;

/// A row: a line of an order.
#[derive(Clone, Copy, Debug)]
pub struct Line {
    /// Key of the order.
    pub order: i64,
    /// Number of the line in the order, from 1.
    pub number: i32,
    /// Key of the customer.
    pub customer: i32,
    /// Key of the part.
    pub part: i32,
    /// Key of the supplier.
    pub supplier: i32,
    /// Index of the day of the order.
    pub day: usize,
    /// Priority of the order.
    pub priority: &'static str,
    /// Quantity, from 1 to 50.
    pub quantity: i32,
    /// Price of the line in cents.
    pub price: i32,
    /// Price of the order in cents, with discounts and taxes.
    pub order_price: i32,
    /// Discount in percent, from 0 to 10.
    pub discount: i32,
    /// Price after the discount in cents, rounded down.
    pub revenue: i32,
    /// Cost of supply in cents: six tenths of the price of one part.
    pub cost: i32,
    /// Tax in percent, from 0 to 8.
    pub tax: i32,
    /// Index of the day that is promised.
    pub commit_day: usize,
    /// Way of shipping.
    pub ship_mode: &'static str,
}

/// Returns the key of the order with this number, which counts from 1. Of 32 keys, only eight are used.
pub fn order_key(number: i64) -> i64 {
    number >> 3 << 5 | number & 7
}

/// Draws the order with this number and appends its lines to `lines`.
pub fn draw(random: &mut Random, scale: &Scale, number: i64, lines: &mut Vec<Line>) {
    let lists = Distributions::static_default();
    let day = random.index(ORDER_DAYS);
    let customer = customer(random, scale.customers);
    let priority = random.one_of(lists.order_priority().get_values());
    let first = lines.len();
    for line in 1..=random.between(1, LINES_MAX) {
        let (part, supplier) = (
            random.between(1, scale.parts),
            random.between(1, scale.suppliers),
        );
        let (quantity, discount) = (random.between(1, 50), random.between(0, 10));
        let tax = random.between(0, 8);
        let commit_day = day + random.between(*COMMIT_DAYS.start(), *COMMIT_DAYS.end()) as usize;
        let extended = price(part) * quantity;
        lines.push(Line {
            order: order_key(number),
            number: line,
            customer,
            part,
            supplier,
            day,
            priority,
            quantity,
            price: extended,
            order_price: 0,
            discount,
            revenue: percent(extended, 100 - discount),
            cost: 6 * price(part) / 10,
            tax,
            commit_day,
            ship_mode: random.one_of(lists.ship_modes().get_values()),
        });
    }
    let lines = &mut lines[first..];
    let total = lines
        .iter()
        .map(|line| percent(line.revenue, 100 + line.tax))
        .sum();
    lines.iter_mut().for_each(|line| line.order_price = total);
}

/// Draws a customer who orders: a multiple of three becomes a neighbour.
fn customer(random: &mut Random, customers: i32) -> i32 {
    let (mut key, mut step) = (random.between(1, customers), 1);
    while key % IDLE_CUSTOMER == 0 {
        key = (key + step).min(customers);
        step = -step;
    }
    key
}

/// Returns `percent` hundredths of an amount, rounded down.
fn percent(amount: i32, percent: i32) -> i32 {
    (i64::from(amount) * i64::from(percent) / 100) as i32
}

/// Returns `lines` as a batch. `days` is the calendar.
pub fn batch(lines: &[Line], days: &[Day]) -> Result<RecordBatch> {
    Columns::of(lines)
        .long("lo_orderkey", |line| line.order)
        .int("lo_linenumber", |line| line.number)
        .int("lo_custkey", |line| line.customer)
        .int("lo_partkey", |line| line.part)
        .int("lo_suppkey", |line| line.supplier)
        .int("lo_orderdate", |line| days[line.day].key())
        .text("lo_orderpriority", |line| line.priority)
        .text("lo_shippriority", |_| "0")
        .int("lo_quantity", |line| line.quantity)
        .int("lo_extendedprice", |line| line.price)
        .int("lo_ordtotalprice", |line| line.order_price)
        .int("lo_discount", |line| line.discount)
        .int("lo_revenue", |line| line.revenue)
        .int("lo_supplycost", |line| line.cost)
        .int("lo_tax", |line| line.tax)
        .int("lo_commitdate", |line| days[line.commit_day].key())
        .text("lo_shipmode", |line| line.ship_mode)
        .batch()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tables::ssb::dates::days;

    /// Orders of the sample.
    const ORDERS: i64 = 30_000;
    /// Maximum difference from the expected number of values, in standard deviations.
    const DEVIATIONS: f64 = 4.0;

    fn sample() -> Vec<Line> {
        let mut random = Random::of_group("lineorder", 0);
        let mut lines = Vec::new();
        for order in 1..=ORDERS {
            draw(&mut random, &Scale::of(0.02), order, &mut lines);
        }
        lines
    }

    /// Checks that a value has each of `range`, and all with the same probability.
    fn assert_uniform(lines: &[Line], range: RangeInclusive<i32>, of: impl Fn(&Line) -> i32) {
        let values = (range.end() - range.start() + 1) as usize;
        let mut counts = vec![0_u32; values];
        for line in lines {
            let value = of(line);
            assert!(range.contains(&value), "{line:?}");
            counts[(value - range.start()) as usize] += 1;
        }
        let expected = lines.len() as f64 / values as f64;
        let bound = DEVIATIONS * expected.sqrt();
        for count in counts {
            assert!(
                (f64::from(count) - expected).abs() < bound,
                "{count} of {expected}"
            );
        }
    }

    #[test]
    fn values_are_uniform() {
        let lines = sample();
        assert_uniform(&lines, 1..=50, |line| line.quantity);
        assert_uniform(&lines, 0..=10, |line| line.discount);
        assert_uniform(&lines, 0..=8, |line| line.tax);
        assert_uniform(&lines, COMMIT_DAYS, |line| {
            (line.commit_day - line.day) as i32
        });
        assert_uniform(&lines, 1..=40, |line| line.supplier);
        assert_uniform(&lines, 0..=9, |line| line.part % 10);
        let firsts = |line: &&Line| line.number == 1;
        let orders: Vec<Line> = lines.iter().filter(firsts).copied().collect();
        assert_uniform(&orders, 0..=5, |line| (line.day / 401) as i32);
    }

    #[test]
    fn orders_have_one_to_seven_lines() {
        let lines = sample();
        let orders: Vec<&[Line]> = lines.chunk_by(|a, b| a.order == b.order).collect();
        assert_eq!(orders.len() as i64, ORDERS);
        let lasts: Vec<Line> = orders.iter().map(|lines| lines[lines.len() - 1]).collect();
        assert_uniform(&lasts, 1..=LINES_MAX, |line| line.number);
        for order in orders {
            let same = |line: &Line| (line.customer, line.day, line.priority, line.order_price);
            assert!(order.iter().all(|line| same(line) == same(&order[0])));
            assert!(
                order
                    .iter()
                    .zip(1..)
                    .all(|(line, number)| line.number == number)
            );
        }
    }

    #[test]
    fn money_follows_dbgen() {
        for line in sample() {
            assert_eq!(line.price, price(line.part) * line.quantity);
            let revenue = i64::from(line.price) * i64::from(100 - line.discount) / 100;
            assert_eq!(i64::from(line.revenue), revenue);
            assert_eq!(line.cost, 6 * price(line.part) / 10);
            assert!(line.order_price >= line.revenue);
        }
    }

    #[test]
    fn keys_follow_dbgen() {
        assert_eq!([1, 7, 8, 15, 16].map(order_key), [1, 7, 32, 39, 64]);
        let lines = sample();
        assert!(lines.iter().all(|line| line.customer % 3 != 0));
        // A multiple of three becomes the next key, and half of the others are such.
        let doubled = lines.iter().filter(|line| line.customer % 3 == 1).count();
        let share = doubled as f64 / lines.len() as f64;
        assert!((share - 2.0 / 3.0).abs() < 0.01, "{share}");
    }

    #[test]
    fn the_days_of_orders_end_in_august() {
        let (days, lines) = (days(), sample());
        let keys = lines.iter().map(|line| days[line.day].key());
        assert!(keys.clone().min() == Some(19_920_101) && keys.max() == Some(19_980_802));
        let promised = lines.iter().map(|line| days[line.commit_day].key());
        assert!(promised.max() <= Some(19_981_031));
    }
}
