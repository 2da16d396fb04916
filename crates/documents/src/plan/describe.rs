//! What `explain` says about a plan, and about a run of it.

use std::time::{Duration, Instant};

use bson::raw::CString;
use bson::{RawArrayBuf, RawDocumentBuf, cstr, rawdoc};
use forebay_query::filter::Node;
use forebay_store::{Direction, IndexBounds};
use forebay_text::Stop;

use super::{Access, IndexAccess, Plan};
use crate::error::CommandError;
use crate::request::Request;
use crate::search::{Arrays, SearchPlan, Wanted};
use crate::streams::{Range, Scan, Stream, Walk, blocking};

/// What a run of a plan did.
pub struct Executed {
    /// Documents found.
    pub returned: u64,
    /// Entries of indexes read.
    pub keys_examined: u64,
    /// Documents read.
    pub docs_examined: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// The stage with its figures.
    pub stage: RawDocumentBuf,
}

/// What is wanted of a run.
#[derive(Debug, Clone, Copy)]
pub enum Run {
    /// A number.
    Count,
    /// Documents.
    Documents(Wanted),
}

impl Plan {
    /// The stage that reaches the matches, as `queryPlanner` shows it.
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
        }
    }

    /// Runs the plan and throws the documents away.
    ///
    /// # Errors
    /// Whatever the cache or the store says.
    pub async fn execute(&self, run: Run, stop: &Stop) -> Result<Executed, CommandError> {
        let started = Instant::now();
        let mut executed = match (&self.access, run) {
            (Access::Cache(_), _) => self.execute_search(run, stop).await?,
            (Access::Scan { .. }, Run::Count) if matches!(self.filter.root(), Node::AlwaysTrue) => {
                self.count_of_store()
            }
            (Access::Scan { direction }, _) => self.execute_scan(*direction, run, stop)?,
            (Access::Index(access), _) => self.execute_walk(Range::from(access), run, stop)?,
            (Access::Union(union), _) => self.execute_walk(Range::from(&**union), run, stop)?,
            (Access::Nothing | Access::Id(_), _) => self.execute_plain(run, stop).await?,
        };
        executed.elapsed = started.elapsed();
        let figures = [
            ("nReturned", executed.returned),
            ("keysExamined", executed.keys_examined),
            ("docsExamined", executed.docs_examined),
        ];
        for (name, figure) in figures {
            if executed.stage.get(name).ok().flatten().is_none() {
                executed.stage.append(
                    CString::try_from(name).expect("the names hold no NUL"),
                    figure as i64,
                );
            }
        }
        Ok(executed)
    }

    fn executed(
        &self,
        returned: u64,
        keys_examined: u64,
        docs_examined: u64,
        stage: RawDocumentBuf,
    ) -> Executed {
        Executed {
            returned,
            keys_examined,
            docs_examined,
            elapsed: Duration::ZERO,
            stage,
        }
    }

    fn count_of_store(&self) -> Executed {
        self.executed(
            self.collection.store.document_count(),
            0,
            0,
            rawdoc! { "stage": "RECORD_STORE_FAST_COUNT" },
        )
    }

    async fn execute_search(&self, run: Run, stop: &Stop) -> Result<Executed, CommandError> {
        let Access::Cache(search) = &self.access else {
            return self.execute_plain(run, stop).await;
        };
        let Run::Documents(wanted) = run else {
            let counted = search.count(stop).await?;
            let stage = counted.report.to_document("CACHE_COUNT");
            return Ok(self.executed(counted.count, 0, counted.report.tally.examined(), stage));
        };
        let mut found = search.find(wanted, stop).await?;
        let returned = blocking(|| pull(&mut found, wanted.limit(), stop))?;
        let report = found.into_report();
        Ok(self.executed(
            returned,
            0,
            report.tally.examined(),
            report.to_document("CACHE_SEARCH"),
        ))
    }

    fn execute_scan(
        &self,
        direction: Direction,
        run: Run,
        stop: &Stop,
    ) -> Result<Executed, CommandError> {
        let mut scan = Scan::new(&self.collection.store, self.filter.clone(), direction);
        let returned = blocking(|| pull(&mut scan, run.limit(), stop))?;
        Ok(self.executed(returned, 0, scan.examined(), self.stage()))
    }

    fn execute_walk(&self, range: Range, run: Run, stop: &Stop) -> Result<Executed, CommandError> {
        let mut walk = Walk::new(self.collection.store.clone(), self.filter.clone(), range);
        let returned = blocking(|| pull(&mut walk, run.limit(), stop))?;
        Ok(self.executed(returned, walk.keys(), walk.examined(), self.stage()))
    }

    async fn execute_plain(&self, run: Run, stop: &Stop) -> Result<Executed, CommandError> {
        let mut stream = self.open(run.wanted(), stop).await?;
        let returned = pull(&mut stream, run.limit(), stop)?;
        Ok(self.executed(returned, returned, returned, self.stage()))
    }
}

/// Runs a search for the values of a field, with arrays as the command takes them, and throws them away.
///
/// # Errors
/// Whatever the cache or the store says.
pub async fn execute_values(
    plan: &SearchPlan,
    arrays: Arrays,
    request: &Request<'_>,
) -> Result<Executed, CommandError> {
    let started = Instant::now();
    let bytes_max = request.documents.settings().stage_memory_bytes_max;
    let mut values = plan.values(arrays, bytes_max, request.stop()).await?;
    let others = blocking(|| values.others.count_rest(request.stop()))?;
    let report = values.others.into_report();
    Ok(Executed {
        returned: values.strings.len() as u64 + u64::from(values.null > 0),
        keys_examined: 0,
        docs_examined: others,
        elapsed: started.elapsed(),
        stage: report.to_document("CACHE_DISTINCT"),
    })
}

impl Run {
    fn wanted(self) -> Wanted {
        match self {
            Run::Count => Wanted::All,
            Run::Documents(wanted) => wanted,
        }
    }

    fn limit(self) -> Option<u64> {
        self.wanted().limit()
    }
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

/// Ranges that `explain` lists.
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
