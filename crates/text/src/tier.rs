//! How a program searches.

use std::fmt;

/// The ways to search, from the fastest to the slowest. All give the same answers.
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
    /// A Glushkov automaton of up to 64 positions held in one word.
    BitParallel,
    /// A deterministic automaton in a class-compressed table small enough for a GPU's shared memory.
    Dfa,
    /// A deterministic automaton whose states are built lazily, within a bound of memory.
    LargeDfa,
    /// An over-approximation of the pattern by an automaton, and PCRE2 to confirm its candidates.
    Approximate,
    /// PCRE2 on every value.
    Pcre,
}

impl Tier {
    /// All tiers, the fastest first.
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

    /// The tier's name, the same in explain, metrics and on the command line.
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

    /// The tier of that name.
    pub fn from_name(name: &str) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| tier.name() == name)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
