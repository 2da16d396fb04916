//! Columns with few different values, and tables over these values.
//!
//! An expression of one such column is computed on the CPU once for each value. Kernels then read its result from a
//! table, so that `LIKE`, `substr` or `extract` give what they give on the CPU.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use datafusion::arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use datafusion::arrow::compute::{cast, concat};
use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::arrow::row::{RowConverter, SortField};
use datafusion::common::exec_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::utils::normalize_float_zero;
use datafusion::error::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::expression::Code;
use crate::floats::is_float;
use crate::packed::{array_of, decimals_of, is_text};
use crate::reason::Reason;
use crate::scanned::Scanned;
use crate::texts::{Texts, TextsMax};
use crate::value::Kind;

/// Maximum number of values of a column for tables over them.
const VALUES_MAX: i64 = 1 << 16;

/// Maximum number of values of a column in all files.
pub(crate) const ALL_VALUES_MAX: usize = 1 << 20;
/// Number of values for which an expression is computed at once.
const SLICE: usize = 1 << 10;

/// The words of a table for each file of the scan, or one table for all files. Word 0 is that of NULL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Table {
    /// The words for each number of a column, from the smallest on.
    All(Vec<u32>),
    /// The words for each text of a file.
    File(Vec<Vec<u32>>),
    /// The new numbers of the values of a key of a join, by the index of the key; made when the old ones are marked.
    Key(usize),
}

impl Table {
    /// Returns the number of words.
    pub(crate) fn len(&self) -> usize {
        match self {
            Table::All(words) => words.len(),
            Table::File(files) => files.iter().map(Vec::len).sum(),
            Table::Key(_) => 0,
        }
    }

    /// Puts other numbers in place of those that are the indexes of these.
    pub(crate) fn renumber(&mut self, numbers: &[u32]) {
        let words = match self {
            Table::All(words) => std::slice::from_mut(words),
            Table::File(files) => files.as_mut_slice(),
            Table::Key(_) => &mut [],
        };
        for word in words.iter_mut().flatten() {
            *word = numbers.get(*word as usize).copied().unwrap_or(0);
        }
    }
}

/// A column whose different values are few.
#[derive(Debug)]
pub(crate) struct Domain {
    /// Index of the column in the table.
    pub(crate) column: usize,
    /// The smallest number, which has word 1; of texts 0.
    pub(crate) first: i64,
    is_of_file: bool,
    has_nulls: bool,
    /// NULL and the values, for all files or for each.
    values: Vec<ArrayRef>,
    /// The texts of each file; empty if the values are numbers.
    texts: Vec<Arc<Texts>>,
    /// Set when the statement ends.
    stop: Arc<AtomicBool>,
}

impl Domain {
    /// Returns the domain of the one column that an expression has.
    ///
    /// # Errors
    /// If the expression has none or several columns, or the column has too many values.
    pub(crate) fn of(
        expr: &Arc<dyn PhysicalExpr>,
        scanned: &Scanned,
    ) -> std::result::Result<Domain, Reason> {
        Domain::up_to(expr, scanned, ALL_VALUES_MAX)
    }

    /// Returns the domain of a key. If the key is a column, nothing is computed of its values, so there may be many.
    ///
    /// # Errors
    /// As [`Domain::of`].
    pub(crate) fn of_key(
        expr: &Arc<dyn PhysicalExpr>,
        scanned: &Scanned,
    ) -> std::result::Result<Domain, Reason> {
        let texts_max = match expr.is::<Column>() {
            true => TextsMax::MANY.count,
            false => ALL_VALUES_MAX,
        };
        Domain::up_to(expr, scanned, texts_max)
    }

    fn up_to(
        expr: &Arc<dyn PhysicalExpr>,
        scanned: &Scanned,
        texts_max: usize,
    ) -> std::result::Result<Domain, Reason> {
        let columns = collect_columns(expr);
        let mut columns = columns.iter();
        let (Some(column), None) = (columns.next(), columns.next()) else {
            return Err(Reason::new(format!("{expr} is of several columns or none")));
        };
        if is_volatile(expr) {
            return Err(Reason::new(format!("{expr} differs from row to row")));
        }
        let column = column.index();
        if scanned.joined.contains(&column) {
            return Err(Reason::new(format!("{expr} is of a join")));
        }
        let data_type = scanned.data_type(column);
        if is_text(&data_type) {
            let are_of_rows = scanned.texts_of_rows(column).is_some();
            if are_of_rows || scanned.texts_count(column) > texts_max {
                return Err(too_many(scanned, column));
            }
            let texts = scanned.texts(column);
            let values = texts.iter().map(|it| cast(&it.array()?, &data_type));
            return Ok(Domain {
                column,
                first: 0,
                is_of_file: true,
                has_nulls: scanned.has_nulls(column),
                values: values.collect::<Result<_, _>>().map_err(Reason::of)?,
                texts,
                stop: Arc::clone(&scanned.stop),
            });
        }
        let decimals = match is_float(&data_type) {
            true => {
                let decimals = scanned.decimals(column);
                Some(decimals.ok_or_else(|| too_many(scanned, column))?)
            }
            false => None,
        };
        let range = decimals.map_or_else(|| scanned.range(column), |(_, range)| Some(range));
        let (first, last) = range.unwrap_or((0, 0));
        if last.checked_sub(first).is_none_or(|it| it >= VALUES_MAX) {
            return Err(too_many(scanned, column));
        }
        let numbers = std::iter::once(None)
            .chain((first..=last).map(Some))
            .collect();
        let values = match decimals {
            Some((exponent, _)) => decimals_of(numbers, exponent, &data_type),
            None => array_of(numbers, &data_type),
        };
        let values = values.map_err(Reason::of)?;
        Ok(Domain {
            column,
            first,
            is_of_file: false,
            has_nulls: scanned.has_nulls(column),
            values: vec![values],
            texts: Vec::new(),
            stop: Arc::clone(&scanned.stop),
        })
    }

    /// Returns the results of an expression for NULL and each value. It stops when the statement ends.
    fn results(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<Vec<ArrayRef>> {
        let alone = Arc::clone(expr).transform_up(|node| {
            Ok(match node.downcast_ref::<Column>() {
                Some(column) => Transformed::yes(Arc::new(Column::new(column.name(), 0)) as _),
                None => Transformed::no(node),
            })
        });
        let alone = alone.data()?;
        let results = self.values.iter().map(|values| {
            let field = Field::new("value", values.data_type().clone(), true);
            let schema = Arc::new(Schema::new(vec![field]));
            let slices = (0..values.len()).step_by(SLICE).map(|first| {
                if self.stop.load(Ordering::Relaxed) {
                    return exec_err!("the statement was cancelled");
                }
                let slice = values.slice(first, SLICE.min(values.len() - first));
                let rows = slice.len();
                let batch = RecordBatch::try_new(Arc::clone(&schema), vec![slice])?;
                alone.evaluate(&batch)?.into_array(rows)
            });
            let slices = slices.collect::<Result<Vec<_>>>()?;
            let slices: Vec<&dyn Array> = slices.iter().map(|it| it.as_ref() as _).collect();
            Ok(concat(&slices)?)
        });
        results.collect()
    }

    fn table(&self, mut words: Vec<Vec<u32>>) -> Table {
        match self.is_of_file {
            true => Table::File(words),
            false => Table::All(words.pop().unwrap_or_default()),
        }
    }

    /// Returns the table of a condition: 0 for false, 1 for true, 2 for NULL.
    ///
    /// # Errors
    /// If the condition fails for a value.
    pub(crate) fn truths(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> std::result::Result<Table, Reason> {
        let results = self.results(expr).map_err(Reason::of)?;
        let words = results.iter().map(|truths| {
            let truths = truths.as_boolean_opt();
            let truths = truths.ok_or_else(|| Reason::new(format!("{expr} is no condition")))?;
            Ok(truths.iter().map(|it| it.map_or(2, u32::from)).collect())
        });
        let words: Vec<Vec<u32>> = words.collect::<std::result::Result<_, Reason>>()?;
        Ok(self.table(words))
    }

    /// Returns how many words no row has: that of NULL if the column has none.
    pub(crate) fn skipped(&self) -> usize {
        usize::from(!self.has_nulls)
    }

    /// Returns the values of an expression that is the column itself, if they are those of all files. They are
    /// different, and their numbers need no table.
    pub(crate) fn of_column(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<ArrayRef> {
        let [values] = self.values.as_slice() else {
            return None;
        };
        let skipped = self.skipped();
        expr.is::<Column>()
            .then(|| values.slice(skipped, values.len() - skipped))
    }

    /// Returns the table of a key: the number of the key's value for each value of the column; and the different values
    /// of the key, in the order of their numbers.
    ///
    /// # Errors
    /// If the key cannot be computed for a value.
    pub(crate) fn keys(
        &self,
        expr: &Arc<dyn PhysicalExpr>,
    ) -> std::result::Result<(Table, ArrayRef), Reason> {
        let skipped = self.skipped();
        if let Some(values) = self.of_column(expr) {
            let words = (0..values.len() + skipped).map(|word| word.saturating_sub(skipped) as u32);
            return Ok((self.table(vec![words.collect()]), values));
        }
        if expr.is::<Column>() && self.is_of_file {
            let together = Texts::together(&self.texts, self.has_nulls, &self.stop);
            let together = together.map_err(Reason::of)?;
            let values = cast(&together.values, self.values[0].data_type()).map_err(Reason::of)?;
            return Ok((self.table(together.numbers.clone()), values));
        }
        let results = self.results(expr).map_err(Reason::of)?;
        let results: Vec<_> = results
            .iter()
            .map(|it| it.slice(skipped, it.len() - skipped))
            .collect();
        if results.iter().any(has_negative_zero) {
            return Err(Reason::new(format!("{expr} may be -0")));
        }
        let (mut words, values) = numbered(&results).map_err(Reason::of)?;
        for words in &mut words {
            words.splice(0..0, std::iter::repeat_n(0, skipped));
        }
        Ok((self.table(words), values))
    }
}

impl Code<'_, '_> {
    /// Declares the word of this row's value in a table over a domain.
    pub(crate) fn looked_up(
        &mut self,
        domain: &Domain,
        table: Table,
    ) -> std::result::Result<String, Reason> {
        let table = self.draft.uses.table(table)?;
        let index = self.index_in(domain)?;
        Ok(self.declare(
            Kind::Small,
            &format!("static_cast<i32>(read_word(table_of<{table}>(f, c) + ({index}), is_wanted))"),
        ))
    }

    /// Declares the number of this row's value in a domain, among those that rows may have.
    pub(crate) fn number_in(&mut self, domain: &Domain) -> std::result::Result<String, Reason> {
        let index = self.index_in(domain)?;
        let number = match domain.skipped() {
            0 => format!("static_cast<i32>({index})"),
            skipped => format!("static_cast<i32>(({index}) - {skipped})"),
        };
        Ok(self.declare(Kind::Small, &number))
    }

    /// Returns the index of this row's value in the tables over a domain: 0 is that of NULL.
    fn index_in(&mut self, domain: &Domain) -> std::result::Result<String, Reason> {
        let number = self.number(domain.column)?;
        // The difference is at least 0 and small, so that its lowest 32 bits are enough. Texts are numbered from 0 on.
        let first = match is_text(&self.draft.scanned.data_type(domain.column)) {
            true => String::new(),
            false => {
                let first = 2 * self.draft.uses.first(domain)?;
                format!(" - static_cast<u32>(f.constants[{first}])")
            }
        };
        let index = format!("static_cast<u32>({}){first} + 1", number.text);
        Ok(match &number.valid {
            Some(valid) => format!("{valid} ? {index} : 0"),
            None => index,
        })
    }
}

fn too_many(scanned: &Scanned, column: usize) -> Reason {
    let name = scanned.name(column);
    Reason::new(format!("{name} has too many different values"))
}

/// Returns whether one of floats is -0, which is the same group as 0.
fn has_negative_zero(values: &ArrayRef) -> bool {
    !Arc::ptr_eq(&normalize_float_zero(values), values)
}

/// Numbers the different values of arrays. Returns the number of each value, and the values by number.
fn numbered(arrays: &[ArrayRef]) -> Result<(Vec<Vec<u32>>, ArrayRef)> {
    let data_type = arrays
        .first()
        .map_or(DataType::Null, |it| it.data_type().clone());
    let converter = RowConverter::new(vec![SortField::new(data_type)])?;
    let mut known = HashMap::new();
    let mut numbers = Vec::new();
    for array in arrays {
        let rows = converter.convert_columns(std::slice::from_ref(array))?;
        let of_rows = rows.iter().map(|row| {
            let next = known.len() as u32;
            *known.entry(row.owned()).or_insert(next)
        });
        numbers.push(of_rows.collect::<Vec<u32>>());
    }
    let mut rows: Vec<_> = known.into_iter().collect();
    rows.sort_by_key(|(_, number)| *number);
    let values = converter.convert_rows(rows.iter().map(|(row, _)| row.row()))?;
    let values: Vec<&dyn Array> = values.iter().map(|it| it.as_ref() as &dyn Array).collect();
    Ok((numbers, concat(&values)?))
}
