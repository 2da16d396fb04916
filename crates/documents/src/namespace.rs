//! Names of databases and collections, and which of them are allowed.

use std::fmt;

use forebay_documents_query::Code;

use crate::error::CommandError;

/// The longest name of a database, in bytes.
pub const DB_NAME_BYTES_MAX: usize = 63;
/// The longest `db.collection`, in bytes.
pub const NAMESPACE_BYTES_MAX: usize = 255;

const FORBIDDEN_IN_DB: &[char] = &[
    '/', '\\', '.', ' ', '"', '$', '*', '<', '>', ':', '|', '?', '\0',
];

/// A collection's full name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Namespace {
    /// The database.
    pub db: String,
    /// The collection in it.
    pub collection: String,
}

impl Namespace {
    /// Checks both names as MongoDB does.
    ///
    /// # Errors
    /// `InvalidNamespace` that names what is wrong.
    pub fn new(db: &str, collection: &str) -> Result<Namespace, CommandError> {
        check_db(db)?;
        check_collection(db, collection)?;
        Ok(Namespace {
            db: db.to_owned(),
            collection: collection.to_owned(),
        })
    }

    /// Parses `db.collection` and checks it.
    ///
    /// # Errors
    /// `InvalidNamespace`, also when there is no dot.
    pub fn parse(full: &str) -> Result<Namespace, CommandError> {
        match full.split_once('.') {
            Some((db, collection)) => Namespace::new(db, collection),
            None => Err(invalid(full)),
        }
    }

    /// A collection beside others of a database that is to take the place of one of them by `renameCollection`. It has a
    /// name of its own, and is gone when the documents are opened again.
    pub fn temporary(db: &str) -> Namespace {
        crate::commands::output::temporary(db)
    }

    /// Is it a collection that only the server itself may write?
    pub fn is_reserved(&self) -> bool {
        self.collection.starts_with("system.") && self.collection != "system.js"
    }

    /// Refuses writes to reserved collections.
    ///
    /// # Errors
    /// `InvalidNamespace`.
    pub fn writable(&self) -> Result<(), CommandError> {
        if self.is_reserved() {
            return Err(CommandError::refused(
                Code::InvalidNamespace,
                format!("cannot write to '{self}'"),
            ));
        }
        Ok(())
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.db, self.collection)
    }
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
    fn names_are_judged_like_mongodb_does() {
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
            assert_eq!(Namespace::parse(full).is_ok(), good, "{full:?}");
        }
    }

    #[test]
    fn lengths_are_bounded() {
        assert!(Namespace::new(&"d".repeat(63), "c").is_ok());
        assert!(Namespace::new(&"d".repeat(64), "c").is_err());
        assert!(Namespace::new("d", &"c".repeat(253)).is_ok());
        assert!(Namespace::new("d", &"c".repeat(254)).is_err());
    }
}
