//! Errors of commands, and the table that maps them to MongoDB's error replies.

use bson::{RawDocumentBuf, cstr, rawdoc};
use forebay_cancel::{StopReason, Stopped};
use forebay_documents_query::Code;
use forebay_documents_store::StoreError;
use forebay_memory::Full;

/// The reason why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The command is invalid, or is not possible now.
    #[error("{message}")]
    Refused {
        /// MongoDB's error code.
        code: Code,
        /// A message for the author of the command.
        message: String,
    },
    /// The command exceeded its `maxTimeMS`, or was killed.
    #[error("{}", stop_message(*.0))]
    Stopped(StopReason),
    /// The store failed.
    #[error("{0}")]
    Store(#[source] StoreError),
}

fn stop_message(reason: StopReason) -> &'static str {
    match reason {
        StopReason::Deadline => "operation exceeded time limit",
        StopReason::Cancelled => "operation was interrupted",
        StopReason::MemoryFull { .. } => "the server's memory for requests is full",
    }
}

impl CommandError {
    /// Returns an error with MongoDB's code and a message.
    pub fn refused(code: Code, message: impl Into<String>) -> CommandError {
        CommandError::Refused {
            code,
            message: message.into(),
        }
    }

    /// Returns `BadValue` with a message.
    pub fn bad_value(message: impl Into<String>) -> CommandError {
        CommandError::refused(Code::BadValue, message)
    }

    /// Returns MongoDB's error code.
    pub fn code(&self) -> Code {
        match self {
            CommandError::Refused { code, .. } => *code,
            CommandError::Stopped(StopReason::Deadline) => Code::MaxTimeMSExpired,
            CommandError::Stopped(StopReason::Cancelled) => Code::Interrupted,
            CommandError::Stopped(StopReason::MemoryFull { .. }) => Code::ExceededMemoryLimit,
            CommandError::Store(error) => store_code(error),
        }
    }

    /// Returns the reply of the failed command: `{ok: 0, errmsg, code, codeName, …}`.
    pub fn to_reply(&self) -> RawDocumentBuf {
        let code = self.code();
        let mut reply = rawdoc! { "ok": 0.0, "errmsg": self.to_string(), "code": code.number(), "codeName": code.name() };
        self.append_details(&mut reply);
        reply
    }

    /// Returns the entry of `writeErrors` for statement `index`.
    pub fn to_write_error(&self, index: usize, message: String) -> RawDocumentBuf {
        let index = i32::try_from(index).unwrap_or(i32::MAX);
        let mut entry = rawdoc! { "index": index, "code": self.code().number(), "errmsg": message };
        self.append_details(&mut entry);
        entry
    }

    fn append_details(&self, reply: &mut RawDocumentBuf) {
        if let CommandError::Store(StoreError::DuplicateKey {
            pattern, values, ..
        }) = self
        {
            reply.append(cstr!("keyPattern"), pattern);
            reply.append(cstr!("keyValue"), values);
        }
    }

    /// Returns whether this error ends a batch of statements, even an unordered batch.
    pub fn ends_batch(&self) -> bool {
        match self {
            CommandError::Stopped(_) => true,
            CommandError::Store(error) => error.is_fatal(),
            CommandError::Refused { .. } => false,
        }
    }
}

impl From<forebay_documents_query::Error> for CommandError {
    fn from(error: forebay_documents_query::Error) -> CommandError {
        match error.code {
            Code::MaxTimeMSExpired => CommandError::Stopped(StopReason::Deadline),
            Code::Interrupted => CommandError::Stopped(StopReason::Cancelled),
            code => CommandError::refused(code, error.message),
        }
    }
}

impl From<Full> for CommandError {
    fn from(full: Full) -> CommandError {
        CommandError::refused(Code::ExceededMemoryLimit, full.to_string())
    }
}

impl From<Stopped> for CommandError {
    fn from(stopped: Stopped) -> CommandError {
        match stopped.reason {
            StopReason::MemoryFull { limit_bytes } => Full { limit_bytes }.into(),
            reason => CommandError::Stopped(reason),
        }
    }
}

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> CommandError {
        match error {
            StoreError::Stopped(stopped) => stopped.into(),
            error => CommandError::Store(error),
        }
    }
}

/// Returns MongoDB's name of an error code.
pub fn code_name(code: i32) -> String {
    match Code::from_number(code) {
        Some(code) => code.name().to_owned(),
        None => format!("Location{code}"),
    }
}

/// Maps the store's errors to MongoDB's codes.
fn store_code(error: &StoreError) -> Code {
    match error {
        StoreError::DuplicateKey { .. } => Code::DuplicateKey,
        StoreError::ParallelArrays { .. } => Code::CannotIndexParallelArrays,
        StoreError::KeyTooLong { .. } => Code::KeyTooLong,
        StoreError::TooDeep => Code::Overflow,
        StoreError::MissingId => Code::NoSuchKey,
        StoreError::IdChanged => Code::ImmutableField,
        StoreError::InvalidDocument { .. } => Code::InvalidBSON,
        StoreError::NamespaceExists { .. } => Code::NamespaceExists,
        StoreError::NamespaceNotFound { .. } => Code::NamespaceNotFound,
        StoreError::CollectionDropped { .. } | StoreError::PartitionDropped => {
            Code::QueryPlanKilled
        }
        StoreError::IndexExists { .. } => Code::IndexAlreadyExists,
        StoreError::IndexNotFound { .. } => Code::IndexNotFound,
        StoreError::IndexNotReady { .. } => Code::BadValue,
        StoreError::BuildCancelled { .. } => Code::IndexBuildAborted,
        StoreError::DiskFull { .. } => Code::OutOfDiskSpace,
        StoreError::HistoryLost => Code::ChangeStreamHistoryLost,
        StoreError::NumbersExhausted { .. } => Code::ExceededMemoryLimit,
        StoreError::ReadOnly { .. } | StoreError::NotSynced { .. } => Code::IllegalOperation,
        _ => Code::InternalError,
    }
}
