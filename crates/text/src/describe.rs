//! Human-readable description of a program.

use std::fmt;

use crate::tier::Tier;

/// Description of a program, as `forebay debug pattern` prints it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDescription {
    /// The pattern as `/source/options`; `None` for a program made from a literal.
    pub pattern: Option<String>,
    /// Search method of the program.
    pub tier: Tier,
    /// Number of states of the automaton (positions for the bit-parallel tier); `None` if there is no automaton or its
    /// size varies.
    pub states: Option<usize>,
    /// Number of byte classes of the automaton, if there is one.
    pub classes: Option<usize>,
    /// Bytes of the tables on a device; 0 if there are none.
    pub table_bytes: usize,
    /// Literals that the search compares with, or looks for before it runs the automaton.
    pub literals: Vec<String>,
    /// Prefix that all matching values share; may be empty.
    pub value_prefix: String,
    /// The faster tiers that cannot be used, and why.
    pub refusals: Vec<Refusal>,
}

/// Why a tier cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The tier.
    pub tier: Tier,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for ProgramDescription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(pattern) = &self.pattern {
            writeln!(f, "pattern      {pattern}")?;
        }
        writeln!(f, "tier         {}", self.tier)?;
        if let Some(states) = self.states {
            writeln!(f, "states       {states}")?;
        }
        if let Some(classes) = self.classes {
            writeln!(f, "classes      {classes}")?;
        }
        writeln!(f, "table_bytes  {}", self.table_bytes)?;
        if !self.literals.is_empty() {
            writeln!(f, "literals     {}", self.literals.join(" "))?;
        }
        if !self.value_prefix.is_empty() {
            writeln!(f, "value_prefix {}", self.value_prefix)?;
        }
        self.refusals
            .iter()
            .try_for_each(|refusal| writeln!(f, "not {:<13}{}", refusal.tier, refusal.reason))
    }
}
