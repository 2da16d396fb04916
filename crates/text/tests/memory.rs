//! PCRE2's memory is charged to an account, and a match for which the account has no room is an error.

use forebay_cancel::{Stop, StopReason, Stopped};
use forebay_memory::Account;
use forebay_text::{Limits, Options, Pattern, PatternError, Program};

const MIB: u64 = 1 << 20;

/// Returns a program that backtracks, of a pattern with `groups` more groups than needed.
fn program(groups: usize, memory: &Account) -> Program {
    let source = format!("{}(?:(a)|(b))*\\1?c", "()".repeat(groups));
    let limits = Limits::default();
    let pattern = Pattern::new_within(&source, Options::default(), &limits, memory);
    let program = Program::compile(pattern.expect("a valid pattern"), &limits);
    assert!(program.backtracks(), "{program:?}");
    program
}

/// Returns a program, and a value that matches with backtracking frames of several MiB.
fn hungry(memory: &Account) -> (Program, String) {
    (program(200, memory), "ab".repeat(500) + "c")
}

fn compiled_bytes(program: &Program) -> u64 {
    let pattern = program.pattern().expect("it was compiled from a pattern");
    pattern.pcre_bytes() as u64
}

fn is_match(program: &Program, value: &str) -> Result<bool, StopReason> {
    let found = program.is_match_until(value.as_bytes(), &Stop::never());
    found.map_err(|Stopped { reason }| reason)
}

#[test]
fn a_match_without_memory_is_an_error() {
    let memory = Account::new(64 * MIB);
    let (program, value) = hungry(&memory);
    assert_eq!(is_match(&program, &value), Ok(true));
    let figures = memory.figures();
    assert!(figures.peak_bytes > 4 * MIB, "{figures:?}");
    drop(program);

    let (program, modest) = (self::program(20, &memory), self::program(0, &memory));
    assert_eq!(is_match(&modest, "abac"), Ok(true));
    // The thread keeps the frames of this match.
    assert_eq!(is_match(&program, &value[600..]), Ok(true));
    let compiled_bytes = compiled_bytes(&program) + compiled_bytes(&modest);
    assert_eq!(memory.figures().used_bytes, compiled_bytes);

    let others = memory.share();
    others.try_grow(60 * MIB as usize - 100_000).expect("room");
    let limit_bytes = 64 * MIB;
    let refused = Err(StopReason::MemoryFull { limit_bytes });
    assert_eq!(is_match(&program, &value), refused);
    assert_eq!(is_match(&modest, "abac"), Ok(true));
    assert_eq!(is_match(&modest, "abab"), Ok(false));
    drop(others);
    assert_eq!(is_match(&program, &value), Ok(true));
    drop((program, modest));
    assert_eq!(memory.figures().used_bytes, 0);
}

#[test]
fn threads_that_match_share_the_account() {
    let memory = Account::new(24 * MIB);
    let (program, value) = hungry(&memory);
    let limit_bytes = 24 * MIB;
    let matches = || {
        for _ in 0..20 {
            let found = is_match(&program, &value);
            let refused = Err(StopReason::MemoryFull { limit_bytes });
            assert!(found == Ok(true) || found == refused, "{found:?}");
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(matches);
        }
    });
    assert_eq!(memory.figures().used_bytes, compiled_bytes(&program));
    drop(program);
    assert_eq!(memory.figures().used_bytes, 0);
}

#[test]
fn a_pattern_without_memory_is_refused() {
    let limits = Limits::default();
    let source = "(a)".repeat(1_000);
    let compiled =
        |memory: &Account| Pattern::new_within(&source, Options::default(), &limits, memory);
    let memory = Account::new(4 << 10);
    let error = compiled(&memory).expect_err("no room");
    assert!(matches!(error, PatternError::NoMemory(_)), "{error:?}");
    assert_eq!(memory.figures().used_bytes, 0);

    let memory = Account::new(MIB);
    let pattern = compiled(&memory).expect("room");
    let held_bytes = memory.figures().used_bytes;
    assert_eq!(held_bytes, pattern.pcre_bytes() as u64);
    assert!(held_bytes > source.len() as u64, "{held_bytes}");
    drop(pattern);
    assert_eq!(memory.figures().used_bytes, 0);
}
