//! Full joins whose rows no aggregate reads. A device lists the rows of each part that [`parts`] returns, as those of
//! other joins, also in an order or up to a limit.

use std::sync::Arc;

use datafusion::common::JoinType;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions,
};
use forebay_tables::GpuOptions;

use crate::alternatives::AlternativesExec;
use crate::fragment::{Fragment, is_moving, of_plan, without_limits};
use crate::on_cpu::OnCpuExec;
use crate::operator::kept;
use crate::reason::Reason;
use crate::rule::{Fragments, check};
use crate::union::parts;
use crate::window::{sorted_by_all, unsorted};

type Plan = Arc<dyn ExecutionPlan>;
type Result<T> = std::result::Result<T, Reason>;

/// Which rows of a full join are wanted.
struct Wanted {
    /// The full join, with conditions and projections above it.
    rows: Plan,
    /// Their order; any if it is `None`.
    by: Option<LexOrdering>,
    limit: Option<usize>,
}

impl Wanted {
    /// Returns which rows of a full join an operator returns; `None` if they are those of another plan, or the parts
    /// cannot have its partitions.
    fn of(node: &Plan) -> Option<Wanted> {
        let partitioning = &node.properties().partitioning;
        if !is_full(node) || matches!(partitioning, Partitioning::Hash(..)) {
            return None;
        }
        if let Some(by) = sorted_by_all(node) {
            let is_alone = partitioning.partition_count() == 1;
            return is_alone.then(|| Wanted {
                rows: unsorted(node),
                by: Some(by.clone()),
                limit: None,
            });
        }
        if let Some(sort) = node.downcast_ref::<SortExec>() {
            return Some(Wanted {
                rows: Arc::clone(sort.input()),
                by: Some(sort.expr().clone()),
                limit: sort.fetch(),
            });
        }
        let (rows, limit) = without_limits(node);
        let has_order = node.properties().output_ordering().is_some();
        (!has_order).then_some(Wanted {
            rows,
            by: None,
            limit,
        })
    }

    /// Returns a plan with at least those rows of a part that are wanted.
    fn of_part(&self, part: Plan) -> Plan {
        if self.by.is_none() && self.limit.is_none() {
            return part;
        }
        let alone = CoalescePartitionsExec::new(part);
        match &self.by {
            Some(by) => Arc::new(SortExec::new(by.clone(), Arc::new(alone)).with_fetch(self.limit)),
            None => Arc::new(alone.with_fetch(self.limit)),
        }
    }

    /// Returns a plan with the rows that are wanted of all parts, or with more if they are the first of an order.
    fn of_all(&self, parts: Plan) -> Plan {
        match (&self.by, self.limit) {
            (Some(by), None) => Arc::new(SortPreservingMergeExec::new(by.clone(), parts)),
            (None, Some(_)) => Arc::new(CoalescePartitionsExec::new(parts).with_fetch(self.limit)),
            (Some(_), Some(_)) | (None, None) => parts,
        }
    }
}

/// Returns whether the rows of a plan are those of a full join, sorted or not.
fn is_full(plan: &Plan) -> bool {
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return *join.join_type() == JoinType::Full;
    }
    let is_above = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || plan.is::<SortExec>()
        || plan.is::<SortPreservingMergeExec>()
        || is_moving(plan);
    is_above && is_full(plan.children()[0])
}

/// Returns why the CPU computes a part of a plan; `None` if no operator has a reason.
fn on_cpu(plan: &Plan) -> Option<&Reason> {
    let own = plan.downcast_ref::<OnCpuExec>().map(OnCpuExec::reason);
    own.or_else(|| plan.children().into_iter().find_map(on_cpu))
}

impl Fragments {
    /// Returns an operator whose rows of a full join a device lists, or the reason why it does not. A sort with a
    /// limit stays above the lists. Returns `None` if the rows are those of another plan.
    pub(crate) fn with_full(&self, node: &Plan, options: &GpuOptions) -> Option<Result<Plan>> {
        let fragments = match self.of_full(node, options)? {
            Ok(fragments) => fragments,
            Err(reason) => return Some(Err(reason)),
        };
        let is_first = node.is::<SortExec>() && node.fetch().is_some();
        let cpu = if is_first { node.children()[0] } else { node };
        let operator = AlternativesExec::new(Arc::clone(cpu), &fragments, options.clone());
        let operator = operator.map(|it| Arc::new(it) as Plan);
        let keep = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        let plan = match is_first {
            true => operator.and_then(|it| Arc::clone(node).replace_children(vec![it], keep)),
            false => operator,
        };
        Some(plan.map_err(Reason::of))
    }

    /// Returns the fragment of window functions over the rows of a full join, which a device lists before; or the
    /// reason why it does not. Returns `None` if the rows are those of another plan.
    pub(crate) fn window_of_full(
        &self,
        node: &Plan,
        options: &GpuOptions,
    ) -> Option<Result<Fragment>> {
        let mut below = unsorted(node.children()[0]);
        while is_moving(&below) {
            let next = Arc::clone(below.children()[0]);
            below = next;
        }
        let fragments = self.of_full(&below, options)?;
        let of_window = |fragments: Plan| -> Result<Fragment> {
            // If the device does not list the rows, the CPU computes the functions, too.
            let fragments = kept(&fragments).ok_or_else(|| Reason::new("a scan of the CPU"))?;
            let rows = of_plan(&fragments, Reason::new("rows of a full join are below"));
            let fragment = Fragment::of_window_over(node, rows)?;
            check(&fragment)?;
            Ok(fragment)
        };
        Some(fragments.and_then(of_window))
    }

    /// Returns a plan of fragments with the rows of a full join that an operator returns, or of a sort with a limit
    /// at least those; or the reason why kernels do not list them. Returns `None` if the rows are those of another
    /// plan.
    fn of_full(&self, node: &Plan, options: &GpuOptions) -> Option<Result<Plan>> {
        let wanted = Wanted::of(node)?;
        let listed = |part| {
            let part = self.with_lists_below(wanted.of_part(part), false, options);
            let part = part.map_err(Reason::of)?.data;
            match on_cpu(&part) {
                Some(reason) => Err(reason.clone()),
                None => Ok(part),
            }
        };
        let parts = parts(&wanted.rows)?.and_then(|parts| {
            let listed = parts.into_iter().map(listed);
            listed.collect::<Result<Vec<_>>>()
        });
        let all = parts.and_then(|parts| UnionExec::try_new(parts).map_err(Reason::of));
        Some(all.map(|all| wanted.of_all(all)))
    }
}
