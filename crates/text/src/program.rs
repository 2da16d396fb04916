//! A pattern made ready to search.

use std::fmt;

use crate::describe::{ProgramDescription, Refusal};
use crate::engine::Engine;
use crate::engine::literal::{LiteralEngine, Place};
use crate::engine::pcre::PcreEngine;
use crate::limits::Limits;
use crate::pattern::Pattern;
use crate::rows::Rows;
use crate::stop::{Stop, Stopped};
use crate::tier::Tier;

/// A compiled search: the tier that was chosen for a pattern and what it needs. Shared by `Arc` between threads.
pub struct Program {
    engine: Box<dyn Engine>,
    description: ProgramDescription,
    value_prefix: Vec<u8>,
    pattern: Option<Pattern>,
}

impl Program {
    /// Compiles a pattern to the fastest tier that gives PCRE2's answers within the limits. Always succeeds: the last
    /// tier is PCRE2 itself.
    pub fn compile(pattern: Pattern, limits: &Limits) -> Program {
        let _ = limits;
        Program::from_pcre(pattern, Vec::new())
    }

    /// Compiles a pattern to the given tier, or to none if that tier cannot give PCRE2's answers within the limits.
    pub fn compile_at(pattern: Pattern, tier: Tier, limits: &Limits) -> Option<Program> {
        let _ = limits;
        (tier == Tier::Pcre).then(|| Program::from_pcre(pattern, Vec::new()))
    }

    /// The value equals `value`.
    pub fn exact(value: &str) -> Program {
        Program::from_literal(Place::Whole, value.as_bytes(), None)
    }

    /// The value begins with `literal`.
    pub fn prefix(literal: &str) -> Program {
        Program::from_literal(Place::Start, literal.as_bytes(), None)
    }

    /// The value ends with `literal`.
    pub fn suffix(literal: &str) -> Program {
        Program::from_literal(Place::End, literal.as_bytes(), None)
    }

    /// The value contains `literal`.
    pub fn substring(literal: &str) -> Program {
        Program::from_literal(Place::Anywhere, literal.as_bytes(), None)
    }

    /// How the program searches.
    pub fn tier(&self) -> Tier {
        self.description.tier
    }

    /// What the program is made of.
    pub fn describe(&self) -> ProgramDescription {
        self.description.clone()
    }

    /// The pattern, unless the program was made from a literal.
    pub fn pattern(&self) -> Option<&Pattern> {
        self.pattern.as_ref()
    }

    /// Whether one value matches. A value that is not valid UTF-8 matches no pattern.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.engine.is_match(value)
            && (self.pattern.is_none() || std::str::from_utf8(value).is_ok())
    }

    /// Bytes that every matching value begins with; may be empty.
    pub fn value_prefix(&self) -> &[u8] {
        &self.value_prefix
    }

    /// Whether the program matches [`value_prefix`](Program::value_prefix) and nothing else.
    pub fn is_exact(&self) -> bool {
        self.tier() == Tier::Exact
    }

    /// Whether the program matches exactly the values that begin with [`value_prefix`](Program::value_prefix).
    pub fn is_prefix(&self) -> bool {
        self.tier() == Tier::Prefix
    }

    /// Calls `on_match` with the number of each matching row, ascending, once each. Numbers count from the first row
    /// of `rows`.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` said so; the rows reported until then do match.
    pub fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        self.engine.search_rows(rows, stop, on_match)
    }

    /// The number of matching rows: faster than [`search_rows`](Program::search_rows).
    ///
    /// # Errors
    /// [`Stopped`] if `stop` said so.
    pub fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        self.engine.count_rows(rows, stop)
    }

    fn from_literal(place: Place, literal: &[u8], pattern: Option<Pattern>) -> Program {
        let engine = LiteralEngine::new(place, literal);
        let value_prefix = match place {
            Place::Whole | Place::Start => literal.to_vec(),
            Place::End | Place::Anywhere => Vec::new(),
        };
        let description = ProgramDescription {
            pattern: pattern.as_ref().map(|pattern| format!("{pattern:?}")),
            tier: engine.tier(),
            states: None,
            classes: None,
            table_bytes: 0,
            literals: vec![String::from_utf8_lossy(literal).into_owned()],
            value_prefix: String::from_utf8_lossy(&value_prefix).into_owned(),
            refusals: Vec::new(),
        };
        Program {
            engine: Box::new(engine),
            description,
            value_prefix,
            pattern,
        }
    }

    fn from_pcre(pattern: Pattern, refusals: Vec<Refusal>) -> Program {
        let description = ProgramDescription {
            pattern: Some(format!("{pattern:?}")),
            tier: Tier::Pcre,
            states: None,
            classes: None,
            table_bytes: 0,
            literals: Vec::new(),
            value_prefix: String::new(),
            refusals,
        };
        let engine = Box::new(PcreEngine::new(pattern.clone()));
        Program {
            engine,
            description,
            value_prefix: Vec::new(),
            pattern: Some(pattern),
        }
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pattern {
            Some(pattern) => write!(f, "{pattern:?} by {}", self.tier()),
            None => write!(f, "{:?} by {}", self.description.literals, self.tier()),
        }
    }
}
