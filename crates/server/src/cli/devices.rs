//! `forebay devices`: lists, adds and removes devices of a running server.

use std::num::NonZeroUsize;

use anyhow::{Result, bail};
use bson::{Bson, Document, doc};
use clap::{Args, Subcommand};
use forebay_device::DeviceSpec;

use super::client::{ServerArgs, of_server};
use super::table;
use forebay_terminal::{OutputError, print, print_line};

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
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Add devices; their share of the buckets moves to them
    Add {
        /// `host` for a host device, `cuda:N` for GPU number N, `cuda` for all GPUs.
        #[arg(value_name = "KIND", value_parser = parse_kind)]
        kind: String,
        /// Number of host devices.
        #[arg(long, default_value = "1")]
        count: NonZeroUsize,
    },
    /// Remove a device; its buckets move to the others
    Remove {
        /// Name or id of the device, as shown by `forebay devices list`.
        #[arg(value_name = "NAME|ID")]
        device: String,
        /// Remove the device even if it is the last one; each search then uses one core.
        #[arg(long)]
        yes: bool,
    },
}

/// Parses the kind of the devices to add. Refuses `host:1`, because it is the name of a device. The number of devices
/// is set with `--count`.
fn parse_kind(text: &str) -> Result<String, String> {
    if let Some(count) = text.strip_prefix("host:") {
        return Err(format!(
            "`host:{count}` is the name of one device: to add {count} host devices, use `host --count {count}`"
        ));
    }
    match text.parse::<DeviceSpec>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err("use `host`, `cuda:N` (GPU number N) or `cuda` (all GPUs)".to_owned()),
    }
}

/// Columns of the list: heading and field.
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
    let command = command(&args.action)?;
    let (client, hosts) = args.server.open().await?;
    let reply = client.database("admin").run_command(command).await;
    let reply = reply.map_err(|error| of_server(error, &hosts))?;
    match &args.action {
        Action::List { json: true } => print_json(&reply)?,
        Action::List { json: false } => {
            print(table::of(&COLUMNS, &documents(&reply, "devices")))?;
        }
        _ => print_move(&reply)?,
    }
    Ok(())
}

fn command(action: &Action) -> Result<Document> {
    Ok(match action {
        Action::List { .. } => doc! { "forebayDevices": 1 },
        Action::Add { kind, count } => doc! { "forebayDevices": 1, "add": spec(kind, *count)? },
        Action::Remove { device, yes } => {
            let named = match device.parse() {
                Ok(id) => Bson::Int64(id),
                Err(_) => Bson::String(device.clone()),
            };
            doc! { "forebayDevices": 1, "remove": named, "last": *yes }
        }
    })
}

/// Returns the devices to add, in the format of the setting `devices`.
///
/// # Errors
/// If `count` is not 1 for devices that are not host devices.
fn spec(kind: &str, count: NonZeroUsize) -> Result<String> {
    match kind {
        "host" => Ok(format!("host:{count}")),
        kind if count.get() == 1 => Ok(kind.to_owned()),
        kind => bail!("--count is for host devices, and `{kind}` is another kind"),
    }
}

fn print_json(reply: &Document) -> Result<()> {
    let devices = reply.get("devices").cloned().unwrap_or(Bson::Null);
    let devices = serde_json::to_string(&devices.into_relaxed_extjson())?;
    Ok(print_line(devices)?)
}

fn print_move(reply: &Document) -> Result<(), OutputError> {
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
    let names = names.join(", ");
    print_line(format_args!("{names} {verb}; {moved} buckets moved"))
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
