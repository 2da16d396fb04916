//! `$regex`, `$options` and BSON regular expressions.

use std::fmt;
use std::sync::Arc;

use bson::raw::{RawBsonRef, RawDocument, RawRegexRef};
use forebay_cancel::{SharedStop, Stopped};
use forebay_text::{Options, Pattern, PatternError, Program, Tier};

use super::matching::Walk;
use super::programs::Compilation;
use crate::element::elements;
use crate::error::{Code, Error};
use crate::limits::Limits;
use crate::work::is_check_due;

/// A pattern of a filter, compiled once and shared.
#[derive(Clone)]
pub struct Regex {
    program: Arc<Program>,
    source: String,
    options: String,
    /// The cancellation token, which may stop a long match.
    stop: Arc<SharedStop>,
}

impl Regex {
    /// Returns the compiled pattern.
    pub fn program(&self) -> &Arc<Program> {
        &self.program
    }

    /// Returns the pattern as written.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Returns the options as written.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Compiles a pattern with its options.
    ///
    /// # Errors
    /// 51091 for a pattern that PCRE2 refuses, 51108 for an unknown option, and `BadValue` for a NUL byte in the
    /// pattern or the options. `ExceededTimeLimit` if too many patterns are being compiled. `ExceededMemoryLimit` if
    /// the memory account has no room for the compiled pattern. `Interrupted` or `MaxTimeMSExpired` if the command is
    /// stopped.
    pub fn new(source: &str, options: &str, limits: &Limits) -> Result<Regex, Error> {
        if options.contains('\0') {
            return Err(Error::bad_value(
                "Regular expression options string cannot contain an embedded null byte",
            ));
        }
        Ok(Regex {
            program: program(source, options, limits)?,
            source: source.to_owned(),
            options: options.to_owned(),
            stop: limits.stop().clone(),
        })
    }

    /// Returns whether a text matches.
    ///
    /// # Errors
    /// [`Stopped`] if the command is stopped, or if PCRE2's memory has no room in the account.
    pub fn is_match(&self, text: &str) -> Result<bool, Stopped> {
        if self.is_linear() && !is_check_due(text.len()) {
            return Ok(self.program.is_match(text.as_bytes()));
        }
        self.program
            .is_match_until(text.as_bytes(), &self.stop.current())
    }

    /// Returns whether matching reads each byte only once.
    pub(super) fn is_linear(&self) -> bool {
        self.program.tier() <= Tier::Dfa
    }

    pub(crate) fn of_value(regex: RawRegexRef<'_>, limits: &Limits) -> Result<Regex, Error> {
        Regex::new(regex.pattern.as_str(), regex.options.as_str(), limits)
    }

    /// Parses `{$regex: .., $options: ..}`, with the fields in either order.
    pub(super) fn of_operators(operators: &RawDocument, limits: &Limits) -> Result<Regex, Error> {
        let mut parts = Parts::default();
        for element in elements(operators) {
            match element.key {
                "$regex" => parts.take_pattern(element.value())?,
                "$options" => parts.take_options(element.value())?,
                _ => {}
            }
        }
        Regex::new(parts.source, parts.options, limits)
    }

    /// Tests a value. A string or symbol passes if the pattern matches it. A stored regular expression passes if it
    /// equals this one.
    pub(super) fn matches(&self, value: RawBsonRef<'_>, walk: &mut Walk<'_>) -> bool {
        match value {
            RawBsonRef::String(text) | RawBsonRef::Symbol(text) => {
                walk.is_stopped() || walk.true_if_stopped(self.is_match(text))
            }
            RawBsonRef::RegularExpression(regex) => {
                regex.pattern.as_str() == self.source && regex.options.as_str() == self.options
            }
            _ => false,
        }
    }
}

impl fmt::Debug for Regex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.source, self.options)
    }
}

#[derive(Default)]
struct Parts<'a> {
    source: &'a str,
    options: &'a str,
}

impl<'a> Parts<'a> {
    fn take_pattern(&mut self, value: RawBsonRef<'a>) -> Result<(), Error> {
        match value {
            RawBsonRef::String(text) => self.source = text,
            RawBsonRef::RegularExpression(regex) => {
                self.source = regex.pattern.as_str();
                let flags = regex.options.as_str();
                if !flags.is_empty() && !self.options.is_empty() {
                    return Err(twice(Code::Location51074));
                }
                self.options = if flags.is_empty() {
                    self.options
                } else {
                    flags
                };
            }
            _ => return Err(Error::bad_value("$regex has to be a string")),
        }
        Ok(())
    }

    fn take_options(&mut self, value: RawBsonRef<'a>) -> Result<(), Error> {
        let RawBsonRef::String(text) = value else {
            return Err(Error::bad_value("$options has to be a string"));
        };
        if !self.options.is_empty() {
            return Err(twice(Code::Location51075));
        }
        self.options = text;
        Ok(())
    }
}

/// Returns the program of a pattern from the cache. If it is not cached, compiles the pattern.
fn program(source: &str, options: &str, limits: &Limits) -> Result<Arc<Program>, Error> {
    let Compilation {
        budget,
        programs,
        aside,
    } = &limits.compilation;
    if let Some(known) = programs.get(source, options) {
        return Ok(known);
    }
    budget.stop().check()?;
    let mut made = None;
    let has_run = aside(&mut || made = Some(compile(source, options, limits)));
    let Some(program) = made.filter(|_| has_run).transpose()? else {
        return Err(Error::new(
            Code::ExceededTimeLimit,
            "too many patterns are being compiled; try again",
        ));
    };
    if !budget.is_short() {
        programs.keep(source, options, &program);
    }
    Ok(program)
}

fn compile(source: &str, options: &str, limits: &Limits) -> Result<Arc<Program>, Error> {
    let options = Options::parse(options).map_err(pattern_error)?;
    let pattern = Pattern::new_within(source, options, &limits.pattern, limits.memory());
    let pattern = pattern.map_err(pattern_error)?;
    let budget = &limits.compilation.budget;
    let program = Program::compile_within(pattern, &limits.pattern, budget);
    Ok(Arc::new(program))
}

fn twice(code: Code) -> Error {
    Error::new(code, "options set in both $regex and $options")
}

/// Converts the error of a pattern that cannot be compiled.
pub fn pattern_error(error: PatternError) -> Error {
    let code = match error {
        PatternError::InvalidFlag { .. } => Code::Location51108,
        PatternError::EmbeddedNul { .. } => Code::BadValue,
        PatternError::Invalid { .. } | PatternError::TooLong { .. } => Code::Location51091,
        PatternError::NoMemory(_) => Code::ExceededMemoryLimit,
    };
    Error::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;
    use forebay_memory::Account;

    use super::*;
    use crate::Filter;

    #[test]
    fn patterns_and_matches_take_memory() {
        let code = |limit_bytes, groups: usize| {
            let limits = Limits::new(Account::new(limit_bytes), Compilation::default());
            let source = format!("{}(?:(a)|(b))*\\1?c", "()".repeat(groups));
            let filter = Filter::parse(&rawdoc! { "s": { "$regex": source } }, &limits)?;
            let document = rawdoc! { "s": "ab".repeat(500) + "c" };
            filter.try_matches(&document)
        };
        let code = |limit_bytes, groups| code(limit_bytes, groups).map_err(|error| error.code);
        assert_eq!(code(64 << 20, 200), Ok(true));
        assert_eq!(code(4 << 20, 200), Err(Code::ExceededMemoryLimit));
        assert_eq!(code(4 << 10, 2_000), Err(Code::ExceededMemoryLimit));
    }
}
