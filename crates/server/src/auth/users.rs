//! The users of a server: a name, the database it belongs to, and what is stored of the password.
//!
//! Every user may do everything; there are no roles beside `root`.

use forebay_documents::{Documents, User};
use serde::{Deserialize, Serialize};

use super::prepare;
use super::scram::Credentials;

/// The database that users belong to unless they say otherwise.
pub const DEFAULT_DATABASE: &str = "admin";

/// Why a user can not be added, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The name can not be one.
    #[error("the user name {problem}")]
    Name { problem: &'static str },
    /// The password can not be one.
    #[error("the password {problem}")]
    Password { problem: &'static str },
    /// A user of this name is there already.
    #[error("User \"{name}@{db}\" already exists")]
    Exists { name: String, db: String },
    /// No user has this name.
    #[error("User \"{name}@{db}\" not found")]
    NotFound { name: String, db: String },
    /// What is stored for this user is not a user.
    #[error("the record of user \"{name}@{db}\" is damaged; remove the user and add it again")]
    Damaged { name: String, db: String },
    /// The store failed.
    #[error("cannot read or write users: {0}")]
    Store(String),
}

/// What is stored for a user.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    db: String,
    scram_sha_256: Credentials,
}

/// The key of a user in the store.
fn key(user: &User) -> String {
    format!("{}.{}", user.db, user.name)
}

fn store_error(error: impl std::fmt::Display) -> UserError {
    UserError::Store(error.to_string())
}

/// The user of this name and database.
pub fn user(name: &str, db: &str) -> User {
    User {
        name: name.to_owned(),
        db: db.to_owned(),
    }
}

/// Adds a user. Hashing the password takes some milliseconds, writing it a sync of the disk.
///
/// # Errors
/// If the user is there already, or the name or password can not be one.
pub fn add(documents: &Documents, user: &User, password: &str) -> Result<(), UserError> {
    if exists(documents, user)? {
        return Err(UserError::Exists {
            name: user.name.clone(),
            db: user.db.clone(),
        });
    }
    put(documents, user, password)
}

/// Gives a user another password.
///
/// # Errors
/// If there is no such user, or the password can not be one.
pub fn replace(documents: &Documents, user: &User, password: &str) -> Result<(), UserError> {
    if !exists(documents, user)? {
        return Err(not_found(user));
    }
    put(documents, user, password)
}

fn put(documents: &Documents, user: &User, password: &str) -> Result<(), UserError> {
    prepare::user_name(&user.name)?;
    let scram_sha_256 = Credentials::derive(&prepare::password(password)?);
    let record = Record {
        name: user.name.clone(),
        db: user.db.clone(),
        scram_sha_256,
    };
    let record = bson::serialize_to_vec(&record).map_err(store_error)?;
    documents
        .users()
        .put(&key(user), &record)
        .map_err(store_error)
}

/// Removes a user.
///
/// # Errors
/// If there is no such user.
pub fn remove(documents: &Documents, user: &User) -> Result<(), UserError> {
    match documents.users().remove(&key(user)).map_err(store_error)? {
        true => Ok(()),
        false => Err(not_found(user)),
    }
}

fn not_found(user: &User) -> UserError {
    UserError::NotFound {
        name: user.name.clone(),
        db: user.db.clone(),
    }
}

/// All users, in order of database and name.
///
/// # Errors
/// If the store fails.
pub fn list(documents: &Documents) -> Result<Vec<User>, UserError> {
    let keys = documents.users().list().map_err(store_error)?;
    let split = |key: &String| key.split_once('.').map(|(db, name)| user(name, db));
    Ok(keys.iter().filter_map(split).collect())
}

/// True if there is such a user.
///
/// # Errors
/// If the store fails.
pub fn exists(documents: &Documents, user: &User) -> Result<bool, UserError> {
    Ok(documents
        .users()
        .get(&key(user))
        .map_err(store_error)?
        .is_some())
}

/// True if there is any user.
///
/// # Errors
/// If the store fails.
pub fn any(documents: &Documents) -> Result<bool, UserError> {
    Ok(!documents.users().list().map_err(store_error)?.is_empty())
}

/// What is stored of a user's password, if there is such a user.
///
/// # Errors
/// If the store fails or the record is damaged.
pub fn credentials(documents: &Documents, user: &User) -> Result<Option<Credentials>, UserError> {
    let Some(record) = documents.users().get(&key(user)).map_err(store_error)? else {
        return Ok(None);
    };
    let damaged = |_| UserError::Damaged {
        name: user.name.clone(),
        db: user.db.clone(),
    };
    let record: Record = bson::deserialize_from_slice(&record).map_err(damaged)?;
    Ok(Some(record.scram_sha_256))
}
