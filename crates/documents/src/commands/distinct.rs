//! `distinct`: the different values of a field.

use std::collections::HashSet;
use std::sync::Arc;

use bson::{RawArrayBuf, RawBson, RawBsonRef, rawdoc};
use forebay_query::{Code, Filter, Path, key};

use super::read;
use crate::arguments::Known;
use crate::collections::OpenCollection;
use crate::dispatch::{Effect, Later, Reply, Run, Spec};
use crate::error::CommandError;
use crate::plan::{Plan, Wishes};
use crate::request::Request;
use crate::search::{Arrays, PlanOptions, SearchPlan, Wanted};
use crate::searches::Search;
use crate::settings::DOCUMENT_BYTES_MAX;
use crate::streams::{Stream, blocking};

/// The command.
pub const SPEC: Spec = Spec {
    name: "distinct",
    help: "lists the different values of a field",
    known: Known::Only(&["key", "query", "collation", "hint"]),
    effect: Effect::Reads,
    run: Run::Later(start),
};

fn start<'a>(request: &'a Request<'a>) -> Later<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let path = Path::new(request.arguments.required_string("key")?)?;
    request.arguments.simple_collation()?;
    let mut found = Found::new(path);
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
    Ok(rawdoc! { "values": found.values, "ok": 1.0 })
}

/// The way through the cache, if the field and the whole filter are cached.
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

/// The way through the documents.
///
/// # Errors
/// Whatever is wrong with the hint.
pub fn plan(
    request: &Request<'_>,
    collection: &Arc<OpenCollection>,
    filter: &Arc<Filter>,
) -> Result<Arc<Plan>, CommandError> {
    let hint = crate::plan::hint(collection, request.arguments.get("hint"))?;
    Plan::new(
        collection.clone(),
        filter.clone(),
        &Wishes {
            hint,
            strict: request.strict(),
            ..Wishes::default()
        },
    )
}

/// The values found so far.
struct Found {
    path: Path,
    seen: HashSet<Vec<u8>>,
    values: RawArrayBuf,
}

impl Found {
    fn new(path: Path) -> Found {
        Found {
            path,
            seen: HashSet::new(),
            values: RawArrayBuf::new(),
        }
    }

    fn add(&mut self, value: RawBsonRef<'_>) -> Result<(), CommandError> {
        if self.seen.insert(key::encode(value)) {
            self.values.push(value);
        }
        if self.values.as_bytes().len() > DOCUMENT_BYTES_MAX {
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
        while let Some(row) = stream.next(request.stop())? {
            for value in self.path.distinct_values(&row) {
                self.add(value)?;
            }
        }
        Ok(())
    }

    async fn take_planned(
        &mut self,
        request: &Request<'_>,
        plan: &Plan,
    ) -> Result<(), CommandError> {
        let stream = plan.open(Wanted::All, request.stop()).await?;
        blocking(|| self.take_all(stream, request))
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
        blocking(|| self.take_all(values.others, request))
    }
}
