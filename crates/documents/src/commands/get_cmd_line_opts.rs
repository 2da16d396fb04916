//! `getCmdLineOpts`: the arguments with which the process was started.

use std::borrow::Cow;

use bson::{RawArrayBuf, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "getCmdLineOpts",
    help: "shows how the process was started",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let arguments: RawArrayBuf = std::env::args()
        .map(|argument| without_password(&argument).into_owned())
        .collect();
    Ok(rawdoc! { "argv": arguments, "parsed": {}, "ok": 1.0 })
}

/// Returns the argument with the password of a connection string masked.
fn without_password(argument: &str) -> Cow<'_, str> {
    let masked = || {
        let (before, after) = argument.split_once("://")?;
        let (credentials, host) = after.rsplit_once('@')?;
        let (name, _) = credentials.split_once(':')?;
        Some(format!("{before}://{name}:***@{host}"))
    };
    masked().map_or(Cow::Borrowed(argument), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        for (argument, shown) in [
            (
                "mongodb://ada:s3cret@db:9/?tls=true",
                "mongodb://ada:***@db:9/?tls=true",
            ),
            (
                "--upstream=mongodb://ada:a@b/c@db",
                "--upstream=mongodb://ada:***@db",
            ),
            ("mongodb://ada@db", "mongodb://ada@db"),
            ("mongodb://db:27017", "mongodb://db:27017"),
            ("--data", "--data"),
        ] {
            assert_eq!(without_password(argument), shown);
        }
    }
}
