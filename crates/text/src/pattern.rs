//! A pattern as PCRE2 judges it: the oracle behind every tier.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use pcre2::bytes::{Regex, RegexBuilder};
use pcre2_sys::{PCRE2_ERROR_DEPTHLIMIT, PCRE2_ERROR_HEAPLIMIT, PCRE2_ERROR_MATCHLIMIT};

use crate::error::PatternError;
use crate::limits::Limits;
use crate::options::Options;

/// A valid pattern and its options, compiled by PCRE2. Cheap to clone.
#[derive(Clone)]
pub struct Pattern {
    inner: Arc<Inner>,
}

/// What PCRE2 says of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PcreOutcome {
    /// The value matches.
    Match,
    /// The value does not match.
    NoMatch,
    /// Matching passed a limit, which counts as no match. Tiers without backtracking give the true answer instead.
    LimitPassed,
    /// Matching failed in another way, for example on invalid UTF-8; it counts as no match.
    Failed {
        /// PCRE2's error number.
        code: i32,
    },
}

struct Inner {
    source: String,
    options: Options,
    regex: Regex,
}

impl Pattern {
    /// Compiles a pattern as MongoDB does.
    ///
    /// # Errors
    /// Any [`PatternError`] but `InvalidFlag`.
    pub fn new(source: &str, options: Options, limits: &Limits) -> Result<Pattern, PatternError> {
        check_bytes(source, limits)?;
        let regex = compile(source, options, limits)?;
        let inner = Inner {
            source: source.to_owned(),
            options,
            regex,
        };
        Ok(Pattern {
            inner: Arc::new(inner),
        })
    }

    /// The pattern as it was written.
    pub fn source(&self) -> &str {
        &self.inner.source
    }

    /// The options it was written with.
    pub fn options(&self) -> Options {
        self.inner.options
    }

    /// What PCRE2 says of a value. As in MongoDB, a value that is not valid UTF-8 and a value on which PCRE2 passes its
    /// match or depth limit do not match.
    pub fn pcre_is_match(&self, value: &[u8]) -> bool {
        // PCRE2 checks the value's encoding itself and reports an error, which counts as no match.
        self.inner.regex.is_match(value).unwrap_or(false)
    }

    /// What PCRE2 says of a value, with the reasons that all count as no match apart.
    pub fn pcre_outcome(&self, value: &[u8]) -> PcreOutcome {
        match self.inner.regex.is_match(value) {
            Ok(true) => PcreOutcome::Match,
            Ok(false) => PcreOutcome::NoMatch,
            Err(error) => match error.code() {
                PCRE2_ERROR_MATCHLIMIT | PCRE2_ERROR_DEPTHLIMIT | PCRE2_ERROR_HEAPLIMIT => PcreOutcome::LimitPassed,
                code => PcreOutcome::Failed { code },
            },
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

fn compile(source: &str, options: Options, limits: &Limits) -> Result<Regex, PatternError> {
    let guarded = Guarded::new(source, limits);
    RegexBuilder::new()
        .utf(true)
        .caseless(options.ignore_case)
        .multi_line(options.multi_line)
        .dotall(options.dot_all)
        .extended(options.extended)
        .build(&guarded.text)
        .map_err(|error| invalid(&error, &guarded))
}

fn invalid(error: &pcre2::Error, guarded: &Guarded) -> PatternError {
    let offset = error.offset().unwrap_or(0);
    let text = error.to_string();
    let words = text
        .strip_prefix(&format!(
            "PCRE2: error compiling pattern at offset {offset}: "
        ))
        .unwrap_or(&text);
    PatternError::Invalid {
        message: words.to_owned(),
        offset: guarded.source_offset(offset),
        code: error.code(),
    }
}

/// A pattern with PCRE2's limits written into it, as `(*LIMIT_MATCH=n)` after the settings it already begins with.
///
/// The last setting of a kind wins, so ours come last; a pattern may lower the limits, never raise them.
struct Guarded {
    text: String,
    inserted: Range<usize>,
}

impl Guarded {
    fn new(source: &str, limits: &Limits) -> Guarded {
        let settings = leading_settings(source);
        let at = settings.end;
        let match_limit = settings
            .match_limit
            .unwrap_or(u32::MAX)
            .min(limits.match_limit);
        let depth_limit = settings
            .depth_limit
            .unwrap_or(u32::MAX)
            .min(limits.depth_limit);
        let guard = format!("(*LIMIT_MATCH={match_limit})(*LIMIT_DEPTH={depth_limit})");
        let text = format!("{}{guard}{}", &source[..at], &source[at..]);
        Guarded {
            text,
            inserted: at..at + guard.len(),
        }
    }

    /// Maps an offset in the guarded text back to the pattern.
    fn source_offset(&self, offset: usize) -> usize {
        if offset < self.inserted.end {
            offset.min(self.inserted.start)
        } else {
            offset - self.inserted.len()
        }
    }
}

#[derive(Default)]
struct LeadingSettings {
    end: usize,
    match_limit: Option<u32>,
    depth_limit: Option<u32>,
}

/// The settings that PCRE2 reads at the start of a pattern (pcre2pattern(3), "Special start-of-pattern items").
const SETTINGS: &[&str] = &[
    "UTF",
    "UTF8",
    "UCP",
    "NOTEMPTY",
    "NOTEMPTY_ATSTART",
    "NO_AUTO_POSSESS",
    "NO_DOTSTAR_ANCHOR",
    "NO_JIT",
    "NO_START_OPT",
    "CR",
    "LF",
    "CRLF",
    "ANY",
    "NUL",
    "ANYCRLF",
    "BSR_ANYCRLF",
    "BSR_UNICODE",
];

fn leading_settings(source: &str) -> LeadingSettings {
    let mut found = LeadingSettings::default();
    while let Some(name) = setting_at(&source[found.end..]) {
        if !read_setting(name, &mut found) {
            break;
        }
        found.end += name.len() + "(*)".len();
    }
    found
}

fn setting_at(rest: &str) -> Option<&str> {
    let body = rest.strip_prefix("(*")?;
    body.find(')').map(|end| &body[..end])
}

/// Notes one setting; false if it is none.
fn read_setting(name: &str, found: &mut LeadingSettings) -> bool {
    let Some((key, number)) = name.split_once('=') else {
        return SETTINGS.contains(&name);
    };
    let Ok(number) = number.parse::<u32>() else {
        return false;
    };
    match key {
        "LIMIT_MATCH" => found.match_limit = Some(number),
        "LIMIT_DEPTH" | "LIMIT_RECURSION" => found.depth_limit = Some(number),
        "LIMIT_HEAP" => {}
        _ => return false,
    }
    true
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
    fn the_library_is_the_release_mongodb_builds() {
        assert_eq!(pcre2::version(), (10, 42));
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
