//! Compiled patterns, ready to search.

use std::fmt;
use std::sync::OnceLock;
use std::time::Duration;

use parking_lot::Mutex;

use crate::budget::Budget;
use crate::compile::{Compiler, Plan, literal_plan};
use crate::describe::{ProgramDescription, Refusal};
use crate::engine::Engine;
use crate::engine::literal::Place;
use crate::form::DeviceForm;
use crate::limits::Limits;
use crate::pattern::Pattern;
use crate::rows::Rows;
use crate::tier::Tier;
use forebay_cancel::{Stop, Stopped};

/// Interval of the cancellation checks of a search that waits for another thread to build the device form.
const FORM_WAIT: Duration = Duration::from_millis(20);

/// A compiled search: a pattern's tier and its engine. Threads share a program by `Arc`.
pub struct Program {
    engine: Box<dyn Engine>,
    description: ProgramDescription,
    value_prefix: Vec<u8>,
    host_bytes: usize,
    pattern: Option<Pattern>,
    device_form: OnceLock<Option<DeviceForm>>,
    /// Held by the thread that builds the device form.
    making_form: Mutex<()>,
}

impl Program {
    /// Compiles a pattern to the fastest tier that gives PCRE2's answers within the limits. Always succeeds: the last
    /// tier is PCRE2 itself.
    pub fn compile(pattern: Pattern, limits: &Limits) -> Program {
        Program::compile_within(pattern, limits, &Budget::unlimited())
    }

    /// As [`compile`](Program::compile), within the remaining budget that the patterns of a command share.
    pub fn compile_within(pattern: Pattern, limits: &Limits, budget: &Budget) -> Program {
        let compiler = Compiler::new(&pattern, limits, budget);
        let prefix = compiler.value_prefix();
        let (plan, refusals) = compiler.best();
        Program::new(plan, prefix.into_bytes(), Some(pattern), refusals)
    }

    /// Compiles a pattern to the given tier. Returns `None` if the tier cannot give PCRE2's answers within the limits.
    pub fn compile_at(pattern: Pattern, tier: Tier, limits: &Limits) -> Option<Program> {
        let budget = Budget::unlimited();
        let compiler = Compiler::new(&pattern, limits, &budget);
        let prefix = compiler.value_prefix();
        let plan = compiler.plan(tier).ok().filter(|plan| plan.tier == tier)?;
        Some(Program::new(
            plan,
            prefix.into_bytes(),
            Some(pattern),
            Vec::new(),
        ))
    }

    /// Returns a program for values equal to `value`.
    pub fn exact(value: &str) -> Program {
        Program::from_literal(Place::Whole, value)
    }

    /// Returns a program for values that begin with `literal`.
    pub fn prefix(literal: &str) -> Program {
        Program::from_literal(Place::Start, literal)
    }

    /// Returns a program for values that end with `literal`.
    pub fn suffix(literal: &str) -> Program {
        Program::from_literal(Place::End, literal)
    }

    /// Returns a program for values that contain `literal`.
    pub fn substring(literal: &str) -> Program {
        Program::from_literal(Place::Anywhere, literal)
    }

    /// Returns the tier of the program.
    pub fn tier(&self) -> Tier {
        self.description.tier
    }

    /// Returns a description of the program.
    pub fn describe(&self) -> ProgramDescription {
        self.description.clone()
    }

    /// Returns the pattern; `None` if the program was made from a literal.
    pub fn pattern(&self) -> Option<&Pattern> {
        self.pattern.as_ref()
    }

    /// Returns whether one value matches. A value that is not valid UTF-8 matches no pattern.
    pub fn is_match(&self, value: &[u8]) -> bool {
        self.engine.is_match(value)
            && (self.pattern.is_none() || std::str::from_utf8(value).is_ok())
    }

    /// As [`is_match`](Program::is_match), but checks `stop` during a match that may take long.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` is cancelled or past its deadline, or if PCRE2's memory has no room in the account.
    pub fn is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        Ok(self.engine.is_match_until(value, stop)?
            && (self.pattern.is_none() || std::str::from_utf8(value).is_ok()))
    }

    /// Returns whether a match may need PCRE2, which reads a value repeatedly and may take long.
    pub fn backtracks(&self) -> bool {
        self.tier() >= Tier::Approximate
    }

    /// Returns the bytes that every matching value begins with; may be empty.
    pub fn value_prefix(&self) -> &[u8] {
        &self.value_prefix
    }

    /// Returns whether the program matches only the value equal to [`value_prefix`](Program::value_prefix).
    pub fn is_exact(&self) -> bool {
        self.tier() == Tier::Exact
    }

    /// Returns whether the program matches exactly the values that begin with
    /// [`value_prefix`](Program::value_prefix).
    pub fn is_prefix(&self) -> bool {
        self.tier() == Tier::Prefix
    }

    /// Returns the approximate number of bytes of the program in host memory: its tables, without per-thread caches,
    /// and PCRE2's compiled pattern.
    pub fn host_bytes(&self) -> usize {
        self.host_bytes + self.pattern.as_ref().map_or(0, Pattern::pcre_bytes)
    }

    /// Returns whether a GPU can run the program. Like [`device_form`](Program::device_form), the first call builds the
    /// tables.
    pub fn has_device_form(&self) -> bool {
        self.device_form().is_some()
    }

    /// Returns whether the rows that a GPU finds are only candidates, which [`search_rows`](Program::search_rows) must
    /// confirm.
    pub fn confirms_on_host(&self) -> bool {
        self.engine.confirms()
    }

    /// Returns whether the device form is not built yet and building it may take seconds. A thread that serves other
    /// work should let another thread call [`make_device_form`](Program::make_device_form).
    pub fn lacks_large_device_form(&self) -> bool {
        self.tier() >= Tier::LargeDfa && self.device_form.get().is_none()
    }

    /// Returns the device form of the program; `None` if no GPU can run the program. The first call builds its tables;
    /// [`make_device_form`](Program::make_device_form) builds them with a cancellation token.
    pub fn device_form(&self) -> Option<&DeviceForm> {
        if let Some(made) = self.device_form.get() {
            return made.as_ref();
        }
        let made = self.make_device_form(&Stop::never());
        made.expect("`Stop::never` never stops the construction")
    }

    /// As [`device_form`](Program::device_form), but checks `stop` while this or another thread builds the tables.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` is cancelled or past its deadline; the next call starts over.
    pub fn make_device_form(&self, stop: &Stop) -> Result<Option<&DeviceForm>, Stopped> {
        let _alone = loop {
            stop.check()?;
            if let Some(alone) = self.making_form.try_lock_for(FORM_WAIT) {
                break alone;
            }
        };
        if let Some(made) = self.device_form.get() {
            return Ok(made.as_ref());
        }
        let made = self.engine.device_form(stop)?;
        Ok(self.device_form.get_or_init(|| made).as_ref())
    }

    /// Calls `on_match` once for each matching row, with the row's number, in ascending order. The first row of `rows`
    /// has the number 0.
    ///
    /// # Errors
    /// As [`is_match_until`](Program::is_match_until); rows that were reported before do match.
    pub fn search_rows(
        &self,
        rows: Rows<'_>,
        stop: &Stop,
        on_match: &mut dyn FnMut(u32),
    ) -> Result<(), Stopped> {
        self.engine.search_rows(rows, stop, on_match)
    }

    /// Returns the number of matching rows; faster than [`search_rows`](Program::search_rows).
    ///
    /// # Errors
    /// As [`is_match_until`](Program::is_match_until).
    pub fn count_rows(&self, rows: Rows<'_>, stop: &Stop) -> Result<u64, Stopped> {
        self.engine.count_rows(rows, stop)
    }

    fn from_literal(place: Place, literal: &str) -> Program {
        let prefix = match place {
            Place::Whole | Place::Start => literal.as_bytes().to_vec(),
            Place::End | Place::Anywhere => Vec::new(),
        };
        Program::new(
            literal_plan(place, literal.as_bytes()),
            prefix,
            None,
            Vec::new(),
        )
    }

    fn new(
        plan: Plan,
        value_prefix: Vec<u8>,
        pattern: Option<Pattern>,
        refusals: Vec<Refusal>,
    ) -> Program {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let description = ProgramDescription {
            pattern: pattern.as_ref().map(|pattern| format!("{pattern:?}")),
            tier: plan.tier,
            states: plan.facts.states,
            classes: plan.facts.classes,
            table_bytes: plan.facts.table_bytes,
            literals: plan
                .facts
                .literals
                .iter()
                .map(|literal| text(literal))
                .collect(),
            value_prefix: text(&value_prefix),
            refusals,
        };
        Program {
            engine: plan.engine,
            description,
            value_prefix,
            host_bytes: plan.facts.host_bytes,
            pattern,
            device_form: OnceLock::new(),
            making_form: Mutex::new(()),
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
