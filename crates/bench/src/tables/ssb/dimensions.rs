//! The tables `customer`, `supplier` and `part`.

use anyhow::Result;
use arrow::array::RecordBatch;
use tpchgen::distribution::Distributions;

use super::random::Random;
use crate::tables::columns::Columns;

/// Nations and their regions, in the order of TPC-H.
pub const NATIONS: [(&str, &str); 25] = [
    ("ALGERIA", "AFRICA"),
    ("ARGENTINA", "AMERICA"),
    ("BRAZIL", "AMERICA"),
    ("CANADA", "AMERICA"),
    ("EGYPT", "MIDDLE EAST"),
    ("ETHIOPIA", "AFRICA"),
    ("FRANCE", "EUROPE"),
    ("GERMANY", "EUROPE"),
    ("INDIA", "ASIA"),
    ("INDONESIA", "ASIA"),
    ("IRAN", "MIDDLE EAST"),
    ("IRAQ", "MIDDLE EAST"),
    ("JAPAN", "ASIA"),
    ("JORDAN", "MIDDLE EAST"),
    ("KENYA", "AFRICA"),
    ("MOROCCO", "AFRICA"),
    ("MOZAMBIQUE", "AFRICA"),
    ("PERU", "AMERICA"),
    ("CHINA", "ASIA"),
    ("ROMANIA", "EUROPE"),
    ("SAUDI ARABIA", "MIDDLE EAST"),
    ("VIETNAM", "ASIA"),
    ("RUSSIA", "EUROPE"),
    ("UNITED KINGDOM", "EUROPE"),
    ("UNITED STATES", "AMERICA"),
];
/// Cities of a nation.
const CITIES: i32 = 10;

/// Where a customer or a supplier is.
#[derive(Clone, Debug)]
pub struct Place {
    /// Address, of random letters.
    pub address: String,
    /// City: nine letters of the nation, and a digit.
    pub city: String,
    /// Index in [`NATIONS`].
    pub nation: usize,
    /// Phone number, which begins with the nation's.
    pub phone: String,
}

impl Place {
    fn draw(random: &mut Random) -> Place {
        let address = random.address();
        let nation = random.index(NATIONS.len());
        let city = random.between(0, CITIES - 1);
        Place {
            address,
            city: format!("{:9.9}{city}", NATIONS[nation].0),
            nation,
            phone: random.phone(nation),
        }
    }

    /// Returns the name of the nation.
    pub fn nation(&self) -> &'static str {
        NATIONS[self.nation].0
    }

    /// Returns the name of the region.
    pub fn region(&self) -> &'static str {
        NATIONS[self.nation].1
    }
}

/// A customer.
#[derive(Clone, Debug)]
pub struct Customer {
    /// Key, from 1.
    pub key: i32,
    /// Address, city and phone.
    pub place: Place,
    /// Market segment.
    pub segment: &'static str,
}

impl Customer {
    /// Draws a customer.
    pub fn draw(random: &mut Random, key: i32) -> Customer {
        Customer {
            key,
            place: Place::draw(random),
            segment: random.one_of(
                Distributions::static_default()
                    .market_segments()
                    .get_values(),
            ),
        }
    }

    /// Returns `rows` as a batch.
    pub fn batch(rows: &[Customer]) -> Result<RecordBatch> {
        Columns::of(rows)
            .int("c_custkey", |row| row.key)
            .text("c_name", |row| format!("Customer#{:09}", row.key))
            .text("c_address", |row| &row.place.address)
            .text("c_city", |row| &row.place.city)
            .text("c_nation", |row| row.place.nation())
            .text("c_region", |row| row.place.region())
            .text("c_phone", |row| &row.place.phone)
            .text("c_mktsegment", |row| row.segment)
            .batch()
    }
}

/// A supplier.
#[derive(Clone, Debug)]
pub struct Supplier {
    /// Key, from 1.
    pub key: i32,
    /// Address, city and phone.
    pub place: Place,
}

impl Supplier {
    /// Draws a supplier.
    pub fn draw(random: &mut Random, key: i32) -> Supplier {
        let place = Place::draw(random);
        Supplier { key, place }
    }

    /// Returns `rows` as a batch.
    pub fn batch(rows: &[Supplier]) -> Result<RecordBatch> {
        Columns::of(rows)
            .int("s_suppkey", |row| row.key)
            .text("s_name", |row| format!("Supplier#{:09}", row.key))
            .text("s_address", |row| &row.place.address)
            .text("s_city", |row| &row.place.city)
            .text("s_nation", |row| row.place.nation())
            .text("s_region", |row| row.place.region())
            .text("s_phone", |row| &row.place.phone)
            .batch()
    }
}

/// A part.
#[derive(Clone, Debug)]
pub struct Part {
    /// Key, from 1.
    pub key: i32,
    /// Two colors.
    pub name: String,
    /// Manufacturer, from 1 to 5.
    pub maker: i32,
    /// Category of the manufacturer, from 1 to 5.
    pub category: i32,
    /// Brand of the category, from 1 to 40.
    pub brand: i32,
    /// A color that is not in the name.
    pub color: &'static str,
    /// Type, as in `PROMO BURNISHED COPPER`.
    pub kind: &'static str,
    /// Size, from 1 to 50.
    pub size: i32,
    /// Container, as in `JUMBO PKG`.
    pub container: &'static str,
}

impl Part {
    /// Draws a part.
    pub fn draw(random: &mut Random, key: i32) -> Part {
        let lists = Distributions::static_default();
        let colors = lists.part_colors().get_values();
        let [color, first, second] = random.three_of(colors.len()).map(|index| colors[index]);
        Part {
            key,
            name: format!("{first} {second}"),
            maker: random.between(1, 5),
            category: random.between(1, 5),
            brand: random.between(1, 40),
            color,
            kind: random.one_of(lists.part_types().get_values()),
            size: random.between(1, 50),
            container: random.one_of(lists.part_containers().get_values()),
        }
    }

    /// Returns the name of the manufacturer.
    pub fn maker_name(&self) -> String {
        format!("MFGR#{}", self.maker)
    }

    /// Returns the name of the category, which begins with the manufacturer's.
    pub fn category_name(&self) -> String {
        format!("MFGR#{}{}", self.maker, self.category)
    }

    /// Returns the name of the brand, which begins with the category's.
    pub fn brand_name(&self) -> String {
        format!("MFGR#{}{}{}", self.maker, self.category, self.brand)
    }

    /// Returns `rows` as a batch.
    pub fn batch(rows: &[Part]) -> Result<RecordBatch> {
        Columns::of(rows)
            .int("p_partkey", |row| row.key)
            .text("p_name", |row| &row.name)
            .text("p_mfgr", Part::maker_name)
            .text("p_category", Part::category_name)
            .text("p_brand1", Part::brand_name)
            .text("p_color", |row| row.color)
            .text("p_type", |row| row.kind)
            .int("p_size", |row| row.size)
            .text("p_container", |row| row.container)
            .batch()
    }
}

/// Returns the price of a part in cents, which the key alone determines.
pub fn price(part: i32) -> i32 {
    90_000 + part / 10 % 20_001 + part % 1_000 * 100
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn lists_are_those_of_tpch() {
        let lists = Distributions::static_default();
        let nations: Vec<&str> = NATIONS.iter().map(|(nation, _)| *nation).collect();
        assert_eq!(lists.nations().get_values(), nations);
        let regions: HashSet<&str> = NATIONS.iter().map(|(_, region)| *region).collect();
        assert_eq!(
            regions,
            lists.regions().get_values().iter().copied().collect()
        );
        for region in regions {
            let nations = NATIONS.iter().filter(|(_, of)| *of == region);
            assert_eq!(nations.count(), 5, "{region}");
        }
        // The generator draws each value with the same probability, as the weights of these lists tell.
        let drawn = [
            (lists.market_segments(), 5),
            (lists.part_colors(), 92),
            (lists.part_types(), 150),
            (lists.part_containers(), 40),
            (lists.order_priority(), 5),
            (lists.ship_modes(), 7),
        ];
        for (list, count) in drawn {
            assert_eq!(list.size(), count);
            let weights: Vec<i32> = (0..count).map(|index| list.get_weight(index)).collect();
            assert!(
                weights
                    .iter()
                    .zip(1..)
                    .all(|(sum, index)| *sum == weights[0] * index)
            );
        }
    }

    #[test]
    fn places_are_a_hierarchy() {
        let mut random = Random::of_group("test", 0);
        let places: Vec<Place> = (0..20_000).map(|_| Place::draw(&mut random)).collect();
        let cities: HashSet<&str> = places.iter().map(|place| &*place.city).collect();
        assert_eq!(cities.len(), 250);
        assert!(cities.contains("UNITED KI1") && cities.contains("PERU     0"));
        for place in &places {
            assert_eq!(place.city.len(), 10);
            let city = place.city[..9].trim_end();
            assert!(place.nation().starts_with(city), "{place:?}");
            assert!((6..=24).contains(&place.address.len()), "{place:?}");
            let code: usize = place.phone[..2].parse().expect("a number");
            assert_eq!((code, place.phone.len()), (10 + place.nation, 15));
        }
    }

    #[test]
    fn parts_are_a_hierarchy() {
        let mut random = Random::of_group("test", 1);
        let parts: Vec<Part> = (1..=20_000)
            .map(|key| Part::draw(&mut random, key))
            .collect();
        let different = |of: fn(&Part) -> String| parts.iter().map(of).collect::<HashSet<_>>();
        assert_eq!(different(Part::maker_name).len(), 5);
        assert_eq!(different(Part::category_name).len(), 25);
        assert_eq!(different(Part::brand_name).len(), 1_000);
        assert_eq!(different(|part| part.color.to_owned()).len(), 92);
        for part in &parts {
            let (first, second) = part.name.split_once(' ').expect("two colors");
            let colors = HashSet::from([first, second, part.color]);
            assert_eq!(colors.len(), 3, "{part:?}");
            assert!(part.brand_name().starts_with(&part.category_name()));
            assert!(part.category_name().starts_with(&part.maker_name()));
        }
    }

    #[test]
    fn prices_are_dbgens() {
        assert_eq!(price(1), 90_100);
        assert_eq!(price(999), 90_099 + 99_900);
        assert_eq!(price(1_000), 90_100);
        assert_eq!(price(200_000), 90_000 + 20_000);
    }
}
