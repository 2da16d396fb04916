//! The table of commands, and the path that each of them takes.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use bson::{RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::SharedStop;
use forebay_documents_query::Code;
use parking_lot::Mutex;

use crate::arguments::{Arguments, Known};
use crate::command::{ClientContext, Command};
use crate::commands::{COMMANDS, output};
use crate::documents::Documents;
use crate::error::CommandError;
use crate::places::{Kind, all_aside, make_room_to_write};
use crate::request::{Generic, Request};
use crate::retry::Retry;
use crate::searches::Searches;

/// Bytes of a command's body that is read in microseconds.
const SHORT_BODY_BYTES_MAX: usize = 16 << 10;

/// A command's reply, or why there is none.
pub type Reply = Result<RawDocumentBuf, CommandError>;

/// A command that waits: for a device, for the disk.
pub type Later<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// How a command runs.
#[derive(Clone, Copy)]
pub enum Run {
    /// At once.
    Now(fn(&Request<'_>) -> Reply),
    /// With waits in between.
    Later(for<'a> fn(&'a Request<'a>) -> Later<'a>),
}

/// What a command does to data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Reads,
    /// It changes data: `j: true` waits for the disk.
    Writes,
}

/// One command's entry in the table.
pub struct Spec {
    /// Its name on the wire.
    pub name: &'static str,
    /// One sentence for `listCommands`.
    pub help: &'static str,
    /// The arguments it knows.
    pub known: Known,
    /// What it does to data.
    pub effect: Effect,
    /// The function.
    pub run: Run,
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static Spec>> =
    LazyLock::new(|| COMMANDS.iter().map(|spec| (spec.name, *spec)).collect());

/// Runs one command to its reply; a `find` over the documents that are `given`, if there are any.
///
/// # Errors
/// Whatever the command says, or that there is no such command.
pub async fn run(
    documents: &Arc<Documents>,
    client: &ClientContext,
    command: Arc<Command>,
    given: Option<Vec<RawDocumentBuf>>,
) -> Reply {
    let spec = BY_NAME
        .get(command.name.as_str())
        .ok_or_else(|| unknown(&command.name))?;
    let arguments = Arguments::parse(spec.name, &command.body, spec.known)?;
    let generic = Generic::read(&arguments)?;
    let is_replica_set = documents.settings().retryable_writes;
    if generic.wants_others && !is_replica_set {
        let message = "cannot use 'w' > 1 when a host is not replicated";
        return Err(CommandError::bad_value(message));
    }
    client.rights.check(&command)?;
    // A client may leave its writes behind: like MongoDB's, they run to their end.
    let pipeline = command.body.get_array("pipeline");
    let writes = spec.effect == Effect::Writes || pipeline.is_ok_and(output::writes);
    if writes && generic.read_level == Some("linearizable") {
        let message = "a write cannot have the read concern level \"linearizable\"";
        return Err(CommandError::refused(Code::InvalidOptions, message));
    }
    let link = client.link.clone().filter(|_| !writes);
    let bound = ClientContext {
        link,
        ..client.clone()
    };
    let operation = documents
        .operations()
        .begin(bound, command.clone(), generic.time_limit);
    let retry = Retry::begin((documents, client), (&arguments, &generic), &operation).await?;
    let request = Request {
        retry,
        documents,
        client,
        command: &command,
        arguments,
        generic,
        searches: Searches::new(),
        shared_stop: SharedStop::new(operation.stop().clone()),
        given: Mutex::new(given),
        operation,
    };
    documents.counters().count(spec.name);
    match writes {
        false => perform(spec, &request, false).await,
        true => write(spec, &request).await,
    }
}

async fn perform(spec: &Spec, request: &Request<'_>, writes: bool) -> Reply {
    let work = async {
        match spec.run {
            Run::Now(run) => run(request),
            Run::Later(run) => run(request).await,
        }
    };
    let reply = match place_of(spec, request, writes) {
        Some(Kind::Write) => {
            let work = async {
                let keeps = request.retry.is_some();
                make_room_to_write(&request.client.reply, keeps, request.stop()).await?;
                work.await
            };
            all_aside(Kind::Write, request.stop(), work).await
        }
        Some(Kind::Read) => all_aside(Kind::Read, request.stop(), work).await,
        None => work.await,
    };
    request.end_search(reply.as_ref().err());
    reply
}

/// The kind of place that all of a command's work needs. Others take one for those parts of their work that may take
/// long, and an insertion if it is large.
fn place_of(spec: &Spec, request: &Request<'_>, writes: bool) -> Option<Kind> {
    let body = &request.command.body;
    // The variables of `let` are expressions that are evaluated first.
    let is_long =
        body.as_bytes().len() > SHORT_BODY_BYTES_MAX || request.arguments.get("let").is_some();
    match spec.name {
        "insert" | "getMore" => None,
        _ if writes => Some(Kind::Write),
        "explain" | "validate" | "forebayBuckets" => Some(Kind::Read),
        _ => is_long.then_some(Kind::Read),
    }
}

/// Applies a write, and waits for the disk where that was asked for.
async fn write(spec: &Spec, request: &Request<'_>) -> Reply {
    let mut reply = perform(spec, request, true).await?;
    if let Some(retry) = &request.retry {
        retry.append_to(&mut reply);
    }
    if request.generic.journaled {
        request.documents.sync().await?;
    }
    if request.generic.wants_others {
        reply.append(cstr!("writeConcernError"), not_enough_members());
    }
    Ok(reply)
}

/// A replica set of one applies a write that wants others, and says so.
fn not_enough_members() -> RawDocumentBuf {
    let code = Code::UnsatisfiableWriteConcern;
    rawdoc! { "code": code.number(), "codeName": code.name(), "errmsg": "Not enough data-bearing nodes" }
}

fn unknown(name: &str) -> CommandError {
    CommandError::refused(Code::CommandNotFound, format!("no such command: '{name}'"))
}
