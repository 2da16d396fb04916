//! Random queries.

use fastrand::Rng;

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
        "JOIN p ON a = one AND quantity = two",
        &["cost > 20.05", "cost < price", "one > 2"],
        &["one", "one + 1"],
    ),
];
/// Conditions on `t`.
const CONDITIONS: &[&str] = &[
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
    "EXISTS (SELECT 1 FROM m WHERE m.k = a)",
    "NOT EXISTS (SELECT 1 FROM m WHERE m.k = a AND v > 4)",
    "a IN (SELECT k FROM m WHERE v < 3)",
    "quantity IN (SELECT two FROM p WHERE cost > 30)",
    "a IN (SELECT k FROM m WHERE v > 3) OR quantity < 9",
    "name IN (SELECT label FROM d WHERE odd > 3)",
];
const KEYS: &[&str] = &[
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
    "a + quantity",
    "quantity * 3 - a",
    "tip",
    "fare",
    "CAST(floor(fare / 1000) AS INT)",
];
const AGGREGATES: &[&str] = &[
    "count(*)",
    "count(a)",
    "count(name)",
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
    "sum(quantity * 2 - 1)",
    "min(wide)",
    "sum(wide)",
    "sum(CASE WHEN a > 3 THEN quantity ELSE 0 END)",
    "count(*) FILTER (WHERE b > 0)",
    "max(price) FILTER (WHERE ok)",
    "sum(CASE WHEN ok THEN 1 WHEN a = 2 THEN b END)",
    "min(a + quantity)",
    "max(-tiny)",
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
];

/// Returns a random query of groups, or of rows, which are sorted as text by the caller.
pub(super) fn query(random: &mut Rng) -> String {
    let (mut from, mut conditions, mut keys) = ("", CONDITIONS.to_vec(), KEYS.to_vec());
    if random.u8(..3) > 0 {
        let (join, more, more_keys) = *random.choice(JOINS).expect("joins");
        from = join;
        // Those of the join are as likely as the others.
        (0..4).for_each(|_| conditions.extend(more));
        (0..3).for_each(|_| keys.extend(more_keys));
    }
    let pick = |random: &mut Rng, from: &[&str], count: usize| -> Vec<String> {
        let picked = (0..count).map(|_| random.choice(from).expect("one").to_string());
        picked.collect()
    };
    let is_list = random.u8(..4) == 0;
    let count = random.usize(..3) + usize::from(is_list);
    let mut keys = pick(random, &keys, count);
    keys.dedup();
    let count = if is_list { 0 } else { random.usize(1..4) };
    let aggregates = pick(random, AGGREGATES, count);
    let mut filters = Vec::new();
    for _ in 0..random.u8(..4) {
        let mut alternatives = pick(random, &conditions, 1);
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
    format!(
        "SELECT {} FROM t {from}{filter}{behind}",
        columns.join(", ")
    )
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
