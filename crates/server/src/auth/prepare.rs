//! Checks user names and passwords, and normalises passwords.

use super::users::UserError;

/// Maximum bytes of a user name.
const NAME_BYTES_MAX: usize = 256;
/// Maximum bytes of a password.
const PASSWORD_BYTES_MAX: usize = 1024;

/// Normalises a password as SCRAM-SHA-256 requires (SASLprep, RFC 4013), as clients do too.
///
/// # Errors
/// If the password is empty, too long, or has characters that SASLprep forbids.
pub fn password(password: &str) -> Result<String, UserError> {
    if password.is_empty() {
        return Err(UserError::Password {
            problem: "is empty",
        });
    }
    if password.len() > PASSWORD_BYTES_MAX {
        return Err(UserError::Password {
            problem: "is longer than 1024 bytes",
        });
    }
    match stringprep::saslprep(password) {
        Ok(prepared) => Ok(prepared.into_owned()),
        Err(_) => Err(UserError::Password {
            problem: "has characters that SASLprep (RFC 4013) forbids",
        }),
    }
}

/// Checks a user name. Names are compared byte by byte, as in MongoDB.
///
/// # Errors
/// If the name is empty, too long or has a zero byte.
pub fn user_name(name: &str) -> Result<(), UserError> {
    match name {
        "" => Err(UserError::Name {
            problem: "is empty",
        }),
        name if name.len() > NAME_BYTES_MAX => Err(UserError::Name {
            problem: "is longer than 256 bytes",
        }),
        name if name.contains('\0') => Err(UserError::Name {
            problem: "has a zero byte",
        }),
        _ => Ok(()),
    }
}
