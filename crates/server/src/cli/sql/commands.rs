//! The commands of the shell.

use super::output::Format;
use super::statements::word;

/// A command of the shell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Leave.
    Quit,
    /// Show the commands.
    Help,
    /// List the tables.
    List,
    /// Show the columns of a table.
    Describe(String),
    /// Show the time of statements, or do not.
    Timing,
    /// Set the maximum number of rows shown.
    Rows(usize),
    /// Set the format of results.
    Format(Format),
}

/// The commands, as they are completed.
pub const NAMES: [&str; 10] = [
    "\\?", "\\csv", "\\d", "\\dt", "\\h", "\\json", "\\q", "\\rows", "\\table", "\\timing",
];

impl Command {
    /// Parses an input. Returns `None` if it is no command but statements, and an error for an unknown command.
    pub fn parse(text: &str) -> Option<Result<Command, String>> {
        let text = word(text).unwrap_or(text.trim());
        let text = match text.starts_with('\\') {
            true => text.trim_end_matches(';').trim_end(),
            false => text,
        };
        let (name, argument) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let command = match (name, argument.trim()) {
            ("\\q" | "quit" | "exit", "") => Command::Quit,
            ("\\?" | "\\h" | "help", "") => Command::Help,
            ("\\d" | "\\dt", "") => Command::List,
            ("\\d" | "\\dt", name) => Command::Describe(name.to_owned()),
            ("\\timing", "") => Command::Timing,
            ("\\table", "") => Command::Format(Format::Table),
            ("\\json", "") => Command::Format(Format::Json),
            ("\\csv", "") => Command::Format(Format::Csv),
            ("\\rows", count) => return Some(rows(count)),
            (name, _) if name.starts_with('\\') => {
                return Some(Err(format!("there is no command {text}; \\? lists all")));
            }
            _ => return None,
        };
        Some(Ok(command))
    }
}

fn rows(count: &str) -> Result<Command, String> {
    let count = count.parse().map(Command::Rows);
    count.map_err(|_| "\\rows needs a number of rows; 0 shows all".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_statements() {
        let parse = |text| Command::parse(text).and_then(Result::ok);
        assert_eq!(parse("\\d"), Some(Command::List));
        assert_eq!(parse(" \\d  t;"), Some(Command::Describe("t".to_owned())));
        for quit in ["quit\n", "QUIT;", "exit ;"] {
            assert_eq!(parse(quit), Some(Command::Quit), "{quit}");
        }
        assert_eq!(parse("\\rows 0"), Some(Command::Rows(0)));
        assert_eq!(parse("\\json"), Some(Command::Format(Format::Json)));
        for wrong in ["\\x", "\\rows", "\\rows many", "\\q now"] {
            assert!(
                Command::parse(wrong).is_some_and(|command| command.is_err()),
                "{wrong}"
            );
        }
        for statement in ["SELECT 1;", "help me;", ""] {
            assert_eq!(Command::parse(statement), None, "{statement}");
        }
    }
}
