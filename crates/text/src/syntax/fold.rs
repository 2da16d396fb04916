//! Case folding with PCRE2's own tables.
//!
//! Unicode adds case pairs in each release, and PCRE2 10.42 has those of Unicode 14. Candidate pairs come from newer
//! tables, which contain all older pairs because case pairs are never removed. Each pair is tested with PCRE2 once per
//! process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

use super::set::CharSet;
use crate::pcre2::Code;
use crate::pcre2::option::PCRE2_CASELESS;

/// For each character, the other characters that PCRE2 treats as equal to it when case is ignored.
static PARTNERS: LazyLock<BTreeMap<char, Vec<char>>> = LazyLock::new(partners);

/// Returns the set, extended by all characters that PCRE2 treats as equal to one of its characters when case is
/// ignored.
pub(crate) fn fold(set: &CharSet) -> CharSet {
    let mut folded = set.clone();
    let mut added = CharSet::empty();
    for (start, end) in set.ranges() {
        for &partner in PARTNERS
            .range(start..=end)
            .flat_map(|(_, partners)| partners)
        {
            added.push(partner, partner);
        }
    }
    folded.union(&added);
    folded
}

fn partners() -> BTreeMap<char, Vec<char>> {
    let judge = Code::own(r"^(.)\1$", PCRE2_CASELESS).expect("a constant pattern");
    let mut map = BTreeMap::new();
    for (&c, candidates) in &candidates() {
        let partners: Vec<char> = candidates
            .iter()
            .copied()
            .filter(|&d| same(&judge, c, d))
            .collect();
        if !partners.is_empty() {
            map.insert(c, partners);
        }
    }
    map
}

fn same(judge: &Code, a: char, b: char) -> bool {
    a != b && judge.is_match(format!("{a}{b}").as_bytes())
}

/// Last code point that may have case.
const CASED_LAST: char = '\u{1ffff}';

/// Returns, for each character that has a case mapping, the characters that share a mapping with it.
fn candidates() -> BTreeMap<char, BTreeSet<char>> {
    let mut groups: BTreeMap<char, BTreeSet<char>> = BTreeMap::new();
    for c in char::MIN..=CASED_LAST {
        for key in mappings(c).into_iter().flatten().filter(|&key| key != c) {
            groups.entry(key).or_default().extend([c, key]);
        }
    }
    let mut candidates: BTreeMap<char, BTreeSet<char>> = BTreeMap::new();
    for group in groups.values() {
        for &member in group {
            candidates.entry(member).or_default().extend(group);
        }
    }
    widen(&candidates)
}

/// Adds candidates of candidates, so that characters linked through a third character are candidates of each other.
fn widen(candidates: &BTreeMap<char, BTreeSet<char>>) -> BTreeMap<char, BTreeSet<char>> {
    let step = |group: &BTreeSet<char>| {
        group
            .iter()
            .flat_map(|member| candidates[member].iter().copied())
            .collect()
    };
    candidates
        .iter()
        .map(|(&c, group)| (c, step(group)))
        .collect()
}

/// Returns the lower-case and upper-case mappings of `c` that are a single character.
fn mappings(c: char) -> [Option<char>; 2] {
    let single =
        |mapped: &mut dyn Iterator<Item = char>| mapped.next().filter(|_| mapped.next().is_none());
    [single(&mut c.to_lowercase()), single(&mut c.to_uppercase())]
}

#[cfg(test)]
mod tests {
    use regex_syntax::hir::{ClassUnicode, ClassUnicodeRange};

    use super::*;

    fn folded(c: char) -> String {
        fold(&CharSet::of_char(c))
            .ranges()
            .flat_map(|(start, end)| start..=end)
            .collect()
    }

    #[test]
    fn folds_as_pcre2_does() {
        assert_eq!(folded('k'), "Kk\u{212a}");
        assert_eq!(folded('S'), "Ssſ");
        assert_eq!(folded('ß'), "ßẞ");
        assert_eq!(folded('σ'), "Σςσ");
        assert_eq!(folded('ǆ'), "Ǆǅǆ");
        assert_eq!(folded('i'), "Ii");
        assert_eq!(folded('İ'), "İ");
        assert_eq!(folded('1'), "1");
    }

    #[test]
    fn no_pair_of_newer_tables_is_missed() {
        let judge = Code::own(r"^(.)\1$", PCRE2_CASELESS).expect("a constant pattern");
        for c in char::MIN..=char::MAX {
            let mut class = ClassUnicode::new([ClassUnicodeRange::new(c, c)]);
            class.case_fold_simple();
            for other in class
                .ranges()
                .iter()
                .flat_map(|range| range.start()..=range.end())
            {
                let known = PARTNERS
                    .get(&c)
                    .is_some_and(|partners| partners.contains(&other));
                assert_eq!(same(&judge, c, other), known, "{c:?} and {other:?}");
            }
        }
    }

    #[test]
    fn every_pair_is_mutual() {
        for (c, partners) in PARTNERS.iter() {
            assert!(
                partners.iter().all(|partner| PARTNERS[partner].contains(c)),
                "{c:?}"
            );
        }
        assert!(PARTNERS.len() > 2_700, "{} characters", PARTNERS.len());
    }
}
