//! Random queries.
//!
//! Of the environment: `FOREBAY_GPU_SEED` and `FOREBAY_GPU_QUERIES` are the first seed and the number of seeds,
//! `FOREBAY_GPU_CONSTANTS` how often each query runs again with other constants, `FOREBAY_GPU_ROWS` the rows of `t`
//! on a GPU, and `FOREBAY_GPU_ROOM` the bytes that tables of joins may take, and totals as many.

use std::ops::{Add, Range};
use std::sync::atomic::Ordering;

use datafusion::common::runtime::SpawnedTask;
use datafusion::physical_plan::displayable;
use fastrand::Rng;
use futures_util::StreamExt;

use super::floats::are_alike;
use super::slices::slices_of_tables;
use super::{Fixture, has_operator, of_all_threads};
use crate::placement::NO_ROOM;

/// Joins with `t`, and what they bring.
const JOINS: &[(&str, &[&str], &[&str])] = &[
    (
        "JOIN d ON a = d.k",
        &[
            "label = 'x'",
            "label <> ''",
            "weight > 100",
            "small < 2",
            "d.level > 1.5",
            "label IS NULL",
        ],
        &["label", "small", "d.r", "upper(label)"],
    ),
    (
        "LEFT JOIN d ON a = d.k",
        &[
            "label = 'x'",
            "label IS NULL",
            "weight < b",
            "coalesce(small, 2) = 2",
            "NOT small = 1",
        ],
        &["label", "small", "coalesce(label, 'none')"],
    ),
    (
        "LEFT JOIN d ON a = d.k AND quantity > odd",
        &[
            "weight IS NULL",
            "odd > 9 OR label IS NULL",
            "small < 2",
            "weight < b",
        ],
        &["label", "small", "coalesce(label, 'none')"],
    ),
    (
        "JOIN c ON name = code",
        &["n > 6", "code <> 'x'", "n < b"],
        &["code", "n"],
    ),
    (
        "LEFT JOIN c ON upper(name) = code AND a > 2",
        &["n IS NULL", "n < 9 OR ok", "code = 'AB'"],
        &["code", "n"],
    ),
    (
        "JOIN d ON a = d.k JOIN r ON d.r = r.r",
        &[
            "title LIKE 't%'",
            "title IS NOT NULL",
            "weight > 0 OR title = 'ten'",
        ],
        &["title", "label", "r.r + 1"],
    ),
    (
        "LEFT JOIN (SELECT k, title, odd FROM d JOIN r ON d.r = r.r WHERE small < 2) n ON a = n.k",
        &[
            "title = 'ten'",
            "title IS NULL",
            "odd > a",
            "coalesce(odd, 1) < 9",
        ],
        &["title"],
    ),
    (
        "JOIN m ON a = m.k",
        &["v > 3", "v < b", "m.k < 5", "v IN (1, 2, 8)"],
        &["v", "v + 1"],
    ),
    (
        "LEFT JOIN m ON a = m.k",
        &["v IS NULL", "coalesce(v, 7) > 5"],
        &["v", "coalesce(v, 0)"],
    ),
    (
        "LEFT JOIN m ON a = m.k AND quantity > v * 5",
        &["v IS NULL", "coalesce(v, 7) > 5", "v < b"],
        &["v", "coalesce(v, 0)"],
    ),
    (
        "JOIN (SELECT one.k, one.v, other.v AS w FROM m AS one JOIN m AS other ON one.k = other.k) AS n ON a = n.k",
        &["n.v > 3", "w < b", "n.v <> w", "n.k < 5"],
        &["w", "n.v + w"],
    ),
    (
        "FULL JOIN d ON a = d.k",
        &[
            "label IS NULL",
            "b IS NULL OR weight > 3",
            "coalesce(small, 2) = 2",
        ],
        &["label", "small", "coalesce(label, 'none')"],
    ),
    (
        "CROSS JOIN (SELECT max(v) AS most, avg(k) AS mean FROM m) AS o",
        &["a < most", "quantity > mean", "most > 3"],
        &["most", "most - a"],
    ),
    (
        "JOIN c ON b < n",
        &["n > 6", "code = 'x'", "n > a"],
        &["code", "n"],
    ),
    (
        "LEFT JOIN c ON b < n AND (ok OR n > 9)",
        &["n IS NULL", "n < 9 OR ok", "code = 'x'"],
        &["code", "n"],
    ),
    (
        "JOIN p ON a = one AND quantity = two",
        &["cost > 20.05", "cost < price", "one > 2"],
        &["one", "one + 1"],
    ),
];
/// Conditions on `t`.
pub(super) const CONDITIONS: &[&str] = &[
    "a > 3",
    "a < 9",
    "b > 0",
    "b BETWEEN -1000 AND 500",
    "quantity < 24",
    "price > 50000.5",
    "discount <= 0.07",
    "ok",
    "NOT ok",
    "ok IS NULL",
    "name LIKE 'a%'",
    "name = 'ab'",
    "name IS NULL",
    "name IN ('x', 'cd', '')",
    "flag <> 'N'",
    "day >= DATE '1994-01-01'",
    "day < DATE '1997-07-07'",
    "a = quantity",
    "a IS NOT NULL",
    "a IN (1, 2, 3)",
    "a NOT IN (4, 5)",
    "tiny * 3 > b",
    "wide > 0",
    "moment < TIMESTAMP '2001-01-01 00:00:00'",
    "extract(month FROM day) = 5",
    "extract(hour FROM moment) < 12",
    "extract(isodow FROM until) > 5",
    "moment + INTERVAL '1 month' < until",
    "date_trunc('quarter', zoned) < night",
    "CAST(until AS DATE) > day",
    "fare > 50000.5::double",
    "ratio < 1.7::double",
    "tip = 0.3::real",
    "third BETWEEN -100 AND 100",
    "strange > 0",
    "strange <= 5e6::double",
    "fare * (1 - ratio / 100) > 40000",
    "abs(ratio - 1) < 0.9::double",
    "length(name) > 1",
    "nothing IS NULL",
    "price * (1 - discount) > 40000",
    "b / 17 > 30",
    "b % 16 = 3",
    "quantity % 11 < a",
    "price / quantity > 2500.5",
    "price % 13 < 4.5",
    "wide / 33 > price",
    "a IS DISTINCT FROM quantity",
    "nullif(a, 3) > 2",
    "greatest(a, quantity, 24) = 24",
    "least(b, wide) < -500",
    "abs(b) < 900",
    "CAST(price AS BIGINT) % 12 > 6",
    "CASE a WHEN 3 THEN 1 WHEN tiny THEN quantity ELSE 0 END > 12",
    "b IN (-1000, -910, -812, -700, -650, -555, -321, -300, -44, 11, 99, 150, 333, 420, 600, 765, 888, 901)",
    "EXISTS (SELECT 1 FROM m WHERE m.k = a)",
    "NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > 4)",
    "a IN (SELECT k FROM m WHERE v < 3)",
    "quantity IN (SELECT two FROM p WHERE cost > 30)",
    "a IN (SELECT k FROM m WHERE v > 3) OR quantity < 9",
    "EXISTS (SELECT 1 FROM m WHERE m.k = a AND v * 5 > quantity)",
    "NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > b)",
    "EXISTS (SELECT 1 FROM m WHERE m.k = tiny AND v > quantity - 9) OR ok",
    "NOT EXISTS (SELECT 1 FROM c WHERE n * 2 > quantity AND n < a)",
    "a NOT IN (SELECT k FROM m WHERE v < 3)",
    "a NOT IN (SELECT k FROM m WHERE k IS NOT NULL AND v > 5)",
    "name NOT IN (SELECT label FROM d WHERE odd > 9 AND label <> 'x')",
    "name IN (SELECT label FROM d WHERE odd > 3)",
];
pub(super) const KEYS: &[&str] = &[
    "flag",
    "name",
    "a",
    "ok",
    "tiny",
    "discount",
    "extract(year FROM day)",
    "substr(name, 1, 1)",
    "a > 3",
    "name LIKE '%b%'",
    "nothing",
    "date_trunc('month', day)",
    "date_trunc('month', until)",
    "date_trunc('day', moment)",
    "date_bin(INTERVAL '3 days', night)",
    "extract(week FROM zoned)",
    "CAST(moment AS DATE)",
    "a + quantity",
    "quantity * 3 - a",
    "b % 100",
    "(a + quantity) / 4",
    "coalesce(nullif(a, 2), quantity)",
    "tip",
    "fare",
    "CAST(floor(fare / 1000) AS INT)",
];
const AGGREGATES: &[&str] = &[
    "count(*)",
    "count(a)",
    "count(name)",
    "min(name)",
    "max(upper(name))",
    "bool_or(ok)",
    "bool_and(a > 3)",
    "sum(a)",
    "sum(b)",
    "min(b)",
    "max(a)",
    "avg(a)",
    "sum(price)",
    "avg(price)",
    "sum(price * discount)",
    "sum(price * (1 - discount))",
    "max(day)",
    "min(moment)",
    "max(until - moment)",
    "max(date_trunc('minute', zoned))",
    "sum(extract(doy FROM night))",
    "min(until - INTERVAL '1 month')",
    "sum(quantity * 2 - 1)",
    "min(wide)",
    "sum(wide)",
    "sum(CASE WHEN a > 3 THEN quantity ELSE 0 END)",
    "count(*) FILTER (WHERE b > 0)",
    "max(price) FILTER (WHERE ok)",
    "sum(CASE WHEN ok THEN 1 WHEN a = 2 THEN b END)",
    "min(a + quantity)",
    "max(-tiny)",
    "sum(b / 7)",
    "min(a % quantity)",
    "max(floor(price))",
    "sum(abs(b))",
    "sum(quantity / nullif(a, 0))",
    "sum(CASE WHEN tiny <> 0 THEN b / tiny ELSE b END)",
    "sum(fare)",
    "avg(fare)",
    "min(fare)",
    "max(third)",
    "sum(fare * (1 - ratio / 100))",
    "sum(tip)",
    "stddev(fare)",
    "var_pop(quantity)",
    "avg(ratio) FILTER (WHERE ok)",
    "sum(CASE WHEN a > 3 THEN fare ELSE 0 END)",
    "count(DISTINCT a)",
    "count(DISTINCT b) FILTER (WHERE ok)",
    "sum(DISTINCT price)",
];

/// What windows are ordered by.
const ORDERS: &[&str] = &[
    "b",
    "day",
    "price DESC",
    "quantity",
    "moment DESC",
    "name NULLS FIRST",
    "a DESC NULLS LAST",
    "fare",
    "tiny + quantity",
    "ok DESC",
    "wide",
];

/// Returns a random query of a window function, whose answer does not depend on the order of equal rows.
fn windowed(random: &mut Rng) -> String {
    let (mut from, mut keys) = ("", KEYS.to_vec());
    let mut conditions = CONDITIONS[..20].to_vec();
    if random.bool() {
        let (join, more, more_keys) = *random.choice(JOINS).expect("joins");
        from = join;
        conditions.extend(more);
        (0..3).for_each(|_| keys.extend(more_keys));
    }
    let pick = |random: &mut Rng, from: &[&str], count: usize| -> Vec<String> {
        let picked = (0..count).map(|_| random.choice(from).expect("one").to_string());
        picked.collect()
    };
    let count = random.usize(..3);
    let partition = pick(random, &keys, count);
    let count = random.usize(..3);
    let order = pick(random, ORDERS, count);
    let ranks = ["rank()", "dense_rank()"];
    let function = match random.bool() {
        true => pick(random, &ranks, 1).remove(0),
        false => {
            let plain = AGGREGATES.iter().copied();
            let plain = plain.filter(|it| !it.contains("DISTINCT") && !it.contains("FILTER"));
            pick(random, &plain.collect::<Vec<_>>(), 1).remove(0)
        }
    };
    let clause = |name: &str, of: &[String]| match of.is_empty() {
        true => String::new(),
        false => format!("{name} BY {} ", of.join(", ")),
    };
    let over = clause("PARTITION", &partition) + &clause("ORDER", &order);
    let filter = pick(random, &conditions, 1).remove(0);
    let key = pick(random, &keys, 1).remove(0);
    let rows =
        format!("SELECT {key} AS c0, {function} OVER ({over}) AS c1 FROM t {from} WHERE {filter}");
    let is_rank = ranks.contains(&function.as_str());
    match random.u8(..3) {
        0 => rows,
        1 if is_rank => format!(
            "SELECT * FROM ({rows}) AS x WHERE c1 <= {}",
            random.u8(1..9)
        ),
        _ => format!(
            "SELECT c0, count(*) AS c2, min(c1) AS c3, max(c1) AS c4 FROM ({rows}) AS x GROUP BY 1"
        ),
    }
}

/// Returns a random query of groups, or of rows, which are sorted as text by the caller.
fn query(random: &mut Rng) -> String {
    if random.u8(..8) == 0 {
        return windowed(random);
    }
    let (mut from, mut conditions, mut keys) = ("", CONDITIONS.to_vec(), KEYS.to_vec());
    if random.u8(..3) > 0 {
        let (join, more, more_keys) = *random.choice(JOINS).expect("joins");
        from = join;
        // Those of the join are as likely as the others.
        (0..4).for_each(|_| conditions.extend(more));
        (0..3).for_each(|_| keys.extend(more_keys));
    }
    of_rows(random, (from, ""), (&conditions, &keys))
}

/// Returns a random query of groups, or of rows: of `t` and this join, if there is one, with the required condition,
/// some of the others, and some of the keys.
pub(super) fn of_rows(
    random: &mut Rng,
    (from, required): (&str, &str),
    (conditions, keys): (&[&str], &[&str]),
) -> String {
    let pick = |random: &mut Rng, from: &[&str], count: usize| -> Vec<String> {
        let picked = (0..count).map(|_| random.choice(from).expect("one").to_string());
        picked.collect()
    };
    let is_list = random.u8(..4) == 0;
    let count = random.usize(..3) + usize::from(is_list);
    let mut keys = pick(random, keys, count);
    keys.dedup();
    let count = if is_list { 0 } else { random.usize(1..4) };
    let aggregates = pick(random, AGGREGATES, count);
    let mut filters = Vec::new();
    if !required.is_empty() {
        filters.push(format!("({required})"));
    }
    for _ in 0..random.u8(..4) {
        let mut alternatives = pick(random, conditions, 1);
        // Subqueries within alternatives are other plans.
        if !alternatives[0].contains("SELECT") && random.u8(..4) == 0 {
            let second = pick(random, &CONDITIONS[..20], 1).remove(0);
            let not = if random.bool() { "NOT " } else { "" };
            alternatives.push(format!("{not}({second})"));
        }
        filters.push(format!("({})", alternatives.join(" OR ")));
    }
    let filter = match filters.is_empty() {
        true => String::new(),
        false => format!(" WHERE {}", filters.join(" AND ")),
    };
    let all: Vec<_> = keys.iter().chain(&aggregates).enumerate().collect();
    let columns = all
        .iter()
        .map(|(index, text)| format!("{text} AS c{index}"));
    let columns: Vec<_> = columns.collect();
    let numbers: Vec<_> = (1..=keys.len()).map(|it| it.to_string()).collect();
    let behind = match numbers.is_empty() {
        true => String::new(),
        false if is_list => order(random, &numbers),
        false => format!(" GROUP BY {}", numbers.join(", ")),
    };
    let table = match random.u8(..8) {
        0 => "(SELECT * FROM t WHERE a > 3 UNION ALL SELECT * FROM t WHERE ok) AS t",
        _ => "t",
    };
    format!(
        "SELECT {} FROM {table} {from}{filter}{behind}",
        columns.join(", ")
    )
}

/// Returns a query of the same shape: the numbers of its conditions, and the years of its dates, are others of as many
/// digits.
fn with_other_constants(random: &mut Rng, query: &str) -> String {
    let begin = query.find(" WHERE ").unwrap_or(query.len());
    let end = [" GROUP BY ", " ORDER BY "].iter();
    let end = end.filter_map(|it| query.find(it)).min();
    let end = end.unwrap_or(query.len()).max(begin);
    let (mut with_others, mut last, mut is_text) = (query[..begin].to_owned(), ' ', false);
    let mut rest = &query[begin..end];
    while let Some(first) = rest.chars().next() {
        let digits = rest.find(|it: char| !it.is_ascii_digit());
        let digits = digits.unwrap_or(rest.len());
        let (number, behind) = rest.split_at(digits.max(first.len_utf8()));
        let is_year = digits == 4 && last == '\'';
        is_text ^= first == '\'';
        // Texts, digits of names, and all that are no digits stay.
        let stays = digits == 0 || last.is_alphanumeric() || is_text && !is_year;
        for (place, digit) in number.char_indices() {
            let other = match (stays, place, number.len()) {
                (true, ..) => digit,
                (_, 0 | 1, _) if is_year => digit,
                (_, 0, 2..) if last != '.' => char::from(random.u8(b'1'..=b'9')),
                _ => char::from(random.u8(b'0'..=b'9')),
            };
            with_others.push(other);
        }
        last = number.chars().last().unwrap_or(last);
        rest = behind;
    }
    with_others + &query[end..]
}

/// Returns nothing, or a random order by all these columns with a limit.
fn order(random: &mut Rng, numbers: &[String]) -> String {
    if random.bool() {
        return String::new();
    }
    let by = numbers.iter().map(|number| {
        let order = ["", " DESC", " NULLS FIRST", " DESC NULLS LAST"];
        format!("{number}{}", random.choice(order).unwrap_or_default())
    });
    let by: Vec<_> = by.collect();
    format!(" ORDER BY {} LIMIT {}", by.join(", "), 1 << random.u8(..10))
}

/// Returns a number of the environment.
pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// What computed random queries: numbers of queries.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Compared {
    pub(super) all: u64,
    on_engine: u64,
    /// Those with tables or groups in slices, and with divided rows.
    pub(super) in_slices: u64,
    pub(super) divided: u64,
    /// Those with tables of joins on the engine, and those of them of which each table is in slices.
    pub(super) joined: u64,
    pub(super) spilled: u64,
}

impl Add for Compared {
    type Output = Compared;

    fn add(self, other: Compared) -> Compared {
        Compared {
            all: self.all + other.all,
            on_engine: self.on_engine + other.on_engine,
            in_slices: self.in_slices + other.in_slices,
            divided: self.divided + other.divided,
            joined: self.joined + other.joined,
            spilled: self.spilled + other.spilled,
        }
    }
}

/// Returns the seeds of random queries: this many, unless the environment tells how many.
pub(super) fn seeds(count: u64) -> Range<u64> {
    let count = number("FOREBAY_GPU_QUERIES").unwrap_or(count);
    let first = number("FOREBAY_GPU_SEED").unwrap_or(30);
    first..first + count
}

/// Sets the bytes that tables of joins may take to `FOREBAY_GPU_ROOM`. Returns whether the environment has it.
pub(super) fn set_room(fixture: &Fixture) -> bool {
    let room = number("FOREBAY_GPU_ROOM");
    if let Some(bytes) = room {
        let most = &fixture.columns.tables_bytes_max;
        most.store(bytes, Ordering::Relaxed);
    }
    room.is_some()
}

/// Runs random queries with the engine and without. With `FOREBAY_GPU_ROOM`, some must be computed in slices, and if
/// the seed is odd, rows are divided whenever they can be.
pub(super) async fn compare_random(fixture: &Fixture, count: u64) -> Compared {
    let seeds = seeds(count);
    let is_set = set_room(fixture);
    if is_set {
        let divides = &fixture.columns.always_divides;
        divides.store(seeds.start % 2 == 1, Ordering::Relaxed);
    }
    let found = compare(fixture, seeds, |_, random| query(random)).await;
    assert!(found.on_engine * 2 > found.all);
    assert!(!is_set || found.in_slices > 0);
    found
}

/// Runs the queries of these seeds with the engine and without, each also with other constants. A thread runs one
/// query at a time.
pub(super) async fn compare(
    fixture: &Fixture,
    seeds: impl Iterator<Item = u64>,
    write: fn(u64, &mut Rng) -> String,
) -> Compared {
    let constants = number("FOREBAY_GPU_CONSTANTS").unwrap_or(1);
    let compared = seeds.map(|seed| {
        let fixture = fixture.clone();
        SpawnedTask::spawn(async move {
            let mut random = Rng::with_seed(seed);
            let query = write(seed, &mut random);
            let mut found = compare_one(&fixture, seed, &query).await;
            for _ in 0..constants {
                let query = with_other_constants(&mut random, &query);
                found = found + compare_one(&fixture, seed, &query).await;
            }
            found
        })
    });
    let compared = of_all_threads(compared);
    let found = compared.fold(Compared::default(), async |all: Compared, it: Compared| {
        all + it
    });
    let found = found.await;
    let Compared {
        all,
        on_engine,
        in_slices,
        divided,
        joined,
        spilled,
    } = found;
    println!(
        "{on_engine} of {all} random queries ran on the engine, {in_slices} in slices, {divided} with divided rows; \
         {joined} had joins, {spilled} with each table in slices"
    );
    found
}

/// Runs a random query with the engine and without. Returns what computed it.
async fn compare_one(fixture: &Fixture, seed: u64, query: &str) -> Compared {
    let (strict, plan) = Fixture::ran(&fixture.with, query).await;
    let (without, _) = Fixture::rows(&fixture.without, query).await;
    let is_full = strict.as_ref().is_err_and(|error| error.contains(NO_ROOM));
    assert!(!is_full, "seed {seed}: {query}\n{strict:?}");
    let plan = plan.filter(|plan| strict.is_ok() && has_operator(plan));
    let printed = plan
        .as_ref()
        .map(|plan| displayable(plan.as_ref()).indent(false).to_string());
    let printed = printed.unwrap_or_default();
    let has = |text: &str| u64::from(printed.contains(text));
    let with = match strict.is_err() {
        true => Fixture::rows(&fixture.lenient, query).await.0,
        false => strict,
    };
    let are_alike = are_alike(query, &with, &without);
    assert!(are_alike, "seed {seed}: {query}\n{with:#?}\n{without:#?}");
    let slices = slices_of_tables(&printed);
    let are_in_slices = slices.iter().all(|it| *it > 1);
    Compared {
        all: 1,
        on_engine: u64::from(plan.is_some()),
        in_slices: has(" slices, "),
        divided: has(" partitions of "),
        joined: u64::from(!slices.is_empty()),
        spilled: u64::from(!slices.is_empty() && are_in_slices),
    }
}
