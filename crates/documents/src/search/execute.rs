//! Executes cache plans: counts documents, finds documents, and counts values.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_cancel::{Stop, Stopped};
use forebay_documents_cache::{
    Expr, Predicate, SearchAnswer, SearchError, SearchReport, SearchRequest, ValueCount,
    ValueCounts, Want,
};
use forebay_documents_query::Code;
use forebay_memory::Share;
use roaring::RoaringBitmap;

use super::match_stream::{MatchStream, Numbered, Reader};
use super::plan::SearchPlan;
use super::report::{Access, ExecutionReport, Tally};
use crate::error::CommandError;
use crate::places::aside;
use crate::streams::Stream;

/// The number and order of the matches that the caller will read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wanted {
    /// All, or an unknown number.
    #[default]
    All,
    /// At most this many matches, namely those with the lowest record numbers. Successive pages of a query are
    /// therefore consistent.
    First(u64),
    /// At most this many matches, no matter which.
    Any(u64),
}

impl Wanted {
    /// Returns the maximum number, if known.
    pub fn limit(self) -> Option<u64> {
        match self {
            Wanted::All => None,
            Wanted::First(limit) | Wanted::Any(limit) => Some(limit),
        }
    }

    /// Returns the number of matches at which the cache may stop, if the caller accepts any of the matches.
    fn any(self) -> Option<usize> {
        match self {
            Wanted::Any(limit) if limit <= ANY_MAX => usize::try_from(limit).ok(),
            _ => None,
        }
    }
}

/// Maximum number of wanted matches for which a search may stop early. After such a search, all documents found are
/// read into memory at once.
const ANY_MAX: u64 = 1024;

/// A probe before a search reads at most 1 in this many documents of the collection.
const PROBED_PART: u64 = 16;

/// The part of the collection that was probed before a search.
#[derive(Default)]
struct Probed {
    /// The documents that match.
    gathered: VecDeque<Numbered>,
    /// The first record number that was not probed.
    next: u32,
    /// Counts of the documents read.
    tally: Arc<Tally>,
}

/// The documents to read after a search, and how to read them.
struct Reading {
    stage: &'static str,
    /// Number of documents that the cache found.
    found: u64,
    /// Number of documents that the cache could not evaluate.
    recheck: u64,
    wanted: RoaringBitmap,
    access: Access,
    /// The search's share of the memory account.
    held: Option<Arc<Share>>,
}

/// The treatment of arrays of strings when values are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrays {
    /// Each element counts as a value, as in `distinct`.
    Unwind,
    /// Each array counts as one value, as in `$group`. Documents with arrays are among [`Values::others`].
    Whole,
}

/// The values of a cached field in the matching documents.
pub struct Values {
    /// Distinct strings in byte order, with the number of documents that hold each.
    pub strings: Vec<ValueCount>,
    /// Number of documents in which the field is null.
    pub null: u64,
    /// Number of documents without the field.
    pub missing: u64,
    /// The documents with other values, which the caller must read and count.
    pub others: MatchStream,
}

impl SearchPlan {
    /// Counts the documents that match.
    ///
    /// # Errors
    /// An error if the operation is stopped, or the store cannot be read.
    pub async fn count(&self, stop: &Stop) -> Result<u64, CommandError> {
        let want = if self.is_exact() {
            Want::Count
        } else {
            Want::Numbers { limit: None }
        };
        let answer = self.search(want, stop).await?;
        let (counted, doubtful, access) = self.judge(answer.count, &answer);
        let (found, recheck) = (answer.count, answer.recheck.len());
        let reading = Reading {
            stage: "CACHE_COUNT",
            found,
            recheck,
            wanted: doubtful,
            access,
            held: answer.held,
        };
        let mut found = self.read(Probed::default(), reading, answer.report);
        Ok(counted + count_aside(&mut found, stop).await?)
    }

    /// Returns the number of documents that the cache has counted as matches, the documents that must be read to count
    /// the other matches, and the method to read them.
    fn judge(&self, count: u64, answer: &SearchAnswer) -> (u64, RoaringBitmap, Access) {
        if self.is_exact() {
            let access = if answer.recheck.is_empty() {
                Access::None
            } else {
                Access::Fetch
            };
            return (count, answer.recheck.clone(), access);
        }
        let candidates = &answer.numbers | &answer.recheck;
        let access = self.access(candidates.len());
        (0, candidates, access)
    }

    /// Finds the documents that match, in the order of their record numbers.
    ///
    /// If few documents are wanted and the search would scan every value, first reads a few documents of the
    /// collection, which may contain enough matches. If the caller accepts any matches and the cache evaluates the
    /// whole filter, the search ends once it has enough matches.
    ///
    /// # Errors
    /// An error if the operation is stopped, or the store cannot be read.
    pub async fn find(&self, wanted: Wanted, stop: &Stop) -> Result<MatchStream, CommandError> {
        let probed = self.probe(wanted.limit(), stop).await?;
        if probed.gathered.len() as u64 >= wanted.limit().unwrap_or(u64::MAX) {
            return Ok(self.found_by_probe(probed));
        }
        match wanted.any().filter(|_| self.is_exact()) {
            Some(limit) => self.find_any(probed, limit, stop).await,
            None => self.find_all(probed, stop).await,
        }
    }

    /// Finds `limit` documents and reads them immediately. Documents may have changed since the search. If fewer than
    /// `limit` of them still match, searches again for all matches.
    async fn find_any(
        &self,
        probed: Probed,
        limit: usize,
        stop: &Stop,
    ) -> Result<MatchStream, CommandError> {
        let some = Want::Numbers { limit: Some(limit) };
        let answer = self.search(some, stop).await?;
        let were_all = answer.numbers.len() < limit as u64;
        let mut found = self.found_by_search(probed, answer);
        if were_all {
            return Ok(found);
        }
        let bytes_max = self.search.settings.probe_bytes_max;
        let is_enough = if found.is_short() {
            found.gather_first(limit, bytes_max, stop)?
        } else {
            aside(stop, || found.gather_first(limit, bytes_max, stop)).await??
        };
        if is_enough {
            Ok(found)
        } else {
            self.find_all(Probed::default(), stop).await
        }
    }

    async fn find_all(&self, probed: Probed, stop: &Stop) -> Result<MatchStream, CommandError> {
        let answer = self.search(Want::Numbers { limit: None }, stop).await?;
        Ok(self.found_by_search(probed, answer))
    }

    fn found_by_search(&self, probed: Probed, answer: SearchAnswer) -> MatchStream {
        let (found, recheck) = (answer.count, answer.recheck.len());
        let mut candidates = answer.numbers | answer.recheck;
        candidates.remove_range(..probed.next);
        let access = self.access(candidates.len());
        let reading = Reading {
            stage: "CACHE_SEARCH",
            found,
            recheck,
            wanted: candidates,
            access,
            held: answer.held,
        };
        self.read(probed, reading, answer.report)
    }

    /// Probes the first documents of the collection, if these are likely to contain enough matches.
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
        let (gathered, next) = if self.filter.is_cheap() {
            probe()?
        } else {
            aside(stop, probe).await??
        };
        let next = u32::try_from(next).unwrap_or(u32::MAX);
        Ok(Probed {
            gathered,
            next,
            tally,
        })
    }

    fn found_by_probe(&self, probed: Probed) -> MatchStream {
        let access = Access::Probe {
            documents: probed.tally.examined(),
        };
        let reading = Reading {
            stage: "CACHE_SEARCH",
            found: 0,
            recheck: 0,
            wanted: RoaringBitmap::new(),
            access,
            held: None,
        };
        self.read(probed, reading, SearchReport::default())
    }

    /// Counts the values of the plan's field in the matching documents. `bytes_max` bounds the memory of the distinct
    /// strings.
    ///
    /// # Errors
    /// An error if the operation is stopped, or the values exceed `bytes_max` or the memory account.
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
        let (found, recheck) = (answer.count, answer.recheck.len());
        let counts = answer.values.unwrap_or_default();
        let others = others(&counts, arrays) | answer.recheck;
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
            found,
            recheck,
            wanted: others,
            access,
            held: answer.held,
        };
        let others = self.read(Probed::default(), reading, answer.report);
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

    /// Returns the fastest method to read `candidates` documents.
    fn access(&self, candidates: u64) -> Access {
        let documents = self.search.store.document_count();
        let settings = &self.search.settings;
        let is_wide = candidates.saturating_mul(settings.fetch_cost) > documents;
        if is_wide && candidates > settings.fetch_always {
            Access::Scan {
                candidates,
                documents,
            }
        } else {
            Access::Fetch
        }
    }

    fn read(&self, probed: Probed, reading: Reading, search: SearchReport) -> MatchStream {
        let report = Arc::new(ExecutionReport {
            stage: reading.stage,
            plan: Arc::clone(&self.summary),
            search,
            found: reading.found,
            recheck: reading.recheck,
            access: reading.access,
            tally: probed.tally,
        });
        *self.report.lock() = Some(Arc::clone(&report));
        MatchStream::new(
            Arc::clone(&self.search.store),
            Arc::clone(&self.filter),
            probed.gathered,
            reading.wanted,
            report,
            reading.held,
        )
    }
}

/// Returns whether the cache need not compare every value of a field.
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

/// Returns the documents whose values the cache does not count.
fn others(counts: &ValueCounts, arrays: Arrays) -> RoaringBitmap {
    match arrays {
        Arrays::Unwind => counts.other.clone(),
        Arrays::Whole => &counts.other | &counts.arrays,
    }
}

/// Reads and counts the matches. Long work takes a permit and runs off the network threads.
async fn count_aside(found: &mut MatchStream, stop: &Stop) -> Result<u64, CommandError> {
    if found.is_short() {
        found.count_rest(stop)
    } else {
        aside(stop, || found.count_rest(stop)).await?
    }
}

fn search_error(error: SearchError) -> CommandError {
    match error {
        SearchError::Stopped { reason } => Stopped { reason }.into(),
        SearchError::NoRoom(full) => full.into(),
        SearchError::ValuesTooLarge { .. } => {
            CommandError::refused(Code::ExceededMemoryLimit, error.to_string())
        }
        other => CommandError::refused(Code::InternalError, other.to_string()),
    }
}
