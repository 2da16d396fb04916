//! Random documents, filters and writes, over all types of values and all kinds of conditions.

use bson::{Bson, Document, Regex, bson, doc};
use fastrand::Rng;

/// Strings that provoke common mistakes: line ends, NUL, letters beyond ASCII, letters with unusual case folding.
const STRINGS: [&str; 24] = [
    "",
    "a",
    "ab",
    "abc",
    "b",
    "foo",
    "foo\n",
    "Foo",
    "foobar",
    "barfoo",
    "foo\nbar",
    "x\0y",
    "suárez",
    "SUÁREZ",
    "k",
    "K",
    "\u{212A}",
    "ſ",
    "s",
    "日本語",
    "a b",
    "aaa",
    "42",
    "€uro",
];

/// Patterns of every matching tier, without options.
const PATTERNS: [&str; 20] = [
    "^foo",
    "foo$",
    "^foo$",
    "foo",
    "^",
    "",
    "a",
    "^a",
    "o{2}",
    "[ab]+",
    "^[a-c]{2}$",
    "k",
    "s",
    "b.r",
    "x.y",
    "\\d",
    "^(?!foo)",
    "(.)\\1",
    "(?<=f)oo",
    "á|語",
];

/// Returns one of [`STRINGS`], alone or followed by another one or by a number.
pub fn string(rng: &mut Rng) -> String {
    let first = STRINGS[rng.usize(..STRINGS.len())];
    match rng.u8(..12) {
        0..6 => first.to_owned(),
        6..11 => format!("{first}{}", STRINGS[rng.usize(..STRINGS.len())]),
        _ => format!("{first}{}", rng.u32(..10_000)),
    }
}

fn strings(rng: &mut Rng, most: usize) -> Vec<Bson> {
    (0..rng.usize(..=most))
        .map(|_| Bson::from(string(rng)))
        .collect()
}

/// Returns a value of a cached field, or `None` for a missing field.
pub fn value(rng: &mut Rng) -> Option<Bson> {
    Some(match rng.u8(..40) {
        0..20 => Bson::from(string(rng)),
        20..23 => return None,
        23..25 => Bson::Null,
        25 => Bson::Int32(rng.i32(0..5)),
        26 => Bson::Double(f64::from(rng.i32(0..5))),
        27..31 => Bson::Array(strings(rng, 3)),
        31 => mixed_array(rng),
        32 => bson!([[string(rng)]]),
        33 => bson!({ "c": string(rng) }),
        34 => Bson::RegularExpression(regex(rng)),
        35 => Bson::Symbol(string(rng)),
        36 => Bson::Undefined,
        37 => Bson::Array(vec![Bson::Int32(1), Bson::Int32(2)]),
        38 => bson!([{ "c": string(rng) }, { "c": string(rng) }]),
        _ if rng.u8(..5) == 0 => Bson::from("long ".repeat(14_000)),
        _ => Bson::Boolean(true),
    })
}

fn mixed_array(rng: &mut Rng) -> Bson {
    let mut array = strings(rng, 2);
    array.push(match rng.u8(..4) {
        0 => Bson::Null,
        1 => Bson::Int64(3),
        2 => bson!({ "c": 1 }),
        _ => Bson::Boolean(true),
    });
    Bson::Array(array)
}

/// Returns a value of `b`, which contains the cached field `b.c`.
fn holder(rng: &mut Rng) -> Option<Bson> {
    let inner = |rng: &mut Rng| -> Bson {
        let mut document = doc! {};
        if let Some(value) = value(rng) {
            document.insert("c", value);
        }
        Bson::Document(document)
    };
    Some(match rng.u8(..16) {
        0..10 => inner(rng),
        10..13 => Bson::Array((0..rng.usize(..3)).map(|_| inner(rng)).collect()),
        13 => return None,
        14 => bson!([string(rng), inner(rng)]),
        _ => Bson::from(string(rng)),
    })
}

/// Returns a document with the cached fields `a` and `b.c`, and the fields `n` and `u`, which are not cached.
pub fn document(rng: &mut Rng, id: i32) -> Document {
    let mut document = doc! { "_id": id, "n": rng.i32(0..20) };
    if let Some(value) = value(rng) {
        document.insert("a", value);
    }
    if let Some(value) = holder(rng) {
        document.insert("b", value);
    }
    if rng.bool() {
        document.insert("u", string(rng));
    }
    document
}

fn regex(rng: &mut Rng) -> Regex {
    let pattern = PATTERNS[rng.usize(..PATTERNS.len())];
    let options = ["", "", "", "i", "m", "s", "im"][rng.usize(..7)];
    Regex {
        pattern: pattern.try_into().expect("no NUL"),
        options: options.try_into().expect("no NUL"),
    }
}

fn regex_operand(rng: &mut Rng) -> Bson {
    let regex = regex(rng);
    if rng.bool() {
        Bson::RegularExpression(regex)
    } else {
        bson!({ "$regex": regex.pattern.as_str(), "$options": regex.options.as_str() })
    }
}

fn list(rng: &mut Rng) -> Bson {
    let mut list = strings(rng, 3);
    if rng.u8(..4) == 0 {
        list.push(Bson::Null);
    }
    if rng.u8(..3) == 0 {
        list.push(Bson::RegularExpression(regex(rng)));
    }
    if rng.u8(..12) == 0 {
        list.push(Bson::Int32(3));
    }
    Bson::Array(list)
}

/// Returns a condition on a cached field, usually one that the cache can evaluate.
fn condition(rng: &mut Rng) -> Bson {
    match rng.u8(..22) {
        0..3 => Bson::from(string(rng)),
        3 => Bson::Null,
        4..8 => regex_operand(rng),
        8..10 => bson!({ "$in": list(rng) }),
        10..12 => bson!({ "$nin": list(rng) }),
        12 => bson!({ "$ne": string(rng) }),
        13 => bson!({ "$ne": Bson::Null }),
        14 => bson!({ "$not": regex_operand(rng) }),
        15 => bson!({ "$exists": rng.bool() }),
        16 => bson!({ "$eq": string(rng) }),
        17 => bson!({ "$all": [string(rng)] }),
        18 => bson!({ "$gt": string(rng) }),
        19 => bson!({ "$type": "string" }),
        20 => bson!({ "$not": { "$in": list(rng) }, "$exists": true }),
        _ => bson!({ "$elemMatch": { "$eq": string(rng) } }),
    }
}

fn leaf(rng: &mut Rng) -> Document {
    match rng.u8(..10) {
        0..5 => doc! { "a": condition(rng) },
        5..8 => doc! { "b.c": condition(rng) },
        8 => doc! { "n": { "$lt": rng.i32(0..20) } },
        _ => doc! { "u": condition(rng) },
    }
}

/// Returns a filter of at most `depth` levels of `$and`, `$or` and `$nor`.
pub fn filter(rng: &mut Rng, depth: u32) -> Document {
    if depth == 0 || rng.u8(..3) > 0 {
        return leaf(rng);
    }
    let operator = ["$and", "$or", "$nor"][rng.usize(..3)];
    let branches: Vec<Bson> = (0..rng.usize(1..4))
        .map(|_| Bson::from(filter(rng, depth - 1)))
        .collect();
    match rng.u8(..4) {
        0 => {
            let mut both = leaf(rng);
            both.insert(operator, branches);
            both
        }
        _ => doc! { operator: branches },
    }
}

/// Returns a random update document.
pub fn change(rng: &mut Rng) -> Document {
    match rng.u8(..12) {
        0..4 => match value(rng) {
            Some(value) => doc! { "$set": { "a": value } },
            None => doc! { "$unset": { "a": 1 } },
        },
        4..6 => doc! { "$set": { "b": holder(rng).unwrap_or(Bson::Null) } },
        6 => doc! { "$set": { "b": { "c": string(rng) } }, "$inc": { "n": 1 } },
        7 => doc! { "$unset": { "b": 1 } },
        8 => doc! { "$rename": { "u": "a" } },
        9 => doc! { "$set": { "a": [string(rng), string(rng)] } },
        10 => doc! { "$inc": { "n": 1 } },
        _ => doc! { "$currentDate": { "t": true }, "$set": { "u": string(rng) } },
    }
}
