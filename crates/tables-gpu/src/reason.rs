//! Why a part of a plan runs on the CPU.

use std::fmt;

/// Why a part of a plan runs on the CPU, as `EXPLAIN` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    text: String,
    missing: Option<Missing>,
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
