//! The table of commands, and the path that each of them takes.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use bson::RawDocumentBuf;
use forebay_query::Code;
use forebay_text::SharedStop;

use crate::arguments::{Arguments, Known};
use crate::command::{ClientContext, Command};
use crate::commands::{COMMANDS, output};
use crate::documents::Documents;
use crate::error::CommandError;
use crate::request::{Generic, Request};
use crate::searches::Searches;

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

/// Runs one command to its reply.
///
/// # Errors
/// Whatever the command says, or that there is no such command.
pub async fn run(
    documents: &Arc<Documents>,
    client: &ClientContext,
    command: Arc<Command>,
) -> Reply {
    let spec = BY_NAME
        .get(command.name.as_str())
        .ok_or_else(|| unknown(&command.name))?;
    let arguments = Arguments::parse(spec.name, &command.body, spec.known)?;
    let generic = Generic::read(&arguments)?;
    client.rights.check(&command)?;
    // A client may leave its writes behind: like MongoDB's, they run to their end.
    let pipeline = command.body.get_array("pipeline");
    let writes = spec.effect == Effect::Writes || pipeline.is_ok_and(output::writes);
    let link = client.link.clone().filter(|_| !writes);
    let bound = ClientContext {
        link,
        ..client.clone()
    };
    let operation = documents
        .operations()
        .begin(bound, command.clone(), generic.time_limit);
    let request = Request {
        documents,
        client,
        command: &command,
        arguments,
        generic,
        searches: Searches::new(),
        shared_stop: SharedStop::new(operation.stop().clone()),
        operation,
    };
    documents.counters().count(spec.name);
    match spec.effect {
        Effect::Reads => perform(spec, &request).await,
        Effect::Writes => write(spec, &request).await,
    }
}

async fn perform(spec: &Spec, request: &Request<'_>) -> Reply {
    let reply = match spec.run {
        Run::Now(run) => run(request),
        Run::Later(run) => run(request).await,
    };
    request.end_search(reply.as_ref().err());
    reply
}

/// Applies a write, and waits for the disk where that was asked for.
async fn write(spec: &Spec, request: &Request<'_>) -> Reply {
    let reply = perform(spec, request).await?;
    if request.generic.journaled {
        request.documents.sync().await?;
    }
    Ok(reply)
}

fn unknown(name: &str) -> CommandError {
    CommandError::refused(Code::CommandNotFound, format!("no such command: '{name}'"))
}
