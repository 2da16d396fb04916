//! Joins of rows with other rows.

use std::sync::Arc;

use datafusion::common::{JoinSide, JoinType, NullEquality, ScalarValue};
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, IsNotNullExpr, Literal};
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode,
};

use crate::constants::is_constant;
use crate::floats::is_float;
use crate::fragment::{Exprs, Fragment, Rows, of_plan, over_rows, rows};
use crate::limit::Limit;
use crate::origin::Origin;
use crate::packed::is_number;
use crate::reason::Reason;
use crate::reduced::{is_unique, reduced};
use crate::rule::check;
use crate::source::MANY_COLUMNS;
use crate::uses::CURSORS_MAX;

type Result<T> = std::result::Result<T, Reason>;
type Pair = (Arc<dyn PhysicalExpr>, Arc<dyn PhysicalExpr>);

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
    /// All, with a column that tells whether there is a match.
    Mark,
}

impl JoinKind {
    /// Returns whether rows get the columns of their match.
    pub(crate) fn has_columns(self) -> bool {
        matches!(self, JoinKind::Inner | JoinKind::Outer)
    }
}

/// A join with other rows.
#[derive(Debug, Clone)]
pub(crate) struct Join {
    pub(crate) kind: JoinKind,
    /// The keys, over the columns of the rows that are joined.
    pub(crate) keys: Exprs,
    /// The other rows.
    pub(crate) rows: Rows,
    /// The keys of the other rows, over their columns.
    pub(crate) keys_of_rows: Exprs,
    /// Of semi, anti and mark joins: two numbers that differ for a match, the first over the rows that are joined,
    /// the second over the other rows. The condition is the same.
    pub(crate) differ: Option<Pair>,
    /// What else holds for a match, over the rows that are joined with the columns of the other rows. Those of inner
    /// joins are filters.
    pub(crate) condition: Option<Arc<dyn PhysicalExpr>>,
    /// Whether it is `NOT IN`, for which a NULL is a key that may be equal to any.
    pub(crate) is_null_aware: bool,
    /// Index of the first column of the other rows among those of the rows that are joined.
    pub(crate) first: usize,
    /// Whether the table has all other rows of the same keys. Kernels check that those of other inner and outer joins
    /// have one row for a key.
    pub(crate) repeats: bool,
}

impl Join {
    /// Returns whether there may be only one other row for the same keys.
    pub(crate) fn is_unique(&self) -> bool {
        self.kind.has_columns() && !self.repeats
    }

    /// Returns whether a row may be kept several times.
    pub(crate) fn repeats_rows(&self) -> bool {
        self.kind.has_columns() && self.repeats
    }

    /// Returns whether kernels search the other rows of the same keys for one that meets the condition.
    pub(crate) fn searches(&self) -> bool {
        !self.kind.has_columns() && self.repeats
    }

    /// Lets the table have all other rows of the same keys. Returns whether it has not had them.
    pub(crate) fn repeat(&mut self) -> bool {
        let may_repeat = !self.repeats;
        self.repeats = true;
        self.differ = None;
        may_repeat
    }

    /// Returns the expressions over the rows that are joined.
    pub(crate) fn own(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        let differ = self.differ.iter().map(|(own, _)| own);
        self.keys.iter().chain(differ).chain(&self.condition)
    }

    /// Returns the expressions over the other rows.
    pub(crate) fn of_rows(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        let differ = self.differ.iter().map(|(_, other)| other);
        self.keys_of_rows.iter().chain(differ)
    }

    /// Returns whether the join seems to leave out many rows.
    pub(crate) fn is_selective(&self) -> bool {
        !matches!(self.kind, JoinKind::Outer | JoinKind::Mark)
            && (!self.rows.filters.is_empty()
                || self.rows.origin.is_plan()
                || self.rows.joins.iter().any(Join::is_selective))
    }
}

/// Returns which rows a join keeps, and whether they are those of its left side.
fn kind_of(join: &HashJoinExec, is_left_larger: bool) -> Result<(JoinKind, bool)> {
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
        JoinType::LeftMark => (JoinKind::Mark, true),
        JoinType::RightMark => (JoinKind::Mark, false),
        JoinType::Full => return Err(Reason::new("a join of type Full")),
    };
    Ok((kind, is_left))
}

/// Returns two numbers that differ for a match of a semi, anti or mark join, if that is its condition: of the rows
/// that are kept, and of the others. Returns `None` if the condition is another one.
fn differ(
    join: &HashJoinExec,
    is_left: bool,
    (kept, other): (&Rows, &Rows),
) -> Result<Option<Pair>> {
    let Some(filter) = join.filter() else {
        return Ok(None);
    };
    let differs = filter.expression().downcast_ref::<BinaryExpr>();
    let Some(differs) = differs.filter(|it| *it.op() == Operator::NotEq) else {
        return Ok(None);
    };
    let is_of_kept = |side: JoinSide| (side == JoinSide::Left) == is_left;
    let columns = filter.column_indices().iter().map(|it| {
        let rows = if is_of_kept(it.side) { kept } else { other };
        Arc::clone(&rows.columns[it.index])
    });
    let columns: Exprs = columns.collect();
    // Whether a side of the condition is of the rows that are kept; `None` if it is of both, or of none.
    let is_kept = |expr: &Arc<dyn PhysicalExpr>| {
        let own = collect_columns(expr);
        let mut of_kept = own
            .iter()
            .map(|column| is_of_kept(filter.column_indices()[column.index()].side));
        let is_kept = of_kept.next()?;
        of_kept.all(|it| it == is_kept).then_some(is_kept)
    };
    let (left, right) = (differs.left(), differs.right());
    let (own, others) = match (is_kept(left), is_kept(right)) {
        (Some(true), Some(false)) => (left, right),
        (Some(false), Some(true)) => (right, left),
        _ => return Ok(None),
    };
    let (own, others) = (over_rows(own, &columns)?, over_rows(others, &columns)?);
    let data_type = own.data_type(&kept.schema).map_err(Reason::of)?;
    let of_others = others.data_type(&other.schema).map_err(Reason::of)?;
    let are_alike = data_type == of_others && is_number(&data_type) && !is_float(&data_type);
    Ok(are_alike.then_some((own, others)))
}

/// Prepares a join for other rows that a plan returns: leaves out groups that no row that is kept can have. Returns
/// which rows the join keeps, and whether it repeats them.
fn with_plan(
    join: &HashJoinExec,
    kind: JoinKind,
    (kept, other): (&Rows, &mut Rows),
    (keys, keys_of_rows): (&Exprs, &Exprs),
) -> (JoinKind, bool) {
    let width = other.width();
    let Origin::Plan(plan, _) = &mut other.origin else {
        return (kind, false);
    };
    // Others are of joins of its rows.
    let columns = keys_of_rows.iter().flat_map(collect_columns);
    let are_of_plan = columns.map(|it| it.index()).all(|it| it < width);
    let is_unique = are_of_plan && is_unique(plan, keys_of_rows);
    // `NOT IN` also depends on groups that no row has.
    if are_of_plan
        && !join.null_aware
        && let Some(reduced) = reduced(plan, kept, keys, keys_of_rows)
    {
        *plan = reduced;
    }
    let kind = match kind {
        // There is one row for a key, so that the condition can read its columns.
        JoinKind::Semi if is_unique && join.filter().is_some() => JoinKind::Inner,
        kind => kind,
    };
    (kind, kind.has_columns() && !is_unique)
}

/// Returns the rows of a side of a join. If kernels cannot compute it, it runs first, as a plan.
fn side(plan: &Arc<dyn ExecutionPlan>) -> Rows {
    let of_side = rows(plan).and_then(|rows| match rows.origin {
        Origin::Files(_) | Origin::Table(_) => Ok(rows),
        // Groups of a GPU, whose conditions kernels test if they can.
        Origin::Plan(..) if rows.columns.iter().all(|it| it.is::<Column>()) => {
            if rows.columns.len() > CURSORS_MAX {
                // A list may be wider than the rows of a join.
                return Err(Reason::new(MANY_COLUMNS));
            }
            check(&Fragment::listed(rows.clone(), Limit::None, None)).map(|()| rows)
        }
        Origin::Plan(..) => Err(Reason::new("what is computed of groups is joined")),
    });
    of_side.unwrap_or_else(|reason| of_plan(plan, reason))
}

/// Returns whether rows are those of a plan that may return several for the same keys.
fn may_repeat<'a>(
    rows: &Rows,
    keys: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>,
) -> Result<bool> {
    let Origin::Plan(plan, _) = &rows.origin else {
        return Ok(false);
    };
    let keys = keys.map(|key| over_rows(key, &rows.columns));
    let keys = keys.collect::<Result<Exprs>>()?;
    // Others are of joins of its rows.
    let mut columns = keys.iter().flat_map(collect_columns);
    let are_of_plan = columns.all(|it| it.index() < rows.width());
    Ok(!are_of_plan || !is_unique(plan, &keys))
}

/// Returns which rows a join keeps, whether they are those of its left side, these rows and the others.
///
/// # Errors
/// Why kernels cannot compute the join.
fn sides(join: &HashJoinExec) -> Result<(JoinKind, bool, Rows, Rows)> {
    let (left, right) = (side(join.left()), side(join.right()));
    let of_left = join.on().iter().map(|(left, _)| left);
    let of_right = join.on().iter().map(|(_, right)| right);
    let is_left_larger = match (may_repeat(&left, of_left)?, may_repeat(&right, of_right)?) {
        // All rows have the key of a join of all pairs, so either side may have several of it.
        (true, false) if !is_of_all_pairs(join) => true,
        (false, true) if !is_of_all_pairs(join) => false,
        _ => left.origin.bytes() > right.origin.bytes(),
    };
    let (kind, is_left) = kind_of(join, is_left_larger)?;
    let (kept, other) = if is_left {
        (left, right)
    } else {
        (right, left)
    };
    Ok((kind, is_left, kept, other))
}

/// Returns a join without an equality, but no full one, as a join of all pairs, by a key that all rows have. Its
/// condition, if it has one, is the further condition. Returns `None` if the plan is another operator.
pub(crate) fn of_all_pairs(plan: &Arc<dyn ExecutionPlan>) -> Option<Result<HashJoinExec>> {
    let (sides, join_type, filter, projection) =
        if let Some(join) = plan.downcast_ref::<CrossJoinExec>() {
            ([join.left(), join.right()], JoinType::Inner, None, None)
        } else {
            let join = plan.downcast_ref::<NestedLoopJoinExec>()?;
            let join_type = *join.join_type();
            if join_type == JoinType::Full || join.fetch().is_some() {
                return None;
            }
            let projection = join.projection().as_ref().map(|it| it.to_vec());
            let sides = [join.left(), join.right()];
            (sides, join_type, join.filter().cloned(), projection)
        };
    let [left, right] = sides.map(Arc::clone);
    let key = || Arc::new(Literal::new(ScalarValue::Int32(Some(1)))) as Arc<dyn PhysicalExpr>;
    let join = HashJoinExec::try_new(
        left,
        right,
        vec![(key(), key())],
        filter,
        &join_type,
        projection,
        PartitionMode::CollectLeft,
        NullEquality::NullEqualsNothing,
        false,
    );
    Some(join.map_err(Reason::of))
}

/// Returns whether a join is one that [`of_all_pairs`] returns.
fn is_of_all_pairs(join: &HashJoinExec) -> bool {
    let mut keys = join.on().iter().flat_map(|(left, right)| [left, right]);
    keys.all(is_constant)
}

/// Returns the rows of a join. Those of the side that is kept, or whose files are larger, are looked up among the
/// others.
///
/// # Errors
/// Why kernels cannot compute the join.
pub(crate) fn joined(join: &HashJoinExec) -> Result<Rows> {
    let (kind, is_left, mut kept, mut other) = sides(join)?;
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
    let (has_columns, is_mark) = (kind.has_columns(), kind == JoinKind::Mark);
    let keys_of_both = (&keys, &keys_of_rows);
    let (kind, mut repeats) = with_plan(join, kind, (&kept, &mut other), keys_of_both);
    let differ = match kind.has_columns() {
        true => None,
        false => differ(join, is_left, (&kept, &other))?,
    };
    repeats |= match kind.has_columns() {
        true => is_of_all_pairs(join) && !other.origin.is_plan(),
        false => join.filter().is_some() && differ.is_none(),
    };
    if is_mark {
        // Not NULL in a match.
        other.columns.push(Arc::new(Literal::new(true.into())));
    }
    let are_nullable = matches!(kind, JoinKind::Outer | JoinKind::Mark);
    let first = kept.widen(&other, are_nullable)?;
    let added = Join {
        kind,
        keys,
        rows: other,
        keys_of_rows,
        differ,
        condition: None,
        is_null_aware: join.null_aware,
        first,
        repeats,
    };
    let of_other = columns_of(&added, &kept);
    kept.joins.push(added);
    let of_kept = std::mem::take(&mut kept.columns);
    let sides = if is_left {
        [of_kept, of_other]
    } else {
        [of_other, of_kept]
    };
    filter(join, kind, &sides, &mut kept)?;
    kept.columns = match (has_columns, is_mark) {
        (true, _) => sides.concat(),
        (_, true) => with_mark(&sides, is_left),
        _ => sides[usize::from(!is_left)].clone(),
    };
    if let Some(projection) = &join.projection {
        let columns = projection.iter();
        let columns = columns.map(|it| Arc::clone(&kept.columns[*it]));
        kept.columns = columns.collect();
    }
    Ok(kept)
}

/// Lets rows, or the matches of other joins than inner ones, meet the condition of a join, over the columns of both
/// sides.
fn filter(join: &HashJoinExec, kind: JoinKind, sides: &[Exprs; 2], kept: &mut Rows) -> Result<()> {
    let Some(filter) = join.filter() else {
        return Ok(());
    };
    let columns = filter.column_indices().iter().map(|it| match it.side {
        JoinSide::Left => Arc::clone(&sides[0][it.index]),
        _ => Arc::clone(&sides[1][it.index]),
    });
    match (kind, kept.joins.last_mut()) {
        (JoinKind::Inner, _) => {
            kept.columns = columns.collect();
            kept.keep(filter.expression())?;
        }
        (_, Some(join)) => {
            join.condition = Some(over_rows(filter.expression(), &columns.collect())?);
        }
        (_, None) => (),
    }
    Ok(())
}

/// Returns the columns of a mark join: those of the side that is kept, and whether there is a match.
fn with_mark(sides: &[Exprs; 2], is_left: bool) -> Exprs {
    let (kept, other) = (&sides[usize::from(!is_left)], &sides[usize::from(is_left)]);
    // The last column is not NULL in a match.
    let mark = other.last().cloned().map(IsNotNullExpr::new);
    let mark = mark.map(|it| Arc::new(it) as _);
    kept.iter().cloned().chain(mark).collect()
}

/// Returns the columns of the other rows of a join, over the rows that are joined.
fn columns_of(join: &Join, kept: &Rows) -> Exprs {
    let columns = (join.first..).take(join.rows.columns.len());
    let columns =
        columns.map(|index| Arc::new(Column::new(kept.schema.field(index).name(), index)) as _);
    columns.collect()
}
