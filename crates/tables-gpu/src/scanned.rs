//! What is known of the columns that a scan reads.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use datafusion::arrow::datatypes::{DataType, SchemaRef};

use crate::column::Column;
use crate::columns::Resident;
use crate::floats::{BITS, float_of, integer, is_float, is_unique, ordered};
use crate::fragment::Rows;
use crate::groups::RowTexts;
use crate::reason::Reason;
use crate::texts::Texts;

/// What is known of one column in all files of a scan.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Smallest and largest number; `None` if no row has a value.
    pub(crate) range: Option<(i64, i64)>,
    pub(crate) has_nulls: bool,
    /// For each file, the bits of a packed number, if all its chunks have the same.
    pub(crate) widths: Vec<Option<u32>>,
    /// The smallest and the largest exponent of floats of each file.
    pub(crate) exponents: Vec<(u32, u32)>,
    /// The column in each file.
    pub(crate) files: Vec<Arc<Column>>,
}

/// The columns of a scan.
#[derive(Debug, Clone)]
pub(crate) struct Scanned {
    /// The columns of the rows.
    pub(crate) schema: SchemaRef,
    /// Indexes of those of joins.
    pub(crate) joined: Range<usize>,
    /// What is known of the columns that are read, by their index in the rows; `None` while nothing is known.
    pub(crate) facts: Option<HashMap<usize, Facts>>,
    /// Number of rows of all files.
    pub(crate) rows: u64,
    /// Set when the statement ends.
    pub(crate) stop: Arc<AtomicBool>,
}

impl Scanned {
    /// Returns what a plan is checked with before its files are read: small numbers and no texts.
    pub(crate) fn assumed(rows: &Rows) -> Scanned {
        Scanned {
            schema: Arc::clone(&rows.schema),
            joined: rows.joined(),
            facts: None,
            rows: 1,
            stop: Arc::default(),
        }
    }

    fn facts(&self, column: usize) -> Option<&Facts> {
        self.facts.as_ref()?.get(&column)
    }

    pub(crate) fn name(&self, column: usize) -> &str {
        self.schema.field(column).name()
    }

    pub(crate) fn data_type(&self, column: usize) -> DataType {
        self.schema.field(column).data_type().clone()
    }

    /// Returns the smallest and the largest number of a column, of floats the integers that order as they do; `None` if
    /// no row has a value.
    pub(crate) fn range(&self, column: usize) -> Option<(i64, i64)> {
        match self.facts {
            Some(_) => self.facts(column)?.range,
            None if is_float(&self.data_type(column)) => Some((ordered(1.0), ordered(2.0))),
            None => Some((0, 1)),
        }
    }

    /// Returns the largest exponent of a column of floats, if all are decimals, and the smallest and the largest
    /// integer that they are with it.
    pub(crate) fn decimals(&self, column: usize) -> Option<(u32, (i64, i64))> {
        self.decimals_with(column, 0)
    }

    /// Returns the same with an exponent that is at least `exponent_min`.
    pub(crate) fn decimals_with(
        &self,
        column: usize,
        exponent_min: u32,
    ) -> Option<(u32, (i64, i64))> {
        let exponents = match self.facts(column) {
            Some(facts) => facts.exponents.as_slice(),
            None => &[(0, 0)],
        };
        let least = exponents.iter().map(|(least, _)| *least).min()?;
        let exponent = exponents.iter().map(|(_, largest)| *largest).max()?;
        if exponent == BITS {
            return None;
        }
        let exponent = exponent.max(exponent_min);
        let Some((min, max)) = self.range(column) else {
            return Some((exponent, (0, 0)));
        };
        let is_single = self.data_type(column) == DataType::Float32;
        let integer = |ordered| integer(float_of(ordered), exponent, is_single);
        let (min, max) = (integer(min)?, integer(max)?);
        // With another exponent, a float of more digits may be another integer.
        let is_one = least == exponent || is_unique(min, is_single) && is_unique(max, is_single);
        is_one.then_some((exponent, (min, max)))
    }

    /// Returns the bits of a packed number, if all chunks of all files have the same.
    pub(crate) fn width_of(&self, column: usize) -> Option<u32> {
        common(&self.facts(column)?.widths)
    }

    pub(crate) fn has_nulls(&self, column: usize) -> bool {
        self.facts(column).is_some_and(|it| it.has_nulls)
    }

    /// Returns the number of texts of a column in all files together.
    pub(crate) fn texts_count(&self, column: usize) -> usize {
        let files = self.facts(column).into_iter().flat_map(|it| &it.files);
        files.map(|it| it.texts.count()).sum()
    }

    /// Returns the texts of a column in each file.
    pub(crate) fn texts(&self, column: usize) -> Vec<Arc<Texts>> {
        match self.facts(column) {
            Some(facts) => facts.files.iter().map(|it| Arc::clone(&it.texts)).collect(),
            None => vec![Arc::default()],
        }
    }

    /// Returns the texts of a column whose numbers are those of its rows.
    pub(crate) fn texts_of_rows(&self, column: usize) -> Option<RowTexts> {
        let facts = self.facts(column)?;
        let are_of_rows = facts.files.iter().any(|it| it.has_texts_of_rows());
        are_of_rows.then(|| RowTexts::new(&facts.files, self.data_type(column)))
    }
}

/// Returns what is known of each source of rows and of their joins.
///
/// # Errors
/// If the columns of a file do not have the same rows.
pub(crate) fn scanned(
    rows: &Rows,
    resident: &[Resident],
    stop: &Arc<AtomicBool>,
) -> Result<Vec<Scanned>, Reason> {
    let mut all = vec![resident[rows.source].scanned(rows, stop)?];
    for join in &rows.joins {
        all.extend(scanned(&join.rows, resident, stop)?);
    }
    Ok(all)
}

/// Returns what all files have, if that is the same.
fn common(of_files: &[Option<u32>]) -> Option<u32> {
    let first = (*of_files.first()?)?;
    of_files
        .iter()
        .all(|it| *it == Some(first))
        .then_some(first)
}
