//! Why a part of a plan runs on the CPU.

use std::fmt;

/// Why a part of a plan runs on the CPU, as `EXPLAIN` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    text: String,
    missing: Option<Missing>,
    source: Option<usize>,
}

/// Bytes that a device had too few of when memory was to be allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) device: usize,
    pub(crate) bytes: u64,
}

impl Reason {
    pub(crate) fn new(text: impl Into<String>) -> Reason {
        Reason {
            text: text.into(),
            missing: None,
            source: None,
        }
    }

    /// Returns the reason that an error is.
    pub(crate) fn of(error: impl fmt::Display) -> Reason {
        Reason::new(error.to_string())
    }

    /// Returns the same reason with memory that could not be allocated.
    pub(crate) fn for_want_of(self, missing: Missing) -> Reason {
        Reason {
            missing: Some(missing),
            ..self
        }
    }

    /// Returns the same reason of the rows of a join, from the index of their source.
    pub(crate) fn of_source(self, source: usize) -> Reason {
        Reason {
            source: Some(source),
            ..self
        }
    }

    /// Returns whether the reason has this text.
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }

    /// Returns the index of the source, if it is of the rows of a join.
    pub(crate) fn source(&self) -> Option<usize> {
        self.source
    }

    /// Returns the memory that could not be allocated, if that is the reason.
    pub(crate) fn missing(&self) -> Option<Missing> {
        self.missing
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}
