//! Searching: from an expression over fields to the documents that meet it.
//!
//! Every condition is answered by itself, as a count or as a set of documents; sets are combined by the expression.
//! Conditions that a binary search answers are answered at once on the caller's thread; the others become scans, one job
//! a device, all conditions at the same time.

mod combine;
mod gpu;
mod leaf;
mod lookup;
mod pool;
mod scan;
mod sink;
mod values;

use std::sync::Arc;
use std::time::Instant;

use roaring::RoaringBitmap;

use crate::CollectionCache;
use crate::answer::{SearchAnswer, SearchReport};
use crate::error::SearchError;
use crate::field::FieldState;
use crate::numbers::NumberSet;
use crate::request::{Expr, SearchRequest, Want};
use leaf::{Goal, LeafSearch};
use scan::Abandon;

/// Sets made of more rows than this are combined on a thread for long work.
const INLINE_ROWS_MAX: u64 = 65_536;

/// One moment of a collection, shared with it.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) live: NumberSet,
    pub(crate) fields: Vec<Arc<FieldState>>,
}

impl Snapshot {
    fn field(&self, field: usize) -> Result<&Arc<FieldState>, SearchError> {
        let declared = self.fields.len();
        self.fields
            .get(field)
            .ok_or(SearchError::UnknownField { field, declared })
    }
}

/// Answers a request on the collection as it is now.
pub(crate) async fn search(
    collection: &CollectionCache,
    request: SearchRequest,
) -> Result<SearchAnswer, SearchError> {
    let began = Instant::now();
    request.stop.check()?;
    let snapshot = collection.snapshot();
    let search = Search::new(collection, &snapshot, &request)?;
    let mut answer = search.answer().await?;
    answer.report.total_us = micros(began);
    Ok(answer)
}

/// Whole microseconds since `began`.
fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A request on its way to an answer.
struct Search<'a> {
    collection: &'a CollectionCache,
    snapshot: &'a Snapshot,
    request: &'a SearchRequest,
    /// Documents the cache cannot judge.
    residual: RoaringBitmap,
    /// Ends all scans when the search is dropped.
    abandon: Abandon,
}

impl<'a> Search<'a> {
    fn new(
        collection: &'a CollectionCache,
        snapshot: &'a Snapshot,
        request: &'a SearchRequest,
    ) -> Result<Search<'a>, SearchError> {
        let mut residual = RoaringBitmap::new();
        for field in combine::fields(&request.expr, &request.want) {
            let field = snapshot.field(field)?;
            if !field.residual.is_empty() {
                residual |= field.residual.to_bitmap();
            }
        }
        Ok(Search {
            collection,
            snapshot,
            request,
            residual,
            abandon: Abandon::default(),
        })
    }

    async fn answer(self) -> Result<SearchAnswer, SearchError> {
        match self.request.want {
            Want::Count if self.counts_alone() => self.count().await,
            Want::Count => self.numbers(None).await.map(without_numbers),
            Want::Numbers { limit } => self.numbers(limit).await,
            Want::ValueCounts {
                field,
                elements,
                bytes_max,
            } => self.value_counts(field, elements, bytes_max).await,
        }
    }

    /// Whether the count follows from counting rows: one condition, perhaps negated, on a field without arrays.
    fn counts_alone(&self) -> bool {
        let (leaf, _) = strip_not(&self.request.expr);
        match leaf {
            Expr::All => true,
            Expr::Leaf { field, .. } => self.has_no_arrays(*field),
            _ => false,
        }
    }

    fn has_no_arrays(&self, field: usize) -> bool {
        self.snapshot.fields[field].arrays.is_empty()
    }

    async fn count(self) -> Result<SearchAnswer, SearchError> {
        let (expr, negated) = strip_not(&self.request.expr);
        let mut report = SearchReport::default();
        let whole = self.snapshot.live.len();
        let found = match expr {
            Expr::Leaf { .. } => {
                let sinks = self.search_leaves(expr, Goal::Count, &mut report).await?;
                sinks.iter().map(sink::Sink::count).sum()
            }
            _ => whole,
        };
        let count = if negated {
            whole - self.residual.len() - found
        } else {
            found
        };
        Ok(self.finish(count, RoaringBitmap::new(), report))
    }

    async fn numbers(self, limit: Option<usize>) -> Result<SearchAnswer, SearchError> {
        let mut report = SearchReport::default();
        let mut numbers = self.matches(limit, &mut report).await?;
        if let Some(limit) = limit {
            cut(&mut numbers, limit);
        }
        Ok(self.finish(numbers.len(), numbers, report))
    }

    /// The documents that meet the expression, residual ones left out. With a limit, that many at least if there are.
    async fn matches(
        &self,
        limit: Option<usize>,
        report: &mut SearchReport,
    ) -> Result<RoaringBitmap, SearchError> {
        let expr = &self.request.expr;
        let goal = match (expr, limit) {
            // Rows are documents only where no document has several.
            (Expr::Leaf { field, .. }, Some(limit)) if self.has_no_arrays(*field) => {
                Goal::Some(limit)
            }
            _ => Goal::Numbers,
        };
        let sinks = self.search_leaves(expr, goal, report).await?;
        let found: u64 = sinks.iter().map(sink::Sink::count).sum();
        if found <= INLINE_ROWS_MAX {
            return Ok(combine::combine(expr, sinks, &self.snapshot.live) - &self.residual);
        }
        let (expr, live) = (expr.clone(), self.snapshot.live.clone());
        let found = blocking(move || combine::combine(&expr, sinks, &live)).await?;
        Ok(found - &self.residual)
    }

    async fn value_counts(
        self,
        field: usize,
        elements: bool,
        bytes_max: usize,
    ) -> Result<SearchAnswer, SearchError> {
        let mut report = SearchReport::default();
        let numbers = self.matches(None, &mut report).await?;
        let job = values::Counting {
            field: Arc::clone(self.snapshot.field(field)?),
            all: numbers.len() == self.snapshot.live.len(),
            numbers,
            elements,
            bytes_max,
            stop: self.request.stop.clone(),
        };
        let (numbers, values) = blocking(move || job.run()).await??;
        let mut answer = self.finish(numbers.len(), RoaringBitmap::new(), report);
        answer.values = Some(values);
        Ok(answer)
    }

    fn finish(self, count: u64, numbers: RoaringBitmap, report: SearchReport) -> SearchAnswer {
        SearchAnswer {
            count,
            numbers,
            values: None,
            residual: self.residual,
            report,
        }
    }

    /// Searches every condition of `expr`, in order; all scans run at the same time.
    async fn search_leaves(
        &self,
        expr: &Expr,
        goal: Goal,
        report: &mut SearchReport,
    ) -> Result<Vec<sink::Sink>, SearchError> {
        let mut begun = Vec::new();
        for (field, predicate) in combine::leaves(expr) {
            let state = self.snapshot.field(field)?;
            let leaf = LeafSearch {
                shared: &self.collection.shared,
                field,
                state,
                predicate,
                goal,
                stop: &self.request.stop,
                abandon: &self.abandon,
            };
            begun.push(leaf.begin()?);
        }
        let mut sinks = Vec::with_capacity(begun.len());
        for scan in begun {
            sinks.push(scan.finish(report).await?);
        }
        Ok(sinks)
    }
}

/// The expression without the negation around it, and whether there was one.
fn strip_not(expr: &Expr) -> (&Expr, bool) {
    match expr {
        Expr::Not(inner) => {
            let (expr, negated) = strip_not(inner);
            (expr, !negated)
        }
        _ => (expr, false),
    }
}

/// Keeps the least `limit` numbers.
fn cut(numbers: &mut RoaringBitmap, limit: usize) {
    if let Some(first_left_out) = u32::try_from(limit).ok().and_then(|n| numbers.select(n)) {
        numbers.remove_range(first_left_out..);
    }
}

fn without_numbers(mut answer: SearchAnswer) -> SearchAnswer {
    answer.numbers = RoaringBitmap::new();
    answer
}

/// Runs work that may take long on a thread for that.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SearchError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| SearchError::Panicked)
}
