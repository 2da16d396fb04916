//! Bounds on what a pattern may cost.

/// Bounds on the size and the time of compiling and running one pattern.
///
/// A pattern that exceeds the limit of a table goes to a lower tier; only `pattern_bytes_max` makes a pattern an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a pattern. MongoDB takes at most 32,764.
    pub pattern_bytes_max: usize,
    /// Maximum nesting of groups that our own parser follows; deeper patterns go to PCRE2. PCRE2 itself stops at 250.
    pub nesting_max: usize,
    /// Maximum bytes of the non-deterministic automaton built from a pattern.
    pub nfa_bytes_max: usize,
    /// Maximum bytes of the class-compressed table of the tier [`Dfa`](crate::Tier::Dfa).
    pub dfa_bytes_max: usize,
    /// Maximum states of that table.
    pub states_max: usize,
    /// Maximum bytes of the states while determinizing, before minimisation.
    pub determinize_bytes_max: usize,
    /// Maximum bytes of the cache of the lazily built automaton of the tier [`LargeDfa`](crate::Tier::LargeDfa).
    pub lazy_bytes_max: usize,
    /// PCRE2's match limit: steps of backtracking from each start in a value. MongoDB builds with 200,000.
    pub match_limit: u32,
    /// PCRE2's depth limit: nested backtracking points. MongoDB builds with 4,000.
    pub depth_limit: u32,
    /// PCRE2's heap limit: bytes of nested backtracking points, each of which holds all groups. MongoDB builds
    /// with 20 GB.
    pub heap_bytes_max: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            pattern_bytes_max: 32_764,
            nesting_max: 128,
            nfa_bytes_max: 2 << 20,
            dfa_bytes_max: 128 << 10,
            states_max: 4_096,
            determinize_bytes_max: 2 << 20,
            lazy_bytes_max: 4 << 20,
            match_limit: 200_000,
            depth_limit: 4_000,
            heap_bytes_max: 16 << 20,
        }
    }
}
