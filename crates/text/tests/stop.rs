//! Any search can be stopped within one value, and any compilation while it runs, whatever the pattern.

mod common;

use std::time::{Duration, Instant};

use common::{Block, pattern, programs};
use fastrand::Rng;
use forebay_cancel::{SharedStop, Stop, StopReason, Stopped};
use forebay_text::{Budget, Limits, Options, Pattern, Program, Tier};
use nix::time::{ClockId, clock_gettime};

/// Time until the deadline of a search.
const TIME: Duration = Duration::from_millis(20);

/// Maximum processor time from the deadline to the end of the work. The product promises 100 ms; the bound is far above
/// that, because machines are shared and engines compiled without optimization are slow.
const LATE_MAX: Duration = Duration::from_secs(1);

const MIB: usize = 1 << 20;

/// Returns the processor time of this thread, which other load on the machine does not affect.
fn time_worked() -> Duration {
    let clock = ClockId::CLOCK_THREAD_CPUTIME_ID;
    clock_gettime(clock).expect("threads have clocks").into()
}

/// Runs a search with a deadline; returns whether it was stopped.
fn is_stopped<T>(name: &str, search: impl FnOnce(&Stop) -> Result<T, Stopped>) -> bool {
    let begun = time_worked();
    let outcome = search(&Stop::at(Instant::now() + TIME));
    let worked = time_worked() - begun;
    assert!(worked < TIME + LATE_MAX, "{name}: {worked:?}");
    let stopped = outcome.err();
    let reason = StopReason::Deadline;
    assert!(stopped.is_none_or(|stopped| stopped == Stopped { reason }));
    stopped.is_some()
}

/// Returns a block with the value between short values.
fn block(value: &str) -> Block {
    Block::new(["", "ab", value, "ba"])
}

/// Searches a block with every method; returns whether all were stopped.
fn all_stopped(program: &Program, block: &Block) -> bool {
    let value = block.rows().row(2);
    let name = |how: &str| {
        format!(
            "{how} of {:.60} on {} bytes",
            format!("{program:?}"),
            value.len()
        )
    };
    let is_stopped = [
        is_stopped(&name("match"), |stop| program.is_match_until(value, stop)),
        is_stopped(&name("count"), |stop| {
            program.count_rows(block.rows(), stop)
        }),
        is_stopped(&name("search"), |stop| {
            program.search_rows(block.rows(), stop, &mut |_| {})
        }),
    ];
    is_stopped == [true; 3]
}

/// Returns `bytes` random letters `a` and `b`, followed by `end`.
fn random(bytes: usize, end: &str) -> String {
    let mut rng = Rng::with_seed(7);
    let letters = std::iter::repeat_with(|| rng.choice(['a', 'b']).expect("there are two"));
    let block: String = letters.take(bytes.min(64 << 10)).collect();
    block.repeat(bytes / block.len()) + end
}

#[test]
fn a_large_automaton_is_stopped_inside_a_value() {
    let limits = Limits::default();
    let source = "a[a-z]{3000}b[a-z]{3000}cq";
    let program = Program::compile(pattern(source, ""), &limits);
    assert_eq!(program.tier(), Tier::LargeDfa);
    assert!(all_stopped(&program, &block(&random(MIB, "q"))));
    assert!(all_stopped(&program, &block(&random(16 * MIB, "q"))));
    // Rows that are short enough for several to be searched in one piece.
    let program = Program::compile(pattern("[ab]a[ab]{900}[b-d][de]", ""), &limits);
    assert_eq!(program.tier(), Tier::LargeDfa);
    let row = random(1_000, "q");
    let block = Block::new(std::iter::repeat_n(row.as_str(), 8_000));
    let late = Stop::at(Instant::now());
    assert!(program.count_rows(block.rows(), &late).is_err());
}

#[test]
fn a_large_automaton_that_stands_before_pcre2_is_stopped_too() {
    let source = "a[a-z]{3000}b[a-z]{3000}c(q)\\1";
    let program = Program::compile(pattern(source, ""), &Limits::default());
    assert_eq!(program.tier(), Tier::Approximate);
    assert!(all_stopped(&program, &block(&random(MIB, "q"))));
}

#[test]
fn pcre2_is_stopped_inside_a_value() {
    let starts = r"(a)(?:a?){15}\1[yz]";
    let blocks = [block(&"a".repeat(MIB)), block(&random(4 * MIB, "q"))];
    for source in [
        starts.to_owned(),
        format!("(*ANYCRLF){starts}"),
        format!("(?<=a){starts}"),
        r"((a|b)(?1)?c|a)+\z\b(*F)".to_owned(),
        r"^(?:(a+)+b?)+\1$(?C)".to_owned(),
        r"\C(a|b|ab)*\1\1c".to_owned(),
        r"(?R)?a(?:a|b)*(?:a|b)*c".to_owned(),
    ] {
        let pattern = pattern(&source, "");
        let program = Program::compile_at(pattern, Tier::Pcre, &Limits::default());
        let program = program.expect("PCRE2 takes every pattern");
        // The result is not checked, because PCRE2's own limits end some of these searches before the deadline.
        for block in &blocks {
            all_stopped(&program, block);
        }
    }
}

#[test]
fn engines_that_read_each_byte_once_are_stopped_inside_a_value() {
    let block = block(&random(4 * MIB, "q"));
    let mut tiers = Vec::new();
    for source in [
        "",
        r"^ab\z",
        "^ab",
        r"qq\z",
        "ababababc",
        "[ab]a[ab]{20}c",
        "a[bc]+d|x",
        "[ab]{9}qq",
        r"^(?=.*q)(?!.*qq)a",
        "(a|b)*a(a|b){200}c",
        r"(a|b)*q(.)\2",
    ] {
        for (_, program) in programs(&pattern(source, ""), &Limits::default()) {
            all_stopped(&program, &block);
            tiers.push(program.tier());
        }
    }
    assert!(
        Tier::ALL.iter().all(|tier| tiers.contains(tier)),
        "{tiers:?}"
    );
}

#[test]
fn each_engine_checks_inside_a_value() {
    let value = random(4 * MIB, "q");
    for (source, tier) in [
        ("ababababc", Tier::Substring),
        ("[ab]a[ab]{20}c", Tier::BitParallel),
        ("[ab]a[ab]{5}c", Tier::Dfa),
        ("(a|b)*a(a|b){200}c", Tier::LargeDfa),
    ] {
        let program = Program::compile_at(pattern(source, ""), tier, &Limits::default());
        let program = program.expect("the tier takes the pattern");
        let whole = || {
            let begun = time_worked();
            let matches = program.is_match_until(value.as_bytes(), &Stop::never());
            assert_eq!(matches, Ok(false), "{program:?}");
            time_worked() - begun
        };
        let fastest = whole().min(whole()).min(whole());
        let stop = Stop::at(Instant::now() + fastest / 4);
        let stopped = program.is_match_until(value.as_bytes(), &stop);
        assert!(
            stopped.is_err(),
            "{program:?} ended within a quarter of {fastest:?}"
        );
    }
}

/// Returns patterns of at most 32,764 bytes that take as long to compile as possible.
fn slow_to_compile() -> Vec<(String, String)> {
    let empties = "|".repeat(8_000);
    let words = |count: usize| {
        let words: Vec<String> = (0..count)
            .map(|n| format!("{:x}", n * 7_919 % 65_521))
            .collect();
        words.join("|")
    };
    [
        ("[a-z]{1000}", "(?:[a-z]{1000}x?){1000}".to_owned()),
        (
            "nested repeats",
            "(?:(?:[a-z]{0,9}x){0,9}y){0,9}z[a-z]{3}".to_owned(),
        ),
        ("words", words(6_000)),
        ("words of any case", format!("(?i){}", words(6_000))),
        ("classes", format!("^{}", "[ab]".repeat(1_500))),
        ("loose classes", "[ab].".repeat(1_500)),
        ("properties", r"\pL".repeat(10_000)),
        (
            "empty transitions",
            format!("(?:[ab]|(?:{empties}|c))*a[ab]{{14}}"),
        ),
        (
            "more empty transitions",
            format!("(?:[ab]|(?:(?:{}|c){{20}}))*a[ab]{{14}}", "|".repeat(900)),
        ),
        (
            "optional groups",
            format!("{}a[ab]{{14}}", "(?:x?y?)*".repeat(3_000)),
        ),
        ("names", (0..3_000).map(|n| format!("(?<n{n}>a)")).collect()),
        (
            "look-aheads",
            format!("^{}a", "(?=.*a.{9})(?!.*b.{9})".repeat(400)),
        ),
        ("look-behinds", "(?<=a|bc|def)".repeat(200)),
        ("subroutines", format!("(a|b(?1)){}", "(?1)".repeat(8_000))),
        ("groups", "(a|b)".repeat(3_500)),
    ]
    .map(|(name, source)| (name.to_owned(), source))
    .into()
}

#[test]
fn tables_for_devices_are_made_until_the_search_has_to_end() {
    let mut stopped = 0;
    for (name, source) in slow_to_compile() {
        let tier = Tier::LargeDfa;
        let program = Program::compile_at(pattern(&source, ""), tier, &Limits::default());
        let Some(program) = program else {
            continue;
        };
        stopped += usize::from(is_stopped(&name, |stop| {
            program.make_device_form(stop).map(|_form| ())
        }));
    }
    assert!(stopped > 0, "none of the tables takes long to make");
}

#[test]
fn tables_for_devices_that_were_not_finished_are_made_by_the_next_search() {
    let source = "(?:[ab]x?){12}y[ab]{40}z.{9}a";
    let limits = Limits::default();
    let program = Program::compile_at(pattern(source, ""), Tier::LargeDfa, &limits);
    let program = program.expect("the tier takes every regular pattern");
    assert!(program.lacks_large_device_form());
    let late = Stop::at(Instant::now());
    assert!(program.make_device_form(&late).is_err());
    assert!(program.lacks_large_device_form());
    assert!(program.has_device_form());
    assert!(!program.lacks_large_device_form());
}

#[test]
fn a_compilation_is_stopped() {
    let limits = Limits::default();
    for (name, source) in slow_to_compile() {
        let begun = time_worked();
        let stop = SharedStop::new(Stop::at(Instant::now() + TIME));
        let pattern = Pattern::new(&source, Options::default(), &limits).expect(&name);
        Program::compile_within(pattern, &limits, &Budget::new(64 << 20, stop));
        let worked = time_worked() - begun;
        assert!(worked < TIME + LATE_MAX, "{name}: {worked:?}");
    }
}
