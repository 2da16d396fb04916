//! Why a part of a plan runs on the CPU.

use std::fmt;

/// Why a part of a plan runs on the CPU, as `EXPLAIN` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason(String);

impl Reason {
    pub(crate) fn new(text: impl Into<String>) -> Reason {
        Reason(text.into())
    }

    /// Returns the reason that an error is.
    pub(crate) fn of(error: impl fmt::Display) -> Reason {
        Reason(error.to_string())
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
