//! The tier that each pattern gets, and the reasons that a program reports.

mod common;

use common::pattern;
use forebay_text::{Limits, Program, Tier};

fn program(source: &str, options: &str) -> Program {
    Program::compile(pattern(source, options), &Limits::default())
}

#[test]
fn patterns_get_the_tier_they_should() {
    for (source, options, tier) in [
        ("", "", Tier::Prefix),
        ("^", "", Tier::Prefix),
        (r"\Aabc\z", "", Tier::Exact),
        ("^abc", "", Tier::Prefix),
        ("^abc.*", "", Tier::Prefix),
        (r"abc\z", "", Tier::Suffix),
        ("abc", "", Tier::Substring),
        (".*abc.*", "", Tier::Substring),
        (r"a\.b\x2ec", "", Tier::Substring),
        ("(?s)^.*abc", "", Tier::Substring),
        ("^abc", "m", Tier::Dfa),
        ("^abc$", "", Tier::Dfa),
        ("abc", "i", Tier::Dfa),
        ("a[bc]+d|x", "", Tier::Dfa),
        (r"\bfoo\b", "", Tier::Dfa),
        (r"^\p{Lu}", "", Tier::Dfa),
        ("a++b", "", Tier::Dfa),
        (r"^(?!system\.)", "", Tier::Dfa),
        ("^(?=.*a)(?=.*b)", "", Tier::Dfa),
        ("[ab]a[ab]{20}c", "", Tier::BitParallel),
        ("(a|b)*a(a|b){200}", "", Tier::LargeDfa),
        (r"(.)x\1", "", Tier::Approximate),
        ("foo(?=bar)", "", Tier::Approximate),
        ("(?>a+)ab", "", Tier::Approximate),
        (r"(.*)\1", "", Tier::Pcre),
        ("(*UCP)a", "", Tier::Pcre),
        (r"a\C", "", Tier::Pcre),
    ] {
        let program = program(source, options);
        assert_eq!(
            program.tier(),
            tier,
            "/{source}/{options}\n{}",
            program.describe()
        );
    }
}

#[test]
fn a_program_says_why_faster_tiers_were_refused() {
    let description = program(r"(?:foo|bar)(\d)\1", "").describe();
    assert_eq!(description.tier, Tier::Approximate);
    let dfa = description
        .refusals
        .iter()
        .find(|refusal| refusal.tier == Tier::Dfa)
        .expect("the table was refused");
    assert_eq!(dfa.reason, "a back-reference or a subroutine call");
    let demanded = |literal: &String| literal.starts_with("foo") || literal.starts_with("bar");
    assert!(
        !description.literals.is_empty() && description.literals.iter().all(demanded),
        "{description}"
    );
    let text = description.to_string();
    assert!(
        text.contains("tier         approximate") && text.contains("not dfa"),
        "{text}"
    );
    let verb = program("(*UCP)a", "").describe();
    assert!(
        verb.refusals
            .iter()
            .all(|refusal| refusal.reason == "a setting or a verb at offset 0"),
        "{verb}"
    );
}

#[test]
fn tables_are_minimal_and_small() {
    for (source, states, classes) in [("[0-9]{4}", 7, 3), ("^[ab]", 4, 3), ("x(?:a|b|c)*d", 5, 5)] {
        let description = program(source, "").describe();
        assert_eq!(
            (description.states, description.classes),
            (Some(states), Some(classes)),
            "/{source}/\n{description}"
        );
        assert_eq!(description.table_bytes, states * classes, "/{source}/");
    }
}

#[test]
fn anchored_patterns_tell_their_prefix() {
    for (source, options, prefix) in [
        ("^abc", "", "abc"),
        ("^abc$", "", "abc"),
        (r"\Aab[cd]", "m", "ab"),
        ("^abc", "m", ""),
        ("^abc", "i", ""),
        ("^(?!abd)ab.d", "", "ab"),
        ("^ab|^ac", "", "a"),
        ("abc", "", ""),
    ] {
        assert_eq!(
            program(source, options).value_prefix(),
            prefix.as_bytes(),
            "/{source}/{options}"
        );
    }
}

#[test]
fn tier_names_go_both_ways() {
    for tier in Tier::ALL {
        assert_eq!(Tier::from_name(tier.name()), Some(tier));
        assert_eq!(tier.to_string(), tier.name());
    }
    assert_eq!(Tier::from_name("none"), None);
}
