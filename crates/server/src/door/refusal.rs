//! Errors that the door itself answers with, and MongoDB's codes for them.

use bson::{RawDocumentBuf, rawdoc};
use forebay_memory::Full;
use forebay_wire_mongo::Error;
use forebay_wire_mongo::validate::InvalidBson;

/// The codes that the door uses, in MongoDB's numbers and names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    /// An argument has a value that it can not have.
    BadValue,
    /// No such user.
    UserNotFound,
    /// The connection has not authenticated.
    Unauthorized,
    /// An argument has the wrong type.
    TypeMismatch,
    /// Something nests too deep.
    Overflow,
    /// Messages in the wrong order.
    ProtocolError,
    /// The password is wrong, or there is no such user.
    AuthenticationFailed,
    /// A document is not good BSON.
    InvalidBson,
    /// No such role.
    RoleNotFound,
    /// The account of memory is full.
    ExceededMemoryLimit,
    /// The server stops.
    ShutdownInProgress,
    /// The operation could not be done.
    OperationFailed,
    /// No such way to authenticate.
    MechanismUnavailable,
    /// `topologyVersion` without `maxAwaitTimeMS`, or the other way round.
    AwaitIncomplete,
    /// `maxAwaitTimeMS` is below zero.
    AwaitNegative,
    /// A `topologyVersion` that is still to come.
    TopologyAhead,
    /// `OP_QUERY` is for the handshake only.
    UnsupportedOpQueryCommand,
    /// A document is larger than the limit.
    BsonObjectTooLarge,
    /// A command without `$db`.
    MissingDatabase,
    /// A user of this name is there already.
    UserExists,
    /// An argument that the command does not have.
    UnknownField,
    /// The same argument twice.
    DuplicateField,
    /// An argument that has to be there is not.
    MissingField,
}

impl Code {
    /// MongoDB's number and name.
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
            Code::UnsupportedOpQueryCommand => (352, "UnsupportedOpQueryCommand"),
            Code::BsonObjectTooLarge => (10334, "BSONObjectTooLarge"),
            Code::MissingDatabase => (40571, "Location40571"),
            Code::UserExists => (51003, "Location51003"),
            Code::UnknownField => (40415, "Location40415"),
            Code::DuplicateField => (40413, "Location40413"),
            Code::MissingField => (40414, "Location40414"),
        }
    }
}

/// A command that the door refuses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    code: Code,
    message: String,
}

impl Refusal {
    /// A refusal with a message for the person who wrote the command.
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        Refusal {
            code,
            message: message.into(),
        }
    }

    /// Its code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// What to answer to a message that is framed well but has bad content.
    pub fn of_content(error: &Error) -> Refusal {
        let code = match error {
            Error::Bson(InvalidBson::TooLarge { .. }) => Code::BsonObjectTooLarge,
            Error::Bson(InvalidBson::TooDeep { .. }) => Code::Overflow,
            Error::DuplicateSequence { .. } => Code::DuplicateField,
            _ => Code::InvalidBson,
        };
        Refusal::new(code, error.to_string())
    }

    /// What to answer where the account of memory is full.
    pub fn of_memory(full: &Full) -> Refusal {
        Refusal::new(Code::ExceededMemoryLimit, full.to_string())
    }

    /// The reply to the client.
    pub fn to_reply(&self) -> RawDocumentBuf {
        let (number, name) = self.code.number_and_name();
        rawdoc! { "ok": 0.0, "errmsg": self.message.as_str(), "code": number, "codeName": name }
    }
}
