//! Limits of a pattern's cost: compile time and table size, search time.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{Block, compare, judge, pattern, programs, search};
use forebay_cancel::{Stop, StopReason, Stopped};
use forebay_text::{Limits, Options, Pattern, Program, Tier};

/// Maximum time to compile a pattern. On an idle machine, each of these patterns takes well below a second.
const COMPILE_TIME_MAX: Duration = Duration::from_secs(20);

const PATHOLOGICAL: &[&str] = &[
    "(a|b)*a(a|b){200}",
    "((a{20}){20}){20}",
    "(x+x+)+y",
    ".{1,1000}.{1,1000}a",
    r"\p{L}{500}",
    r"(?i)[\w\s]{1000}",
    "a{0,65535}b",
    "(a|ab|abc|abcd|b|bc|bcd){60}z",
    "(?:[ab][^c]{30}){20}",
    "[ab]a[ab]{20}c",
    "a.{30}$",
    "^(?!.*a.{12}b)(?=.*b.{12}a)c",
    "(?:(?:(?:(?:a*)*)*)*)*b",
    r"(a*)*\1b",
];

/// A pattern that takes PCRE2 about a second on a value of 300 letters in spite of its limits, which apply per start
/// position.
const SLOW_IN_PCRE2: &str = "(?:(?:a?){50}){50}b$";

#[test]
fn pathological_patterns_compile_within_bounds() {
    let limits = Limits::default();
    for source in PATHOLOGICAL.iter().chain([&SLOW_IN_PCRE2]) {
        let started = Instant::now();
        let program = Program::compile(pattern(source, ""), &limits);
        let took = started.elapsed();
        assert!(took < COMPILE_TIME_MAX, "/{source}/ took {took:?}");
        let table_bytes = program.describe().table_bytes;
        assert!(
            table_bytes <= limits.dfa_bytes_max,
            "/{source}/ has {table_bytes} bytes of tables"
        );
    }
}

#[test]
fn pathological_patterns_match_as_pcre2_does() {
    let limits = Limits {
        determinize_bytes_max: 128 << 10,
        match_limit: 5_000,
        ..Limits::default()
    };
    let texts = ["", "a", "b", "ab", "xxxy", "abcabcdz", "bab", "aé日b"];
    let long = [
        "a".repeat(300),
        "ab".repeat(150),
        format!("{}b", "é".repeat(40)),
    ];
    for source in PATHOLOGICAL {
        let pattern = Pattern::new(source, Options::default(), &limits).expect("a valid pattern");
        let values = texts
            .iter()
            .map(|text| (*text).to_owned())
            .chain(long.clone())
            .collect();
        let (values, expected) = judge(&pattern, values);
        for (_, program) in programs(&pattern, &limits) {
            compare(&program, &values, &expected, "pathological");
        }
    }
}

#[test]
fn the_deepest_patterns_pcre2_takes_are_no_trouble() {
    let limits = Limits::default();
    for depth in [100, 200, 249] {
        let source = format!("{}a{}", "(".repeat(depth), ")+".repeat(depth));
        let program = Program::compile(pattern(&source, ""), &limits);
        assert!(
            program.is_match(b"xa") && !program.is_match(b"x"),
            "depth {depth}"
        );
    }
    let deeper = format!("{}a{}", "(".repeat(300), ")".repeat(300));
    assert!(Pattern::new(&deeper, Options::default(), &limits).is_err());
}

#[test]
fn a_linear_tier_gives_the_true_answer_where_pcre2_gives_up() {
    let value = "a".repeat(64);
    let pattern = pattern("(a|aa)+$", "");
    let program = Program::compile(pattern.clone(), &Limits::default());
    assert_eq!(program.tier(), Tier::Dfa);
    assert!(program.is_match(value.as_bytes()));
    assert!(!program.is_match(format!("{value}b").as_bytes()));
}

/// Returns a program that only PCRE2 can run, and rows on which it is slow.
fn slow() -> (Program, Block) {
    let program = Program::compile(pattern(r"(?:(a+)+)+\1$x?", ""), &Limits::default());
    let value = format!("{}b", "a".repeat(40));
    (
        program,
        Block::new(std::iter::repeat_n(value.as_str(), 20_000)),
    )
}

#[test]
fn a_deadline_ends_a_search_between_rows() {
    let (program, block) = slow();
    let started = Instant::now();
    let stop = Stop::at(started + Duration::from_millis(20));
    let stopped = program.count_rows(block.rows(), &stop);
    assert_eq!(
        stopped,
        Err(Stopped {
            reason: StopReason::Deadline
        }),
        "{program:?}"
    );
    assert!(
        started.elapsed() < Duration::from_secs(10),
        "took {:?}",
        started.elapsed()
    );
}

#[test]
fn a_deadline_ends_a_search_within_a_row() {
    // Each start position takes about ten thousand steps, below the match limit; all start positions together take a
    // hundred times that many.
    let pattern = pattern("(?:a|b)*(?:a|b)*[cd]$", "");
    let program = Program::compile_at(pattern, Tier::Pcre, &Limits::default());
    let program = program.expect("PCRE2 takes every pattern");
    let value = format!("{}e", "a".repeat(150));
    let block = Block::new([value.as_str()]);
    assert_eq!(program.count_rows(block.rows(), &Stop::never()), Ok(0));
    let soon = Stop::at(Instant::now() + Duration::from_millis(2));
    let reason = StopReason::Deadline;
    assert_eq!(
        program.count_rows(block.rows(), &soon),
        Err(Stopped { reason })
    );
}

#[test]
fn every_tier_notices_that_it_is_cancelled() {
    let cancelled = Arc::new(AtomicBool::new(false));
    let stop = Stop {
        deadline: None,
        cancelled: Arc::clone(&cancelled),
    };
    cancelled.store(true, Ordering::Relaxed);
    let block = Block::new(["abc", "xyz"]);
    for (source, options) in [
        ("abc", ""),
        (r"^abc\z", ""),
        ("^abc", ""),
        (r"abc\z", ""),
        ("a[bc]+$", "i"),
        ("(.)x\\1", ""),
    ] {
        for (_, program) in programs(&pattern(source, options), &Limits::default()) {
            let stopped = Err(Stopped {
                reason: StopReason::Cancelled,
            });
            assert_eq!(
                program.count_rows(block.rows(), &stop),
                stopped,
                "{program:?}"
            );
            let searched = program.search_rows(block.rows(), &stop, &mut |_| {});
            assert_eq!(searched.map(|()| 0), stopped, "{program:?}");
        }
    }
}

/// Searches a block that is so long that the engines search it in several pieces. Some of its rows are shorter than the
/// engines' steps, others are longer. Some patterns match many rows, others few.
#[test]
fn long_blocks_agree_over_all_tiers() {
    let fill = |index: usize| "xyz".repeat(index % 12);
    let rows = (0..30_000usize).map(|index| match index % 50 {
        0 => format!("{}needle{}", fill(index), fill(index / 7)),
        1 => "x".repeat(index % 700),
        2 => String::new(),
        _ => fill(index),
    });
    let values: Vec<String> = rows.collect();
    let block = Block::new(values.iter().map(String::as_str));
    for (source, options) in [
        ("needle", ""),
        ("ne+dle", "i"),
        ("x|y", ""),
        ("^$", ""),
        ("needle.?$", ""),
        ("zx*$", ""),
        ("(?=.*ne)x", ""),
    ] {
        let pattern = pattern(source, options);
        let expected: Vec<u32> = (0..values.len())
            .filter(|&row| pattern.pcre_is_match(values[row].as_bytes()))
            .map(|row| row as u32)
            .collect();
        for (_, program) in programs(&pattern, &Limits::default()) {
            assert!(search(&program, block.rows()) == expected, "{program:?}");
            assert_eq!(
                program.count_rows(block.rows(), &Stop::never()),
                Ok(expected.len() as u64),
                "{program:?}"
            );
        }
    }
}

#[test]
fn programs_without_a_pattern() {
    let block = Block::new(["", "ab", "abc", "cab", "ab\u{e9}"]);
    for (program, tier, expected) in [
        (Program::exact("ab"), Tier::Exact, vec![1]),
        (Program::exact(""), Tier::Exact, vec![0]),
        (Program::prefix("ab"), Tier::Prefix, vec![1, 2, 4]),
        (Program::suffix("ab"), Tier::Suffix, vec![1, 3]),
        (Program::substring("ab"), Tier::Substring, vec![1, 2, 3, 4]),
        (Program::substring(""), Tier::Substring, vec![0, 1, 2, 3, 4]),
        (Program::substring("é"), Tier::Substring, vec![4]),
    ] {
        assert_eq!(program.tier(), tier);
        assert_eq!(search(&program, block.rows()), expected, "{program:?}");
        assert_eq!(
            common::count(&program, block.rows()),
            expected.len() as u64,
            "{program:?}"
        );
    }
    assert!(Program::exact("ab").is_exact() && Program::prefix("ab").is_prefix());
    assert_eq!(Program::prefix("ab").value_prefix(), b"ab");
}

#[test]
fn no_rows_are_no_trouble() {
    let empty = forebay_text::Rows {
        bytes: &[],
        offsets: &[],
    };
    let none = forebay_text::Rows {
        bytes: b"abc\xff",
        offsets: &[0],
    };
    for source in ["", "a", "^a", "a[bc]", "(.)\\1", "a.{30}b.{30}c"] {
        for (_, program) in programs(&pattern(source, ""), &Limits::default()) {
            assert_eq!(common::count(&program, empty), 0, "{program:?}");
            assert_eq!(common::count(&program, none), 0, "{program:?}");
            assert!(
                search(&program, empty).is_empty() && search(&program, none).is_empty(),
                "{program:?}"
            );
        }
    }
}
