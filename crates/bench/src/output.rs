//! What the benchmarks print.

use std::io::{self, Write};

use anyhow::{Context, Result};

/// Prints a line to standard output at once.
///
/// # Errors
/// If standard output is closed or full.
pub(crate) fn print(line: &str) -> Result<()> {
    print_to(&mut io::stdout().lock(), line)
}

fn print_to(out: &mut impl Write, line: &str) -> Result<()> {
    let printed = writeln!(out, "{line}").and_then(|()| out.flush());
    printed.context("printing a result; check where standard output goes")
}

/// Prints a note to standard error; a note that cannot be printed is lost.
pub(crate) fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_output_is_an_error() {
        let mut full = io::Cursor::new([0_u8; 5]);
        print_to(&mut full, "1234").expect("it fits with its end of line");
        let error = print_to(&mut full, "5").expect_err("no room is left");
        assert!(error.to_string().contains("standard output"), "{error}");
    }
}
