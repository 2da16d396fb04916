//! The parts of the handshake that Forebay's server and its proxy share.

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::Compressor;

/// The latest wire version that this crate supports: MongoDB 7.0.
pub const WIRE_VERSION_MAX: i32 = 21;
/// Maximum bytes of a client's application name. Drivers have the same limit.
const APP_NAME_BYTES_MAX: usize = 128;

/// All names of the hello command.
pub const NAMES: [&str; 3] = ["hello", "isMaster", "ismaster"];

/// Returns whether `command` is one of hello's names.
pub fn is_hello(command: &str) -> bool {
    NAMES.contains(&command)
}

/// Appends the compressors that both sides support, in the client's order. Appends no field if there are no such
/// compressors.
pub fn append_compression(reply: &mut RawDocumentBuf, hello: &RawDocument) {
    let Ok(asked) = hello.get_array("compression") else {
        return;
    };
    let mut common = RawArrayBuf::new();
    for name in asked.into_iter().flatten().filter_map(|name| name.as_str()) {
        if let Some(compressor) = Compressor::from_name(name) {
            common.push(compressor.name());
        }
    }
    if !common.is_empty() {
        reply.append(cstr!("compression"), common);
    }
}

/// Returns the application name in the `client` document of a hello; `None` if it is missing or longer than drivers
/// allow.
pub fn app_name(metadata: &RawDocument) -> Option<&str> {
    let application = metadata.get_document("application").ok()?;
    let name = application.get_str("name").ok()?;
    (name.len() <= APP_NAME_BYTES_MAX).then_some(name)
}

/// Returns the error for a command that is not allowed in an `OP_QUERY`.
pub fn unsupported_query(name: &str) -> RawDocumentBuf {
    let message = format!(
        "Unsupported OP_QUERY command: {name}. The client driver may require an upgrade. For more details see \
         https://dochub.mongodb.org/core/legacy-opcode-removal"
    );
    rawdoc! { "ok": 0.0, "errmsg": message, "code": 352, "codeName": "UnsupportedOpQueryCommand" }
}
