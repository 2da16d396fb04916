//! Errors of statements as statuses of gRPC.

use arrow_flight::sql::Command;
use forebay_tables::{Code, SqlError};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::{Code as Grpc, Status};

/// Maximum bytes of a message. It is sent as a header, of which clients take few kilobytes.
const MESSAGE_BYTES_MAX: usize = 2_000;

/// Returns the status of an error in the statement `text`. SQLSTATE and position are also metadata of it.
pub(crate) fn status(error: &SqlError, text: &str) -> Status {
    let position = error.position(text);
    let mut message = error.to_string();
    message.truncate(message.floor_char_boundary(MESSAGE_BYTES_MAX));
    let state = error.code.sqlstate();
    match position {
        Some(position) => message += &format!(" (SQLSTATE {state}, at character {position})"),
        None => message += &format!(" (SQLSTATE {state})"),
    }
    let mut status = Status::new(code(error.code), message);
    let metadata = status.metadata_mut();
    metadata.insert("sqlstate", MetadataValue::from_static(state));
    if let Some(position) = position {
        metadata.insert("position", MetadataValue::<Ascii>::from(position));
    }
    status
}

/// Returns the status of an error that is not in the text of a statement.
pub(crate) fn plain(error: SqlError) -> Status {
    status(&error, "")
}

/// Returns the status of what the server does not have.
pub(crate) fn unsupported(what: &str) -> Status {
    plain(SqlError::unsupported(what))
}

/// Returns the status of a command that the server does not have here.
pub(crate) fn unknown_command(command: &Command) -> Status {
    let name = command.type_url().rsplit(['.', '/']).next();
    unsupported(&format!("the command {}", name.unwrap_or_default()))
}

/// Returns the status of a call for which there is no memory.
pub(crate) fn exhausted(what: &str) -> Status {
    let message = format!("there is no memory for {what}");
    let hint = "try again later, or raise --memory-bytes-max";
    plain(SqlError::new(Code::OutOfMemory, message).with_hint(hint))
}

/// Returns the status of a malformed request.
pub(crate) fn malformed(error: impl std::fmt::Display) -> Status {
    Status::invalid_argument(format!("malformed request: {error}"))
}

/// Returns the status of a defect of this server.
pub(crate) fn defect(error: impl std::fmt::Display) -> Status {
    plain(SqlError::new(Code::InternalError, error.to_string()))
}

/// Returns the code of gRPC for a code of SQL.
fn code(code: Code) -> Grpc {
    match code {
        // The session cancels statements at their timeout alone.
        Code::QueryCanceled => Grpc::DeadlineExceeded,
        Code::UndefinedTable
        | Code::UndefinedFile
        | Code::UndefinedObject
        | Code::InvalidSchemaName
        | Code::InvalidCatalogName
        | Code::InvalidStatementName
        | Code::InvalidCursorName => Grpc::NotFound,
        Code::DuplicateTable
        | Code::DuplicateSchema
        | Code::DuplicateObject
        | Code::DuplicateStatement
        | Code::DuplicateCursor => Grpc::AlreadyExists,
        Code::FeatureNotSupported => Grpc::Unimplemented,
        Code::InsufficientPrivilege => Grpc::PermissionDenied,
        Code::InvalidPassword | Code::InvalidAuthorization => Grpc::Unauthenticated,
        Code::DiskFull | Code::OutOfMemory | Code::TooManyConnections | Code::LimitExceeded => {
            Grpc::ResourceExhausted
        }
        Code::SerializationFailure => Grpc::Aborted,
        Code::ReadOnlyTransaction
        | Code::ActiveTransaction
        | Code::NoActiveTransaction
        | Code::FailedTransaction
        | Code::ObjectNotInState
        | Code::ObjectInUse => Grpc::FailedPrecondition,
        Code::AdminShutdown => Grpc::Unavailable,
        Code::DataCorrupted => Grpc::DataLoss,
        Code::IoError | Code::InternalError => Grpc::Internal,
        _ => Grpc::InvalidArgument,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_tables::Place;

    #[test]
    fn statuses_tell_state_position_and_hint() {
        let mut error = SqlError::new(Code::UndefinedTable, "no table é").with_hint("look");
        error.place = Some(Place { line: 2, column: 3 });
        let told = status(&error, "SELECT\n  x");
        assert_eq!(told.code(), Grpc::NotFound);
        assert_eq!(
            told.message(),
            "no table é; look (SQLSTATE 42P01, at character 10)"
        );
        let metadata = |name| {
            told.metadata()
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        assert_eq!(metadata("sqlstate"), Some("42P01"));
        assert_eq!(metadata("position"), Some("10"));
        let long = SqlError::new(Code::SyntaxError, "é".repeat(10_000));
        assert!(plain(long).message().len() < MESSAGE_BYTES_MAX + 100);
    }
}
