//! `renameCollection`: renames a collection, possibly into another database.

use bson::rawdoc;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::namespace;
use crate::places::blocking;
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "renameCollection",
    help: "renames a collection",
    known: Known::Only(&["to", "dropTarget", "stayTemp"]),
    effect: Effect::Writes,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let from = namespace::parse(request.arguments.required_string("renameCollection")?)?;
    let to = namespace::parse(request.arguments.required_string("to")?)?;
    let drop_target = request.arguments.flag("dropTarget")?;
    if from == to {
        let message = "Can't rename a collection to itself";
        return Err(CommandError::refused(
            forebay_documents_query::Code::IllegalOperation,
            message,
        ));
    }
    blocking(|| {
        request
            .documents
            .collections()
            .rename(&from, &to, drop_target)
    })?;
    request.documents.cursors().kill_namespace(&from);
    request.documents.cursors().kill_namespace(&to);
    Ok(rawdoc! { "ok": 1.0 })
}
