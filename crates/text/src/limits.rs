//! Limits of what a pattern may cost.

/// Limits of the size and time of compiling and running one pattern.
///
/// A pattern longer than `pattern_bytes_max` is refused. A pattern that exceeds another limit while it is compiled gets
/// a slower tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of a pattern. MongoDB accepts at most 32,764.
    pub pattern_bytes_max: usize,
    /// Maximum nesting of groups in this crate's parser; deeper patterns get the tier of PCRE2, whose own limit is 250.
    pub nesting_max: usize,
    /// Maximum bytes of the NFA built from a pattern.
    pub nfa_bytes_max: usize,
    /// Maximum bytes of the class-compressed table of the tier [`Dfa`](crate::Tier::Dfa).
    pub dfa_bytes_max: usize,
    /// Maximum states of the table of the tier [`Dfa`](crate::Tier::Dfa).
    pub states_max: usize,
    /// Maximum bytes of the states during determinization, before minimisation.
    pub determinize_bytes_max: usize,
    /// Maximum bytes of the lazy DFA's cache, in the tier [`LargeDfa`](crate::Tier::LargeDfa).
    pub lazy_bytes_max: usize,
    /// PCRE2's match limit: backtracking steps from each start position in a value. MongoDB's PCRE2 has 200,000.
    pub match_limit: u32,
    /// PCRE2's depth limit: nested backtracking frames. MongoDB's PCRE2 has 4,000.
    pub depth_limit: u32,
    /// PCRE2's heap limit: bytes of nested backtracking frames, each of which holds all groups. MongoDB's PCRE2 has
    /// 20 GB.
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
