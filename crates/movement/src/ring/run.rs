//! One move through a ring: its threads, from the first read to the last work.

use std::error::Error;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, Scope};
use std::time::Instant;

use forebay_cancel::Stop;
use forebay_device::Device;

use super::chunk::Split;
use super::lease::Lease;
use super::slots::{HostChunk, Reader, Returned, Shared, Slots};
use super::{Consumer, RingReport, Source, Unread};
use crate::MoveError;

/// Moves a source. Returns the lease too, unless slots were lost.
pub(super) fn run<C: Consumer>(
    device: &Arc<Device>,
    lease: Lease,
    source: &dyn Source,
    consumer: &Arc<C>,
    stop: &Stop,
) -> (Option<Lease>, Result<RingReport, MoveError>) {
    let began = Instant::now();
    let Lease {
        slots,
        slot_bytes,
        streams,
    } = lease;
    let count = slots.len();
    let split = Split::new(source.bytes(), slot_bytes, source.lead_bytes());
    let consumer = Arc::clone(consumer);
    let shared = Shared::new(device, slots, streams.clone(), split, (consumer, stop));
    std::thread::scope(|scope| {
        for _ in 0..source.threads().max(1) {
            let reader = shared.reader();
            spawn(scope, &shared, || read(reader, source));
        }
        if streams.is_none() {
            for _ in 0..forebay_device::cores() {
                spawn(scope, &shared, || process(&shared));
            }
        }
    });
    let slots = shared.collect(count);
    let is_whole = slots.len() == count;
    let lease = Lease {
        slots,
        slot_bytes,
        streams,
    };
    let error = MoveError::if_lost(device).or_else(|| shared.take_error());
    let result = match (error, shared.all_consumed()) {
        (Some(error), _) => Err(error),
        (None, Some(chunks)) => Ok(shared.times.report(chunks, source.bytes(), began.elapsed())),
        (None, None) => Err(MoveError::Source {
            source_name: source.name(),
            offset: 0,
            why: "the reader left chunks out".into(),
        }),
    };
    (is_whole.then_some(lease), result)
}

/// Starts a thread of the move; without it, the move fails.
fn spawn<'scope>(
    scope: &'scope Scope<'scope, '_>,
    shared: &'scope Shared,
    work: impl FnOnce() + Send + 'scope,
) {
    let thread = Builder::new().name("ring".to_owned());
    if let Err(error) = thread.spawn_scoped(scope, work) {
        shared.fail(MoveError::Thread(error));
    }
}

fn read(reader: Reader, source: &dyn Source) {
    let shared = &reader.shared;
    let slots = Slots { shared };
    let filled = catch_unwind(AssertUnwindSafe(|| source.fill(&slots)));
    let unread = match filled {
        Ok(Ok(())) => return,
        Ok(Err(unread)) => unread,
        Err(_) => Unread {
            offset: 0,
            why: "the reader panicked".into(),
        },
    };
    shared.fail(MoveError::Source {
        source_name: source.name(),
        offset: unread.offset,
        why: unread.why,
    });
}

/// Processes filled chunks on the CPU until there are no more.
fn process(shared: &Arc<Shared>) {
    while let Some(filled) = shared.next_filled() {
        let HostChunk {
            memory,
            range,
            chunk,
        } = filled;
        if !shared.has_failed() {
            let began = Instant::now();
            let bytes = &memory.host[range];
            let work = AssertUnwindSafe(|| shared.consumer.process(chunk, bytes));
            let processed =
                catch_unwind(work).unwrap_or_else(|_| Err("the consumer panicked".into()));
            shared.times.processed(began.elapsed());
            match processed {
                Ok(()) => shared.count_consumed(),
                Err(why) => shared.fail(failed(shared, chunk.offset, why)),
            }
        }
        shared.give_back(Returned::Free(memory));
    }
}

fn failed(shared: &Shared, offset: u64, why: Box<dyn Error + Send + Sync>) -> MoveError {
    MoveError::Chunk {
        device: shared.device.name().to_owned(),
        offset,
        why,
    }
}
