//! The Stable API: a request with `apiVersion: "1"` and `apiStrict` may use only the commands and stages of version 1.

use bson::RawBsonRef;
use forebay_documents_query::Code;

use crate::arguments::Arguments;
use crate::error::CommandError;

/// The commands of this crate that are part of API version 1. The `server` crate handles `hello` and authentication.
const COMMANDS: &[&str] = &[
    "abortTransaction",
    "aggregate",
    "commitTransaction",
    "count",
    "create",
    "createIndexes",
    "delete",
    "drop",
    "dropDatabase",
    "dropIndexes",
    "endSessions",
    "explain",
    "find",
    "findAndModify",
    "findandmodify",
    "getMore",
    "insert",
    "killCursors",
    "listCollections",
    "listDatabases",
    "listIndexes",
    "ping",
    "refreshSessions",
    "update",
];

/// Stages that are not part of API version 1.
const STAGES_LEFT_OUT: &[&str] = &[
    "$collStats",
    "$currentOp",
    "$indexStats",
    "$listLocalSessions",
    "$listSessions",
    "$planCacheStats",
];

/// Checks the arguments `apiVersion`, `apiStrict` and `apiDeprecationErrors`.
///
/// # Errors
/// - `APIVersionError` for a version other than 1.
/// - Code 4886600 if another API argument is present without `apiVersion`.
/// - `APIStrictError` for a command or stage outside version 1.
/// - `TypeMismatch` for a value of the wrong type.
pub fn check(arguments: &Arguments<'_>) -> Result<(), CommandError> {
    let version = arguments.string("apiVersion")?;
    let strict = arguments.boolean("apiStrict")?;
    let deprecation_errors = arguments.boolean("apiDeprecationErrors")?;
    match version {
        Some("1") => {}
        None if strict.or(deprecation_errors).is_none() => {}
        None => {
            let message =
                "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion";
            return Err(CommandError::refused(Code::Location4886600, message));
        }
        Some(other) => {
            let message = format!("API version must be \"1\", not \"{other}\"");
            return Err(CommandError::refused(Code::APIVersionError, message));
        }
    }
    match strict {
        Some(true) => check_strict(arguments),
        _ => Ok(()),
    }
}

fn check_strict(arguments: &Arguments<'_>) -> Result<(), CommandError> {
    let command = arguments.command();
    if !COMMANDS.contains(&command) {
        return Err(CommandError::refused(
            Code::APIStrictError,
            format!("Provided apiStrict:true, but the command {command} is not in API Version 1"),
        ));
    }
    let stages = arguments.get("pipeline").and_then(|it| it.as_array());
    for stage in stages.into_iter().flatten().flatten() {
        if let Some(name) = first_key(stage).filter(|name| STAGES_LEFT_OUT.contains(name)) {
            let message =
                format!("stage {name} is not allowed with 'apiStrict: true' in API Version 1");
            return Err(CommandError::refused(Code::APIStrictError, message));
        }
    }
    Ok(())
}

fn first_key(stage: RawBsonRef<'_>) -> Option<&str> {
    let first = stage.as_document()?.iter().next()?.ok()?;
    Some(first.0.as_str())
}
