//! Why a statement did not finish, as the user reads it.

use std::fmt;

use console::measure_text_width;
use datafusion::arrow::error::ArrowError;
use forebay_tables::{Code, SqlError};
use forebay_terminal::OutputError;

use super::statements::Piece;
use crate::logging::one_line;

/// Columns shown of a line that has an error, on each side of the error.
const CONTEXT_COLUMNS: usize = 60;

/// Why a statement did not finish.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The statement is wrong, or cannot be executed.
    #[error(transparent)]
    Sql(Box<Report>),
    /// Ctrl-C cancelled the statement.
    #[error("interrupted")]
    Interrupted,
    /// The process was requested to stop.
    #[error("interrupted")]
    Stopped,
    /// Standard output cannot be written.
    #[error(transparent)]
    Output(#[from] OutputError),
}

impl From<SqlError> for Failure {
    fn from(error: SqlError) -> Failure {
        Failure::Sql(Box::new(Report { error, line: None }))
    }
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Failure {
        SqlError::new(Code::DataException, error.to_string()).into()
    }
}

impl Failure {
    /// Adds the line of the statement that has the error.
    #[must_use]
    pub fn at(self, piece: &Piece<'_>) -> Failure {
        match self {
            Failure::Sql(report) => Failure::Sql(Box::new(report.at(piece))),
            other => other,
        }
    }

    /// Returns the error of the command.
    pub fn into_error(self) -> anyhow::Error {
        match self {
            Failure::Output(error) => error.into(),
            other => other.into(),
        }
    }
}

/// An error of a statement, and where it is.
#[derive(Debug)]
pub struct Report {
    error: SqlError,
    line: Option<Line>,
}

/// A line with an error.
#[derive(Debug)]
struct Line {
    /// Number of the line in the whole text, from 1.
    number: usize,
    text: String,
    /// Column of the error, from 1.
    column: usize,
}

impl Report {
    fn at(mut self, piece: &Piece<'_>) -> Report {
        self.line = self.error.place.and_then(|place| {
            let number = usize::try_from(place.line).ok()?;
            let text = piece.text.lines().nth(number.checked_sub(1)?)?;
            Some(Line {
                number: piece.lines_before + number,
                text: text.to_owned(),
                column: usize::try_from(place.column).ok()?,
            })
        });
        self
    }
}

impl std::error::Error for Report {}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ERROR: {}", lines(&self.error.message))?;
        if let Some(line) = &self.line {
            write!(f, "\n{}", line.pointed())?;
        }
        match hint(&self.error) {
            Some(hint) => write!(f, "\nHINT: {}", lines(&hint)),
            None => Ok(()),
        }
    }
}

/// Returns what the user can do. This command has its own names for the limits of the server.
fn hint(error: &SqlError) -> Option<String> {
    match error.code {
        Code::OutOfMemory => Some("raise --memory-bytes-max, or select less at a time".to_owned()),
        Code::DiskFull => Some(
            "raise --spill-bytes-max, set TMPDIR to a larger disk, or select less at a time"
                .to_owned(),
        ),
        _ => error.hint.clone(),
    }
}

/// Escapes what controls a terminal, and leaves line breaks.
fn lines(text: &str) -> String {
    let lines: Vec<_> = text.trim_end().lines().map(one_line).collect();
    lines.join("\n")
}

impl Line {
    /// Returns the part of the line around the error, and a caret below the error.
    fn pointed(&self) -> String {
        let letters: Vec<char> = self.text.chars().collect();
        let column = self.column.saturating_sub(1).min(letters.len());
        let start = column.saturating_sub(CONTEXT_COLUMNS);
        let end = (column + CONTEXT_COLUMNS).min(letters.len());
        let part = |range: &[char]| one_line(&range.iter().collect::<String>()).into_owned();
        let mut text = format!("LINE {}: ", self.number);
        text.push_str(if start > 0 { "..." } else { "" });
        text.push_str(&part(&letters[start..column]));
        let margin = measure_text_width(&text);
        text.push_str(&part(&letters[column..end]));
        text.push_str(if end < letters.len() { "..." } else { "" });
        format!("{text}\n{:margin$}^", "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tables::Place;

    fn report(text: &str, line: u64, column: u64) -> String {
        let mut error = SqlError::new(Code::SyntaxError, "wrong\x1b[31m").with_hint("do not");
        error.place = Some(Place { line, column });
        let piece = Piece {
            text,
            lines_before: 2,
        };
        Failure::from(error).at(&piece).to_string()
    }

    #[test]
    fn a_caret_is_below_the_place() {
        assert_eq!(
            report("SELECT\n日本 x\ty", 2, 4),
            "ERROR: wrong\\u{1b}[31m\nLINE 4: 日本 x\\ty\n             ^\nHINT: do not"
        );
        let none = report("SELECT", 7, 1);
        assert_eq!(none, "ERROR: wrong\\u{1b}[31m\nHINT: do not");
    }

    #[test]
    fn long_lines_are_cut_around_the_place() {
        let text = format!("{}!{}", "a".repeat(500), "b".repeat(500));
        let report = report(&text, 1, 501);
        let lines: Vec<&str> = report.lines().collect();
        assert!(lines[1].len() < 140, "{report}");
        assert_eq!(lines[1].find('!'), lines[2].find('^'), "{report}");
    }
}
