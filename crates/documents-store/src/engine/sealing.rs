//! Sealing of write buffers, so that the background thread flushes them to tables.
//!
//! Without this module, each batch that finds a buffer full would ask fjall's background thread to seal the buffer.
//! With this module, the writers themselves seal buffers before fjall considers the buffers full. There are three
//! reasons:
//!
//! - The requests go into a queue of 1,000 messages that only the background thread empties. After sealing a buffer,
//!   the thread itself adds a message. If the queue is full then, the thread blocks forever.
//! - A buffer keeps growing while the thread is busy.
//! - The total size of all partitions' buffers must stay within a limit ([`super::buffers`]).
//!
//! fjall syncs the journal before it flushes the sealed buffers of a partition, but it also flushes buffers that are
//! sealed after that sync. So the writers sync the journal before they seal a buffer, and write no batch between the
//! sync and the sealing. Otherwise a table might hold a batch that a power failure removes from the journal. The batch
//! would then be missing in the other partitions, and the store would not open.

use fjall::{AbstractTree, Database, Keyspace};
use parking_lot::RwLock;

use crate::error::Result;

/// Maximum number of sealed buffers of a partition that wait for their flush. fjall itself stops writers at 4, in a
/// loop that does not end if the flush fails.
const SEALED_MAX: usize = 3;
/// Maximum number of buffers queued for a flush. fjall's queue holds 1,000 messages, two for each buffer. When the
/// queue is full, senders block, and block forever if the background thread has failed.
const QUEUED_MAX: usize = 500;
/// Maximum number of buffers that one call seals.
pub(super) const AT_ONCE_MAX: usize = 100;

/// A reference to a partition's write buffer that was active when the reference was made.
pub(super) struct Buffer {
    keyspace: Keyspace,
    id: u64,
}

impl Buffer {
    /// Refers to the partition's active write buffer.
    pub(super) fn of(keyspace: &Keyspace) -> Self {
        Self {
            keyspace: keyspace.clone(),
            id: keyspace.tree.active_memtable().id(),
        }
    }

    fn may_be_sealed(&self) -> bool {
        let active = self.keyspace.tree.active_memtable();
        active.id() == self.id && !active.is_empty() && !is_behind(&self.keyspace)
    }
}

/// Returns whether a partition has too many sealed buffers: the background thread must flush some before another
/// buffer may be sealed.
pub(super) fn is_behind(keyspace: &Keyspace) -> bool {
    keyspace.tree.sealed_memtable_count() >= SEALED_MAX
}

/// Returns whether no more buffers may be queued for a flush.
pub(super) fn is_queue_full(database: &Database) -> bool {
    database.outstanding_flushes() + AT_ONCE_MAX > QUEUED_MAX
}

/// Ensures that no buffer is sealed while a batch is being written.
#[derive(Default)]
pub(super) struct Sealing {
    /// Held in shared mode by batches that are being written, and exclusively while buffers are sealed.
    batches: RwLock<()>,
}

impl Sealing {
    /// Writes a batch. No buffer is sealed meanwhile.
    pub(super) fn write(&self, batch: fjall::OwnedWriteBatch) -> fjall::Result<()> {
        let _unsealed = self.batches.read();
        batch.commit()
    }

    /// Lets later snapshots begin after the last flush, although nothing was written since. Versions from before the
    /// flush can be released then.
    pub(super) fn pass_flushes(&self, database: &Database) {
        // A batch that is being written must not become visible yet.
        let _no_batch = self.batches.write();
        let supervisor = &database.supervisor;
        supervisor.snapshot_tracker.publish(supervisor.seqno.next());
    }

    /// Seals at most [`AT_ONCE_MAX`] buffers after `sync` has synced the journal. Skips buffers that are already
    /// sealed, and buffers whose partition has too many sealed buffers.
    ///
    /// # Errors
    /// The outer result has the errors of `sync`, the inner result those of fjall.
    pub(super) fn seal(
        &self,
        database: &Database,
        buffers: &[Buffer],
        sync: impl FnOnce() -> Result<()>,
    ) -> Result<fjall::Result<()>> {
        if buffers.is_empty() {
            return Ok(Ok(()));
        }
        let _no_batch = self.batches.write();
        let ready = buffers.iter().take(AT_ONCE_MAX);
        let ready: Vec<&Buffer> = ready.filter(|buffer| buffer.may_be_sealed()).collect();
        if ready.is_empty() || is_queue_full(database) {
            return Ok(Ok(()));
        }
        sync()?;
        let sealed = ready
            .into_iter()
            .try_for_each(|buffer| buffer.keyspace.rotate_memtable().map(drop));
        Ok(sealed)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::engine::fjall::FjallEngine;
    use crate::engine::journal::name_of;
    use crate::engine::synced::Position;
    use crate::engine::{Batch, Engine, Partition, PartitionKind};
    use crate::options::StoreOptions;

    /// Maximum time that the background thread may take to flush a few small buffers.
    const PATIENCE: Duration = Duration::from_secs(60);

    fn open(folder: &Path, change: impl FnOnce(&mut StoreOptions)) -> FjallEngine {
        let mut options = StoreOptions::directory(folder);
        change(&mut options);
        FjallEngine::open(folder, &options).expect("opens")
    }

    fn create(engine: &FjallEngine) -> (Partition, Keyspace) {
        let partition = engine.create_partition(PartitionKind::Records);
        let partition = partition.expect("creates");
        let keyspaces = engine.database().supervisor.keyspaces.read();
        let keyspaces = keyspaces.expect("no panic");
        let keyspace = keyspaces.get(&*partition.name).expect("is there").clone();
        (partition, keyspace)
    }

    fn put(engine: &FjallEngine, partition: &Partition, number: u32, bytes: usize) {
        let mut batch = Batch::default();
        let key = number.to_be_bytes();
        batch.put(partition.id, key.as_slice(), vec![7; bytes].as_slice());
        engine.commit(batch).expect("writes");
    }

    fn wait_until(is_so: impl Fn() -> bool, what: &str) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < deadline, "{what}");
            std::thread::yield_now();
        }
    }

    /// Returns the length of the first journal up to its last non-zero byte.
    fn journal_bytes(folder: &Path) -> u64 {
        let bytes = std::fs::read(folder.join(name_of(0))).expect("reads");
        let last = bytes.iter().rposition(|byte| *byte != 0);
        last.map_or(0, |last| last as u64 + 1)
    }

    /// Copies a folder. Fails if the engine removes a file meanwhile.
    fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
        std::fs::create_dir(to)?;
        for entry in std::fs::read_dir(from)? {
            let entry = entry?;
            let to = to.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                copy(&entry.path(), &to)?;
            } else {
                std::fs::copy(entry.path(), to)?;
            }
        }
        Ok(())
    }

    /// Blocks the background thread after it has synced the journal, seals another buffer, lets the thread flush all
    /// sealed buffers, and cuts the unsynced end off a copy of the journal.
    #[test]
    fn a_table_holds_no_batch_that_a_power_failure_takes_from_the_journal() {
        let folder = tempfile::tempdir().expect("a folder");
        let (live, image) = (folder.path().join("live"), folder.path().join("image"));
        std::fs::create_dir(&live).expect("creates");
        // The buffers may take a quarter of this limit: 512 KiB.
        let engine = open(&live, |options| options.write_buffers_bytes_max = 2 << 20);
        let (partition, keyspace) = create(&engine);
        let (other, _) = create(&engine);
        let write = || {
            put(&engine, &partition, 0, 150 << 10);
            put(&engine, &other, 0, 100 << 10);
            put(&engine, &other, 1, 300 << 10);
            // The next write seals the buffers of both partitions, and waits until the buffer of `other` is flushed.
            // The last write seals another buffer of `partition`.
            put(&engine, &partition, 1, 1 << 10);
            put(&engine, &partition, 2, 200 << 10);
            put(&engine, &partition, 3, 200 << 10);
        };
        let has_sealed = |count| keyspace.tree.sealed_memtable_count() >= count;
        let writing = keyspace.tree.get_flush_lock();
        let synced_before = std::thread::scope(|scope| {
            let writer = scope.spawn(write);
            wait_until(|| has_sealed(1), "the first buffer is sealed");
            let synced = journal_bytes(&live);
            wait_until(|| has_sealed(2), "the second buffer is sealed");
            drop(writing);
            writer.join().expect("writes");
            synced
        });
        wait_until(|| !has_sealed(1), "the buffers are written");
        let is_copied = || {
            let _ = std::fs::remove_dir_all(&image);
            copy(&live, &image).is_ok()
        };
        wait_until(is_copied, "the folder is copied");
        let noted = Position::read(&image).expect("reads").expect("is noted");
        drop(engine);

        let journal = std::fs::File::options()
            .write(true)
            .open(image.join(name_of(0)));
        journal
            .and_then(|journal| journal.set_len(synced_before.max(noted.length)))
            .expect("cuts");
        open(&image, |_| ());
    }

    /// Writes more than a thousand batches to a full buffer while the background thread is busy.
    #[test]
    fn the_background_goes_on_after_many_batches_to_a_full_buffer() {
        let folder = tempfile::tempdir().expect("a folder");
        let engine = open(folder.path(), |options| {
            options.write_buffer_bytes = 4 << 10;
            options.write_buffers_bytes_max = u64::MAX;
        });
        let (first, first_keyspace) = create(&engine);
        let (other, other_keyspace) = create(&engine);
        let busy = first_keyspace.tree.get_flush_lock();
        (0..3).for_each(|at| put(&engine, &first, at, 3 << 10));
        let is_busy = || first_keyspace.tree.sealed_memtable_count() > 0;
        wait_until(is_busy, "the background thread is busy");
        let written = AtomicU32::new(0);
        let has_tables = || other_keyspace.table_count() > 0;
        let write = || {
            let deadline = Instant::now() + PATIENCE;
            while !has_tables() && Instant::now() < deadline {
                let number = written.fetch_add(1, Ordering::Relaxed);
                put(&engine, &other, number, 10);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(write);
            scope.spawn(write);
            let is_full = || is_behind(&other_keyspace) || written.load(Ordering::Relaxed) > 1_500;
            wait_until(is_full, "the background thread has much to do");
            drop(busy);
            wait_until(has_tables, "the background thread writes tables");
        });
    }
}
