//! The engine in memory: ordered maps under one lock.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::numbered::Numbered;
use super::{
    Batch, Bytes, Direction, Engine, KeyRange, Page, PageLimit, Partition, PartitionId,
    PartitionKind,
};
use crate::error::{Result, StoreError};

/// An engine that keeps all partitions in memory until it is dropped.
#[derive(Default)]
pub struct MemoryEngine {
    state: RwLock<State>,
    created: AtomicU64,
}

#[derive(Default)]
struct State {
    next_id: u32,
    names: HashMap<String, PartitionId>,
    partitions: HashMap<PartitionId, Entries>,
}

struct Entries {
    map: Map,
    bytes: u64,
}

/// A partition's entries in key order.
enum Map {
    Sorted(BTreeMap<Bytes, Bytes>),
    Numbered(Numbered),
}

impl Map {
    fn new(kind: PartitionKind) -> Map {
        match kind {
            PartitionKind::Records => Map::Numbered(Numbered::default()),
            PartitionKind::Index | PartitionKind::Catalogue | PartitionKind::History => {
                Map::Sorted(BTreeMap::new())
            }
        }
    }

    fn get(&self, key: &[u8]) -> Option<&Bytes> {
        match self {
            Map::Sorted(entries) => entries.get(key),
            Map::Numbered(entries) => entries.get(key),
        }
    }

    fn insert(&mut self, key: Bytes, value: Bytes) -> Option<Bytes> {
        match self {
            Map::Sorted(entries) => entries.insert(key, value),
            Map::Numbered(entries) => entries.insert(&key, value),
        }
    }

    fn remove(&mut self, key: &[u8]) -> Option<Bytes> {
        match self {
            Map::Sorted(entries) => entries.remove(key),
            Map::Numbered(entries) => entries.remove(key),
        }
    }

    fn page(&self, range: &KeyRange, direction: Direction, limit: PageLimit) -> Page {
        match self {
            Map::Sorted(entries) => {
                let start = Bound::Included(range.start.as_slice());
                let end = range
                    .end
                    .as_deref()
                    .map_or(Bound::Unbounded, Bound::Excluded);
                let found = entries.range::<[u8], _>((start, end));
                let found = found.map(|(key, value)| (key.clone(), value));
                take_page(found, direction, limit)
            }
            Map::Numbered(entries) => {
                let found = entries.range(range);
                let found = found.map(|(number, value)| (number.to_be_bytes().into(), value));
                take_page(found, direction, limit)
            }
        }
    }
}

impl State {
    fn add(&mut self, name: &str, kind: PartitionKind) -> PartitionId {
        let id = PartitionId(self.next_id);
        self.next_id += 1;
        self.names.insert(name.to_owned(), id);
        let entries = Entries {
            map: Map::new(kind),
            bytes: 0,
        };
        self.partitions.insert(id, entries);
        id
    }

    fn entries(&self, partition: PartitionId) -> Result<&Entries> {
        self.partitions
            .get(&partition)
            .ok_or(StoreError::PartitionDropped)
    }
}

impl Entries {
    fn put(&mut self, key: Bytes, value: Bytes) {
        let key_bytes = key.len() as u64;
        self.bytes += key_bytes + value.len() as u64;
        if let Some(old) = self.map.insert(key, value) {
            self.bytes -= key_bytes + old.len() as u64;
        }
    }

    fn remove(&mut self, key: &Bytes) {
        if let Some(old) = self.map.remove(key) {
            self.bytes -= (key.len() + old.len()) as u64;
        }
    }
}

fn take_page<'a>(
    entries: impl DoubleEndedIterator<Item = (Bytes, &'a Bytes)>,
    direction: Direction,
    limit: PageLimit,
) -> Page {
    match direction {
        Direction::Forward => first_entries(entries, limit),
        Direction::Backward => first_entries(entries.rev(), limit),
    }
}

fn first_entries<'a>(entries: impl Iterator<Item = (Bytes, &'a Bytes)>, limit: PageLimit) -> Page {
    let mut page = Page::new();
    let mut bytes = 0;
    for (key, value) in entries.take(limit.entries) {
        bytes += key.len() + value.len();
        page.push((key, value.clone()));
        if bytes >= limit.bytes {
            break;
        }
    }
    page
}

impl Engine for MemoryEngine {
    fn create_partition(&self, kind: PartitionKind) -> Result<Partition> {
        let number = self.created.fetch_add(1, Ordering::Relaxed);
        self.open_partition(&format!("p{number}"), kind)
    }

    fn open_partition(&self, name: &str, kind: PartitionKind) -> Result<Partition> {
        let mut state = self.state.write();
        let id = match state.names.get(name) {
            Some(id) => *id,
            None => state.add(name, kind),
        };
        Ok(Partition {
            id,
            name: name.to_owned(),
        })
    }

    fn existing_partition(&self, name: &str) -> Result<Option<Partition>> {
        let id = self.state.read().names.get(name).copied();
        Ok(id.map(|id| Partition {
            id,
            name: name.to_owned(),
        }))
    }

    fn drop_partition(&self, partition: PartitionId) -> Result<()> {
        let mut state = self.state.write();
        state.names.retain(|_, id| *id != partition);
        state.partitions.remove(&partition);
        Ok(())
    }

    fn has_other_partitions(&self, name: &str) -> bool {
        self.state.read().names.keys().any(|other| other != name)
    }

    fn retain_partitions(&self, names: &HashSet<String>) -> Result<()> {
        let mut state = self.state.write();
        let State {
            names: known,
            partitions,
            ..
        } = &mut *state;
        known.retain(|name, id| names.contains(name) || partitions.remove(id).is_none());
        Ok(())
    }

    fn get(&self, partition: PartitionId, key: &[u8]) -> Result<Option<Bytes>> {
        let state = self.state.read();
        Ok(state.entries(partition)?.map.get(key).cloned())
    }

    fn page(
        &self,
        partition: PartitionId,
        range: &KeyRange,
        direction: Direction,
        limit: PageLimit,
    ) -> Result<Page> {
        let state = self.state.read();
        let partition = state.entries(partition)?;
        if range.is_empty() {
            return Ok(Page::new());
        }
        Ok(partition.map.page(range, direction, limit))
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

    /// Nothing waits for a later batch here.
    fn free_memory(&self) -> Result<()> {
        Ok(())
    }

    fn check_writable(&self) -> Result<()> {
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
