//! `explain`: shows how a command would run and, with `executionStats`, how its search ran.
//!
//! The command is planned. For `executionStats`, its search runs and the documents are discarded; nothing is written.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::{RawArrayBuf, RawBson, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::SharedStop;
use forebay_documents_query::Code;
use parking_lot::Mutex;

use super::{aggregate, count, delete, distinct, find, output, read, update};
use crate::arguments::{Arguments, Known};
use crate::command::Command;
use crate::dispatch::{BoxFuture, Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::host;
use crate::namespace::Namespace;
use crate::plan::{self, Plan};
use crate::request::{Generic, Request};
use crate::search::{Arrays, SearchPlan, Wanted};
use crate::searches::Searches;
use crate::settings::MONGODB_VERSION;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "explain",
    help: "shows how a command runs",
    known: Known::Only(&["verbosity"]),
    effect: Effect::Reads,
    run: Run::Async(start),
};

fn start<'a>(request: &'a Request<'a>) -> BoxFuture<'a> {
    Box::pin(run(request))
}

async fn run(request: &Request<'_>) -> Reply {
    let wants_figures = match request.arguments.string("verbosity")? {
        Some("queryPlanner") => false,
        None | Some("executionStats" | "allPlansExecution") => true,
        Some(_) => {
            return Err(CommandError::refused(
                Code::FailedToParse,
                "verbosity string must be one of {'queryPlanner', 'executionStats', 'allPlansExecution'}",
            ));
        }
    };
    let body = request.arguments.required_document("explain")?;
    let command = Arc::new(Command::within(request.command, body));
    let arguments = Arguments::parse(&command.name, &command.body, known(&command.name)?)?;
    let generic = Generic::read(&arguments)?;
    let limit = generic.time_limit.or(request.generic.time_limit);
    let operation = request.documents.operations().begin(
        request.client.clone(),
        command.clone(),
        limit,
        Duration::ZERO,
    );
    let inner = Request {
        documents: request.documents,
        client: request.client,
        command: &command,
        arguments,
        generic,
        variables: OnceLock::new(),
        searches: Searches::new(),
        shared_stop: SharedStop::new(operation.stop().clone()),
        retry: None,
        given: Mutex::default(),
        operation,
    };
    let explained = Explained::plan(&inner)?;
    reply(&inner, &explained, wants_figures).await
}

fn known(name: &str) -> Result<Known, CommandError> {
    match name {
        "find" => Ok(find::SPEC.known),
        "count" => Ok(count::SPEC.known),
        "distinct" => Ok(distinct::SPEC.known),
        "aggregate" => Ok(aggregate::SPEC.known),
        "update" => Ok(update::SPEC.known),
        "delete" => Ok(delete::SPEC.known),
        "findAndModify" | "findandmodify" => Ok(super::find_and_modify::SPEC.known),
        other => Err(CommandError::refused(
            Code::CommandNotFound,
            format!("Explain failed due to unknown command: {other}"),
        )),
    }
}

/// A planned command.
struct Explained {
    namespace: Namespace,
    /// `None` if the collection does not exist.
    access: Option<Access>,
    run: plan::Run,
    /// The stages that `explain` shows around the plan's stage, innermost first.
    above: Vec<RawDocumentBuf>,
    /// The pipeline stages that run over the matches.
    rest: Option<RawArrayBuf>,
}

/// The source of the command's result.
enum Access {
    Documents(Arc<Plan>),
    /// The values of a cached field.
    Values(Arc<SearchPlan>, Arrays),
}

impl Explained {
    fn plan(request: &Request<'_>) -> Result<Explained, CommandError> {
        let namespace = request.namespace()?;
        let documents = |plan: Option<Arc<Plan>>| plan.map(Access::Documents);
        let mut explained = Explained {
            namespace,
            access: None,
            run: plan::Run::Documents(Wanted::All),
            above: Vec::new(),
            rest: None,
        };
        match request.command.name.as_str() {
            "find" => {
                let find = find::Find::read(request)?;
                let plan = find.plan(request, &explained.namespace)?;
                if let Some(plan) = &plan {
                    explained.run = plan::Run::Documents(find.wanted(plan));
                    explained.above = find.stages_above(plan);
                }
                explained.access = documents(plan);
            }
            "count" => {
                explained.run = plan::Run::Count;
                explained.access = documents(count::plan(request)?);
                explained.above = vec![rawdoc! { "stage": "COUNT" }];
            }
            "aggregate" => explained.plan_aggregate(request)?,
            "distinct" => explained.plan_distinct(request)?,
            _ => explained.plan_write(request)?,
        }
        Ok(explained)
    }

    fn plan_aggregate(&mut self, request: &Request<'_>) -> Result<(), CommandError> {
        let stages = aggregate::stages(request)?;
        let (before, _) = output::split(request, stages)?;
        let query = aggregate::Query::read(request, &before)?;
        if query.counting().is_some() {
            self.run = plan::Run::Count;
        }
        self.rest = Some(aggregate::Query::rest_names(stages));
        let Some(collection) = request.documents.collections().get(&self.namespace) else {
            return Ok(());
        };
        self.access = Some(match query.values_plan(request, &collection) {
            Some(values) => Access::Values(values, Arrays::Whole),
            None => Access::Documents(query.plan(request, &collection)?),
        });
        Ok(())
    }

    fn plan_distinct(&mut self, request: &Request<'_>) -> Result<(), CommandError> {
        let path = forebay_documents_query::Path::new(request.arguments.required_string("key")?)?;
        let filter = read::filter(request, "query")?;
        let Some(collection) = request.documents.collections().get(&self.namespace) else {
            return Ok(());
        };
        self.access = Some(
            match distinct::cached(request, &collection, &filter, &path) {
                Some(values) => Access::Values(values, Arrays::Unwind),
                None => Access::Documents(distinct::plan(request, &collection, &filter)?),
            },
        );
        Ok(())
    }

    fn plan_write(&mut self, request: &Request<'_>) -> Result<(), CommandError> {
        let Some(collection) = request.documents.collections().get(&self.namespace) else {
            return Ok(());
        };
        let plan = match request.command.name.as_str() {
            "update" => update::Statement::read(only_statement(request, "updates")?)?
                .plan(request, &collection)?,
            "delete" => delete::Statement::read(only_statement(request, "deletes")?)?
                .plan(request, &collection)?,
            _ => {
                let hint = plan::hint(&collection, request.arguments.get("hint"))?;
                let filter = read::filter(request, "query")?;
                Plan::new(
                    collection,
                    filter,
                    &plan::PlanRequirements {
                        hint,
                        strict: request.strict(),
                        ..Default::default()
                    },
                )?
            }
        };
        self.above = vec![
            rawdoc! { "stage": if request.command.name == "delete" { "DELETE" } else { "UPDATE" } },
        ];
        self.access = Some(Access::Documents(plan));
        Ok(())
    }

    /// Returns the plan's stage, `innermost`, nested in the stages around it.
    fn nest(&self, innermost: RawDocumentBuf) -> RawDocumentBuf {
        self.above.iter().fold(innermost, |inner, stage| {
            let mut stage = stage.clone();
            stage.append(cstr!("inputStage"), inner);
            stage
        })
    }
}

fn only_statement<'a>(request: &Request<'a>, name: &str) -> Result<&'a RawDocument, CommandError> {
    match request.statements(name)?.as_slice() {
        [statement] => Ok(statement),
        _ => Err(CommandError::bad_value(
            "explained write batches must be of size 1",
        )),
    }
}

async fn reply(request: &Request<'_>, explained: &Explained, wants_figures: bool) -> Reply {
    let mut reply = rawdoc! { "explainVersion": "1", "queryPlanner": planner(request, explained) };
    if let Some(rest) = &explained.rest {
        reply.append(cstr!("stages"), rest.clone());
    }
    if wants_figures {
        reply.append(cstr!("executionStats"), figures(request, explained).await?);
    }
    reply.append(cstr!("command"), request.command.body.as_ref());
    let version = &request.documents.settings().version;
    reply.append(cstr!("serverInfo"), rawdoc! { "host": host::name(), "version": MONGODB_VERSION, "gitVersion": format!("forebay-{version}") });
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn planner(request: &Request<'_>, explained: &Explained) -> RawDocumentBuf {
    let winning = match &explained.access {
        None => rawdoc! { "stage": "EOF" },
        Some(Access::Documents(plan)) => explained.nest(plan.stage()),
        Some(Access::Values(values, _)) => {
            explained.nest(values.summary().to_document("CACHE_DISTINCT"))
        }
    };
    let filter = ["filter", "query", "q"]
        .iter()
        .find_map(|name| request.arguments.get(name));
    rawdoc! {
        "namespace": explained.namespace.to_string(),
        "parsedQuery": filter.map_or(RawBson::Document(RawDocumentBuf::new()), |filter: RawBsonRef<'_>| RawBson::from(filter)),
        "winningPlan": winning,
        "rejectedPlans": RawArrayBuf::new(),
    }
}

async fn figures(
    request: &Request<'_>,
    explained: &Explained,
) -> Result<RawDocumentBuf, CommandError> {
    let executed = match &explained.access {
        None => {
            return Ok(
                rawdoc! { "executionSuccess": true, "nReturned": 0, "executionTimeMillis": 0 },
            );
        }
        Some(Access::Documents(plan)) => plan.execute(explained.run, request.stop()).await?,
        Some(Access::Values(values, arrays)) => {
            plan::execute_values(values, *arrays, request).await?
        }
    };
    Ok(rawdoc! {
        "executionSuccess": true,
        "nReturned": executed.returned as i64,
        "executionTimeMillis": executed.elapsed.as_millis() as i64,
        "executionTimeMicros": executed.elapsed.as_micros() as i64,
        "totalKeysExamined": executed.keys_examined as i64,
        "totalDocsExamined": executed.docs_examined as i64,
        "executionStages": explained.nest(executed.stage),
    })
}
