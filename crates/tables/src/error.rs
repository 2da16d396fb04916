//! The errors of statements, with the codes of the SQL standard and of PostgreSQL.

mod told;

use std::fmt;

use datafusion::arrow::error::ArrowError;
use datafusion::common::{Diagnostic, SchemaError};
use datafusion::error::DataFusionError;
use datafusion::parquet::errors::ParquetError;
use datafusion::sql::sqlparser::parser::ParserError;

/// The result of a statement.
pub type Result<T, E = SqlError> = std::result::Result<T, E>;

/// Why a statement failed, for the client that sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// The code (SQLSTATE).
    pub code: Code,
    /// What happened, in one sentence.
    pub message: String,
    /// What the client can do.
    pub hint: Option<String>,
    /// The place in the statement's text.
    pub place: Option<Place>,
    /// Where it happened, such as the line of the data of a `COPY`.
    pub context: Option<String>,
}

/// A place in the text of a statement. Lines and columns count from 1; columns count characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Line.
    pub line: u64,
    /// Column.
    pub column: u64,
}

/// Declares [`Code`] and its texts.
macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal;)+) => {
        /// A code of an error, as PostgreSQL has it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code {
            $($(#[doc = $doc])+ $name,)+
        }

        impl Code {
            /// Returns the five characters of the code (SQLSTATE).
            pub fn sqlstate(self) -> &'static str {
                match self {
                    $(Code::$name => $text,)+
                }
            }

            /// Returns the code of a name in this program.
            fn named(name: &str) -> Option<Code> {
                $(if name == stringify!($name) {
                    return Some(Code::$name);
                })+
                None
            }
        }
    };
}

codes! {
    /// No error: the statement was done, but perhaps not as its client thinks.
    Warning = "01000";
    /// The client uses the protocol wrongly.
    ProtocolViolation = "08P01";
    /// The server does not have this feature.
    FeatureNotSupported = "0A000";
    /// A text is longer than its type allows.
    StringTooLong = "22001";
    /// A number exceeds the range of its type.
    NumericValueOutOfRange = "22003";
    /// A date or time is malformed.
    InvalidDatetimeFormat = "22007";
    /// A division by zero.
    DivisionByZero = "22012";
    /// A pattern is malformed, or too large.
    InvalidRegularExpression = "2201B";
    /// A value of a setting or function is not allowed.
    InvalidParameterValue = "22023";
    /// A value cannot be read as its type.
    InvalidTextRepresentation = "22P02";
    /// A binary value cannot be read as its type.
    InvalidBinaryRepresentation = "22P03";
    /// A row of a file or of `COPY` has too many or too few cells.
    BadCopyFileFormat = "22P04";
    /// Another error in a value.
    DataException = "22000";
    /// A column that may not be null is.
    NotNullViolation = "23502";
    /// A cursor does not allow the operation.
    InvalidCursorState = "24000";
    /// A transaction is in progress already.
    ActiveTransaction = "25001";
    /// The transaction only reads.
    ReadOnlyTransaction = "25006";
    /// No transaction is in progress.
    NoActiveTransaction = "25P01";
    /// An earlier statement of the transaction failed.
    FailedTransaction = "25P02";
    /// No prepared statement has this name.
    InvalidStatementName = "26000";
    /// The password is wrong.
    InvalidPassword = "28P01";
    /// The user may not log in.
    InvalidAuthorization = "28000";
    /// No savepoint has this name.
    InvalidSavepoint = "3B001";
    /// No database has this name.
    InvalidCatalogName = "3D000";
    /// No schema has this name.
    InvalidSchemaName = "3F000";
    /// No cursor has this name.
    InvalidCursorName = "34000";
    /// Another statement changed the table at the same time.
    SerializationFailure = "40001";
    /// The user may not do this.
    InsufficientPrivilege = "42501";
    /// The statement cannot be parsed.
    SyntaxError = "42601";
    /// A column exists more than once.
    DuplicateColumn = "42701";
    /// A name could be that of several columns.
    AmbiguousColumn = "42702";
    /// There is no column of this name.
    UndefinedColumn = "42703";
    /// There is no object of this name.
    UndefinedObject = "42704";
    /// An object of this name exists.
    DuplicateObject = "42710";
    /// A column must appear in `GROUP BY`.
    GroupingError = "42803";
    /// The types do not fit.
    DatatypeMismatch = "42804";
    /// There is no function with this name and these arguments.
    UndefinedFunction = "42883";
    /// There is no table of this name.
    UndefinedTable = "42P01";
    /// There is no parameter of this number.
    UndefinedParameter = "42P02";
    /// A cursor of this name exists.
    DuplicateCursor = "42P03";
    /// A prepared statement of this name exists.
    DuplicateStatement = "42P05";
    /// A schema of this name exists.
    DuplicateSchema = "42P06";
    /// A table of this name exists.
    DuplicateTable = "42P07";
    /// The type of a parameter cannot be determined.
    IndeterminateDatatype = "42P18";
    /// The object is of another kind.
    WrongObjectType = "42809";
    /// Another error of the statement.
    SyntaxOrAccess = "42000";
    /// The disk is full.
    DiskFull = "53100";
    /// The statement needs more memory than there is.
    OutOfMemory = "53200";
    /// Too many connections are open.
    TooManyConnections = "53300";
    /// A limit of this server.
    LimitExceeded = "54000";
    /// The statement nests too deeply, or is too long.
    StatementTooComplex = "54001";
    /// The object is not in the state that the statement needs.
    ObjectNotInState = "55000";
    /// The object is in use.
    ObjectInUse = "55006";
    /// The client, its timeout or the server stopped the statement.
    QueryCanceled = "57014";
    /// The server stops.
    AdminShutdown = "57P01";
    /// A file cannot be read or written.
    IoError = "58030";
    /// There is no such file.
    UndefinedFile = "58P01";
    /// A file is damaged.
    DataCorrupted = "XX001";
    /// A defect of this server.
    InternalError = "XX000";
}

impl SqlError {
    /// Returns an error without a hint.
    pub fn new(code: Code, message: impl Into<String>) -> SqlError {
        SqlError {
            code,
            message: message.into(),
            hint: None,
            place: None,
            context: None,
        }
    }

    /// Returns the error of a feature that the server does not have.
    pub fn unsupported(what: impl fmt::Display) -> SqlError {
        SqlError::new(
            Code::FeatureNotSupported,
            format!("{what} is not supported"),
        )
    }

    /// Adds what the client can do.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> SqlError {
        self.hint = Some(hint.into());
        self
    }

    /// Returns the position of the error in `text`: the number of the character, counted from 1.
    pub fn position(&self, text: &str) -> Option<usize> {
        let Place { line, column } = self.place?;
        let before: usize = text
            .split('\n')
            .take(usize::try_from(line).ok()?.checked_sub(1)?)
            .map(|line| line.chars().count() + 1)
            .sum();
        Some(before + usize::try_from(column).ok()?)
    }
}

impl std::error::Error for SqlError {}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        match &self.hint {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl From<object_store::Error> for SqlError {
    fn from(error: object_store::Error) -> SqlError {
        from_store(&error)
    }
}

impl From<DataFusionError> for SqlError {
    fn from(error: DataFusionError) -> SqlError {
        let mut error = from_datafusion(error);
        let is_other = matches!(error.code, Code::InternalError | Code::DataException);
        if is_other && is_of_pattern(&error.message) {
            error.code = Code::InvalidRegularExpression;
        }
        // Overflows of integers have messages of this program.
        let is_of_decimals =
            error.code == Code::NumericValueOutOfRange && error.message.contains("verflow");
        if is_of_decimals && error.hint.is_none() {
            return error.with_hint("cast to double precision, or to a numeric with fewer digits");
        }
        error
    }
}

/// Returns whether a message is that of a regular expression that cannot be compiled.
fn is_of_pattern(message: &str) -> bool {
    message.contains("regex parse error")
        || message.contains("egular expression did not compile")
        || message.contains("Compiled regex exceeds size limit")
}

fn from_datafusion(error: DataFusionError) -> SqlError {
    match error {
        DataFusionError::Context(_, inner) => (*inner).into(),
        DataFusionError::Diagnostic(diagnostic, inner) => diagnosed(&diagnostic, (*inner).into()),
        DataFusionError::Shared(inner) => from_shared(&inner),
        DataFusionError::Collection(errors) => first(errors),
        DataFusionError::External(inner) => match inner.downcast::<SqlError>() {
            Ok(ours) => *ours,
            Err(other) => from_external(&*other),
        },
        DataFusionError::ArrowError(inner, _) => from_arrow(*inner),
        DataFusionError::SQL(inner, _) => from_parser(*inner),
        DataFusionError::SchemaError(inner, _) => from_schema(&inner),
        DataFusionError::NotImplemented(message) => {
            SqlError::new(Code::FeatureNotSupported, message)
        }
        DataFusionError::ResourcesExhausted(message) => exhausted(&message),
        DataFusionError::ParquetError(inner) => of_parquet(&inner),
        DataFusionError::ObjectStore(inner) => from_store(&inner),
        DataFusionError::IoError(inner) => from_io(&inner),
        DataFusionError::Plan(message) | DataFusionError::Configuration(message) => {
            planned(&message)
        }
        DataFusionError::Execution(message) => executed(message),
        other => SqlError::new(
            Code::InternalError,
            told::internal(&other.strip_backtrace()),
        ),
    }
}

/// Returns the error of one of several receivers.
fn from_shared(error: &DataFusionError) -> SqlError {
    match error.find_root() {
        DataFusionError::External(inner) => match inner.downcast_ref::<SqlError>() {
            Some(ours) => ours.clone(),
            None => from_external(&**inner),
        },
        DataFusionError::ResourcesExhausted(message) => exhausted(message),
        DataFusionError::ObjectStore(inner) => from_store(inner),
        DataFusionError::IoError(inner) => from_io(inner),
        DataFusionError::ParquetError(inner) => of_parquet(inner),
        DataFusionError::ArrowError(inner, _) => arrow_text(inner),
        DataFusionError::Execution(message) => executed(message.clone()),
        DataFusionError::Plan(message) => planned(message),
        DataFusionError::NotImplemented(message) => {
            SqlError::new(Code::FeatureNotSupported, message.clone())
        }
        other => SqlError::new(
            Code::InternalError,
            told::internal(&other.strip_backtrace()),
        ),
    }
}

fn first(errors: Vec<DataFusionError>) -> SqlError {
    let first = errors.into_iter().next().map(SqlError::from);
    first.unwrap_or_else(|| SqlError::new(Code::InternalError, "an error without a cause"))
}

/// Adds the place and the advice of a diagnostic.
fn diagnosed(diagnostic: &Diagnostic, mut error: SqlError) -> SqlError {
    if let Some(span) = diagnostic.span {
        error.place = Some(Place {
            line: span.start.line,
            column: span.start.column,
        });
    }
    if error.hint.is_none() && !diagnostic.helps.is_empty() {
        let helps = diagnostic.helps.iter().map(|help| help.message.as_str());
        error.hint = Some(helps.collect::<Vec<_>>().join("; "));
    }
    error
}

/// Returns the error of this program that caused another one.
fn caused(error: &(dyn std::error::Error + 'static)) -> Option<SqlError> {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes
        .find_map(|cause| cause.downcast_ref::<SqlError>())
        .cloned()
}

fn from_external(error: &(dyn std::error::Error + Send + Sync + 'static)) -> SqlError {
    if let Some(ours) = caused(error) {
        return ours;
    }
    if let Some(error) = error.downcast_ref::<std::io::Error>() {
        return from_io(error);
    }
    match error.downcast_ref::<DataFusionError>() {
        Some(inner) => from_shared(inner),
        None => SqlError::new(Code::InternalError, error.to_string()),
    }
}

fn from_arrow(error: ArrowError) -> SqlError {
    match error {
        ArrowError::ExternalError(inner) => match inner.downcast::<DataFusionError>() {
            Ok(inner) => (*inner).into(),
            Err(other) => from_external(&*other),
        },
        other => arrow_text(&other),
    }
}

fn arrow_text(error: &ArrowError) -> SqlError {
    match error {
        ArrowError::DivideByZero => SqlError::new(Code::DivisionByZero, "division by zero"),
        ArrowError::ArithmeticOverflow(message) => {
            SqlError::new(Code::NumericValueOutOfRange, message.clone())
        }
        ArrowError::CastError(message) => told::cast(message).unwrap_or_else(|| {
            let is_outside = message.contains("is out of range");
            let code = match is_outside {
                true => Code::NumericValueOutOfRange,
                false => Code::InvalidTextRepresentation,
            };
            SqlError::new(code, message)
        }),
        ArrowError::ParseError(message) => cast_failed(message),
        ArrowError::CsvError(message) => SqlError::new(Code::BadCopyFileFormat, message),
        ArrowError::JsonError(message) => SqlError::new(Code::InvalidTextRepresentation, message),
        ArrowError::NotYetImplemented(message) => {
            SqlError::new(Code::FeatureNotSupported, message.clone())
        }
        ArrowError::IoError(message, _) if is_full(message) => exhausted(message),
        ArrowError::IoError(message, _) => SqlError::new(Code::IoError, message.clone()),
        ArrowError::ParquetError(message) => from_parquet(message),
        ArrowError::IpcError(message) => SqlError::new(Code::DataCorrupted, message.clone()),
        ArrowError::InvalidArgumentError(message) => {
            let other = || SqlError::new(Code::DataException, error.to_string());
            told::digits(message).unwrap_or_else(other)
        }
        other => SqlError::new(Code::DataException, other.to_string()),
    }
}

fn of_parquet(error: &ParquetError) -> SqlError {
    caused(error).unwrap_or_else(|| from_parquet(&error.to_string()))
}

/// Returns the error of a Parquet file that cannot be read, or of a condition on its rows. Of the latter, the reader
/// tells the cause in its text alone.
fn from_parquet(message: &str) -> SqlError {
    let Some((_, cause)) = message.split_once("Error evaluating filter predicate: ") else {
        return SqlError::new(Code::DataCorrupted, message);
    };
    let ours = cause.split_once("SqlError { code: ").and_then(|(_, rest)| {
        let (code, rest) = rest.split_once(", message: \"")?;
        let (text, _) = rest.split_once("\", ")?;
        Some(SqlError::new(Code::named(code)?, text))
    });
    let arrow = || match cause {
        _ if cause.contains("DivideByZero") => arrow_text(&ArrowError::DivideByZero),
        _ if cause.contains("ArithmeticOverflow(") => {
            SqlError::new(Code::NumericValueOutOfRange, "a number is out of range")
        }
        _ if cause.contains("CastError(") || cause.contains("ParseError(") => {
            SqlError::new(Code::InvalidTextRepresentation, cause)
        }
        _ => SqlError::new(Code::DataException, cause),
    };
    ours.unwrap_or_else(arrow)
}

fn cast_failed(message: &str) -> SqlError {
    if let Some(told) = told::cast(message) {
        return told;
    }
    let is_time = message.contains("timestamp") || message.contains("date");
    let code = match is_time {
        true => Code::InvalidDatetimeFormat,
        false => Code::InvalidTextRepresentation,
    };
    SqlError::new(code, message)
}

fn from_parser(error: ParserError) -> SqlError {
    let message = match error {
        ParserError::TokenizerError(message) | ParserError::ParserError(message) => message,
        ParserError::RecursionLimitExceeded => {
            return SqlError::new(Code::StatementTooComplex, "the statement nests too deeply")
                .with_hint("use fewer nested parentheses and subqueries");
        }
    };
    let place = place_of(&message);
    let text = message.split(" at Line:").next().unwrap_or(&message);
    SqlError {
        place,
        ..SqlError::new(Code::SyntaxError, format!("syntax error: {text}"))
    }
}

/// Returns the place that a message of the parser ends with, as in `... at Line: 1, Column: 8`.
fn place_of(message: &str) -> Option<Place> {
    let (_, place) = message.rsplit_once(" at Line: ")?;
    let (line, column) = place.split_once(", Column: ")?;
    let digits = column.find(|letter: char| !letter.is_ascii_digit());
    Some(Place {
        line: line.parse().ok()?,
        column: column[..digits.unwrap_or(column.len())].parse().ok()?,
    })
}

fn from_schema(error: &SchemaError) -> SqlError {
    let text = error.to_string();
    let code = match error {
        SchemaError::AmbiguousReference { .. } => Code::AmbiguousColumn,
        SchemaError::DuplicateQualifiedField { .. }
        | SchemaError::DuplicateUnqualifiedField { .. } => Code::DuplicateColumn,
        SchemaError::FieldNotFound { field, .. } => {
            let (_, hint) = text.split_once(". ").unwrap_or((&text, ""));
            // The setting would change what names mean in every statement.
            let setting =
                " or disable the datafusion.sql_parser.enable_ident_normalization configuration";
            let hint = hint.replace(setting, "");
            let error = SqlError::new(
                Code::UndefinedColumn,
                format!("column {} does not exist", field.quoted_flat_name()),
            );
            return match hint.trim_end_matches('.') {
                "" => error,
                hint => error.with_hint(hint),
            };
        }
    };
    SqlError::new(code, text)
}

/// Returns whether a message tells that queries wrote as much to the disk as they may.
fn is_full(message: &str) -> bool {
    message.contains("used disk space during the spilling")
}

fn exhausted(message: &str) -> SqlError {
    if is_full(message) {
        let message =
            "the statement needs more memory than there is, and more of the disk than it may use";
        return SqlError::new(Code::DiskFull, message)
            .with_hint("select less at a time, or raise --tables-spill-bytes-max");
    }
    SqlError::new(Code::OutOfMemory, message)
        .with_hint("select less at a time, or raise --tables-memory-bytes-max")
}

fn from_store(error: &object_store::Error) -> SqlError {
    use object_store::Error;
    if let Some(ours) = caused(error) {
        return ours;
    }
    match error {
        Error::NotFound { path, .. } => {
            SqlError::new(Code::UndefinedFile, format!("there is no file {path}"))
        }
        Error::PermissionDenied { path, .. } => SqlError::new(
            Code::InsufficientPrivilege,
            format!("this server may not read {path}"),
        ),
        other => SqlError::new(Code::IoError, other.to_string()),
    }
}

fn from_io(error: &std::io::Error) -> SqlError {
    if let Some(ours) = error.get_ref().and_then(|inner| caused(inner)) {
        return ours;
    }
    let message = error.to_string();
    if is_full(&message) {
        return exhausted(&message);
    }
    SqlError::new(Code::of_io(error), message)
}

impl Code {
    /// Returns the code of an error of the disk.
    pub(crate) fn of_io(error: &std::io::Error) -> Code {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound => Code::UndefinedFile,
            ErrorKind::PermissionDenied => Code::InsufficientPrivilege,
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
                Code::DiskFull
            }
            _ => Code::IoError,
        }
    }
}

/// Returns the error of a plan that cannot be made. DataFusion tells its cause in its text alone.
fn planned(message: &str) -> SqlError {
    if let Some(told) = told::call(message) {
        return told;
    }
    // DataFusion does not know the format of this program.
    let message = message.replace(
        "'pgjson' or 'graphviz'",
        "'pgjson', 'graphviz' or, as the only option, 'kernel'",
    );
    let begins = |start: &str| message.starts_with(start);
    let code = if begins("table ") && message.ends_with("not found") {
        Code::UndefinedTable
    } else if begins("Invalid function ") {
        Code::UndefinedFunction
    } else if message.contains("must be part of GROUP BY")
        || message.contains("appear in the GROUP BY")
    {
        Code::GroupingError
    } else if message.contains("Cannot coerce") || message.contains("cannot be coerced") {
        Code::DatatypeMismatch
    } else if message.contains("already exists") {
        Code::DuplicateTable
    } else if begins("failed to resolve schema") {
        Code::InvalidSchemaName
    } else {
        Code::SyntaxOrAccess
    };
    match message.split_once(".\nDid you mean ") {
        Some((message, names)) => {
            SqlError::new(code, message).with_hint(format!("did you mean {names}"))
        }
        None => SqlError::new(code, message),
    }
}

fn executed(message: String) -> SqlError {
    let code = if message.contains("ivide by zero") {
        Code::DivisionByZero
    } else if message.contains("verflow") {
        Code::NumericValueOutOfRange
    } else if message.contains("already exists") {
        Code::DuplicateTable
    } else if message.contains("doesn't exist") || message.contains("does not exist") {
        Code::UndefinedTable
    } else {
        Code::DataException
    };
    SqlError::new(code, message)
}
