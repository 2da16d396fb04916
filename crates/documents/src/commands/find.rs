//! `find`: returns the documents that match.

use std::sync::Arc;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents_query::{Filter, Projection, Sort, key};
use forebay_documents_store::Direction;
use forebay_memory::Held;

use super::read;
use crate::arguments::Known;
use crate::batch::{self, BatchOptions};
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::aside;
use crate::plan::{Access, Hint, Plan, PlanRequirements};
use crate::request::Request;
use crate::search::Wanted;
use crate::searches::Search;
use crate::streams::{Fetch, Limited, List, Project, ROW_BYTES, Row, Skip, Stream, sorted};

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "find",
    help: "finds documents",
    known: Known::Only(&[
        "filter",
        "sort",
        "projection",
        "hint",
        "skip",
        "limit",
        "batchSize",
        "ntoreturn",
        "singleBatch",
        "allowDiskUse",
        "max",
        "min",
        "returnKey",
        "showRecordId",
        "tailable",
        "oplogReplay",
        "noCursorTimeout",
        "awaitData",
        "allowPartialResults",
        "collation",
        "let",
    ]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

/// Options that are not implemented.
const UNSUPPORTED: &[&str] = &[
    "max",
    "min",
    "returnKey",
    "showRecordId",
    "tailable",
    "awaitData",
];

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let namespace = request.namespace()?;
    let find = Find::read(request)?;
    let given = request.given.lock().take();
    if let Some(documents) = given {
        let stream = find.among(request, documents).await?;
        return batch::open(request, &namespace, stream, find.batch).await;
    }
    if let Some(stream) = find.by_id(request, &namespace)? {
        return batch::open(request, &namespace, stream, find.batch).await;
    }
    let stream = match find.plan(request, &namespace)? {
        Some(plan) => {
            request.begin_search(Search::Documents(plan.clone()));
            find.open(request, &plan).await?
        }
        None => Box::new(List::default()),
    };
    batch::open(request, &namespace, stream, find.batch).await
}

/// The arguments of a `find`.
pub struct Find<'a> {
    query: Option<&'a RawDocument>,
    sort: Option<Sort>,
    /// The scan direction, for `sort: {$natural: ±1}`.
    natural: Option<Direction>,
    projection: Option<(Projection, Arc<Filter>)>,
    skip: u64,
    limit: Option<u64>,
    batch: BatchOptions,
}

impl<'a> Find<'a> {
    /// Reads the arguments.
    ///
    /// # Errors
    /// An error for invalid arguments.
    pub fn read(request: &Request<'a>) -> Result<Find<'a>, CommandError> {
        let arguments = &request.arguments;
        arguments.unsupported(UNSUPPORTED)?;
        arguments.simple_collation()?;
        let query = arguments
            .document("filter")?
            .filter(|query| !query.is_empty());
        let sort = arguments.document("sort")?.filter(|sort| !sort.is_empty());
        let natural = sort.and_then(crate::plan::natural);
        let limit = arguments
            .unsigned("limit")?
            .or(arguments.unsigned("ntoreturn")?)
            .filter(|limit| *limit > 0);
        Ok(Find {
            query,
            sort: sort
                .filter(|_| natural.is_none())
                .map(Sort::parse)
                .transpose()?,
            natural,
            projection: projection(request)?,
            skip: arguments.unsigned("skip")?.unwrap_or(0),
            limit,
            batch: BatchOptions {
                size: arguments.unsigned("batchSize")?,
                single: arguments.flag("singleBatch")?,
                no_timeout: arguments.flag("noCursorTimeout")?,
            },
        })
    }

    /// Takes the fast path for the filter `{_id: value}`, which needs no plan. Returns `None` if the path does not
    /// apply.
    fn by_id(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
    ) -> Result<Option<Box<dyn Stream>>, CommandError> {
        let Some(id) = self.query.and_then(only_id) else {
            return Ok(None);
        };
        if self.skip > 0 || self.natural.is_some() || request.arguments.get("hint").is_some() {
            return Ok(None);
        }
        let Some(collection) = request.documents.collections().get(namespace) else {
            return Ok(None);
        };
        let number = collection.store.number_by_id(id)?;
        let everything = Arc::new(Filter::all());
        let found = Fetch::new(
            collection.store.clone(),
            everything,
            number.into_iter().collect(),
        );
        Ok(Some(self.reshape(found)))
    }

    /// Returns the plan, or `None` if the collection does not exist.
    ///
    /// # Errors
    /// An error for an invalid filter or hint.
    pub fn plan(
        &self,
        request: &Request<'_>,
        namespace: &Namespace,
    ) -> Result<Option<Arc<Plan>>, CommandError> {
        let filter = read::filter(request, "filter")?;
        let Some(collection) = request.documents.collections().get(namespace) else {
            return Ok(None);
        };
        let hint = crate::plan::hint(&collection, request.arguments.get("hint"))?;
        let hint = self.natural.map(Hint::Natural).or(hint);
        let requirements = PlanRequirements {
            sort: self.sort.as_ref(),
            hint,
            strict: request.strict(),
        };
        Plan::new(collection, filter, &requirements).map(Some)
    }

    /// Returns how many documents the command will read from the plan's source, and in which order.
    pub fn wanted(&self, plan: &Plan) -> Wanted {
        let must_sort = self.sort.is_some() && !plan.is_sorted;
        match self.limit.filter(|_| !must_sort) {
            None => Wanted::All,
            Some(limit) if self.skip == 0 => Wanted::Any(limit),
            Some(limit) => Wanted::First(limit.saturating_add(self.skip)),
        }
    }

    /// Returns the stages that `explain` shows around the plan's stage, innermost first.
    pub fn stages_above(&self, plan: &Plan) -> Vec<RawDocumentBuf> {
        let mut stages = Vec::new();
        if let Some(sort) = self.sort.as_ref().filter(|_| !plan.is_sorted) {
            let pattern = sort
                .parts()
                .iter()
                .map(|(path, direction)| match direction {
                    key::Direction::Ascending => format!("{path}: 1"),
                    key::Direction::Descending => format!("{path}: -1"),
                });
            let pattern = format!("{{ {} }}", pattern.collect::<Vec<_>>().join(", "));
            stages.push(rawdoc! { "stage": "SORT", "sortPattern": pattern });
        }
        if self.skip > 0 {
            stages.push(rawdoc! { "stage": "SKIP", "skipAmount": self.skip as i64 });
        }
        if let Some(limit) = self.limit {
            stages.push(rawdoc! { "stage": "LIMIT", "limitAmount": limit as i64 });
        }
        if self.projection.is_some() {
            stages.push(rawdoc! { "stage": "PROJECTION" });
        }
        stages
    }

    async fn open(
        &self,
        request: &Request<'_>,
        plan: &Plan,
    ) -> Result<Box<dyn Stream>, CommandError> {
        let stream = plan.open(self.wanted(plan), request.stop()).await?;
        self.arrange(request, plan, stream).await
    }

    /// Applies sort, skip, limit and projection to the plan's source.
    ///
    /// # Errors
    /// An error if a sort exceeds its memory limit, or the source's error.
    async fn arrange(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        stream: Box<dyn Stream>,
    ) -> Result<Box<dyn Stream>, CommandError> {
        let stream: Box<dyn Stream> = match &self.sort {
            Some(sort) if !plan.is_sorted => {
                Box::new(self.sort_all(request, plan, sort, stream).await?)
            }
            _ => stream,
        };
        Ok(self.cut(stream))
    }

    /// Applies filter, sort, skip, limit and projection to documents that the caller supplies.
    async fn among(
        &self,
        request: &Request<'_>,
        documents: Vec<RawDocumentBuf>,
    ) -> Result<Box<dyn Stream>, CommandError> {
        let filter = read::filter(request, "filter")?;
        let mut held = Held::new(&request.documents.settings().memory, 0);
        let matching = aside(request.stop(), || {
            let mut matching = Vec::new();
            for document in documents {
                if filter.try_matches(&document)? {
                    held.take(document.as_bytes().len() + ROW_BYTES)?;
                    matching.push(Row::Built(document));
                }
            }
            let matching = List::holding(matching, held);
            match &self.sort {
                Some(sort) => self.in_order(request, sort, matching),
                None => Ok(matching),
            }
        });
        let matching: Box<dyn Stream> = Box::new(matching.await??);
        Ok(self.cut(matching))
    }

    fn cut(&self, stream: Box<dyn Stream>) -> Box<dyn Stream> {
        let stream: Box<dyn Stream> = if self.skip > 0 {
            Box::new(Skip::new(stream, self.skip))
        } else {
            stream
        };
        match self.limit {
            Some(limit) => self.reshape(Limited::new(stream, limit)),
            None => self.reshape(stream),
        }
    }

    async fn sort_all(
        &self,
        request: &Request<'_>,
        plan: &Plan,
        sort: &Sort,
        stream: Box<dyn Stream>,
    ) -> Result<List, CommandError> {
        let is_short = stream.is_short() && matches!(plan.access, Access::Id(_) | Access::Nothing);
        let sort = || self.in_order(request, sort, stream);
        if is_short {
            sort()
        } else {
            aside(request.stop(), sort).await?
        }
    }

    fn in_order(
        &self,
        request: &Request<'_>,
        sort: &Sort,
        stream: impl Stream,
    ) -> Result<List, CommandError> {
        let keep = self.limit.map(|limit| limit.saturating_add(self.skip));
        let bytes_max = request.documents.settings().stage_memory_bytes_max;
        let held = Held::new(&request.documents.settings().memory, 0);
        sorted(stream, sort, keep, bytes_max, held, request.stop())
    }

    fn reshape(&self, stream: impl Stream + 'static) -> Box<dyn Stream> {
        match &self.projection {
            Some((projection, filter)) => {
                Box::new(Project::new(stream, projection.clone(), filter.clone()))
            }
            None => Box::new(stream),
        }
    }
}

/// Returns the projection and a filter. For the positional `field.$`, the filter selects the array element.
fn projection(request: &Request<'_>) -> Result<Option<(Projection, Arc<Filter>)>, CommandError> {
    let Some(projection) = request
        .arguments
        .document("projection")?
        .filter(|projection| !projection.is_empty())
    else {
        return Ok(None);
    };
    let projection = Projection::parse(projection, &read::limits(request)?)?;
    let filter = if projection.is_positional() {
        read::filter(request, "filter")?
    } else {
        Arc::new(Filter::all())
    };
    Ok(Some((projection, filter)))
}

/// Returns `value` for a filter of the form `{_id: value}`. Returns `None` for any other filter, for example one with a
/// condition on `_id`.
fn only_id(query: &RawDocument) -> Option<RawBsonRef<'_>> {
    let mut fields = query.iter();
    let (name, value) = fields.next()?.ok()?;
    let plain = !matches!(
        value,
        RawBsonRef::Document(_)
            | RawBsonRef::RegularExpression(_)
            | RawBsonRef::Array(_)
            | RawBsonRef::Undefined
    );
    (name.as_str() == "_id" && plain && fields.next().is_none()).then_some(value)
}
