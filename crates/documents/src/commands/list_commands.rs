//! `listCommands`: the table of commands.

use bson::raw::CString;
use bson::{RawDocumentBuf, rawdoc};

use crate::arguments::Known;
use crate::commands::COMMANDS;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "listCommands",
    help: "lists the commands",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(_: &Request<'_>) -> Reply {
    let mut commands = RawDocumentBuf::new();
    for spec in COMMANDS {
        let name = CString::try_from(spec.name).expect("command names hold no NUL");
        commands.append(
            name,
            rawdoc! { "help": spec.help, "writes": spec.effect == Effect::Writes },
        );
    }
    Ok(rawdoc! { "commands": commands, "ok": 1.0 })
}
