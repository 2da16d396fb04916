//! The engine in memory: sorted maps behind one lock.

use std::collections::{BTreeMap, HashMap};
use std::ops::Bound;

use parking_lot::RwLock;

use super::{
    Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, PartitionId, PartitionKind,
};
use crate::error::Result;

/// Keeps everything in memory; nothing survives it.
#[derive(Default)]
pub struct MemoryEngine {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    next_id: u32,
    names: HashMap<String, PartitionId>,
    partitions: HashMap<PartitionId, Partition>,
}

#[derive(Default)]
struct Partition {
    entries: BTreeMap<Bytes, Bytes>,
    bytes: u64,
}

impl Partition {
    fn put(&mut self, key: Bytes, value: Bytes) {
        let key_bytes = key.len() as u64;
        self.bytes += key_bytes + value.len() as u64;
        if let Some(old) = self.entries.insert(key, value) {
            self.bytes -= key_bytes + old.len() as u64;
        }
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.entries.remove(key) {
            self.bytes -= (key.len() + old.len()) as u64;
        }
    }

    fn page(&self, range: &KeyRange, direction: Direction, limit: PageLimit) -> Page {
        let start = Bound::Included(range.start.as_slice());
        let end = range
            .end
            .as_deref()
            .map_or(Bound::Unbounded, Bound::Excluded);
        let entries = self.entries.range::<[u8], _>((start, end));
        match direction {
            Direction::Forward => take_page(entries, limit),
            Direction::Backward => take_page(entries.rev(), limit),
        }
    }
}

fn take_page<'a>(entries: impl Iterator<Item = (&'a Bytes, &'a Bytes)>, limit: PageLimit) -> Page {
    let mut page = Page::new();
    let mut bytes = 0;
    for (key, value) in entries.take(limit.entries) {
        bytes += key.len() + value.len();
        page.push((key.clone(), value.clone()));
        if bytes >= limit.bytes {
            break;
        }
    }
    page
}

impl Engine for MemoryEngine {
    fn open_partition(&self, name: &str, _kind: PartitionKind) -> Result<PartitionId> {
        let mut state = self.state.write();
        if let Some(id) = state.names.get(name) {
            return Ok(*id);
        }
        let id = PartitionId(state.next_id);
        state.next_id += 1;
        state.names.insert(name.to_owned(), id);
        state.partitions.insert(id, Partition::default());
        Ok(id)
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        let mut state = self.state.write();
        state.names.retain(|_, id| *id != partition);
        state.partitions.remove(&partition);
        Ok(())
    }

    fn partition_names(&self) -> Vec<String> {
        self.state.read().names.keys().cloned().collect()
    }

    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>> {
        let state = self.state.read();
        let partition = state.partitions.get(&partition);
        Ok(partition.and_then(|partition| partition.entries.get(key).cloned()))
    }

    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page> {
        if range.is_empty() {
            return Ok(Page::new());
        }
        let state = self.state.read();
        let partition = state.partitions.get(&partition);
        Ok(partition.map_or_else(Page::new, |partition| {
            partition.page(range, direction, limit)
        }))
    }

    fn commit(&self, batch: Batch) -> Result<()> {
        let mut state = self.state.write();
        for write in batch.writes {
            let Some(partition) = state.partitions.get_mut(&write.partition) else {
                continue;
            };
            match write.value {
                Some(value) => partition.put(write.key, value),
                None => partition.remove(&write.key),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn bytes(&self, partition: PartitionId) -> u64 {
        self.state
            .read()
            .partitions
            .get(&partition)
            .map_or(0, |partition| partition.bytes)
    }
}
