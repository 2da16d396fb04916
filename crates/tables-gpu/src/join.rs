//! Joins of rows with other rows, at most one for each of them.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::HashJoinExec;

use crate::fragment::{Exprs, Rows, over_rows, rows};
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

/// Which rows a join keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum JoinKind {
    /// Those with a match, and its columns.
    Inner,
    /// All, with NULL as the columns if there is no match.
    Outer,
    /// Those with a match.
    Semi,
    /// Those without a match.
    Anti,
}

/// A join with other rows. Inner and outer joins have at most one other row for the same keys.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    /// The keys, over the columns of the rows that are joined.
    pub(crate) keys: Exprs,
    /// The other rows.
    pub(crate) rows: Rows,
    /// The keys of the other rows, over their columns.
    pub(crate) keys_of_rows: Exprs,
    /// Index of the first column of the other rows among those of the rows that are joined.
    pub(crate) first: usize,
}

impl Join {
    /// Returns whether there may be only one other row for the same keys.
    pub(crate) fn is_unique(&self) -> bool {
        matches!(self.kind, JoinKind::Inner | JoinKind::Outer)
    }

    /// Returns whether the join seems to leave out many rows.
    pub(crate) fn is_selective(&self) -> bool {
        self.kind != JoinKind::Outer
            && (!self.rows.filters.is_empty() || self.rows.joins.iter().any(Join::is_selective))
    }
}

/// Returns which rows a join keeps, and whether they are those of its left side.
fn kind_of(join: &HashJoinExec, is_left_larger: bool) -> Result<(JoinKind, bool)> {
    if join.null_aware {
        return Err(Reason::new("NOT IN of a query"));
    }
    if join.null_equality() != NullEquality::NullEqualsNothing {
        return Err(Reason::new("a join whose NULLs are equal"));
    }
    if join.fetch().is_some() {
        return Err(Reason::new("a join with a limit"));
    }
    let (kind, is_left) = match join.join_type() {
        JoinType::Inner => (JoinKind::Inner, is_left_larger),
        JoinType::Left => (JoinKind::Outer, true),
        JoinType::Right => (JoinKind::Outer, false),
        JoinType::LeftSemi => (JoinKind::Semi, true),
        JoinType::RightSemi => (JoinKind::Semi, false),
        JoinType::LeftAnti => (JoinKind::Anti, true),
        JoinType::RightAnti => (JoinKind::Anti, false),
        other => return Err(Reason::new(format!("a join of type {other}"))),
    };
    if join.filter().is_some() && kind != JoinKind::Inner {
        let text = format!("a condition of a join of type {}", join.join_type());
        return Err(Reason::new(text));
    }
    Ok((kind, is_left))
}

/// Returns the rows of a join. Those of the side that is kept, or whose files are larger, are looked up among the
/// others.
///
/// # Errors
/// Why kernels cannot compute the join.
pub(crate) fn joined(join: &HashJoinExec) -> Result<Rows> {
    let (left, right) = (rows(join.left())?, rows(join.right())?);
    let (kind, is_left) = kind_of(join, left.bytes() > right.bytes())?;
    let (mut kept, other) = if is_left {
        (left, right)
    } else {
        (right, left)
    };
    let (mut keys, mut keys_of_rows) = (Vec::new(), Vec::new());
    for (left, right) in join.on() {
        let (key, key_of_rows) = if is_left {
            (left, right)
        } else {
            (right, left)
        };
        keys.push(over_rows(key, &kept.columns)?);
        keys_of_rows.push(over_rows(key_of_rows, &other.columns)?);
    }
    let first = kept.widen(&other, kind == JoinKind::Outer)?;
    let columns = (first..).zip(&other.columns);
    let of_other: Exprs = columns
        .map(|(index, _)| Arc::new(Column::new(kept.schema.field(index).name(), index)) as _)
        .collect();
    kept.joins.push(Join {
        kind,
        keys,
        rows: other,
        keys_of_rows,
        first,
    });
    let of_kept = std::mem::take(&mut kept.columns);
    let sides = if is_left {
        [of_kept, of_other]
    } else {
        [of_other, of_kept]
    };
    if let Some(filter) = join.filter() {
        let columns = filter.column_indices().iter().map(|it| match it.side {
            JoinSide::Left => Arc::clone(&sides[0][it.index]),
            _ => Arc::clone(&sides[1][it.index]),
        });
        kept.columns = columns.collect();
        kept.keep(filter.expression())?;
    }
    let has_other = matches!(kind, JoinKind::Inner | JoinKind::Outer);
    let returned: Vec<Arc<dyn PhysicalExpr>> = match has_other {
        true => sides.concat(),
        false => sides[usize::from(!is_left)].clone(),
    };
    kept.columns = match &join.projection {
        Some(projection) => {
            let columns = projection.iter().map(|it| Arc::clone(&returned[*it]));
            columns.collect()
        }
        None => returned,
    };
    Ok(kept)
}
