//! The options of `{$changeStream: {…}}`.

use bson::{RawArray, RawBsonRef, RawDocument};
use forebay_documents_query::Code;
use forebay_documents_store::{ClusterTime, Interest};

use super::STAGE;
use super::token::{Mark, ResumeToken};
use crate::arguments::{Arguments, Known, wrong_type};
use crate::commands::aggregate::first_stage;
use crate::error::CommandError;
use crate::namespace::Namespace;
use crate::request::Request;

/// Databases whose changes a stream omits, as in MongoDB.
pub const INTERNAL_DATABASES: [&str; 3] = ["admin", "config", "local"];

/// The start position of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The stream starts at the next write.
    Now,
    /// The stream starts after this resume token.
    After(ResumeToken),
    /// The stream starts at the first change with this or a later time.
    At(ClusterTime),
}

/// The options of a change stream.
#[derive(Debug)]
pub struct Options {
    /// The changes to return.
    pub scope: Interest,
    /// The start position.
    pub start: Start,
    /// Whether an update event includes the document as it is when the event is read (`fullDocument: "updateLookup"`).
    pub looks_up: bool,
}

impl Options {
    /// Reads the options.
    ///
    /// # Errors
    /// An error for invalid options, or `NotImplemented` for options of MongoDB that this server lacks.
    pub fn read(
        request: &Request<'_>,
        namespace: &Namespace,
        pipeline: &RawArray,
    ) -> Result<Options, CommandError> {
        let operand = first_stage(pipeline).map(|(_, operand)| operand);
        let stage = match operand {
            Some(RawBsonRef::Document(stage)) => stage,
            Some(other) => return Err(wrong_type(STAGE, other, "object")),
            None => return Err(request.arguments.missing("pipeline")),
        };
        let arguments = arguments(stage)?;
        if arguments.flag("showExpandedEvents")? {
            return Err(not_implemented("showExpandedEvents: true"));
        }
        check_before_images(&arguments)?;
        Ok(Options {
            scope: scope(namespace, arguments.flag("allChangesForCluster")?)?,
            start: start(&arguments)?,
            looks_up: looks_up(&arguments)?,
        })
    }
}

fn arguments(stage: &RawDocument) -> Result<Arguments<'_>, CommandError> {
    let known = Known::Only(&[
        "allChangesForCluster",
        "fullDocument",
        "fullDocumentBeforeChange",
        "resumeAfter",
        "showExpandedEvents",
        "startAfter",
        "startAtOperationTime",
    ]);
    Arguments::parse_nested(STAGE, stage, known)
}

fn looks_up(arguments: &Arguments<'_>) -> Result<bool, CommandError> {
    match arguments.string("fullDocument")? {
        None | Some("default") => Ok(false),
        Some("updateLookup") => Ok(true),
        Some(images @ ("whenAvailable" | "required")) => {
            Err(not_implemented(&format!("fullDocument: '{images}'")))
        }
        Some(other) => Err(not_a_mode("fullDocument", other)),
    }
}

fn check_before_images(arguments: &Arguments<'_>) -> Result<(), CommandError> {
    match arguments.string("fullDocumentBeforeChange")? {
        None | Some("off") => Ok(()),
        Some(images @ ("whenAvailable" | "required")) => {
            let option = format!("fullDocumentBeforeChange: '{images}'");
            Err(not_implemented(&option))
        }
        Some(other) => Err(not_a_mode("fullDocumentBeforeChange", other)),
    }
}

fn not_implemented(option: &str) -> CommandError {
    let message = format!(
        "{option} is not supported: images of documents before or after a change are not kept"
    );
    CommandError::refused(Code::NotImplemented, message)
}

fn not_a_mode(field: &str, value: &str) -> CommandError {
    CommandError::bad_value(format!(
        "Enumeration value '{value}' for field '{STAGE}.{field}' is not a valid value."
    ))
}

fn start(arguments: &Arguments<'_>) -> Result<Start, CommandError> {
    let resume_after = arguments.document("resumeAfter")?;
    let start_after = arguments.document("startAfter")?;
    let time = start_time(arguments)?;
    match (resume_after, start_after, time) {
        (None, None, None) => Ok(Start::Now),
        (Some(token), None, None) => {
            let token = ResumeToken::parse(token)?;
            match token.mark {
                Mark::Invalidate => Err(after_invalidate()),
                Mark::HighWater | Mark::Event => Ok(Start::After(token)),
            }
        }
        (None, Some(token), None) => Ok(Start::After(ResumeToken::parse(token)?)),
        (None, None, Some(time)) => Ok(Start::At(time)),
        _ => Err(CommandError::refused(
            Code::Location40674,
            "Only one type of resume option is allowed, but multiple were found.",
        )),
    }
}

fn start_time(arguments: &Arguments<'_>) -> Result<Option<ClusterTime>, CommandError> {
    let name = "startAtOperationTime";
    match arguments.get(name) {
        None | Some(RawBsonRef::Null) => Ok(None),
        Some(RawBsonRef::Timestamp(time)) => Ok(Some(time.into())),
        Some(other) => Err(wrong_type(&format!("{STAGE}.{name}"), other, "timestamp")),
    }
}

fn after_invalidate() -> CommandError {
    CommandError::refused(
        Code::InvalidResumeToken,
        "Attempting to resume a change stream using 'resumeAfter' is not allowed from an invalidate notification: \
         use 'startAfter'",
    )
}

/// Returns the scope of a stream over `namespace`.
fn scope(namespace: &Namespace, whole_cluster: bool) -> Result<Interest, CommandError> {
    let has_collection = namespace.collection != "$cmd.aggregate";
    if whole_cluster {
        return match namespace.db.as_str() {
            "admin" if !has_collection => Ok(Interest::Everything),
            _ => Err(CommandError::refused(
                Code::InvalidOptions,
                format!(
                    "A $changeStream with 'allChangesForCluster:true' may only be opened on the 'admin' database, and \
                     with no collection name; found {namespace}"
                ),
            )),
        };
    }
    if INTERNAL_DATABASES.contains(&namespace.db.as_str()) {
        return Err(internal(&format!("{} database", namespace.db)));
    }
    if !has_collection {
        return Ok(Interest::Database(namespace.db.clone()));
    }
    if namespace.collection.starts_with("system.") {
        return Err(internal(&format!("{namespace} collection")));
    }
    Ok(Interest::Collection(namespace.clone()))
}

fn internal(what: &str) -> CommandError {
    CommandError::refused(
        Code::InvalidNamespace,
        format!("$changeStream may not be opened on the internal {what}"),
    )
}
