//! Selection of a pattern's tier.

use std::sync::{Arc, OnceLock};

use regex_syntax::hir::Hir;

use crate::automaton::{self, Condition, Glushkov, Table};
use crate::budget::Budget;
use crate::describe::Refusal;
use crate::engine::Engine;
use crate::engine::bit_parallel::BitParallelEngine;
use crate::engine::confirm::ConfirmEngine;
use crate::engine::dfa::DfaEngine;
use crate::engine::lazy::LazyEngine;
use crate::engine::literal::{LiteralEngine, Place};
use crate::engine::pcre::PcreEngine;
use crate::engine::required::RequiredLiterals;
use crate::limits::Limits;
use crate::lower::{self, Part, Parts};
use crate::pattern::Pattern;
use crate::syntax::{self, Node, Parsed};
use crate::tier::Tier;

/// The engine of a tier, and data for its description.
pub(crate) struct Plan {
    pub(crate) tier: Tier,
    pub(crate) engine: Box<dyn Engine>,
    pub(crate) facts: Facts,
}

/// Data for the description of a program.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) states: Option<usize>,
    pub(crate) classes: Option<usize>,
    pub(crate) table_bytes: usize,
    pub(crate) literals: Vec<Vec<u8>>,
    /// Approximate bytes of the engine in host memory, without per-thread caches.
    pub(crate) host_bytes: usize,
}

/// The order in which tiers are tried. On the host a table (DFA) is faster than a bit-parallel automaton, which
/// therefore gets only patterns whose tables would be too large.
const ORDER: [Tier; 5] = [
    Tier::Substring,
    Tier::Dfa,
    Tier::BitParallel,
    Tier::LargeDfa,
    Tier::Approximate,
];

/// Compiles a pattern to a tier.
pub(crate) struct Compiler<'a> {
    pattern: &'a Pattern,
    limits: &'a Limits,
    budget: &'a Budget,
    analysis: Result<Analysis, String>,
}

/// Result of parsing a pattern whose syntax the parser knows.
struct Analysis {
    tree: Node,
    parts: Parts,
    table: OnceLock<Result<Arc<Table>, String>>,
}

impl Analysis {
    fn new(parsed: Parsed) -> Analysis {
        let tree = lower::simplify(parsed.node);
        let mut parts = Parts::of(&tree);
        if let Some(why) = parsed.less {
            parts.inexact = Some(why);
            // PCRE2 may match fewer values than the tree. A negated condition could then exclude rows that PCRE2
            // matches.
            parts.parts.retain(|part| !part.negated);
        }
        Analysis {
            tree,
            parts,
            table: OnceLock::new(),
        }
    }

    /// Returns whether every row meets all conditions.
    fn rules_out_nothing(&self) -> bool {
        let always = |part: &Part| {
            let properties = part.hir.properties();
            !part.negated && properties.minimum_len() == Some(0) && properties.look_set().is_empty()
        };
        self.parts.parts.iter().all(always)
    }

    /// Returns the condition if there is exactly one and it is not negated.
    fn single(&self) -> Result<&Hir, String> {
        self.parts
            .single()
            .ok_or_else(|| "several conditions".to_owned())
    }

    /// Returns the longest condition that is not negated. It is used alone if the automaton of all conditions would be
    /// too large.
    fn main(&self) -> Result<&Hir, String> {
        let plain = self
            .parts
            .parts
            .iter()
            .filter(|part| !part.negated)
            .map(|part| &part.hir);
        let length = |hir: &&Hir| hir.properties().minimum_len();
        plain
            .max_by_key(length)
            .ok_or_else(|| "only negated conditions".to_owned())
    }
}

impl<'a> Compiler<'a> {
    pub(crate) fn new(
        pattern: &'a Pattern,
        limits: &'a Limits,
        budget: &'a Budget,
    ) -> Compiler<'a> {
        let parsed = syntax::parse(pattern.source(), pattern.options(), limits);
        let analysis = parsed
            .map(Analysis::new)
            .map_err(|unknown| format!("{} at offset {}", unknown.what, unknown.offset));
        Compiler {
            pattern,
            limits,
            budget,
            analysis,
        }
    }

    /// Returns a common prefix of all matching values; may be empty.
    pub(crate) fn value_prefix(&self) -> String {
        self.analysis
            .as_ref()
            .map(|analysis| lower::value_prefix(&analysis.tree))
            .unwrap_or_default()
    }

    /// Returns the plan of the first tier that accepts the pattern, and why the tiers before it did not.
    pub(crate) fn best(&self) -> (Plan, Vec<Refusal>) {
        let mut refusals = Vec::new();
        for tier in ORDER {
            match self.plan(tier) {
                Ok(plan) => return (plan, refusals),
                Err(reason) => refusals.push(Refusal { tier, reason }),
            }
        }
        (self.pcre(), refusals)
    }

    /// Returns the pattern's plan on a tier, or why the tier cannot accept the pattern.
    pub(crate) fn plan(&self, tier: Tier) -> Result<Plan, String> {
        match tier {
            Tier::Exact | Tier::Prefix | Tier::Suffix | Tier::Substring => self.literal(),
            Tier::Dfa => self.dfa(self.exact()?),
            Tier::BitParallel => self.bit_parallel(self.exact()?.single()?),
            Tier::LargeDfa => self.large_dfa(self.exact()?.single()?),
            Tier::Approximate => self.approximate(),
            Tier::Pcre => Ok(self.pcre()),
        }
    }

    fn analysis(&self) -> Result<&Analysis, String> {
        self.analysis.as_ref().map_err(Clone::clone)
    }

    fn exact(&self) -> Result<&Analysis, String> {
        let analysis = self.analysis()?;
        match analysis.parts.inexact {
            None => Ok(analysis),
            Some(why) => Err(why.to_owned()),
        }
    }

    fn table(&self, analysis: &Analysis) -> Result<Arc<Table>, String> {
        analysis
            .table
            .get_or_init(|| self.build_table(&analysis.parts.parts).map(Arc::new))
            .clone()
    }

    fn build_table(&self, parts: &[Part]) -> Result<Table, String> {
        let condition = |part: &Part| {
            let nfa = automaton::nfa(&part.hir, self.limits, self.budget)?;
            let automaton = automaton::determinize(&nfa, self.limits, self.budget)?;
            Ok(Condition {
                automaton,
                negated: part.negated,
            })
        };
        let conditions = parts
            .iter()
            .map(condition)
            .collect::<Result<Vec<Condition>, String>>()?;
        let minimal = automaton::product(conditions, self.limits, self.budget)?;
        self.budget.take(Table::BYTES)?;
        Table::new(&minimal, self.limits)
    }

    fn literal(&self) -> Result<Plan, String> {
        let analysis = self.exact()?;
        let (place, text) =
            lower::literal(&analysis.tree).ok_or_else(|| "not a single literal".to_owned())?;
        Ok(literal_plan(place, text.as_bytes()))
    }

    fn dfa(&self, analysis: &Analysis) -> Result<Plan, String> {
        let table = self.table(analysis)?;
        let plain = analysis
            .parts
            .parts
            .iter()
            .filter(|part| !part.negated)
            .map(|part| &part.hir);
        let required = RequiredLiterals::best(plain);
        let facts = Facts {
            states: Some(table.states_count()),
            classes: Some(table.classes_count()),
            table_bytes: table.device_bytes(),
            literals: required
                .as_ref()
                .map(|required| required.literals().to_vec())
                .unwrap_or_default(),
            host_bytes: Table::BYTES,
        };
        Ok(Plan {
            tier: Tier::Dfa,
            engine: Box::new(DfaEngine::new(table, required)),
            facts,
        })
    }

    fn bit_parallel(&self, hir: &Hir) -> Result<Plan, String> {
        let automaton = Glushkov::build(hir)?;
        self.budget.take(automaton.table_bytes())?;
        let facts = Facts {
            states: Some(automaton.positions_count()),
            classes: Some(automaton.classes_count()),
            table_bytes: automaton.table_bytes(),
            literals: Vec::new(),
            host_bytes: automaton.table_bytes(),
        };
        Ok(Plan {
            tier: Tier::BitParallel,
            engine: Box::new(BitParallelEngine::new(automaton)),
            facts,
        })
    }

    fn large_dfa(&self, hir: &Hir) -> Result<Plan, String> {
        let nfa = automaton::nfa(hir, self.limits, self.budget)?;
        // The meta searcher builds two more NFAs, one for each direction.
        self.budget.take(nfa.memory_usage() * 2)?;
        let host_bytes = self.limits.lazy_bytes_max + nfa.memory_usage() * 3;
        let engine = Box::new(LazyEngine::build(hir, nfa, self.limits)?);
        Ok(Plan {
            tier: Tier::LargeDfa,
            engine,
            facts: Facts {
                host_bytes,
                ..Facts::default()
            },
        })
    }

    /// Returns the best automaton of the over-approximated pattern, with PCRE2 to confirm its candidates.
    fn approximate(&self) -> Result<Plan, String> {
        let analysis = self.analysis()?;
        if analysis.rules_out_nothing() {
            return Err("the over-approximation of the pattern matches every value".to_owned());
        }
        let main = || analysis.main();
        let loose = self
            .dfa(analysis)
            .or_else(|_| self.bit_parallel(main()?))
            .or_else(|_| self.large_dfa(main()?))?;
        let engine = Box::new(ConfirmEngine::new(loose.engine, self.pattern.clone()));
        Ok(Plan {
            tier: Tier::Approximate,
            engine,
            facts: loose.facts,
        })
    }

    fn pcre(&self) -> Plan {
        let engine = Box::new(PcreEngine::new(self.pattern.clone()));
        Plan {
            tier: Tier::Pcre,
            engine,
            facts: Facts::default(),
        }
    }
}

/// Returns the plan of a single literal.
pub(crate) fn literal_plan(place: Place, literal: &[u8]) -> Plan {
    let engine = LiteralEngine::new(place, literal);
    let facts = Facts {
        literals: vec![literal.to_vec()],
        ..Facts::default()
    };
    Plan {
        tier: engine.tier(),
        engine: Box::new(engine),
        facts,
    }
}
