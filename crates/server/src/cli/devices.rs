//! `forebay devices`: the devices of a running server, which join and leave while it works.

use anyhow::Result;
use bson::{Bson, Document, doc};
use clap::{Args, Subcommand};

use super::client::ServerArgs;
use super::table;

/// List, add or remove the devices of a running server
#[derive(Debug, Args)]
pub struct DevicesArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// List devices, their memory and their state
    List,
    /// Let devices join; their share of the buckets moves to them
    Add {
        /// Devices to add, as in `host:2` or `cuda:0`.
        #[arg(value_name = "DEVICES")]
        spec: String,
    },
    /// Let a device leave; its buckets move to the others
    Remove {
        /// The id that `forebay devices list` shows.
        id: i64,
    },
}

/// The columns of the list: heading and field.
const COLUMNS: [(&str, &str); 9] = [
    ("id", "id"),
    ("name", "name"),
    ("kind", "kind"),
    ("state", "state"),
    ("used bytes", "memoryUsedBytes"),
    ("budget bytes", "memoryBudgetBytes"),
    ("jobs", "queuedJobs"),
    ("gpu", "gpu"),
    ("reason", "reason"),
];

/// Runs the command.
///
/// # Errors
/// If the server refuses.
pub async fn run(args: &DevicesArgs) -> Result<()> {
    let admin = args.server.connect().await?.database("admin");
    let reply = admin.run_command(command(&args.action)).await?;
    match &args.action {
        Action::List => print!("{}", table::of(&COLUMNS, &documents(&reply, "devices"))),
        _ => print_move(&reply),
    }
    Ok(())
}

fn command(action: &Action) -> Document {
    match action {
        Action::List => doc! { "forebayDevices": 1 },
        Action::Add { spec } => doc! { "forebayDevices": 1, "add": spec },
        Action::Remove { id } => doc! { "forebayDevices": 1, "remove": *id },
    }
}

fn print_move(reply: &Document) {
    let moved = reply
        .get("bucketsMoved")
        .map_or_else(|| "0".to_owned(), table::plain);
    let mut names: Vec<String> = documents(reply, "added").iter().filter_map(name).collect();
    names.extend(reply.get_document("removed").ok().and_then(name));
    let verb = if reply.contains_key("removed") {
        "left"
    } else {
        "joined"
    };
    println!("{} {verb}; {moved} buckets moved", names.join(", "));
}

fn name(device: &Document) -> Option<String> {
    device.get_str("name").ok().map(str::to_owned)
}

fn documents(reply: &Document, field: &str) -> Vec<Document> {
    let array = reply
        .get_array(field)
        .map(Vec::as_slice)
        .unwrap_or_default();
    array
        .iter()
        .filter_map(Bson::as_document)
        .cloned()
        .collect()
}
