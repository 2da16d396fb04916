//! Keys of groups that are functionally dependent on other keys: columns of the one row that a join has for the values
//! of these. Groups are numbered by the other keys alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::fragment::{Exprs, Fragment, Rows, column_of, over_rows, shifted};
use crate::groups::Values;
use crate::join::{Join, JoinKind};
use crate::packed::is_text;

/// A key of groups that other keys determine.
#[derive(Debug)]
pub(crate) struct Determined {
    pub(crate) values: Values,
    /// The slot that is the number of its value.
    pub(crate) slot: usize,
    /// The slot that is the upper half of a number of 128 bits.
    pub(crate) upper: Option<usize>,
    /// The slot that is 0 for NULL, if it has no number.
    pub(crate) valid: Option<usize>,
}

impl Fragment {
    /// Returns, for each key, whether it is functionally dependent on the keys that are not; true for all if each row
    /// is returned. Kernels check that a join has one row for a key, unless it repeats.
    pub(crate) fn determined(&self) -> Vec<bool> {
        if self.is_listed {
            return vec![true; self.keys.len()];
        }
        let is_text = |key: &usize| {
            let data_type = self.keys[*key].data_type(&self.rows.schema);
            data_type.is_ok_and(|it| is_text(&it))
        };
        // Numbers are better keys than texts, and the first keys of a query often tell most.
        let mut tried: Vec<usize> = (0..self.keys.len()).rev().collect();
        tried.sort_by_key(|key| !is_text(key));
        let mut determined = vec![false; self.keys.len()];
        for key in tried {
            let others = (0..self.keys.len()).filter(|other| *other != key && !determined[*other]);
            let others = others.map(|other| Arc::clone(&self.keys[other])).collect();
            determined[key] = is_determined(&self.rows, &others, &self.keys[key]);
        }
        determined
    }
}

/// Returns whether rows with the same values of some expressions have the same value of another.
fn is_determined(rows: &Rows, by: &Exprs, expr: &Arc<dyn PhysicalExpr>) -> bool {
    let mut known = by.clone();
    let mut joins = BTreeSet::new();
    loop {
        let next = rows.joins.iter().enumerate().find(|(index, join)| {
            let is_new = join.kind == JoinKind::Inner && !join.repeats && !joins.contains(index);
            is_new && has_one_row(rows, join, &known, &joins)
        });
        let Some((index, join)) = next else {
            return is_known(rows, expr, &known, &joins);
        };
        joins.insert(index);
        // Those of an inner join are equal to the keys of its row, which is known.
        known.extend(join.keys.iter().cloned());
    }
}

/// Returns whether a join has one row for what is known, by the keys of one side or the other.
fn has_one_row(rows: &Rows, join: &Join, known: &Exprs, joins: &BTreeSet<usize>) -> bool {
    if join
        .keys
        .iter()
        .all(|key| is_known(rows, key, known, joins))
    {
        return true;
    }
    let known = of_join(join, known);
    let mut keys = join.keys_of_rows.iter();
    keys.all(|key| is_determined(&join.rows, &known, key))
}

/// Returns whether an expression is one of the known, or of columns that are.
fn is_known(
    rows: &Rows,
    expr: &Arc<dyn PhysicalExpr>,
    known: &Exprs,
    joins: &BTreeSet<usize>,
) -> bool {
    if known.contains(expr) {
        return true;
    }
    let columns = collect_columns(expr);
    let mut indexes = columns.iter().map(|it| it.index());
    !columns.is_empty()
        && !is_volatile(expr)
        && indexes.all(|column| is_column_known(rows, column, known, joins))
}

/// Returns whether a column is known, or is one of a row that a join has for what is known.
fn is_column_known(rows: &Rows, column: usize, known: &Exprs, joins: &BTreeSet<usize>) -> bool {
    if known.iter().any(|it| column_of(it) == Some(column)) {
        return true;
    }
    let mut all = rows.joins.iter().enumerate();
    all.any(|(index, join)| {
        let place = column.checked_sub(join.first);
        let of_row = place.and_then(|it| join.rows.columns.get(it));
        of_row.is_some_and(|of_row| {
            let is_of_others = || is_determined(&join.rows, &of_join(join, known), of_row);
            joins.contains(&index)
                || join.kind == JoinKind::Inner && !join.repeats && is_of_others()
        })
    })
}

/// Returns those of some expressions that are of a join, over its rows.
fn of_join(join: &Join, known: &Exprs) -> Exprs {
    let end = join.first + join.rows.columns.len();
    let known = known.iter().filter_map(|expr| {
        let columns = collect_columns(expr);
        let mut columns = columns.iter().map(|it| it.index());
        let is_of_join = columns.all(|it| (join.first..end).contains(&it));
        let moved = is_of_join.then(|| shifted(expr, join.first)).transpose();
        moved.ok().flatten()
    });
    let known = known.filter_map(|expr| over_rows(&expr, &join.rows.columns).ok());
    known.collect()
}
