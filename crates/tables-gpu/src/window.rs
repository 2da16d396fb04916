//! Window functions, and sorts of all rows, which are windows without functions.

use std::sync::Arc;

use datafusion::logical_expr::{WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_expr::{LexOrdering, PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};

use crate::fragment::{Aggregate, Exprs, Fragment, Rows, is_moving, over_rows, rows, sorted_by};
use crate::limit::Limit;
use crate::operator::GpuFragmentExec;
use crate::origin::Origin;
use crate::reason::Reason;
use crate::rule::check;

type Result<T> = std::result::Result<T, Reason>;

/// A window function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Function {
    RowNumber,
    Rank,
    DenseRank,
    /// The aggregate with this index in the fragment.
    Aggregate(usize),
}

impl Function {
    /// Returns the name in SQL; that of an aggregate is the aggregate's.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Function::RowNumber => "row_number()",
            Function::Rank => "rank()",
            Function::DenseRank => "dense_rank()",
            Function::Aggregate(_) => "an aggregate",
        }
    }
}

/// The frame of an aggregate. Each begins with the first row of the partition.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Frame {
    /// Up to the current row.
    #[default]
    Rows,
    /// Up to the last peer of the current row.
    Peers,
    /// The whole partition.
    Partition,
}

/// The order of the rows of a list, and the window functions over them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Window {
    /// What the rows are sorted by.
    pub(crate) by: Vec<PhysicalSortExpr>,
    /// Number of leading expressions that are equal in all rows of a partition.
    pub(crate) of_partition: usize,
    /// Number of leading expressions that are equal in all peers.
    pub(crate) of_peers: usize,
    pub(crate) functions: Vec<Function>,
    pub(crate) frame: Frame,
}

/// Returns the window functions of an operator; `None` if it is another operator.
fn functions_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    match plan.downcast_ref::<BoundedWindowAggExec>() {
        Some(window) => Some(window.window_expr()),
        None => Some(plan.downcast_ref::<WindowAggExec>()?.window_expr()),
    }
}

/// Returns whether an operator computes window functions.
pub(crate) fn is_window(plan: &Arc<dyn ExecutionPlan>) -> bool {
    functions_of(plan).is_some()
}

/// Returns why kernels do not compute the window functions of an operator; `None` if they do, or if it has none.
pub(crate) fn reason(plan: &Arc<dyn ExecutionPlan>) -> Option<Reason> {
    functions_of(plan)?;
    let checked = Fragment::of_window(plan).and_then(|it| check(&it));
    checked.err()
}

/// Returns what an operator sorts all its rows by; `None` if it sorts none, or has a limit.
pub(crate) fn sorted_by_all(plan: &Arc<dyn ExecutionPlan>) -> Option<&LexOrdering> {
    if plan.fetch().is_some() {
        return None;
    }
    match plan.downcast_ref::<SortExec>() {
        Some(sort) => Some(sort.expr()),
        None => Some(plan.downcast_ref::<SortPreservingMergeExec>()?.expr()),
    }
}

/// Returns an operator without the sorts at its top, also those below projections and joins: the order of its rows is
/// not wanted.
pub(crate) fn unsorted(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    if sorted_by_all(plan).is_some() {
        let below = unsorted(plan.children()[0]);
        // Operators above rely on the number of partitions.
        return match plan.is::<SortPreservingMergeExec>() {
            true => Arc::new(CoalescePartitionsExec::new(below)),
            false => below,
        };
    }
    let keeps_all = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || is_moving(plan);
    if !keeps_all || plan.fetch().is_some() {
        return Arc::clone(plan);
    }
    let children: Vec<_> = plan.children().into_iter().map(unsorted).collect();
    let mut pairs = children.iter().zip(plan.children());
    if pairs.all(|(one, other)| Arc::ptr_eq(one, other)) {
        return Arc::clone(plan);
    }
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    let replaced = Arc::clone(plan).replace_children(children, options);
    replaced.unwrap_or_else(|_| Arc::clone(plan))
}

/// Returns what the rows of an operator are sorted by.
fn order_of(plan: &Arc<dyn ExecutionPlan>) -> Vec<PhysicalSortExpr> {
    let ordering = sorted_by_all(plan).or_else(|| plan.properties().output_ordering());
    ordering.map_or_else(Vec::new, |it| it.iter().cloned().collect())
}

/// Returns the aggregate of a window function, over columns of the rows.
fn aggregate(function: &PlainAggregateWindowExpr, rows: &Rows) -> Result<Aggregate> {
    // DataFusion 55 shows the filter nowhere else.
    if !format!("{function:?}").ends_with("filter: None }") {
        return Err(Reason::new("a window function with a filter"));
    }
    let of = function.get_aggregate_expr();
    let arguments = of.expressions();
    let arguments = arguments.iter().map(|it| over_rows(it, &rows.columns));
    if !of.groups_accumulator_supported() {
        return Err(Reason::new(format!(
            "{} as a window function",
            of.fun().name()
        )));
    }
    Ok(Aggregate {
        function: Arc::new(of.clone()),
        arguments: arguments.collect::<Result<Exprs>>()?,
        filter: None,
        is_of_states: false,
    })
}

/// Returns the frame of an aggregate.
fn frame_of(function: &dyn WindowExpr) -> Result<Frame> {
    let frame = function.get_window_frame();
    let is_first = matches!(&frame.start_bound, WindowFrameBound::Preceding(it) if it.is_null());
    match (&frame.end_bound, frame.units) {
        _ if !is_first => {}
        (WindowFrameBound::Following(end), _) if end.is_null() => return Ok(Frame::Partition),
        (WindowFrameBound::CurrentRow, WindowFrameUnits::Rows) => return Ok(Frame::Rows),
        (WindowFrameBound::CurrentRow, _) => return Ok(Frame::Peers),
        _ => {}
    }
    Err(Reason::new(
        "a frame that does not begin with its partition, or ends at another row",
    ))
}

impl Window {
    /// Returns the window of a function over rows that are sorted by `by`, still without functions.
    ///
    /// # Errors
    /// If the rows are not in the order of the function.
    fn of(function: &dyn WindowExpr, by: &[PhysicalSortExpr], rows: &Rows) -> Result<Window> {
        let other = || Reason::new("a window function over rows in another order");
        let partition = function.partition_by();
        let is_of_partition = |it: &&PhysicalSortExpr| partition.contains(&it.expr);
        let of_partition = by.iter().take_while(is_of_partition).count();
        let known = |expr: &Arc<dyn PhysicalExpr>, count: usize| {
            by[..count].iter().any(|it| &it.expr == expr)
        };
        if !partition.iter().all(|it| known(it, of_partition)) {
            return Err(other());
        }
        let mut of_peers = of_partition;
        for order in function.order_by() {
            // An expression that is equal in all these rows does not order them.
            if known(&order.expr, of_peers) {
                continue;
            }
            if by.get(of_peers) != Some(order) {
                return Err(other());
            }
            of_peers += 1;
        }
        Ok(Window {
            by: sorted_by(by.iter(), rows)?,
            of_partition,
            of_peers,
            ..Window::default()
        })
    }

    /// Returns the expressions that rows are sorted by.
    pub(crate) fn exprs(&self) -> impl Iterator<Item = &Arc<dyn PhysicalExpr>> {
        self.by.iter().map(|it| &it.expr)
    }

    /// Returns the expressions that rows are sorted by.
    pub(crate) fn exprs_mut(&mut self) -> impl Iterator<Item = &mut Arc<dyn PhysicalExpr>> {
        self.by.iter_mut().map(|it| &mut it.expr)
    }
}

/// Checks that the rows of an operator are in no other order than this one, or than its leading expressions.
fn check_order(plan: &Arc<dyn ExecutionPlan>, by: &[PhysicalSortExpr]) -> Result<()> {
    let ordering = plan.properties().output_ordering();
    let mut pairs = ordering.into_iter().flat_map(|it| it.iter()).enumerate();
    match pairs.all(|(index, ordered)| by.get(index) == Some(ordered)) {
        true => Ok(()),
        false => Err(Reason::new("rows that are sorted")),
    }
}

impl Fragment {
    /// Returns the fragment of an operator that computes window functions.
    ///
    /// # Errors
    /// Why kernels do not compute it.
    pub(crate) fn of_window(plan: &Arc<dyn ExecutionPlan>) -> Result<Fragment> {
        let rows = rows(&unsorted(plan.children()[0]))?;
        if let Origin::Plan(plan, reason) = &rows.origin
            && !plan.is::<GpuFragmentExec>()
        {
            return Err(reason.clone());
        }
        Fragment::of_window_over(plan, rows)
    }

    /// Returns the same over rows that are those of the operator's input, in any order.
    ///
    /// # Errors
    /// Why kernels do not compute it.
    pub(crate) fn of_window_over(plan: &Arc<dyn ExecutionPlan>, rows: Rows) -> Result<Fragment> {
        let functions = functions_of(plan).unwrap_or_default();
        let first = functions.first();
        let first = first.ok_or_else(|| Reason::new("no window function"))?;
        // The operator's own rows may also be in the order of its functions, so its input is checked.
        let sorted = plan.children()[0];
        let by = order_of(sorted);
        check_order(sorted, &by)?;
        let mut window = Window::of(first.as_ref(), &by, &rows)?;
        let mut aggregates = Vec::new();
        for function in functions {
            let is_alike = function.partition_by() == first.partition_by()
                && function.order_by() == first.order_by();
            if !is_alike {
                return Err(Reason::new("window functions of several windows"));
            }
            let of_rows = function.as_any();
            if let Some(of_rows) = of_rows.downcast_ref::<PlainAggregateWindowExpr>() {
                let frame = frame_of(of_rows)?;
                if !aggregates.is_empty() && frame != window.frame {
                    return Err(Reason::new("window functions of several frames"));
                }
                window.frame = frame;
                window.functions.push(Function::Aggregate(aggregates.len()));
                aggregates.push(aggregate(of_rows, &rows)?);
                continue;
            }
            window.functions.push(rank_of(function.as_ref())?);
        }
        let is_by_rows = window.functions.contains(&Function::RowNumber)
            || !aggregates.is_empty() && window.frame == Frame::Rows;
        if window.by.is_empty() && is_by_rows {
            // Without a sort, rows of a list have no order.
            return Err(Reason::new("a window function in the order of the table"));
        }
        Ok(Fragment::listed(
            rows,
            Limit::None,
            Some((window, aggregates)),
        ))
    }

    /// Returns the fragment of an operator whose rows are all sorted by this.
    ///
    /// # Errors
    /// Why kernels do not sort them.
    pub(crate) fn of_sort(plan: &Arc<dyn ExecutionPlan>, by: &LexOrdering) -> Result<Fragment> {
        let rows = rows(&unsorted(plan))?;
        if let Origin::Plan(_, reason) = &rows.origin {
            return Err(reason.clone());
        }
        let window = Window {
            by: sorted_by(by.iter(), &rows)?,
            ..Window::default()
        };
        Ok(Fragment::listed(
            rows,
            Limit::None,
            Some((window, Vec::new())),
        ))
    }

    /// Returns the aggregate whose column has this index behind the keys; `None` if that is a row number or a rank.
    pub(crate) fn aggregate_at(&self, index: usize) -> Option<&Aggregate> {
        match &self.window {
            None => self.aggregates.get(index),
            Some(window) => match window.functions.get(index)? {
                Function::Aggregate(index) => self.aggregates.get(*index),
                _ => None,
            },
        }
    }
}

/// Returns the function that numbers or ranks rows.
fn rank_of(function: &dyn WindowExpr) -> Result<Function> {
    let standard = function.as_any().downcast_ref::<StandardWindowExpr>();
    let standard = standard.map(|it| it.get_standard_func_expr().as_any());
    let name = standard.and_then(|it| it.downcast_ref::<WindowUDFExpr>());
    match name.map(|it| it.fun().name()) {
        Some("row_number") => Ok(Function::RowNumber),
        Some("rank") => Ok(Function::Rank),
        Some("dense_rank") => Ok(Function::DenseRank),
        Some(name) => Err(Reason::new(format!("the window function {name}"))),
        None => Err(Reason::new(
            "a frame that does not begin with its partition",
        )),
    }
}
