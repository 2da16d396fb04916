//! Work stealing between the members of one scan: host devices, or host threads. Each bucket of the scan is searched by
//! one member.
//!
//! The placement cannot predict the cost of a search in each bucket: values are sorted, so matches cluster in few
//! buckets. All host devices read the same memory, so a device that has finished its own buckets takes buckets that
//! other devices have not started.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::scan::Task;

/// Minimum bytes of a bucket that a member takes from its owner. Searching a smaller bucket takes less time than waking
/// a thread.
const SHARED_BYTES_MIN: u64 = 64 << 10;

/// Value of `taken_by` for a bucket that no member has taken.
const UNTAKEN: usize = usize::MAX;

/// Buckets that one or more members search together.
#[derive(Debug)]
pub(super) struct Pool {
    units: Vec<Unit>,
}

/// The tasks of one bucket.
#[derive(Debug)]
struct Unit {
    tasks: Vec<Task>,
    bytes: u64,
    /// The member that owns the bucket.
    owner: usize,
    /// The member that searches the bucket, or `UNTAKEN`.
    taken_by: AtomicUsize,
}

impl Unit {
    fn take(&self, member: usize) -> bool {
        let free = (Ordering::AcqRel, Ordering::Acquire);
        self.taken_by
            .compare_exchange(UNTAKEN, member, free.0, free.1)
            .is_ok()
    }
}

impl Pool {
    /// Creates a pool from the tasks of each member. The tasks of a bucket must be adjacent.
    pub(super) fn new(members: &[Vec<Task>]) -> Pool {
        let buckets = members.iter().enumerate().flat_map(|(owner, tasks)| {
            let buckets = tasks.chunk_by(|a, b| a.bucket == b.bucket);
            buckets.map(move |tasks| Unit {
                tasks: tasks.to_vec(),
                bytes: tasks.iter().map(Task::bytes).sum(),
                owner,
                taken_by: AtomicUsize::new(UNTAKEN),
            })
        });
        Pool {
            units: buckets.collect(),
        }
    }

    /// Returns the buckets that `member` may search, in order: first its own, then those of other members in reverse
    /// order.
    pub(super) fn order(&self, member: usize) -> Vec<usize> {
        let (own, others): (Vec<usize>, Vec<usize>) =
            (0..self.units.len()).partition(|unit| self.units[*unit].owner == member);
        let shared = |unit: &usize| self.units[*unit].bytes >= SHARED_BYTES_MIN;
        own.into_iter()
            .chain(others.into_iter().rev().filter(shared))
            .collect()
    }

    /// Takes a bucket for `member`. Returns false if the bucket was already taken.
    pub(super) fn take(&self, unit: usize, member: usize) -> bool {
        self.units[unit].take(member)
    }

    /// Returns the buckets that `member` has taken.
    pub(super) fn taken(&self, member: usize) -> impl Iterator<Item = usize> {
        let taken =
            move |unit: &usize| self.units[*unit].taken_by.load(Ordering::Acquire) == member;
        (0..self.units.len()).filter(taken)
    }

    /// Returns the tasks of a bucket. There is at least one.
    pub(super) fn tasks(&self, unit: usize) -> &[Task] {
        &self.units[unit].tasks
    }

    /// Returns the total bytes of all buckets.
    pub(super) fn bytes(&self) -> u64 {
        self.units.iter().map(|unit| unit.bytes).sum()
    }
}
