//! Searching what a GPU holds.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_text_gpu::{ScanFound, ScanOrder, ScanWant};
use tokio::sync::oneshot;

use super::FREE_BYTES_MAX;
use super::lookup;
use super::scan::{self, Order, Task};
use super::sink::Sink;
use super::threads::{before, spawn};
use crate::answer::SearchReport;
use crate::cache::Shared;
use crate::error::SearchError;
use crate::gpu::OnGpu;

/// As few rows are looked at by one thread.
const SHARE_MIN: usize = 128;

/// A search that waits for a GPU.
pub(super) struct GpuScan {
    pub(super) held: Arc<OnGpu>,
    pub(super) order: Order,
    answer: oneshot::Receiver<ScanFound>,
}

impl GpuScan {
    /// Queues a search; none if the GPU cannot search for the program, or takes no more.
    pub(super) fn begin(held: &Arc<OnGpu>, order: &Order, shared: &Shared) -> Option<GpuScan> {
        if !order.program.has_device_form() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        // Nobody listens if the search was dropped.
        let send = move |found| drop(sender.send(found));
        let submitted =
            shared
                .queue(&held.device)
                .submit(&held.device, scan_order(held, order), send);
        if let Err(error) = submitted {
            tracing::debug!(%error, "a search goes to the host");
            tell_of_loss(held, shared);
            return None;
        }
        Some(GpuScan {
            held: Arc::clone(held),
            order: order.clone(),
            answer,
        })
    }

    /// Waits for the GPU; none if it gave no answer, and the host has to.
    pub(super) async fn finish(
        self,
        report: &mut SearchReport,
        shared: &Shared,
    ) -> Result<Option<Sink>, SearchError> {
        let GpuScan {
            held,
            order,
            mut answer,
        } = self;
        let Ok(found) = before(&order.stop, &mut answer).await? else {
            tell_of_loss(&held, shared);
            return Ok(None);
        };
        let entry = scan::device_entry(report, held.device.name());
        entry.buckets += held.buckets;
        entry.rows += held.rows;
        entry.device_us += (found.device_ms * 1e3) as u64;
        // Each row is a number here, and one in a sink.
        let found_bytes = 2 * size_of::<u32>() * found.list.len();
        if found_bytes > FREE_BYTES_MAX {
            order.held.try_grow(found_bytes)?;
        }
        let sink = match order.empty {
            _ if order.program.confirms_on_host() => {
                on_all_cores(held, order, found.list, confirmed).await?
            }
            Sink::Count(_) => Sink::Count(found.matches),
            _ => on_all_cores(held, order, found.list, numbered).await?,
        };
        Ok(Some(sink))
    }
}

fn scan_order(held: &OnGpu, order: &Order) -> ScanOrder {
    let confirms = order.program.confirms_on_host();
    let want = match order.empty {
        Sink::Count(_) if !confirms => ScanWant::Count,
        _ => ScanWant::Rows,
    };
    ScanOrder {
        table: Arc::clone(&held.table),
        program: Arc::clone(&order.program),
        want,
        // Of candidates, all are wanted: nobody knows which of them match.
        limit: if confirms {
            u64::MAX
        } else {
            order.found.limit()
        },
        stop: Stop {
            deadline: order.stop.deadline,
            // A search that is cancelled is dropped soon after, which abandons what it began.
            cancelled: Arc::clone(&order.abandoned),
        },
    }
}

fn tell_of_loss(held: &OnGpu, shared: &Shared) {
    if held.device.is_lost() {
        shared.alarm.device_lost();
    }
}

/// What becomes of rows that a GPU has found.
type Look = fn(&OnGpu, &Order, &[u32]) -> Result<Sink, SearchError>;

/// Looks at the rows that a GPU has found, at many of them on all cores.
async fn on_all_cores(
    held: Arc<OnGpu>,
    order: Order,
    mut rows: Vec<u32>,
    look: Look,
) -> Result<Sink, SearchError> {
    rows.sort_unstable();
    let share = rows.len().div_ceil(forebay_device::cores()).max(SHARE_MIN);
    let begin = |rows: &[u32]| {
        let (held, order, rows) = (Arc::clone(&held), order.clone(), rows.to_vec());
        spawn(move || look(&held, &order, &rows))
    };
    // All begin before the first is waited for.
    let shares: Vec<_> = rows.chunks(share).map(begin).collect();
    let mut sink = order.empty;
    for share in shares {
        sink.merge(share.await.map_err(|_| SearchError::Panicked)??);
    }
    Ok(sink)
}

/// The documents of rows that match.
fn numbered(held: &OnGpu, order: &Order, rows: &[u32]) -> Result<Sink, SearchError> {
    let mut sink = order.empty.clone();
    for &row in rows {
        let (segment, row) = held.table.locate(row);
        sink.add_row(&held.segments[segment].1, row as usize);
    }
    Ok(sink)
}

/// Those of the rows that a GPU let through that do match.
fn confirmed(held: &OnGpu, order: &Order, rows: &[u32]) -> Result<Sink, SearchError> {
    let mut sink = order.empty.clone();
    for &row in rows {
        let (segment, row) = held.table.locate(row);
        let (segment, row) = (&held.segments[segment].1, row as usize);
        let value = segment.block().rows().slice(row..row + 1);
        let outcome = order
            .program
            .search_rows(value, &order.stop, &mut |_| sink.add_row(segment, row));
        outcome.map_err(|stopped| SearchError::Stopped {
            reason: stopped.reason,
        })?;
        if order.found.limit() <= sink.count() {
            break;
        }
    }
    Ok(sink)
}

/// All rows that the GPU holds and that can match, for the host to search; those of a bucket together.
pub(super) fn tasks(held: &OnGpu, prefix: &[u8]) -> Vec<Vec<Task>> {
    let of_bucket = |segments: &[(usize, crate::segment::Segment)]| {
        let tasks = segments.iter().filter_map(|(bucket, segment)| {
            let rows = lookup::rows_with_prefix(segment.block(), prefix);
            Task::new(segment, rows, *bucket)
        });
        tasks.collect()
    };
    let buckets = held.segments.chunk_by(|a, b| a.0 == b.0);
    buckets.map(of_bucket).collect()
}

/// The rows that the GPU leaves to the host.
pub(super) fn tasks_aside(held: &OnGpu) -> Vec<Task> {
    let task = |&(segment, row): &(usize, u32)| {
        let (bucket, segment) = &held.segments[segment];
        let row = row as usize;
        Task::new(segment, row..row + 1, *bucket)
    };
    held.aside.iter().filter_map(task).collect()
}
