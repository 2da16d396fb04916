//! A command being executed: its client, arguments, time limit and write concern.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bson::{RawBsonRef, RawDocument, RawDocumentBuf};
use forebay_cancel::{SharedStop, Stop};
use forebay_documents_query::{Code, Variables};
use parking_lot::Mutex;

use crate::api;
use crate::arguments::{Arguments, integer, wrong_type};
use crate::command::{ClientContext, Command};
use crate::cursors::Owner;
use crate::documents::Documents;
use crate::error::CommandError;
use crate::namespace::{self, Namespace};
use crate::operations::Running;
use crate::retry::Retry;
use crate::searches::Searches;
use crate::sessions::{SessionId, session_id};
use crate::settings::WRITE_BATCH_MAX;

/// A command being executed.
pub struct Request<'a> {
    /// The documents that the command runs on.
    pub documents: &'a Arc<Documents>,
    /// The client that sent the command.
    pub client: &'a ClientContext,
    /// The command as received.
    pub command: &'a Command,
    /// The command's own arguments.
    pub arguments: Arguments<'a>,
    /// The arguments that all commands share.
    pub generic: Generic,
    /// The retryable write. `None` if the command has no `txnNumber`.
    pub retry: Option<Retry>,
    /// The guard of the command's entry in the list of operations in progress.
    pub operation: Running,
    /// The variables of `let`, evaluated when a statement or a stage first needs them.
    pub variables: OnceLock<Variables>,
    /// The current search.
    pub searches: Mutex<Searches>,
    /// The cancellation token of work that may continue in a cursor after the command.
    pub shared_stop: Arc<SharedStop>,
    /// The documents that a `find` reads instead of its collection. `None` once the command has taken them.
    pub given: Mutex<Option<Vec<RawDocumentBuf>>>,
}

/// The arguments that all commands share.
#[derive(Debug, Default)]
pub struct Generic {
    /// `maxTimeMS`.
    pub time_limit: Option<Duration>,
    /// `lsid`.
    pub session: Option<SessionId>,
    /// `txnNumber`.
    pub write_number: Option<i64>,
    /// `readConcern.level`.
    pub read_level: Option<&'static str>,
    /// Whether `writeConcern.w` requires more than one member.
    pub wants_others: bool,
    /// Whether the reply waits for the journal: `writeConcern.j`, or by default with `w: "majority"`.
    pub journaled: bool,
    /// Whether a search that falls back from the cache to a scan must fail: `comment: {forebay: "strict"}`.
    pub strict: bool,
}

impl Generic {
    /// Reads the shared arguments.
    ///
    /// # Errors
    /// - `TypeMismatch` and other errors for invalid values.
    /// - An error for a transaction, which the server does not support.
    /// - An error for a read concern that the server does not support.
    pub fn read(arguments: &Arguments<'_>) -> Result<Generic, CommandError> {
        refuse_transactions(arguments)?;
        api::check(arguments)?;
        Ok(Generic {
            read_level: read_level(arguments)?,
            time_limit: time_limit(arguments)?,
            session: arguments.document("lsid")?.map(session_id).transpose()?,
            write_number: arguments.integer("txnNumber")?,
            wants_others: wants_others(arguments)?,
            journaled: journaled(arguments)?,
            strict: is_strict(arguments),
        })
    }
}

fn refuse_transactions(arguments: &Arguments<'_>) -> Result<(), CommandError> {
    if arguments.boolean("autocommit")? == Some(false) || arguments.flag("startTransaction")? {
        return Err(CommandError::refused(
            Code::OperationNotSupportedInTransaction,
            "transactions are not supported",
        ));
    }
    Ok(())
}

/// Read concern levels. The server has only one copy of the documents, so all levels read the same data. Some commands
/// accept only some levels.
const READ_LEVELS: [&str; 4] = ["local", "available", "majority", "linearizable"];

fn read_level(arguments: &Arguments<'_>) -> Result<Option<&'static str>, CommandError> {
    let Some(concern) = arguments.document("readConcern")? else {
        return Ok(None);
    };
    match concern.get("level").ok().flatten() {
        None => Ok(None),
        Some(RawBsonRef::String("snapshot")) => Err(CommandError::refused(
            Code::InvalidOptions,
            "read concern level \"snapshot\" is not supported",
        )),
        Some(RawBsonRef::String(given)) => {
            let known = READ_LEVELS.into_iter().find(|level| *level == given);
            known.map(Some).ok_or_else(|| {
                CommandError::bad_value(format!(
                    "Enumeration value '{given}' for field 'readConcern.level' is not a valid value."
                ))
            })
        }
        Some(other) => Err(wrong_type("readConcern.level", other, "string")),
    }
}

fn time_limit(arguments: &Arguments<'_>) -> Result<Option<Duration>, CommandError> {
    match arguments.get("maxTimeMS") {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(value) => match integer(value) {
            Some(0) => Ok(None),
            Some(limit_ms @ 1..=2_147_483_647) => Ok(Some(Duration::from_millis(limit_ms as u64))),
            Some(limit_ms) => Err(CommandError::bad_value(format!(
                "{limit_ms} value for maxTimeMS is out of range"
            ))),
            None => Err(wrong_type(
                "maxTimeMS",
                value,
                "[long, int, decimal, double]",
            )),
        },
    }
}

fn journaled(arguments: &Arguments<'_>) -> Result<bool, CommandError> {
    let Some(concern) = arguments.document("writeConcern")? else {
        return Ok(false);
    };
    check_acknowledgement(concern)?;
    let flag = |name| {
        let value = concern.get(name).ok().flatten();
        let value = value.filter(|value| *value != RawBsonRef::Null);
        value.and_then(crate::arguments::truth)
    };
    // By default, a majority write waits for the journal, as in MongoDB (`writeConcernMajorityJournalDefault`).
    let is_majority = matches!(concern.get_str("w"), Ok("majority"));
    Ok(flag("fsync") == Some(true) || flag("j").unwrap_or(is_majority))
}

fn wants_others(arguments: &Arguments<'_>) -> Result<bool, CommandError> {
    let members = arguments
        .document("writeConcern")?
        .and_then(|concern| integer(concern.get("w").ok()??));
    Ok(members.is_some_and(|members| members > 1))
}

fn check_acknowledgement(concern: &RawDocument) -> Result<(), CommandError> {
    match concern.get("w").ok().flatten() {
        None | Some(RawBsonRef::String("majority")) => Ok(()),
        Some(RawBsonRef::String(other)) => {
            let message =
                format!("No write concern mode named '{other}' found in replica set configuration");
            Err(CommandError::refused(
                Code::UnknownReplWriteConcern,
                message,
            ))
        }
        Some(value) => match integer(value) {
            Some(0..=50) => Ok(()),
            Some(_) => Err(CommandError::refused(
                Code::FailedToParse,
                "w has to be a non-negative number and not greater than 50",
            )),
            None => Err(wrong_type(
                "writeConcern.w",
                value,
                "[long, int, decimal, double]",
            )),
        },
    }
}

fn is_strict(arguments: &Arguments<'_>) -> bool {
    let comment = arguments
        .get("comment")
        .and_then(|comment| comment.as_document());
    comment.is_some_and(|comment| {
        comment
            .get_str("forebay")
            .is_ok_and(|word| word == "strict")
    })
}

impl<'a> Request<'a> {
    /// Returns the cancellation token of this operation.
    pub fn stop(&self) -> &Stop {
        self.operation.stop()
    }

    /// Returns whether a search that falls back from the cache to a scan must fail.
    pub fn strict(&self) -> bool {
        self.generic.strict || self.documents.settings().strict
    }

    /// Returns the collection that the command's first field names.
    ///
    /// # Errors
    /// `InvalidNamespace`, also for a value that is not a string.
    pub fn namespace(&self) -> Result<Namespace, CommandError> {
        match self.arguments.subject() {
            Some(RawBsonRef::String(collection)) => {
                namespace::checked(&self.command.db, collection)
            }
            Some(other) => {
                let message = format!(
                    "collection name has invalid type {}",
                    crate::arguments::type_name(other)
                );
                Err(CommandError::refused(Code::InvalidNamespace, message))
            }
            None => Err(CommandError::refused(
                Code::InvalidNamespace,
                "a collection name is missing",
            )),
        }
    }

    /// Returns the namespace of a cursor. Its collection is the value of the argument called `name`. The collection may
    /// be a pseudo-collection, such as `$cmd.aggregate` for a cursor that reads no collection.
    ///
    /// # Errors
    /// Code 40414 if the argument is missing, `TypeMismatch`, `InvalidNamespace`.
    pub fn cursor_namespace(&self, name: &str) -> Result<Namespace, CommandError> {
        let collection = self.arguments.required_string(name)?;
        if collection.starts_with("$cmd.") {
            return Ok(Namespace {
                db: self.command.db.clone(),
                collection: collection.to_owned(),
            });
        }
        namespace::checked(&self.command.db, collection)
    }

    /// Returns the owner of the cursors that the command opens.
    pub fn owner(&self) -> Owner {
        Owner {
            user: self.client.user.clone(),
            session: self.generic.session.clone(),
        }
    }

    /// Rejects a command on a database other than `admin`.
    ///
    /// # Errors
    /// `Unauthorized`, with MongoDB's message.
    pub fn admin_only(&self) -> Result<(), CommandError> {
        if self.command.db == "admin" {
            return Ok(());
        }
        let message = format!(
            "{} may only be run against the admin database.",
            self.command.name
        );
        Err(CommandError::refused(Code::Unauthorized, message))
    }

    /// Returns the statements of a write command, from its document sequence or from an array in the body.
    ///
    /// # Errors
    /// Code 40414 if the statements are missing, `TypeMismatch`, `InvalidLength` for no statements or too many.
    pub fn statements(&self, name: &str) -> Result<Vec<&'a RawDocument>, CommandError> {
        let sequence = self
            .command
            .sequences
            .iter()
            .find(|(known, _)| known == name);
        let statements: Vec<&RawDocument> = match sequence {
            Some((_, documents)) => documents.iter().map(AsRef::as_ref).collect(),
            None => self.embedded_statements(name)?,
        };
        if statements.is_empty() || statements.len() > WRITE_BATCH_MAX {
            let message = format!(
                "Write batch sizes must be between 1 and {WRITE_BATCH_MAX}. Got {} operations.",
                statements.len()
            );
            return Err(CommandError::refused(Code::InvalidLength, message));
        }
        Ok(statements)
    }

    fn embedded_statements(&self, name: &str) -> Result<Vec<&'a RawDocument>, CommandError> {
        let array = self
            .arguments
            .array(name)?
            .ok_or_else(|| self.arguments.missing(name))?;
        let mut statements = Vec::new();
        for value in array {
            let value = value.map_err(|error| crate::arguments::invalid_bson(&error))?;
            statements.push(
                value
                    .as_document()
                    .ok_or_else(|| wrong_type(name, value, "object"))?,
            );
        }
        Ok(statements)
    }
}
