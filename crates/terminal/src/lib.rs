//! Standard output and standard error of the commands. Standard output has what a command was asked for, standard error
//! has notes about it.
#![forbid(unsafe_code)]

use std::fmt::Display;
use std::io::{self, Write};

/// Standard output cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("standard output cannot be written: {0}")]
pub struct OutputError(#[from] pub io::Error);

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
    print_to(&mut io::stdout().lock(), text)
}

/// Writes a line to standard output at once.
///
/// # Errors
/// As for [`print()`].
pub fn print_line(line: impl Display) -> Result<(), OutputError> {
    print(format_args!("{line}\n"))
}

/// Writes a line to standard error. A note that cannot be written is lost.
pub fn note(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

fn print_to(out: &mut impl Write, text: impl Display) -> Result<(), OutputError> {
    write!(out, "{text}")?;
    Ok(out.flush()?)
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

    #[test]
    fn a_full_output_is_an_error() {
        let mut full = io::Cursor::new([0_u8; 5]);
        print_to(&mut full, "1234\n").expect("it fits");
        let error = print_to(&mut full, "5\n").expect_err("no room is left");
        assert!(!error.is_closed(), "{error}");
    }
}
