//! Memory pools: how much of a device's memory each tenant may use.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::OutOfMemory;
use crate::cuda::{Arena, DeviceBuffer, DeviceMemory, DeviceType};
use crate::device::Shared;
use crate::memory::{Budget, COMMON, Reservation, ShareId};

/// Limits of a tenant's memory on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOptions {
    /// Name of the tenant, for logs.
    pub name: String,
    /// Bytes reserved for the tenant; it is never asked to release them.
    pub min_bytes: u64,
    /// Bytes that the tenant can [claim](MemoryPool::claim) from others, and is never asked to release. Others may use
    /// them until then. Raised to `min_bytes` if smaller. The shares of all tenants together should be at most the
    /// budget.
    pub share_bytes: u64,
    /// Maximum bytes that the tenant may use; raised to `min_bytes` if smaller.
    pub max_bytes: u64,
}

/// Name of all memory of a device that is in no pool.
const OTHER: &str = "other";

/// How much of a device's memory a tenant uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolFigures {
    /// Name of the tenant; `other` for memory that is in no pool.
    pub name: String,
    /// Bytes that the tenant uses.
    pub used_bytes: u64,
    /// Maximum bytes that the tenant may use.
    pub max_bytes: u64,
}

/// Callback that asks a tenant to release the given number of bytes, or as many as it can.
///
/// The device calls it without holding a lock, on the thread that needs the bytes; that thread may be the device's own.
/// The callback must not wait for the device or request memory. Memory that in-flight work uses may be freed later.
pub type Reclaim = Box<dyn Fn(u64) + Send + Sync>;

/// One tenant's share of a device's memory; see [`Device::open_pool`](crate::Device::open_pool).
///
/// A request takes free memory or fails, unless it is one that [claims](MemoryPool::allocate_or_claim) memory: a tenant
/// that uses less than its share gets it back from others that use more than theirs. Before a request for urgent work,
/// a tenant calls [`make_room`](MemoryPool::make_room), which asks whatever the tenant's own share is. Limits are of
/// the number of bytes: a request within them may still fail, because a GPU's free memory may be fragmented.
pub struct MemoryPool {
    name: String,
    share: ShareId,
    memory: Arc<PooledMemory>,
    reclaim: Option<Reclaim>,
}

/// A device's memory and the pools that share it.
#[derive(Debug)]
pub(crate) struct PooledMemory {
    shared: Arc<Shared>,
    budget: Arc<Budget>,
    /// Allocator of a GPU's memory; `None` on a host device.
    arena: Option<Arc<Arena>>,
    pools: Mutex<Vec<Weak<MemoryPool>>>,
}

impl PooledMemory {
    pub(crate) fn new(
        shared: Arc<Shared>,
        budget: Arc<Budget>,
        arena: Option<Arc<Arena>>,
    ) -> Arc<PooledMemory> {
        Arc::new(PooledMemory {
            shared,
            budget,
            arena,
            pools: Mutex::default(),
        })
    }

    pub(crate) fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Allocates GPU memory for a share.
    pub(crate) fn allocate(&self, share: ShareId, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        match &self.arena {
            Some(arena) => arena.allocate(share, bytes),
            None => Err(self.out_of_memory(bytes, 0)),
        }
    }

    /// Opens a pool if its minimum is free.
    pub(crate) fn open(
        self: &Arc<Self>,
        options: PoolOptions,
        reclaim: Option<Reclaim>,
    ) -> Result<Arc<MemoryPool>, OutOfMemory> {
        let share = self
            .budget
            .open(options.min_bytes, options.share_bytes, options.max_bytes);
        let share = share.ok_or_else(|| {
            let free_bytes = self.budget.available_bytes(COMMON);
            self.out_of_memory(options.min_bytes, free_bytes)
        })?;
        let pool = Arc::new(MemoryPool {
            name: options.name,
            share,
            memory: Arc::clone(self),
            reclaim,
        });
        self.pools.lock().push(Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Returns all pools except `pool`, sorted by their use above their share, largest first.
    fn others(&self, pool: &MemoryPool) -> Vec<Arc<MemoryPool>> {
        let mut pools = self.pools.lock();
        pools.retain(|member| member.strong_count() > 0);
        let live = pools.iter().filter_map(Weak::upgrade);
        let mut others: Vec<_> = live.filter(|other| other.share != pool.share).collect();
        drop(pools);
        others.sort_by_key(|other| Reverse(other.excess_bytes()));
        others
    }

    /// Returns the use of each tenant in the order of their names, and that of all other memory as the last.
    pub(crate) fn figures(&self) -> Vec<PoolFigures> {
        let pools: Vec<_> = self.pools.lock().iter().filter_map(Weak::upgrade).collect();
        let mut by_name: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for pool in &pools {
            let (used_bytes, max_bytes) = self.budget.use_of(pool.share);
            let (used, max) = by_name.entry(pool.name()).or_default();
            *used += used_bytes;
            *max = max_bytes.max(*max);
        }
        let in_pools: u64 = by_name.values().map(|(used, _)| used).sum();
        let other = self.budget.used_bytes().saturating_sub(in_pools);
        let other = (OTHER, (other, self.budget.budget_bytes()));
        let all = by_name.into_iter().chain([other]);
        let figures = all.map(|(name, (used_bytes, max_bytes))| PoolFigures {
            name: name.to_owned(),
            used_bytes,
            max_bytes,
        });
        figures.collect()
    }

    /// Returns whether a request of this share for `bytes` would succeed.
    fn has_room(&self, share: ShareId, bytes: u64) -> bool {
        match &self.arena {
            Some(arena) => arena.has_room(share, bytes),
            None => bytes <= self.budget.available_bytes(share),
        }
    }

    fn out_of_memory(&self, wanted_bytes: u64, free_bytes: u64) -> OutOfMemory {
        OutOfMemory {
            device: self.shared.name.clone(),
            wanted_bytes,
            free_bytes,
            budget_bytes: self.budget.budget_bytes(),
        }
    }
}

impl MemoryPool {
    /// Returns the name of the tenant.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the number of bytes that the tenant uses.
    pub fn used_bytes(&self) -> u64 {
        self.memory.budget.used_bytes_of(self.share)
    }

    fn excess_bytes(&self) -> u64 {
        self.memory.budget.excess_bytes(self.share)
    }

    /// Allocates GPU memory, which is freed when the result is dropped. The call does not block and does not call the
    /// driver.
    ///
    /// # Errors
    /// [`OutOfMemory`] if no free range is large enough, the tenant would exceed its maximum, or the remaining memory
    /// is reserved for other tenants; always on a host device.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        self.memory.allocate(self.share, bytes)
    }

    /// Allocates GPU memory for `len` values of type `T`, as [`MemoryPool::allocate`] does.
    ///
    /// # Errors
    /// As for [`MemoryPool::allocate`].
    pub fn buffer<T: DeviceType>(&self, len: usize) -> Result<DeviceBuffer<T>, OutOfMemory> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        Ok(DeviceBuffer::new(self.allocate(bytes)?, len))
    }

    /// Reserves bytes of a host device's budget until the reservation is dropped.
    ///
    /// # Errors
    /// [`OutOfMemory`] if fewer bytes are left for the tenant; always on a GPU, where
    /// [`allocate`](MemoryPool::allocate) takes memory.
    pub fn reserve(&self, bytes: u64) -> Result<Reservation, OutOfMemory> {
        let memory = &self.memory;
        let refused = memory.shared.faults.take_out_of_memory() || memory.arena.is_some();
        let reserve = || memory.budget.reserve(self.share, bytes);
        let reservation = (!refused).then(reserve).flatten();
        reservation.ok_or_else(|| {
            let free_bytes = memory.budget.available_bytes(self.share);
            memory.out_of_memory(bytes, free_bytes)
        })
    }

    /// Allocates GPU memory as [`MemoryPool::allocate`] does. If there is no room, [claims](MemoryPool::claim) it.
    ///
    /// # Errors
    /// [`OutOfMemory`] if that is not enough.
    pub fn allocate_or_claim(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        self.or_claim(bytes, || self.allocate(bytes))
    }

    /// Reserves bytes of a host device's budget as [`MemoryPool::reserve`] does. If there is no room,
    /// [claims](MemoryPool::claim) it.
    ///
    /// # Errors
    /// [`OutOfMemory`] if that is not enough.
    pub fn reserve_or_claim(&self, bytes: u64) -> Result<Reservation, OutOfMemory> {
        self.or_claim(bytes, || self.reserve(bytes))
    }

    fn or_claim<T>(
        &self,
        bytes: u64,
        take: impl Fn() -> Result<T, OutOfMemory>,
    ) -> Result<T, OutOfMemory> {
        take().or_else(|missing| match self.claim(bytes) {
            true => take(),
            false => Err(missing),
        })
    }

    /// Makes room for a request for `bytes` that leaves this tenant within its share: asks tenants that use more than
    /// their shares to release what is above. Returns whether the request would succeed; another thread may take the
    /// bytes first. A tenant that would use more than its share gets only what is free, so that two tenants above
    /// their shares do not take memory from each other in turn.
    ///
    /// The callbacks of other tenants run on this thread: the caller must hold no lock that its own callback takes.
    /// Then no thread waits for the locks of one callback while it holds those of another, as no callback claims.
    pub fn claim(&self, bytes: u64) -> bool {
        self.memory.budget.would_keep(self.share, bytes) && self.make_room(bytes)
    }

    /// Asks other tenants to release memory above their share until a request for `bytes` would succeed. Returns
    /// whether it would succeed; another thread may take the bytes first.
    pub fn make_room(&self, bytes: u64) -> bool {
        if !self.memory.budget.may_use(self.share, bytes) {
            return false;
        }
        // The second round asks for all memory above the shares, because the free bytes may be fragmented.
        for wanted in [bytes, u64::MAX] {
            for other in self.memory.others(self) {
                if self.has_room(bytes) {
                    return true;
                }
                other.give_back(wanted, self);
            }
        }
        self.has_room(bytes)
    }

    fn has_room(&self, bytes: u64) -> bool {
        self.memory.has_room(self.share, bytes)
    }

    /// Asks this tenant to release up to `bytes` above its share, for the tenant `needed_by`.
    fn give_back(&self, bytes: u64, needed_by: &MemoryPool) {
        let bytes = bytes.min(self.excess_bytes());
        if let Some(reclaim) = self.reclaim.as_ref().filter(|_| bytes > 0) {
            let (device, by) = (&self.memory.shared.name, &needed_by.name);
            tracing::debug!(device, by, of = self.name, bytes, "memory is reclaimed");
            reclaim(bytes);
        }
    }
}

impl fmt::Debug for MemoryPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryPool")
            .field("device", &self.memory.shared.name)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl Drop for MemoryPool {
    /// Closes the share. Memory already allocated from the pool stays valid.
    fn drop(&mut self) {
        self.memory.budget.close(self.share);
    }
}
