//! `buildInfo`: the release, and the MongoDB version whose behaviour the server follows.

use bson::{RawArrayBuf, rawdoc};

use crate::arguments::Known;
use crate::dispatch::{Effect, Reply, Run, Spec};
use crate::request::Request;
use crate::settings::{DOCUMENT_BYTES_MAX, MONGODB_VERSION, MONGODB_VERSION_ARRAY};

/// The command's entry in the command table.
pub const SPEC: Spec = Spec {
    name: "buildInfo",
    help: "shows the release and the MongoDB version whose behaviour the server follows",
    known: Known::Any,
    effect: Effect::Reads,
    run: Run::Now(run),
};

/// The older, lower-case spelling of the command.
pub const LOWER_CASE: Spec = Spec {
    name: "buildinfo",
    ..SPEC
};

fn run(request: &Request<'_>) -> Reply {
    let bits = usize::BITS as i32;
    Ok(rawdoc! {
        "version": MONGODB_VERSION,
        "gitVersion": format!("forebay-{}", request.documents.settings().version),
        "modules": RawArrayBuf::new(),
        "allocator": "system",
        "javascriptEngine": "none",
        "sysInfo": "deprecated",
        "versionArray": RawArrayBuf::from_iter(MONGODB_VERSION_ARRAY),
        "openssl": { "running": "rustls", "compiled": "rustls" },
        "bits": bits,
        "debug": cfg!(debug_assertions),
        "maxBsonObjectSize": DOCUMENT_BYTES_MAX as i32,
        "storageEngines": RawArrayBuf::from_iter(["forebay"]),
        "forebay": { "version": request.documents.settings().version.as_str() },
        "ok": 1.0,
    })
}
