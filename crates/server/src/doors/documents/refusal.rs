//! Errors of this crate's own commands (handshake, authentication, users) and of malformed messages, with MongoDB's
//! error codes.

use bson::{RawDocumentBuf, rawdoc};
use forebay_memory::Full;
use forebay_wire_mongo::Error;
use forebay_wire_mongo::validate::InvalidBson;

/// MongoDB's error codes that this crate's own commands use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An argument has an invalid value.
    BadValue,
    /// The user does not exist.
    UserNotFound,
    /// The connection has not authenticated.
    Unauthorized,
    /// An argument has the wrong type.
    TypeMismatch,
    /// A document nests too deeply.
    Overflow,
    /// The messages are in the wrong order.
    ProtocolError,
    /// The password is wrong, or there is no such user.
    AuthenticationFailed,
    /// A document is invalid BSON.
    InvalidBson,
    /// The role does not exist.
    RoleNotFound,
    /// The memory account for requests is full.
    ExceededMemoryLimit,
    /// The server is stopping.
    ShutdownInProgress,
    /// The operation failed.
    OperationFailed,
    /// The authentication mechanism is not supported.
    MechanismUnavailable,
    /// Only one of `topologyVersion` and `maxAwaitTimeMS` is set.
    AwaitIncomplete,
    /// `maxAwaitTimeMS` is negative.
    AwaitNegative,
    /// The client's `topologyVersion` is later than the server's.
    TopologyAhead,
    /// A document is larger than the limit.
    BsonObjectTooLarge,
    /// The command has no `$db`.
    MissingDatabase,
    /// A user with this name exists.
    UserExists,
    /// An argument is unknown.
    UnknownField,
    /// An argument occurs twice.
    DuplicateField,
    /// A required argument is missing.
    MissingField,
}

impl Code {
    /// Returns MongoDB's number and name of the code.
    pub fn number_and_name(self) -> (i32, &'static str) {
        match self {
            Code::BadValue => (2, "BadValue"),
            Code::UserNotFound => (11, "UserNotFound"),
            Code::Unauthorized => (13, "Unauthorized"),
            Code::TypeMismatch => (14, "TypeMismatch"),
            Code::Overflow => (15, "Overflow"),
            Code::ProtocolError => (17, "ProtocolError"),
            Code::AuthenticationFailed => (18, "AuthenticationFailed"),
            Code::InvalidBson => (22, "InvalidBSON"),
            Code::RoleNotFound => (31, "RoleNotFound"),
            Code::ExceededMemoryLimit => (146, "ExceededMemoryLimit"),
            Code::ShutdownInProgress => (91, "ShutdownInProgress"),
            Code::OperationFailed => (96, "OperationFailed"),
            Code::MechanismUnavailable => (334, "MechanismUnavailable"),
            Code::AwaitIncomplete => (31368, "Location31368"),
            Code::AwaitNegative => (31373, "Location31373"),
            Code::TopologyAhead => (31382, "Location31382"),
            Code::BsonObjectTooLarge => (10334, "BSONObjectTooLarge"),
            Code::MissingDatabase => (40571, "Location40571"),
            Code::UserExists => (51003, "Location51003"),
            Code::UnknownField => (40415, "Location40415"),
            Code::DuplicateField => (40413, "Location40413"),
            Code::MissingField => (40414, "Location40414"),
        }
    }
}

/// The error with which this crate refuses a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// Creates a refusal with a message for the client.
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            message: message.into(),
        }
    }

    /// Returns the code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// Creates the refusal of a well-framed message with malformed content.
    pub fn of_content(error: &Error) -> Refusal {
        let code = match error {
            Error::Bson(InvalidBson::TooLarge { .. }) => Code::BsonObjectTooLarge,
            Error::Bson(InvalidBson::TooDeep { .. }) => Code::Overflow,
            Error::DuplicateSequence { .. } => Code::DuplicateField,
            _ => Code::InvalidBson,
        };
        Refusal::new(code, error.to_string())
    }

    /// Creates the refusal of a request that does not fit in the memory account.
    pub fn of_memory(full: &Full) -> Refusal {
        Refusal::new(Code::ExceededMemoryLimit, full.to_string())
    }

    /// Returns the reply to send to the client.
    pub fn to_reply(&self) -> RawDocumentBuf {
        let (number, name) = self.code.number_and_name();
        rawdoc! { "ok": 0.0, "errmsg": self.message.as_str(), "code": number, "codeName": name }
    }
}
