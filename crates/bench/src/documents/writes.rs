//! Imports into a collection with one cached field, and what cached fields cost an insert.

use std::time::Instant;

use anyhow::{Context, Result};
use bson::{Document, RawDocumentBuf, rawdoc};
use mongodb::Collection;

use super::session::{HOST_DEVICES, Session};
use crate::client;
use crate::record::Measured;
use crate::statistics::Summary;

/// Documents of an import.
const IMPORT_COUNT: usize = 1_000_000;
/// Imports measured.
const IMPORT_ROUNDS: usize = 3;
/// Documents of a round of inserts.
const INSERT_COUNT: usize = 1_000_000;
/// Rounds of inserts, in which the two collections take turns.
const INSERT_ROUNDS: usize = 4;
/// Fields of the documents inserted.
const FIELDS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Documents a second into an empty collection with `name` cached.
pub async fn import(session: &mut Session) -> Result<()> {
    let count = if session.smoke { 5_000 } else { IMPORT_COUNT };
    let mut rates = Vec::new();
    for _ in 0..IMPORT_ROUNDS {
        let db = session.database();
        db.create_collection("import").await?;
        client::declare_cache(&db, "import", "name").await?;
        let start = Instant::now();
        client::insert_all(
            &db.collection("import"),
            session.some_names(count),
            &session.progress(count),
        )
        .await?;
        rates.push(count.min(session.names.len()) as f64 / start.elapsed().as_secs_f64());
        db.collection::<Document>("import").drop().await?;
    }
    let by = Measured {
        engine: "forebay",
        devices: HOST_DEVICES,
        expect: None,
    };
    session.report(
        "import-one-cached",
        by,
        "documents_per_s",
        Summary::of(&rates).context("rounds")?,
    )
}

/// Inserts into a collection without caches and into one with five, in turns.
pub async fn inserts(session: &mut Session) -> Result<()> {
    let count = if session.smoke { 2_000 } else { INSERT_COUNT };
    let (mut plain, mut cached) = (Vec::new(), Vec::new());
    // The store still works on what came before: each of the two goes first in every other round.
    for round in 0..INSERT_ROUNDS {
        for turn in [round, round + 1] {
            match turn % 2 {
                0 => plain.push(insert_rate(session, &[], count).await?),
                _ => cached.push(insert_rate(session, &FIELDS, count).await?),
            }
        }
    }
    let by = Measured {
        engine: "forebay",
        devices: HOST_DEVICES,
        expect: None,
    };
    let ratios: Vec<f64> = cached
        .iter()
        .zip(&plain)
        .map(|(cached, plain)| cached / plain)
        .collect();
    session.report(
        "insert-0-cached",
        by,
        "documents_per_s",
        Summary::of(&plain).context("rounds")?,
    )?;
    session.report(
        "insert-5-cached",
        by,
        "documents_per_s",
        Summary::of(&cached).context("rounds")?,
    )?;
    session.report(
        "insert-5-of-0-cached",
        by,
        "ratio",
        Summary::of(&ratios).context("rounds")?,
    )
}

async fn insert_rate(session: &Session, cached: &[&str], count: usize) -> Result<f64> {
    let db = session.database();
    db.create_collection("inserts").await?;
    for field in cached {
        client::declare_cache(&db, "inserts", field).await?;
    }
    let documents: Vec<RawDocumentBuf> = (0..count)
        .map(|number| five_fields(&session.names, number))
        .collect();
    let collection: Collection<RawDocumentBuf> = db.collection("inserts");
    let start = Instant::now();
    client::insert_all(&collection, documents.into_iter(), &session.progress(count)).await?;
    let rate = count as f64 / start.elapsed().as_secs_f64();
    collection.drop().await?;
    Ok(rate)
}

/// A document with five fields of real values.
fn five_fields(names: &[String], number: usize) -> RawDocumentBuf {
    let name = |step: usize| names[number.wrapping_mul(step) % names.len()].as_str();
    let id = i32::try_from(number).expect("rounds hold far fewer than 2^31 documents");
    rawdoc! { "_id": id, "a": name(1), "b": name(7), "c": name(13), "d": name(31), "e": name(101) }
}
