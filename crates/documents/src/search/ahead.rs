//! Reading found documents ahead of whoever pulls them, on all cores: in memory each is a few misses of the processor's
//! caches, on a disk a few reads, and one thread waits for them one after the other.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use forebay_cancel::Stop;
use forebay_documents_query::Filter;
use forebay_documents_store::{Collection, Document};
use tokio::runtime::Handle;

use super::found::Reader;
use super::report::Tally;

/// As few documents are read by one thread.
const SHARE_MIN: usize = 64;
/// The most documents that one thread reads at a time.
const SHARE_MAX: usize = 1024;
/// A thread reads no more once it has so many bytes.
const SHARE_BYTES_MAX: usize = 4 << 20;

/// The number of a document that was found, and the document if it has been read and matches.
pub(super) type Ahead = (u32, Option<Document>);

/// What the threads need that read.
#[derive(Clone)]
pub(super) struct Source {
    pub store: Arc<Collection>,
    pub filter: Arc<Filter>,
    pub stop: Stop,
}

/// How many of the next documents are worth reading ahead, of so many that are left and so many that will be pulled.
pub(super) fn worth(left: usize, batch: u64) -> usize {
    let most = forebay_device::cores() * SHARE_MAX;
    match left.min(most).min(usize::try_from(batch).unwrap_or(most)) {
        count if count > SHARE_MIN && forebay_device::cores() > 1 => count,
        _ => 0,
    }
}

/// Reads documents.
///
/// One that could not be read, or judged, is left unread: whoever pulls it learns why.
pub(super) fn read(source: &Source, numbers: &[u32], tally: &Tally) -> VecDeque<Ahead> {
    let Ok(runtime) = Handle::try_current() else {
        return unread(numbers).collect();
    };
    let share = numbers.len().div_ceil(forebay_device::cores());
    let mut shares = numbers.chunks(share.max(SHARE_MIN));
    let own = shares.next().unwrap_or_default();
    let begin = |numbers| (numbers, begin(&runtime, source.clone(), numbers));
    // All begin before this thread does its own.
    let others: Vec<_> = shares.map(begin).collect();
    let mut ahead = VecDeque::with_capacity(numbers.len());
    let mut add = |share: Share| {
        tally.examine_many(share.examined, share.matched);
        ahead.extend(share.ahead);
    };
    add(read_share(source, own));
    for (numbers, share) in others {
        // If it panicked, so will whoever pulls the document.
        add(share.recv().unwrap_or_else(|_| Share {
            ahead: unread(numbers).collect(),
            ..Share::default()
        }));
    }
    ahead
}

fn unread(numbers: &[u32]) -> impl Iterator<Item = Ahead> {
    numbers.iter().map(|&number| (number, None))
}

/// What one thread has read.
#[derive(Default)]
struct Share {
    ahead: Vec<Ahead>,
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
    let mut ahead = Vec::with_capacity(numbers.len());
    let mut bytes = 0;
    let mut left = numbers.iter();
    while bytes < SHARE_BYTES_MAX
        && let Some(&number) = left.next()
    {
        match reader.read(number.into()) {
            Ok(Some(document)) => {
                bytes += document.len_bytes();
                ahead.push((number, Some(document)));
            }
            Ok(None) => {}
            Err(_) => {
                ahead.push((number, None));
                break;
            }
        }
    }
    ahead.extend(unread(left.as_slice()));
    Share {
        ahead,
        examined: tally.examined(),
        matched: tally.matched(),
    }
}
