//! Running plans: counting, finding, and counting values.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_documents_cache::{
    Expr, Predicate, SearchAnswer, SearchError, SearchReport, SearchRequest, ValueCount,
    ValueCounts, Want,
};
use forebay_documents_query::Code;
use forebay_memory::Share;
use roaring::RoaringBitmap;

use super::found::{Found, Numbered, Reader};
use super::plan::SearchPlan;
use super::report::{Access, ExecutionReport, Tally};
use crate::error::CommandError;
use crate::places::aside;
use crate::streams::Stream;

/// Which of its matches the caller of a search pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All, or nobody knows how many.
    #[default]
    All,
    /// At most so many, those with the lowest record numbers: pages of one query fit together.
    First(u64),
    /// At most so many, whichever they are.
    Any(u64),
}

impl Wanted {
    /// How many at most, if that is known.
    pub fn limit(self) -> Option<u64> {
        match self {
            Wanted::All => None,
            Wanted::First(limit) | Wanted::Any(limit) => Some(limit),
        }
    }

    /// How many the cache may stop at.
    fn any(self) -> Option<usize> {
        match self {
            Wanted::Any(limit) if limit <= ANY_MAX => usize::try_from(limit).ok(),
            _ => None,
        }
    }
}

/// The most matches that a search ends at; they are read at once.
const ANY_MAX: u64 = 1024;

/// At most the collection's documents divided by this are tried before a search.
const PROBED_PART: u64 = 16;

/// What was read of the collection before a search.
#[derive(Default)]
struct Probed {
    /// The documents that match.
    gathered: VecDeque<Numbered>,
    /// The first record number that was not read.
    next: u32,
    /// The documents read.
    tally: Arc<Tally>,
}

/// The documents to be read after a search, and how.
struct Reading {
    stage: &'static str,
    wanted: RoaringBitmap,
    access: Access,
    /// What the search holds of the account.
    held: Option<Arc<Share>>,
}

/// What is to be done with arrays of strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// Their elements count as values, as in `distinct`.
    Unwind,
    /// Each is a value of its own, as in `$group`: its document is among the others.
    Whole,
}

/// The values of a cached field among the documents that match.
pub struct Values {
    /// Distinct strings in byte order, and how many documents hold each.
    pub strings: Vec<ValueCount>,
    /// Documents in which the field is null.
    pub null: u64,
    /// Documents without the field.
    pub missing: u64,
    /// The documents with other values, which the caller reads and takes into account.
    pub others: Found,
}

impl SearchPlan {
    /// Counts the documents that match.
    ///
    /// # Errors
    /// When the operation is stopped, or the store cannot be read.
    pub async fn count(&self, stop: &Stop) -> Result<u64, CommandError> {
        let want = if self.is_exact() {
            Want::Count
        } else {
            Want::Numbers { limit: None }
        };
        let answer = self.search(want, stop).await?;
        let (counted, doubtful, access) = self.judge(answer.count, &answer);
        let figures = (answer.count, answer.residual.len());
        let reading = Reading {
            stage: "CACHE_COUNT",
            wanted: doubtful,
            access,
            held: answer.held,
        };
        let mut found = self.read(Probed::default(), reading, answer.report, figures);
        Ok(counted + count_aside(&mut found, stop).await?)
    }

    /// What of a count is certain, which documents have to be read for the rest, and how.
    fn judge(&self, count: u64, answer: &SearchAnswer) -> (u64, RoaringBitmap, Access) {
        if self.is_exact() {
            let access = if answer.residual.is_empty() {
                Access::None
            } else {
                Access::Fetch
            };
            return (count, answer.residual.clone(), access);
        }
        let candidates = &answer.numbers | &answer.residual;
        let access = self.access(candidates.len());
        (0, candidates, access)
    }

    /// Finds the documents that match, in the order of their record numbers.
    ///
    /// If few are wanted and the search would look at every value, the first documents of the collection are tried
    /// before. If it does not matter which, and the cache judges the whole filter, the search ends when it has enough.
    ///
    /// # Errors
    /// When the operation is stopped, or the store cannot be read.
    pub async fn find(&self, wanted: Wanted, stop: &Stop) -> Result<Found, CommandError> {
        let probed = self.probe(wanted.limit(), stop).await?;
        if probed.gathered.len() as u64 >= wanted.limit().unwrap_or(u64::MAX) {
            return Ok(self.found_by_probe(probed));
        }
        match wanted.any().filter(|_| self.is_exact()) {
            Some(limit) => self.find_any(probed, limit, stop).await,
            None => self.find_all(probed, stop).await,
        }
    }

    /// Finds `limit` documents, and reads them: one that was changed since the search leaves too few, though others
    /// may match.
    async fn find_any(
        &self,
        probed: Probed,
        limit: usize,
        stop: &Stop,
    ) -> Result<Found, CommandError> {
        let some = Want::Numbers { limit: Some(limit) };
        let answer = self.search(some, stop).await?;
        let were_all = answer.numbers.len() < limit as u64;
        let mut found = self.found_by_search(probed, answer);
        if were_all {
            return Ok(found);
        }
        let bytes_max = self.search.settings.probe_bytes_max;
        let is_enough = match found.is_short() {
            true => found.gather_first(limit, bytes_max, stop)?,
            false => aside(stop, || found.gather_first(limit, bytes_max, stop)).await??,
        };
        match is_enough {
            true => Ok(found),
            false => self.find_all(Probed::default(), stop).await,
        }
    }

    async fn find_all(&self, probed: Probed, stop: &Stop) -> Result<Found, CommandError> {
        let answer = self.search(Want::Numbers { limit: None }, stop).await?;
        Ok(self.found_by_search(probed, answer))
    }

    fn found_by_search(&self, probed: Probed, answer: SearchAnswer) -> Found {
        let figures = (answer.count, answer.residual.len());
        let mut candidates = answer.numbers | answer.residual;
        candidates.remove_range(..probed.next);
        let access = self.access(candidates.len());
        let reading = Reading {
            stage: "CACHE_SEARCH",
            wanted: candidates,
            access,
            held: answer.held,
        };
        self.read(probed, reading, answer.report, figures)
    }

    /// Tries the first documents of the collection, where they are likely to be all that is asked for.
    async fn probe(&self, limit: Option<u64>, stop: &Stop) -> Result<Probed, CommandError> {
        let settings = &self.search.settings;
        let documents = self.search.store.document_count() / PROBED_PART;
        let documents = documents.min(settings.probe_documents_max);
        let Some(limit) = limit.filter(|limit| *limit <= documents && !is_narrow(&self.expr))
        else {
            return Ok(Probed::default());
        };
        let tally = Arc::new(Tally::default());
        let reader = Reader {
            store: &self.search.store,
            filter: &self.filter,
            tally: &tally,
            stop,
        };
        let probe = || reader.probe(limit, documents, settings.probe_bytes_max);
        let (gathered, next) = match self.filter.is_cheap() {
            true => probe()?,
            false => aside(stop, probe).await??,
        };
        let next = u32::try_from(next).unwrap_or(u32::MAX);
        Ok(Probed {
            gathered,
            next,
            tally,
        })
    }

    fn found_by_probe(&self, probed: Probed) -> Found {
        let access = Access::Probe {
            documents: probed.tally.examined(),
        };
        let reading = Reading {
            stage: "CACHE_SEARCH",
            wanted: RoaringBitmap::new(),
            access,
            held: None,
        };
        self.read(probed, reading, SearchReport::default(), (0, 0))
    }

    /// Counts the values of the field that the plan was made for, among the documents that match.
    ///
    /// `bytes_max` bounds the memory of the distinct strings.
    ///
    /// # Errors
    /// When the operation is stopped, or the values take too much memory.
    pub async fn values(
        &self,
        arrays: Arrays,
        bytes_max: usize,
        stop: &Stop,
    ) -> Result<Values, CommandError> {
        let field = self.values.unwrap_or_default();
        let elements = arrays == Arrays::Unwind;
        let answer = self
            .search(
                Want::ValueCounts {
                    field,
                    elements,
                    bytes_max,
                },
                stop,
            )
            .await?;
        let figures = (answer.count, answer.residual.len());
        let counts = answer.values.unwrap_or_default();
        let others = others(&counts, arrays) | answer.residual;
        let access = if others.is_empty() {
            Access::None
        } else {
            self.access(others.len())
        };
        let ValueCounts {
            values: strings,
            null,
            missing,
            ..
        } = counts;
        let reading = Reading {
            stage: "CACHE_DISTINCT",
            wanted: others,
            access,
            held: answer.held,
        };
        let others = self.read(Probed::default(), reading, answer.report, figures);
        Ok(Values {
            strings,
            null,
            missing,
            others,
        })
    }

    async fn search(&self, want: Want, stop: &Stop) -> Result<SearchAnswer, CommandError> {
        self.generation.count_search(&self.summary);
        let request = SearchRequest {
            expr: self.expr.clone(),
            want,
            stop: stop.clone(),
        };
        self.generation
            .values
            .search(request)
            .await
            .map_err(search_error)
    }

    /// How `candidates` documents are best read.
    fn access(&self, candidates: u64) -> Access {
        let documents = self.search.store.document_count();
        match candidates.saturating_mul(self.search.settings.fetch_cost) > documents {
            true if candidates > self.search.settings.fetch_always => Access::Scan {
                candidates,
                documents,
            },
            _ => Access::Fetch,
        }
    }

    fn read(
        &self,
        probed: Probed,
        reading: Reading,
        search: SearchReport,
        (found, residual): (u64, u64),
    ) -> Found {
        let report = Arc::new(ExecutionReport {
            stage: reading.stage,
            plan: Arc::clone(&self.summary),
            search,
            found,
            residual,
            access: reading.access,
            tally: probed.tally,
        });
        *self.report.lock() = Some(Arc::clone(&report));
        Found::new(
            Arc::clone(&self.search.store),
            Arc::clone(&self.filter),
            probed.gathered,
            reading.wanted,
            report,
            reading.held,
        )
    }
}

/// Does the cache look at a few values only?
fn is_narrow(expr: &Expr) -> bool {
    match expr {
        Expr::Leaf { predicate, .. } => match predicate {
            Predicate::Equals(_) | Predicate::In(_) => true,
            Predicate::Program(program) => !program.value_prefix().is_empty(),
            Predicate::IsNull | Predicate::IsMissing => false,
        },
        Expr::And(parts) => parts.iter().any(is_narrow),
        Expr::Or(parts) => parts.iter().all(is_narrow),
        Expr::All | Expr::Not(_) => false,
    }
}

/// The documents whose values the cache does not give.
fn others(counts: &ValueCounts, arrays: Arrays) -> RoaringBitmap {
    match arrays {
        Arrays::Unwind => counts.other.clone(),
        Arrays::Whole => &counts.other | &counts.arrays,
    }
}

/// Reads and counts; where that may take long, without holding up the thread's other tasks.
async fn count_aside(found: &mut Found, stop: &Stop) -> Result<u64, CommandError> {
    match found.is_short() {
        true => found.count_rest(stop),
        false => aside(stop, || found.count_rest(stop)).await?,
    }
}

fn search_error(error: SearchError) -> CommandError {
    match error {
        SearchError::Stopped { reason } => CommandError::Stopped(reason),
        SearchError::NoRoom(full) => full.into(),
        SearchError::ValuesTooLarge { .. } => {
            CommandError::refused(Code::ExceededMemoryLimit, error.to_string())
        }
        other => CommandError::refused(Code::InternalError, other.to_string()),
    }
}
