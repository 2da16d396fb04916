//! Fuzz test: random text as a pattern never panics, and for patterns that PCRE2 accepts, all tiers agree with PCRE2.
//!
//! `FOREBAY_TEST_SEED` sets the seed.

mod common;
mod seed;

use common::{compare, judge, programs};
use fastrand::Rng;
use forebay_text::{Limits, Options, Pattern};
use seed::seed;

const PATTERNS: usize = 10_000;

/// Fragments that make patterns likely to be valid and parsers likely to fail.
const PIECES: &[&str] = &[
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "?",
    "*",
    "+",
    "|",
    "^",
    "$",
    ".",
    "\\",
    "-",
    ":",
    "=",
    "!",
    "<",
    ">",
    "#",
    ",",
    "1",
    "2",
    "9",
    "a",
    "b",
    "é",
    "K",
    "\n",
    " ",
    "(?",
    "(?:",
    "(?i",
    "(?<",
    "(?'n'",
    "(?P<n>",
    "(?P=n)",
    "(?&n)",
    "(?1)",
    "(?R)",
    "(?(1)",
    "(*",
    "(*UCP)",
    "(*LIMIT_MATCH=",
    "(?#",
    "(?|",
    "(?>",
    "\\Q",
    "\\E",
    "\\x{",
    "\\x",
    "\\o{",
    "\\c",
    "\\p{",
    "\\p",
    "\\P{^L}",
    "\\g{-1}",
    "\\k<n>",
    "\\N",
    "\\R",
    "\\K",
    "[[:alpha:]]",
    "[:",
    ":]",
    "[^",
    "{2}",
    "{1,",
    "{,3}",
    "\u{85}",
    "😀",
    "\u{1}",
];

fn random_pattern(rng: &mut Rng) -> String {
    let count = rng.usize(..12);
    (0..count)
        .map(|_| match rng.u8(..8) {
            0 => rng.char(..).to_string(),
            _ => PIECES[rng.usize(..PIECES.len())].to_owned(),
        })
        .collect()
}

#[test]
fn random_patterns_never_panic() {
    let seed = seed();
    println!("FOREBAY_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let limits = Limits {
        determinize_bytes_max: 128 << 10,
        ..Limits::default()
    };
    let values = [
        "", "a", "b", "ab", "aa", "é", "\n", "a\n", "[", "a-b", "1", "(?i",
    ];
    for _ in 0..PATTERNS {
        let source = random_pattern(&mut rng);
        let options: String = "imsx".chars().filter(|_| rng.u8(..5) == 0).collect();
        let parsed = Options::parse(&options).expect("generated letters");
        let Ok(pattern) = Pattern::new(&source, parsed, &limits) else {
            continue;
        };
        let (values, expected) = judge(
            &pattern,
            values.iter().map(|text| (*text).to_owned()).collect(),
        );
        for (_, program) in programs(&pattern, &limits) {
            compare(
                &program,
                &values,
                &expected,
                &format!("FOREBAY_TEST_SEED={seed}"),
            );
        }
    }
}

#[test]
fn values_that_are_not_utf8_match_no_pattern_and_harm_nothing() {
    let seed = seed();
    println!("FOREBAY_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    for source in [
        "", "a", "^a", "a$", r"a\z", r"\Aa\z", "[^a]", "(.)x", r"(.)\1", "a.{30}", r"\B",
    ] {
        let pattern = common::pattern(source, "");
        for (_, program) in programs(&pattern, &Limits::default()) {
            for _ in 0..200 {
                let length = rng.usize(..10);
                let value: Vec<u8> = (0..length)
                    .map(|_| *rng.choice(b"a\xff\xc3\xa9\n\x80").expect("bytes"))
                    .collect();
                let expect = pattern.pcre_is_match(&value);
                assert_eq!(
                    program.is_match(&value),
                    expect,
                    "FOREBAY_TEST_SEED={seed}: {program:?} on {value:?}"
                );
            }
        }
    }
}
