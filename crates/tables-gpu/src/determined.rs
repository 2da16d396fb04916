//! Keys of groups that other keys determine: those of the one row that a join has for their values. Groups are numbered
//! by the others alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_expr_common::physical_expr::is_volatile;

use crate::fragment::{Exprs, Fragment, Rows, column_of, over_rows, shifted};
use crate::join::{Join, JoinKind};
use crate::packed::is_text;

impl Fragment {
    /// Returns whether each key is determined by those that are not, or by the row if each is returned. Kernels check
    /// that joins have one row for a key.
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
            let is_new = join.kind == JoinKind::Inner && !joins.contains(index);
            is_new && has_one_row(rows, join, &known, &joins)
        });
        let Some((index, join)) = next else {
            return is_known(rows, expr, &known, &joins);
        };
        joins.insert(index);
        // They are equal to the keys of the row.
        known.extend(join.keys.iter().cloned());
    }
}

/// Returns whether a join has one row for what is known, by the keys of one side or the other.
fn has_one_row(rows: &Rows, join: &Join, known: &Exprs, joins: &BTreeSet<usize>) -> bool {
    let mut keys = join.keys.iter();
    let mut keys_of_rows = join.keys_of_rows.iter();
    let of_join = of_join(join, known);
    keys.all(|key| is_known(rows, key, known, joins))
        || keys_of_rows.all(|key| is_determined(&join.rows, &of_join, key))
}

/// Returns whether an expression is one of the known, or of columns that are.
fn is_known(
    rows: &Rows,
    expr: &Arc<dyn PhysicalExpr>,
    known: &Exprs,
    joins: &BTreeSet<usize>,
) -> bool {
    let columns = collect_columns(expr);
    if known.contains(expr) {
        return true;
    }
    let mut columns = columns.iter().map(|it| it.index()).peekable();
    let is_constant = columns.peek().is_none();
    let is_column_known = |column: usize| {
        if known.iter().any(|it| column_of(it) == Some(column)) {
            return true;
        }
        let mut all = rows.joins.iter().enumerate();
        all.any(|(index, join)| {
            let place = column.checked_sub(join.first);
            let of_row = place.and_then(|it| join.rows.columns.get(it));
            of_row.is_some_and(|of_row| {
                let has_one_row = joins.contains(&index);
                let is_of_others = || is_determined(&join.rows, &of_join(join, known), of_row);
                has_one_row || join.kind == JoinKind::Inner && is_of_others()
            })
        })
    };
    !is_constant && !is_volatile(expr) && columns.all(is_column_known)
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
