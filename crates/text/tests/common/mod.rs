//! Helpers of the test suites: build blocks of rows, run a pattern on all tiers, and generate patterns and values.

#![allow(dead_code, reason = "each suite uses its part")]

pub mod generate;

use forebay_cancel::Stop;
use forebay_text::{Limits, Options, Pattern, PcreOutcome, Program, Rows, SEPARATOR, Tier};

/// A block of rows and their offsets.
pub struct Block {
    pub bytes: Vec<u8>,
    pub offsets: Vec<u32>,
}

impl Block {
    pub fn new<'a>(values: impl IntoIterator<Item = &'a str>) -> Block {
        let mut block = Block {
            bytes: Vec::new(),
            offsets: vec![0],
        };
        for value in values {
            block.bytes.extend_from_slice(value.as_bytes());
            block.bytes.push(SEPARATOR);
            block
                .offsets
                .push(u32::try_from(block.bytes.len()).expect("a small block"));
        }
        block
    }

    pub fn rows(&self) -> Rows<'_> {
        Rows {
            bytes: &self.bytes,
            offsets: &self.offsets,
        }
    }
}

/// Compiles the pattern to every tier that accepts it; `None` marks the tier that is chosen by default.
pub fn programs(pattern: &Pattern, limits: &Limits) -> Vec<(Option<Tier>, Program)> {
    let forced = Tier::ALL.into_iter().filter_map(|tier| {
        let program = Program::compile_at(pattern.clone(), tier, limits)?;
        assert_eq!(program.tier(), tier, "{program:?}");
        Some((Some(tier), program))
    });
    let chosen = (None, Program::compile(pattern.clone(), limits));
    std::iter::once(chosen).chain(forced).collect()
}

pub fn pattern(source: &str, options: &str) -> Pattern {
    let options = Options::parse(options).expect("valid options");
    Pattern::new(source, options, &Limits::default())
        .unwrap_or_else(|error| panic!("/{source}/ is valid: {error}"))
}

/// Returns the rows that a program reports.
pub fn search(program: &Program, rows: Rows<'_>) -> Vec<u32> {
    let mut found = Vec::new();
    program
        .search_rows(rows, &Stop::never(), &mut |row| found.push(row))
        .expect("nothing stops the search");
    found
}

pub fn count(program: &Program, rows: Rows<'_>) -> u64 {
    program
        .count_rows(rows, &Stop::never())
        .expect("nothing stops the search")
}

/// Compares one program with the expected rows: value by value, over the whole block and over slices of it.
pub fn compare(program: &Program, values: &[String], expected: &[u32], context: &str) {
    for (row, value) in values.iter().enumerate() {
        let expect = expected.binary_search(&(row as u32)).is_ok();
        assert_eq!(
            program.is_match(value.as_bytes()),
            expect,
            "{context}: {program:?} on {value:?}"
        );
        check_prefix(program, value, expect, context);
    }
    let block = Block::new(values.iter().map(String::as_str));
    let third = values.len() / 3;
    for range in [
        0..values.len(),
        third..values.len() - third,
        third..third,
        third..third + 1,
    ] {
        let rows = block.rows().slice(range.clone());
        let within = expected
            .iter()
            .filter(|&&row| range.contains(&(row as usize)));
        let expect: Vec<u32> = within.map(|&row| row - range.start as u32).collect();
        assert_eq!(
            search(program, rows),
            expect,
            "{context}: {program:?} searching rows {range:?}"
        );
        assert_eq!(
            count(program, rows),
            expect.len() as u64,
            "{context}: {program:?} counting {range:?}"
        );
    }
}

fn check_prefix(program: &Program, value: &str, matches: bool, context: &str) {
    let prefix = program.value_prefix();
    let begins = value.as_bytes().starts_with(prefix);
    assert!(
        begins || !matches,
        "{context}: {program:?} matches {value:?} without its prefix"
    );
    if program.is_prefix() {
        assert_eq!(
            matches, begins,
            "{context}: {program:?} is no prefix at {value:?}"
        );
    }
    if program.is_exact() {
        assert_eq!(
            matches,
            value.as_bytes() == prefix,
            "{context}: {program:?} is not exact at {value:?}"
        );
    }
}

/// Returns the same pattern without PCRE2's automatic possessive quantifiers, if they may change which values match.
/// PCRE2 10.42 then loses matches if an optional item stands before an optional atomic group: `b?(?:a)?+b` does not
/// match "b".
fn unoptimised(pattern: &Pattern) -> Option<Pattern> {
    let source = pattern.source();
    let is_suspect = ["?+", "}+", "(?>"]
        .iter()
        .any(|atomic| source.contains(atomic));
    let source = format!("(*NO_AUTO_POSSESS){source}");
    let limits = Limits::default();
    is_suspect.then(|| Pattern::new(&source, pattern.options(), &limits).ok())?
}

/// Runs PCRE2 on the values; returns the values that it could decide, and the indexes of those that match. Leaves out
/// values on which PCRE2's own optimisation changes the outcome.
pub fn judge(pattern: &Pattern, values: Vec<String>) -> (Vec<String>, Vec<u32>) {
    let mut decided = Vec::new();
    let mut matching = Vec::new();
    let unoptimised = unoptimised(pattern);
    for value in values {
        let outcome = pattern.pcre_outcome(value.as_bytes());
        if let Some(unoptimised) = &unoptimised {
            let other = unoptimised.pcre_outcome(value.as_bytes());
            if matches!(
                (&outcome, other),
                (PcreOutcome::NoMatch, PcreOutcome::Match)
            ) {
                continue;
            }
        }
        match outcome {
            PcreOutcome::Match => matching.push(decided.len() as u32),
            // A failure such as endless recursion counts as no match.
            PcreOutcome::NoMatch | PcreOutcome::Failed { .. } => {}
            PcreOutcome::LimitPassed => continue,
        }
        decided.push(value);
    }
    (decided, matching)
}
