//! Searching: finds the documents that meet an expression over cached fields.
//!
//! Each condition is answered separately, as a count or as a set of documents. The sets are combined as they arrive, so
//! that a search holds few of them at a time. Conditions that a few binary searches can answer are answered at once on
//! the caller's thread. The others become scans, with one job for each device. Up to [`LEAVES_IN_FLIGHT`] conditions
//! are scanned at a time.

mod combine;
mod gpu;
mod leaf;
mod lookup;
mod pool;
mod scan;
mod sink;
mod threads;
mod values;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use forebay_memory::{Account, Share};
use roaring::RoaringBitmap;

use crate::CollectionCache;
use crate::answer::{SearchAnswer, SearchReport};
use crate::error::SearchError;
use crate::field::FieldState;
use crate::numbers::NumberSet;
use crate::request::{Expr, Predicate, SearchRequest, Want};
use combine::{Combination, Step};
use leaf::{Begun, Goal, LeafSearch};
use scan::Abandon;
use sink::Sink;

/// Maximum rows of a set that is combined on the caller's thread. Larger sets are combined on a thread for long work.
const INLINE_ROWS_MAX: u64 = 65_536;

/// Maximum conditions of one search that are scanned at a time: as many as one pass of a GPU takes.
const LEAVES_IN_FLIGHT: usize = 32;
/// Maximum bytes of a scan's matches, or of an answer, that are not charged to the memory account.
const FREE_BYTES_MAX: usize = 64 << 10;

/// The state of a collection at one moment. Shares its data with the collection.
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

/// Answers a request on a snapshot of the collection.
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

/// Returns the whole microseconds since `began`.
fn micros(began: Instant) -> u64 {
    u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// A search in progress.
struct Search<'a> {
    collection: &'a CollectionCache,
    snapshot: &'a Snapshot,
    request: &'a SearchRequest,
    /// Documents that the cache cannot judge.
    recheck: RoaringBitmap,
    /// Ends all scans when the search is dropped.
    abandon: Abandon,
}

impl<'a> Search<'a> {
    fn new(
        collection: &'a CollectionCache,
        snapshot: &'a Snapshot,
        request: &'a SearchRequest,
    ) -> Result<Search<'a>, SearchError> {
        let mut recheck = RoaringBitmap::new();
        for field in combine::fields(&request.expr, &request.want) {
            let field = snapshot.field(field)?;
            if !field.recheck.is_empty() {
                recheck |= field.recheck.to_bitmap();
            }
        }
        Ok(Search {
            collection,
            snapshot,
            request,
            recheck,
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

    /// Returns whether documents can be counted by counting rows, without collecting document numbers. This is true if
    /// the expression has at most one condition, and its field has no arrays.
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
            Expr::Leaf { field, predicate } => {
                let leaves = vec![(*field, predicate)];
                let mut leaves = Leaves::new(&self, leaves, Goal::Count);
                leaves.next(&mut report).await?.0.count()
            }
            _ => whole,
        };
        let count = if negated {
            whole - self.recheck.len() - found
        } else {
            found
        };
        self.finish(count, RoaringBitmap::new(), report)
    }

    async fn numbers(self, limit: Option<usize>) -> Result<SearchAnswer, SearchError> {
        let mut report = SearchReport::default();
        let mut numbers = self.matches(limit, &mut report).await?;
        if let Some(limit) = limit {
            cut(&mut numbers, limit);
        }
        self.finish(numbers.len(), numbers, report)
    }

    /// Returns the documents that meet the expression, without the documents to recheck. With a limit, may stop once
    /// that many documents are found.
    async fn matches(
        &self,
        limit: Option<usize>,
        report: &mut SearchReport,
    ) -> Result<RoaringBitmap, SearchError> {
        let expr = &self.request.expr;
        let goal = match (expr, limit) {
            // The number of matching rows is the number of documents only if no document has several rows.
            (Expr::Leaf { field, .. }, Some(limit)) if self.has_no_arrays(*field) => {
                Goal::AtLeast(limit)
            }
            _ => Goal::Numbers,
        };
        let parts = combine::parts(expr);
        let leaves = parts.iter().filter_map(|part| part.leaf).collect();
        let mut leaves = Leaves::new(self, leaves, goal);
        let mut combination = Combination::new(self.snapshot.live.clone());
        for part in parts {
            // A condition's reservation in the memory account is released once its set has been combined.
            let (found, _held) = match part.leaf {
                Some(_) => {
                    let (found, held) = leaves.next(report).await?;
                    (Some(found), Some(held))
                }
                None => (None, None),
            };
            combination = combined(combination, found, part.then).await?;
        }
        Ok(combination.finish() - &self.recheck)
    }

    async fn value_counts(
        self,
        field: usize,
        elements: bool,
        bytes_max: usize,
    ) -> Result<SearchAnswer, SearchError> {
        let mut report = SearchReport::default();
        let numbers = self.matches(None, &mut report).await?;
        let held = Arc::new(self.memory().share());
        let job = values::Counting {
            field: Arc::clone(self.snapshot.field(field)?),
            all: numbers.len() == self.snapshot.live.len(),
            numbers,
            elements,
            bytes_max,
            stop: self.request.stop.clone(),
            held: Arc::clone(&held),
        };
        let (numbers, values) = blocking(move || job.run()).await??;
        let mut answer = self.finish(numbers.len(), RoaringBitmap::new(), report)?;
        answer.values = Some(values);
        answer.held = Some(held);
        Ok(answer)
    }

    /// Builds a program's tables for GPUs, if that takes long and a GPU holds rows to search. Runs on a thread for
    /// long work, which checks the request's cancellation token.
    async fn make_device_form(
        &self,
        field: usize,
        predicate: &Predicate,
    ) -> Result<(), SearchError> {
        let Predicate::Program(program) = predicate else {
            return Ok(());
        };
        if !program.lacks_large_device_form() {
            return Ok(());
        }
        let directory = &self.snapshot.field(field)?.directory;
        let positions = directory.positions(program.value_prefix());
        if directory.device_partitions(positions).gpus.is_empty() {
            return Ok(());
        }
        let stop = &self.request.stop;
        let (program, until) = (Arc::clone(program), stop.clone());
        let make = move || program.make_device_form(&until).map(|_made| ());
        let made = threads::until_stopped(stop, threads::spawn(make)).await?;
        Ok(made.map_err(|_| SearchError::Panicked)??)
    }

    fn memory(&self) -> &Account {
        &self.collection.shared.settings.memory
    }

    fn finish(
        self,
        count: u64,
        numbers: RoaringBitmap,
        report: SearchReport,
    ) -> Result<SearchAnswer, SearchError> {
        let held = self.held_by(&numbers)?;
        Ok(SearchAnswer {
            count,
            numbers,
            values: None,
            recheck: self.recheck,
            report,
            held,
        })
    }

    /// Charges a large answer to the memory account. Returns `None` for a small answer.
    fn held_by(&self, numbers: &RoaringBitmap) -> Result<Option<Arc<Share>>, SearchError> {
        let bytes = numbers.serialized_size();
        if bytes <= FREE_BYTES_MAX {
            return Ok(None);
        }
        let share = self.memory().share();
        share.try_grow(bytes)?;
        Ok(Some(Arc::new(share)))
    }
}

/// The conditions of a search. Several are scanned at a time; results are returned in order.
struct Leaves<'s> {
    search: &'s Search<'s>,
    waiting: std::vec::IntoIter<(usize, &'s Predicate)>,
    begun: VecDeque<Begun>,
    goal: Goal,
}

impl<'s> Leaves<'s> {
    fn new(search: &'s Search<'s>, leaves: Vec<(usize, &'s Predicate)>, goal: Goal) -> Leaves<'s> {
        Leaves {
            search,
            waiting: leaves.into_iter(),
            begun: VecDeque::new(),
            goal,
        }
    }

    /// Returns the result of the next condition, and its reservation in the memory account.
    async fn next(&mut self, report: &mut SearchReport) -> Result<(Sink, Arc<Share>), SearchError> {
        self.search.request.stop.check()?;
        while self.begun.len() < LEAVES_IN_FLIGHT
            && let Some((field, predicate)) = self.waiting.next()
        {
            self.search.make_device_form(field, predicate).await?;
            let begun = self.begin(field, predicate)?;
            self.begun.push_back(begun);
        }
        let begun = self.begun.pop_front();
        begun
            .expect("each condition is requested only once")
            .finish(report)
            .await
    }

    fn begin(&self, field: usize, predicate: &Predicate) -> Result<Begun, SearchError> {
        let search = self.search;
        let leaf = LeafSearch {
            shared: &search.collection.shared,
            field,
            state: search.snapshot.field(field)?,
            documents: search.snapshot.live.len(),
            predicate,
            goal: self.goal,
            stop: &search.request.stop,
            abandon: &search.abandon,
            held: Arc::new(search.memory().share()),
        };
        leaf.begin()
    }
}

/// Adds the result of a condition to the combination. Large results are added on a thread for long work.
async fn combined(
    mut combination: Combination,
    found: Option<Sink>,
    then: Vec<Step>,
) -> Result<Combination, SearchError> {
    if found.as_ref().map_or(0, Sink::count) <= INLINE_ROWS_MAX {
        combination.add(found, &then);
        return Ok(combination);
    }
    blocking(move || {
        combination.add(found, &then);
        combination
    })
    .await
}

/// Strips outer negations. Returns the inner expression, and whether the whole expression is the negation of the inner
/// one.
fn strip_not(expr: &Expr) -> (&Expr, bool) {
    match expr {
        Expr::Not(inner) => {
            let (expr, negated) = strip_not(inner);
            (expr, !negated)
        }
        _ => (expr, false),
    }
}

/// Keeps the lowest `limit` numbers.
fn cut(numbers: &mut RoaringBitmap, limit: usize) {
    if let Some(first_left_out) = u32::try_from(limit).ok().and_then(|n| numbers.select(n)) {
        numbers.remove_range(first_left_out..);
    }
}

fn without_numbers(mut answer: SearchAnswer) -> SearchAnswer {
    answer.numbers = RoaringBitmap::new();
    answer
}

/// Runs long work on a separate thread.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SearchError> {
    threads::spawn(work)
        .await
        .map_err(|_| SearchError::Panicked)
}
