//! Compares every tier with PCRE2 on generated patterns and values.
//!
//! `FOREBAY_TEST_SEED` sets the seed, which every failure message contains.

mod common;
mod seed;

use seed::seed;
use std::collections::BTreeMap;

use common::generate::Generator;
use common::{compare, judge, programs};
use fastrand::Rng;
use forebay_text::{Limits, Options, Pattern, PcreOutcome, Program, Tier};

/// Number of pattern-value pairs compared in a run.
const PAIRS: usize = 1_000_000;

/// Number of values per pattern.
const VALUES: usize = 250;

/// A known difference: the automata match where PCRE2 10.42 loses a match by an optimisation.
#[test]
fn an_optional_item_before_an_optional_atomic_group_matches() {
    let outcome = |source: &str| {
        let pattern = Pattern::new(source, Options::default(), &Limits::default());
        pattern.expect("a valid pattern").pcre_outcome(b"b")
    };
    let source = "b?(?:a)?+b";
    assert!(matches!(outcome(source), PcreOutcome::NoMatch));
    let unoptimised = outcome(&format!("(*NO_AUTO_POSSESS){source}"));
    assert!(matches!(unoptimised, PcreOutcome::Match));
    let pattern = Pattern::new(source, Options::default(), &Limits::default());
    let program = Program::compile(pattern.expect("a valid pattern"), &Limits::default());
    assert!(program.is_match(b"b"), "{program:?}");
}

#[test]
fn generated_pairs_agree_with_pcre2_on_every_tier() {
    let seed = seed();
    println!("FOREBAY_TEST_SEED={seed}");
    let mut rng = Rng::with_seed(seed);
    let narrow = Limits {
        determinize_bytes_max: 128 << 10,
        states_max: 64,
        ..Limits::default()
    };
    let mut pairs = 0;
    let mut chosen: BTreeMap<Tier, usize> = BTreeMap::new();
    let mut accepted: BTreeMap<Tier, usize> = BTreeMap::new();
    while pairs < PAIRS {
        let mut generator = Generator::new(rng.fork());
        let (source, options) = (generator.pattern(), generator.options());
        let limits = if rng.u8(..4) == 0 {
            Limits::default()
        } else {
            narrow.clone()
        };
        let parsed = Options::parse(&options).expect("generated letters");
        let Ok(pattern) = Pattern::new(&source, parsed, &limits) else {
            continue;
        };
        let values = (0..VALUES).map(|_| generator.value()).collect();
        let (values, expected) = judge(&pattern, values);
        let context = format!("FOREBAY_TEST_SEED={seed}");
        for (tier, program) in programs(&pattern, &limits) {
            compare(&program, &values, &expected, &context);
            match tier {
                Some(tier) => *accepted.entry(tier).or_default() += 1,
                None => *chosen.entry(program.tier()).or_default() += 1,
            }
        }
        pairs += values.len();
    }
    println!("chosen {chosen:?}\naccepted {accepted:?}");
    let missing = Tier::ALL
        .into_iter()
        .filter(|tier| !accepted.contains_key(tier))
        .collect::<Vec<_>>();
    assert!(
        missing.is_empty(),
        "FOREBAY_TEST_SEED={seed}: no pattern for {missing:?}"
    );
}
