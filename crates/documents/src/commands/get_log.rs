//! `getLog`: returns the start-up warnings, which shells request. This server has none.

use bson::{RawArrayBuf, RawBsonRef, rawdoc};
use forebay_documents_query::Code;

use crate::arguments::{Known, wrong_type};
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "getLog",
    help: "lists start-up warnings",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    match request.arguments.subject() {
        Some(RawBsonRef::String("*")) => Ok(
            rawdoc! { "names": RawArrayBuf::from_iter(["global", "startupWarnings"]), "ok": 1.0 },
        ),
        Some(RawBsonRef::String("global" | "startupWarnings")) => {
            Ok(rawdoc! { "totalLinesWritten": 0, "log": RawArrayBuf::new(), "ok": 1.0 })
        }
        Some(RawBsonRef::String(other)) => Err(CommandError::refused(
            Code::OperationFailed,
            format!("No log named '{other}'"),
        )),
        Some(other) => Err(wrong_type("getLog", other, "string")),
        None => Err(request.arguments.missing("getLog")),
    }
}
