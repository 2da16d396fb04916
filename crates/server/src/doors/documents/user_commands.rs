//! User-management commands: `createUser`, `updateUser`, `dropUser`, `grantRolesToUser`, `revokeRolesFromUser` and
//! `usersInfo`.

use bson::{RawArray, RawArrayBuf, RawBsonRef, RawDocument, RawDocumentBuf, rawdoc};
use forebay_documents::{ClientContext, Command, Documents, Role, User};

use super::sasl::MECHANISM;
use super::{Code, Refusal};
use crate::auth::Changes;
use crate::auth::users::{self, UserError};

/// Maximum number of roles of one user.
const ROLES_MAX: usize = 256;

/// Returns whether [`run`] handles a command of this name.
pub fn is_user_command(name: &str) -> bool {
    matches!(
        name,
        "createUser"
            | "updateUser"
            | "dropUser"
            | "grantRolesToUser"
            | "revokeRolesFromUser"
            | "usersInfo"
    )
}

/// Returns whether an authenticated client may run a user-management command. The client needs the role `root`, except
/// for `usersInfo` about itself.
pub fn may_run(client: &ClientContext, command: &Command) -> bool {
    let asks_about_itself = || {
        let own = client.user.as_ref()?;
        let named = match first_value(&command.body)? {
            RawBsonRef::String(name) => users::user(name, &command.db),
            RawBsonRef::Document(asked) => users::user(
                asked.get_str("user").ok()?,
                asked.get_str("db").unwrap_or(&command.db),
            ),
            _ => return None,
        };
        Some(command.name == "usersInfo" && named == *own)
    };
    client.rights.is_root() || asks_about_itself() == Some(true)
}

/// Adds the first user of a server, for an unauthenticated client on the server's machine. Other commands fail with the
/// advice to add a user. Returns `None` if a user exists.
///
/// # Errors
/// The errors of [`run`], and `BadValue` for a user that could not add other users.
pub fn run_before_first(
    documents: &Documents,
    changes: &Changes,
    command: &Command,
) -> Option<Result<RawDocumentBuf, Refusal>> {
    let has_users = || users::any(documents).unwrap_or(true);
    if has_users() {
        return None;
    }
    if command.name != "createUser" {
        let advice = "no user exists yet: add the first one with `forebay user add NAME`";
        return Some(Err(Refusal::new(Code::Unauthorized, advice)));
    }
    changes.apply(|| {
        if has_users() {
            return None;
        }
        let roles = roles(command);
        Some(match roles {
            Ok(roles) if !roles.contains(&Role::root()) => Err(bad_value(
                "the first user must have the role root@admin: only root can add users",
            )),
            _ => change(documents, command),
        })
    })
}

/// Runs a user-management command. Hashes passwords and waits for the disk, so the caller must be allowed to block.
///
/// # Errors
/// If the user, the password or a role is invalid.
pub fn run(
    documents: &Documents,
    changes: &Changes,
    command: &Command,
) -> Result<RawDocumentBuf, Refusal> {
    if command.name == "usersInfo" {
        return users_info(documents, command);
    }
    let reply = changes.apply(|| change(documents, command))?;
    if !matches!(command.name.as_str(), "createUser" | "grantRolesToUser") {
        // End the user's operations only after the change is counted. Operations that start after that use the new
        // rights.
        documents.end_user(&named(command)?);
    }
    Ok(reply)
}

fn change(documents: &Documents, command: &Command) -> Result<RawDocumentBuf, Refusal> {
    let (body, user) = (&*command.body, named(command)?);
    let changed = match command.name.as_str() {
        "createUser" => {
            let password = password(body)?.ok_or_else(|| missing(command, "pwd"))?;
            users::add(documents, &user, password, roles(command)?)
        }
        "updateUser" => {
            let (password, roles) = (password(body)?, optional_roles(command)?);
            if password.is_none() && roles.is_none() {
                return Err(bad_value(
                    "Must specify at least one field to update in updateUser",
                ));
            }
            users::change(documents, &user, password, roles)
        }
        "dropUser" => users::remove(documents, &user),
        name => {
            let roles = granted(documents, &user, name, roles(command)?)?;
            users::change(documents, &user, None, Some(roles))
        }
    };
    changed.map_err(refusal)?;
    tracing::info!(
        command = command.name,
        user = user.name,
        db = user.db,
        "users changed"
    );
    Ok(rawdoc! { "ok": 1.0 })
}

/// Returns the user's roles after granting or revoking roles.
fn granted(
    documents: &Documents,
    user: &User,
    command: &str,
    named: Vec<Role>,
) -> Result<Vec<Role>, Refusal> {
    let account = users::account(documents, user).map_err(refusal)?;
    let mut roles = account.map(|account| account.roles).unwrap_or_default();
    roles.retain(|role| !named.contains(role));
    if command == "grantRolesToUser" {
        roles.extend(named);
    }
    bounded(roles)
}

fn bounded(roles: Vec<Role>) -> Result<Vec<Role>, Refusal> {
    if roles.len() > ROLES_MAX {
        Err(bad_value("a user can have at most 256 roles"))
    } else {
        Ok(roles)
    }
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

fn password(body: &RawDocument) -> Result<Option<&str>, Refusal> {
    match body.get("pwd") {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::String(password))) => Ok(Some(password)),
        _ => Err(bad_value("the field 'pwd' must be a string")),
    }
}

fn roles(command: &Command) -> Result<Vec<Role>, Refusal> {
    optional_roles(command)?.ok_or_else(|| missing(command, "roles"))
}

fn optional_roles(command: &Command) -> Result<Option<Vec<Role>>, Refusal> {
    match command.body.get("roles") {
        Ok(None) => Ok(None),
        Ok(Some(RawBsonRef::Array(roles))) => read_roles(roles, &command.db).map(Some),
        _ => Err(bad_value("the field 'roles' must be an array")),
    }
}

/// Reads roles. Each is `{role, db}`, or the name of a role in the command's database.
fn read_roles(named: &RawArray, own_db: &str) -> Result<Vec<Role>, Refusal> {
    let mut roles = Vec::new();
    for role in named.into_iter().take(ROLES_MAX + 1) {
        let (name, db) = match role {
            Ok(RawBsonRef::String(name)) => (name, own_db),
            Ok(RawBsonRef::Document(role)) => (
                role.get_str("role").unwrap_or_default(),
                role.get_str("db").unwrap_or(own_db),
            ),
            _ => return Err(bad_value("a role must be a name, or {role, db}")),
        };
        let role = Role::new(name, db).ok_or_else(|| no_role(name, db))?;
        if !roles.contains(&role) {
            roles.push(role);
        }
    }
    bounded(roles)
}

fn no_role(name: &str, db: &str) -> Refusal {
    let known: Vec<&str> = Role::names().collect();
    let message = format!(
        "Could not find role: {name}@{db} (roles are {}; those for more than one database are in admin)",
        known.join(", ")
    );
    Refusal::new(Code::RoleNotFound, message)
}

fn users_info(documents: &Documents, command: &Command) -> Result<RawDocumentBuf, Refusal> {
    let all = users::list(documents).map_err(refusal)?;
    let wanted = wanted(command);
    let mut infos = RawArrayBuf::new();
    for (user, roles) in all.iter().filter(|(user, _)| wanted(user)) {
        infos.push(user_info(user, roles));
    }
    Ok(rawdoc! { "users": infos, "ok": 1.0 })
}

/// Returns a filter for the users that the command's argument selects: `1` for all users of the database, a user's
/// name, or `{user, db}`.
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

fn user_info(user: &User, roles: &[Role]) -> RawDocumentBuf {
    let mut named = RawArrayBuf::new();
    for role in roles {
        named.push(rawdoc! { "role": role.name(), "db": role.db() });
    }
    rawdoc! {
        "_id": format!("{}.{}", user.db, user.name),
        "user": user.name.as_str(),
        "db": user.db.as_str(),
        "roles": named,
        "mechanisms": [MECHANISM],
    }
}

fn missing(command: &Command, field: &str) -> Refusal {
    let name = &command.name;
    let message = format!("BSON field '{name}.{field}' is missing but a required field");
    Refusal::new(Code::MissingField, message)
}

fn bad_value(message: &str) -> Refusal {
    Refusal::new(Code::BadValue, message)
}

/// Maps errors about users to MongoDB's codes.
fn refusal(error: UserError) -> Refusal {
    let code = match &error {
        UserError::Name { .. } | UserError::Password { .. } => Code::BadValue,
        UserError::Exists { .. } => Code::UserExists,
        UserError::NotFound { .. } => Code::UserNotFound,
        UserError::Damaged { .. } | UserError::Store(_) => Code::OperationFailed,
    };
    Refusal::new(code, error.to_string())
}
