//! The parts of the handshake that do not depend on which server answers.

use bson::{RawArrayBuf, RawDocument, RawDocumentBuf, cstr, rawdoc};

use crate::Compressor;

/// The newest wire version that this crate speaks: MongoDB 7.0.
pub const WIRE_VERSION_MAX: i32 = 21;
/// Maximum bytes of an application name that is kept; drivers send at most as much.
const APP_NAME_BYTES_MAX: usize = 128;

/// The names of the command.
pub const NAMES: [&str; 3] = ["hello", "isMaster", "ismaster"];

/// Returns whether `command` is a name of hello.
pub fn is_hello(command: &str) -> bool {
    NAMES.contains(&command)
}

/// Appends the compressors that both sides know, in the client's order; no field if there are none.
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

/// Returns the name of the application in the `client` document of a hello; `None` if it has none or a longer one than
/// drivers send.
pub fn app_name(metadata: &RawDocument) -> Option<&str> {
    let application = metadata.get_document("application").ok()?;
    let name = application.get_str("name").ok()?;
    (name.len() <= APP_NAME_BYTES_MAX).then_some(name)
}

/// Returns the error for an `OP_QUERY` with another command than those of the handshake.
pub fn unsupported_query(name: &str) -> RawDocumentBuf {
    let message = format!(
        "Unsupported OP_QUERY command: {name}. The client driver may require an upgrade. For more details see \
         https://dochub.mongodb.org/core/legacy-opcode-removal"
    );
    rawdoc! { "ok": 0.0, "errmsg": message, "code": 352, "codeName": "UnsupportedOpQueryCommand" }
}
