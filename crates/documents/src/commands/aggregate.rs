//! `aggregate`: passes documents through a pipeline of stages.
//!
//! The leading `$match` stages are planned like a `find`. A `$count` directly after them runs like the command `count`.
//! A `$group` that groups by a cached field and only counts documents is answered from the cache. The remaining stages
//! run over the matches.

use std::sync::Arc;

use bson::{RawArray, RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_documents_query::filter::Node;
use forebay_documents_query::stage::{Group, Stage};
use forebay_documents_query::{Code, Filter, Limits, Pipeline, Sort};

use super::{group_counts, output, read, sources};
use crate::arguments::Known;
use crate::batch::{self, BatchOptions};
use crate::change_stream;
use crate::collections::OpenCollection;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::places::aside;
use crate::plan::{Plan, PlanRequirements};
use crate::request::Request;
use crate::search::{SearchPlan, Wanted};
use crate::searches::Search;
use crate::streams::{List, Piped, Stream};

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "aggregate",
    help: "runs documents through a pipeline",
    known: Known::Only(&[
        "pipeline",
        "cursor",
        "explain",
        "allowDiskUse",
        "bypassDocumentValidation",
        "collation",
        "hint",
        "let",
    ]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

/// Checks the read concern level of a change stream. The level must be `majority`, which on this server includes all
/// writes.
fn check_level(level: Option<&str>) -> Result<(), CommandError> {
    match level {
        None | Some("majority") => Ok(()),
        Some(level) => {
            let message = format!(
                "$changeStream cannot run with a readConcern other than 'majority'. Current readConcern: {level}"
            );
            Err(CommandError::refused(Code::InvalidOptions, message))
        }
    }
}

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    check(request)?;
    let namespace = namespace(request)?;
    let all = stages(request)?;
    let size = read::cursor_batch_size(request)?;
    if change_stream::is_change_stream(all) {
        check_level(request.generic.read_level)?;
        return change_stream::open(request, &namespace, all, size).await;
    }
    let (pipeline, output) = output::split(request, all)?;
    let special = || sources::special(request, &namespace, &pipeline);
    let special = match first_stage(&pipeline) {
        Some(("$documents", _)) => aside(request.stop(), special).await?,
        _ => special(),
    };
    let mut stream: Box<dyn Stream> = match special? {
        Some((source, rest)) => {
            let limits = read::limits(request)?;
            let rest = Pipeline::parse(&rest, &limits)?;
            Box::new(Piped::new(source, rest, limits))
        }
        None => from_collection(request, &namespace, &pipeline).await?,
    };
    if let Some(output) = output {
        output.write(request, &namespace, stream).await?;
        stream = Box::new(List::default());
    }
    batch::open(
        request,
        &namespace,
        stream,
        BatchOptions {
            size,
            ..BatchOptions::default()
        },
    )
    .await
}

fn check(request: &Request<'_>) -> Result<(), CommandError> {
    request.arguments.simple_collation()?;
    if request.arguments.flag("explain")? {
        let message = "use the explain command to explain an aggregate";
        return Err(CommandError::refused(Code::NotImplemented, message));
    }
    if request.arguments.document("cursor")?.is_none() {
        let message =
            "The 'cursor' option is required, except for aggregate with the explain argument";
        return Err(CommandError::refused(Code::FailedToParse, message));
    }
    Ok(())
}

/// Returns the command's stages.
///
/// # Errors
/// `TypeMismatch`, or code 40414 if they are missing.
pub fn stages<'a>(request: &Request<'a>) -> Result<&'a RawArray, CommandError> {
    request
        .arguments
        .array("pipeline")?
        .ok_or_else(|| request.arguments.missing("pipeline"))
}

/// Returns the namespace that the pipeline reads. For `aggregate: 1`, its collection is `$cmd.aggregate`.
fn namespace(request: &Request<'_>) -> Result<Namespace, CommandError> {
    match request.arguments.subject().map(crate::arguments::integer) {
        Some(Some(1)) => Ok(Namespace {
            db: request.command.db.clone(),
            collection: "$cmd.aggregate".to_owned(),
        }),
        Some(Some(_)) => {
            let message =
                "Invalid command format: the 'aggregate' field must specify a collection name or 1";
            Err(CommandError::refused(Code::FailedToParse, message))
        }
        _ => request.namespace(),
    }
}

async fn from_collection(
    request: &Request<'_>,
    namespace: &Namespace,
    stages: &RawArray,
) -> Result<Box<dyn Stream>, CommandError> {
    let query = Query::read(request, stages)?;
    let Some(collection) = request.documents.collections().get(namespace) else {
        return Ok(query.piped(List::default()));
    };
    if let Some(groups) = query.groups_of_cache(request, &collection).await? {
        return Ok(query.after_first().piped(groups));
    }
    let plan = query.plan(request, &collection)?;
    request.begin_search(Search::Documents(plan.clone()));
    if let Some(counting) = query.counting() {
        let counted = List::built(counting.document(plan.count(request.stop()).await?));
        return Ok(query.after_first().piped(counted));
    }
    let stream = plan.open(query.wanted(), request.stop()).await?;
    Ok(query.rest_of(&plan).piped(stream))
}

/// A stage that directly follows the leading `$match` stages, and needs only the number of matches.
pub enum Counting<'a> {
    /// `$count`, with the name of its output field.
    Count(&'a str),
    /// `$group` that puts all documents into one group. Drivers send it for `countDocuments`.
    Group(&'a Group, group_counts::Weights),
}

impl Counting<'_> {
    /// Returns the stage's output document, or `None` if no document matched.
    fn document(self, count: u64) -> Option<RawDocumentBuf> {
        if count == 0 {
            return None;
        }
        match self {
            Counting::Count(field) => {
                let count =
                    i32::try_from(count).map_or(RawBson::Int64(count as i64), RawBson::Int32);
                let name = bson::raw::CString::try_from(field).ok()?;
                Some(RawDocumentBuf::from_iter([(name, count)]))
            }
            Counting::Group(group, weights) => group_counts::of_all(group, &weights, count),
        }
    }
}

/// A pipeline whose leading `$match` stages have been merged into one filter.
pub struct Query {
    filter: Arc<Filter>,
    rest: Pipeline,
    limits: Limits,
}

impl Query {
    /// Reads the stages.
    ///
    /// # Errors
    /// An error for an invalid stage.
    pub fn read(request: &Request<'_>, stages: &RawArray) -> Result<Query, CommandError> {
        let limits = read::limits(request)?;
        let mut rest = Pipeline::parse(stages, &limits)?
            .stages
            .into_iter()
            .peekable();
        let mut conditions = Vec::new();
        while let Some(Stage::Match(filter)) =
            rest.next_if(|stage| matches!(stage, Stage::Match(_)))
        {
            conditions.push(filter.into_root());
        }
        let root = match conditions.len() {
            0 => Node::AlwaysTrue,
            1 => conditions.remove(0),
            _ => Node::And(conditions),
        };
        Ok(Query {
            filter: Arc::new(Filter::from_node(root, &limits)),
            rest: Pipeline {
                stages: rest.collect(),
            },
            limits,
        })
    }

    /// Returns the plan that finds the matches.
    ///
    /// # Errors
    /// An error for an invalid hint.
    pub fn plan(
        &self,
        request: &Request<'_>,
        collection: &Arc<OpenCollection>,
    ) -> Result<Arc<Plan>, CommandError> {
        let hint = crate::plan::hint(collection, request.arguments.get("hint"))?;
        let requirements = PlanRequirements {
            sort: self.sort(),
            hint,
            strict: request.strict(),
        };
        Plan::new(collection.clone(), self.filter.clone(), &requirements)
    }

    fn sort(&self) -> Option<&Sort> {
        match self.rest.stages.first() {
            Some(Stage::Sort { sort, .. }) => Some(sort),
            _ => None,
        }
    }

    /// Drops the stages that the plan runs. If the plan already yields sorted documents, only the limit of the
    /// sort stage remains.
    fn rest_of(mut self, plan: &Plan) -> Query {
        if let (true, Some(Stage::Sort { limit, .. })) = (plan.is_sorted, self.rest.stages.first())
        {
            match *limit {
                Some(limit) => self.rest.stages[0] = Stage::Limit(limit),
                None => drop(self.rest.stages.remove(0)),
            }
        }
        self
    }

    fn wanted(&self) -> Wanted {
        match self.rest.stages.first() {
            Some(Stage::Limit(limit)) => Wanted::Any(*limit),
            _ => Wanted::All,
        }
    }

    /// Returns the stage directly after the leading `$match` stages, if the stage only counts matches.
    pub fn counting(&self) -> Option<Counting<'_>> {
        match self.rest.stages.first()? {
            Stage::Count(field) => Some(Counting::Count(field)),
            Stage::Group(group) => {
                Some(Counting::Group(group, group_counts::weights_of_all(group)?))
            }
            _ => None,
        }
    }

    /// Returns the output of the `$group` after the leading `$match` stages, if the cache can answer it.
    async fn groups_of_cache(
        &self,
        request: &Request<'_>,
        collection: &OpenCollection,
    ) -> Result<Option<List>, CommandError> {
        match self.rest.stages.first() {
            Some(Stage::Group(group)) if request.arguments.get("hint").is_none() => {
                group_counts::from_cache(request, collection, &self.filter, group).await
            }
            _ => Ok(None),
        }
    }

    /// Returns the cache search that answers the `$group` after the leading `$match` stages, for `explain`.
    pub fn values_plan(
        &self,
        request: &Request<'_>,
        collection: &OpenCollection,
    ) -> Option<Arc<SearchPlan>> {
        match self.rest.stages.first() {
            Some(Stage::Group(group)) if request.arguments.get("hint").is_none() => {
                group_counts::plan(collection, &self.filter, group)
            }
            _ => None,
        }
    }

    /// Drops the first stage.
    fn after_first(mut self) -> Query {
        self.rest.stages.remove(0);
        self
    }

    /// Returns a stream of the output of the stages over `source`.
    fn piped(self, source: impl Stream + 'static) -> Box<dyn Stream> {
        Box::new(Piped::new(source, self.rest, self.limits))
    }

    /// Returns the stages that run over the matches, for `explain`.
    pub fn rest_names(stages: &RawArray) -> RawArrayBuf {
        let stages = stages
            .into_iter()
            .flatten()
            .filter_map(|stage| stage.as_document().map(RawDocument::to_owned));
        stages
            .skip_while(|stage| stage.get("$match").is_ok_and(|found| found.is_some()))
            .map(RawBson::Document)
            .collect()
    }
}

/// Returns the first stage's name and operand.
pub fn first_stage(stages: &RawArray) -> Option<(&str, RawBsonRef<'_>)> {
    first_element(stages.into_iter().next()?.ok()?)
}

/// Returns a stage's name and operand.
pub fn first_element(stage: RawBsonRef<'_>) -> Option<(&str, RawBsonRef<'_>)> {
    let (name, operand) = stage.as_document()?.iter().next()?.ok()?;
    Some((name.as_str(), operand))
}

/// Returns the stages after the first one.
pub fn after_first(stages: &RawArray) -> RawArrayBuf {
    stages.into_iter().skip(1).flatten().collect()
}
