//! Options of a pattern.

use std::fmt;

use crate::error::PatternError;

/// Compile options of a pattern, as in MongoDB's `$options`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Options {
    /// `i`: letters match in either case, with simple Unicode case folding.
    pub ignore_case: bool,
    /// `m`: `^` and `$` also match next to a newline inside the value.
    pub multi_line: bool,
    /// `s`: `.` also matches a newline.
    pub dot_all: bool,
    /// `x`: white space and comments in the pattern are ignored.
    pub extended: bool,
}

impl Options {
    /// Reads options such as `"im"`. `u` is accepted without effect, because patterns are always UTF-8.
    ///
    /// # Errors
    /// [`PatternError::InvalidFlag`] for any letter other than `i`, `m`, `s`, `x` and `u`.
    pub fn parse(text: &str) -> Result<Options, PatternError> {
        let mut options = Options::default();
        for flag in text.chars() {
            match flag {
                'i' => options.ignore_case = true,
                'm' => options.multi_line = true,
                's' => options.dot_all = true,
                'x' => options.extended = true,
                'u' => {}
                _ => return Err(PatternError::InvalidFlag { flag }),
            }
        }
        Ok(options)
    }
}

impl fmt::Display for Options {
    /// Writes the letters in alphabetical order, as MongoDB stores them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = [
            (self.ignore_case, 'i'),
            (self.multi_line, 'm'),
            (self.dot_all, 's'),
            (self.extended, 'x'),
        ];
        letters
            .iter()
            .filter(|(on, _)| *on)
            .try_for_each(|(_, letter)| write!(f, "{letter}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_all_letters_and_writes_them_sorted() {
        let options = Options::parse("xsmiu").expect("valid letters");
        assert_eq!(options.to_string(), "imsx");
        assert_eq!(Options::parse("").expect("no letters"), Options::default());
    }

    #[test]
    fn refuses_other_letters() {
        assert_eq!(
            Options::parse("ig"),
            Err(PatternError::InvalidFlag { flag: 'g' })
        );
    }
}
