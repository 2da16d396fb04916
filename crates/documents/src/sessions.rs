//! Sessions: ids that group cursors and operations, so that these can be ended together.

use bson::{RawBsonRef, RawDocument};
use forebay_documents_query::Code;

use crate::error::CommandError;

/// A session's id: the bytes of its UUID.
pub type SessionId = Vec<u8>;

/// Reads the session id from `lsid`.
///
/// # Errors
/// `TypeMismatch` if `lsid` has no UUID.
pub fn session_id(lsid: &RawDocument) -> Result<SessionId, CommandError> {
    match lsid.get("id") {
        Ok(Some(RawBsonRef::Binary(uuid))) if uuid.bytes.len() == 16 => Ok(uuid.bytes.to_vec()),
        _ => Err(CommandError::refused(
            Code::TypeMismatch,
            "BSON field 'lsid.id' must be a UUID",
        )),
    }
}
