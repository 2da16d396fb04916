//! Patterns with PCRE2's semantics, the reference for every tier.

use std::fmt;
use std::sync::Arc;

use crate::error::PatternError;
use crate::limits::Limits;
use crate::options::Options;
use crate::pcre2::error::{PCRE2_ERROR_DEPTHLIMIT, PCRE2_ERROR_HEAPLIMIT, PCRE2_ERROR_MATCHLIMIT};
use crate::pcre2::option::{PCRE2_CASELESS, PCRE2_DOTALL, PCRE2_EXTENDED, PCRE2_MULTILINE};
use crate::pcre2::{Code, CompileError, MatchLimits, UNLIMITED};
use forebay_cancel::{Stop, Stopped};
use forebay_memory::Account;

/// A valid pattern and its options, compiled by PCRE2. Cheap to clone.
#[derive(Clone)]
pub struct Pattern {
    inner: Arc<Inner>,
}

/// PCRE2's result for a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcreOutcome {
    /// The value matches.
    Match,
    /// The value does not match.
    NoMatch,
    /// PCRE2 exceeded a limit. This counts as no match. Tiers without backtracking return the true answer instead.
    LimitPassed,
    /// PCRE2 failed in another way, for example because the value is not valid UTF-8. This counts as no match.
    Failed {
        /// PCRE2's error number.
        code: i32,
    },
}

struct Inner {
    options: Options,
    code: Code,
}

impl Pattern {
    /// Compiles a pattern as MongoDB does.
    ///
    /// # Errors
    /// Any [`PatternError`] except `InvalidFlag` and `NoMemory`.
    pub fn new(source: &str, options: Options, limits: &Limits) -> Result<Pattern, PatternError> {
        Pattern::new_within(source, options, limits, &UNLIMITED)
    }

    /// As [`new`](Pattern::new), but charges `memory` for what PCRE2 allocates: the compiled pattern until it is
    /// dropped, and a match with a cancellation token that takes more than 64 KiB.
    ///
    /// # Errors
    /// Any [`PatternError`] except `InvalidFlag`.
    pub fn new_within(
        source: &str,
        options: Options,
        limits: &Limits,
        memory: &Account,
    ) -> Result<Pattern, PatternError> {
        check_bytes(source, limits)?;
        let code = compile(source, options, limits, memory)?;
        let inner = Inner { options, code };
        Ok(Pattern {
            inner: Arc::new(inner),
        })
    }

    /// Returns the source text of the pattern.
    pub fn source(&self) -> &str {
        self.inner.code.source()
    }

    /// Returns the bytes of PCRE2's compiled pattern.
    pub fn pcre_bytes(&self) -> usize {
        self.inner.code.bytes()
    }

    /// Returns the options of the pattern.
    pub fn options(&self) -> Options {
        self.inner.options
    }

    /// Returns whether a value matches according to PCRE2. As in MongoDB, a value that is not valid UTF-8, or on which
    /// PCRE2 exceeds its match, depth or heap limit, does not match.
    pub fn pcre_is_match(&self, value: &[u8]) -> bool {
        // PCRE2 checks the value's encoding and reports an error, which counts as no match.
        self.inner.code.is_match(value)
    }

    /// As [`pcre_is_match`](Pattern::pcre_is_match), but checks `stop` during a match that may take long.
    ///
    /// # Errors
    /// [`Stopped`] if `stop` is cancelled or past its deadline, or if PCRE2's memory has no room in the account.
    pub(crate) fn pcre_is_match_until(&self, value: &[u8], stop: &Stop) -> Result<bool, Stopped> {
        self.inner.code.is_match_until(value, stop)
    }

    /// Returns PCRE2's result for a value, which distinguishes the reasons that count as no match.
    pub fn pcre_outcome(&self, value: &[u8]) -> PcreOutcome {
        match self.inner.code.find(value, 0) {
            Ok(Some(_)) => PcreOutcome::Match,
            Ok(None) => PcreOutcome::NoMatch,
            Err(PCRE2_ERROR_MATCHLIMIT | PCRE2_ERROR_DEPTHLIMIT | PCRE2_ERROR_HEAPLIMIT) => {
                PcreOutcome::LimitPassed
            }
            Err(code) => PcreOutcome::Failed { code },
        }
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/{}", self.source(), self.options())
    }
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Pattern) -> bool {
        self.source() == other.source() && self.options() == other.options()
    }
}

impl Eq for Pattern {}

fn check_bytes(source: &str, limits: &Limits) -> Result<(), PatternError> {
    if let Some(offset) = source.bytes().position(|byte| byte == 0) {
        return Err(PatternError::EmbeddedNul { offset });
    }
    let (bytes, bytes_max) = (source.len(), limits.pattern_bytes_max);
    if bytes > bytes_max {
        return Err(PatternError::TooLong { bytes, bytes_max });
    }
    Ok(())
}

/// Compiles a pattern with limits as upper bounds: a pattern may begin with `(*LIMIT_MATCH=n)` to lower a limit, but
/// cannot raise it.
fn compile(
    source: &str,
    options: Options,
    limits: &Limits,
    memory: &Account,
) -> Result<Code, PatternError> {
    let flags = [
        (options.ignore_case, PCRE2_CASELESS),
        (options.multi_line, PCRE2_MULTILINE),
        (options.dot_all, PCRE2_DOTALL),
        (options.extended, PCRE2_EXTENDED),
    ];
    let flags = flags
        .iter()
        .filter(|(on, _)| *on)
        .fold(0, |all, (_, flag)| all | flag);
    let limits = MatchLimits {
        steps: limits.match_limit,
        depth: limits.depth_limit,
        heap_bytes: limits.heap_bytes_max,
    };
    Code::compile(source, flags, limits, memory).map_err(|error| match error {
        CompileError::NoMemory(full) => PatternError::NoMemory(full),
        CompileError::Invalid {
            code,
            offset,
            message,
        } => PatternError::Invalid {
            message,
            offset,
            code,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(source: &str) -> Result<Pattern, PatternError> {
        Pattern::new(source, Options::default(), &Limits::default())
    }

    fn matches(source: &str, value: &[u8]) -> bool {
        pattern(source)
            .expect("a valid pattern")
            .pcre_is_match(value)
    }

    #[test]
    fn errors_carry_pcre2s_words_and_the_offset_in_the_pattern() {
        let error = pattern("ab(c").expect_err("a group is open");
        let message = "missing closing parenthesis".to_owned();
        assert_eq!(
            error,
            PatternError::Invalid {
                message,
                offset: 4,
                code: 114
            }
        );
        let error = pattern("(*UCP)a[b").expect_err("a class is open");
        assert!(
            matches!(error, PatternError::Invalid { offset: 9, .. }),
            "{error:?}"
        );
    }

    #[test]
    fn refuses_nul_and_too_long_patterns() {
        assert_eq!(
            pattern("a\0b"),
            Err(PatternError::EmbeddedNul { offset: 1 })
        );
        let bytes_max = Limits::default().pattern_bytes_max;
        assert!(pattern(&"a".repeat(bytes_max)).is_ok());
        let error = pattern(&"a".repeat(bytes_max + 1));
        assert_eq!(
            error,
            Err(PatternError::TooLong {
                bytes: bytes_max + 1,
                bytes_max
            })
        );
    }

    #[test]
    fn invalid_utf8_does_not_match() {
        assert!(matches("b", b"ab"));
        assert!(!matches("b", b"ab\xff"));
        assert!(!matches("", b"\xc3"));
        assert!(matches("", b""));
        assert!(matches(r"a\C", "aé".as_bytes()));
    }

    #[test]
    fn limits_bound_backtracking_and_patterns_cannot_raise_them() {
        let value = "a".repeat(64);
        assert!(!matches("(a+)+$b", value.as_bytes()));
        assert!(!matches(
            "(*LIMIT_MATCH=4000000000)(*UCP)(a+)+$b|(?:a|aa)+$b|a{64}",
            value.as_bytes()
        ));
        assert!(matches("(*LIMIT_MATCH=4000000000)a{64}", value.as_bytes()));
        assert!(!matches("(*LIMIT_MATCH=3)a*?a*?a*?b|a", b"aaaaaaaaaa"));
    }

    #[test]
    fn newline_is_lf() {
        assert!(matches("a.b", b"a\rb"));
        assert!(!matches("a.b", b"a\nb"));
        assert!(matches("a$", b"a\n"));
        assert!(!matches("a$", b"a\r\n"));
    }
}
