//! Conditions on texts as patterns of `forebay_text`, which GPUs search for.

use std::sync::Arc;

use datafusion::logical_expr::Operator;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, LikeExpr, Literal, NotExpr};
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use forebay_text::{Budget, Limits, Options, Pattern, Program, Tier};
use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind, Look};

/// Maximum bytes of the texts of conditions.
const WANTED_BYTES_MAX: usize = 4 << 10;
/// Maximum bytes of patterns, which `Limits` has, too.
const PATTERN_BYTES_MAX: usize = 32 << 10;
/// Maximum bytes of what is built for one pattern, at about 20 ms a MiB; `Limits` bound those of a literal.
const BUDGET_BYTES: usize = 16 << 20;
/// Maximum number of searches that one condition is taken apart into: a kernel reads few columns.
const SEARCHES_MAX: usize = 6;

/// A condition that is true for the texts of a column that match a pattern.
#[derive(Debug)]
pub(crate) struct Search {
    pub(crate) column: Arc<dyn PhysicalExpr>,
    pub(crate) wanted: Wanted,
}

/// A pattern in the syntax of PCRE2, which has the meaning of a condition's.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Wanted {
    pattern: String,
    ignore_case: bool,
}

impl Search {
    /// Returns the search that an expression is.
    pub(crate) fn of(expr: &Arc<dyn PhysicalExpr>) -> Option<Search> {
        if let Some(like) = expr.downcast_ref::<LikeExpr>() {
            let pattern = literal(like.pattern())?;
            let ignore_case = like.case_insensitive();
            // Cases of other characters differ between versions of Unicode.
            if like.negated() || ignore_case && !pattern.is_ascii() {
                return None;
            }
            return Search::new(like.expr(), of_like(pattern), ignore_case);
        }
        if let Some(binary) = expr.downcast_ref::<BinaryExpr>() {
            let text = literal(binary.right())?;
            let pattern = match binary.op() {
                Operator::Eq => format!(r"\A{}\z", escaped(text)),
                Operator::RegexMatch => of_regex(text, false)?,
                Operator::RegexIMatch => of_regex(text, true)?,
                _ => return None,
            };
            return Search::new(binary.left(), pattern, false);
        }
        let call = expr.downcast_ref::<ScalarFunctionExpr>()?;
        let [text, wanted] = call.args() else {
            return None;
        };
        let wanted = literal(wanted)?;
        let pattern = match call.name() {
            "starts_with" => format!(r"\A{}", escaped(wanted)),
            "ends_with" => format!(r"{}\z", escaped(wanted)),
            "contains" => escaped(wanted),
            "regexp_like" => of_regex(wanted, false)?,
            _ => return None,
        };
        Search::new(text, pattern, false)
    }

    fn new(column: &Arc<dyn PhysicalExpr>, pattern: String, ignore_case: bool) -> Option<Search> {
        column.is::<Column>().then(|| Search {
            column: Arc::clone(column),
            wanted: Wanted {
                pattern,
                ignore_case,
            },
        })
    }
}

impl Wanted {
    /// Compiles the pattern; `None` if GPUs do not decide alone which texts match, or its tables take long to build.
    pub(crate) fn program(&self) -> Option<Program> {
        let options = Options {
            ignore_case: self.ignore_case,
            dot_all: true,
            ..Options::default()
        };
        let limits = Limits::default();
        let pattern = Pattern::new(&self.pattern, options, &limits).ok()?;
        let budget = Budget::new(BUDGET_BYTES, Arc::default());
        let mut program = Program::compile_within(pattern.clone(), &limits, &budget);
        if program.tier() <= Tier::Substring {
            // PERF: `bench/sql_gpu.py FOREBAY FOLDER 9 like`, 7.3 GB of comments, one H100, 2026-11-27: a DFA 4.2 ms,
            // the kernel of literals 6.7 ms.
            program = Program::compile_at(pattern, Tier::Dfa, &limits).unwrap_or(program);
        }
        let is_exact = program.tier() < Tier::LargeDfa && !program.confirms_on_host();
        (is_exact && program.has_device_form()).then_some(program)
    }
}

/// Returns the opposite of a condition, if that is a search.
pub(crate) fn opposite_search(expr: &Arc<dyn PhysicalExpr>) -> Option<Arc<dyn PhysicalExpr>> {
    let opposite: Arc<dyn PhysicalExpr> = if let Some(like) = expr.downcast_ref::<LikeExpr>() {
        let [text, pattern] = [like.expr(), like.pattern()].map(Arc::clone);
        let ignore_case = like.case_insensitive();
        Arc::new(LikeExpr::new(!like.negated(), ignore_case, text, pattern))
    } else {
        let binary = expr.downcast_ref::<BinaryExpr>()?;
        let op = match binary.op() {
            Operator::NotEq => Operator::Eq,
            Operator::RegexNotMatch => Operator::RegexMatch,
            Operator::RegexNotIMatch => Operator::RegexIMatch,
            _ => return None,
        };
        let [left, right] = [binary.left(), binary.right()].map(Arc::clone);
        Arc::new(BinaryExpr::new(left, op, right))
    };
    Search::of(&opposite).is_some().then_some(opposite)
}

/// Returns whether a condition is made of several others, each of which is a search.
pub(crate) fn are_searches(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let is_one = Search::of(expr).is_some() || opposite_search(expr).is_some();
    !is_one && searches(expr).is_some_and(|count| count <= SEARCHES_MAX)
}

/// Returns the number of searches that a condition is made of; `None` if it has other parts.
fn searches(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    if let Some(not) = expr.downcast_ref::<NotExpr>() {
        return searches(not.arg());
    }
    if let Some(binary) = expr.downcast_ref::<BinaryExpr>()
        && matches!(binary.op(), Operator::And | Operator::Or)
    {
        return Some(searches(binary.left())? + searches(binary.right())?);
    }
    (Search::of(expr).is_some() || opposite_search(expr).is_some()).then_some(1)
}

/// Returns the text that an expression always is.
fn literal(expr: &Arc<dyn PhysicalExpr>) -> Option<&str> {
    let text = expr.downcast_ref::<Literal>()?.value().try_as_str();
    text.flatten().filter(|it| it.len() <= WANTED_BYTES_MAX)
}

/// Returns a pattern that matches these characters.
fn escaped(text: &str) -> String {
    let mut pattern = String::new();
    text.chars().for_each(|it| push(it, &mut pattern));
    pattern
}

fn push(character: char, pattern: &mut String) {
    match character {
        '0'..='9' | 'A'..='Z' | 'a'..='z' => pattern.push(character),
        other => pattern.push_str(&format!(r"\x{{{:x}}}", u32::from(other))),
    }
}

/// Returns the pattern of a `LIKE`. As on the CPU, a backslash before any character takes its meaning away, and one at
/// the end is itself.
fn of_like(like: &str) -> String {
    let mut pattern = String::new();
    let mut characters = like.chars();
    let mut is_open = false;
    let begin = match like.starts_with('%') {
        true => "",
        false => r"\A",
    };
    while let Some(character) = characters.next() {
        is_open = false;
        match character {
            // What is in front of a match and behind one does not matter.
            '%' => is_open = true,
            '_' => pattern.push('.'),
            '\\' => push(characters.next().unwrap_or('\\'), &mut pattern),
            other => push(other, &mut pattern),
        }
        if is_open && !pattern.is_empty() && !pattern.ends_with(".*") {
            pattern.push_str(".*");
        }
    }
    match is_open {
        true => format!("{begin}{}", pattern.strip_suffix(".*").unwrap_or(&pattern)),
        false => format!(r"{begin}{pattern}\z"),
    }
}

/// Returns the pattern of a regular expression of the crate `regex`; `None` if there may be none of the same meaning.
fn of_regex(regex: &str, ignore_case: bool) -> Option<String> {
    let mut parser = ParserBuilder::new().case_insensitive(ignore_case).build();
    let parsed = parser.parse(regex).ok()?;
    let mut pattern = String::new();
    push_parsed(&parsed, &mut pattern)?;
    Some(pattern)
}

fn push_parsed(parsed: &Hir, pattern: &mut String) -> Option<()> {
    match parsed.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).ok()?;
            text.chars().for_each(|it| push(it, pattern));
        }
        HirKind::Class(Class::Unicode(class)) if !class.ranges().is_empty() => {
            pattern.push('[');
            for range in class.ranges() {
                let [start, end] = [range.start(), range.end()].map(u32::from);
                pattern.push_str(&format!(r"\x{{{start:x}}}-\x{{{end:x}}}"));
            }
            pattern.push(']');
        }
        HirKind::Look(Look::Start) => pattern.push_str(r"\A"),
        HirKind::Look(Look::End) => pattern.push_str(r"\z"),
        HirKind::Capture(group) => push_parsed(&group.sub, pattern)?,
        HirKind::Repetition(repeat) => {
            pattern.push_str("(?:");
            push_parsed(&repeat.sub, pattern)?;
            let max = repeat.max.map_or(String::new(), |max| max.to_string());
            pattern.push_str(&format!("){{{},{max}}}", repeat.min));
        }
        HirKind::Concat(parts) => {
            for part in parts {
                pattern.push_str("(?:");
                push_parsed(part, pattern)?;
                pattern.push(')');
            }
        }
        HirKind::Alternation(parts) => {
            pattern.push_str("(?:");
            for (index, part) in parts.iter().enumerate() {
                pattern.push_str(if index == 0 { "" } else { "|" });
                push_parsed(part, pattern)?;
            }
            pattern.push(')');
        }
        HirKind::Class(_) | HirKind::Look(_) => return None,
    }
    (pattern.len() <= PATTERN_BYTES_MAX).then_some(())
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, AsArray, RecordBatch, StringArray};
    use datafusion::physical_expr::expressions::lit;

    use super::*;

    /// Characters of patterns and texts: some have a meaning, some have several cases.
    const CHARACTERS: [&str; 16] = [
        "a", "A", "b", "k", "\u{212A}", "s", "\u{17F}", "é", "\n", " ", ".", "*", "%", "%", "_",
        "\\",
    ];
    /// Parts of regular expressions.
    const PARTS: [&str; 20] = [
        "a",
        "b",
        "A",
        "k",
        "é",
        ".",
        "[a-k]",
        "[^b]",
        "(a|b)",
        "(?:s|é )",
        "^",
        "$",
        "x?",
        "b*",
        "s+",
        "a{2,3}",
        "\\.",
        "\\s",
        "(?s:.)",
        "\\n",
    ];

    fn random(random: &mut fastrand::Rng, of: &[&str], length: usize) -> String {
        let parts = (0..random.usize(..length)).map(|_| of[random.usize(..of.len())]);
        parts.collect()
    }

    /// Compares a condition with its pattern.
    fn check(condition: Arc<dyn PhysicalExpr>, texts: &RecordBatch) -> bool {
        let Some(program) = Search::of(&condition).and_then(|it| it.wanted.program()) else {
            return false;
        };
        let found = condition.evaluate(texts).expect("booleans");
        let found = found.into_array(texts.num_rows()).expect("booleans");
        let texts = texts.column(0).as_string::<i32>();
        for (text, found) in texts.iter().zip(found.as_boolean()) {
            let text = text.expect("no NULL");
            let is_match = Some(program.is_match(text.as_bytes()));
            assert_eq!(is_match, found, "{condition} of {text:?} by {program:?}");
        }
        true
    }

    #[test]
    fn patterns_match_what_the_cpu_finds() {
        let mut of = fastrand::Rng::with_seed(17);
        let texts: StringArray = (0..500)
            .map(|_| Some(random(&mut of, &CHARACTERS, 9)))
            .collect();
        let texts = RecordBatch::try_from_iter([("text", Arc::new(texts) as ArrayRef)]);
        let texts = texts.expect("a batch");
        let column = || -> Arc<dyn PhysicalExpr> { Arc::new(Column::new("text", 0)) };
        let mut checked = 0;
        for _ in 0..3_000 {
            let ignore_case = of.bool();
            let pattern = lit(random(&mut of, &CHARACTERS, 7));
            let like = LikeExpr::new(false, ignore_case, column(), pattern.clone());
            checked += u32::from(check(Arc::new(like), &texts));
            let equal = BinaryExpr::new(column(), Operator::Eq, pattern);
            checked += u32::from(check(Arc::new(equal), &texts));
            let op = match ignore_case {
                true => Operator::RegexIMatch,
                false => Operator::RegexMatch,
            };
            let regex = lit(random(&mut of, &PARTS, 6));
            let regex = BinaryExpr::new(column(), op, regex);
            checked += u32::from(check(Arc::new(regex), &texts));
        }
        assert!(checked > 6_000, "{checked} of 9,000");
    }
}
