//! `forebay user`: manages the users of a server with `--auth`.
//!
//! Works with a running server over the network, or on the data directory of a stopped one.

use std::io::{self, BufRead, IsTerminal};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, doc};
use clap::{Args, Subcommand};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{Documents, Location, Role, Settings, User, holds_store};
use mongodb::Client;

use super::client::{ServerArgs, ask_secret, explain_unknown};
use crate::auth;
use crate::logging::one_line;
use forebay_terminal::{note, print_line};

/// Environment variable for the password, for use without a terminal.
const PASSWORD_VARIABLE: &str = "FOREBAY_PASSWORD";

/// Advice on how to add the first user.
const ADD_FIRST: &str = "`forebay user add NAME` on the server's machine adds the first one";

/// Error message for a proxy whose upstream does not know the user-management commands.
const NO_OWN_USERS: &str =
    "this server is a proxy without users of its own: manage users with the tools of the upstream";

/// Add, list or remove the users of a server
#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a user; prompts for the password, or reads it from FOREBAY_PASSWORD or standard input
    Add {
        /// Name of the user.
        name: String,
        /// Role of the user, as in `read` or `readWrite@shop`: read, readWrite or dbAdmin on a database (the user's
        /// own if none is named), readAnyDatabase, readWriteAnyDatabase, dbAdminAnyDatabase, or root. May be given
        /// several times.
        #[arg(long = "role", value_name = "ROLE[@DB]", default_value = "root")]
        roles: Vec<String>,
        /// Database of the user (`authSource` of clients).
        #[arg(long, default_value = auth::DEFAULT_DATABASE)]
        db: String,
        #[command(flatten)]
        place: Place,
    },
    /// List users and their roles
    List {
        /// List only the users of this database.
        #[arg(long)]
        db: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        place: Place,
    },
    /// Remove a user
    Remove {
        /// Name of the user.
        name: String,
        /// Database of the user (`authSource` of clients).
        #[arg(long, default_value = auth::DEFAULT_DATABASE)]
        db: String,
        #[command(flatten)]
        place: Place,
    },
}

/// Where the users are stored.
#[derive(Debug, Args)]
struct Place {
    /// Data directory of a stopped server; without this flag, the command connects to a running server.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs the command.
///
/// # Errors
/// If the data directory is in use or has no store, if the server refuses the command, or if the password is invalid.
pub async fn run(args: &UserArgs) -> Result<()> {
    match &args.action {
        Action::Add {
            name,
            roles,
            db,
            place,
        } => {
            let roles = roles.iter().map(|text| role(text, db));
            let roles = roles.collect::<Result<_>>()?;
            // Check this before the user types a password.
            place.data.as_deref().map_or(Ok(()), refuse_without_store)?;
            let password = password()?;
            let users = Users::of(place).await?;
            users.add(&auth::user(name, db), roles, &password).await?;
            print_line(format_args!("user {name} added"))?;
        }
        Action::List { db, json, place } => {
            let mut users = Users::of(place).await?.list().await?;
            let is_empty = users.is_empty();
            users.retain(|user| db.as_ref().is_none_or(|db| user.db == *db));
            print_list(&users, *json)?;
            match db {
                _ if *json => {}
                _ if is_empty => note(format_args!("no user exists yet; {ADD_FIRST}")),
                Some(db) if users.is_empty() => note(format_args!("database {db} has no user")),
                _ => {}
            }
        }
        Action::Remove { name, db, place } => {
            let users = Users::of(place).await?;
            let user = auth::user(name, db);
            // List the users before the removal: the removed user may be the one who runs this command.
            let others = others(&users, &user).await;
            users.remove(&user).await?;
            print_line(format_args!("user {name} removed"))?;
            others.iter().for_each(|others| warn_without_root(others));
        }
    }
    Ok(())
}

/// Returns all users except `removed`; `None` if users cannot be listed.
async fn others(users: &Users, removed: &User) -> Option<Vec<Listed>> {
    let mut all = users.list().await.ok()?;
    let is_other = |user: &Listed| (&user.name, &user.db) != (&removed.name, &removed.db);
    all.retain(is_other);
    Some(all)
}

/// Warns if no user is left that can add others.
fn warn_without_root(users: &[Listed]) {
    let root = Role::root().to_string();
    if users.is_empty() {
        note(format_args!("warning: no user is left; {ADD_FIRST}"));
    } else if !users.iter().any(|user| user.roles.contains(&root)) {
        note(format_args!(
            "warning: no user with the role {root} is left: stop the server, and add one with `forebay user add NAME --data DIR`"
        ));
    }
}

/// Parses a role, as in `readWrite@shop`.
fn role(text: &str, own_db: &str) -> Result<Role> {
    let found = match text.split_once('@') {
        Some((name, db)) => Role::new(name, db),
        None => Role::new(text, own_db).or_else(|| Role::new(text, auth::DEFAULT_DATABASE)),
    };
    let names: Vec<&str> = Role::names().collect();
    found.with_context(|| {
        format!(
            "there is no role {text}: roles are {}; root and those whose names contain Any are roles of database admin",
            names.join(", ")
        )
    })
}

/// A user as `forebay user list` prints it, in a table or as JSON.
struct Listed {
    name: String,
    db: String,
    /// Roles, each as `role@database`.
    roles: Vec<String>,
}

/// The users of a server.
enum Users {
    /// Users in the data directory of a stopped server.
    Stored(Arc<Documents>),
    /// Users of a running server.
    Served(Client),
}

impl Users {
    /// Opens the data directory if one is given, else connects to the server.
    async fn of(place: &Place) -> Result<Users> {
        match &place.data {
            Some(data) => Ok(Users::Stored(tokio::task::block_in_place(|| open(data))?)),
            None => Ok(Users::Served(place.server.connect().await?)),
        }
    }

    async fn add(&self, user: &User, roles: Vec<Role>, password: &str) -> Result<()> {
        match self {
            Users::Stored(documents) => {
                tokio::task::block_in_place(|| auth::add(documents, user, password, roles))?
            }
            Users::Served(client) => {
                let role = |role: &Role| doc! { "role": role.name(), "db": role.db() };
                let roles: Vec<Document> = roles.iter().map(role).collect();
                let command = doc! { "createUser": &user.name, "pwd": password, "roles": roles };
                run_command(client, &user.db, command).await?;
            }
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<Listed>> {
        match self {
            Users::Stored(documents) => {
                let users = tokio::task::block_in_place(|| auth::list(documents))?;
                let listed = users.into_iter().map(|(user, roles)| Listed {
                    name: user.name,
                    db: user.db,
                    roles: roles.iter().map(Role::to_string).collect(),
                });
                Ok(listed.collect())
            }
            Users::Served(client) => {
                let command = doc! { "usersInfo": { "forAllDBs": true } };
                let reply = run_command(client, "admin", command).await?;
                let users = reply.get_array("users").context("a reply without users")?;
                let users = users.iter().filter_map(Bson::as_document);
                users.map(listed).collect()
            }
        }
    }

    async fn remove(&self, user: &User) -> Result<()> {
        match self {
            Users::Stored(documents) => {
                tokio::task::block_in_place(|| auth::remove(documents, user))?
            }
            Users::Served(client) => {
                let command = doc! { "dropUser": &user.name };
                run_command(client, &user.db, command).await?;
            }
        }
        Ok(())
    }
}

/// Runs a user-management command.
async fn run_command(client: &Client, db: &str, command: Document) -> Result<Document> {
    let reply = client.database(db).run_command(command).await;
    reply.map_err(|error| explain_unknown(error, || NO_OWN_USERS.to_owned()))
}

/// Reads a user from the reply to `usersInfo`.
fn listed(user: &Document) -> Result<Listed> {
    let roles = user
        .get_array("roles")?
        .iter()
        .filter_map(Bson::as_document);
    let role = |role: &Document| Ok(format!("{}@{}", role.get_str("role")?, role.get_str("db")?));
    Ok(Listed {
        name: user.get_str("user")?.to_owned(),
        db: user.get_str("db")?.to_owned(),
        roles: roles.map(role).collect::<Result<_>>()?,
    })
}

fn print_list(users: &[Listed], json: bool) -> Result<()> {
    if json {
        let user = |user: &Listed| serde_json::json!({ "user": user.name, "db": user.db, "roles": user.roles });
        let users: Vec<serde_json::Value> = users.iter().map(user).collect();
        return Ok(print_line(serde_json::to_string(&users)?)?);
    }
    for user in users {
        let name = format!("{}@{}", user.name, user.db);
        let line = format!("{name}  {}", user.roles.join(" "));
        print_line(one_line(line.trim_end()))?;
    }
    Ok(())
}

/// Refuses a directory without a store. Otherwise a misspelt path would create a new store, and the server would not
/// know the users in it.
fn refuse_without_store(data: &Path) -> Result<()> {
    if !holds_store(data)? {
        bail!(
            "there is no store in {}: check the path, or start `forebay serve` once, which creates a store",
            data.display()
        );
    }
    Ok(())
}

/// Opens the store in a data directory.
fn open(data: &Path) -> Result<Arc<Documents>> {
    refuse_without_store(data)?;
    super::keep_files_private();
    let devices = Devices::new(
        &DeviceSpec::host(NonZeroUsize::MIN),
        DeviceOptions::default(),
    )?;
    let settings = Settings {
        location: Location::Directory(data.to_owned()),
        ..Settings::default()
    };
    Documents::open(settings, Arc::new(devices))
        .context("if a server is using this data, connect to it with --uri instead of --data")
}

/// Reads the password from the environment variable, if set. Otherwise prompts twice without echo if standard input is
/// a terminal, or reads one line of standard input.
fn password() -> Result<String> {
    if let Ok(password) = std::env::var(PASSWORD_VARIABLE) {
        return Ok(password);
    }
    if io::stdin().is_terminal() {
        return confirmed(ask_secret);
    }
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => bail!("no password: set {PASSWORD_VARIABLE}, or pipe it to standard input"),
        password => Ok(password.to_owned()),
    }
}

/// Asks for a password twice, because a typing error would otherwise show only at the next login.
fn confirmed(mut ask: impl FnMut(&str) -> io::Result<String>) -> Result<String> {
    let password = ask("Password: ")?;
    if password.is_empty() {
        bail!("no password was given");
    }
    if ask("The same again: ")? != password {
        bail!("the two passwords differ");
    }
    Ok(password)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_in_a_password_is_noticed() {
        let typed = |lines: [&'static str; 2]| {
            let mut lines = lines.into_iter();
            confirmed(move |_| Ok(lines.next().unwrap_or_default().to_owned()))
        };
        assert_eq!(typed(["secret", "secret"]).expect("agree"), "secret");
        for lines in [["secret", "secert"], ["secret", ""], ["", ""]] {
            assert!(typed(lines).is_err(), "{lines:?}");
        }
    }
}
