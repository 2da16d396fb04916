//! `distinct`: returns the distinct values of a field, sorted.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use bson::{RawArrayBuf, RawBson, RawBsonRef, rawdoc};
use forebay_documents_query::element::encoded_bytes;
use forebay_documents_query::{Code, Filter, Path, key};
use forebay_memory::{Account, Held};

use super::read;
use crate::arguments::Known;
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::places::aside;
use crate::plan::{Plan, PlanRequirements};
use crate::request::Request;
use crate::search::{Arrays, PlanOptions, SearchPlan, Wanted};
use crate::searches::Search;
use crate::settings::DOCUMENT_BYTES_MAX;
use crate::streams::Stream;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "distinct",
    help: "lists the distinct values of a field",
    known: Known::Only(&["key", "query", "collation", "hint"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let path = Path::new(request.arguments.required_string("key")?)?;
    request.arguments.simple_collation()?;
    let mut found = Found::new(path, &request.documents.settings().memory);
    let filter = read::filter(request, "query")?;
    if let Some(collection) = request.documents.collections().get(&request.namespace()?) {
        match cached(request, &collection, &filter, &found.path) {
            Some(plan) => {
                request.begin_search(Search::Values(plan.clone()));
                found.take_cached(request, &plan).await?
            }
            None => {
                let plan = plan(request, &collection, &filter)?;
                request.begin_search(Search::Documents(plan.clone()));
                found.take_planned(request, &plan).await?
            }
        }
    }
    let values: RawArrayBuf = found.values.into_values().collect();
    Ok(rawdoc! { "values": values, "ok": 1.0 })
}

/// Returns the plan for the cache, if the cache holds the distinct field and can evaluate the whole filter.
pub fn cached(
    request: &Request<'_>,
    collection: &OpenCollection,
    filter: &Arc<Filter>,
    path: &Path,
) -> Option<Arc<SearchPlan>> {
    if request.arguments.get("hint").is_some() {
        return None;
    }
    collection
        .search
        .plan_values(filter, path.as_str(), &PlanOptions::default())
        .ok()
        .map(Arc::new)
}

/// Returns the plan that reads the matching documents, for a command that the cache cannot answer.
///
/// # Errors
/// An error for an invalid hint.
pub fn plan(
    request: &Request<'_>,
    collection: &Arc<OpenCollection>,
    filter: &Arc<Filter>,
) -> Result<Arc<Plan>, CommandError> {
    let hint = crate::plan::hint(collection, request.arguments.get("hint"))?;
    Plan::new(
        collection.clone(),
        filter.clone(),
        &PlanRequirements {
            hint,
            strict: request.strict(),
            ..PlanRequirements::default()
        },
    )
}

/// The distinct values found so far, sorted.
struct Found {
    path: Path,
    values: BTreeMap<Vec<u8>, RawBson>,
    bytes: usize,
    /// The memory of the values and of the reply made of them.
    held: Held,
}

/// Memory of a value besides its bytes: an entry in a half-full node of the tree, and two allocations.
const VALUE_BYTES: usize = 2 * size_of::<(Vec<u8>, RawBson)>() + 64;
/// Bytes of an element of the reply besides its value: its type, and its index as the name. Longer indexes are counted
/// separately.
const ELEMENT_BYTES: usize = 3;
/// Copies of a value besides its key: one is held, and two are in the reply.
const COPIES: usize = 3;

impl Found {
    fn new(path: Path, memory: &Account) -> Found {
        Found {
            path,
            values: BTreeMap::new(),
            bytes: 0,
            held: Held::new(memory, 0),
        }
    }

    fn add(&mut self, value: RawBsonRef<'_>) -> Result<(), CommandError> {
        let index = self.values.len();
        let element_bytes = encoded_bytes(value) + ELEMENT_BYTES;
        let memory_bytes = key::bytes_max(value) + COPIES * element_bytes + VALUE_BYTES;
        self.held.take(memory_bytes)?;
        match self.values.entry(key::encode(value)) {
            Entry::Vacant(place) => {
                self.bytes += element_bytes + index.checked_ilog10().unwrap_or(0) as usize;
                place.insert(value.into());
            }
            Entry::Occupied(_) => self.held.give_back(memory_bytes),
        }
        if self.bytes > DOCUMENT_BYTES_MAX {
            return Err(CommandError::refused(
                Code::Location17217,
                "distinct too big, 16mb cap",
            ));
        }
        Ok(())
    }

    fn take_all(
        &mut self,
        mut stream: impl Stream,
        request: &Request<'_>,
    ) -> Result<(), CommandError> {
        let path = self.path.clone();
        while let Some(row) = stream.next(request.stop())? {
            path.each_distinct(&row, |value| self.add(value))?;
        }
        Ok(())
    }

    async fn take_planned(
        &mut self,
        request: &Request<'_>,
        plan: &Plan,
    ) -> Result<(), CommandError> {
        let stream = plan.open(Wanted::All, request.stop()).await?;
        aside(request.stop(), || self.take_all(stream, request)).await?
    }

    async fn take_cached(
        &mut self,
        request: &Request<'_>,
        plan: &SearchPlan,
    ) -> Result<(), CommandError> {
        let bytes_max = request.documents.settings().stage_memory_bytes_max;
        let values = plan
            .values(Arrays::Unwind, bytes_max, request.stop())
            .await?;
        for string in &values.strings {
            let text = String::from_utf8_lossy(&string.value);
            self.add(RawBsonRef::String(&text))?;
        }
        if values.null > 0 {
            self.add(RawBson::Null.as_raw_bson_ref())?;
        }
        aside(request.stop(), || self.take_all(values.others, request)).await?
    }
}
