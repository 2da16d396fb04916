//! The rule that gives fragments of plans to a device.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::config::ConfigOptions;
use datafusion::datasource::listing::ListingTableUrl;
use datafusion::datasource::physical_plan::FileScanConfig;
use datafusion::datasource::source::DataSourceExec;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::physical_expr::LexOrdering;
use datafusion::physical_expr::expressions::UnKnownColumn;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, SortMergeJoinExec,
};
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, ExecutionPlan, Partitioning, ReplaceChildrenOptions,
};
use forebay_tables::{GpuColumns, GpuFigures, GpuOptions, GpuRule, TableName, VersionedScan};
use futures_util::future::BoxFuture;

use crate::above;
use crate::alternatives::AlternativesExec;
use crate::columns::Columns;
use crate::constants;
use crate::explain;
use crate::fragment::{Fragment, Source, is_limited, is_moving, rows};
use crate::on_cpu::OnCpuExec;
use crate::operator::{GpuFragmentExec, number_of};
use crate::outer::OuterJoin;
use crate::packed::is_packable;
use crate::program::Compiled;
use crate::reason::{FASTER, Reason};
use crate::scanned::Scanned;
use crate::window::{is_window, sorted_by_all};
use crate::{distinct, sets, union};

/// Puts an operator of a device above each aggregate that the device can compute, and above joins and conditions whose
/// rows no aggregate reads.
#[derive(Debug)]
pub(crate) struct Fragments(pub(crate) Arc<Columns>);

impl PhysicalOptimizerRule for Fragments {
    fn optimize(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        config: &ConfigOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let options = config.extensions.get::<GpuOptions>().cloned();
        let options = options.unwrap_or_default();
        if !options.is_on {
            return Ok(plan);
        }
        let plan = plan.transform_up(|node| {
            if is_window(&node) {
                return self.with_window(node, &options);
            }
            let Some(aggregate) = node.downcast_ref::<AggregateExec>() else {
                return above::selected(node);
            };
            if !is_last(aggregate) {
                // The aggregate above it is asked.
                return Ok(Transformed::no(node));
            }
            let of_several = self.with_sets(aggregate, &options);
            let of_several = of_several
                .or_else(|| self.with_union(aggregate, &options))
                .or_else(|| self.with_distinct(aggregate, &options));
            let tried = match of_several {
                Some(Ok(of_several)) => return Ok(Transformed::yes(of_several)),
                Some(Err(reason)) => Err(reason),
                None => {
                    let tried = self.with_grouped(aggregate, &options);
                    tried.or_else(|_| checked(aggregate))
                }
            };
            let tried = tried.and_then(|fragment| {
                self.check_worth(&node, &fragment, &options)?;
                Ok(fragment)
            });
            match tried {
                Ok(fragment) => {
                    let ordering = node.properties().output_ordering().cloned();
                    let (fragment, columns) = (Arc::new(fragment), Arc::clone(&self.0));
                    let operator = GpuFragmentExec::new(node, fragment, columns, options.clone())?;
                    Ok(Transformed::yes(in_order(operator, ordering)))
                }
                // Those of catalogues are not the device's.
                Err(_) if !reads_files(&node) => Ok(Transformed::no(node)),
                Err(reason) if options.strict => {
                    let text = format!("the GPU does not compute a part of the plan: {reason}");
                    Err(DataFusionError::Plan(text))
                }
                Err(reason) => {
                    self.0.counts.add_on_cpu(&reason);
                    let timer = reason.is(FASTER).then(|| self.0.timer(&node)).flatten();
                    let node = OnCpuExec::new(node, reason).with_timer(timer);
                    Ok(Transformed::yes(Arc::new(node) as _))
                }
            }
        });
        self.with_lists(plan.data()?, &options)
    }

    fn name(&self) -> &str {
        "gpu_fragments"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

impl Fragments {
    /// Returns the fragment of an aggregate above an outer join whose other rows are grouped first.
    ///
    /// # Errors
    /// Why there is none.
    fn with_grouped(
        &self,
        aggregate: &AggregateExec,
        options: &GpuOptions,
    ) -> std::result::Result<Fragment, Reason> {
        check_rows(aggregate)?;
        let join = OuterJoin::of(first_step(aggregate)?);
        let join = join.ok_or_else(|| Reason::new("no outer join is below"))?;
        let grouped = join.grouped()?;
        let fragment = checked(&grouped)?;
        let grouped = self.operator(Arc::new(grouped), fragment, options);
        let fragment = join.fragment(&grouped.map_err(Reason::of)?)?;
        check(&fragment)?;
        Ok(fragment)
    }

    /// Returns the plan of an aggregate by grouping sets whose groups by all keys are those of a device, or why there
    /// is none; `None` if it has no such sets.
    fn with_sets(
        &self,
        aggregate: &AggregateExec,
        options: &GpuOptions,
    ) -> Option<std::result::Result<Arc<dyn ExecutionPlan>, Reason>> {
        let first = first_step(aggregate).ok()?;
        let has_sets = first.group_expr().has_grouping_set();
        has_sets.then(|| self.of_sets(aggregate, first, options))
    }

    /// Returns the plan of an aggregate of a union, which merges states that a device computes, or the reason why the
    /// CPU computes it. Returns `None` if the rows are not those of a union.
    fn with_union(
        &self,
        aggregate: &AggregateExec,
        options: &GpuOptions,
    ) -> Option<std::result::Result<Arc<dyn ExecutionPlan>, Reason>> {
        let first = first_step(aggregate).ok()?;
        let parts = union::inputs(first.input())?;
        let of_parts = |parts: Vec<Arc<dyn ExecutionPlan>>| {
            check_alone(aggregate, first)?;
            check_rows(aggregate)?;
            let parts = parts.iter().map(|part| {
                let first = union::of_part(first, part)?;
                let fragment = of_states(&first)?;
                Ok((first, fragment))
            });
            let parts = parts.collect::<std::result::Result<Vec<_>, Reason>>()?;
            // The plan stays one if the CPU would compute all parts.
            let wanted = parts
                .iter()
                .map(|(first, fragment)| self.0.check_cost(first.input(), fragment, options));
            wanted.reduce(|one, other| one.or(other)).transpose()?;
            let states = parts
                .into_iter()
                .map(|(first, fragment)| self.aggregated(first, fragment, options));
            let states = states.collect::<std::result::Result<_, _>>()?;
            let states = UnionExec::try_new(states).map_err(Reason::of)?;
            sets::merged(aggregate, first, states).map_err(Reason::of)
        };
        Some(parts.and_then(of_parts))
    }

    /// Returns the plan of an aggregate of distinct values, which joins the groups of several aggregates of a device,
    /// or the reason why the CPU computes it. Returns `None` if no aggregate is of distinct values.
    fn with_distinct(
        &self,
        aggregate: &AggregateExec,
        options: &GpuOptions,
    ) -> Option<std::result::Result<Arc<dyn ExecutionPlan>, Reason>> {
        let first = first_step(aggregate).ok()?;
        let is_distinct = first.aggr_expr().iter().any(|it| it.is_distinct());
        is_distinct.then(|| self.of_distinct(aggregate, first, options))
    }

    fn of_distinct(
        &self,
        aggregate: &AggregateExec,
        first: &AggregateExec,
        options: &GpuOptions,
    ) -> std::result::Result<Arc<dyn ExecutionPlan>, Reason> {
        check_rows(aggregate)?;
        if rows(first.input())?.has_plan() {
            // Each part reads the rows, and a plan that runs twice may return other rows.
            return Err(Reason::new("distinct values of rows of a plan"));
        }
        let hashed = distinct::hashed(aggregate);
        let hashed = hashed.as_ref();
        let parts = distinct::parts(first)?.into_iter().map(|part| {
            let groups = part.groups(first)?;
            let groups = groups.map(|it| self.of_part(it, options)).transpose()?;
            let plan = self.of_part(part.aggregate(first, groups, hashed)?, options)?;
            Ok((part, plan))
        });
        let parts = parts.collect::<std::result::Result<Vec<_>, Reason>>()?;
        let fragments = distinct::joined(aggregate, parts, hashed).map_err(Reason::of)?;
        let cpu = Arc::new(aggregate.clone());
        let alternatives = AlternativesExec::new(cpu, &fragments, options.clone());
        Ok(Arc::new(alternatives.map_err(Reason::of)?))
    }

    /// Returns the operator of a device that computes window functions, if kernels can.
    fn with_window(
        &self,
        node: Arc<dyn ExecutionPlan>,
        options: &GpuOptions,
    ) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        let fragment = sorted(&node).or_else(|reason| {
            let of_full = self.window_of_full(&node, options);
            of_full.unwrap_or(Err(reason))
        });
        match fragment {
            Ok(fragment) if self.check_worth(&node, &fragment, options).is_ok() => {
                Ok(Transformed::yes(self.operator(node, fragment, options)?))
            }
            // The later pass that makes lists tells the reason.
            _ => Ok(Transformed::no(node)),
        }
    }

    /// Returns the operator of an aggregate of one step, if its tables are not left to the CPU.
    fn of_part(
        &self,
        aggregate: AggregateExec,
        options: &GpuOptions,
    ) -> std::result::Result<Arc<dyn ExecutionPlan>, Reason> {
        let fragment = checked(&aggregate)?;
        self.0.check_cost(aggregate.input(), &fragment, options)?;
        self.aggregated(aggregate, fragment, options)
    }

    /// Returns the operator of an aggregate, or of its first step, of which this is the fragment.
    ///
    /// # Errors
    /// Why a device does not compute it.
    fn aggregated(
        &self,
        aggregate: AggregateExec,
        fragment: Fragment,
        options: &GpuOptions,
    ) -> std::result::Result<Arc<dyn ExecutionPlan>, Reason> {
        let aggregate: Arc<dyn ExecutionPlan> = Arc::new(aggregate);
        self.check_hope(number_of(&aggregate), options)?;
        self.operator(aggregate, fragment, options)
            .map_err(Reason::of)
    }

    fn of_sets(
        &self,
        aggregate: &AggregateExec,
        first: &AggregateExec,
        options: &GpuOptions,
    ) -> std::result::Result<Arc<dyn ExecutionPlan>, Reason> {
        check_alone(aggregate, first)?;
        check_rows(aggregate)?;
        let by_all_keys = sets::by_all_keys(first).map_err(Reason::of)?;
        let fragment = of_states(&by_all_keys)?;
        self.0.check_cost(first.input(), &fragment, options)?;
        let states = self.aggregated(by_all_keys, fragment, options)?;
        sets::above(aggregate, first, states).map_err(Reason::of)
    }

    /// Returns the operator that computes a fragment on the device instead of a plan of the CPU.
    fn operator(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        fragment: Fragment,
        options: &GpuOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let (fragment, columns) = (Arc::new(fragment), Arc::clone(&self.0));
        let operator = GpuFragmentExec::new(plan, fragment, columns, options.clone())?;
        Ok(Arc::new(operator))
    }

    /// Checks that a plan was not given up lately. A session that wants an error instead tries it again.
    fn check_hope(&self, number: u64, options: &GpuOptions) -> std::result::Result<(), Reason> {
        match options.strict {
            true => Ok(()),
            false => self.0.hopeless.check(number),
        }
    }

    /// Checks that a plan was not given up lately, and that the CPU is not estimated to be faster.
    fn check_worth(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        fragment: &Fragment,
        options: &GpuOptions,
    ) -> std::result::Result<(), Reason> {
        self.check_hope(number_of(plan), options)?;
        self.0.check_cost(plan, fragment, options)
    }

    /// Returns a sort with a limit above an operator of a device that returns the first rows, or the sort with the
    /// reason why the CPU computes them; or why kernels do not tell which rows are first. Returns `None` if it is
    /// another operator.
    fn with_first(
        &self,
        node: &Arc<dyn ExecutionPlan>,
        options: &GpuOptions,
    ) -> Option<std::result::Result<Arc<dyn ExecutionPlan>, Reason>> {
        let fragment = match first(node)? {
            Ok(fragment) => Arc::new(fragment),
            Err(reason) => return Some(Err(reason)),
        };
        if let Err(reason) = self.check_worth(node, &fragment, options) {
            // All rows are more than the first.
            let on_cpu = OnCpuExec::new(Arc::clone(node), reason);
            return Some(Ok(Arc::new(on_cpu) as _));
        }
        let input = Arc::clone(node.children()[0]);
        let first = GpuFragmentExec::new(input, fragment, Arc::clone(&self.0), options.clone());
        let keep = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
        let first = first.and_then(|first| {
            let inputs = vec![Arc::new(first.with_number(number_of(node))) as _];
            Arc::clone(node).replace_children(inputs, keep)
        });
        Some(first.map_err(Reason::of))
    }

    /// Puts an operator of a device above joins and conditions whose rows no aggregate reads.
    fn with_lists(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        options: &GpuOptions,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.with_lists_below(plan, false, options).data()
    }

    /// Puts these operators below a join of the CPU, or not.
    pub(crate) fn with_lists_below(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        has_join: bool,
        options: &GpuOptions,
    ) -> Result<Transformed<Arc<dyn ExecutionPlan>>> {
        plan.transform_down(|node| {
            let jump = |node, is_other| Transformed::new(node, is_other, TreeNodeRecursion::Jump);
            // The rows of a recursive query may be read once.
            let is_recursive = node.is::<RecursiveQueryExec>();
            let is_done = node.is::<GpuFragmentExec>()
                || node.is::<AlternativesExec>()
                || node.is::<OnCpuExec>();
            if is_done || is_recursive {
                return Ok(jump(node, false));
            }
            let on_cpu = |node, reason| jump(Arc::new(OnCpuExec::new(node, reason)) as _, true);
            let replaced = self.with_full(&node, options);
            let refused = match replaced.or_else(|| self.with_first(&node, options)) {
                Some(Ok(plan)) => return Ok(jump(plan, true)),
                Some(Err(reason)) => Some(reason),
                None => None,
            };
            let is_sort = node.is::<SortExec>() || node.is::<SortPreservingMergeExec>();
            // An operator with a limit, other than a sort, ends before it has read all rows. The CPU computes what is
            // below, unless the limit is one of the list.
            let has_limit = node.fetch().is_some() && !is_sort;
            let is_again = node.is::<GlobalLimitExec>() && is_limited(node.children()[0]);
            let tried = refused.map_or_else(|| sorted_or_listed(&node), Err);
            let is_own = is_told(&node) && !has_join;
            let is_told = is_own && reads_files(&node);
            let is_joined = |it: &Fragment| !it.rows.joins.is_empty();
            match tried {
                // A join of the CPU reads no rows of a table that its other side does not have.
                Ok(fragment) if has_join && !is_joined(&fragment) => Ok(Transformed::no(node)),
                Ok(fragment) => match self.check_worth(&node, &fragment, options) {
                    Ok(()) => Ok(jump(self.operator(node, fragment, options)?, true)),
                    // The joins below have the same rows.
                    Err(reason) => Ok(on_cpu(node, reason)),
                },
                Err(_) if node.is::<AggregateExec>() => Ok(jump(node, false)),
                // The condition or the join may be below the limit.
                Err(reason) if has_limit && !is_again => {
                    let is_told = has_told(&node) && !has_join && reads_files(&node);
                    Ok(match is_told && !tells(&node) {
                        true => on_cpu(node, reason),
                        false => jump(node, false),
                    })
                }
                Err(reason) if is_own => {
                    let is_below = is_join(&node);
                    let below =
                        node.map_children(|it| self.with_lists_below(it, is_below, options))?;
                    // What is below a sort or a condition tells more of it.
                    let is_above = is_sort || below.data.is::<FilterExec>();
                    let is_told = is_told && !(is_above && tells(&below.data));
                    Ok(match is_told {
                        true => on_cpu(below.data, reason),
                        false => jump(below.data, below.transformed),
                    })
                }
                Err(_) => Ok(Transformed::no(node)),
            }
        })
    }
}

/// Returns the fragment with the first rows of a sort that has a limit, or why kernels do not tell which they are;
/// `None` if it is another operator.
fn first(node: &Arc<dyn ExecutionPlan>) -> Option<std::result::Result<Fragment, Reason>> {
    let sort = node.downcast_ref::<SortExec>()?;
    sort.fetch()?;
    let fragment = check_listed(sort.input()).and_then(|()| Fragment::of_first(sort));
    Some(fragment.and_then(|it| check(&it).map(|()| it)))
}

/// Returns whether an operator that the CPU runs tells why: those that only move or name rows do not.
fn is_told(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_first = plan.is::<SortExec>() && plan.fetch().is_some();
    is_first || is_window(plan) || plan.is::<FilterExec>() || is_join(plan)
}

fn has_told(plan: &Arc<dyn ExecutionPlan>) -> bool {
    is_told(plan) || plan.children().into_iter().any(has_told)
}

/// Returns whether some operator of a plan is the device's, or tells why it is not.
fn tells(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<GpuFragmentExec>() || plan.is::<OnCpuExec>() || plan.children().into_iter().any(tells)
}

impl GpuRule for Fragments {
    fn figures(&self) -> GpuFigures {
        let (columns, bytes) = self.0.held();
        GpuFigures {
            device: self.0.device_names(),
            aggregates: self.0.counts.on_device(),
            on_cpu: self.0.counts.on_cpu(),
            on_cpu_kinds: self.0.counts.on_cpu_kinds(),
            columns,
            column_bytes: bytes.device,
            host_bytes: bytes.host,
            disk_bytes: self.0.disk.as_ref().map_or(0, |it| it.bytes()),
        }
    }

    fn keeps(&self, data_type: &DataType) -> bool {
        is_packable(data_type)
    }

    fn leave_to_cpu(&self, files: Vec<ListingTableUrl>, tables: HashSet<String>) {
        self.0.leave_to_cpu(files, tables);
    }

    fn bring<'a>(
        &'a self,
        table: &'a TableName,
        columns: Option<&'a [String]>,
        scan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<bool>> {
        Box::pin(async move {
            let brought = self.0.bring(table, columns, scan, &context).await;
            brought.map_err(|reason| DataFusionError::Execution(reason.to_string()))
        })
    }

    fn is_there(&self, table: &TableName) -> bool {
        self.0.is_declared_here(table)
    }

    fn retain_declared(&self, tables: &BTreeSet<TableName>) {
        self.0.retain_declared(tables);
    }

    fn columns(&self, limit: usize) -> GpuColumns {
        self.0.largest(limit)
    }

    fn kernels<'a>(
        &'a self,
        plan: &'a Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
    ) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move { explain::kernels(plan, &context).await })
    }
}

/// Returns whether an aggregate returns values, no states.
pub(crate) fn is_last(aggregate: &AggregateExec) -> bool {
    !matches!(
        aggregate.mode(),
        AggregateMode::Partial | AggregateMode::PartialReduce
    )
}

/// Returns whether a plan reads files, or versioned tables.
fn reads_files(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let scan = plan.downcast_ref::<DataSourceExec>();
    scan.is_some_and(|it| it.data_source().is::<FileScanConfig>())
        || plan.is::<VersionedScan>()
        || plan.children().into_iter().any(reads_files)
}

/// Returns the first step of an aggregate: itself, or the one whose states it combines.
fn first_step(aggregate: &AggregateExec) -> std::result::Result<&AggregateExec, Reason> {
    if matches!(
        aggregate.mode(),
        AggregateMode::Single | AggregateMode::SinglePartitioned
    ) {
        return Ok(aggregate);
    }
    let mut below = aggregate.input();
    while is_moving(below) {
        below = below.children()[0];
    }
    let first = below.downcast_ref::<AggregateExec>();
    let first = first.filter(|it| *it.mode() == AggregateMode::Partial);
    first.ok_or_else(|| Reason::new("an aggregate of aggregates"))
}

/// Checks that an aggregate has a first step below it, or returns one partition, as its merged states do.
fn check_alone(
    aggregate: &AggregateExec,
    first: &AggregateExec,
) -> std::result::Result<(), Reason> {
    let is_alone = first.properties().partitioning.partition_count() == 1;
    match !is_alone && std::ptr::eq(first, aggregate) {
        true => Err(Reason::new("states of several partitions")),
        false => Ok(()),
    }
}

/// Returns the fragment of the states of an aggregate's first step.
///
/// # Errors
/// Why kernels do not compute them.
fn of_states(first: &AggregateExec) -> std::result::Result<Fragment, Reason> {
    if first.properties().output_ordering().is_some() {
        return Err(Reason::new("rows that are sorted"));
    }
    let mut fragment = Fragment::of(first)?;
    fragment.returns_states = true;
    check(&fragment)?;
    Ok(fragment)
}

/// Checks that operators above an aggregate need no order or partitions that kernels do not give.
fn check_rows(aggregate: &AggregateExec) -> std::result::Result<(), Reason> {
    if aggregate.properties().output_ordering().is_some() {
        return Err(Reason::new("rows that are sorted"));
    }
    check_partitions(aggregate)
}

/// Checks that operators above an aggregate need no partitions that kernels do not give.
fn check_partitions(aggregate: &AggregateExec) -> std::result::Result<(), Reason> {
    // Limits are hints: what needs fewer groups is above the aggregate. Operators above rely on the partitions.
    let partitioning = &aggregate.properties().partitioning;
    if partitioning.partition_count() > 1 && !is_by_columns(partitioning) {
        return Err(Reason::new("rows that are partitioned"));
    }
    Ok(())
}

/// Returns an operator of a device, below a sort if the rows of the CPU's operator had an order.
fn in_order(operator: GpuFragmentExec, ordering: Option<LexOrdering>) -> Arc<dyn ExecutionPlan> {
    match ordering {
        None => Arc::new(operator),
        // There are few groups to sort.
        Some(ordering) => {
            let sort = SortExec::new(ordering, Arc::new(operator.unordered()));
            Arc::new(sort.with_preserve_partitioning(true))
        }
    }
}

/// Returns the fragment of an aggregate.
fn checked(aggregate: &AggregateExec) -> std::result::Result<Fragment, Reason> {
    let first = first_step(aggregate)?;
    check_partitions(aggregate)?;
    let fragment = Fragment::of(first)?;
    check(&fragment)?;
    Ok(fragment)
}

/// Returns the fragment of the rows of joins, or of those that conditions keep.
///
/// # Errors
/// Why kernels do not compute it.
fn listed(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<Fragment, Reason> {
    check_listed(plan)?;
    let fragment = Fragment::of_rows(plan)?;
    check(&fragment)?;
    Ok(fragment)
}

/// Returns the fragment of window functions, or of a sort of all rows.
///
/// # Errors
/// Why kernels do not compute it.
fn sorted(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<Fragment, Reason> {
    let fragment = match sorted_by_all(plan) {
        Some(by) => Fragment::of_sort(plan, by)?,
        None => Fragment::of_window(plan)?,
    };
    check(&fragment)?;
    Ok(fragment)
}

/// Returns the fragment of window functions, of a sort of all rows, or of other rows.
///
/// # Errors
/// Why kernels do not compute it.
fn sorted_or_listed(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<Fragment, Reason> {
    match is_window(plan) || sorted_by_all(plan).is_some() {
        true => sorted(plan),
        false => listed(plan),
    }
}

/// Returns whether an operator joins rows on the CPU.
fn is_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<CrossJoinExec>()
}

/// Checks that operators above rows need no order or partitions that kernels do not give.
fn check_listed(plan: &Arc<dyn ExecutionPlan>) -> std::result::Result<(), Reason> {
    if plan.properties().output_ordering().is_some() {
        return Err(Reason::new("rows that are sorted"));
    }
    // Nothing relies on partitions by columns that are not there any more.
    match &plan.properties().partitioning {
        Partitioning::UnknownPartitioning(_)
        | Partitioning::RoundRobinBatch(_)
        | Partitioning::Hash(..) => Ok(()),
        _ => Err(Reason::new("rows that are partitioned")),
    }
}

/// Checks that kernels can compute a fragment, if the numbers of its columns are small.
///
/// # Errors
/// Why they cannot.
pub(crate) fn check(fragment: &Fragment) -> std::result::Result<(), Reason> {
    let constant = fragment.with_constants(constants::null_of)?;
    let fragment = constant.as_deref().unwrap_or(fragment);
    let mut rows = vec![&fragment.rows];
    let mut assumed = vec![None; fragment.sources.len()];
    while let Some(of) = rows.pop() {
        assumed[of.source] = Some(Scanned::assumed(of));
        rows.extend(of.joins.iter().map(|join| &join.rows));
    }
    for source in &fragment.sources {
        check_columns(source)?;
    }
    let assumed: Vec<_> = assumed.into_iter().flatten().collect();
    Compiled::new(fragment, &assumed)?;
    Ok(())
}

/// Returns whether rows are partitioned by columns that are still there.
pub(crate) fn is_by_columns(partitioning: &Partitioning) -> bool {
    let Partitioning::Hash(keys, _) = partitioning else {
        return false;
    };
    !keys.iter().any(|it| it.is::<UnKnownColumn>())
}

/// Checks that the columns of a source can be kept on a device.
fn check_columns(source: &Source) -> std::result::Result<(), Reason> {
    let schema = source.schema();
    let in_file = source.origin.own_schema().fields().len();
    // What is computed is of a type that can be kept.
    let of_files = source.columns.iter();
    for column in of_files.filter(|it| source.computed(**it).is_none()) {
        let field = schema.field(*column);
        if *column >= in_file {
            let text = format!("the column {} is not in the files", field.name());
            return Err(Reason::new(text));
        }
        if !is_packable(field.data_type()) {
            let text = format!(
                "the column {} is of type {}",
                field.name(),
                field.data_type()
            );
            return Err(Reason::new(text));
        }
    }
    match source.columns.is_empty() {
        true => Err(Reason::new("it reads no column of a table")),
        false => Ok(()),
    }
}
