//! `killOp`: stops an operation in progress.

use bson::rawdoc;
use forebay_documents_query::Code;

use crate::access::denial;
use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::operations::Operation;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "killOp",
    help: "stops an operation in progress",
    known: Known::Only(&["op"]),
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let id = request
        .arguments
        .integer("op")?
        .ok_or_else(|| request.arguments.missing("op"))?;
    let id = i32::try_from(id).unwrap_or(-1);
    let is_root = request.client.rights.is_root();
    let may = |operation: &Operation| is_root || operation.is_of(request.client);
    // The error is the same whether the operation does not exist or belongs to another user.
    if !request.documents.operations().kill(id, may) && !is_root {
        return Err(CommandError::refused(
            Code::Unauthorized,
            denial(request.command),
        ));
    }
    Ok(rawdoc! { "info": "attempting to kill op", "ok": 1.0 })
}
