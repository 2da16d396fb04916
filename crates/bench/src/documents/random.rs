//! Generates the random letters of the paper's experiments, the same on every machine. Computes the expected counts of
//! searches for them.

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bson::raw::CStr;
use bson::{RawDocumentBuf, doc, rawdoc};
use forebay_cancel::Stop;
use forebay_peers::client::{self, Plan};
use forebay_text::{Limits, Options, Pattern, Program, Rows, SEPARATOR};
use mongodb::{Collection, Database};
use tokio::task::JoinSet;

use crate::data;

/// Letters per value.
pub const LETTERS: usize = 8;
/// Fields of a document of [`five_fields`].
pub const FIELDS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Number of documents per insert, and also the number of values generated from one seed. The seed is the index of the
/// first of these values.
pub const BATCH: usize = 20_000;
/// Number of connections that insert.
const WRITERS: usize = 12;
/// Timeout for moving all values of a cache to devices.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
/// Added to the seeds of [`five_fields`], so that they differ from all seeds of [`values`].
const FIVE_FIELDS_SEED: u64 = 1 << 40;

/// Returns the letters of `count` values, without separators. The first value has index `start`, which must be a
/// multiple of [`BATCH`].
pub fn values(start: usize, count: usize) -> Vec<u8> {
    letters(start as u64, count * LETTERS)
}

fn letters(seed: u64, count: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| random.u8(b'a'..=b'z')).collect()
}

/// Returns a value as text.
pub fn text(value: &[u8]) -> &str {
    std::str::from_utf8(value).expect("letters are ASCII")
}

/// Returns `count` documents `{_id: n, v: …}`. The first has `_id` `start`.
pub fn one_field(start: usize, count: usize) -> Vec<RawDocumentBuf> {
    let values = values(start, count);
    let ids = start as i32..;
    let documents = ids.zip(values.chunks(LETTERS));
    documents
        .map(|(id, value)| rawdoc! { "_id": id, "v": text(value) })
        .collect()
}

/// Returns `count` documents with `_id` and five fields, as in the paper's section 4.4. The first has `_id` `start`.
pub fn five_fields(start: usize, count: usize) -> Vec<RawDocumentBuf> {
    let values = letters(
        FIVE_FIELDS_SEED + start as u64,
        count * LETTERS * FIELDS.len(),
    );
    let ids = start as i32..;
    let documents = ids.zip(values.chunks(LETTERS * FIELDS.len()));
    documents
        .map(|(id, values)| {
            let mut document = rawdoc! { "_id": id };
            for (field, value) in FIELDS.iter().zip(values.chunks(LETTERS)) {
                let field = <&CStr>::try_from(*field).expect("no NUL in it");
                document.append(field, text(value));
            }
            document
        })
        .collect()
}

/// Splits a range of documents into batches. Returns the start and the length of each batch.
pub fn batches(range: Range<usize>) -> impl Iterator<Item = (usize, usize)> {
    let end = range.end;
    range
        .step_by(BATCH)
        .map(move |start| (start, BATCH.min(end - start)))
}

/// Inserts a range of documents, over several connections. `documents` returns the documents of a batch.
///
/// # Errors
/// If an insert fails.
pub async fn insert(
    collection: &Collection<RawDocumentBuf>,
    range: Range<usize>,
    documents: fn(usize, usize) -> Vec<RawDocumentBuf>,
) -> Result<()> {
    let writers: JoinSet<Result<()>> = (0..WRITERS)
        .map(|writer| insert_share(collection.clone(), range.clone(), documents, writer))
        .collect();
    writers.join_all().await.into_iter().collect()
}

/// Inserts every [`WRITERS`]th batch, starting with batch `writer`.
async fn insert_share(
    collection: Collection<RawDocumentBuf>,
    range: Range<usize>,
    documents: fn(usize, usize) -> Vec<RawDocumentBuf>,
    writer: usize,
) -> Result<()> {
    for (start, count) in batches(range).skip(writer).step_by(WRITERS) {
        let batch = documents(start, count);
        collection.insert_many(&batch).ordered(false).await?;
    }
    Ok(())
}

/// Writes the values of the first `documents` documents to a file, one per line.
///
/// # Errors
/// If the disk is full or the folder cannot be written.
pub fn write_values(path: &Path, documents: usize) -> Result<()> {
    data::write_file(path, |writer| {
        for (start, count) in batches(0..documents) {
            for value in values(start, count).chunks(LETTERS) {
                writer.write_all(value)?;
                writer.write_all(b"\n")?;
            }
        }
        Ok(())
    })
}

/// Waits until all values of `field` are in buckets on devices.
///
/// # Errors
/// If the wait times out.
pub async fn all_on_devices(db: &Database, collection: &str, field: &str) -> Result<()> {
    let end = Instant::now() + SETTLED_WITHIN;
    let filter = doc! { field: { "$regex": "a.*b" } };
    let command = client::count_command(collection, &filter, Plan::Chosen);
    let explain = doc! { "explain": command, "verbosity": "executionStats" };
    loop {
        let reply = db.run_command(explain.clone()).await?;
        let mut on_host = 0;
        client::each_document(&reply, &mut |part| {
            on_host += client::integer(part.get("deltaRows")).unwrap_or(0);
            if let Ok(host) = part.get_document("host") {
                on_host += client::integer(host.get("rows")).unwrap_or(0);
            }
        });
        if on_host == 0 {
            return Ok(());
        }
        ensure!(
            Instant::now() < end,
            "the timeout has passed, but the host still searches {on_host} rows: {reply}"
        );
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Chooses `count` values that are spread over all documents. Returns each value with the number of documents that have
/// it.
pub fn known_values(documents: usize, count: usize) -> Vec<(String, u64)> {
    let step = documents.div_ceil(BATCH).div_ceil(count).max(1);
    let mut chosen = Vec::new();
    for (start, batch) in batches(0..documents).step_by(step) {
        let wanted = count.div_ceil(documents.div_ceil(BATCH * step));
        let values = values(start, batch);
        chosen.extend(values.chunks(LETTERS).take(wanted).map(<[u8]>::to_vec));
    }
    let mut counts: HashMap<&[u8], u64> = chosen.iter().map(|value| (&value[..], 0)).collect();
    for (start, batch) in batches(0..documents) {
        for value in values(start, batch).chunks(LETTERS) {
            if let Some(count) = counts.get_mut(value) {
                *count += 1;
            }
        }
    }
    let known = chosen
        .iter()
        .map(|value| (text(value).to_owned(), counts[&value[..]]));
    known.take(count).collect()
}

/// Compiles a pattern as the server does.
///
/// # Errors
/// If the pattern is invalid.
pub fn program(pattern: &str) -> Result<Program> {
    let limits = Limits::default();
    let pattern = Pattern::new(pattern, Options::default(), &limits)?;
    Ok(Program::compile(pattern, &limits))
}

/// For each program, counts the values that match it. Uses the host engine in this process, on all cores.
pub fn expected(documents: usize, programs: &[Program]) -> Vec<u64> {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let counted = thread::scope(|scope| {
        let workers: Vec<_> = (0..cores)
            .map(|core| scope.spawn(move || count_share(documents, programs, (core, cores))))
            .collect();
        let counts = workers
            .into_iter()
            .map(|worker| worker.join().expect("no panic"));
        counts.collect::<Vec<Vec<u64>>>()
    });
    let sum = |index: usize| counted.iter().map(|counts| counts[index]).sum();
    (0..programs.len()).map(sum).collect()
}

fn count_share(documents: usize, programs: &[Program], (core, cores): (usize, usize)) -> Vec<u64> {
    let mut counts = vec![0; programs.len()];
    for (start, count) in batches(0..documents).skip(core).step_by(cores) {
        let mut bytes = Vec::with_capacity(count * (LETTERS + 1));
        for value in values(start, count).chunks(LETTERS) {
            bytes.extend_from_slice(value);
            bytes.push(SEPARATOR);
        }
        let offsets: Vec<u32> = (0..=count)
            .map(|row| (row * (LETTERS + 1)) as u32)
            .collect();
        let rows = Rows {
            bytes: &bytes,
            offsets: &offsets,
        };
        for (count, program) in counts.iter_mut().zip(programs) {
            *count += program
                .count_rows(rows, &Stop::never())
                .expect("nothing stops it");
        }
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values_are_as_many_as_wanted_and_are_there() {
        for documents in [1, BATCH - 1, BATCH + 1, 5 * BATCH] {
            let known = known_values(documents, 3);
            assert_eq!(known.len(), 3.min(documents), "of {documents}");
            assert!(known.iter().all(|(_, count)| *count > 0), "{known:?}");
        }
    }

    #[test]
    fn a_larger_collection_begins_with_the_values_of_a_smaller_one() {
        let values_of = |documents| -> Vec<u8> {
            batches(0..documents)
                .flat_map(|(start, count)| values(start, count))
                .collect()
        };
        assert!(values_of(2 * BATCH + 5).starts_with(&values_of(BATCH + 7)));
    }
}
