//! `forebay user`: who may use a server that asks.
//!
//! Works on a running server over the wire, or on the data directory of one that does not run.

use std::io::{self, BufRead, IsTerminal};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use bson::{Bson, doc};
use clap::{Args, Subcommand};
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents::{Documents, Location, Settings};

use super::client::ServerArgs;
use crate::auth;

/// The variable that holds the password where there is no terminal.
const PASSWORD_VARIABLE: &str = "FOREBAY_PASSWORD";

/// Add, list or remove the users of a server
#[derive(Debug, Args)]
pub struct UserArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Add a user; the password is asked for, or read from FOREBAY_PASSWORD or standard input
    Add {
        /// Name of the user.
        name: String,
        #[command(flatten)]
        place: Place,
    },
    /// List all users
    List {
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

/// Where the users are kept.
#[derive(Debug, Args)]
struct Place {
    /// Data directory of a server that does not run; without it, a running server is asked.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    #[command(flatten)]
    server: ServerArgs,
    /// Database that the user belongs to (`authSource` of clients).
    #[arg(long, default_value = auth::DEFAULT_DATABASE)]
    db: String,
}

/// Runs the command.
///
/// # Errors
/// If the data is in use, the server refuses, or the password can not be one.
pub async fn run(args: &UserArgs) -> Result<()> {
    match &args.action {
        Action::Add { name, place } => {
            add(name, place).await?;
            println!("user {name} added");
        }
        Action::List { place } => list(place)
            .await?
            .iter()
            .for_each(|user| println!("{user}")),
        Action::Remove { name, place } => {
            remove(name, place).await?;
            println!("user {name} removed");
        }
    }
    Ok(())
}

async fn add(name: &str, place: &Place) -> Result<()> {
    let password = password()?;
    let user = auth::user(name, &place.db);
    match offline(place)? {
        Some(documents) => tokio::task::block_in_place(|| auth::add(&documents, &user, &password))?,
        None => {
            let db = place.server.connect().await?.database(&place.db);
            let command = doc! { "createUser": name, "pwd": password, "roles": ["root"] };
            db.run_command(command).await?;
        }
    }
    Ok(())
}

async fn list(place: &Place) -> Result<Vec<String>> {
    if let Some(documents) = offline(place)? {
        let users = tokio::task::block_in_place(|| auth::list(&documents))?;
        return Ok(users
            .iter()
            .map(|user| format!("{}@{}", user.name, user.db))
            .collect());
    }
    let db = place.server.connect().await?.database(&place.db);
    let reply = db.run_command(doc! { "usersInfo": 1 }).await?;
    let users = reply.get_array("users").context("a reply without users")?;
    let users = users.iter().filter_map(Bson::as_document);
    users
        .map(|user| Ok(format!("{}@{}", user.get_str("user")?, user.get_str("db")?)))
        .collect()
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

/// The documents of the data directory, if one was named.
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
        location: Location::Dir(data.clone()),
        ..Settings::default()
    };
    let open = || Documents::open(settings, Arc::new(devices));
    let remedy = "if a server runs on this data, ask it: --uri instead of --data";
    Ok(Some(tokio::task::block_in_place(open).context(remedy)?))
}

/// The password: from the environment, from a terminal without echo, or a line of standard input.
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
