//! Runs case files of hand-written patterns and values on PCRE2 and every tier.

mod common;

use common::{compare, judge, pattern, programs};
use forebay_text::{Limits, Options, Pattern, PatternError};
use serde::Deserialize;

#[derive(Deserialize)]
struct File {
    case: Vec<Case>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    pattern: String,
    #[serde(default)]
    options: String,
    #[serde(default)]
    matches: Vec<String>,
    #[serde(default)]
    fails: Vec<String>,
    #[serde(default)]
    error: bool,
}

fn run(case: &Case) {
    if case.error {
        let options = Options::parse(&case.options).expect("valid options");
        let error = Pattern::new(&case.pattern, options, &Limits::default());
        assert!(
            matches!(error, Err(PatternError::Invalid { .. })),
            "/{}/ is refused: {error:?}",
            case.pattern
        );
        return;
    }
    let pattern = pattern(&case.pattern, &case.options);
    let values: Vec<String> = case.matches.iter().chain(&case.fails).cloned().collect();
    let expected: Vec<u32> = (0..case.matches.len() as u32).collect();
    let (values, by_pcre2) = judge(&pattern, values);
    assert_eq!(by_pcre2, expected, "PCRE2 on {pattern:?} {values:?}");
    for (_, program) in programs(&pattern, &Limits::default()) {
        compare(&program, &values, &expected, "case file");
    }
}

#[test]
fn patterns_that_other_engines_read_differently() {
    let file: File =
        toml::from_str(include_str!("data/pcre2_vs_rust.toml")).expect("a valid case file");
    assert!(file.case.len() > 80, "{} cases", file.case.len());
    file.case.iter().for_each(run);
}
