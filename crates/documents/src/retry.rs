//! Retryable writes: a driver that has lost a reply sends its write again, with the same session and transaction
//! number. A statement that was already applied is not applied again. Its recorded outcome is returned instead.

use std::sync::Arc;

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::StopReason;
use forebay_documents_query::Code;
use forebay_documents_store::{
    NotBegun, Outcome, Outcomes, RetryableWrite, RetryableWrites, SessionKey,
};
use parking_lot::Mutex;

use crate::arguments::{Arguments, integer, wrong_type};
use crate::command::{ClientContext, Command, User};
use crate::documents::Documents;
use crate::error::CommandError;
use crate::operations::Operation;
use crate::places::{Kind, all_aside};
use crate::request::Generic;

/// Commands that drivers may retry.
const RETRYABLE: &[&str] = &[
    "delete",
    "findAndModify",
    "findandmodify",
    "insert",
    "update",
];

/// Error codes on which drivers retry a write, because the server or its reply was not available.
const RETRYABLE_CODES: &[i32] = &[
    6, 7, 89, 91, 189, 262, 9001, 10107, 11600, 11602, 13435, 13436,
];

/// Error codes on which drivers resume a change stream, in addition to [`RETRYABLE_CODES`].
const RESUMABLE_CODES: &[i32] = &[63, 133, 150, 234];

/// A retryable write in progress.
pub struct Retry {
    write: RetryableWrite,
    statements: Statements,
    /// Ids of the statements that were answered from recorded outcomes.
    answered: Mutex<Vec<i32>>,
}

/// The ids of a command's statements.
enum Statements {
    /// Consecutive ids starting with this one.
    From(i32),
    /// One id for each statement.
    Given(Vec<i32>),
}

impl Statements {
    fn read(arguments: &Arguments<'_>) -> Result<Statements, CommandError> {
        let Some(ids) = arguments.array("stmtIds")? else {
            let first = arguments.integer("stmtId")?.unwrap_or(0);
            return Ok(Statements::From(i32::try_from(first).unwrap_or(0).max(0)));
        };
        let id = |value: RawBsonRef<'_>| {
            let id = integer(value).and_then(|id| i32::try_from(id).ok());
            id.ok_or_else(|| wrong_type("stmtIds", value, "int"))
        };
        let ids = ids.into_iter().flatten().map(id);
        Ok(Statements::Given(ids.collect::<Result<_, _>>()?))
    }

    fn id(&self, index: usize) -> i32 {
        let place = i32::try_from(index).unwrap_or(i32::MAX);
        match self {
            Statements::From(first) => first.saturating_add(place),
            Statements::Given(ids) => ids.get(index).copied().unwrap_or(place),
        }
    }
}

impl Retry {
    /// Waits until an earlier retryable write of the same session has ended, then begins this write. Returns `None` if
    /// the command has no `txnNumber`.
    ///
    /// # Errors
    /// `IllegalOperation` if the server does not record outcomes, `TransactionTooOld`, `NotARetryableWriteCommand` and
    /// others.
    pub async fn begin(
        documents: &Documents,
        client: &ClientContext,
        arguments: &Arguments<'_>,
        generic: &Generic,
        operation: &Operation,
    ) -> Result<Option<Retry>, CommandError> {
        let Some(number) = generic.write_number else {
            return Ok(None);
        };
        let writes = check(documents, arguments.command(), number)?;
        let session = generic.session.as_deref().ok_or_else(|| {
            let message = "Transaction number requires a session ID to also be specified";
            CommandError::refused(Code::InvalidOptions, message)
        })?;
        let key = session_key(session, client.user.as_ref());
        let mut write = tokio::select! {
            write = writes.begin(&key, number) => write?,
            reason = ended(operation) => return Err(CommandError::Stopped(reason)),
        };
        let stored_bytes = write.stored_bytes() as usize;
        if stored_bytes > 0 {
            client.reply.try_cover(stored_bytes)?;
            let load = async { Ok(write.load()?) };
            all_aside(Kind::Write, operation.stop(), load).await?;
        }
        Ok(Some(Retry {
            write,
            statements: Statements::read(arguments)?,
            answered: Mutex::default(),
        }))
    }

    /// Returns the outcome of statement `index`, if it was applied before.
    ///
    /// # Errors
    /// `IncompleteTransactionHistory` if the statement was applied, but its outcome was too large to record.
    pub fn outcome(&self, index: usize) -> Result<Option<RawDocumentBuf>, CommandError> {
        let id = self.statements.id(index);
        let outcome = match self.write.outcome(id) {
            None => return Ok(None),
            Some(Outcome::Kept(bytes)) => RawDocumentBuf::from_bytes(bytes.clone()).ok(),
            Some(Outcome::NotKept) => None,
        };
        let outcome = outcome.ok_or_else(|| {
            let message = format!("statement {id} was applied, but its outcome was not recorded");
            CommandError::refused(Code::IncompleteTransactionHistory, message)
        })?;
        self.answered.lock().push(id);
        Ok(Some(outcome))
    }

    /// Returns the id of statement `index`, together with `outcome` in the form in which it is recorded.
    pub fn statement(&self, index: usize, outcome: RawDocumentBuf) -> (i32, Vec<u8>) {
        (self.statements.id(index), outcome.into_bytes())
    }

    /// Returns the outcomes to record in the same batch as the changes.
    pub fn note<'a>(&'a self, statements: &'a [(i32, Vec<u8>)]) -> Outcomes<'a> {
        Outcomes {
            write: &self.write,
            statements,
        }
    }

    /// Appends `retriedStmtIds` to a reply: the ids of the statements that were answered from recorded outcomes.
    pub fn append_to(&self, reply: &mut RawDocumentBuf) {
        let answered = self.answered.lock();
        if !answered.is_empty() {
            let ids: RawArrayBuf = answered.iter().copied().collect();
            reply.append(cstr!("retriedStmtIds"), ids);
        }
    }
}

/// Waits until an operation is killed or its deadline passes. Returns which of the two happened.
async fn ended(operation: &Operation) -> StopReason {
    let deadline = async {
        match operation.stop().deadline {
            Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = operation.killed() => StopReason::Cancelled,
        () = deadline => StopReason::Deadline,
    }
}

/// Checks that a command may be retried. Returns the store's record of the outcomes of retryable writes.
fn check<'a>(
    documents: &'a Documents,
    command: &str,
    number: i64,
) -> Result<&'a Arc<RetryableWrites>, CommandError> {
    let writes = documents.store().retryable_writes().ok_or_else(|| {
        let message = "Transaction numbers are only allowed on a replica set member or mongos";
        CommandError::refused(Code::IllegalOperation, message)
    })?;
    if !RETRYABLE.contains(&command) {
        let message = format!(
            "txnNumber may only be provided for multi-document transactions and retryable write commands. \
             autocommit:false was not provided, and {command} is not a retryable write command."
        );
        return Err(CommandError::refused(
            Code::NotARetryableWriteCommand,
            message,
        ));
    }
    if number < 0 {
        let message = "Transaction number cannot be negative";
        return Err(CommandError::refused(Code::InvalidOptions, message));
    }
    Ok(writes)
}

/// Returns the key of a user's session. Sessions of different users are different, even with the same id.
pub fn session_key(session: &[u8], user: Option<&User>) -> SessionKey {
    let mut key = session.to_vec();
    if let Some(user) = user {
        key.extend_from_slice(user.db.as_bytes());
        key.push(0);
        key.extend_from_slice(user.name.as_bytes());
    }
    key.into()
}

impl From<NotBegun> for CommandError {
    fn from(why: NotBegun) -> CommandError {
        let message = why.to_string();
        match why {
            NotBegun::TooOld { .. } => CommandError::refused(Code::TransactionTooOld, message),
            NotBegun::TooManySessions => {
                CommandError::refused(Code::TooManyLogicalSessions, message)
            }
            NotBegun::Store(error) => CommandError::Store(error),
        }
    }
}

/// Computes an outcome from two versions of a document: before its change, and after.
type OutcomeOf<'a> = dyn Fn(Option<&RawDocument>, Option<&RawDocument>) -> Result<RawDocumentBuf, CommandError>
    + Send
    + Sync
    + 'a;

/// Computes and records the outcome of a statement.
pub struct Keep<'a> {
    retry: &'a Retry,
    index: usize,
    outcome: Box<OutcomeOf<'a>>,
}

impl<'a> Keep<'a> {
    /// Returns a recorder for statement `index`. The function `outcome` computes the outcome from the document before
    /// and after its change. Returns `None` if this is not a retryable write.
    pub fn new(
        retry: Option<&'a Retry>,
        index: usize,
        outcome: impl Fn(
            Option<&RawDocument>,
            Option<&RawDocument>,
        ) -> Result<RawDocumentBuf, CommandError>
        + Send
        + Sync
        + 'a,
    ) -> Option<Keep<'a>> {
        retry.map(|retry| Keep {
            retry,
            index,
            outcome: Box::new(outcome),
        })
    }

    /// Computes the outcome of the statement. Returns the statement's id and the outcome.
    ///
    /// # Errors
    /// The error of computing the outcome.
    pub fn statement(
        &self,
        before: Option<&RawDocument>,
        after: Option<&RawDocument>,
    ) -> Result<(i32, Vec<u8>), CommandError> {
        let outcome = (self.outcome)(before, after)?;
        Ok(self.retry.statement(self.index, outcome))
    }

    /// Returns the outcomes to record in the same batch as the changes.
    pub fn note<'n>(&'n self, statements: &'n [(i32, Vec<u8>)]) -> Outcomes<'n> {
        self.retry.note(statements)
    }
}

/// Returns the outcomes to record in the same batch as the changes, or `None` if none are recorded.
pub fn note<'a>(
    keep: Option<&'a Keep<'_>>,
    statements: &'a [(i32, Vec<u8>)],
) -> Option<Outcomes<'a>> {
    keep.map(|keep| keep.note(statements))
}

/// Returns the outcome of an update that changed or inserted one document.
pub fn update_outcome(
    before: Option<&RawDocument>,
    after: Option<&RawDocument>,
) -> Result<RawDocumentBuf, CommandError> {
    let made = after.filter(|_| before.is_none());
    let id = made.and_then(|made| made.get("_id").ok().flatten());
    Ok(match id {
        Some(id) => rawdoc! { "upserted": id },
        None => rawdoc! {},
    })
}

/// Returns whether this is a retryable write with a transaction number.
pub fn may_be_repeated(command: &Command) -> bool {
    let is_numbered = matches!(command.body.get("txnNumber"), Ok(Some(_)));
    is_numbered && RETRYABLE.contains(&&*command.name)
}

/// Returns the error label for a command that failed with this code, or `None` if drivers expect no label. The label
/// tells drivers whether they may retry.
pub fn error_label(command: &Command, code: i32) -> Option<&'static str> {
    if may_be_repeated(command) && RETRYABLE_CODES.contains(&code) {
        return Some("RetryableWriteError");
    }
    match &*command.name {
        _ if code == Code::ChangeStreamFatalError.number() => Some("NonResumableChangeStreamError"),
        // Drivers use this label only for cursors of change streams.
        "getMore" if RETRYABLE_CODES.contains(&code) || RESUMABLE_CODES.contains(&code) => {
            Some("ResumableChangeStreamError")
        }
        _ => None,
    }
}

/// Appends the error label to the reply of a failed command, if there is one.
pub fn append_label(reply: &mut RawDocumentBuf, command: &Command) {
    let code = reply.get_i32("code").unwrap_or(0);
    if let Some(label) = error_label(command, code) {
        reply.append(cstr!("errorLabels"), RawArrayBuf::from_iter([label]));
    }
}
