//! Names of databases and collections, and the rules for them.

use forebay_documents_query::Code;
pub use forebay_documents_store::Namespace;

use crate::error::CommandError;

/// Maximum bytes of a database's name.
pub const DB_NAME_BYTES_MAX: usize = 63;
/// Maximum bytes of `db.collection`.
pub const NAMESPACE_BYTES_MAX: usize = 255;

const FORBIDDEN_IN_DB: &[char] = &[
    '/', '\\', '.', ' ', '"', '$', '*', '<', '>', ':', '|', '?', '\0',
];

/// Returns a namespace after checking its names by MongoDB's rules.
///
/// # Errors
/// `InvalidNamespace`, whose message names the violated rule.
pub fn checked(db: &str, collection: &str) -> Result<Namespace, CommandError> {
    check_db(db)?;
    check_collection(db, collection)?;
    Ok(Namespace::new(db, collection))
}

/// Parses `db.collection` and checks the names.
///
/// # Errors
/// `InvalidNamespace`, also if there is no dot.
pub fn parse(full: &str) -> Result<Namespace, CommandError> {
    match full.split_once('.') {
        Some((db, collection)) => checked(db, collection),
        None => Err(invalid(full)),
    }
}

/// Returns the namespace of a temporary collection, with which `renameCollection` will replace another collection. The
/// name is unique. If the collection still exists when the store is opened again, it is dropped.
pub fn temporary(db: &str) -> Namespace {
    crate::commands::output::temporary(db)
}

/// Returns whether only the server itself may write to the collection.
pub fn is_reserved(namespace: &Namespace) -> bool {
    let collection = &namespace.collection;
    collection.starts_with("system.") && collection != "system.js"
}

/// Rejects writes to reserved collections.
///
/// # Errors
/// `InvalidNamespace`.
pub fn check_writable(namespace: &Namespace) -> Result<(), CommandError> {
    if is_reserved(namespace) {
        return Err(CommandError::refused(
            Code::InvalidNamespace,
            format!("cannot write to '{namespace}'"),
        ));
    }
    Ok(())
}

fn invalid(full: &str) -> CommandError {
    CommandError::refused(
        Code::InvalidNamespace,
        format!("Invalid namespace specified '{full}'"),
    )
}

/// Checks the name of a database.
///
/// # Errors
/// `InvalidNamespace`.
pub fn check_db(db: &str) -> Result<(), CommandError> {
    if db.is_empty() || db.len() > DB_NAME_BYTES_MAX || db.contains(FORBIDDEN_IN_DB) {
        return Err(CommandError::refused(
            Code::InvalidNamespace,
            format!("Invalid database name: '{db}'"),
        ));
    }
    Ok(())
}

fn check_collection(db: &str, collection: &str) -> Result<(), CommandError> {
    let wrong = collection.is_empty()
        || collection.starts_with('.')
        || collection.ends_with('.')
        || collection.contains(['$', '\0'])
        || db.len() + 1 + collection.len() > NAMESPACE_BYTES_MAX;
    if wrong {
        Err(invalid(&format!("{db}.{collection}")))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_by_mongodbs_rules() {
        for (full, good) in [
            ("a.b", true),
            ("a.b.c", true),
            ("a.system.users", true),
            ("a.", false),
            ("a", false),
            (".b", false),
            ("a..b", false),
            ("a.b.", false),
            ("a b.c", false),
            ("a.$cmd", false),
            ("a.b$c", false),
            ("a.b\0c", false),
        ] {
            assert_eq!(parse(full).is_ok(), good, "{full:?}");
        }
    }

    #[test]
    fn lengths_are_bounded() {
        assert!(checked(&"d".repeat(63), "c").is_ok());
        assert!(checked(&"d".repeat(64), "c").is_err());
        assert!(checked("d", &"c".repeat(253)).is_ok());
        assert!(checked("d", &"c".repeat(254)).is_err());
    }
}
