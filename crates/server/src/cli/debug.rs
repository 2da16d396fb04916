//! `forebay debug`: shows internal state.

use anyhow::Result;
use bson::{Bson, Document, doc};
use clap::{Args, Subcommand};
use forebay_text::{Limits, Options, Pattern, Program};

use super::client::{ServerArgs, explain_unknown};
use super::table;
use forebay_terminal::print;

/// Show how a pattern is searched, or how a cached field is stored
#[derive(Debug, Args)]
pub struct DebugArgs {
    #[command(subcommand)]
    subject: Subject,
}

#[derive(Debug, Subcommand)]
enum Subject {
    /// Show on which tier a regular expression is searched, and why not on a faster tier; needs no server
    Pattern {
        /// The regular expression.
        regex: String,
        /// Options of the expression: any of i, m, s, x, u.
        #[arg(long, default_value = "")]
        options: String,
    },
    /// List the buckets of a cached field
    Buckets {
        #[command(flatten)]
        server: ServerArgs,
        /// The cached field, as DATABASE.COLLECTION.FIELD.
        #[arg(value_name = "DB.COLL.FIELD")]
        field: String,
    },
}

/// Runs the command.
///
/// # Errors
/// If the pattern is invalid, or the server refuses.
pub async fn run(args: &DebugArgs) -> Result<()> {
    match &args.subject {
        Subject::Pattern { regex, options } => print(describe(regex, options)?)?,
        Subject::Buckets { server, field } => buckets(server, field).await?,
    }
    Ok(())
}

fn describe(regex: &str, options: &str) -> Result<String> {
    let limits = Limits::default();
    let pattern = Pattern::new(regex, Options::parse(options)?, &limits)?;
    let description = Program::compile(pattern, &limits).describe().to_string();
    Ok(format!("{}\n", description.trim_end()))
}

async fn buckets(server: &ServerArgs, field: &str) -> Result<()> {
    let admin = server.connect().await?.database("admin");
    let reply = admin.run_command(doc! { "forebayBuckets": field }).await;
    let reply = reply.map_err(|error| {
        explain_unknown(error, || {
            format!("the proxy has no cache of the field '{field}' that this user may read")
        })
    })?;
    let buckets = reply
        .get_array("buckets")
        .map(Vec::as_slice)
        .unwrap_or_default();
    let buckets: Vec<Document> = buckets
        .iter()
        .filter_map(Bson::as_document)
        .cloned()
        .collect();
    Ok(print(table::of(&columns(&buckets), &buckets))?)
}

/// Returns a column for each field of the first bucket; all buckets have the same fields.
fn columns(buckets: &[Document]) -> Vec<(&str, &str)> {
    let first = buckets.first();
    first
        .map(|bucket| {
            bucket
                .keys()
                .map(|key| (key.as_str(), key.as_str()))
                .collect()
        })
        .unwrap_or_default()
}
