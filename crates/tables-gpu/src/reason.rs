//! Why a part of a plan runs on the CPU.

use std::fmt;

/// Why a part of a plan runs on the CPU, as `EXPLAIN` prints it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reason {
    text: String,
    missing: Option<Missing>,
    repeated: Option<Repeated>,
}

/// The sources whose rows a run has found to repeat, by their indexes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Repeated {
    /// Those of which several rows have the same key.
    pub(crate) same_keys: Vec<usize>,
    /// Those whose tables, or a slice of them, have no room for their rows.
    pub(crate) many_rows: Vec<usize>,
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
            repeated: None,
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

    /// Returns the reason that rows of these sources repeat.
    pub(crate) fn of_joins(repeated: Repeated) -> Reason {
        let text = match repeated.many_rows.is_empty() {
            true => "several rows of a join have the same key",
            false => "joins repeat more rows than a table has room for",
        };
        Reason {
            repeated: Some(repeated),
            ..Reason::new(text)
        }
    }

    /// Returns the same reason, marked as caused by rows that joins repeat: another run will fail, too.
    pub(crate) fn of_repeated_rows(self) -> Reason {
        Reason {
            repeated: Some(Repeated::default()),
            ..self
        }
    }

    /// Returns the same reason, which does not hold for a join whose table has all rows of this source.
    pub(crate) fn of_same_keys(self, source: usize) -> Reason {
        Reason {
            repeated: Some(Repeated {
                same_keys: vec![source],
                many_rows: Vec::new(),
            }),
            ..self
        }
    }

    /// Returns the sources whose rows repeat, if that is the reason.
    pub(crate) fn repeated(&self) -> Option<&Repeated> {
        self.repeated.as_ref()
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
