//! The rows of a query, as they are computed.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::error::Result as DataFusionResult;
use datafusion::execution::{SendableRecordBatchStream, SessionState, TaskContext};
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_plan::placeholder_row::PlaceholderRowExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::scalar::ScalarValue;
use forebay_memory::{FREE_BYTES, Share};
use futures_util::future::BoxFuture;
use futures_util::stream::Peekable;
use futures_util::{FutureExt, StreamExt};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, block_in_place};

use crate::activity::{Run, rows_read};
use crate::copy::CopyOptions;
use crate::engine::{Shared, Tables};
use crate::error::{Code, Result, SqlError};
use crate::gpu::PlanAgain;
use crate::lengths::batch_bytes;
use crate::memory::ROOM_TIMEOUT;
use crate::names;
use crate::physical::{Basis, Physical};
use crate::planned::Planned;
use crate::sized;
use crate::source::{as_user, of_this_user};
use crate::stop::Stop;

/// Maximum bytes that a function returns while a query is planned.
const PLANNED_BYTES: usize = 1 << 10;

/// Maximum number of batches that are returned at once when a query begins, one of which may be the end.
const FIRST_BATCHES_MAX: usize = 2;

/// Number of batches of a query that are in memory together: the last that was returned, one that waits, and the one
/// behind it.
const BATCHES_TOGETHER: usize = 3;

/// The rows of a query. Dropping them ends the query.
#[derive(Debug)]
pub struct Rows {
    schema: SchemaRef,
    verb: &'static str,
    source: Source,
    deadline: Option<Instant>,
    /// How `COPY` writes the rows.
    copy: Option<Box<CopyOptions>>,
    /// The run of the statement whose rows these are.
    run: Option<Run>,
}

#[derive(Debug)]
enum Source {
    Query {
        plan: Arc<dyn ExecutionPlan>,
        /// The first rows, if they were there when the query began.
        first: VecDeque<Result<RecordBatch>>,
        batches: mpsc::Receiver<Result<RecordBatch>>,
        /// `None` after the last row.
        task: Option<Running<()>>,
        /// The memory of the batches that are there, also if the client takes none.
        share: Arc<Share>,
    },
    Batches {
        batches: VecDeque<RecordBatch>,
        /// The memory of the batches.
        _share: Option<Share>,
    },
}

/// A query to run.
#[derive(Debug)]
pub(crate) struct Query {
    pub(crate) planned: Arc<Planned>,
    /// Values of the parameters; `None` if its physical plan is not to be kept.
    pub(crate) parameters: Option<Vec<ScalarValue>>,
    /// The plan with these values, if there are parameters.
    pub(crate) bound: Option<LogicalPlan>,
    /// Whether it was checked that the tables are those of the plan.
    pub(crate) is_current: bool,
}

impl Query {
    /// Returns the plan.
    pub(crate) fn plan(&self) -> &LogicalPlan {
        self.bound.as_ref().unwrap_or(&self.planned.plan)
    }

    /// Returns the optimized plan.
    ///
    /// # Errors
    /// If the query cannot be optimized.
    fn optimized(&self, state: &SessionState) -> Result<LogicalPlan> {
        // Plans are kept, so that long values are computed when they run.
        sized::limited_to(PLANNED_BYTES, || match &self.bound {
            None => self.planned.optimized(state),
            Some(plan) => Ok(state.optimize(plan)?),
        })
    }
}

/// A task that is aborted when dropped. What computes without waiting then ends at its next check.
#[derive(Debug)]
pub(crate) struct Running<T>(JoinHandle<T>, #[expect(dead_code, reason = "dropped")] Stop);

impl<T: Send + 'static> Running<T> {
    /// Starts work that computes for long without waiting, such as planning. It has a thread of its own, so that
    /// queries go on.
    pub(crate) fn start_blocking(
        threads: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let (runtime, stop) = (threads.clone(), Stop::default());
        let work = stop.scope(work);
        Running(threads.spawn_blocking(move || runtime.block_on(work)), stop)
    }

    pub(crate) fn start(
        threads: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let stop = Stop::default();
        Running(threads.spawn(stop.scope(work)), stop)
    }

    /// Starts work as [`start`](Running::start) does. What it does before it first waits is done here: that is little,
    /// and a task begins only after a thread has woken.
    pub(crate) fn start_here(
        threads: &Handle,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Running<T> {
        let stop = Stop::default();
        let mut work = stop.scope(work).boxed();
        let first = polled(threads, &mut work);
        let rest = async move {
            match first {
                Ok(Some(done)) => done,
                Ok(None) => work.await,
                Err(panic) => resume_unwind(panic),
            }
        };
        Running(threads.spawn(rest), stop)
    }

    /// Waits for the end of the task.
    ///
    /// # Errors
    /// If the task panicked.
    pub(crate) async fn end(&mut self) -> Result<T> {
        (&mut self.0).await.map_err(|error| {
            tracing::error!(%error, "a query panicked");
            let message = "the statement failed because of a defect of the server, which logged it";
            SqlError::new(Code::InternalError, message)
        })
    }
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Returns the result of `work` if it need not wait. It may read files: another thread takes the tasks of this one
/// meanwhile.
///
/// # Errors
/// What `work` panicked with.
pub(crate) fn polled<T>(
    threads: &Handle,
    work: &mut BoxFuture<'_, T>,
) -> std::thread::Result<Option<T>> {
    let mut poll = || {
        let _of_threads = threads.enter();
        catch_unwind(AssertUnwindSafe(|| work.now_or_never()))
    };
    let flavor = Handle::try_current().map(|it| it.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) => block_in_place(poll),
        _ => poll(),
    }
}

/// Returns the result of `work`, or an error if it takes until `deadline`.
pub(crate) async fn within<T>(
    deadline: Option<Instant>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let Some(deadline) = deadline else {
        return work.await;
    };
    match tokio::time::timeout_at(deadline.into(), work).await {
        Ok(result) => result,
        Err(_) => Err(SqlError::new(
            Code::QueryCanceled,
            "canceling statement due to statement timeout",
        )),
    }
}

impl Rows {
    /// Starts a query.
    ///
    /// # Errors
    /// If the query cannot be planned, or fails before its first row.
    pub(crate) async fn of_query(
        tables: &Tables,
        user: &str,
        state: Arc<SessionState>,
        query: Query,
        verb: &'static str,
    ) -> Result<Rows> {
        // One batch waits while the next is computed.
        let (sender, batches) = mpsc::channel(1);
        let (start, started) = oneshot::channel();
        let shared = Arc::clone(tables.shared());
        let runs_again = shared.plans.has_physical(&query.planned);
        let share = Arc::new(shared.memory.share());
        let covered = (sender, Arc::clone(&share));
        let work = run(shared, state, Arc::new(query), start, covered);
        let work = as_user(user.to_owned(), work);
        let mut task = match runs_again {
            true => Running::start_here(tables.threads(), work),
            false => Running::start(tables.threads(), work),
        };
        let Ok(started) = started.await else {
            task.end().await?;
            return Err(SqlError::new(
                Code::InternalError,
                "a query ended before it began",
            ));
        };
        let Started {
            plan,
            first,
            are_all,
        } = started?;
        Ok(Rows {
            schema: names::shown(&plan.schema()),
            verb,
            source: Source::Query {
                plan,
                first,
                batches,
                task: (!are_all).then_some(task),
                share,
            },
            deadline: None,
            copy: None,
            run: None,
        })
    }

    /// Returns rows that are there already.
    pub(crate) fn of_batches(
        schema: SchemaRef,
        batches: Vec<RecordBatch>,
        verb: &'static str,
        share: Option<Share>,
    ) -> Rows {
        Rows {
            schema,
            verb,
            source: Source::Batches {
                batches: batches.into(),
                _share: share,
            },
            deadline: None,
            copy: None,
            run: None,
        }
    }

    #[must_use]
    pub(crate) fn until(mut self, deadline: Option<Instant>) -> Rows {
        self.deadline = deadline;
        self
    }

    /// Makes the rows those of a statement that runs.
    #[must_use]
    pub(crate) fn of_run(mut self, run: Run) -> Rows {
        if let Source::Query { plan, .. } = &self.source {
            run.set_plan(plan);
        }
        self.run = Some(run);
        self
    }

    /// Makes the rows those of a `COPY`.
    #[must_use]
    pub(crate) fn copied(mut self, options: CopyOptions) -> Rows {
        self.copy = Some(Box::new(options));
        self
    }

    /// Returns how the rows are written as a file; `None` if they are not those of `COPY ... TO STDOUT`.
    pub fn copy_options(&self) -> Option<&CopyOptions> {
        self.copy.as_deref()
    }

    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
    }

    /// Returns the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the tag that tells clients that `count` rows were sent.
    pub fn tag(&self, count: u64) -> String {
        match self.verb {
            verb @ ("SELECT" | "FETCH" | "COPY") => format!("{verb} {count}"),
            verb => verb.to_owned(),
        }
    }

    /// Returns the next rows; `None` after the last. Can be dropped and called again.
    ///
    /// # Errors
    /// If the query fails, its timeout ends, or it is cancelled.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
        let next = within(self.deadline, self.source.next());
        let Some(run) = &mut self.run else {
            return next.await;
        };
        let next = run.part(next).await?;
        match &next {
            Some(batch) => run.add_rows(batch.num_rows()),
            None => run.done(),
        }
        Ok(next)
    }

    /// Returns whether there is one row, of literals alone.
    pub(crate) fn are_literals(&self) -> bool {
        let Source::Query { plan, .. } = &self.source else {
            return false;
        };
        let Some(projection) = plan.downcast_ref::<ProjectionExec>() else {
            return false;
        };
        let mut columns = projection.expr().iter();
        projection.input().is::<PlaceholderRowExec>()
            && columns.all(|column| column.expr.is::<Literal>())
    }

    /// Returns the number of rows that were read from tables so far.
    pub fn rows_scanned(&self) -> u64 {
        match &self.source {
            Source::Query { plan, .. } => rows_read(plan),
            Source::Batches { .. } => 0,
        }
    }
}

impl Source {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        match self {
            Source::Batches { batches, .. } => Ok(batches.pop_front()),
            Source::Query {
                first,
                batches,
                task,
                share,
                ..
            } => {
                if let Some(batch) = first.pop_front() {
                    return batch.map(Some);
                }
                let Some(running) = task else {
                    share.shrink_to(0);
                    return Ok(None);
                };
                if let Some(batch) = batches.recv().await {
                    return batch.map(Some);
                }
                share.shrink_to(0);
                let ended = running.end().await;
                *task = None;
                ended.map(|()| None)
            }
        }
    }
}

/// Takes the memory of the batches of a query that are in memory together with `batch`.
///
/// # Errors
/// If there is no room.
async fn cover(share: &Share, batch: &RecordBatch) -> Result<()> {
    let bytes = batch_bytes(batch).saturating_mul(BATCHES_TOGETHER);
    let more = bytes.saturating_sub(share.bytes() as usize);
    if more <= FREE_BYTES || share.grow_if_room(more) {
        return Ok(());
    }
    let grown = share.grow_within(more, ROOM_TIMEOUT).await;
    grown.map_err(|full| SqlError::new(Code::OutOfMemory, full.to_string()))
}

/// What a client waits for first.
struct Started {
    plan: Arc<dyn ExecutionPlan>,
    /// The rows that are there.
    first: VecDeque<Result<RecordBatch>>,
    /// Whether these are all.
    are_all: bool,
}

/// A query that began.
struct Begun {
    plan: Arc<dyn ExecutionPlan>,
    rows: Peekable<SendableRecordBatchStream>,
    /// Whether the first rows were computed.
    has_first: bool,
    /// What a plan was made for that may be kept.
    basis: Option<Basis>,
}

/// Begins a query with the physical plan that is kept for it; `None` if there is none, or the GPU does not run it.
///
/// # Errors
/// If the query fails before its first row.
async fn begun_again(
    shared: &Shared,
    state: &Arc<SessionState>,
    query: &Query,
) -> Result<Option<Begun>> {
    let (plans, planned) = (&shared.plans, &query.planned);
    if !plans.has_physical(planned) {
        return Ok(None);
    }
    let Some(basis) = Basis::new(query, state)? else {
        return Ok(None);
    };
    if !query.is_current && !planned.is_current().await {
        return Ok(None);
    }
    let Some(physical) = plans.physical(planned, &basis) else {
        return Ok(None);
    };
    let Ok(plan) = physical.renewed() else {
        return Ok(None);
    };
    let Ok(rows) = execute_stream(Arc::clone(&plan), context_again(state)) else {
        plans.forget_physical(planned, &basis);
        return Ok(None);
    };
    let mut rows = rows.peekable();
    if let Some(Err(error)) = Pin::new(&mut rows).peek().await
        && PlanAgain::may_help(error)
    {
        plans.forget_physical(planned, &basis);
        return Ok(None);
    }
    shared.activity.count_plan_again();
    Ok(Some(Begun {
        plan,
        rows,
        has_first: true,
        basis: physical.has_subqueries.then_some(basis),
    }))
}

impl Begun {
    /// Returns the rows that are there, for which the client's thread is then woken once.
    fn started(&mut self) -> Started {
        let mut started = Started {
            plan: Arc::clone(&self.plan),
            first: VecDeque::new(),
            are_all: false,
        };
        if !self.has_first {
            return started;
        }
        for _ in 0..FIRST_BATCHES_MAX {
            match self.rows.next().now_or_never() {
                Some(Some(batch)) => {
                    started.are_all = batch.is_err();
                    if started.are_all {
                        self.basis = None;
                    }
                    started.first.push_back(shown(batch));
                }
                Some(None) => started.are_all = true,
                None => break,
            }
            if started.are_all {
                break;
            }
        }
        started
    }

    /// Keeps the plan if that is good for later runs. All rows have been read.
    fn keep(&mut self, shared: &Shared, query: &Query) {
        if let Some(basis) = self.basis.take()
            && let Some(physical) = Physical::new(basis, &self.plan)
        {
            shared.plans.put_physical(&query.planned, physical);
        }
    }
}

/// Returns rows as clients see them.
fn shown(batch: DataFusionResult<RecordBatch>) -> Result<RecordBatch> {
    batch.map_err(SqlError::from).and_then(names::shown_rows)
}

/// Returns the context of a plan that runs again. Plans name functions themselves, so that the copies of all that the
/// session has, as [`SessionState::task_ctx`] makes them, are not needed.
fn context_again(state: &SessionState) -> Arc<TaskContext> {
    Arc::new(TaskContext::new(
        None,
        state.session_id().to_owned(),
        state.config().clone(),
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        HashMap::new(),
        Arc::clone(state.runtime_env()),
    ))
}

/// Returns the physical plan of a query.
///
/// # Errors
/// If the query cannot be planned.
pub(crate) async fn physical_plan(
    state: &SessionState,
    query: &Query,
) -> Result<Arc<dyn ExecutionPlan>> {
    let plan = query.optimized(state)?;
    let planner = state.query_planner();
    Ok(planner.create_physical_plan(&plan, state).await?)
}

/// Plans a query and begins it.
///
/// # Errors
/// If the query cannot be planned.
async fn begun(state: &Arc<SessionState>, query: &Arc<Query>) -> Result<Begun> {
    let (of_plan, query) = (Arc::clone(state), Arc::clone(query));
    let planning = async move {
        let plan = physical_plan(&of_plan, &query).await?;
        Ok::<_, SqlError>((plan, Basis::new(&query, &of_plan)?))
    };
    let planning = of_this_user(planning.boxed());
    let (plan, basis) = Running::start_blocking(&Handle::current(), planning)
        .end()
        .await??;
    let rows = execute_stream(Arc::clone(&plan), state.task_ctx())?;
    Ok(Begun {
        plan,
        rows: rows.peekable(),
        has_first: false,
        basis,
    })
}

/// Plans and runs a query on this task's thread, and keeps its physical plan if that is good for later runs.
async fn run(
    shared: Arc<Shared>,
    state: Arc<SessionState>,
    query: Arc<Query>,
    start: oneshot::Sender<Result<Started>>,
    (batches, share): (mpsc::Sender<Result<RecordBatch>>, Arc<Share>),
) {
    let started = match begun_again(&shared, &state, &query).await {
        Ok(None) => begun(&state, &query).await,
        Ok(Some(begun)) => Ok(begun),
        Err(error) => Err(error),
    };
    let mut begun = match started {
        Ok(begun) => begun,
        Err(error) => {
            let _ = start.send(Err(error));
            return;
        }
    };
    let started = begun.started();
    for batch in started.first.iter().flatten() {
        if let Err(error) = cover(&share, batch).await {
            let _ = start.send(Err(error));
            return;
        }
    }
    let are_all = started.are_all;
    if are_all {
        // The client may run the statement again when it has the rows.
        begun.keep(&shared, &query);
    }
    let _ = start.send(Ok(started));
    while !are_all && let Some(batch) = begun.rows.next().await {
        let mut batch = shown(batch);
        if let Ok(there) = &batch
            && let Err(error) = cover(&share, there).await
        {
            batch = Err(error);
        }
        let is_last = batch.is_err();
        if batches.send(batch).await.is_err() || is_last {
            return;
        }
    }
    begun.keep(&shared, &query);
}
