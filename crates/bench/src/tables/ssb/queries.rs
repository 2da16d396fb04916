//! How many rows the filters of the 13 queries select, in a sample of the rows of scale factor 1.
//!
//! The rows do not change from run to run, so the bounds hold always or never.

use std::sync::LazyLock;

use super::Scale;
use super::dates::{self, Day};
use super::dimensions::{Customer, Part, Place, Supplier};
use super::lineorder::{self, Line, ORDER_DAYS};
use super::random::Random;

/// Orders of the sample.
const ORDERS: i64 = 100_000;
/// Maximum difference from the expected number of rows, in standard deviations.
const DEVIATIONS: f64 = 4.0;

struct Sample {
    days: Vec<Day>,
    customers: Vec<Customer>,
    suppliers: Vec<Supplier>,
    parts: Vec<Part>,
    lines: Vec<Line>,
}

static SAMPLE: LazyLock<Sample> = LazyLock::new(|| {
    let scale = Scale::of(1.0);
    let mut random = Random::of_group("sample", 0);
    let mut lines = Vec::new();
    for order in 1..=ORDERS {
        lineorder::draw(&mut random, &scale, order, &mut lines);
    }
    let random = &mut random;
    Sample {
        days: dates::days(),
        customers: (1..=scale.customers)
            .map(|key| Customer::draw(random, key))
            .collect(),
        suppliers: (1..=scale.suppliers)
            .map(|key| Supplier::draw(random, key))
            .collect(),
        parts: (1..=scale.parts)
            .map(|key| Part::draw(random, key))
            .collect(),
        lines,
    }
});

impl Sample {
    fn join<'a>(&'a self, line: &'a Line) -> Joined<'a> {
        Joined {
            line,
            day: &self.days[line.day],
            customer: &self.customers[line.customer as usize - 1].place,
            supplier: &self.suppliers[line.supplier as usize - 1].place,
            part: &self.parts[line.part as usize - 1],
        }
    }
}

/// A line with its rows of the other tables.
struct Joined<'a> {
    line: &'a Line,
    day: &'a Day,
    customer: &'a Place,
    supplier: &'a Place,
    part: &'a Part,
}

/// The conditions of a query, and the part of each table that meets them.
struct Query {
    name: &'static str,
    selects: fn(&Joined<'_>) -> bool,
    /// Days of the 2,406 on which orders come in.
    days: f64,
    /// Share of the quantities and discounts.
    measures: f64,
    customers: f64,
    suppliers: f64,
    parts: f64,
}

impl Default for Query {
    fn default() -> Query {
        Query {
            name: "all",
            selects: |_| true,
            days: ORDER_DAYS as f64,
            measures: 1.0,
            customers: 1.0,
            suppliers: 1.0,
            parts: 1.0,
        }
    }
}

impl Query {
    /// Returns the expected share of rows.
    fn share(&self) -> f64 {
        let day = self.days / ORDER_DAYS as f64;
        day * self.measures * self.customers * self.suppliers * self.parts
    }

    /// Returns the relative deviation of the number of rows: of the sample, and of each table that was drawn.
    fn deviation(&self, sample: &Sample) -> f64 {
        let table = |share: f64, rows: usize| (1.0 - share) / (share * rows as f64);
        let variance = table(self.share(), sample.lines.len())
            + table(self.customers, sample.customers.len() * 2 / 3)
            + table(self.suppliers, sample.suppliers.len())
            + table(self.parts, sample.parts.len());
        variance.sqrt()
    }
}

const FIFTH: f64 = 0.2;
const NATION: f64 = 0.04;
/// Two cities of 250.
const TWO_CITIES: f64 = 0.008;
/// Days from 1992 to 1997.
const SIX_YEARS: f64 = 2_192.0;
/// Days of 1997, and of 1998 until orders end.
const LAST_YEARS: f64 = 365.0 + 214.0;
const BRAND: f64 = 0.001;

fn measures(line: &Line, discounts: [i32; 2], quantities: [i32; 2]) -> bool {
    (discounts[0]..=discounts[1]).contains(&line.discount)
        && (quantities[0]..=quantities[1]).contains(&line.quantity)
}

fn in_city(place: &Place) -> bool {
    ["UNITED KI1", "UNITED KI5"].contains(&&*place.city)
}

fn until_1997(day: &Day) -> bool {
    (1992..=1997).contains(&day.year)
}

fn first_flight() -> Vec<Query> {
    vec![
        Query {
            name: "Q1.1",
            selects: |row| row.day.year == 1993 && measures(row.line, [1, 3], [1, 24]),
            days: 365.0,
            measures: 3.0 / 11.0 * 24.0 / 50.0,
            ..Query::default()
        },
        Query {
            name: "Q1.2",
            selects: |row| row.day.month_key() == 199_401 && measures(row.line, [4, 6], [26, 35]),
            days: 31.0,
            measures: 3.0 / 11.0 * 10.0 / 50.0,
            ..Query::default()
        },
        Query {
            name: "Q1.3",
            selects: |row| {
                (row.day.week(), row.day.year) == (6, 1994) && measures(row.line, [5, 7], [26, 35])
            },
            days: 7.0,
            measures: 3.0 / 11.0 * 10.0 / 50.0,
            ..Query::default()
        },
    ]
}

fn second_flight() -> Vec<Query> {
    vec![
        Query {
            name: "Q2.1",
            selects: |row| {
                row.part.category_name() == "MFGR#12" && row.supplier.region() == "AMERICA"
            },
            suppliers: FIFTH,
            parts: NATION,
            ..Query::default()
        },
        Query {
            name: "Q2.2",
            selects: |row| {
                let brand = row.part.brand_name();
                ("MFGR#2221"..="MFGR#2228").contains(&&*brand) && row.supplier.region() == "ASIA"
            },
            suppliers: FIFTH,
            parts: 8.0 * BRAND,
            ..Query::default()
        },
        Query {
            name: "Q2.3",
            selects: |row| {
                row.part.brand_name() == "MFGR#2221" && row.supplier.region() == "EUROPE"
            },
            suppliers: FIFTH,
            parts: BRAND,
            ..Query::default()
        },
    ]
}

fn third_flight() -> Vec<Query> {
    vec![
        Query {
            name: "Q3.1",
            selects: |row| {
                let places = [row.customer.region(), row.supplier.region()];
                places == ["ASIA", "ASIA"] && until_1997(row.day)
            },
            days: SIX_YEARS,
            customers: FIFTH,
            suppliers: FIFTH,
            ..Query::default()
        },
        Query {
            name: "Q3.2",
            selects: |row| {
                let places = [row.customer.nation(), row.supplier.nation()];
                places == ["UNITED STATES", "UNITED STATES"] && until_1997(row.day)
            },
            days: SIX_YEARS,
            customers: NATION,
            suppliers: NATION,
            ..Query::default()
        },
        Query {
            name: "Q3.3",
            selects: |row| in_city(row.customer) && in_city(row.supplier) && until_1997(row.day),
            days: SIX_YEARS,
            customers: TWO_CITIES,
            suppliers: TWO_CITIES,
            ..Query::default()
        },
        Query {
            name: "Q3.4",
            selects: |row| {
                in_city(row.customer) && in_city(row.supplier) && row.day.month_key() == 199_712
            },
            days: 31.0,
            customers: TWO_CITIES,
            suppliers: TWO_CITIES,
            ..Query::default()
        },
    ]
}

fn fourth_flight() -> Vec<Query> {
    vec![
        Query {
            name: "Q4.1",
            selects: |row| {
                let places = [row.customer.region(), row.supplier.region()];
                places == ["AMERICA", "AMERICA"] && row.part.maker <= 2
            },
            customers: FIFTH,
            suppliers: FIFTH,
            parts: 2.0 * FIFTH,
            ..Query::default()
        },
        Query {
            name: "Q4.2",
            selects: |row| {
                let places = [row.customer.region(), row.supplier.region()];
                places == ["AMERICA", "AMERICA"] && row.part.maker <= 2 && row.day.year >= 1997
            },
            days: LAST_YEARS,
            customers: FIFTH,
            suppliers: FIFTH,
            parts: 2.0 * FIFTH,
            ..Query::default()
        },
        Query {
            name: "Q4.3",
            selects: |row| {
                let places = [row.customer.region(), row.supplier.nation()];
                places == ["AMERICA", "UNITED STATES"]
                    && row.part.category_name() == "MFGR#14"
                    && row.day.year >= 1997
            },
            days: LAST_YEARS,
            customers: FIFTH,
            suppliers: NATION,
            parts: NATION,
            ..Query::default()
        },
    ]
}

#[test]
fn queries_select_the_expected_share_of_rows() {
    let sample = &*SAMPLE;
    let flights = [
        first_flight(),
        second_flight(),
        third_flight(),
        fourth_flight(),
    ];
    let queries: Vec<Query> = flights.into_iter().flatten().collect();
    assert_eq!(queries.len(), 13);
    for query in queries {
        let rows = sample.lines.iter().map(|line| sample.join(line));
        let count = rows.filter(query.selects).count() as f64;
        let expected = query.share() * sample.lines.len() as f64;
        let bound = DEVIATIONS * query.deviation(sample) * expected;
        println!(
            "{}: {count} rows, {expected:.1} +- {bound:.1} expected",
            query.name
        );
        assert!((count - expected).abs() <= bound, "{}", query.name);
    }
}
