//! Required literals: every matching row contains at least one of them.

use regex_automata::MatchKind;
use regex_automata::util::prefilter::Prefilter;
use regex_syntax::hir::literal::{ExtractKind, Extractor, Seq};
use regex_syntax::hir::{Hir, HirKind};

/// Maximum literals in a set.
const LITERALS_MAX: usize = 48;

/// Minimum bytes of a literal in a set.
const BYTES_MIN: usize = 2;

/// Maximum parts of a sequence that are copied and read to find the literals at one position of the sequence. A
/// sequence may have thousands of parts. Without this limit, all parts after a position would be copied for each
/// position.
const PARTS_MAX: usize = 64;

/// A searcher for any literal of a set.
pub(crate) struct RequiredLiterals {
    prefilter: Prefilter,
    literals: Vec<Vec<u8>>,
}

impl RequiredLiterals {
    /// Returns a searcher for the most selective required literal set of `hirs`; `None` if no set is selective enough.
    /// A row must match every expression of `hirs`, so each of their sets is required.
    pub(crate) fn best<'h>(hirs: impl Iterator<Item = &'h Hir>) -> Option<RequiredLiterals> {
        let best = hirs
            .flat_map(required_sets)
            .max_by_key(|literals| score(literals))?;
        let prefilter = Prefilter::new(MatchKind::LeftmostFirst, &best)?;
        prefilter.is_fast().then_some(RequiredLiterals {
            prefilter,
            literals: best,
        })
    }

    /// Returns the start of the next literal in `bytes[from..]`.
    pub(crate) fn find(&self, bytes: &[u8], from: usize) -> Option<usize> {
        self.prefilter
            .find(bytes, (from..bytes.len()).into())
            .map(|span| span.start)
    }

    /// Returns the number of bytes of the longest literal.
    pub(crate) fn bytes_max(&self) -> usize {
        self.literals.iter().map(Vec::len).max().unwrap_or(0)
    }

    pub(crate) fn literals(&self) -> &[Vec<u8>] {
        &self.literals
    }
}

/// Returns the required literal sets of an expression: every match contains at least one literal of each set.
fn required_sets(hir: &Hir) -> Vec<Vec<Vec<u8>>> {
    let parts: &[Hir] = match hir.kind() {
        HirKind::Concat(parts) => parts,
        _ => std::slice::from_ref(hir),
    };
    let tail = |index: usize| &parts[index..parts.len().min(index + PARTS_MAX)];
    let tails = (0..parts.len()).map(|index| Hir::concat(tail(index).to_vec()));
    tails.filter_map(|tail| literals(&tail)).collect()
}

/// Returns the prefix literals of an expression: every match begins with one of them.
fn literals(hir: &Hir) -> Option<Vec<Vec<u8>>> {
    let mut extractor = Extractor::new();
    extractor
        .kind(ExtractKind::Prefix)
        .limit_total(LITERALS_MAX);
    let mut sequence: Seq = extractor.extract(hir);
    sequence.optimize_for_prefix_by_preference();
    let literals: Vec<Vec<u8>> = sequence
        .literals()?
        .iter()
        .map(|literal| literal.as_bytes().to_vec())
        .collect();
    let is_selective = !literals.is_empty()
        && literals.len() <= LITERALS_MAX
        && literals.iter().all(|literal| literal.len() >= BYTES_MIN);
    is_selective.then_some(literals)
}

/// Returns the sort key of a set: longer literals are better, then fewer literals.
///
/// PERF: `forebay bench documents --host --only counts`, two cores of an Intel Xeon, November 2026, `webpack.*plugin`
/// with one device: 1.34 times the speed of ripgrep. When `webpack` and `plugin` counted as equally long, the search
/// used `plugin`: 0.67 times the speed.
fn score(literals: &[Vec<u8>]) -> (usize, usize) {
    let shortest = literals.iter().map(Vec::len).min().unwrap_or(0);
    (shortest, LITERALS_MAX - literals.len().min(LITERALS_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn best(pattern: &str) -> Vec<String> {
        let hir = regex_syntax::parse(pattern).expect("a pattern");
        let required = RequiredLiterals::best(std::iter::once(&hir)).expect("a selective set");
        let texts = required.literals().iter();
        texts
            .map(|literal| String::from_utf8_lossy(literal).into_owned())
            .collect()
    }

    #[test]
    fn the_longest_literal_is_chosen_wherever_it_is() {
        assert_eq!(best("webpack.*plugin"), ["webpack"]);
        assert_eq!(best("plugin.*webpack"), ["webpack"]);
        assert_eq!(best("io.*(mysql|postgres)"), ["mysql", "postgres"]);
    }

    #[test]
    fn of_equally_long_literals_the_smallest_set_is_chosen() {
        assert_eq!(best("(mysql|mongo).*redis"), ["redis"]);
    }
}
