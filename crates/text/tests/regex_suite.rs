//! Runs the test suite of Rust's `regex` on the automaton tiers.
//!
//! Tests whose syntax or semantics differ from PCRE2's are excluded by rules; for their patterns, the tiers are
//! compared with PCRE2.

mod common;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use common::{compare, judge, programs};
use forebay_text::{Limits, Options, Pattern, Tier};
use serde::Deserialize;
use toml::Value;

/// The tiers that are built from this crate's own tree; the others compare literals or call PCRE2.
const AUTOMATA: [Tier; 3] = [Tier::BitParallel, Tier::Dfa, Tier::LargeDfa];

/// Minimum numbers of tests, as counted when the suite was imported: tests that mean the same in PCRE2, and tests that
/// an automaton tier accepts.
const SAME_MIN: usize = 354;
const TAKEN_MIN: usize = 321;

#[derive(Deserialize)]
struct File {
    test: Vec<Test>,
}

/// A test of the suite. The tests in this file compare only whether a value matches, not positions, captures or the
/// number of matches. So they use only whether the field `matches` is empty.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Test {
    name: String,
    regex: Value,
    haystack: String,
    matches: Vec<Value>,
    #[serde(default = "yes")]
    compiles: bool,
    #[serde(default)]
    anchored: bool,
    #[serde(default)]
    unescape: bool,
    #[serde(default)]
    case_insensitive: bool,
    #[serde(default = "yes")]
    unicode: bool,
    bounds: Option<Value>,
    line_terminator: Option<String>,
}

fn yes() -> bool {
    true
}

impl Test {
    fn source(&self) -> &str {
        self.regex.as_str().unwrap_or_default()
    }

    fn pattern(&self) -> Option<Pattern> {
        let options = Options {
            ignore_case: self.case_insensitive,
            ..Options::default()
        };
        Pattern::new(self.source(), options, &Limits::default()).ok()
    }

    fn has_any(&self, parts: &[&str]) -> bool {
        parts.iter().any(|part| self.source().contains(part))
    }

    /// Returns why the test does not apply to PCRE2's patterns; `None` if it applies.
    fn difference(&self) -> Option<&'static str> {
        let mut rules = DIFFERENCES.iter();
        rules.find(|(_, applies)| applies(self)).map(|rule| rule.0)
    }

    /// Runs the test on every tier that accepts its pattern; returns whether one of them is an automaton.
    fn run(&self) -> bool {
        let pattern = self.pattern().expect("the rules leave valid patterns");
        let expected: &[u32] = if self.matches.is_empty() { &[] } else { &[0] };
        let values = [self.haystack.clone()];
        let programs = programs(&pattern, &Limits::default());
        for (_, program) in &programs {
            compare(program, &values, expected, &self.name);
        }
        let mut forced = programs.iter().filter_map(|(tier, _)| *tier);
        forced.any(|tier| AUTOMATA.contains(&tier))
    }

    /// Compares all tiers with PCRE2, if PCRE2 accepts the pattern.
    fn run_as_pcre2_means(&self) {
        let Some(pattern) = self.pattern() else {
            return;
        };
        let (values, expected) = judge(&pattern, vec![self.haystack.clone()]);
        for (_, program) in programs(&pattern, &Limits::default()) {
            compare(&program, &values, &expected, &self.name);
        }
    }
}

/// A reason to exclude tests, and a predicate that selects these tests.
type Difference = (&'static str, fn(&Test) -> bool);

/// Reasons to exclude a test; the first that applies counts.
const DIFFERENCES: &[Difference] = &[
    ("several patterns at once", |test| test.regex.is_array()),
    ("which patterns are valid is PCRE2's to say", |test| {
        !test.compiles || test.pattern().is_none()
    }),
    ("a search that must match at its start", |test| {
        test.anchored
    }),
    ("a search within a part of a value", |test| {
        test.bounds.is_some()
    }),
    ("another line terminator than LF", |test| {
        test.line_terminator.is_some()
    }),
    (
        "a value written as bytes; what is not UTF-8 matches nothing",
        |test| test.unescape,
    ),
    ("a pattern of bytes, not of characters", |test| {
        !test.unicode && !test.haystack.is_ascii()
    }),
    ("(?R) is a recursion, not a flag", |test| {
        test.has_any(&["(?R)"])
    }),
    ("\\b{start} is a word boundary and a literal", |test| {
        test.has_any(&[r"\b{"])
    }),
    (r"\w, \d, \s and \b know ASCII alone", |test| {
        !test.haystack.is_ascii() && test.has_any(&[r"\w", r"\d", r"\s", r"\b", r"\B"])
    }),
    ("regex-lite folds the case of ASCII alone", |test| {
        test.name == "case-insensitive-is-ascii-only"
    }),
    ("$ also matches before a newline at the end", |test| {
        test.haystack.ends_with('\n') && test.has_any(&["$"])
    }),
];

fn suite() -> Vec<Test> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/regex-suite");
    let entries = fs::read_dir(folder).expect("the suite is there");
    let files = entries.map(|entry| entry.expect("an entry").path());
    files
        .filter(|file| {
            file.extension()
                .is_some_and(|extension| extension == "toml")
        })
        .flat_map(|file| {
            let text = fs::read_to_string(&file).expect("the file of tests can be read");
            toml::from_str::<File>(&text).expect("a file of tests").test
        })
        .collect()
}

#[test]
fn values_match_as_the_suite_says() {
    let mut left_out: BTreeMap<&str, usize> = BTreeMap::new();
    let (mut same, mut taken) = (0, 0);
    for test in suite() {
        match test.difference() {
            Some(reason) => {
                *left_out.entry(reason).or_default() += 1;
                test.run_as_pcre2_means();
            }
            None => {
                same += 1;
                taken += usize::from(test.run());
            }
        }
    }
    println!("{same} tests mean the same, {taken} run on automata; left out: {left_out:#?}");
    assert!(same >= SAME_MIN && taken >= TAKEN_MIN);
}
