//! The users of a server: name, database, credentials and roles.

use forebay_documents::{Documents, Role, User};
use serde::{Deserialize, Serialize};

use super::prepare;
use super::scram::Credentials;

/// Database of a user if the command names none.
pub const DEFAULT_DATABASE: &str = "admin";

/// Why a user cannot be added, found or removed.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// The name is invalid.
    #[error("the user name {problem}")]
    Name { problem: &'static str },
    /// The password is invalid.
    #[error("the password {problem}")]
    Password { problem: &'static str },
    /// A user of this name exists.
    #[error("User \"{name}@{db}\" already exists")]
    Exists { name: String, db: String },
    /// No user has this name.
    #[error("User \"{name}@{db}\" not found")]
    NotFound { name: String, db: String },
    /// The stored record of this user is damaged.
    #[error("the record of user \"{name}@{db}\" is damaged; remove the user and add it again")]
    Damaged { name: String, db: String },
    /// The store failed.
    #[error("cannot read or write users: {0}")]
    Store(String),
}

/// The stored form of a user.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    name: String,
    db: String,
    scram_sha_256: Credentials,
    /// Records of releases without roles lack this field. Their users get the role `root`.
    #[serde(default = "root_alone")]
    roles: Vec<StoredRole>,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredRole {
    role: String,
    db: String,
}

fn root_alone() -> Vec<StoredRole> {
    stored(&[Role::root()])
}

fn stored(roles: &[Role]) -> Vec<StoredRole> {
    let stored = |role: &Role| StoredRole {
        role: role.name().to_owned(),
        db: role.db().to_owned(),
    };
    roles.iter().map(stored).collect()
}

/// Credentials and roles of a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// Stored hashes of the password.
    pub credentials: Credentials,
    /// The user's roles.
    pub roles: Vec<Role>,
}

/// Returns the key of a user in the store.
fn key(user: &User) -> String {
    format!("{}.{}", user.db, user.name)
}

fn store_error(error: impl std::fmt::Display) -> UserError {
    UserError::Store(error.to_string())
}

/// Creates the identifier of a user.
pub fn user(name: &str, db: &str) -> User {
    User {
        name: name.to_owned(),
        db: db.to_owned(),
    }
}

/// Adds a user. Hashes the password, which takes several milliseconds, and syncs the disk.
///
/// # Errors
/// If the user exists, or the name or password is invalid.
pub fn add(
    documents: &Documents,
    user: &User,
    password: &str,
    roles: Vec<Role>,
) -> Result<(), UserError> {
    if exists(documents, user)? {
        return Err(UserError::Exists {
            name: user.name.clone(),
            db: user.db.clone(),
        });
    }
    prepare::user_name(&user.name)?;
    let credentials = hashed(password)?;
    put(documents, user, Account { credentials, roles })
}

/// Changes a user's password, roles or both.
///
/// # Errors
/// If there is no such user, or the password is invalid.
pub fn change(
    documents: &Documents,
    user: &User,
    password: Option<&str>,
    roles: Option<Vec<Role>>,
) -> Result<(), UserError> {
    let mut account = account(documents, user)?.ok_or_else(|| not_found(user))?;
    if let Some(password) = password {
        account.credentials = hashed(password)?;
    }
    if let Some(roles) = roles {
        account.roles = roles;
    }
    put(documents, user, account)
}

fn hashed(password: &str) -> Result<Credentials, UserError> {
    Ok(Credentials::derive(&prepare::password(password)?))
}

/// Returns whether credentials are those of a password. Takes several milliseconds of one core.
#[cfg(feature = "tables")]
pub fn is_password_of(password: &str, credentials: &Credentials) -> bool {
    prepare::password(password).is_ok_and(|prepared| credentials.are_of(&prepared))
}

fn put(documents: &Documents, user: &User, account: Account) -> Result<(), UserError> {
    let record = Record {
        name: user.name.clone(),
        db: user.db.clone(),
        scram_sha_256: account.credentials,
        roles: stored(&account.roles),
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
    if documents.users().remove(&key(user)).map_err(store_error)? {
        Ok(())
    } else {
        Err(not_found(user))
    }
}

fn not_found(user: &User) -> UserError {
    UserError::NotFound {
        name: user.name.clone(),
        db: user.db.clone(),
    }
}

/// Lists all users with their roles, sorted by database and name. A user with a damaged record is listed without roles.
///
/// # Errors
/// If the store fails.
pub fn list(documents: &Documents) -> Result<Vec<(User, Vec<Role>)>, UserError> {
    let keys = documents.users().list().map_err(store_error)?;
    let split = |key: &String| key.split_once('.').map(|(db, name)| user(name, db));
    let with_roles = |user: User| match account(documents, &user) {
        Err(error @ UserError::Store(_)) => Err(error),
        Ok(Some(account)) => Ok((user, account.roles)),
        Ok(None) | Err(_) => Ok((user, Vec::new())),
    };
    keys.iter().filter_map(split).map(with_roles).collect()
}

fn exists(documents: &Documents, user: &User) -> Result<bool, UserError> {
    let record = documents.users().get(&key(user)).map_err(store_error)?;
    Ok(record.is_some())
}

/// Returns whether any user exists.
///
/// # Errors
/// If the store fails.
pub fn any(documents: &Documents) -> Result<bool, UserError> {
    Ok(!documents.users().list().map_err(store_error)?.is_empty())
}

/// Reads a user's credentials and roles. Returns `None` if there is no such user.
///
/// # Errors
/// If the store fails or the record is damaged.
pub fn account(documents: &Documents, user: &User) -> Result<Option<Account>, UserError> {
    let Some(record) = documents.users().get(&key(user)).map_err(store_error)? else {
        return Ok(None);
    };
    let damaged = |_| UserError::Damaged {
        name: user.name.clone(),
        db: user.db.clone(),
    };
    let record: Record = bson::deserialize_from_slice(&record).map_err(damaged)?;
    // A role that this release does not know gives no rights.
    let known = |stored: &StoredRole| Role::new(&stored.role, &stored.db);
    Ok(Some(Account {
        credentials: record.scram_sha_256,
        roles: record.roles.iter().filter_map(known).collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_from_before_there_were_roles_may_do_everything() {
        let credentials = Credentials::of_missing_user("ada", "admin", b"secret");
        let before = bson::doc! {
            "name": "ada",
            "db": "admin",
            "scram_sha_256": bson::serialize_to_bson(&credentials).expect("text and numbers"),
        };
        let record: Record = bson::deserialize_from_document(before).expect("a record");
        let roles: Vec<String> = record.roles.into_iter().map(|role| role.role).collect();
        assert_eq!(roles, ["root"]);
    }
}
