//! Counts the lines of a file that match a pattern, as `rg -c` does, and prints the speed.
//!
//! `cargo run --release --example count -- PATTERN FILE [OPTIONS] [TIER]`

use std::error::Error;
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_text::{Limits, Options, Pattern, Program, Rows, SEPARATOR, Tier};

/// Rows per block; buckets of the cache are about as large.
const ROWS_PER_BLOCK: usize = 131_072;

const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, file, rest @ ..] = arguments.as_slice() else {
        return Err("PATTERN FILE [OPTIONS] [TIER]".into());
    };
    let limits = Limits::default();
    let pattern = Pattern::new(
        source,
        Options::parse(rest.first().map_or("", |text| text))?,
        &limits,
    )?;
    let started = Instant::now();
    let program = match rest
        .get(1)
        .map(|name| Tier::from_name(name).ok_or("unknown tier"))
        .transpose()?
    {
        Some(tier) => Program::compile_at(pattern, tier, &limits)
            .ok_or("the tier cannot search for the pattern")?,
        None => Program::compile(pattern, &limits),
    };
    println!("{}compiled     {:?}", program.describe(), started.elapsed());
    let (bytes, offsets) = rows_of(&std::fs::read(file)?);
    let rows = Rows {
        bytes: &bytes,
        offsets: &offsets,
    };
    let (count, seconds) = fastest(&program, rows);
    let gb_per_s = bytes.len() as f64 / seconds / 1e9;
    println!(
        "{count} of {} rows, {:.2} ms, {gb_per_s:.2} GB/s",
        rows.len(),
        seconds * 1e3
    );
    Ok(())
}

fn rows_of(text: &[u8]) -> (Vec<u8>, Vec<u32>) {
    let mut bytes = text.to_vec();
    let mut offsets = vec![0];
    for (index, byte) in bytes
        .iter_mut()
        .enumerate()
        .filter(|(_, byte)| **byte == b'\n')
    {
        *byte = SEPARATOR;
        offsets.push(index as u32 + 1);
    }
    bytes.truncate(offsets.last().map_or(0, |&end| end as usize));
    (bytes, offsets)
}

/// Returns the count, and the time in seconds of the fastest of several rounds over all blocks.
fn fastest(program: &Program, rows: Rows<'_>) -> (u64, f64) {
    let mut result = (0, f64::INFINITY);
    for _ in 0..ROUNDS {
        let started = cpu_seconds();
        let blocks = (0..rows.len()).step_by(ROWS_PER_BLOCK);
        let counts = blocks.map(|from| {
            let block = rows.slice(from..rows.len().min(from + ROWS_PER_BLOCK));
            program
                .count_rows(block, &Stop::never())
                .expect("`Stop::never` never stops the search")
        });
        result = (counts.sum(), result.1.min(cpu_seconds() - started));
    }
    result
}

/// Returns the processor time of this thread, which other processes do not affect; outside of Linux, the time of day.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanoseconds = text.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
    let since = |_| {
        std::time::UNIX_EPOCH
            .elapsed()
            .map_or(0.0, |time| time.as_secs_f64())
    };
    nanoseconds.map_or_else(|| since(()), |nanoseconds| nanoseconds / 1e9)
}
