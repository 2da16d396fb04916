//! Prefetches the documents that a search found. All cores read in parallel. Each read waits
//! for several cache misses or disk reads. A single thread would wait for all of them, one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, Document};
use tokio::runtime::Handle;

use super::match_stream::Reader;
use super::report::Tally;

/// Minimum number of documents per thread. A batch of at most this many documents is not prefetched.
const SHARE_MIN: usize = 64;
/// Maximum documents that one thread reads per batch.
const SHARE_MAX: usize = 1024;
/// Bytes after which a thread stops prefetching.
const SHARE_BYTES_MAX: usize = 4 << 20;

/// The record number of a document that was found, and the document if it has been read and matches.
pub(super) type Prefetched = (u32, Option<Document>);

/// The inputs of the reading threads.
#[derive(Clone)]
pub(super) struct Source {
    pub store: Arc<Collection>,
    pub filter: Arc<Filter>,
    pub stop: Stop,
}

/// Returns the number of documents to prefetch. `left` documents remain, and the caller will read `batch` of them.
pub(super) fn worth(left: usize, batch: u64) -> usize {
    let most = forebay_device::cores() * SHARE_MAX;
    match left.min(most).min(usize::try_from(batch).unwrap_or(most)) {
        count if count > SHARE_MIN && forebay_device::cores() > 1 => count,
        _ => 0,
    }
}

/// Prefetches documents.
///
/// A document that cannot be read or checked is returned as unread. The caller then reads the document itself, and gets
/// the error.
pub(super) fn read(source: &Source, numbers: &[u32], tally: &Tally) -> VecDeque<Prefetched> {
    let Ok(runtime) = Handle::try_current() else {
        return unread(numbers).collect();
    };
    let share = numbers.len().div_ceil(forebay_device::cores());
    let mut shares = numbers.chunks(share.max(SHARE_MIN));
    let own = shares.next().unwrap_or_default();
    let begin = |numbers| (numbers, begin(&runtime, source.clone(), numbers));
    // The other threads start before this thread reads its own share.
    let others: Vec<_> = shares.map(begin).collect();
    let mut prefetched = VecDeque::with_capacity(numbers.len());
    let mut add = |share: Share| {
        tally.examine_many(share.examined, share.matched);
        prefetched.extend(share.prefetched);
    };
    add(read_share(source, own));
    for (numbers, share) in others {
        // If the other thread panicked, its documents count as unread. The caller then reads them, and panics too.
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

/// The documents that one thread has read.
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

/// Reads documents until one cannot be read or the byte limit is reached.
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
