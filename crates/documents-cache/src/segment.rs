//! A block together with what changes about it: which rows are dead, and which device has a copy.

use std::ops::Range;
use std::sync::Arc;

use forebay_device::{Device, Reservation};
use forebay_text_gpu::{LoadError, Loading, TiledRows};
use roaring::RoaringBitmap;

use crate::block::Block;
use crate::gpu::is_gpu;

/// A device's copy of a block.
#[derive(Debug)]
pub(crate) enum Replica {
    /// On a host device: the bytes are the master's own, and are charged to its budget.
    Shared(#[expect(dead_code, reason = "it is there to be dropped")] Reservation),
    /// In the memory of a GPU.
    Tiled(Arc<TiledRows>),
}

/// A copy that may still be on its way.
#[derive(Debug)]
pub(crate) enum Copying {
    There(Arc<Replica>),
    OnItsWay(Loading),
}

impl Copying {
    /// Begins to copy a block to a device; the block may change when this returns.
    pub(crate) fn begin(device: &Arc<Device>, block: &Block) -> Result<Copying, LoadError> {
        if is_gpu(device) {
            return TiledRows::begin(device, block.rows()).map(Copying::OnItsWay);
        }
        let reservation = device.reserve(block.memory_bytes())?;
        Ok(Copying::There(Arc::new(Replica::Shared(reservation))))
    }

    /// Blocks until the copy is there.
    pub(crate) fn wait(self) -> Result<Arc<Replica>, LoadError> {
        match self {
            Copying::There(replica) => Ok(replica),
            Copying::OnItsWay(loading) => {
                let tiled = Arc::new(loading.wait()?);
                Ok(Arc::new(Replica::Tiled(tiled)))
            }
        }
    }

    /// Blocks until all are there.
    pub(crate) fn wait_all(copies: Vec<Copying>) -> Result<Vec<Arc<Replica>>, LoadError> {
        copies.into_iter().map(Copying::wait).collect()
    }
}

/// A block, its dead rows, and its copy on the device of its bucket. Cloning shares all of them.
#[derive(Debug, Clone)]
pub(crate) struct Segment {
    block: Arc<Block>,
    dead: Option<Arc<RoaringBitmap>>,
    pub(crate) replica: Option<Arc<Replica>>,
}

impl Segment {
    pub(crate) fn new(block: Block) -> Segment {
        Segment {
            block: Arc::new(block),
            dead: None,
            replica: None,
        }
    }

    pub(crate) fn block(&self) -> &Block {
        &self.block
    }

    /// The block to append to; copied first if a search still reads it.
    pub(crate) fn block_mut(&mut self) -> &mut Block {
        Arc::make_mut(&mut self.block)
    }

    /// Whether both are the same block in memory.
    pub(crate) fn is_same_block(&self, other: &Segment) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    pub(crate) fn is_dead(&self, row: usize) -> bool {
        self.dead
            .as_ref()
            .is_some_and(|dead| dead.contains(row as u32))
    }

    pub(crate) fn has_dead(&self) -> bool {
        self.dead.is_some()
    }

    /// Some of the rows as a segment of its own, without a copy on a device unless it is all of them.
    pub(crate) fn cut(&self, rows: Range<usize>) -> Segment {
        if rows == (0..self.block.len()) {
            return self.clone();
        }
        let start = rows.start as u32;
        let dead = self.dead.as_ref().map(|dead| {
            let dead = dead.range(start..rows.end as u32).map(|row| row - start);
            Arc::new(dead.collect::<RoaringBitmap>())
        });
        Segment {
            block: Arc::new(self.block.cut(rows)),
            dead: dead.filter(|dead| !dead.is_empty()),
            replica: None,
        }
    }

    /// Marks a row dead.
    pub(crate) fn kill(&mut self, row: usize) {
        Arc::make_mut(self.dead.get_or_insert_default()).insert(row as u32);
    }

    /// The copy on a GPU, if there is one.
    pub(crate) fn tiles(&self) -> Option<&Arc<TiledRows>> {
        match self.replica.as_deref()? {
            Replica::Tiled(tiles) => Some(tiles),
            Replica::Shared(_) => None,
        }
    }

    /// Dead rows as bits: bit `row % 32` of word `row / 32`. Empty if none is.
    pub(crate) fn dead_bits(&self) -> Vec<u32> {
        let Some(dead) = &self.dead else {
            return Vec::new();
        };
        let mut bits = vec![0; self.block.len().div_ceil(32)];
        dead.iter()
            .for_each(|row| bits[row as usize / 32] |= 1 << (row % 32));
        bits
    }

    /// Rows that are alive.
    pub(crate) fn live_rows(&self) -> usize {
        self.live_rows_in(0..self.block.len())
    }

    /// Rows alive among some.
    pub(crate) fn live_rows_in(&self, rows: Range<usize>) -> usize {
        let dead = self.dead.as_ref().map_or(0, |dead| {
            dead.range_cardinality(rows.start as u32..rows.end as u32) as usize
        });
        rows.len() - dead
    }

    /// Rows that died here since `before`, an earlier state of the same segment.
    pub(crate) fn died_since<'a>(
        &'a self,
        before: &'a Segment,
    ) -> impl Iterator<Item = usize> + 'a {
        let dead = self.dead.iter().flat_map(|dead| dead.iter());
        dead.map(|row| row as usize)
            .filter(|row| !before.is_dead(*row))
    }

    /// In a sorted segment, the live row of this value and document.
    pub(crate) fn find_sorted(&self, value: &[u8], number: u32) -> Option<usize> {
        self.block
            .find_sorted(value, number)
            .filter(|row| !self.is_dead(*row))
    }

    /// In any segment, the live row of this value and document.
    pub(crate) fn find_unsorted(&self, value: &[u8], number: u32) -> Option<usize> {
        self.block
            .find_unsorted(value, number)
            .find(|row| !self.is_dead(*row))
    }

    /// Bytes of memory of the block and its dead rows.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let dead = self
            .dead
            .as_ref()
            .map_or(0, |dead| dead.serialized_size() as u64);
        self.block.memory_bytes() + dead + size_of::<Segment>() as u64
    }
}
