//! Measures imports into a collection with one cached field, and the cost of cached fields when documents are inserted.

use std::time::Instant;

use anyhow::{Context, Result};
use bson::{Document, RawDocumentBuf, rawdoc};
use forebay_peers::client;
use mongodb::Collection;

use super::session::{HOST_DEVICES, Session};
use crate::record::Measured;
use crate::statistics::Summary;

/// Number of documents of an import.
const IMPORT_COUNT: usize = 1_000_000;
/// Number of imports.
const IMPORT_ROUNDS: usize = 3;
/// Number of documents of a round of inserts.
const INSERT_COUNT: usize = 400_000;
/// Number of rounds of inserts, alternating between the collections with and without caches. There are many rounds,
/// because other programs on a shared machine distort single rounds.
const INSERT_ROUNDS: usize = 25;
/// Fields of the inserted documents.
const FIELDS: [&str; 5] = ["a", "b", "c", "d", "e"];

/// Measures imports into an empty collection with `name` cached.
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
    session.report.add(
        "import-one-cached",
        by,
        "documents_per_s",
        Summary::of(&rates).context("rounds")?,
    )
}

/// Measures inserts into a collection without caches, and into a collection with five caches, alternately.
pub async fn inserts(session: &mut Session) -> Result<()> {
    let count = if session.smoke { 2_000 } else { INSERT_COUNT };
    let (mut plain, mut cached) = (Vec::new(), Vec::new());
    for round in 0..INSERT_ROUNDS {
        for turn in [round, round + 1] {
            match turn % 2 {
                0 => plain.push(insert_round(session, &[], count).await?),
                _ => cached.push(insert_round(session, &FIELDS, count).await?),
            }
        }
    }
    let rates = |rounds: &[Round]| rounds.iter().map(|round| round.rate).collect();
    let ratios = cached.iter().zip(&plain);
    let ratios = ratios.map(|(cached, plain)| cached.rate / plain.rate);
    let figures: [(&str, &str, Vec<f64>); 5] = [
        ("insert-0-cached", "documents_per_s", rates(&plain)),
        ("insert-5-cached", "documents_per_s", rates(&cached)),
        ("insert-5-of-0-cached", "ratio", ratios.collect()),
        ("insert-0-cached", "server_cpu_us", cpu_us(&plain)),
        ("insert-5-cached", "server_cpu_us", cpu_us(&cached)),
    ];
    let by = Measured {
        engine: "forebay",
        devices: HOST_DEVICES,
        expect: None,
    };
    for (case, metric, figures) in figures {
        // Adds no result if the system does not report processor time.
        if let Some(summary) = Summary::of(&figures) {
            session.report.add(case, by, metric, summary)?;
        }
    }
    Ok(())
}

/// A round of inserts.
struct Round {
    /// Documents per second.
    rate: f64,
    /// Processor time per document, summed over all threads of the server, in microseconds.
    cpu_us: Option<f64>,
}

fn cpu_us(rounds: &[Round]) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.cpu_us).collect()
}

async fn insert_round(session: &Session, cached: &[&str], count: usize) -> Result<Round> {
    let db = session.database();
    db.create_collection("inserts").await?;
    for field in cached {
        client::declare_cache(&db, "inserts", field).await?;
    }
    let documents: Vec<RawDocumentBuf> = (0..count)
        .map(|number| five_fields(&session.names, number))
        .collect();
    let collection: Collection<RawDocumentBuf> = db.collection("inserts");
    session.server.wait_until_idle().await;
    let (start, cpu) = (Instant::now(), session.server.processor_time());
    client::insert_all(&collection, documents.into_iter(), &session.progress(count)).await?;
    let (time, after) = (start.elapsed(), session.server.processor_time());
    collection.drop().await?;
    let cpu = after.zip(cpu).map(|(after, before)| after - before);
    Ok(Round {
        rate: count as f64 / time.as_secs_f64(),
        cpu_us: cpu.map(|cpu| cpu.as_secs_f64() * 1e6 / count as f64),
    })
}

/// Returns a document with five fields of real values.
fn five_fields(names: &[String], number: usize) -> RawDocumentBuf {
    let name = |step: usize| names[number.wrapping_mul(step) % names.len()].as_str();
    let id = i32::try_from(number).expect("rounds hold far fewer than 2^31 documents");
    rawdoc! { "_id": id, "a": name(1), "b": name(7), "c": name(13), "d": name(31), "e": name(101) }
}
