//! Tests of the bindings: limits, cancellation and memory.

use std::time::{Duration, Instant};

use super::*;
use forebay_cancel::StopReason;

const LIMITS: MatchLimits = MatchLimits {
    steps: 200_000,
    depth: 4_000,
    heap_bytes: 16 << 20,
};

fn code(pattern: &str) -> Code {
    Code::compile(pattern, 0, LIMITS, &UNLIMITED).expect("a valid pattern")
}

#[test]
fn the_library_is_the_release_mongodb_builds() {
    assert!(version().starts_with("10.42 "), "{}", version());
}

#[test]
fn an_empty_subject_is_read_nowhere() {
    // If PCRE2 got the placeholder address of an empty Rust slice, it would read near address zero for this
    // pattern.
    let pattern = "😀*\\o{373000}*+|.?";
    let code = Code::compile(pattern, option::PCRE2_MULTILINE, LIMITS, &UNLIMITED);
    let code = code.expect("a valid pattern");
    assert_eq!(code.find(b"", 0), Ok(Some((0, 0))));
}

#[test]
fn many_threads_share_a_pattern() {
    let code = code("(a+)b");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                (0..1_000).for_each(|_| assert_eq!(code.find(b"xaab", 0), Ok(Some((1, 4)))))
            });
        }
    });
}

/// Matches with a deadline that passes during the match, and asserts that the match was stopped. Returns the time
/// from the deadline to the stop.
fn stopped(code: &Code, subject: &[u8]) -> Duration {
    let deadline = Instant::now() + Duration::from_millis(20);
    let stopped = code.is_match_until(subject, &Stop::at(deadline));
    let reason = StopReason::Deadline;
    assert_eq!(stopped, Err(Stopped { reason }), "{:.40}", code.source());
    deadline.elapsed()
}

#[test]
fn every_match_can_be_stopped() {
    // Reasons for a long match: many start positions; many steps from one start position; steps that read the whole
    // value; too many items in the pattern for a callout at each item.
    let starts = r"(a)(?:a?){15}\1[yz]";
    let filler = "c".repeat(10_000);
    for (pattern, length) in [
        (format!("(*ANYCRLF){starts}"), 100_000),
        (format!(r"(?!\G\w{{9}}b){starts}"), 100_000),
        (format!("(?=a){starts}"), 16_000),
        (format!("{starts}(*SKIP)"), 1 << 20),
        (
            r"(?:(?=[^b]*+)a)*(?:(?=[^b]*+)a)*\1?()[yz]".to_owned(),
            4 << 20,
        ),
        (
            format!(r"(*ANYCRLF)(a)(?:a?){{11}}\1[yz]|{filler}"),
            100_000,
        ),
    ] {
        let late = stopped(&code(&pattern), "a".repeat(length).as_bytes());
        // The stop takes some milliseconds; the bound allows for other load on the machine.
        assert!(
            late < Duration::from_secs(10),
            "stopped {late:?} after the deadline: {pattern:.40}"
        );
    }
}

#[test]
fn a_match_that_is_watched_answers_as_one_that_is_not() {
    let patterns = [
        "a(?C1)b",
        "(?(?=ab)ab|c)",
        "(*COMMIT)b",
        "a+(*SKIP)b|a",
        r"\Gab",
        r"(\w+) \1",
        "(?<=a)b+",
        "(?|(a)|(b))\\1",
        "^(a|(?1)b)$",
        "(a|b)*+a",
        "(?:a|b)*?b{2,}$",
        "(*LIMIT_MATCH=2)a*b",
        "(?i)É",
        "a(*THEN)x|ab",
        "(?s).*b",
        "(?>a+)a",
        "b(*ACCEPT)c",
        "(?#x)a",
        "\\Qa.\\E",
        "[^a]b$",
        "(*CRLF)a.b",
    ];
    let values = [
        "",
        "a",
        "b",
        "ab",
        "aab",
        "abb",
        "ab ab",
        "ba",
        "aa",
        "c",
        "a.",
        "aé",
        "a\nb",
        "é",
        "\u{1F600}b",
    ];
    for pattern in patterns {
        let code = code(pattern);
        let by_items = code.watched().expect("there is memory");
        let by_items = by_items.expect("a short pattern fits with callouts");
        assert!(by_items.at_items);
        let (settings, rest) = pattern.split_at(settings_bytes(pattern));
        let by_starts = Watched {
            code: Compiled::new(&format!("{settings}(?C){rest}"), 0, &UNLIMITED)
                .expect("as before"),
            at_items: false,
        };
        for value in values {
            let expected = code.is_match(value.as_bytes());
            for watched in [by_items, &by_starts] {
                let found =
                    watched.is_match_until(value.as_bytes(), (LIMITS, &UNLIMITED), &Stop::never());
                assert_eq!(found, Ok(expected), "/{pattern}/ on {value:?}");
            }
        }
    }
}

#[test]
fn backtracking_has_a_bound_of_memory() {
    // A backtracking frame holds 4,000 groups, and there are about 2,000 frames: 128 MB.
    let pattern = format!(r"(*ANYCRLF){}(?:(a)|(b))*\1[yz]", "()".repeat(4_000));
    let code = code(&pattern);
    let subject = "ab".repeat(1_000);
    assert_eq!(
        code.find(subject.as_bytes(), 0),
        Err(error::PCRE2_ERROR_HEAPLIMIT)
    );
}

#[test]
fn settings_stand_first() {
    for (pattern, bytes) in [
        ("a", 0),
        ("(*ANYCRLF)a", 10),
        ("(*UCP)(*LIMIT_MATCH=5)(a)", 22),
        ("(*pla:a)", 0),
        ("(*", 0),
    ] {
        assert_eq!(settings_bytes(pattern), bytes, "{pattern}");
    }
}

#[test]
fn a_limit_of_memory_in_a_pattern_holds_after_other_matches() {
    let (groups, subject) = ("()".repeat(20), "ab".repeat(100) + "c");
    let free = code(&format!("{groups}(?:(a)|(b))*\\1?c"));
    let limited = code(&format!("(*LIMIT_HEAP=30){groups}(?:(a)|(b))*\\1?c"));
    for _ in 0..3 {
        assert_eq!(
            limited.find(subject.as_bytes(), 0),
            Err(error::PCRE2_ERROR_HEAPLIMIT)
        );
        assert!(matches!(free.find(subject.as_bytes(), 0), Ok(Some(_))));
    }
}
