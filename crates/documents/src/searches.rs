//! The searches of a command. Each search is counted when it ends. A slow search is logged with its `explain` output.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bson::{Bson, RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_documents_query::Filter;
use forebay_documents_query::filter::Node;
use parking_lot::Mutex;

use crate::error::CommandError;
use crate::metrics::{AnsweredBy, Kind};
use crate::plan::{Access, Plan};
use crate::request::Request;
use crate::search::{ExecutionReport, SearchPlan};

/// Maximum bytes of a string in the log. Longer strings are probably user data.
const TEXT_BYTES_MAX: usize = 128;
/// Maximum elements of an array in the log.
const ELEMENTS_MAX: usize = 32;

/// A search, with its execution report.
#[derive(Clone)]
pub enum Search {
    /// A search for documents.
    Documents(Arc<Plan>),
    /// A search for the values of a cached field.
    Values(Arc<SearchPlan>),
}

impl Search {
    /// Returns the category in which the search is counted. Returns `None` for a filter that matches every document, no
    /// document, or one `_id`, because such a filter needs no search.
    fn kind(&self) -> Option<Kind> {
        let (answered_by, tier) = match self {
            Search::Values(plan) => (AnsweredBy::Cache, plan.summary().tier()),
            Search::Documents(plan) => match &plan.access {
                _ if matches!(plan.filter.root(), Node::AlwaysTrue) => return None,
                Access::Cache(search) => (AnsweredBy::Cache, search.summary().tier()),
                Access::Index(_) | Access::Union(_) => (AnsweredBy::Index, None),
                Access::Scan { .. } => (AnsweredBy::Scan, None),
                Access::Nothing | Access::Id(_) => return None,
            },
        };
        Some(Kind { answered_by, tier })
    }

    /// Returns the access path that answered the search, for the log. This includes a scan without conditions, which is
    /// not counted as a search.
    fn answered_by(&self) -> &'static str {
        match self {
            Search::Documents(plan) => match &plan.access {
                Access::Nothing => "nothing",
                Access::Id(_) => "id",
                Access::Cache(_) => AnsweredBy::Cache.name(),
                Access::Index(_) | Access::Union(_) => AnsweredBy::Index.name(),
                Access::Scan { .. } => AnsweredBy::Scan.name(),
            },
            Search::Values(_) => AnsweredBy::Cache.name(),
        }
    }

    fn namespace(&self) -> String {
        match self {
            Search::Documents(plan) => plan.collection.namespace.to_string(),
            Search::Values(plan) => plan.namespace(),
        }
    }

    fn filter(&self) -> &Filter {
        match self {
            Search::Documents(plan) => &plan.filter,
            Search::Values(plan) => plan.filter(),
        }
    }

    fn report(&self) -> Option<Arc<ExecutionReport>> {
        match self {
            Search::Documents(plan) => plan.report(),
            Search::Values(plan) => plan.report(),
        }
    }

    /// Returns the stage with its statistics, in the format of `explain`.
    fn executed_stage(&self) -> RawDocumentBuf {
        match self {
            Search::Documents(plan) => plan.executed_stage(),
            Search::Values(plan) => match plan.report() {
                Some(report) => report.to_document(),
                None => plan.summary().to_document("CACHE_DISTINCT"),
            },
        }
    }
}

/// The state of a command's current search.
pub struct Searches {
    /// Time at which the previous search ended. For the first search, time at which the command began.
    since: Instant,
    current: Option<Search>,
    /// Whether an earlier command began the current search and counted it.
    is_continued: bool,
}

impl Searches {
    /// Returns the state at the start of a command.
    pub fn new() -> Mutex<Searches> {
        Mutex::new(Searches {
            since: Instant::now(),
            current: None,
            is_continued: false,
        })
    }
}

impl Request<'_> {
    /// Begins a search, after ending the previous one.
    pub fn begin_search(&self, search: Search) {
        self.end_search(None);
        self.searches.lock().current = Some(search);
    }

    /// Continues a search that an earlier command began and counted.
    pub fn continue_search(&self, search: Search) {
        let mut searches = self.searches.lock();
        searches.current = Some(search);
        searches.is_continued = true;
    }

    /// Returns the command's current search.
    pub fn current_search(&self) -> Option<Search> {
        self.searches.lock().current.clone()
    }

    /// Ends the current search, with its error if it failed.
    pub fn end_search(&self, error: Option<&CommandError>) {
        let mut searches = self.searches.lock();
        let Some(search) = searches.current.take() else {
            return;
        };
        let took = searches.since.elapsed();
        searches.since += took;
        let is_continued = searches.is_continued;
        drop(searches);
        if !is_continued {
            self.count_search(&search, took, error);
        }
        if took >= self.documents.settings().slow_search {
            self.documents.metrics().count_slow();
            self.log_search(&search, took, error);
        }
    }

    fn count_search(&self, search: &Search, took: Duration, error: Option<&CommandError>) {
        let Some(kind) = search.kind() else {
            return;
        };
        let metrics = self.documents.metrics();
        metrics.count(kind, took);
        if error.is_some() {
            metrics.count_failed();
        }
        if let Search::Documents(plan) = search
            && let Some(reason) = &plan.cache_not_used
        {
            metrics.count_not_used(reason);
        }
        if let Some(report) = search.report() {
            metrics.count_scanned(report.rows(), report.bytes());
        }
    }

    fn log_search(&self, search: &Search, took: Duration, error: Option<&CommandError>) {
        let kind = search.kind();
        let report = search.report();
        let not_used = match search {
            Search::Documents(plan) => plan.cache_not_used.as_ref(),
            Search::Values(_) => None,
        };
        tracing::info!(
            target: "slow_search",
            ms = took.as_millis() as u64,
            ns = search.namespace(),
            command = self.command.name.as_str(),
            filter = search.filter().shape(),
            answered_by = search.answered_by(),
            tier = kind.map(|kind| kind.tier_name()),
            cache_not_used = not_used.map(|reason| reason.reason()),
            rows = report.as_ref().map(|report| report.rows()),
            bytes = report.as_ref().map(|report| report.bytes()),
            devices = report.map(|report| report.device_names()),
            connection = self.client.connection_id,
            app = self.client.app_name.as_deref(),
            error = error.map(|error| error.code().name()),
            explain = to_json(&search.executed_stage()),
            "slow search"
        );
    }
}

/// Returns the document as JSON, with long strings and arrays truncated.
fn to_json(document: &RawDocument) -> String {
    match Bson::try_from(RawBson::Document(shorten_document(document))) {
        Ok(document) => document.into_relaxed_extjson().to_string(),
        Err(error) => format!("not BSON: {error}"),
    }
}

fn shorten_document(document: &RawDocument) -> RawDocumentBuf {
    let fields = document.iter().flatten();
    RawDocumentBuf::from_iter(fields.map(|(name, value)| (name, shorten(value))))
}

fn shorten(value: RawBsonRef<'_>) -> RawBson {
    match value {
        RawBsonRef::String(text) => RawBson::String(shorten_text(text)),
        RawBsonRef::Document(document) => RawBson::Document(shorten_document(document)),
        RawBsonRef::Array(array) => RawBson::Array(shorten_array(array)),
        other => RawBson::from(other),
    }
}

fn shorten_array(array: &RawArray) -> RawArrayBuf {
    array
        .into_iter()
        .flatten()
        .take(ELEMENTS_MAX)
        .map(shorten)
        .collect()
}

fn shorten_text(text: &str) -> String {
    if text.len() <= TEXT_BYTES_MAX {
        return text.to_owned();
    }
    format!("{}…", &text[..text.floor_char_boundary(TEXT_BYTES_MAX)])
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn long_texts_and_arrays_are_cut() {
        let long = "ä".repeat(TEXT_BYTES_MAX);
        let numbers: RawArrayBuf = (0..100_i32).collect();
        let text = to_json(&rawdoc! { "a": { "b": [long.as_str()] }, "c": numbers, "d": "short" });
        let expected = format!(
            "{{\"a\":{{\"b\":[\"{}…\"]}}",
            "ä".repeat(TEXT_BYTES_MAX / 2)
        );
        assert!(text.starts_with(&expected), "{text}");
        assert!(
            text.contains("30,31]") && text.ends_with("\"d\":\"short\"}"),
            "{text}"
        );
    }
}
