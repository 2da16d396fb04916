//! `forebay user`: manages the users of a server with `--auth`.
//!
//! Works with a running server over the network, or on the data directory of a stopped one.

use std::io::{self, BufRead, IsTerminal};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bson::{Bson, Document, doc};
use clap::{Args, Subcommand};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{Documents, Location, Role, Settings};

use super::client::ServerArgs;
use crate::auth;
use crate::logging::one_line;

/// Environment variable for the password, for use without a terminal.
const PASSWORD_VARIABLE: &str = "FOREBAY_PASSWORD";

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
        #[command(flatten)]
        place: Place,
    },
    /// List all users and their roles
    List {
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
        #[command(flatten)]
        place: Place,
    },
}

/// Where the users are stored.
#[derive(Debug, Args)]
struct Place {
    /// Data directory of a stopped server; without it, the command connects to a running server.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Database of the user (`authSource` of clients).
    #[arg(long, default_value = auth::DEFAULT_DATABASE)]
    db: String,
}

/// Runs the command.
///
/// # Errors
/// If the data is in use, the server refuses, or the password is invalid.
pub async fn run(args: &UserArgs) -> Result<()> {
    match &args.action {
        Action::Add { name, roles, place } => {
            let roles = roles.iter().map(|text| role(text, &place.db));
            add(name, roles.collect::<Result<_>>()?, place).await?;
            println!("user {name} added");
        }
        Action::List { json, place } => print_list(&list(place).await?, *json)?,
        Action::Remove { name, place } => {
            remove(name, place).await?;
            println!("user {name} removed");
        }
    }
    Ok(())
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
            "there is no role {text}: roles are {}, and those for more than one database are in admin",
            names.join(", ")
        )
    })
}

async fn add(name: &str, roles: Vec<Role>, place: &Place) -> Result<()> {
    let password = password()?;
    let user = auth::user(name, &place.db);
    match offline(place)? {
        Some(documents) => {
            tokio::task::block_in_place(|| auth::add(&documents, &user, &password, roles))?
        }
        None => {
            let db = place.server.connect().await?.database(&place.db);
            let role = |role: &Role| doc! { "role": role.name(), "db": role.db() };
            let roles: Vec<Document> = roles.iter().map(role).collect();
            let command = doc! { "createUser": name, "pwd": password, "roles": roles };
            db.run_command(command).await?;
        }
    }
    Ok(())
}

/// A user in the form for the table and for JSON.
struct Listed {
    name: String,
    db: String,
    /// Roles, each as `role@database`.
    roles: Vec<String>,
}

async fn list(place: &Place) -> Result<Vec<Listed>> {
    if let Some(documents) = offline(place)? {
        let users = tokio::task::block_in_place(|| auth::list(&documents))?;
        let listed = users.into_iter().map(|(user, roles)| Listed {
            name: user.name,
            db: user.db,
            roles: roles.iter().map(Role::to_string).collect(),
        });
        return Ok(listed.collect());
    }
    let db = place.server.connect().await?.database(&place.db);
    let reply = db.run_command(doc! { "usersInfo": 1 }).await?;
    let users = reply.get_array("users").context("a reply without users")?;
    users
        .iter()
        .filter_map(Bson::as_document)
        .map(listed)
        .collect()
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
        println!("{}", serde_json::to_string(&users)?);
        return Ok(());
    }
    for user in users {
        let name = format!("{}@{}", user.name, user.db);
        println!(
            "{}",
            one_line(format!("{name}  {}", user.roles.join(" ")).trim_end())
        );
    }
    Ok(())
}

async fn remove(name: &str, place: &Place) -> Result<()> {
    let user = auth::user(name, &place.db);
    match offline(place)? {
        Some(documents) => tokio::task::block_in_place(|| auth::remove(&documents, &user))?,
        None => {
            let db = place.server.connect().await?.database(&place.db);
            db.run_command(doc! { "dropUser": name }).await?;
        }
    }
    Ok(())
}

/// Opens the data directory if `--data` names one.
fn offline(place: &Place) -> Result<Option<Arc<Documents>>> {
    let Some(data) = &place.data else {
        return Ok(None);
    };
    super::keep_files_private();
    let devices = Devices::new(
        &DeviceSpec::host(NonZeroUsize::MIN),
        DeviceOptions::default(),
    )?;
    let settings = Settings {
        location: Location::Directory(data.clone()),
        ..Settings::default()
    };
    let open = || Documents::open(settings, Arc::new(devices));
    let remedy = "if a server is using this data, connect to it with --uri instead of --data";
    Ok(Some(tokio::task::block_in_place(open).context(remedy)?))
}

/// Reads the password from the environment, a terminal without echo, or a line of standard input.
fn password() -> Result<String> {
    if let Ok(password) = std::env::var(PASSWORD_VARIABLE) {
        return Ok(password);
    }
    if io::stdin().is_terminal() {
        let mut terminal = console::Term::stderr();
        io::Write::write_all(&mut terminal, b"Password: ")?;
        return Ok(terminal.read_secure_line()?);
    }
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    match line.trim_end_matches(['\r', '\n']) {
        "" => bail!("no password: set {PASSWORD_VARIABLE}, or pipe it to standard input"),
        password => Ok(password.to_owned()),
    }
}
