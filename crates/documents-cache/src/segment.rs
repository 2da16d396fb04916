//! A block with its mutable state: its deleted rows, and its copy on a device.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::{Device, MemoryPool, Reservation};
use forebay_text_gpu::{LoadError, Loading, TiledRows};
use roaring::RoaringBitmap;

use crate::block::Block;
use crate::gpu::is_gpu;

/// A device's copy of a block.
#[derive(Debug)]
pub(crate) enum Replica {
    /// On a host device: the device reads the master copy, whose bytes are charged to the device's memory pool.
    Shared(Reservation),
    /// A copy in the memory of a GPU.
    Tiled(Arc<TiledRows>),
}

impl Replica {
    /// Returns the number of bytes of device memory that the copy takes.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Replica::Shared(reservation) => reservation.bytes(),
            Replica::Tiled(rows) => rows.memory_bytes(),
        }
    }
}

/// A copy that may still be in flight.
#[derive(Debug)]
pub(crate) enum Copying {
    Done(Arc<Replica>),
    InFlight(Loading),
}

impl Copying {
    /// Starts copying a block to a device, into the cache's memory pool. If there is no room, claims memory up to the
    /// cache's share: the caller must hold no lock of a collection's state. The block may change once this function
    /// has returned.
    pub(crate) fn begin(
        device: &Arc<Device>,
        pool: &MemoryPool,
        block: &Block,
    ) -> Result<Copying, LoadError> {
        if is_gpu(device) {
            return TiledRows::begin_in_pool(device, pool, block.rows()).map(Copying::InFlight);
        }
        let reservation = pool.reserve_or_claim(block.memory_bytes())?;
        Ok(Copying::Done(Arc::new(Replica::Shared(reservation))))
    }

    /// Blocks until the copy is complete.
    pub(crate) fn wait(self) -> Result<Arc<Replica>, LoadError> {
        match self {
            Copying::Done(replica) => Ok(replica),
            Copying::InFlight(loading) => {
                let tiled = Arc::new(loading.wait()?);
                Ok(Arc::new(Replica::Tiled(tiled)))
            }
        }
    }

    /// Blocks until all copies are complete.
    pub(crate) fn wait_all(copies: Vec<Copying>) -> Result<Vec<Arc<Replica>>, LoadError> {
        copies.into_iter().map(Copying::wait).collect()
    }
}

/// A block, its deleted rows, and its copy on the device of its bucket. Clones share all three.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    block: Arc<Block>,
    deleted: Option<Arc<RoaringBitmap>>,
    pub(crate) replica: Option<Arc<Replica>>,
}

impl Segment {
    pub(crate) fn new(block: Block) -> Segment {
        Segment {
            block: Arc::new(block),
            deleted: None,
            replica: None,
        }
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// Returns the block for appending. Copies the block first if a search still reads it.
    pub(crate) fn block_mut(&mut self) -> &mut Block {
        Arc::make_mut(&mut self.block)
    }

    /// Returns whether both segments have the same block in memory.
    pub(crate) fn is_same_block(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    pub(crate) fn is_deleted(&self, row: usize) -> bool {
        self.deleted
            .as_ref()
            .is_some_and(|deleted| deleted.contains(row as u32))
    }

    pub(crate) fn has_deleted(&self) -> bool {
        self.deleted.is_some()
    }

    /// Returns a range of rows as a separate segment. The new segment keeps the copy on a device only if the range is
    /// the whole segment.
    pub(crate) fn cut(&self, rows: Range<usize>) -> Segment {
        if rows == (0..self.block.len()) {
            return self.clone();
        }
        let start = rows.start as u32;
        let deleted = self.deleted.as_ref().map(|deleted| {
            let deleted = deleted.range(start..rows.end as u32).map(|row| row - start);
            Arc::new(deleted.collect::<RoaringBitmap>())
        });
        Segment {
            block: Arc::new(self.block.cut(rows)),
            deleted: deleted.filter(|deleted| !deleted.is_empty()),
            replica: None,
        }
    }

    /// Marks a row as deleted.
    pub(crate) fn delete(&mut self, row: usize) {
        Arc::make_mut(self.deleted.get_or_insert_default()).insert(row as u32);
    }

    /// Returns the copy on a GPU, if there is one.
    pub(crate) fn tiles(&self) -> Option<&Arc<TiledRows>> {
        match self.replica.as_deref()? {
            Replica::Tiled(tiles) => Some(tiles),
            Replica::Shared(_) => None,
        }
    }

    /// Returns a bitmap of the deleted rows: bit `row % 32` of word `row / 32`. The bitmap is empty if no row is
    /// deleted.
    pub(crate) fn deleted_bits(&self) -> Vec<u32> {
        let Some(deleted) = &self.deleted else {
            return Vec::new();
        };
        let mut bits = vec![0; self.block.len().div_ceil(32)];
        deleted
            .iter()
            .for_each(|row| bits[row as usize / 32] |= 1 << (row % 32));
        bits
    }

    /// Returns the number of live rows.
    pub(crate) fn live_rows(&self) -> usize {
        self.live_rows_in(0..self.block.len())
    }

    /// Returns the number of live rows in a range.
    pub(crate) fn live_rows_in(&self, rows: Range<usize>) -> usize {
        let deleted = self.deleted.as_ref().map_or(0, |deleted| {
            deleted.range_cardinality(rows.start as u32..rows.end as u32) as usize
        });
        rows.len() - deleted
    }

    /// Returns the deleted rows that were live in `before`, an earlier version of the same segment.
    pub(crate) fn deleted_since<'a>(
        &'a self,
        before: &'a Segment,
    ) -> impl Iterator<Item = usize> + 'a {
        let deleted = self.deleted.iter().flat_map(|deleted| deleted.iter());
        deleted
            .map(|row| row as usize)
            .filter(|row| !before.is_deleted(*row))
    }

    /// Finds the live row with this value and document in a sorted segment.
    pub(crate) fn find_sorted(&self, value: &[u8], number: u32) -> Option<usize> {
        self.block
            .find_sorted(value, number)
            .filter(|row| !self.is_deleted(*row))
    }

    /// Finds the live row with this value and document in a segment of any order.
    pub(crate) fn find_unsorted(&self, value: &[u8], number: u32) -> Option<usize> {
        self.block
            .find_unsorted(value, number)
            .find(|row| !self.is_deleted(*row))
    }

    /// Returns the number of bytes of memory that the block and its deleted rows take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let deleted = self
            .deleted
            .as_ref()
            .map_or(0, |deleted| deleted.serialized_size() as u64);
        self.block.memory_bytes() + deleted + size_of::<Segment>() as u64
    }
}
