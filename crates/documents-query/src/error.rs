//! The error of this crate, and the table of MongoDB's error codes.

use forebay_cancel::{StopReason, Stopped};
use forebay_memory::Full;

/// Why a query, an update or a pipeline was refused or failed, with MongoDB's code and wording.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// MongoDB's error code.
    pub code: Code,
    /// Text for the `errmsg` of the reply.
    pub message: String,
}

impl Error {
    /// Builds an error with this code and message.
    pub fn new(code: Code, message: impl Into<String>) -> Error {
        Error {
            code,
            message: message.into(),
        }
    }

    /// Builds an error with the code `BadValue`, which most parse errors in filters have.
    pub(crate) fn bad_value(message: impl Into<String>) -> Error {
        Error::new(Code::BadValue, message)
    }

    /// Builds a `FailedToParse` error.
    pub(crate) fn parse(message: impl Into<String>) -> Error {
        Error::new(Code::FailedToParse, message)
    }

    /// Builds a `TypeMismatch` error.
    pub(crate) fn type_mismatch(message: impl Into<String>) -> Error {
        Error::new(Code::TypeMismatch, message)
    }
}

impl From<Full> for Error {
    fn from(full: Full) -> Error {
        Error::new(Code::ExceededMemoryLimit, full.to_string())
    }
}

impl From<Stopped> for Error {
    fn from(stopped: Stopped) -> Error {
        match stopped.reason {
            StopReason::Deadline => {
                Error::new(Code::MaxTimeMSExpired, "operation exceeded time limit")
            }
            StopReason::Cancelled => Error::new(Code::Interrupted, "operation was interrupted"),
            StopReason::MemoryFull { limit_bytes } => Full { limit_bytes }.into(),
        }
    }
}

/// Declares [`Code`] from one list of names and numbers.
macro_rules! codes {
    ($($name:ident = $number:literal),* $(,)?) => {
        /// A MongoDB error code: the `code` and `codeName` of an error reply.
        ///
        /// Sources: `src/mongo/base/error_codes.yml` of the MongoDB server. Codes without a name in that file are
        /// called `Location<number>`, as in the server.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "the names are MongoDB's own, and a client reads them as they are")]
        pub enum Code { $($name = $number),* }

        impl Code {
            /// Every code that this server uses.
            pub const ALL: &[Code] = &[$(Code::$name),*];

            /// Returns MongoDB's `codeName`.
            pub fn name(self) -> &'static str {
                match self { $(Code::$name => stringify!($name)),* }
            }
        }
    };
}

codes! {
    InternalError = 1,
    BadValue = 2,
    NoSuchKey = 4,
    GraphContainsCycle = 5,
    HostUnreachable = 6,
    HostNotFound = 7,
    UnknownError = 8,
    FailedToParse = 9,
    CannotMutateObject = 10,
    UserNotFound = 11,
    UnsupportedFormat = 12,
    Unauthorized = 13,
    TypeMismatch = 14,
    Overflow = 15,
    InvalidLength = 16,
    ProtocolError = 17,
    AuthenticationFailed = 18,
    IllegalOperation = 20,
    EmptyArrayOperation = 21,
    InvalidBSON = 22,
    LockTimeout = 24,
    NamespaceNotFound = 26,
    IndexNotFound = 27,
    PathNotViable = 28,
    NonExistentPath = 29,
    InvalidPath = 30,
    RoleNotFound = 31,
    CannotBackfillArray = 34,
    ConflictingUpdateOperators = 40,
    CursorNotFound = 43,
    NoMatchingDocument = 47,
    NamespaceExists = 48,
    MaxTimeMSExpired = 50,
    DollarPrefixedFieldName = 52,
    InvalidIdField = 53,
    NotSingleValueField = 54,
    InvalidDBRef = 55,
    EmptyFieldName = 56,
    DottedFieldName = 57,
    CommandNotFound = 59,
    WriteConcernTimeout = 64,
    ImmutableField = 66,
    CannotCreateIndex = 67,
    IndexAlreadyExists = 68,
    InvalidOptions = 72,
    InvalidNamespace = 73,
    UnknownReplWriteConcern = 79,
    IndexOptionsConflict = 85,
    IndexKeySpecsConflict = 86,
    NetworkTimeout = 89,
    ShutdownInProgress = 91,
    OperationFailed = 96,
    DBPathInUse = 98,
    UnsatisfiableWriteConcern = 100,
    WriteConflict = 112,
    CommandNotSupported = 115,
    ConflictingOperationInProgress = 117,
    DocumentValidationFailure = 121,
    CommandFailed = 125,
    CursorInUse = 143,
    ExceededMemoryLimit = 146,
    ZLibError = 147,
    CommandNotSupportedOnView = 166,
    OptionNotSupportedOnView = 167,
    InvalidPipelineOperator = 168,
    CannotIndexParallelArrays = 171,
    QueryPlanKilled = 175,
    FileOpenFailed = 176,
    AmbiguousIndexKeyPattern = 181,
    InvalidIndexSpecificationOption = 197,
    NoSuchSession = 206,
    InvalidUUID = 207,
    IncompleteTransactionHistory = 217,
    QueryFeatureNotAllowed = 224,
    TransactionTooOld = 225,
    MaxSubPipelineDepthExceeded = 232,
    TooManyDocumentSequences = 233,
    CursorKilled = 237,
    NotImplemented = 238,
    ConversionFailure = 241,
    NoSuchTransaction = 251,
    InvalidResumeToken = 260,
    TooManyLogicalSessions = 261,
    ExceededTimeLimit = 262,
    OperationNotSupportedInTransaction = 263,
    IndexBuildAborted = 276,
    ChangeStreamFatalError = 280,
    ClientMarkedKilled = 284,
    ChangeStreamHistoryLost = 286,
    NoQueryExecutionPlans = 291,
    QueryExceededMemoryLimitNoDiskUseAllowed = 292,
    APIVersionError = 322,
    APIStrictError = 323,
    MechanismUnavailable = 334,
    UnsupportedOpQueryCommand = 352,
    BSONObjectTooLarge = 10334,
    DuplicateKey = 11000,
    InterruptedAtShutdown = 11600,
    Interrupted = 11601,
    MergeStageNoMatchingDocument = 13113,
    OutOfDiskSpace = 14031,
    KeyTooLong = 17280,
    Location10065 = 10065,
    Location15947 = 15947,
    Location15952 = 15952,
    Location15955 = 15955,
    Location15958 = 15958,
    Location15959 = 15959,
    Location15969 = 15969,
    Location15973 = 15973,
    Location15974 = 15974,
    Location15975 = 15975,
    Location15976 = 15976,
    Location15981 = 15981,
    Location15983 = 15983,
    Location15998 = 15998,
    Location16006 = 16006,
    Location16007 = 16007,
    Location16020 = 16020,
    Location16034 = 16034,
    Location16035 = 16035,
    Location16410 = 16410,
    Location16411 = 16411,
    Location16412 = 16412,
    Location16610 = 16610,
    Location16611 = 16611,
    Location16612 = 16612,
    Location16702 = 16702,
    Location16872 = 16872,
    Location16874 = 16874,
    Location16875 = 16875,
    Location16876 = 16876,
    Location16877 = 16877,
    Location16878 = 16878,
    Location16879 = 16879,
    Location16880 = 16880,
    Location16882 = 16882,
    Location16883 = 16883,
    Location16990 = 16990,
    Location17042 = 17042,
    Location17043 = 17043,
    Location17044 = 17044,
    Location17046 = 17046,
    Location17047 = 17047,
    Location17048 = 17048,
    Location17049 = 17049,
    Location17080 = 17080,
    Location17081 = 17081,
    Location17082 = 17082,
    Location17083 = 17083,
    Location17124 = 17124,
    Location17217 = 17217,
    Location17276 = 17276,
    Location18533 = 18533,
    Location18536 = 18536,
    Location28646 = 28646,
    Location28647 = 28647,
    Location28648 = 28648,
    Location28650 = 28650,
    Location28651 = 28651,
    Location28656 = 28656,
    Location28657 = 28657,
    Location28664 = 28664,
    Location28667 = 28667,
    Location28680 = 28680,
    Location28689 = 28689,
    Location28690 = 28690,
    Location28691 = 28691,
    Location28714 = 28714,
    Location28724 = 28724,
    Location28725 = 28725,
    Location28726 = 28726,
    Location28727 = 28727,
    Location28728 = 28728,
    Location28729 = 28729,
    Location28745 = 28745,
    Location28746 = 28746,
    Location28747 = 28747,
    Location28748 = 28748,
    Location28749 = 28749,
    Location28761 = 28761,
    Location28762 = 28762,
    Location28763 = 28763,
    Location28764 = 28764,
    Location28765 = 28765,
    Location28766 = 28766,
    Location28808 = 28808,
    Location28809 = 28809,
    Location28810 = 28810,
    Location28811 = 28811,
    Location28812 = 28812,
    Location28818 = 28818,
    Location28822 = 28822,
    Location31002 = 31002,
    Location31022 = 31022,
    Location31023 = 31023,
    Location31024 = 31024,
    Location31119 = 31119,
    Location31120 = 31120,
    Location31249 = 31249,
    Location31250 = 31250,
    Location31252 = 31252,
    Location31253 = 31253,
    Location31254 = 31254,
    Location31255 = 31255,
    Location31256 = 31256,
    Location31274 = 31274,
    Location31275 = 31275,
    Location31276 = 31276,
    Location31394 = 31394,
    Location31395 = 31395,
    Location34435 = 34435,
    Location34443 = 34443,
    Location34444 = 34444,
    Location34445 = 34445,
    Location34446 = 34446,
    Location34447 = 34447,
    Location34448 = 34448,
    Location34449 = 34449,
    Location34450 = 34450,
    Location34451 = 34451,
    Location34452 = 34452,
    Location34453 = 34453,
    Location34454 = 34454,
    Location34455 = 34455,
    Location34471 = 34471,
    Location34473 = 34473,
    Location40060 = 40060,
    Location40061 = 40061,
    Location40062 = 40062,
    Location40063 = 40063,
    Location40064 = 40064,
    Location40065 = 40065,
    Location40066 = 40066,
    Location40067 = 40067,
    Location40068 = 40068,
    Location40075 = 40075,
    Location40076 = 40076,
    Location40077 = 40077,
    Location40078 = 40078,
    Location40079 = 40079,
    Location40080 = 40080,
    Location40081 = 40081,
    Location40085 = 40085,
    Location40086 = 40086,
    Location40087 = 40087,
    Location40090 = 40090,
    Location40093 = 40093,
    Location40094 = 40094,
    Location40096 = 40096,
    Location40097 = 40097,
    Location40148 = 40148,
    Location40149 = 40149,
    Location40156 = 40156,
    Location40157 = 40157,
    Location40158 = 40158,
    Location40159 = 40159,
    Location40160 = 40160,
    Location40228 = 40228,
    Location40229 = 40229,
    Location40230 = 40230,
    Location40231 = 40231,
    Location40234 = 40234,
    Location40235 = 40235,
    Location40236 = 40236,
    Location40237 = 40237,
    Location40238 = 40238,
    Location40272 = 40272,
    Location40323 = 40323,
    Location40324 = 40324,
    Location40352 = 40352,
    Location40353 = 40353,
    Location40386 = 40386,
    Location40390 = 40390,
    Location40391 = 40391,
    Location40392 = 40392,
    Location40393 = 40393,
    Location40394 = 40394,
    Location40395 = 40395,
    Location40396 = 40396,
    Location40397 = 40397,
    Location40398 = 40398,
    Location40400 = 40400,
    Location40413 = 40413,
    Location40414 = 40414,
    Location40415 = 40415,
    Location40517 = 40517,
    Location40536 = 40536,
    Location40573 = 40573,
    Location40601 = 40601,
    Location40602 = 40602,
    Location40674 = 40674,
    Location50699 = 50699,
    Location50700 = 50700,
    Location50738 = 50738,
    Location50752 = 50752,
    NotARetryableWriteCommand = 50768,
    Location51024 = 51024,
    Location51074 = 51074,
    Location51075 = 51075,
    Location51082 = 51082,
    Location51083 = 51083,
    Location51091 = 51091,
    Location51103 = 51103,
    Location51104 = 51104,
    Location51105 = 51105,
    Location51106 = 51106,
    Location51107 = 51107,
    Location51108 = 51108,
    Location51132 = 51132,
    Location51178 = 51178,
    Location51181 = 51181,
    Location51183 = 51183,
    Location51186 = 51186,
    Location51246 = 51246,
    Location51270 = 51270,
    Location51272 = 51272,
    Location51744 = 51744,
    Location51745 = 51745,
    Location51746 = 51746,
    Location327391 = 327391,
    Location327392 = 327392,
    Location1257300 = 1257300,
    Location3041701 = 3041701,
    Location3041702 = 3041702,
    Location3041703 = 3041703,
    Location3041704 = 3041704,
    Location4161100 = 4161100,
    Location4161101 = 4161101,
    Location4161102 = 4161102,
    Location4161103 = 4161103,
    Location4161105 = 4161105,
    Location4161106 = 4161106,
    Location4161107 = 4161107,
    Location4161108 = 4161108,
    Location4161109 = 4161109,
    Location4886600 = 4886600,
    Location4890500 = 4890500,
    Location4940400 = 4940400,
    Location4940401 = 4940401,
    Location5107200 = 5107200,
    Location5107201 = 5107201,
    Location5858203 = 5858203,
    Location9534700 = 9534700,
}

impl Code {
    /// Returns the number in the reply's `code`.
    pub fn number(self) -> i32 {
        self as u32 as i32
    }

    /// Returns the code with this number, or `None` if this server does not use it.
    pub fn from_number(number: i32) -> Option<Code> {
        Code::ALL
            .iter()
            .copied()
            .find(|code| code.number() == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_codes_are_named_by_their_number() {
        for code in Code::ALL {
            if let Some(number) = code.name().strip_prefix("Location") {
                assert_eq!(number, code.number().to_string());
            }
        }
    }

    #[test]
    fn codes_are_found_by_number() {
        assert_eq!(Code::from_number(2), Some(Code::BadValue));
        assert_eq!(Code::from_number(51091), Some(Code::Location51091));
        assert_eq!(Code::from_number(3), None);
        assert_eq!(Code::DuplicateKey.name(), "DuplicateKey");
    }
}
