//! The output of `explain` for a plan and for its execution.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::raw::CString;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::Stop;
use forebay_documents_query::filter::Node;
use forebay_documents_store::{Direction, IndexBounds};

use super::{Access, IndexAccess, Plan};
use crate::error::CommandError;
use crate::places::aside;
use crate::request::Request;
use crate::search::{Arrays, ExecutionReport, SearchPlan, Wanted};
use crate::streams::Stream;

/// Statistics of a plan's execution.
pub struct Executed {
    /// Number of documents found.
    pub returned: u64,
    /// Number of index entries read.
    pub keys_examined: u64,
    /// Number of documents read.
    pub docs_examined: u64,
    /// Duration of the execution.
    pub elapsed: Duration,
    /// The plan's stage with its statistics.
    pub stage: RawDocumentBuf,
}

/// The result that an execution computes.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// The number of matches.
    Count,
    /// The matches.
    Documents(Wanted),
}

impl Plan {
    /// Returns the stage that finds the matches, in the format of `queryPlanner`.
    pub fn stage(&self) -> RawDocumentBuf {
        let mut stage = match &self.access {
            Access::Nothing => rawdoc! { "stage": "EOF" },
            Access::Id(id) => rawdoc! { "stage": "IDHACK", "id": id.clone() },
            Access::Cache(search) => search.summary().to_document("CACHE_SEARCH"),
            Access::Index(access) => {
                rawdoc! { "stage": "FETCH", "inputStage": index_stage(access) }
            }
            Access::Union(union) => {
                let branches: RawArrayBuf = union.iter().map(index_stage).collect();
                let or = rawdoc! { "stage": "OR", "inputStages": branches };
                rawdoc! { "stage": "FETCH", "inputStage": or }
            }
            Access::Scan { direction } => {
                rawdoc! { "stage": "COLLSCAN", "direction": direction_name(*direction) }
            }
        };
        self.append_reason(&mut stage);
        stage
    }

    fn append_reason(&self, stage: &mut RawDocumentBuf) {
        if let Some(reason) = &self.cache_not_used {
            stage.append(cstr!("cacheNotUsed"), reason.reason());
            stage.append(cstr!("cacheNotUsedCode"), reason.name());
        }
    }

    /// Returns the stage with the statistics of its last execution, in the format of `executionStats`.
    pub fn executed_stage(&self) -> RawDocumentBuf {
        let stage = match self.report() {
            Some(report) => report.to_document(),
            None => self.stage(),
        };
        self.with_figures(stage)
    }

    fn with_figures(&self, mut stage: RawDocumentBuf) -> RawDocumentBuf {
        append_missing(&mut stage, "keysExamined", self.keys_examined());
        append_missing(&mut stage, "docsExamined", self.docs_examined());
        stage
    }

    /// Returns the cache's report on the last execution, if the plan searches the cache.
    pub fn report(&self) -> Option<Arc<ExecutionReport>> {
        match &self.access {
            Access::Cache(search) => search.report(),
            _ => None,
        }
    }

    fn keys_examined(&self) -> u64 {
        self.tally.keys()
    }

    fn docs_examined(&self) -> u64 {
        self.report()
            .map_or(self.tally.examined(), |report| report.tally.examined())
    }

    /// Executes the plan and discards the documents.
    ///
    /// # Errors
    /// The error of the cache or the store.
    pub async fn execute(&self, run: Run, stop: &Stop) -> Result<Executed, CommandError> {
        let started = Instant::now();
        let returned = match run {
            Run::Count => self.count(stop).await?,
            Run::Documents(wanted) => {
                let mut stream = self.open(wanted, stop).await?;
                aside(stop, || pull(&mut stream, wanted.limit(), stop)).await??
            }
        };
        let mut stage = if self.is_counted_by_store(run) {
            self.with_figures(rawdoc! { "stage": "RECORD_STORE_FAST_COUNT" })
        } else {
            self.executed_stage()
        };
        append_missing(&mut stage, "nReturned", returned);
        Ok(Executed {
            returned,
            keys_examined: self.keys_examined(),
            docs_examined: self.docs_examined(),
            elapsed: started.elapsed(),
            stage,
        })
    }

    fn is_counted_by_store(&self, run: Run) -> bool {
        let everything = matches!(self.filter.root(), Node::AlwaysTrue);
        everything && matches!((&self.access, run), (Access::Scan { .. }, Run::Count))
    }
}

/// Adds the field `name` to a stage, unless the stage has this field.
fn append_missing(stage: &mut RawDocumentBuf, name: &str, figure: u64) {
    if stage.get(name).ok().flatten().is_none() {
        let name = CString::try_from(name).expect("the names hold no NUL");
        stage.append(name, figure as i64);
    }
}

/// Executes a search for the values of a field, and discards the values. `arrays` says how the command treats arrays.
///
/// # Errors
/// The error of the cache or the store.
pub async fn execute_values(
    plan: &SearchPlan,
    arrays: Arrays,
    request: &Request<'_>,
) -> Result<Executed, CommandError> {
    let started = Instant::now();
    let bytes_max = request.documents.settings().stage_memory_bytes_max;
    let mut values = plan.values(arrays, bytes_max, request.stop()).await?;
    let stop = request.stop();
    let others = aside(stop, || values.others.count_rest(stop)).await??;
    let report = values.others.into_report();
    Ok(Executed {
        returned: values.strings.len() as u64 + u64::from(values.null > 0),
        keys_examined: 0,
        docs_examined: others,
        elapsed: started.elapsed(),
        stage: report.to_document(),
    })
}

fn pull(stream: &mut impl Stream, limit: Option<u64>, stop: &Stop) -> Result<u64, CommandError> {
    let mut returned = 0;
    while limit.is_none_or(|limit| returned < limit) && stream.next(stop)?.is_some() {
        returned += 1;
    }
    Ok(returned)
}

fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "forward",
        Direction::Backward => "backward",
    }
}

fn index_stage(access: &IndexAccess) -> RawDocumentBuf {
    rawdoc! {
        "stage": "IXSCAN",
        "keyPattern": access.spec.pattern(),
        "indexName": access.spec.name.as_str(),
        "isMultiKey": access.is_multikey,
        "isUnique": access.spec.unique,
        "isSparse": access.spec.sparse,
        "isPartial": false,
        "direction": direction_name(access.direction),
        "indexBounds": access.ranges.iter().take(SHOWN_BOUNDS_MAX).map(show_bounds).collect::<RawArrayBuf>(),
    }
}

/// Maximum ranges that `explain` lists.
const SHOWN_BOUNDS_MAX: usize = 20;

fn show_bounds(bounds: &IndexBounds) -> String {
    let mut shown: Vec<String> = bounds.equal.iter().map(show_value).collect();
    shown.push(match &bounds.string_prefix {
        Some(prefix) => format!("strings that begin with {prefix:?}"),
        None => format!(
            "{} to {}",
            show_end(&bounds.lower.0),
            show_end(&bounds.upper.0)
        ),
    });
    shown.join(", ")
}

fn show_end(end: &std::ops::Bound<bson::RawBson>) -> String {
    match end {
        std::ops::Bound::Included(value) => format!("[{}]", show_value(value)),
        std::ops::Bound::Excluded(value) => format!("({})", show_value(value)),
        std::ops::Bound::Unbounded => "end".to_owned(),
    }
}

fn show_value(value: &bson::RawBson) -> String {
    bson::Bson::try_from(value.as_raw_bson_ref())
        .map_or_else(|_| "?".to_owned(), |value| value.to_string())
}
