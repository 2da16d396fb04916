//! Tiers: the search methods.

use std::fmt;

/// Search methods, from the fastest to the slowest. All give the same answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Tier {
    /// The value equals a literal.
    Exact,
    /// The value begins with a literal.
    Prefix,
    /// The value ends with a literal.
    Suffix,
    /// The value contains a literal.
    Substring,
    /// Glushkov automaton of up to 64 positions, whose state is one 64-bit word.
    BitParallel,
    /// DFA in a class-compressed table that is small enough for a GPU's shared memory.
    Dfa,
    /// DFA whose states are built lazily, within a memory limit.
    LargeDfa,
    /// An automaton that over-approximates the pattern; PCRE2 confirms its candidates.
    Approximate,
    /// PCRE2 on every value.
    Pcre,
}

impl Tier {
    /// All tiers, fastest first.
    pub const ALL: [Tier; 9] = [
        Tier::Exact,
        Tier::Prefix,
        Tier::Suffix,
        Tier::Substring,
        Tier::BitParallel,
        Tier::Dfa,
        Tier::LargeDfa,
        Tier::Approximate,
        Tier::Pcre,
    ];

    /// Returns the tier's name, as in explain, metrics and the command line.
    pub fn name(self) -> &'static str {
        match self {
            Tier::Exact => "exact",
            Tier::Prefix => "prefix",
            Tier::Suffix => "suffix",
            Tier::Substring => "substring",
            Tier::BitParallel => "bit-parallel",
            Tier::Dfa => "dfa",
            Tier::LargeDfa => "large-dfa",
            Tier::Approximate => "approximate",
            Tier::Pcre => "pcre",
        }
    }

    /// Returns the tier with this name.
    pub fn from_name(name: &str) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
