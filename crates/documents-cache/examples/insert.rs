//! Measures inserts of documents with five cached fields, concurrent with exact finds.
//!
//! `cargo run --release -p forebay-documents-cache --example insert -- FILE [DOCUMENTS [DELTA_VALUES [CHUNK_VALUES
//! [CHUNK_BYTES]]]]`
//!
//! The values are the lines of the file. The processor time is the sum over all threads. It can be compared between
//! runs even on a busy machine.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::{DeviceOptions, Devices};
use forebay_documents_cache::{
    Cache, CacheSettings, CollectionCache, Expr, FieldValue, Predicate, SearchRequest, Want,
};

/// Names of the cached fields.
const FIELDS: [&str; 5] = ["a", "b", "c", "d", "e"];
/// For each field: a document's value is the line whose index is this factor times the document's number.
const STEPS: [usize; FIELDS.len()] = [1, 7, 13, 31, 101];
/// Number of documents in a batch.
const BATCH: usize = 1000;
/// Time between two exact finds.
const FIND_EVERY: Duration = Duration::from_millis(2);
/// Clock ticks of `/proc` in a second.
const TICKS_PER_S: f64 = 100.0;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .ok_or("usage: insert FILE [DOCUMENT_COUNT …]")?;
    let text = std::fs::read_to_string(file)?;
    let numbers = arguments.map(|argument| argument.parse());
    let mut numbers = numbers.collect::<Result<Vec<usize>, _>>()?.into_iter();
    let documents = numbers.next().unwrap_or(1_000_000);
    let defaults = CacheSettings::default();
    let settings = CacheSettings {
        delta_values_max: numbers.next().unwrap_or(defaults.delta_values_max),
        chunk_values_max: numbers.next().unwrap_or(defaults.chunk_values_max),
        chunk_bytes_max: numbers.next().unwrap_or(defaults.chunk_bytes_max),
        ..defaults
    };
    let devices = Devices::new(&"host:2".parse()?, DeviceOptions::default())?;
    let cache = Cache::new(Arc::new(devices), settings);
    let collection = cache.declare("example.lines", &FIELDS);
    let lines: Vec<&str> = text.split('\n').collect();
    let done = Arc::new(AtomicBool::new(false));
    let finds = tokio::spawn(find(
        Arc::clone(&collection),
        lines[7].as_bytes().to_vec(),
        Arc::clone(&done),
    ));
    let (began, cpu) = (Instant::now(), processor_us()?);
    let inserting = Arc::clone(&collection);
    tokio::task::block_in_place(|| insert(&inserting, &lines, documents))?;
    let (inserted, inserted_cpu) = (began.elapsed(), processor_us()? - cpu);
    done.store(true, Ordering::Relaxed);
    let mut finds = finds.await?;
    tokio::task::block_in_place(|| collection.flush());
    let each = |us: f64| us / documents as f64;
    println!(
        "{documents} documents: {:.2} us each; processor time {:.2} us each, {:.2} us including the last flush",
        each(inserted.as_secs_f64() * 1e6),
        each(inserted_cpu),
        each(processor_us()? - cpu),
    );
    finds.sort();
    let at = |share: usize| finds[finds.len() * share / 100];
    println!(
        "{} exact finds meanwhile: median {:?}, 99th percentile {:?}",
        finds.len(),
        at(50),
        at(99)
    );
    Ok(())
}

fn insert(
    collection: &CollectionCache,
    lines: &[&str],
    documents: usize,
) -> Result<(), Box<dyn Error>> {
    for start in (0..documents).step_by(BATCH) {
        let batch = start..documents.min(start + BATCH);
        let numbers: Vec<u32> = batch.clone().map(|number| number as u32).collect();
        let line = |number: usize, step: usize| lines[number * step % lines.len()].as_bytes();
        let mut values = collection.batch(batch.len());
        for number in batch {
            values.push(&STEPS.map(|step| FieldValue::String(line(number, step))));
        }
        collection.insert_batch(&numbers, &values)?;
    }
    Ok(())
}

/// Runs exact finds on the second field until `done`. Returns their latencies.
async fn find(
    collection: Arc<CollectionCache>,
    value: Vec<u8>,
    done: Arc<AtomicBool>,
) -> Vec<Duration> {
    let mut times = Vec::new();
    while !done.load(Ordering::Relaxed) {
        let request = SearchRequest {
            expr: Expr::Leaf {
                field: 1,
                predicate: Predicate::Equals(value.clone()),
            },
            want: Want::Numbers { limit: None },
            stop: Stop::never(),
        };
        let began = Instant::now();
        let found = collection.search(request).await;
        times.push(began.elapsed());
        found.expect("an exact find has no reason to fail");
        tokio::time::sleep(FIND_EVERY).await;
    }
    times
}

/// Returns the processor time of this process so far, in microseconds.
fn processor_us() -> Result<f64, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let (_, figures) = stat.rsplit_once(')').ok_or("no name in /proc/self/stat")?;
    let mut figures = figures.split_whitespace().skip(11);
    let mut next = || figures.next().ok_or("a short /proc/self/stat");
    let ticks = next()?.parse::<f64>()? + next()?.parse::<f64>()?;
    Ok(ticks / TICKS_PER_S * 1e6)
}
