//! Helpers of this crate's benchmarks: values, searches, and properties of the run.

#![allow(dead_code, reason = "each benchmark uses its part")]

pub mod record;
pub mod search;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;

use forebay_cancel::Stop;
use forebay_device::{Device, DeviceContext, Step};
use forebay_text::{Limits, Options, Pattern, Program, Rows, SEPARATOR};
use forebay_text_gpu::{ScanTable, TiledRows};

/// Rows per block, as in a bucket.
pub const BLOCK_ROWS: usize = 131_072;

/// Values in host memory, in blocks.
pub struct Blocks {
    /// Bytes and offsets of each block's rows.
    pub blocks: Vec<(Vec<u8>, Vec<u32>)>,
    /// Total bytes of all values.
    pub value_bytes: usize,
}

impl Blocks {
    /// Returns random values of lower-case letters.
    pub fn of_letters(rows: usize, bytes: usize, sorted: bool) -> Blocks {
        let starts: Vec<usize> = (0..rows).step_by(BLOCK_ROWS).collect();
        let block = |start: usize| letters(start, BLOCK_ROWS.min(rows - start), bytes, sorted);
        Blocks {
            blocks: in_parallel(starts.len(), |index| block(starts[index])),
            value_bytes: rows * bytes,
        }
    }

    /// Returns the lines of a file, sorted.
    pub fn of_names(path: &str) -> Blocks {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        let mut names: Vec<&str> = text.lines().collect();
        names.sort_unstable();
        let blocks = names.chunks(BLOCK_ROWS).map(|names| {
            let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
            for name in names {
                bytes.extend_from_slice(name.as_bytes());
                bytes.push(SEPARATOR);
                offsets.push(bytes.len() as u32);
            }
            (bytes, offsets)
        });
        Blocks {
            blocks: blocks.collect(),
            value_bytes: names.iter().map(|name| name.len()).sum(),
        }
    }

    /// Returns the rows of one block.
    pub fn rows(&self, index: usize) -> Rows<'_> {
        let (bytes, offsets) = &self.blocks[index];
        Rows { bytes, offsets }
    }

    /// Copies all blocks to a device.
    pub fn load(&self, device: &Arc<Device>) -> Arc<ScanTable> {
        self.load_some(device, &(0..self.blocks.len()).collect::<Vec<usize>>())
    }

    /// Copies some of the blocks to a device.
    pub fn load_some(&self, device: &Arc<Device>, blocks: &[usize]) -> Arc<ScanTable> {
        let loading = in_parallel(blocks.len(), |index| {
            let rows = self.rows(blocks[index]);
            TiledRows::begin(device, rows).expect("the device has room")
        });
        let segments = loading.into_iter().map(|loading| {
            let tiled = loading.wait().expect("the device works");
            (Arc::new(tiled), Vec::new())
        });
        Arc::new(ScanTable::new(segments))
    }

    /// Returns the number of rows that the host engine finds.
    pub fn count(&self, program: &Program) -> u64 {
        let count = |index| {
            program
                .count_rows(self.rows(index), &Stop::never())
                .expect("nothing stops it")
        };
        in_parallel(self.blocks.len(), count).into_iter().sum()
    }

    /// Returns the numbers of the rows that the host engine finds, in ascending order. Rows are numbered across all
    /// blocks.
    pub fn find(&self, program: &Program) -> Vec<u32> {
        let find = |index| {
            let (first, mut found) = ((index * BLOCK_ROWS) as u32, Vec::new());
            program
                .search_rows(self.rows(index), &Stop::never(), &mut |row| {
                    found.push(first + row)
                })
                .expect("nothing stops it");
            found
        };
        in_parallel(self.blocks.len(), find).concat()
    }
}

/// Returns a block of random letters; `start` is the seed.
pub fn letters(start: usize, rows: usize, length: usize, sorted: bool) -> (Vec<u8>, Vec<u32>) {
    let mut rng = fastrand::Rng::with_seed(start as u64);
    let mut letters = || (0..length).map(|_| rng.u8(b'a'..=b'z')).collect();
    let mut values: Vec<Vec<u8>> = (0..rows).map(|_| letters()).collect();
    if sorted {
        values.sort_unstable();
    }
    let (mut bytes, mut offsets) = (Vec::with_capacity(rows * (length + 1)), vec![0]);
    for value in values {
        bytes.extend_from_slice(&value);
        bytes.push(SEPARATOR);
        offsets.push(bytes.len() as u32);
    }
    (bytes, offsets)
}

/// Returns the results of `work` for 0 to `count - 1`, computed on all cores.
pub fn in_parallel<T: Send>(count: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(count));
    let cores = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        break;
                    }
                    let result = work(index);
                    done.lock().expect("no panic").push((index, result));
                }
            });
        }
    });
    let mut done = done.into_inner().expect("no panic");
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Parses a search: a prefix `=`, `<`, `>` or `*` makes the rest a literal that the value must equal, begin with, end
/// with or contain; anything else is a pattern.
pub fn program(search: &str) -> Arc<Program> {
    let limits = Limits::default();
    let regex = |source: &str| {
        let pattern = Pattern::new(source, Options::default(), &limits).expect("a valid pattern");
        Program::compile(pattern, &limits)
    };
    Arc::new(match search.split_at(1) {
        ("=", literal) => Program::exact(literal),
        ("<", literal) => Program::prefix(literal),
        (">", literal) => Program::suffix(literal),
        ("*", literal) => Program::substring(literal),
        _ => regex(search),
    })
}

/// Waits until a device has run its queued jobs; at first that takes seconds, because kernels are compiled.
pub fn wait_for(device: &Device) {
    let (done, is_done) = channel();
    let report = move |_: &mut DeviceContext| {
        let _ = done.send(());
        Ok(Step::Done)
    };
    device.submit(Box::new(report)).expect("room in the queue");
    is_done.recv().expect("the device works");
}
