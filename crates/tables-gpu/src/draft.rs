//! A kernel while its source is written, and those that fill the tables of its joins.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::array::ArrayRef;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::utils::collect_columns;

use crate::comments::{of_join, sql};
use crate::expression::{Code, Function};
use crate::fragment::Rows;
use crate::joined::{MATCHES_BOUND, Out, OutValue, Stored};
use crate::ordinal::Ordinal;
use crate::reason::Reason;
use crate::scanned::Scanned;
use crate::uses::Uses;

type Result<T> = std::result::Result<T, Reason>;

/// Returns a function that tells whether all conditions hold.
fn returning(mut function: Function, mut conditions: Vec<String>) -> Function {
    if conditions.is_empty() {
        conditions.push("true".to_owned());
    }
    let conditions = conditions.join(" & ");
    function.lines.push(format!("return {conditions};"));
    function
}

/// Returns a function that tells whether a row belongs to the slice of a join's table that is there, from the one
/// that declares its element. Only these rows are searched, as the others have no match there.
fn of_slice(element: &Function, is_here: String) -> Function {
    let mut function = element.clone();
    for comment in &mut function.comments {
        comment.insert_str(0, "rows of the slice: ");
    }
    returning(function, vec![is_here])
}

/// A kernel over rows, and those over the rows of its joins, while their source is written.
pub(crate) struct Draft<'a> {
    pub(crate) rows: &'a Rows,
    pub(crate) scanned: &'a Scanned,
    pub(crate) uses: Uses,
    pub(crate) joins: Vec<Draft<'a>>,
    /// Of the rows of a join: where they are stored.
    pub(crate) stored: Option<Stored>,
    /// Of the rows of a join: the function that stores a row.
    pub(crate) store: Function,
    /// What this function stores of a row.
    pub(crate) outs: Vec<Out>,
    /// Numbers of values of keys that are marked for each row that is stored, and the constants that are the first
    /// words of their marks.
    pub(crate) marks: Vec<(String, usize)>,
    /// The column that kernels read for the numbers of rows, if they do.
    pub(crate) of_rows: Option<usize>,
    /// The expressions that `outs` are.
    pub(crate) requested: HashMap<Arc<dyn PhysicalExpr>, OutValue>,
    /// The values of expressions by their ordinals.
    pub(crate) in_order: HashMap<Ordinal, ArrayRef>,
    /// Whether the source has the plan as comments.
    pub(crate) has_comments: bool,
}

impl<'a> Draft<'a> {
    /// Returns the draft of rows. `scanned` is what is known of each source of the fragment.
    pub(crate) fn new(rows: &'a Rows, scanned: &'a [Scanned], has_comments: bool) -> Draft<'a> {
        let joins = rows.joins.iter();
        let of_joins = joins.map(|join| Draft::new(&join.rows, scanned, has_comments));
        Draft {
            rows,
            scanned: &scanned[rows.source],
            uses: Uses::default(),
            joins: of_joins.collect(),
            stored: None,
            store: Function::default(),
            outs: Vec::new(),
            marks: Vec::new(),
            of_rows: None,
            requested: HashMap::new(),
            in_order: HashMap::new(),
            has_comments,
        }
    }

    /// Returns the join that a column is of; `None` for columns of the table.
    fn join_of_column(&self, column: usize) -> Option<usize> {
        let behind = |join: &crate::join::Join| join.first <= column;
        let join = self.rows.joins.iter().rposition(behind);
        join.filter(|_| self.rows.joined().contains(&column))
    }

    /// Returns the join that all columns of an expression are of; `None` if there is none.
    pub(crate) fn join_of(&self, expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
        let columns = collect_columns(expr);
        let mut joins = columns.iter().map(|it| self.join_of_column(it.index()));
        let first = joins.next()??;
        joins.all(|it| it == Some(first)).then_some(first)
    }

    /// Returns the joins that expressions have columns of.
    pub(crate) fn joins_of<'e>(
        &self,
        exprs: impl IntoIterator<Item = &'e Arc<dyn PhysicalExpr>>,
    ) -> Vec<usize> {
        let columns = exprs.into_iter().flat_map(collect_columns);
        columns
            .filter_map(|it| self.join_of_column(it.index()))
            .collect()
    }

    /// Returns how many rows there may be at most after the joins, if these have at most [`MATCHES_BOUND`] matches.
    pub(crate) fn rows_max(&self) -> u64 {
        let joins = self.joins.iter().zip(&self.rows.joins);
        let repeating = joins.filter(|(_, join)| join.repeats_rows());
        let matches = repeating.map(|(draft, _)| draft.rows_max().max(1));
        match matches.reduce(u64::saturating_mul) {
            Some(matches) => {
                let most = matches.saturating_mul(self.scanned.rows).min(MATCHES_BOUND);
                self.scanned.rows.saturating_add(most)
            }
            None => self.scanned.rows,
        }
    }

    /// Returns the joins in the order in which rows are looked up: those first that keep few rows.
    pub(crate) fn order(&self) -> Vec<usize> {
        let joins = &self.rows.joins;
        let cost = |join: &usize| {
            let of = &joins[*join];
            // Those that repeat rows make more of them, and a search takes longer than a look.
            let is_late = (of.repeats_rows(), of.searches());
            (is_late, !of.is_selective(), of.rows.origin.bytes(), *join)
        };
        let mut left: Vec<usize> = (0..joins.len()).collect();
        let mut order = Vec::new();
        while !left.is_empty() {
            // The keys of a join are of joins before it in the plan, so that one is always ready.
            let ready = left.iter().copied().filter(|join| {
                let needed = self.joins_of(joins[*join].own());
                // The condition of a join is of its own columns, too.
                needed.iter().all(|it| it == join || order.contains(it))
            });
            let Some(next) = ready.min_by_key(cost) else {
                break;
            };
            left.retain(|it| *it != next);
            order.push(next);
        }
        order
    }

    /// Writes the functions that tell whether a row is kept, one after the other: first by columns of the table, then
    /// by each join.
    ///
    /// # Errors
    /// Why kernels cannot tell.
    pub(crate) fn steps(&mut self) -> Result<Vec<Function>> {
        let order = self.order();
        let mut filters = self.rows.filters.clone();
        let mut steps = Vec::new();
        for step in 0..=order.len() {
            let known = &order[..step];
            let ready: Vec<_> = filters
                .extract_if(.., |filter| {
                    let needed = self.joins_of([&*filter]);
                    needed.iter().all(|it| known.contains(it))
                })
                .collect();
            let mut code = Code::new(self);
            let mut kept = Vec::new();
            if let Some(join) = known.last().copied() {
                code.comment(|rows| of_join(&rows.joins[join]));
                let index = code.element(join)?;
                let searches = code.draft.rows.joins[join].searches();
                if searches {
                    steps.push(of_slice(&code.function, index.is_here(join)));
                }
                kept.push(code.look_up(join, &index)?);
                code.function.join = Some(join);
                if searches {
                    // What follows is known after the search.
                    steps.push(returning(code.function, std::mem::take(&mut kept)));
                    code = Code::new(self);
                }
                kept.extend(code.not_in(join)?);
            }
            for filter in &ready {
                code.comment(|_| format!("filter: {}", sql(filter)));
                let value = code.condition(filter)?;
                kept.extend(value.valid);
                kept.push(value.text);
            }
            let is_first = known.is_empty();
            if is_first || !kept.is_empty() {
                steps.push(returning(code.function, kept));
            }
        }
        Ok(steps)
    }
}
