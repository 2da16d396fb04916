//! `createUser`, `updateUser`, `dropUser` and `usersInfo`, as far as there are users without roles.

use bson::{RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{Command, Documents, User};

use super::sasl::MECHANISM;
use super::users::{self, UserError};
use crate::door::{Code, Refusal};

/// The one role.
const ROLE: &str = "root";

/// True for the commands that [`run`] answers.
pub fn is_user_command(name: &str) -> bool {
    matches!(name, "createUser" | "updateUser" | "dropUser" | "usersInfo")
}

/// Runs a command on users. Hashes passwords and waits for the disk: call it where blocking is allowed.
///
/// # Errors
/// Whatever is wrong with the user or the password; any role but `root` is refused, as it would not be obeyed.
pub fn run(documents: &Documents, command: &Command) -> Result<RawDocumentBuf, Refusal> {
    let body = &*command.body;
    match command.name.as_str() {
        "createUser" => {
            require_root(body)?;
            users::add(documents, &named(command)?, password(body)?).map_err(refusal)?;
        }
        "updateUser" => {
            require_root(body)?;
            users::replace(documents, &named(command)?, password(body)?).map_err(refusal)?;
        }
        "dropUser" => users::remove(documents, &named(command)?).map_err(refusal)?,
        _ => return users_info(documents, command),
    }
    Ok(rawdoc! { "ok": 1.0 })
}

fn named(command: &Command) -> Result<User, Refusal> {
    match first_value(&command.body) {
        Some(RawBsonRef::String(name)) => Ok(users::user(name, &command.db)),
        _ => Err(bad_value("the user's name must be a string")),
    }
}

fn first_value(body: &RawDocument) -> Option<RawBsonRef<'_>> {
    let (_, value) = body.iter().next()?.ok()?;
    Some(value)
}

fn password(body: &RawDocument) -> Result<&str, Refusal> {
    body.get_str("pwd")
        .map_err(|_| bad_value("the password, field 'pwd', must be a string"))
}

fn require_root(body: &RawDocument) -> Result<(), Refusal> {
    let Ok(roles) = body.get_array("roles") else {
        return Ok(());
    };
    if roles.is_empty() {
        let message = format!("Every user may do everything: give the user role '{ROLE}'");
        return Err(bad_value(&message));
    }
    for role in roles {
        let name = match role {
            Ok(RawBsonRef::String(name)) => name,
            Ok(RawBsonRef::Document(role)) => role.get_str("role").unwrap_or_default(),
            _ => "",
        };
        if name != ROLE {
            let message = format!(
                "There is no role '{name}': every user may do everything, which is role '{ROLE}'"
            );
            return Err(Refusal::new(Code::RoleNotFound, message));
        }
    }
    Ok(())
}

fn users_info(documents: &Documents, command: &Command) -> Result<RawDocumentBuf, Refusal> {
    let all = users::list(documents).map_err(refusal)?;
    let wanted = wanted(command);
    let mut infos = RawArrayBuf::new();
    for user in all.iter().filter(|user| wanted(user)) {
        infos.push(user_info(user));
    }
    Ok(rawdoc! { "users": infos, "ok": 1.0 })
}

/// Which users the argument asks for: `1` all of the database, a name, or `{user, db}`.
fn wanted(command: &Command) -> Box<dyn Fn(&User) -> bool + '_> {
    match first_value(&command.body) {
        Some(RawBsonRef::String(name)) => {
            Box::new(move |user| user.name == name && user.db == command.db)
        }
        Some(RawBsonRef::Document(asked)) if asked.get_str("user").is_ok() => {
            let name = asked.get_str("user").unwrap_or_default();
            let db = asked.get_str("db").unwrap_or(&command.db);
            Box::new(move |user| user.name == name && user.db == db)
        }
        Some(RawBsonRef::Document(_)) => Box::new(|_| true),
        _ => Box::new(move |user| user.db == command.db),
    }
}

fn user_info(user: &User) -> RawDocumentBuf {
    rawdoc! {
        "_id": format!("{}.{}", user.db, user.name),
        "user": user.name.as_str(),
        "db": user.db.as_str(),
        "roles": [{ "role": ROLE, "db": users::DEFAULT_DATABASE }],
        "mechanisms": [MECHANISM],
    }
}

fn bad_value(message: &str) -> Refusal {
    Refusal::new(Code::BadValue, message)
}

/// The table from errors of users to MongoDB's codes.
fn refusal(error: UserError) -> Refusal {
    let code = match &error {
        UserError::Name { .. } | UserError::Password { .. } => Code::BadValue,
        UserError::Exists { .. } => Code::UserExists,
        UserError::NotFound { .. } => Code::UserNotFound,
        UserError::Damaged { .. } | UserError::Store(_) => Code::OperationFailed,
    };
    Refusal::new(code, error.to_string())
}
