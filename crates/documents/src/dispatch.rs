//! The command table, and how commands run.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock, OnceLock};
use std::time::Duration;

use bson::{RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::SharedStop;
use forebay_documents_query::Code;
use parking_lot::Mutex;

use crate::arguments::{Arguments, Known};
use crate::collections::OpenCollection;
use crate::command::{ClientContext, Command};
use crate::commands::{COMMANDS, output};
use crate::documents::Documents;
use crate::error::CommandError;
use crate::operations::DEPARTED_WRITE_TIME;
use crate::places::{Kind, all_aside, make_room_to_write};
use crate::request::{Generic, Request};
use crate::retry::Retry;
use crate::searches::Searches;

/// Maximum bytes of a command's body that can be parsed in microseconds.
const SHORT_BODY_BYTES_MAX: usize = 16 << 10;

/// The reply of a command, or its error.
pub type Reply = Result<RawDocumentBuf, CommandError>;

/// The future of a command that may wait for a device or the disk.
pub type BoxFuture<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// The function that runs a command.
#[derive(Clone, Copy)]
pub enum Run {
    /// A synchronous function.
    Now(fn(&Request<'_>) -> Reply),
    /// A function that returns a future.
    Async(for<'a> fn(&'a Request<'a>) -> BoxFuture<'a>),
}

/// The effect of a command on data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The command changes no data, unless it is an `aggregate` with `$out` or `$merge`.
    Reads,
    /// The command changes data. With `j: true`, its reply waits for the disk.
    Writes,
}

/// A command's entry in the command table.
pub struct Spec {
    /// The command's name.
    pub name: &'static str,
    /// One sentence for `listCommands`.
    pub help: &'static str,
    /// The arguments that the command accepts.
    pub known: Known,
    /// The command's effect on data.
    pub effect: Effect,
    /// The function that runs the command.
    pub run: Run,
}

static BY_NAME: LazyLock<HashMap<&'static str, &'static Spec>> =
    LazyLock::new(|| COMMANDS.iter().map(|spec| (spec.name, *spec)).collect());

/// Runs one command and returns its reply. If `given` is set, a `find` reads the documents in `given` instead of those
/// in its collection.
///
/// # Errors
/// The command's error, or `CommandNotFound`.
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
    let pipeline = command.body.get_array("pipeline");
    let writes = spec.effect == Effect::Writes || pipeline.is_ok_and(output::writes);
    if writes && generic.read_level == Some("linearizable") {
        let message = "a write cannot have the read concern level \"linearizable\"";
        return Err(CommandError::refused(Code::InvalidOptions, message));
    }
    let grace = if writes {
        DEPARTED_WRITE_TIME
    } else {
        Duration::ZERO
    };
    let operations = documents.operations();
    let operation = operations.begin(client.clone(), command.clone(), generic.time_limit, grace);
    let retry = Retry::begin(documents, client, &arguments, &generic, &operation).await?;
    let request = Request {
        retry,
        documents,
        client,
        command: &command,
        arguments,
        generic,
        variables: OnceLock::new(),
        searches: Searches::new(),
        shared_stop: SharedStop::new(operation.stop().clone()),
        given: Mutex::new(given),
        operation,
    };
    documents.counters().count(spec.name);
    if writes {
        write(spec, &request).await
    } else {
        perform(spec, &request, false).await
    }
}

async fn perform(spec: &Spec, request: &Request<'_>, writes: bool) -> Reply {
    let work = async {
        match spec.run {
            Run::Now(run) => run(request),
            Run::Async(run) => run(request).await,
        }
    };
    let reply = match place_of(spec, request, writes) {
        Some(Kind::Write) => {
            let wait = request.operation.wait_in_queue();
            let changed = changed_collection(spec, request);
            let _turn = match &changed {
                Some(collection) => Some(collection.changes.enter(request.stop()).await?),
                None => None,
            };
            let work = async {
                let keeps = request.retry.is_some();
                make_room_to_write(&request.client.reply, keeps, request.stop()).await?;
                drop(wait);
                work.await
            };
            all_aside(Kind::Write, request.stop(), work).await
        }
        Some(kind) => all_aside(kind, request.stop(), work).await,
        None => work.await,
    };
    request.end_search(reply.as_ref().err());
    reply
}

/// Returns the kind of permit that a command holds for its whole duration. Returns `None` for a command that takes a
/// permit only for those parts of its work that may take long. A small insertion takes no permit at all.
fn place_of(spec: &Spec, request: &Request<'_>, writes: bool) -> Option<Kind> {
    let body = &request.command.body;
    // The variables of `let` are expressions. Their evaluation may take long.
    let is_long =
        body.as_bytes().len() > SHORT_BODY_BYTES_MAX || request.arguments.get("let").is_some();
    match spec.name {
        "insert" | "getMore" | "createIndexes" | "validate" => None,
        _ if writes => Some(Kind::Write),
        "explain" | "forebayBuckets" => Some(Kind::Read),
        _ => is_long.then_some(Kind::Read),
    }
}

/// Returns the collection whose documents a command changes, if it exists.
fn changed_collection(spec: &Spec, request: &Request<'_>) -> Option<Arc<OpenCollection>> {
    let changes = matches!(spec.name, "update" | "delete" | "findAndModify");
    let namespace = changes.then(|| request.namespace().ok()).flatten()?;
    request.documents.collections().get(&namespace)
}

/// Applies a write, and waits for the disk if the write concern requires that.
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

/// Returns the write concern error of a write that requires more than one member. The write itself has been applied.
fn not_enough_members() -> RawDocumentBuf {
    let code = Code::UnsatisfiableWriteConcern;
    rawdoc! { "code": code.number(), "codeName": code.name(), "errmsg": "Not enough data-bearing nodes" }
}

fn unknown(name: &str) -> CommandError {
    CommandError::refused(Code::CommandNotFound, format!("no such command: '{name}'"))
}
