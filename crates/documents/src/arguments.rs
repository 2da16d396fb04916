//! The arguments of a command. One pass over the body rejects unknown names; types are checked on access.

use bson::{RawArray, RawBsonRef, RawDocument};
use forebay_documents_query::Code;

use crate::error::CommandError;

/// Arguments that every command accepts.
const GENERIC: &[&str] = &[
    "$db",
    "lsid",
    "$clusterTime",
    "$readPreference",
    "readConcern",
    "writeConcern",
    "maxTimeMS",
    "comment",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
    "txnNumber",
    "stmtId",
    "stmtIds",
    "autocommit",
    "startTransaction",
    "$audit",
    "$client",
    "$configServerState",
    "$tenant",
    "$queryOptions",
    "allowImplicitCollectionCreation",
    "bypassEmptyTsReplacement",
    "mayBypassWriteBlocking",
    "maxTimeMSOpOnly",
    "requestGossipRoutingCache",
    "rawData",
];

/// Maximum arguments of one command. A command with more fails with an error.
const ARGUMENTS_MAX: usize = 256;

/// Whether a command accepts unknown arguments.
#[derive(Debug, Clone, Copy)]
pub enum Known {
    /// The command accepts these arguments and the generic ones. Any other argument fails with error 40415.
    Only(&'static [&'static str]),
    /// The command ignores unknown arguments, as MongoDB's older informational commands do.
    Any,
}

impl Known {
    fn allows(self, name: &str) -> bool {
        match self {
            Known::Any => true,
            Known::Only(names) => names.contains(&name) || GENERIC.contains(&name),
        }
    }
}

/// The arguments of one command.
#[derive(Debug)]
pub struct Arguments<'a> {
    command: &'a str,
    fields: Vec<(&'a str, RawBsonRef<'a>)>,
}

impl<'a> Arguments<'a> {
    /// Reads the body of `command`.
    ///
    /// # Errors
    /// Code 40415 for an unknown name, code 40413 for a duplicate, `InvalidBSON` for malformed bytes.
    pub fn parse(
        command: &'a str,
        body: &'a RawDocument,
        known: Known,
    ) -> Result<Arguments<'a>, CommandError> {
        let mut arguments = Arguments {
            command,
            fields: Vec::with_capacity(12),
        };
        for (position, element) in body.iter().enumerate() {
            let (name, value) = element.map_err(|error| invalid_bson(&error))?;
            arguments.accept(position, name.as_str(), value, known)?;
        }
        Ok(arguments)
    }

    /// Reads a document nested in a command. Its first field is an ordinary argument, whereas the first field of a
    /// command is the command's name.
    ///
    /// # Errors
    /// See [`Arguments::parse`].
    pub fn parse_nested(
        command: &'a str,
        body: &'a RawDocument,
        known: Known,
    ) -> Result<Arguments<'a>, CommandError> {
        if let Some(first) = body.iter_elements().next().and_then(Result::ok) {
            let name = first.key().as_str();
            if !known.allows(name) {
                return Err(unknown_field(command, name));
            }
        }
        Arguments::parse(command, body, known)
    }

    fn accept(
        &mut self,
        position: usize,
        name: &'a str,
        value: RawBsonRef<'a>,
        known: Known,
    ) -> Result<(), CommandError> {
        if position > 0 && !known.allows(name) {
            return Err(unknown_field(self.command, name));
        }
        if self.fields.len() >= ARGUMENTS_MAX || self.get(name).is_some() {
            let message = format!("BSON field '{}.{name}' is a duplicate field", self.command);
            return Err(CommandError::refused(Code::Location40413, message));
        }
        self.fields.push((name, value));
        Ok(())
    }

    /// Returns the name of the command.
    pub fn command(&self) -> &'a str {
        self.command
    }

    /// Returns the value of the command's first field, usually the name of a collection.
    pub fn subject(&self) -> Option<RawBsonRef<'a>> {
        self.fields.first().map(|(_, value)| *value)
    }

    /// Returns an argument as the client sent it, or `None` if it is absent or `undefined`.
    pub fn get(&self, name: &str) -> Option<RawBsonRef<'a>> {
        let found = self.fields.iter().find(|(known, _)| *known == name);
        found
            .map(|(_, value)| *value)
            .filter(|value| !matches!(value, RawBsonRef::Undefined))
    }

    /// Returns an argument, or `None` if it is absent, `undefined` or `null`.
    fn present(&self, name: &str) -> Option<RawBsonRef<'a>> {
        self.get(name)
            .filter(|value| !matches!(value, RawBsonRef::Null))
    }

    /// Returns an argument that must be a document, if present.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn document(&self, name: &str) -> Result<Option<&'a RawDocument>, CommandError> {
        self.typed(name, "object", |value| value.as_document())
    }

    /// Returns an argument that must be an array, if present.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn array(&self, name: &str) -> Result<Option<&'a RawArray>, CommandError> {
        self.typed(name, "array", |value| value.as_array())
    }

    /// Returns an argument that must be a string, if present.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn string(&self, name: &str) -> Result<Option<&'a str>, CommandError> {
        self.typed(name, "string", |value| value.as_str())
    }

    /// Returns an argument that must be a boolean, if present. A number other than zero counts as true.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn boolean(&self, name: &str) -> Result<Option<bool>, CommandError> {
        self.typed(name, "[bool, long, int, decimal, double]", truth)
    }

    /// Returns an argument that must be a boolean, or false if it is absent.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn flag(&self, name: &str) -> Result<bool, CommandError> {
        Ok(self.boolean(name)?.unwrap_or(false))
    }

    /// Returns an argument that must be an integer, if present. Doubles are truncated.
    ///
    /// # Errors
    /// `TypeMismatch`.
    pub fn integer(&self, name: &str) -> Result<Option<i64>, CommandError> {
        self.typed(name, "[long, int, decimal, double]", integer)
    }

    /// Returns an argument that must be a non-negative integer, if present.
    ///
    /// # Errors
    /// `TypeMismatch`, or code 51024 for a negative value.
    pub fn unsigned(&self, name: &str) -> Result<Option<u64>, CommandError> {
        let Some(value) = self.integer(name)? else {
            return Ok(None);
        };
        u64::try_from(value)
            .map(Some)
            .map_err(|_| self.negative(name, value))
    }

    fn negative(&self, name: &str, value: i64) -> CommandError {
        let message = format!("BSON field '{name}' value must be >= 0, actual value '{value}'");
        CommandError::refused(Code::Location51024, message)
    }

    /// Returns the error for a missing required argument.
    pub fn missing(&self, name: &str) -> CommandError {
        let message = format!(
            "BSON field '{}.{name}' is missing but a required field",
            self.command
        );
        CommandError::refused(Code::Location40414, message)
    }

    /// Returns a required document.
    ///
    /// # Errors
    /// `TypeMismatch`, or code 40414 if the argument is missing.
    pub fn required_document(&self, name: &str) -> Result<&'a RawDocument, CommandError> {
        self.document(name)?.ok_or_else(|| self.missing(name))
    }

    /// Returns a required string.
    ///
    /// # Errors
    /// `TypeMismatch`, or code 40414 if the argument is missing.
    pub fn required_string(&self, name: &str) -> Result<&'a str, CommandError> {
        self.string(name)?.ok_or_else(|| self.missing(name))
    }

    /// Rejects arguments that are not implemented, except those with the value false.
    ///
    /// # Errors
    /// `NotImplemented`, with the argument's name.
    pub fn unsupported(&self, names: &[&str]) -> Result<(), CommandError> {
        for name in names {
            if let Some(value) = self
                .present(name)
                .filter(|value| truth(*value) != Some(false))
            {
                let message = format!(
                    "option '{name}' of '{}' is not supported (given as a {})",
                    self.command,
                    type_name(value)
                );
                return Err(CommandError::refused(Code::NotImplemented, message));
            }
        }
        Ok(())
    }

    /// Rejects any collation except the simple (binary) one.
    ///
    /// # Errors
    /// `NotImplemented`.
    pub fn simple_collation(&self) -> Result<(), CommandError> {
        match self.document("collation")? {
            Some(collation) => check_collation(collation),
            None => Ok(()),
        }
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(RawBsonRef<'a>) -> Option<T>,
    ) -> Result<Option<T>, CommandError> {
        let Some(value) = self.present(name) else {
            return Ok(None);
        };
        match read(value) {
            Some(read) => Ok(Some(read)),
            None => Err(wrong_type(
                &format!("{}.{name}", self.command),
                value,
                expected,
            )),
        }
    }
}

fn unknown_field(command: &str, name: &str) -> CommandError {
    CommandError::refused(
        Code::Location40415,
        format!("BSON field '{command}.{name}' is an unknown field."),
    )
}

/// Rejects any collation except the simple (binary) one.
///
/// # Errors
/// `NotImplemented`.
pub fn check_collation(collation: &RawDocument) -> Result<(), CommandError> {
    if collation.is_empty()
        || collation
            .get_str("locale")
            .is_ok_and(|locale| locale == "simple")
    {
        return Ok(());
    }
    Err(CommandError::refused(
        Code::NotImplemented,
        "only the simple collation is supported",
    ))
}

/// Returns the error for a value of the wrong type.
pub fn wrong_type(field: &str, value: RawBsonRef<'_>, expected: &str) -> CommandError {
    let actual = type_name(value);
    let expected = if expected.starts_with('[') {
        format!("types '{expected}'")
    } else {
        format!("type '{expected}'")
    };
    CommandError::refused(
        Code::TypeMismatch,
        format!("BSON field '{field}' is the wrong type '{actual}', expected {expected}"),
    )
}

/// Returns the error for malformed BSON.
pub fn invalid_bson(error: &bson::error::Error) -> CommandError {
    CommandError::refused(Code::InvalidBSON, format!("invalid BSON: {error}"))
}

/// Converts a value to a boolean like MongoDB's "safe bool".
pub fn truth(value: RawBsonRef<'_>) -> Option<bool> {
    match value {
        RawBsonRef::Boolean(truth) => Some(truth),
        RawBsonRef::Int32(number) => Some(number != 0),
        RawBsonRef::Int64(number) => Some(number != 0),
        RawBsonRef::Double(number) => Some(number != 0.0),
        RawBsonRef::Null | RawBsonRef::Undefined => Some(false),
        _ => None,
    }
}

/// Converts a number to an integer. Doubles are truncated and saturate; NaN becomes zero.
pub fn integer(value: RawBsonRef<'_>) -> Option<i64> {
    match value {
        RawBsonRef::Int32(number) => Some(i64::from(number)),
        RawBsonRef::Int64(number) => Some(number),
        RawBsonRef::Double(number) => Some(number as i64),
        RawBsonRef::Decimal128(number) => number
            .to_string()
            .parse::<f64>()
            .ok()
            .map(|number| number as i64),
        _ => None,
    }
}

/// Returns the alias of a value's type that `$type` and error messages use.
pub fn type_name(value: RawBsonRef<'_>) -> &'static str {
    forebay_documents_query::element::type_name(value.element_type())
}
