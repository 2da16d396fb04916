//! Loads a file of lines as one cached field and times searches over it.
//!
//! `cargo run --release -p forebay-documents-cache --example search -- FILE [DEVICES] [PATTERN…]`
//!
//! A pattern is `exact:TEXT`, `prefix:TEXT`, `substring:TEXT`, or a regular expression.

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_cancel::Stop;
use forebay_device::{DeviceOptions, DeviceSpec, Devices};
use forebay_documents_cache::{
    Cache, CacheSettings, CollectionCache, Expr, FieldValue, Predicate, SearchAnswer,
    SearchRequest, Want,
};
use forebay_text::{Limits, Options, Pattern, Program};

/// Number of lines in a batch.
const BATCH: usize = 1000;
/// Number of repetitions of each search.
const REPEATS: usize = 15;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let file = arguments
        .next()
        .ok_or("usage: search FILE [DEVICES] [PATTERN…]")?;
    let devices = arguments.next().unwrap_or_else(|| "host:2".to_owned());
    let patterns: Vec<String> = arguments.collect();
    let text = std::fs::read(file)?;
    let spec: DeviceSpec = devices.parse()?;
    let devices = Arc::new(Devices::new(&spec, DeviceOptions::default())?);
    let cache = Cache::new(devices, CacheSettings::default());
    let collection = cache.declare("example.lines", &["line"]);
    load(&collection, &text)?;
    describe(&collection);
    let defaults = [
        "exact:react",
        "prefix:react-",
        "substring:webpack",
        "react.*native",
        "[0-9]{4}$",
        "^[a-z]+-[a-z]+-[a-z]+$",
        "(?i)json",
    ];
    let defaults = defaults.map(str::to_owned).to_vec();
    for pattern in if patterns.is_empty() {
        defaults
    } else {
        patterns
    } {
        time(&collection, &pattern).await?;
    }
    Ok(())
}

fn load(collection: &CollectionCache, text: &[u8]) -> Result<(), Box<dyn Error>> {
    let lines: Vec<&str> = std::str::from_utf8(text)?
        .split('\n')
        .filter(|line| !line.is_empty())
        .collect();
    let began = Instant::now();
    let mut number = 0;
    for batch in lines.chunks(BATCH) {
        let numbers: Vec<u32> = (number..).take(batch.len()).collect();
        let mut values = collection.batch(batch.len());
        for line in batch {
            values.push(&[FieldValue::String(line.as_bytes())]);
        }
        collection.insert_batch(&numbers, &values)?;
        number += batch.len() as u32;
    }
    let inserted = began.elapsed();
    collection.flush();
    let rate = lines.len() as f64 / began.elapsed().as_secs_f64() / 1e6;
    println!(
        "{} lines in {inserted:.2?} + {:.2?}: {rate:.2} M/s",
        lines.len(),
        began.elapsed() - inserted
    );
    Ok(())
}

fn describe(collection: &CollectionCache) {
    let stats = collection.stats(0).expect("one field is declared");
    println!(
        "{} rows, {} value bytes, {} overhead bytes ({:.1} a row), {} buckets",
        stats.rows,
        stats.value_bytes,
        stats.overhead_bytes,
        stats.overhead_bytes as f64 / stats.rows as f64,
        stats.buckets.len()
    );
}

async fn time(collection: &CollectionCache, pattern: &str) -> Result<(), Box<dyn Error>> {
    let predicate = predicate(pattern)?;
    let mut times = Vec::new();
    let mut answer = SearchAnswer::default();
    for _ in 0..REPEATS {
        let request = SearchRequest {
            expr: Expr::Leaf {
                field: 0,
                predicate: predicate.clone(),
            },
            want: Want::Count,
            stop: Stop::never(),
        };
        let began = Instant::now();
        answer = collection.search(request).await?;
        times.push(began.elapsed());
    }
    times.sort();
    print(pattern, &times, &answer);
    Ok(())
}

fn print(pattern: &str, times: &[Duration], answer: &SearchAnswer) {
    let leaf = &answer.report.leaves[0];
    let tier = leaf.tier.map_or("none", |tier| tier.name());
    let busy: Vec<u64> = answer
        .report
        .devices
        .iter()
        .map(|device| device.device_us)
        .collect();
    println!(
        "{pattern:28} {:>9} found {:>8.1?} (fastest {:>8.1?}) {tier:12} {}/{} buckets, device us {busy:?}",
        answer.count,
        times[times.len() / 2],
        times[0],
        leaf.buckets_searched,
        leaf.buckets_total
    );
}

fn predicate(pattern: &str) -> Result<Predicate, Box<dyn Error>> {
    let program = match pattern.split_once(':') {
        Some(("exact", text)) => return Ok(Predicate::Equals(text.as_bytes().to_vec())),
        Some(("prefix", text)) => Program::prefix(text),
        Some(("substring", text)) => Program::substring(text),
        _ => {
            let limits = Limits::default();
            Program::compile(Pattern::new(pattern, Options::default(), &limits)?, &limits)
        }
    };
    Ok(Predicate::Program(Arc::new(program)))
}
