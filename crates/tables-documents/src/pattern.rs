//! Patterns of SQL as the regular expressions of MongoDB, which match the same strings.

use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// A pattern that has the same matches in PCRE2, with the options that MongoDB gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    /// The pattern, without NUL.
    pub(crate) source: String,
    /// The options, in alphabetical order.
    pub(crate) options: &'static str,
}

/// Translates the pattern of `LIKE`, or of `ILIKE` if `ignore_case`. Returns `None` if it contains NUL.
pub(crate) fn like(pattern: &str, escape: char, ignore_case: bool) -> Option<Pattern> {
    let mut source = String::new();
    let mut rest = pattern.strip_prefix('%');
    if rest.is_none() {
        source.push('^');
    }
    let mut characters = rest.take().unwrap_or(pattern).chars().peekable();
    let mut is_open = false;
    while let Some(character) = characters.next() {
        is_open = false;
        match character {
            '\0' => return None,
            _ if character == escape => push_literal(&mut source, characters.next()?)?,
            '%' if characters.peek().is_none() => is_open = true,
            '%' => source.push_str(".*"),
            '_' => source.push('.'),
            _ => push_literal(&mut source, character)?,
        }
    }
    // `%` alone matches everything, and is both the first and the last character.
    if !is_open && pattern != "%" {
        source.push_str("\\z");
    }
    let options = if ignore_case { "is" } else { "s" };
    Some(Pattern { source, options })
}

/// Appends a character that stands for itself.
fn push_literal(source: &mut String, character: char) -> Option<()> {
    if character == '\0' {
        return None;
    }
    if character.is_ascii() && !character.is_ascii_alphanumeric() {
        source.push('\\');
    }
    source.push(character);
    Some(())
}

/// Translates the pattern of `~`, or of `~*` if `ignore_case`. Returns `None` if PCRE2 could find other matches, or the
/// pattern is invalid.
pub(crate) fn regex(pattern: &str, ignore_case: bool) -> Option<Pattern> {
    let mut parser = regex_syntax::ParserBuilder::new()
        .case_insensitive(ignore_case)
        .build();
    let hir = parser.parse(pattern).ok()?;
    let mut source = String::new();
    push(&hir, &mut source)?;
    Some(Pattern {
        source,
        options: "",
    })
}

/// Appends an expression. Classes, also those of letters in any case, are written as ranges of characters, so that no
/// option of the two engines matters.
fn push(hir: &Hir, source: &mut String) -> Option<()> {
    match hir.kind() {
        HirKind::Empty => source.push_str("(?:)"),
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            text.chars()
                .try_for_each(|character| push_literal(source, character))?;
        }
        HirKind::Class(Class::Unicode(class)) => {
            if class.ranges().is_empty() {
                return None;
            }
            source.push('[');
            for range in class.ranges() {
                push_code(source, range.start());
                source.push('-');
                push_code(source, range.end());
            }
            source.push(']');
        }
        HirKind::Class(Class::Bytes(_)) => return None,
        HirKind::Look(Look::Start) => source.push_str("\\A"),
        HirKind::Look(Look::End) => source.push_str("\\z"),
        // Words and lines differ between the two engines.
        HirKind::Look(_) => return None,
        HirKind::Repetition(repetition) => {
            push_group(&repetition.sub, source)?;
            match (repetition.min, repetition.max) {
                (0, None) => source.push('*'),
                (1, None) => source.push('+'),
                (0, Some(1)) => source.push('?'),
                (least, None) => source.push_str(&format!("{{{least},}}")),
                (least, Some(most)) => source.push_str(&format!("{{{least},{most}}}")),
            }
        }
        HirKind::Capture(capture) => push_group(&capture.sub, source)?,
        HirKind::Concat(parts) => {
            for part in parts {
                match part.kind() {
                    HirKind::Alternation(_) => push_group(part, source)?,
                    _ => push(part, source)?,
                }
            }
        }
        HirKind::Alternation(parts) => {
            for (index, part) in parts.iter().enumerate() {
                if index > 0 {
                    source.push('|');
                }
                push(part, source)?;
            }
        }
    }
    Some(())
}

fn push_group(hir: &Hir, source: &mut String) -> Option<()> {
    source.push_str("(?:");
    push(hir, source)?;
    source.push(')');
    Some(())
}

/// Appends a character of a class by its number, or itself if it is a letter or digit.
fn push_code(source: &mut String, character: char) {
    match character.is_ascii_alphanumeric() {
        true => source.push(character),
        false => source.push_str(&format!("\\x{{{:x}}}", u32::from(character))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like_source(pattern: &str) -> String {
        like(pattern, '\\', false).expect("a pattern").source
    }

    #[test]
    fn like_patterns_are_anchored_where_they_have_no_percent_sign() {
        for (pattern, expected) in [
            ("", "^\\z"),
            ("%", ""),
            ("%%", ""),
            ("webpack", "^webpack\\z"),
            ("web%", "^web"),
            ("%pack", "pack\\z"),
            ("%bpa%", "bpa"),
            ("a%b_c", "^a.*b.c\\z"),
            ("50\\%", "^50\\%\\z"),
            ("\\_%", "^\\_"),
            ("a.b", "^a\\.b\\z"),
            ("%é_", "é.\\z"),
        ] {
            assert_eq!(like_source(pattern), expected, "{pattern}");
        }
        assert_eq!(like("a\0", '\\', false), None);
        assert_eq!(like("a\\", '\\', false), None);
        assert_eq!(like("A%", '\\', true).expect("a pattern").options, "is");
    }

    #[test]
    fn regular_expressions_are_written_without_options() {
        let source = |pattern| regex(pattern, false).map(|pattern| pattern.source);
        for (pattern, expected) in [
            ("^a|b$", "\\Aa|b\\z"),
            ("a(b|c)+d{2,3}", "a(?:(?:[b-c]))+(?:d){2,3}"),
            ("x.y", "x[\\x{0}-\\x{9}\\x{b}-\\x{10ffff}]y"),
            ("(?i)a", "[A-Aa-a]"),
            ("a(?:bc|de)f", "a(?:bc|de)f"),
        ] {
            assert_eq!(source(pattern).as_deref(), Some(expected), "{pattern}");
        }
        for pattern in ["a\\b", "(?m)^a", "(", "[a&&b]"] {
            assert_eq!(source(pattern), None, "{pattern}");
        }
        let any_case = regex("ab", true).expect("a pattern");
        assert_eq!(any_case.source, "[A-Aa-a][B-Bb-b]");
    }
}
