//! Searches of the buckets that a GPU holds.

use std::sync::Arc;

use forebay_cancel::Stop;
use forebay_text_gpu::{ScanFound, ScanOrder, ScanWant};
use tokio::sync::oneshot;

use super::FREE_BYTES_MAX;
use super::lookup;
use super::scan::{self, Order, Task};
use super::sink::Sink;
use super::threads::{spawn, until_stopped};
use crate::answer::SearchReport;
use crate::cache::Shared;
use crate::error::SearchError;
use crate::gpu::GpuPartition;

/// Minimum rows per thread when candidates are examined on several threads.
const SHARE_MIN: usize = 128;

/// A search in a GPU's queue.
pub(super) struct GpuScan {
    pub(super) held: Arc<GpuPartition>,
    pub(super) order: Order,
    answer: oneshot::Receiver<ScanFound>,
}

impl GpuScan {
    /// Queues a search. Returns `None` if the GPU cannot execute the program or its queue is full.
    pub(super) fn begin(
        held: &Arc<GpuPartition>,
        order: &Order,
        shared: &Shared,
    ) -> Option<GpuScan> {
        if !order.program.has_device_form() {
            return None;
        }
        let (sender, answer) = oneshot::channel();
        // Sending fails only if the search was dropped.
        let send = move |found| drop(sender.send(found));
        let submitted =
            shared
                .queue(&held.device)
                .submit(&held.device, scan_order(held, order), send);
        if let Err(error) = submitted {
            tracing::debug!(%error, "a search runs on the host instead of a GPU");
            return None;
        }
        Some(GpuScan {
            held: Arc::clone(held),
            order: order.clone(),
            answer,
        })
    }

    /// Waits for the GPU. Returns `None` if the GPU failed to answer, so that the host must search.
    pub(super) async fn finish(
        self,
        report: &mut SearchReport,
    ) -> Result<Option<Sink>, SearchError> {
        let GpuScan {
            held,
            order,
            mut answer,
        } = self;
        let Ok(found) = until_stopped(&order.stop, &mut answer).await? else {
            return Ok(None);
        };
        let entry = scan::device_entry(report, held.device.name());
        entry.buckets += held.buckets;
        entry.rows += held.rows;
        entry.device_us += (found.device_ms * 1e3) as u64;
        // Each row takes the bytes of two numbers: one in this list, and one in a sink.
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

fn scan_order(held: &GpuPartition, order: &Order) -> ScanOrder {
    let confirms = order.program.confirms_on_host();
    let want = match order.empty {
        Sink::Count(_) if !confirms => ScanWant::Count,
        _ => ScanWant::Rows,
    };
    ScanOrder {
        table: Arc::clone(&held.table),
        program: Arc::clone(&order.program),
        want,
        // All candidates are needed, because only the host can decide which of them match.
        limit: if confirms {
            u64::MAX
        } else {
            order.limit.rows_max()
        },
        stop: Stop {
            deadline: order.stop.deadline,
            // This flag suffices instead of the search's own token: a cancelled search is soon dropped, and dropping it
            // sets the flag.
            cancelled: Arc::clone(&order.abandoned),
        },
    }
}

/// Converts rows found by a GPU to documents.
type Examine = fn(&GpuPartition, &Order, &[u32]) -> Result<Sink, SearchError>;

/// Examines the rows that a GPU has found. Uses all cores if there are many rows.
async fn on_all_cores(
    held: Arc<GpuPartition>,
    order: Order,
    mut rows: Vec<u32>,
    examine: Examine,
) -> Result<Sink, SearchError> {
    rows.sort_unstable();
    let share = rows.len().div_ceil(forebay_device::cores()).max(SHARE_MIN);
    let begin = |rows: &[u32]| {
        let (held, order, rows) = (Arc::clone(&held), order.clone(), rows.to_vec());
        spawn(move || examine(&held, &order, &rows))
    };
    // All threads are started before the first is awaited.
    let shares: Vec<_> = rows.chunks(share).map(begin).collect();
    let mut sink = order.empty;
    for share in shares {
        sink.merge(share.await.map_err(|_| SearchError::Panicked)??);
    }
    Ok(sink)
}

/// Returns the documents of the rows, all of which match.
fn numbered(held: &GpuPartition, order: &Order, rows: &[u32]) -> Result<Sink, SearchError> {
    let mut sink = order.empty.clone();
    for &row in rows {
        let (segment, row) = held.table.locate(row);
        sink.add_row(&held.segments[segment].1, row as usize);
    }
    Ok(sink)
}

/// Checks on the host which of the rows match, and returns their documents. Used for programs for which the GPU finds a
/// superset of the matching rows.
fn confirmed(held: &GpuPartition, order: &Order, rows: &[u32]) -> Result<Sink, SearchError> {
    let mut sink = order.empty.clone();
    for &row in rows {
        let (segment, row) = held.table.locate(row);
        let (segment, row) = (&held.segments[segment].1, row as usize);
        let value = segment.block().rows().slice(row..row + 1);
        let outcome = order
            .program
            .search_rows(value, &order.stop, &mut |_| sink.add_row(segment, row));
        outcome?;
        if order.limit.rows_max() <= sink.count() {
            break;
        }
    }
    Ok(sink)
}

/// Returns the tasks with which the host, in place of the GPU, searches the buckets of `held`. Each inner list has the
/// tasks of one bucket. They cover all rows that can match.
pub(super) fn tasks(held: &GpuPartition, prefix: &[u8]) -> Vec<Vec<Task>> {
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

/// Returns tasks with which the host searches the rows whose values are too long for the GPU.
pub(super) fn oversize_tasks(held: &GpuPartition) -> Vec<Task> {
    let task = |&(segment, row): &(usize, u32)| {
        let (bucket, segment) = &held.segments[segment];
        let row = row as usize;
        Task::new(segment, row..row + 1, *bucket)
    };
    held.oversize_rows.iter().filter_map(task).collect()
}
