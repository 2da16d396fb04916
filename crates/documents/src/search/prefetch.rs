//! Prefetching the documents that were found, on all cores. Each costs a few cache misses of the processor in memory,
//! or a few reads of a disk, and a single thread would wait for them one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, Document};
use tokio::runtime::Handle;

use super::match_stream::Reader;
use super::report::Tally;

/// Batches up to this many documents are read by one thread.
const SHARE_MIN: usize = 64;
/// Maximum documents that one thread reads at a time.
const SHARE_MAX: usize = 1024;
/// Bytes after which a thread stops reading.
const SHARE_BYTES_MAX: usize = 4 << 20;

/// The number of a document that was found, and the document if it has been read and matches.
pub(super) type Prefetched = (u32, Option<Document>);

/// What the reading threads need.
#[derive(Clone)]
pub(super) struct Source {
    pub store: Arc<Collection>,
    pub filter: Arc<Filter>,
    pub stop: Stop,
}

/// Number of the next documents worth prefetching, given how many are left and how many will be pulled.
pub(super) fn worth(left: usize, batch: u64) -> usize {
    let most = forebay_device::cores() * SHARE_MAX;
    match left.min(most).min(usize::try_from(batch).unwrap_or(most)) {
        count if count > SHARE_MIN && forebay_device::cores() > 1 => count,
        _ => 0,
    }
}

/// Reads documents.
///
/// A document that could not be read or judged is left unread, so that the caller gets the error when it pulls it.
pub(super) fn read(source: &Source, numbers: &[u32], tally: &Tally) -> VecDeque<Prefetched> {
    let Ok(runtime) = Handle::try_current() else {
        return unread(numbers).collect();
    };
    let share = numbers.len().div_ceil(forebay_device::cores());
    let mut shares = numbers.chunks(share.max(SHARE_MIN));
    let own = shares.next().unwrap_or_default();
    let begin = |numbers| (numbers, begin(&runtime, source.clone(), numbers));
    // The other threads start before this one reads its own share.
    let others: Vec<_> = shares.map(begin).collect();
    let mut prefetched = VecDeque::with_capacity(numbers.len());
    let mut add = |share: Share| {
        tally.examine_many(share.examined, share.matched);
        prefetched.extend(share.prefetched);
    };
    add(read_share(source, own));
    for (numbers, share) in others {
        // If it panicked, the reader that pulls the document will panic too.
        add(share.recv().unwrap_or_else(|_| Share {
            prefetched: unread(numbers).collect(),
            ..Share::default()
        }));
    }
    prefetched
}

fn unread(numbers: &[u32]) -> impl Iterator<Item = Prefetched> {
    numbers.iter().map(|&number| (number, None))
}

/// What one thread has read.
#[derive(Default)]
struct Share {
    prefetched: Vec<Prefetched>,
    examined: u64,
    matched: u64,
}

fn begin(runtime: &Handle, source: Source, numbers: &[u32]) -> Receiver<Share> {
    let numbers = numbers.to_vec();
    let (sender, receiver) = mpsc::sync_channel(1);
    runtime.spawn_blocking(move || drop(sender.send(read_share(&source, &numbers))));
    receiver
}

/// Reads documents until one fails or there are enough bytes.
fn read_share(source: &Source, numbers: &[u32]) -> Share {
    let tally = Tally::default();
    let reader = Reader {
        store: &source.store,
        filter: &source.filter,
        tally: &tally,
        stop: &source.stop,
    };
    let mut prefetched = Vec::with_capacity(numbers.len());
    let mut bytes = 0;
    let mut left = numbers.iter();
    while bytes < SHARE_BYTES_MAX
        && let Some(&number) = left.next()
    {
        match reader.read(number.into()) {
            Ok(Some(document)) => {
                bytes += document.len_bytes();
                prefetched.push((number, Some(document)));
            }
            Ok(None) => {}
            Err(_) => {
                prefetched.push((number, None));
                break;
            }
        }
    }
    prefetched.extend(unread(left.as_slice()));
    Share {
        prefetched,
        examined: tally.examined(),
        matched: tally.matched(),
    }
}
