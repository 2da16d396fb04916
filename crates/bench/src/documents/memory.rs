//! Measures how much memory a cache takes in addition to the bytes of its values.

use anyhow::{Context, Result};
use bson::doc;
use forebay_peers::client;

use super::session::{HOST_DEVICES, NAMES, Session};
use crate::record::Measured;
use crate::statistics::Summary;

/// Measures how much memory a cache of one field takes in addition to the bytes of the field's values, per document.
/// The documents have integer `_id`s. Reports two figures: what the server's memory account states, and how much the
/// process grows while it builds the cache.
pub async fn of_one_field(session: &mut Session) -> Result<()> {
    let documents = session.names.len() as f64;
    let values: usize = session.names.iter().map(String::len).sum();
    let by = Measured {
        engine: "forebay",
        devices: HOST_DEVICES,
        expect: Some(session.names.len() as u64),
    };
    let overhead = accounted_overhead_bytes(session).await?;
    session.report.add(
        "memory-one-field",
        by,
        "overhead_bytes_per_document",
        Summary::once(overhead / documents),
    )?;
    let grown = resident_growth_bytes(session).await?;
    let beyond = (grown - values as f64) / documents;
    session.report.add(
        "memory-one-field",
        by,
        "resident_overhead_bytes_per_document",
        Summary::once(beyond),
    )
}

/// Returns the overhead that the server reports, in bytes per document.
async fn accounted_overhead_bytes(session: &Session) -> Result<f64> {
    let stats = client::index_stats(&session.database(), NAMES).await?;
    let mut overhead = None;
    client::each_document(&stats, &mut |part| {
        overhead = overhead.or(client::integer(part.get("overheadBytes")));
    });
    let overhead =
        overhead.with_context(|| format!("the index statistics have no overheadBytes: {stats}"))?;
    Ok(overhead as f64)
}

/// Rebuilds the cache. Returns the growth of the process's resident memory.
async fn resident_growth_bytes(session: &Session) -> Result<f64> {
    let db = session.database();
    db.run_command(doc! { "dropIndexes": NAMES, "index": "name_cache" })
        .await?;
    let before = session
        .server
        .resident_bytes()
        .context("the system does not report resident memory")?;
    client::declare_cache(&db, NAMES, "name").await?;
    let after = session
        .server
        .resident_bytes()
        .context("the system does not report resident memory")?;
    Ok(after as f64 - before as f64)
}
