//! Figure 13: inserts into a large collection with zero to five cached fields, compared with indexed fields and rivals.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, ensure};
use bson::{RawDocumentBuf, doc};
use forebay_peers::client::{self, Plan};
use forebay_peers::ferretdb::{self, FerretDb};
use forebay_peers::postgres::Postgres;
use mongodb::Database;

use super::Figures;
use super::fixture::{COLLECTION, Fixture};
use super::samples::Samples;
use crate::data;
use crate::documents::random::{self, BATCH, FIELDS};
use crate::documents::session::DATABASE;
use crate::record::Measured;

/// Number of documents before the first measurement, as in the paper.
const DOCUMENTS: usize = 10_000_000;
/// Maximum number of documents before the first measurement of FerretDB, which inserts slowly.
const FERRETDB_DOCUMENTS_MAX: usize = 100_000;
/// Number of documents inserted for one measurement.
const INSERTED: usize = 5 * BATCH;
/// Number of documents inserted for one measurement of FerretDB.
const FERRETDB_INSERTED: usize = 5_000;
/// Number of documents inserted for one measurement in a smoke run.
const SMOKE_INSERTED: usize = BATCH / 40;

/// Measures Forebay and the installed rivals.
pub async fn measure(figures: &mut Figures) -> Result<()> {
    let documents = figures.at_most(DOCUMENTS);
    forebay(figures, documents).await?;
    let fewer = if figures.smoke {
        SMOKE_INSERTED
    } else {
        documents.min(FERRETDB_DOCUMENTS_MAX)
    };
    if let Err(why) = ferretdb(figures, fewer).await {
        figures
            .report
            .note(&format!("FerretDB is left out: {why:#}"));
    }
    if let Err(why) = postgres(figures, documents) {
        figures
            .report
            .note(&format!("PostgreSQL is left out: {why:#}"));
    }
    Ok(())
}

fn inserted(figures: &Figures) -> usize {
    if figures.smoke {
        SMOKE_INSERTED
    } else {
        INSERTED
    }
}

fn add(samples: &mut Samples, point: &str, by: Measured<'_>, rate: f64) {
    let case = format!("figure-13: {point}");
    samples.add(&case, by, "documents_per_s", rate);
}

/// A collection that grows by `inserted` documents with each measurement.
struct GrowingCollection {
    db: Database,
    documents: usize,
    inserted: usize,
}

impl GrowingCollection {
    /// Inserts the next documents. Adds the insert rate (documents per second) to a point of the figure.
    async fn insert(&mut self, samples: &mut Samples, point: &str, by: Measured<'_>) -> Result<()> {
        let start = Instant::now();
        let range = self.documents..self.documents + self.inserted;
        random::insert(&self.db.collection(COLLECTION), range, random::five_fields).await?;
        self.documents += self.inserted;
        let rate = self.inserted as f64 / start.elapsed().as_secs_f64();
        add(samples, point, by, rate);
        Ok(())
    }

    /// Checks that all documents were inserted.
    async fn check(&self) -> Result<()> {
        let count = client::count(&self.db, COLLECTION, &doc! {}, Plan::Chosen).await?;
        ensure!(
            count == self.documents as u64,
            "{count} documents are stored instead of the {} inserted",
            self.documents
        );
        Ok(())
    }

    async fn drop_indexes(&self) -> Result<()> {
        let command = doc! { "dropIndexes": COLLECTION, "index": "*" };
        self.db.run_command(command).await?;
        Ok(())
    }

    async fn index(&self, field: &str) -> Result<()> {
        let index = doc! { "key": { field: 1 }, "name": format!("{field}_1") };
        let command = doc! { "createIndexes": COLLECTION, "indexes": [index] };
        self.db.run_command(command).await?;
        Ok(())
    }
}

/// Measures Forebay's inserts. Every round first adds cached fields one by one, then indexed fields.
async fn forebay(figures: &mut Figures, documents: usize) -> Result<()> {
    let mut fixture = Fixture::new(&figures.devices, random::five_fields)?;
    fixture.grow(documents).await?;
    let mut server = fixture.serve(&[]).await?;
    server.set_devices(figures.devices.len()).await?;
    let devices = server.devices();
    let by = Measured {
        engine: "forebay",
        devices: &devices,
        expect: None,
    };
    let mut collection = GrowingCollection {
        db: server.db.clone(),
        documents,
        inserted: inserted(figures),
    };
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        for kind in ["cached", "indexed"] {
            collection.drop_indexes().await?;
            for count in 0..=FIELDS.len() {
                match (kind, count) {
                    (_, 0) => {}
                    ("cached", count) => server.cache(FIELDS[count - 1]).await?,
                    (_, count) => collection.index(FIELDS[count - 1]).await?,
                }
                let point = format!("{kind}/{count}");
                collection.insert(&mut samples, &point, by).await?;
            }
        }
    }
    collection.check().await?;
    server.stop()?;
    samples.report(&mut figures.report)
}

/// Measures FerretDB's inserts with indexed fields only, because FerretDB has no caches.
async fn ferretdb(figures: &mut Figures, documents: usize) -> Result<()> {
    let server = FerretDb::start()?;
    let db = client::connect(server.uri()).await?.database(DATABASE);
    random::insert(
        &db.collection(COLLECTION),
        0..documents,
        random::five_fields,
    )
    .await?;
    let mut collection = GrowingCollection {
        db,
        documents,
        inserted: inserted(figures).min(FERRETDB_INSERTED),
    };
    let name = format!("FerretDB {} SQLite", ferretdb::VERSION);
    let by = Measured {
        engine: &name,
        devices: "its own",
        expect: None,
    };
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        collection.drop_indexes().await?;
        for count in 0..=FIELDS.len() {
            if let Some(field) = count.checked_sub(1) {
                collection.index(FIELDS[field]).await?;
            }
            let point = format!("indexed/{count}");
            collection.insert(&mut samples, &point, by).await?;
        }
    }
    collection.check().await?;
    samples.report(&mut figures.report)
}

/// Measures PostgreSQL's inserts. Every round first adds B-tree indexes, then trigram indexes. The rows are loaded with
/// `COPY`, PostgreSQL's fastest way to insert.
fn postgres(figures: &mut Figures, documents: usize) -> Result<()> {
    let folder = tempfile::tempdir_in(forebay_peers::cache_folder()?)?;
    let mut postgres = Postgres::start()?;
    let name = postgres.name().to_owned();
    let columns = FIELDS
        .map(|field| format!("{field} text NOT NULL"))
        .join(", ");
    postgres.execute(&format!(
        "CREATE TABLE letters (id integer PRIMARY KEY, {columns})"
    ))?;
    postgres.execute("CREATE EXTENSION pg_trgm")?;
    copy_in(&mut postgres, folder.path(), 0, documents)?;
    let (mut documents, inserted) = (documents, inserted(figures));
    let by = Measured {
        engine: &name,
        devices: "its own",
        expect: None,
    };
    let mut samples = Samples::default();
    for _ in 0..figures.rounds() {
        for (kind, index) in [
            ("indexed", "btree (F)"),
            ("trigrams", "gin (F gin_trgm_ops)"),
        ] {
            for count in 0..=FIELDS.len() {
                if let Some(field) = count.checked_sub(1) {
                    let (field, method) = (FIELDS[field], index.replace('F', FIELDS[field]));
                    postgres.execute(&format!(
                        "CREATE INDEX {kind}_{field} ON letters USING {method}"
                    ))?;
                }
                let time = copy_in(&mut postgres, folder.path(), documents, inserted)?;
                documents += inserted;
                let rate = inserted as f64 / time * 1e3;
                add(&mut samples, &format!("{kind}/{count}"), by, rate);
            }
            let indexes = FIELDS.map(|field| format!("{kind}_{field}")).join(", ");
            postgres.execute(&format!("DROP INDEX {indexes}"))?;
        }
    }
    let (count, _) = postgres.count("SELECT count(*) FROM letters")?;
    ensure!(
        count == documents as u64,
        "PostgreSQL stores {count} rows instead of the {documents} copied"
    );
    samples.report(&mut figures.report)
}

/// Loads documents of [`random::five_fields`] into PostgreSQL with `COPY`. Returns the time in milliseconds.
fn copy_in(postgres: &mut Postgres, folder: &Path, start: usize, count: usize) -> Result<f64> {
    let file = rows_file(folder, start, count)?;
    let (_, time) = postgres.execute(&format!("\\copy letters FROM '{}'", file.display()))?;
    Ok(time)
}

/// Writes documents of [`random::five_fields`] to a file, each as a row of tab-separated fields.
fn rows_file(folder: &Path, start: usize, count: usize) -> Result<PathBuf> {
    let path = folder.join("rows.txt");
    data::write_file(&path, |writer| {
        for (start, count) in random::batches(start..start + count) {
            let mut rows = String::new();
            for document in random::five_fields(start, count) {
                write_row(&mut rows, &document)?;
            }
            writer.write_all(rows.as_bytes())?;
        }
        Ok(())
    })?;
    Ok(path)
}

fn write_row(rows: &mut String, document: &RawDocumentBuf) -> Result<()> {
    let id = document.get_i32("_id")?;
    write!(rows, "{id}")?;
    for field in FIELDS {
        write!(rows, "\t{}", document.get_str(field)?)?;
    }
    rows.push('\n');
    Ok(())
}
