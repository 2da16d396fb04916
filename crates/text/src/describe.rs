//! The description of a program, for people.

use std::fmt;

use crate::tier::Tier;

/// The inner state of a program: what `forebay debug pattern` prints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDescription {
    /// The pattern as `/source/options`; `None` for a program made from a literal.
    pub pattern: Option<String>,
    /// How the program searches.
    pub tier: Tier,
    /// The state count of the automaton (positions for the bit-parallel tier), if it has one of fixed size.
    pub states: Option<usize>,
    /// The number of byte classes of the automaton, if it has any.
    pub classes: Option<usize>,
    /// Bytes of the tables that a device would take; 0 where there are none.
    pub table_bytes: usize,
    /// The literals the search looks for first, or compares with.
    pub literals: Vec<String>,
    /// The bytes that every matching value begins with.
    pub value_prefix: String,
    /// Why each faster tier was refused.
    pub refusals: Vec<Refusal>,
}

/// Why a tier was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The tier.
    pub tier: Tier,
    /// Why not.
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
