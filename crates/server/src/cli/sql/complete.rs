//! Helps to type in the shell: completes names, keywords, commands and paths, and tells when an input is complete.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use forebay_tables::Session;
use rustyline::completion::{Completer, Pair};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Context, Helper};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::statements::{End, end_of, is_complete, names};
use super::{commands, describe};
use crate::logging::one_line;

/// Time that a completion waits for the columns of a table.
const PATIENCE: Duration = Duration::from_millis(700);
/// Maximum number of tables of an input of which columns are completed.
const TABLES_MAX: usize = 8;
/// Maximum number of candidates.
const CANDIDATES_MAX: usize = 1_000;

/// Keywords that are completed.
const KEYWORDS: [&str; 94] = [
    "ALL",
    "ANALYZE",
    "AND",
    "ANY",
    "AS",
    "ASC",
    "BEGIN",
    "BETWEEN",
    "BY",
    "CASE",
    "CAST",
    "COLUMNS",
    "COMMIT",
    "COPY",
    "CREATE",
    "CROSS",
    "CSV",
    "CURRENT_DATE",
    "CURRENT_TIMESTAMP",
    "DATE",
    "DELETE",
    "DESC",
    "DESCRIBE",
    "DISTINCT",
    "DROP",
    "ELSE",
    "END",
    "EXCEPT",
    "EXECUTE",
    "EXISTS",
    "EXPLAIN",
    "EXTERNAL",
    "EXTRACT",
    "FALSE",
    "FILTER",
    "FIRST",
    "FOLLOWING",
    "FROM",
    "FULL",
    "FUNCTIONS",
    "GROUP",
    "GROUPING",
    "HAVING",
    "ILIKE",
    "IN",
    "INNER",
    "INSERT",
    "INTERSECT",
    "INTERVAL",
    "INTO",
    "IS",
    "JOIN",
    "JSON",
    "LAST",
    "LATERAL",
    "LEFT",
    "LIKE",
    "LIMIT",
    "LOCATION",
    "NATURAL",
    "NOT",
    "NULL",
    "NULLS",
    "OFFSET",
    "ON",
    "OPTIONS",
    "OR",
    "ORDER",
    "OUTER",
    "OVER",
    "PARQUET",
    "PARTITION",
    "PRECEDING",
    "RECURSIVE",
    "REPLACE",
    "RIGHT",
    "ROWS",
    "SCHEMA",
    "SELECT",
    "SET",
    "SHOW",
    "STORED",
    "TABLE",
    "TABLES",
    "THEN",
    "TIMESTAMP",
    "TRUE",
    "UNION",
    "UNNEST",
    "USING",
    "VALUES",
    "VIEW",
    "WHERE",
    "WITH",
];
/// Keywords that a table follows.
const BEFORE_TABLES: [&str; 6] = ["DESCRIBE", "FROM", "INTO", "JOIN", "TABLE", "VIEW"];

/// The helper of the line editor.
pub struct Assistant {
    session: Arc<Mutex<Session>>,
}

/// Candidates, and the offset of the text that they replace.
type Candidates = (usize, Vec<Pair>);

impl Assistant {
    /// Returns a helper that completes the names of a session. May be used only while the session runs no statement.
    pub fn new(session: Arc<Mutex<Session>>) -> Assistant {
        Assistant { session }
    }

    fn candidates(&self, line: &str, cursor: usize) -> Candidates {
        let before = &line[..cursor];
        if let Some(candidates) = self.of_command(before) {
            return candidates;
        }
        match end_of(before) {
            End::String(start) => (start + 1, paths(&before[start + 1..])),
            End::Name(start) => (start, self.quoted(line, &before[start + 1..])),
            End::Plain => self.words(line, before),
            End::Other => (cursor, Vec::new()),
        }
    }

    /// Completes a command of the shell, or its argument.
    fn of_command(&self, before: &str) -> Option<Candidates> {
        let command = before.trim_start();
        if !command.starts_with('\\') {
            return None;
        }
        let Some((name, argument)) = command.split_once(' ') else {
            let names = commands::NAMES.iter().map(ToString::to_string);
            return Some((before.len() - command.len(), matching(names, command)));
        };
        let start = before.len() - argument.len();
        let tables = match name {
            "\\d" | "\\dt" => self.tables(),
            _ => Vec::new(),
        };
        Some((
            start,
            matching(tables.iter().map(|name| quoted(name)), argument),
        ))
    }

    /// Completes a name in quotes, the first of which is replaced too.
    fn quoted(&self, line: &str, begun: &str) -> Vec<Pair> {
        let tables = self.tables();
        let columns = self.columns(line, &tables);
        let names = tables.iter().chain(&columns);
        let names = names.filter(|name| name.starts_with(begun));
        let all: Vec<String> = names.map(|name| always_quoted(name)).collect();
        matching(all.into_iter(), "")
    }

    /// Completes a word: a table, a column or a keyword.
    fn words(&self, line: &str, before: &str) -> Candidates {
        let is_part = |letter: char| letter.is_alphanumeric() || letter == '_';
        let start = before.trim_end_matches(is_part).len();
        let (head, word) = before.split_at(start);
        let tables = self.tables();
        if head.ends_with('.') {
            let columns = self.columns(line, &tables);
            return (
                start,
                matching(columns.iter().map(|name| quoted(name)), word),
            );
        }
        let last = head.split_whitespace().next_back().unwrap_or_default();
        let is_before_table = BEFORE_TABLES
            .iter()
            .any(|keyword| keyword.eq_ignore_ascii_case(last));
        if is_before_table {
            return (
                start,
                matching(tables.iter().map(|name| quoted(name)), word),
            );
        }
        let columns = self.columns(line, &tables);
        let names = columns.iter().chain(&tables).map(|name| quoted(name));
        let keywords = KEYWORDS.iter().map(|keyword| in_case_of(keyword, word));
        // An empty word would be completed by all keywords.
        let keywords = keywords.filter(|_| !word.is_empty());
        (start, matching(names.chain(keywords), word))
    }

    /// Returns the names of the tables.
    fn tables(&self) -> Vec<String> {
        let names = async { self.session.lock().await.table_names().await };
        let names = async { timeout(PATIENCE, names).await.unwrap_or_default() };
        Handle::current().block_on(names)
    }

    /// Returns the columns of the tables and files that an input names.
    fn columns(&self, line: &str, tables: &[String]) -> Vec<String> {
        let mut named = names(line);
        named.retain(|name| tables.contains(name) || name.starts_with('\''));
        named.sort_unstable();
        named.dedup();
        let described = async {
            let session = self.session.lock().await;
            let mut columns = Vec::new();
            for name in named.iter().take(TABLES_MAX) {
                // A string that is not the path of a file has no columns.
                let Ok(schema) = describe::schema(&session, name).await else {
                    continue;
                };
                columns.extend(schema.fields().iter().map(|field| field.name().clone()));
            }
            columns
        };
        let described = async { timeout(PATIENCE, described).await.unwrap_or_default() };
        Handle::current().block_on(described)
    }
}

/// Returns the candidates that begin as `begun` does, sorted. Case does not matter.
fn matching(candidates: impl Iterator<Item = String>, begun: &str) -> Vec<Pair> {
    let begun = begun.to_lowercase();
    let mut texts: Vec<String> = candidates
        .filter(|text| text.to_lowercase().starts_with(&begun))
        .collect();
    texts.sort_unstable();
    texts.dedup();
    texts.truncate(CANDIDATES_MAX);
    let pair = |text: String| Pair {
        display: one_line(&text).into_owned(),
        replacement: text,
    };
    texts.into_iter().map(pair).collect()
}

/// Returns a name as SQL needs it: in quotes if it is not in lower case.
fn quoted(name: &str) -> String {
    let is_plain = |letter: char| {
        letter.is_ascii_lowercase() || letter.is_ascii_digit() || "_.".contains(letter)
    };
    let begins_plain =
        name.starts_with(|letter: char| letter.is_ascii_lowercase() || letter == '_');
    match begins_plain && name.chars().all(is_plain) {
        true => name.to_owned(),
        false => always_quoted(name),
    }
}

fn always_quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns a keyword in lower case if the user types so.
fn in_case_of(keyword: &str, word: &str) -> String {
    match word.starts_with(char::is_lowercase) {
        true => keyword.to_lowercase(),
        false => keyword.to_owned(),
    }
}

/// Completes the path of a file or folder in a string.
fn paths(begun: &str) -> Vec<Pair> {
    let begun = begun.replace("''", "'");
    let (folder, name) = begun
        .rsplit_once('/')
        .map_or(("", &*begun), |(folder, name)| {
            (&begun[..=folder.len()], name)
        });
    let place = if folder.is_empty() { "." } else { folder };
    let Ok(entries) = fs::read_dir(place) else {
        return Vec::new();
    };
    let is_hidden_wanted = name.starts_with('.');
    let mut found: Vec<String> = entries
        .filter_map(|entry| {
            let entry = entry.ok()?;
            let is_folder = fs::metadata(entry.path()).ok()?.is_dir();
            let slash = if is_folder { "/" } else { "" };
            Some(format!("{}{slash}", entry.file_name().to_str()?))
        })
        .filter(|entry| entry.starts_with(name))
        .filter(|entry| is_hidden_wanted || !entry.starts_with('.'))
        // The line editor would send what controls the terminal to it.
        .filter(|entry| one_line(entry) == *entry)
        .collect();
    found.sort_unstable();
    found.truncate(CANDIDATES_MAX);
    let pair = |entry: String| Pair {
        replacement: format!("{folder}{entry}").replace('\'', "''"),
        display: entry,
    };
    found.into_iter().map(pair).collect()
}

impl Completer for Assistant {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<Candidates> {
        Ok(self.candidates(line, cursor))
    }
}

impl Validator for Assistant {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}

impl Helper for Assistant {}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: Vec<Pair>) -> Vec<String> {
        pairs.into_iter().map(|pair| pair.replacement).collect()
    }

    #[test]
    fn candidates_match_in_any_case() {
        let names = || ["orders", "Other", "lines"].map(quoted).into_iter();
        assert_eq!(texts(matching(names(), "OR")), ["orders"]);
        assert_eq!(texts(matching(names(), "")).len(), 3);
        assert_eq!(quoted("Other"), "\"Other\"");
        assert_eq!(quoted("public.t_1"), "public.t_1");
        assert_eq!(quoted("1a\"b"), "\"1a\"\"b\"");
    }

    #[test]
    fn keywords_take_the_case_of_the_word() {
        assert_eq!(in_case_of("SELECT", "se"), "select");
        assert_eq!(in_case_of("SELECT", "Se"), "SELECT");
        assert!(KEYWORDS.is_sorted());
    }

    #[test]
    fn paths_are_completed() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let root = folder.path().to_string_lossy().into_owned();
        for name in ["it's.csv", "items.parquet", ".hidden", "it\x1b.csv"] {
            fs::write(folder.path().join(name), "").expect("room");
        }
        fs::create_dir(folder.path().join("items")).expect("room");
        let complete = |begun: &str| -> Vec<String> {
            let found = texts(paths(&format!("{root}/{begun}")));
            found
                .iter()
                .map(|path| path[root.len() + 1..].to_owned())
                .collect()
        };
        assert_eq!(complete("it"), ["it''s.csv", "items.parquet", "items/"]);
        assert_eq!(complete("it''"), ["it''s.csv"]);
        assert_eq!(complete("."), [".hidden"]);
        assert!(texts(paths("/no/such/folder/x")).is_empty());
    }
}
