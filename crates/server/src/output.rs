//! Standard output of the commands.

use std::fmt::Display;
use std::io::{self, Write};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct OutputError(#[from] io::Error);

impl OutputError {
    /// Returns whether the reader of standard output has ended, as in `forebay doctor | head -1`. It wants no more, so
    /// this is no failure.
    pub fn is_closed(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

/// Writes text to standard output at once.
///
/// # Errors
/// If standard output is closed, or its disk is full.
pub fn print(text: impl Display) -> Result<(), OutputError> {
    let mut out = io::stdout().lock();
    write!(out, "{text}")?;
    Ok(out.flush()?)
}

/// Writes a line to standard output at once.
///
/// # Errors
/// As for [`print()`].
pub fn print_line(line: impl Display) -> Result<(), OutputError> {
    print(format_args!("{line}\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_ended_reader_is_no_failure() {
        let error = |kind| OutputError(io::Error::from(kind));
        assert!(error(io::ErrorKind::BrokenPipe).is_closed());
        let full = error(io::ErrorKind::StorageFull);
        assert!(!full.is_closed());
        assert!(
            full.to_string()
                .starts_with("standard output cannot be written: ")
        );
    }
}
