//! `getParameter`: the few server parameters that drivers and shells read.

use bson::raw::CString;
use bson::{RawBson, RawBsonRef, RawDocumentBuf, cstr, rawdoc};
use forebay_documents_query::Code;

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::error::CommandError;
use crate::request::Request;
use crate::settings::MESSAGE_BYTES_MAX;

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "getParameter",
    help: "shows server parameters and their values",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

fn parameters(request: &Request<'_>) -> Vec<(&'static str, RawBson)> {
    let settings = request.documents.settings();
    vec![
        (
            "authenticationMechanisms",
            RawBson::Array(["SCRAM-SHA-256"].into_iter().collect()),
        ),
        (
            "cursorTimeoutMillis",
            RawBson::Int64(settings.cursor_timeout.as_millis() as i64),
        ),
        (
            "enableTestCommands",
            RawBson::Boolean(settings.test_commands),
        ),
        (
            "featureCompatibilityVersion",
            RawBson::Document(rawdoc! { "version": "7.0" }),
        ),
        ("forebayStrict", RawBson::Boolean(settings.strict)),
        (
            "forebayBucketValuesMax",
            RawBson::Int64(settings.bucket_values_max as i64),
        ),
        (
            "internalQueryMaxBlockingSortMemoryUsageBytes",
            RawBson::Int64(settings.stage_memory_bytes_max as i64),
        ),
        (
            "journalCommitInterval",
            RawBson::Int64(settings.sync_interval.as_millis() as i64),
        ),
        ("localLogicalSessionTimeoutMinutes", RawBson::Int32(30)),
        (
            "maxMessageSizeBytes",
            RawBson::Int32(MESSAGE_BYTES_MAX as i32),
        ),
        ("quiet", RawBson::Boolean(false)),
        ("requireApiVersion", RawBson::Boolean(false)),
        ("transactionLifetimeLimitSeconds", RawBson::Int32(0)),
    ]
}

fn run(request: &Request<'_>) -> Reply {
    request.admin_only()?;
    let all = wants_all(request);
    let mut reply = RawDocumentBuf::new();
    for (name, value) in parameters(request) {
        if all || request.arguments.get(name).is_some() {
            reply.append(
                CString::try_from(name).expect("parameter names hold no NUL"),
                value,
            );
        }
    }
    if reply.is_empty() {
        return Err(CommandError::refused(
            Code::InvalidOptions,
            "no option found to get",
        ));
    }
    reply.append(cstr!("ok"), 1.0);
    Ok(reply)
}

fn wants_all(request: &Request<'_>) -> bool {
    match request.arguments.subject() {
        Some(RawBsonRef::String("*")) => true,
        Some(RawBsonRef::Document(options)) => options.get_bool("allParameters").unwrap_or(false),
        _ => false,
    }
}
