//! The part of a plan that kernels compute: aggregates over rows of a scan, of its joins, that conditions keep.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use datafusion::arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::datasource::physical_plan::{FileScanConfig, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::{collect_columns, split_conjunction};
use datafusion::physical_expr::{PhysicalExpr, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::HashJoinExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ReplaceChildrenOptions};
use forebay_tables::VersionedScan;

use crate::constants::Subqueries;
use crate::fingerprint::is_of_groups;
use crate::join::{Join, joined, of_all_pairs};
use crate::limit::Limit;
use crate::on_cpu::OnCpuExec;
use crate::operator::GpuFragmentExec;
use crate::origin::Origin;
use crate::reason::{Reason, Repeated};
use crate::selection::Selection;
use crate::slice::KeyColumn;
use crate::window::{self, Window};

/// How many times more room the rows that joins repeat get if it is too small, and its maximum in rows for each row
/// of the table.
const SPREAD_STEP: u64 = 8;
/// The same of the rows of a slice.
const SKEW_STEP: u64 = 2;
const SPREAD_MAX: u64 = 1 << 24;

type Result<T> = std::result::Result<T, Reason>;
pub(crate) type Exprs = Vec<Arc<dyn PhysicalExpr>>;

/// The columns that a fragment reads of one origin.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) origin: Origin,
    /// Indexes of the columns in the rows, in order: those of the table, then those that are computed of them.
    pub(crate) columns: Vec<usize>,
    /// Index of the first column that is computed.
    first_computed: usize,
    computed: Exprs,
}

impl Source {
    /// Returns columns of a table, by their indexes there.
    pub(crate) fn of(origin: Origin, columns: Vec<usize>) -> Source {
        Source {
            first_computed: origin.schema().fields().len(),
            computed: Exprs::new(),
            origin,
            columns,
        }
    }

    /// Returns these columns of the origin.
    pub(crate) fn with_columns(&self, columns: Vec<usize>) -> Source {
        Source {
            columns,
            ..self.clone()
        }
    }

    /// Returns the columns of the table, or of the plan.
    pub(crate) fn schema(&self) -> SchemaRef {
        self.origin.schema()
    }

    /// Returns the expression that a column is computed by, over the columns of the table; `None` if it is one of
    /// these.
    pub(crate) fn computed(&self, column: usize) -> Option<&Arc<dyn PhysicalExpr>> {
        let index = column.checked_sub(self.first_computed)?;
        self.computed.get(index)
    }

    /// Returns the columns, if none is computed.
    pub(crate) fn of_origin(&self) -> Option<&[usize]> {
        let mut columns = self.columns.iter();
        let is_computed = columns.any(|column| self.computed(*column).is_some());
        (!is_computed).then_some(&self.columns)
    }

    /// Returns a column as an expression over those of the table.
    pub(crate) fn expr(&self, column: usize) -> Arc<dyn PhysicalExpr> {
        match self.computed(column) {
            Some(expr) => Arc::clone(expr),
            None => Arc::new(Column::new(self.schema().field(column).name(), column)),
        }
    }
}

/// Rows of a table, or that a plan returns, and of the joins with other rows.
///
/// Expressions over these rows have the columns of the table, behind them those of each join, and then those that are
/// computed while the table is read.
#[derive(Debug, Clone)]
pub(crate) struct Rows {
    pub(crate) origin: Origin,
    /// Index of what is read in the sources of the fragment.
    pub(crate) source: usize,
    pub(crate) schema: SchemaRef,
    /// The columns that are computed, over those of the table.
    pub(crate) computed: Exprs,
    /// What the operator returns.
    pub(crate) columns: Exprs,
    /// Conditions that all hold for a row that counts.
    pub(crate) filters: Exprs,
    /// The joins. The keys of each have columns of the table and of joins before.
    pub(crate) joins: Vec<Join>,
    /// Number of rows that have room, for each row of the table, if the rows after the joins are stored. If no join
    /// repeats them, how many times the mean those of a slice may be.
    pub(crate) spread: u64,
}

/// An aggregate, over columns of the rows.
#[derive(Debug, Clone)]
pub(crate) struct Aggregate {
    pub(crate) function: Arc<AggregateFunctionExpr>,
    pub(crate) arguments: Exprs,
    pub(crate) filter: Option<Arc<dyn PhysicalExpr>>,
    /// Whether the argument is what the same function gives for a part of the rows.
    pub(crate) is_of_states: bool,
}

/// A fragment.
#[derive(Debug, Clone)]
pub(crate) struct Fragment {
    pub(crate) rows: Rows,
    pub(crate) keys: Exprs,
    pub(crate) aggregates: Vec<Aggregate>,
    /// What is read: first for `rows`, then for those of each join.
    pub(crate) sources: Vec<Arc<Source>>,
    /// What the plan above keeps of the groups.
    pub(crate) selection: Selection,
    /// Whether each row is returned, with the keys as its columns, instead of groups.
    pub(crate) is_listed: bool,
    /// The rows that the plan above keeps of a list.
    pub(crate) limit: Limit,
    /// The order of the rows of a list, and the window functions over them: its columns behind the keys.
    pub(crate) window: Option<Window>,
    /// Whether the states of aggregates are returned, not their values.
    pub(crate) returns_states: bool,
    /// Whether its kernels had no room for all columns of a join, so that texts share the number of their row.
    pub(crate) shares_rows: Arc<AtomicBool>,
    /// Whether groups of a GPU are read as rows: kernels over those that stayed there did not know enough of them.
    pub(crate) reads_rows: Arc<AtomicBool>,
    pub(crate) subqueries: Subqueries,
    /// Seed of the fingerprints that tell groups apart; 0 if numbers of their keys do.
    pub(crate) seed: u64,
    /// The same with one more join that repeats rows, or with the next seed, once a run has found that it needs that.
    pub(crate) repeating: OnceLock<Arc<Fragment>>,
}

impl Fragment {
    /// Returns the fragment of an aggregate operator that reads files, no states.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn of(aggregate: &AggregateExec) -> Result<Fragment> {
        let groups = aggregate.group_expr();
        if !groups.is_single() || groups.has_grouping_set() {
            return Err(Reason::new("grouping sets"));
        }
        let rows = rows(&window::unsorted(aggregate.input()))?;
        if let Origin::Plan(plan, reason) = &rows.origin
            && !plan.is::<GpuFragmentExec>()
        {
            return Err(reason.clone());
        }
        let keys = groups.expr().iter();
        let keys = keys.map(|(key, _)| over_rows(key, &rows.columns));
        let keys = keys.collect::<Result<Exprs>>()?;
        let functions = aggregate.aggr_expr().iter().zip(aggregate.filter_expr());
        let aggregates = functions.map(|(function, filter)| {
            let is_supported = function.groups_accumulator_supported() || is_its_state(function);
            if !keys.is_empty() && !is_supported {
                return Err(Reason::new(format!("{} of groups", function.name())));
            }
            let arguments = function.expressions();
            let arguments = arguments.iter().map(|it| over_rows(it, &rows.columns));
            let filter = filter.as_ref().map(|it| over_rows(it, &rows.columns));
            Ok(Aggregate {
                function: Arc::clone(function),
                arguments: arguments.collect::<Result<_>>()?,
                filter: filter.transpose()?,
                is_of_states: false,
            })
        });
        let aggregates = aggregates.collect::<Result<_>>()?;
        Ok(Fragment::of_groups(rows, keys, aggregates))
    }

    /// Returns the fragment of aggregates of groups of rows.
    pub(crate) fn of_groups(rows: Rows, keys: Exprs, aggregates: Vec<Aggregate>) -> Fragment {
        let mut fragment = Fragment {
            aggregates,
            rows,
            keys,
            sources: Vec::new(),
            selection: Selection::default(),
            is_listed: false,
            limit: Limit::None,
            window: None,
            returns_states: false,
            shares_rows: Arc::default(),
            reads_rows: Arc::default(),
            subqueries: Subqueries::default(),
            seed: 0,
            repeating: OnceLock::new(),
        };
        fragment.number();
        fragment
    }

    /// Returns the fragment whose rows are those of an operator above joins.
    ///
    /// # Errors
    /// Why it is none.
    pub(crate) fn of_rows(plan: &Arc<dyn ExecutionPlan>) -> Result<Fragment> {
        let (plan, limit) = without_limits(plan);
        let rows = of_tables(&plan)?;
        if rows.joins.is_empty() && rows.filters.is_empty() {
            return Err(Reason::new("all rows of a table"));
        }
        let limit = limit.map_or(Limit::None, |count| Limit::Any(count as u64));
        Ok(Fragment::listed(rows, limit, None))
    }

    /// Returns the fragment that returns rows, with the functions of a window and their aggregates.
    pub(crate) fn listed(
        rows: Rows,
        limit: Limit,
        window: Option<(Window, Vec<Aggregate>)>,
    ) -> Fragment {
        let (window, aggregates) = window.unzip();
        let mut fragment = Fragment {
            keys: rows.columns.clone(),
            limit,
            window,
            rows,
            aggregates: aggregates.unwrap_or_default(),
            sources: Vec::new(),
            selection: Selection::default(),
            is_listed: true,
            returns_states: false,
            shares_rows: Arc::default(),
            reads_rows: Arc::default(),
            subqueries: Subqueries::default(),
            seed: 0,
            repeating: OnceLock::new(),
        };
        fragment.number();
        fragment
    }

    /// Returns the fragment with the latest seed, in which all joins repeat rows that were found to do so.
    pub(crate) fn latest(self: &Arc<Fragment>) -> Arc<Fragment> {
        let mut latest = self;
        while let Some(next) = latest.repeating.get() {
            latest = next;
        }
        Arc::clone(latest)
    }

    /// Changes later runs as the reason of a failed run requires: joins repeat rows of the same keys or store more of
    /// them, or groups have other fingerprints. Returns whether kernels can do so.
    pub(crate) fn repeat(&self, reason: &Reason) -> bool {
        let next = match is_of_groups(reason) {
            true => self.with_next_seed(reason),
            false => reason.repeated().and_then(|it| self.repeating(it)),
        };
        let Some(next) = next else {
            return false;
        };
        // Another run may have been first.
        self.repeating.get_or_init(|| Arc::new(next));
        true
    }

    /// Returns the fragment whose joins repeat rows of these sources; `None` if kernels cannot do so.
    fn repeating(&self, repeated: &Repeated) -> Option<Fragment> {
        let mut next = self.clone();
        for source in &repeated.same_keys {
            let join = next.rows.join_of(*source)?;
            // A mark above a join whose rows were not all stored may be wrong: the next run tells.
            let mut others = repeated.same_keys.iter();
            if others.all(|other| join.rows.join_of(*other).is_none()) && !join.repeat() {
                return None;
            }
        }
        for source in &repeated.many_rows {
            let rows = &mut next.rows.join_of(*source)?.rows;
            let step = match rows.are_repeated() {
                true => SPREAD_STEP,
                false => SKEW_STEP,
            };
            rows.spread = (rows.spread < SPREAD_MAX).then_some(rows.spread * step)?;
        }
        let is_any = !repeated.same_keys.is_empty() || !repeated.many_rows.is_empty();
        is_any.then_some(next)
    }

    /// Returns whether the rows of a list have the order of their table.
    pub(crate) fn has_order_of_table(&self) -> bool {
        self.is_listed && self.window.is_none() && self.rows.joins.is_empty()
    }

    /// Returns the rows, and the expressions over them: the keys, those of the aggregates, and those of the order.
    pub(crate) fn parts_mut(&mut self) -> (&mut Rows, Vec<&mut Arc<dyn PhysicalExpr>>) {
        let of_aggregates = self.aggregates.iter_mut();
        let of_aggregates =
            of_aggregates.flat_map(|it| it.arguments.iter_mut().chain(&mut it.filter));
        let over = self.keys.iter_mut().chain(of_aggregates);
        let over = over.chain(self.limit.exprs_mut());
        let of_window = self.window.iter_mut().flat_map(Window::exprs_mut);
        let over = over.chain(of_window);
        let conditions = self.selection.conditions.iter_mut();
        let over = over.chain(conditions.map(|it| &mut it.value));
        (&mut self.rows, over.collect())
    }

    /// Numbers the sources.
    pub(crate) fn number(&mut self) {
        let of_aggregates = self.aggregates.iter();
        let of_aggregates = of_aggregates.flat_map(|it| it.arguments.iter().chain(&it.filter));
        let used = self.keys.iter().chain(of_aggregates);
        let of_window = self.window.iter().flat_map(Window::exprs);
        let used = columns(used.chain(self.limit.exprs()).chain(of_window));
        self.sources.clear();
        self.rows.number(used, &mut self.sources);
    }
}

/// Returns the indexes of the columns of expressions.
fn columns<'a>(exprs: impl Iterator<Item = &'a Arc<dyn PhysicalExpr>>) -> BTreeSet<usize> {
    let columns = exprs.flat_map(collect_columns);
    columns.map(|it| it.index()).collect()
}

impl Rows {
    /// Returns the rows of an operator that returns these columns of an origin.
    fn of(origin: Origin, columns: Exprs) -> Rows {
        Rows {
            source: 0,
            schema: origin.schema(),
            origin,
            computed: Vec::new(),
            columns,
            filters: Vec::new(),
            joins: Vec::new(),
            spread: 1,
        }
    }

    /// Returns whether a join repeats them.
    pub(crate) fn are_repeated(&self) -> bool {
        self.joins.iter().any(Join::repeats_rows)
    }

    /// Returns the join whose other rows are those of a source. It may be a join of such other rows.
    fn join_of(&mut self, source: usize) -> Option<&mut Join> {
        let mut joins = self.joins.iter_mut();
        joins.find_map(|join| match join.rows.source == source {
            true => Some(join),
            false => join.rows.join_of(source),
        })
    }

    /// Returns the number of columns of the table.
    pub(crate) fn width(&self) -> usize {
        self.origin.schema().fields().len()
    }

    /// Returns a key as a column of the table whose numbers tell places, `first` the first of this many; `None` if it
    /// is another expression.
    pub(crate) fn key_column(
        &self,
        key: &Arc<dyn PhysicalExpr>,
        first: i64,
        places: u64,
    ) -> Option<KeyColumn> {
        let column = key.downcast_ref::<Column>()?.index();
        (column < self.width()).then_some(KeyColumn {
            column,
            first,
            places,
        })
    }

    /// Returns the indexes of the columns of joins.
    pub(crate) fn joined(&self) -> Range<usize> {
        self.width()..self.schema.fields().len() - self.computed.len()
    }

    /// Returns whether some of the rows are those that a plan returns.
    pub(crate) fn has_plan(&self) -> bool {
        let mut joins = self.joins.iter();
        self.origin.is_plan() || joins.any(|join| join.rows.has_plan())
    }

    /// Returns whether some of the rows are those of a versioned table. An operator of the CPU reads the version that
    /// the table has by then.
    pub(crate) fn has_versions(&self) -> bool {
        let mut joins = self.joins.iter();
        matches!(self.origin, Origin::Table(_)) || joins.any(|join| join.rows.has_versions())
    }

    /// Adds the columns of other rows. Returns the index of the first.
    pub(crate) fn widen(&mut self, other: &Rows, are_nullable: bool) -> Result<usize> {
        let first = self.schema.fields().len();
        let mut fields: Vec<_> = self.schema.fields().iter().cloned().collect();
        for expr in &other.columns {
            let field = expr.return_field(&other.schema).map_err(Reason::of)?;
            let is_nullable = field.is_nullable() || are_nullable;
            fields.push(Arc::new(Field::clone(&field).with_nullable(is_nullable)));
        }
        self.schema = Arc::new(Schema::new(fields));
        Ok(first)
    }

    /// Adds a condition over the columns of the operator.
    pub(crate) fn keep(&mut self, condition: &Arc<dyn PhysicalExpr>) -> Result<()> {
        let condition = over_rows(condition, &self.columns)?;
        let all = split_conjunction(&condition).into_iter();
        self.filters.extend(all.map(Arc::clone));
        Ok(())
    }

    /// Numbers the sources: of these rows, whose columns are used, and of the joins.
    fn number(&mut self, mut used: BTreeSet<usize>, sources: &mut Vec<Arc<Source>>) {
        used.extend(columns(self.filters.iter()));
        used.extend(columns(self.joins.iter().flat_map(Join::own)));
        self.source = sources.len();
        let joined = self.joined();
        let own = used.iter().filter(|column| !joined.contains(column));
        let mut own: Vec<usize> = own.copied().collect();
        if own.is_empty() {
            // The number of rows comes from a column.
            own.extend(self.origin.narrowest());
        }
        sources.push(Arc::new(Source {
            origin: self.origin.clone(),
            columns: own,
            first_computed: joined.end,
            computed: self.computed.clone(),
        }));
        for join in &mut self.joins {
            let end = join.first + join.rows.columns.len();
            let of_join = used.range(join.first..end);
            let of_join = of_join.map(|column| &join.rows.columns[column - join.first]);
            let used = columns(of_join.chain(join.of_rows()));
            join.rows.number(used, sources);
        }
    }
}

/// Returns the index of the column that an expression is.
pub(crate) fn column_of(expr: &Arc<dyn PhysicalExpr>) -> Option<usize> {
    expr.downcast_ref::<Column>().map(Column::index)
}

/// Returns an expression whose columns all begin at `first` as one over columns that begin at 0.
pub(crate) fn shifted(expr: &Arc<dyn PhysicalExpr>, first: usize) -> Result<Arc<dyn PhysicalExpr>> {
    let shifted = Arc::clone(expr).transform_up(|node| {
        Ok(match node.downcast_ref::<Column>() {
            Some(column) => {
                let index = column.index() - first;
                Transformed::yes(Arc::new(Column::new(column.name(), index)) as _)
            }
            None => Transformed::no(node),
        })
    });
    shifted.data().map_err(Reason::of)
}

/// Returns an expression over the columns of an operator as one over those of its rows.
pub(crate) fn over_rows(
    expr: &Arc<dyn PhysicalExpr>,
    columns: &Exprs,
) -> Result<Arc<dyn PhysicalExpr>> {
    let replaced = Arc::clone(expr).transform_down(|node| {
        let Some(column) = node.downcast_ref::<Column>() else {
            return Ok(Transformed::no(node));
        };
        // What replaces a column has columns of the rows, which are none of the operator's.
        let replacement = Arc::clone(&columns[column.index()]);
        Ok(Transformed::new(replacement, true, TreeNodeRecursion::Jump))
    });
    replaced.data().map_err(Reason::of)
}

/// Returns what an operator sorts by, over columns of its rows.
pub(crate) fn sorted_by<'a>(
    by: impl Iterator<Item = &'a PhysicalSortExpr>,
    rows: &Rows,
) -> Result<Vec<PhysicalSortExpr>> {
    let by = by.map(|by| {
        Ok(PhysicalSortExpr {
            expr: over_rows(&by.expr, &rows.columns)?,
            options: by.options,
        })
    });
    by.collect()
}

/// Returns the rows of an operator.
///
/// # Errors
/// Why kernels cannot read them.
pub(crate) fn rows(plan: &Arc<dyn ExecutionPlan>) -> Result<Rows> {
    if let Some(filter) = plan.downcast_ref::<FilterExec>() {
        let mut rows = rows(filter.input())?;
        if filter.fetch().is_some() {
            return Err(Reason::new("a filter with a limit"));
        }
        rows.keep(filter.predicate())?;
        if let Some(kept) = filter.projection() {
            rows.columns = kept
                .iter()
                .map(|it| Arc::clone(&rows.columns[*it]))
                .collect();
        }
        return Ok(rows);
    }
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let mut rows = rows(projection.input())?;
        let exprs = projection.expr().iter();
        let exprs = exprs.map(|it| over_rows(&it.expr, &rows.columns));
        rows.columns = exprs.collect::<Result<_>>()?;
        return Ok(rows);
    }
    if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        return joined(join);
    }
    if let Some(join) = of_all_pairs(plan) {
        return joined(&join?);
    }
    if is_moving(plan) {
        return rows(plan.children()[0]);
    }
    if plan.is::<GpuFragmentExec>() {
        let reason = Reason::new("groups of a GPU are below");
        return Ok(of_plan(plan, reason));
    }
    if let Some(scan) = plan.downcast_ref::<VersionedScan>() {
        return of_table(scan);
    }
    let scan = plan.downcast_ref::<DataSourceExec>();
    let scan = scan.and_then(|it| it.data_source().downcast_ref::<FileScanConfig>());
    let scan = scan.ok_or_else(|| match plan.downcast_ref::<OnCpuExec>() {
        Some(on_cpu) => on_cpu.reason().clone(),
        None => {
            window::reason(plan).unwrap_or_else(|| Reason::new(format!("{} is below", plan.name())))
        }
    })?;
    of_scan(scan)
}

/// Returns the rows of an operator above tables and their joins.
///
/// # Errors
/// Why kernels cannot read them.
pub(crate) fn of_tables(plan: &Arc<dyn ExecutionPlan>) -> Result<Rows> {
    let rows = rows(plan)?;
    match &rows.origin {
        Origin::Plan(_, reason) => Err(reason.clone()),
        Origin::Files(_) | Origin::Table(_) => Ok(rows),
    }
}

/// Returns the rows that a plan returns.
pub(crate) fn of_plan(plan: &Arc<dyn ExecutionPlan>, reason: Reason) -> Rows {
    let columns = all_of(&plan.schema());
    Rows::of(Origin::Plan(Arc::clone(plan), reason), columns)
}

/// Returns all columns of a schema.
fn all_of(schema: &SchemaRef) -> Exprs {
    let columns = schema.fields().iter().enumerate();
    let columns = columns.map(|(index, field)| Arc::new(Column::new(field.name(), index)) as _);
    columns.collect()
}

/// Returns whether an operator returns all rows of its input, in other partitions.
pub(crate) fn is_moving(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let is_all = plan.is::<CoalescePartitionsExec>() && plan.fetch().is_none();
    is_all || plan.is::<RepartitionExec>() || plan.is::<CooperativeExec>()
}

/// Returns a plan without the limits of its filters and joins and of what moves their rows, and the smallest of these
/// limits.
pub(crate) fn without_limits(
    plan: &Arc<dyn ExecutionPlan>,
) -> (Arc<dyn ExecutionPlan>, Option<usize>) {
    let is_known = plan.is::<FilterExec>()
        || plan.is::<ProjectionExec>()
        || plan.is::<CoalescePartitionsExec>()
        || is_moving(plan);
    if let Some(limit) = plan.fetch()
        && let Some(join) = plan.downcast_ref::<HashJoinExec>()
        && let Some(unlimited) = join.with_fetch(None)
    {
        return (unlimited, Some(limit));
    }
    if !is_known {
        return (Arc::clone(plan), None);
    }
    let (below, limit_below) = without_limits(plan.children()[0]);
    if plan.is::<FilterExec>() && limit_below.is_some() {
        return (Arc::clone(plan), None);
    }
    let unlimited = match plan.fetch() {
        Some(_) => plan.with_fetch(None),
        None => Some(Arc::clone(plan)),
    };
    let options = ReplaceChildrenOptions::new(ChildrenPropertiesMode::Keep);
    let unlimited = unlimited.and_then(|it| it.replace_children(vec![below], options).ok());
    match unlimited {
        Some(unlimited) => {
            let limits = plan.fetch().into_iter().chain(limit_below);
            (unlimited, limits.min())
        }
        None => (Arc::clone(plan), None),
    }
}

/// Returns whether a plan has a limit, or below it some operator of a list.
pub(crate) fn is_limited(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.fetch().is_some() || without_limits(plan).1.is_some()
}

fn of_scan(scan: &FileScanConfig) -> Result<Rows> {
    let Some(source) = scan.file_source.downcast_ref::<ParquetSource>() else {
        let text = format!("files of type {}", scan.file_source.file_type());
        return Err(Reason::new(text));
    };
    // No operator tests the conditions again then.
    if source.table_parquet_options().global.pushdown_filters && scan.file_source.filter().is_some()
    {
        return Err(Reason::new(
            "conditions that are tested while files are decoded",
        ));
    }
    if scan.limit.is_some() {
        return Err(Reason::new("a scan with a limit"));
    }
    let schema = scan.file_source.table_schema().table_schema();
    let columns = match scan.file_source.projection() {
        Some(projection) => projection.iter().map(|it| Arc::clone(&it.expr)).collect(),
        None => all_of(schema),
    };
    Ok(Rows::of(Origin::Files(Arc::new(scan.clone())), columns))
}

fn of_table(scan: &VersionedScan) -> Result<Rows> {
    if let Some(reason) = scan.differs() {
        return Err(Reason::new(reason));
    }
    let table = scan.table();
    let all = all_of(&table.schema());
    let read = scan.columns().iter().map(|index| Arc::clone(&all[*index]));
    Ok(Rows::of(Origin::Table(Arc::clone(table)), read.collect()))
}

/// Returns whether the value of an aggregate is its state.
pub(crate) fn is_its_state(function: &AggregateFunctionExpr) -> bool {
    matches!(function.fun().name(), "min" | "max") && !function.is_distinct()
}
