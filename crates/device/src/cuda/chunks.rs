//! Chunks of physical memory of GPUs and of the host, which the driver maps to one range of addresses.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute, CUmemLocationType};
use parking_lot::Mutex;

use super::Context;
use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::managed::RESERVED_BYTES;
use crate::error::{JobError, JobFailure};

/// Number of chunks of a large range.
const CHUNKS: u64 = 1024;
/// Bytes of a range, at most: more than any machine has.
const BYTES_MAX: u64 = 1 << 46;

/// A range of addresses and the chunks that are mapped to it, from the first on.
#[derive(Debug)]
pub(super) struct Chunks {
    /// The GPUs that access the range.
    contexts: Vec<Arc<Context>>,
    address: u64,
    chunk_bytes: u64,
    /// Number of chunks of the whole range. One more is reserved behind it, through which a chunk moves.
    count: usize,
    mapped: Mutex<Vec<Chunk>>,
}

/// Where the physical memory of a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    /// On the GPU with this index.
    Gpu(usize),
    Host,
}

/// Physical memory of a chunk.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    handle: sys::CUmemGenericAllocationHandle,
    home: Home,
}

impl Chunks {
    /// Reserves addresses for at least `bytes`, which these GPUs access. Chunks are in the host only if `of_host`.
    pub(super) fn reserve(
        contexts: Vec<Arc<Context>>,
        bytes: u64,
        of_host: bool,
    ) -> Result<Chunks, JobError> {
        let context = &contexts[0];
        if bytes > BYTES_MAX {
            let error = DriverError {
                operation: "cuMemAddressReserve",
                code: OUT_OF_MEMORY.to_owned(),
            };
            return Err(no_room(error, context, bytes));
        }
        let mut granule = 1;
        for context in &contexts {
            let _entered = context.enter()?;
            // All are powers of two.
            granule = granule.max(granule_bytes(context.host_node(), of_host)?);
        }
        let entered = context.enter()?;
        let bytes = bytes.max(1);
        let chunk_bytes = (bytes / CHUNKS).max(1).next_multiple_of(granule);
        let count = bytes.div_ceil(chunk_bytes) as usize;
        let (reserved, alignment) = ((count + 1) * chunk_bytes as usize, granule as usize);
        let mut address = 0;
        // SAFETY: a context is current, and `address` outlives the call. 0 leaves the address to the driver.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, reserved, alignment, 0, 0) };
        let reserved = check("cuMemAddressReserve", code);
        reserved.map_err(|error| no_room(error, context, bytes))?;
        drop(entered);
        Ok(Chunks {
            contexts,
            address,
            chunk_bytes,
            count,
            mapped: Mutex::default(),
        })
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    fn address_of(&self, index: usize) -> u64 {
        self.address + index as u64 * self.chunk_bytes
    }

    pub(super) fn chunk_bytes(&self) -> u64 {
        self.chunk_bytes
    }

    /// Returns the number of chunks.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// Returns the number of chunks that have at least `bytes`.
    pub(super) fn count_of(&self, bytes: u64) -> usize {
        let count = bytes.div_ceil(self.chunk_bytes);
        usize::try_from(count).map_or(self.count, |it| it.min(self.count))
    }

    /// Returns the number of chunks on GPUs.
    pub(super) fn on_gpus(&self) -> usize {
        let mapped = self.mapped.lock();
        mapped.iter().filter(|it| it.home != Home::Host).count()
    }

    /// Maps all chunks to memory of these homes.
    pub(super) fn fill(&self, homes: impl Iterator<Item = Home>) -> Result<(), JobError> {
        for (index, home) in homes.take(self.count).enumerate() {
            let _entered = self.context_of(home).enter()?;
            let chunk = self.create(home)?;
            self.mapped.lock().push(chunk);
            let mapped = self.map(index, chunk);
            mapped.map_err(|error| no_room(error, self.context_of(home), self.chunk_bytes))?;
        }
        Ok(())
    }

    /// Returns the context in which a chunk is allocated.
    fn context_of(&self, home: Home) -> &Context {
        match home {
            Home::Gpu(gpu) => &self.contexts[gpu],
            Home::Host => &self.contexts[0],
        }
    }

    /// Allocates the physical memory of a chunk. The context of its home must be current.
    fn create(&self, home: Home) -> Result<Chunk, JobError> {
        let (context, is_on_device) = (self.context_of(home), home != Home::Host);
        // Managed memory relies on the free memory of the card.
        let managed = context.managed.lock();
        let size = self.chunk_bytes as usize;
        let properties = properties(is_on_device, context.host_node())?;
        let free_bytes = context.memory()?.free_bytes;
        let code = match free_bytes.saturating_sub(RESERVED_BYTES + *managed) {
            left if is_on_device && left < self.chunk_bytes => {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
            }
            _ => {
                let mut handle = 0;
                // SAFETY: a context is current, and both outlive the call.
                let code = unsafe { sys::cuMemCreate(&mut handle, size, &properties, 0) };
                if code == sys::CUresult::CUDA_SUCCESS {
                    return Ok(Chunk { handle, home });
                }
                code
            }
        };
        let code = format!("{code:?}");
        let failure = match is_on_device {
            true => JobFailure::NoRoomOnCard {
                bytes: self.chunk_bytes,
                free_bytes,
                code,
            },
            false => JobFailure::CannotPin { bytes: size, code },
        };
        Err(failure.into())
    }

    /// Maps a chunk to its part of the range, for kernels and copies of all GPUs.
    fn map(&self, index: usize, chunk: Chunk) -> Result<(), DriverError> {
        let (address, size) = (self.address_of(index), self.chunk_bytes as usize);
        // SAFETY: a context is current. These addresses are reserved and nothing is mapped to them.
        check("cuMemMap", unsafe {
            sys::cuMemMap(address, size, 0, chunk.handle, 0)
        })?;
        let access = self.contexts.iter().map(|context| {
            let _entered = context.enter()?;
            Ok(sys::CUmemAccessDesc {
                location: own_location()?,
                flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
            })
        });
        let access = access.collect::<Result<Vec<_>, DriverError>>()?;
        // SAFETY: the chunk is mapped there, and the descriptions outlive the call.
        let code = unsafe { sys::cuMemSetAccess(address, size, access.as_ptr(), access.len()) };
        check("cuMemSetAccess", code)
    }

    fn unmap(&self, index: usize) -> Result<(), DriverError> {
        let (address, size) = (self.address_of(index), self.chunk_bytes as usize);
        // SAFETY: a context is current, and one whole chunk is mapped there. The caller has waited for all work.
        check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, size) })
    }

    /// Moves a chunk to a GPU or the host, unless it is there. No work of the GPUs may be in flight.
    pub(super) fn move_chunk(&self, index: usize, home: Home) -> Result<(), JobError> {
        let context = self.context_of(home);
        let _entered = context.enter()?;
        let old = self.mapped.lock()[index];
        if old.home == home {
            return Ok(());
        }
        let new = self.create(home)?;
        let copied = self.map(self.count, new).and_then(|()| {
            let (to, from) = (self.address_of(self.count), self.address_of(index));
            // SAFETY: chunks are mapped to both addresses, and they do not overlap.
            let code = unsafe { sys::cuMemcpy(to, from, self.chunk_bytes as usize) };
            check("cuMemcpy", code)?;
            context.synchronize()
        });
        let unmapped = self.unmap(self.count);
        let copied = copied.and(unmapped);
        let copied = copied.map_err(|error| no_room(error, context, self.chunk_bytes));
        let moved = copied.and_then(|()| {
            self.unmap(index)?;
            Ok(self.map(index, new)?)
        });
        let unused = match &moved {
            Ok(()) => std::mem::replace(&mut self.mapped.lock()[index], new),
            Err(_) => new,
        };
        release(unused);
        moved
    }

    /// Waits for all work of the GPUs.
    pub(super) fn synchronize(&self) -> Result<(), DriverError> {
        let mut contexts = self.contexts.iter();
        contexts.try_for_each(|context| context.synchronize())
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // The driver does not wait for work before it unmaps. In a context that has failed no work runs, and calls
        // in it return the fault.
        let mut healthy: Vec<_> = self.contexts.iter().collect();
        healthy.retain(|context| context.synchronize().is_ok());
        let _entered = healthy.first().unwrap_or(&&self.contexts[0]).enter();
        for (index, chunk) in std::mem::take(self.mapped.get_mut())
            .into_iter()
            .enumerate()
        {
            // Nothing uses it: views own this value.
            let _ = self.unmap(index);
            release(chunk);
        }
        let reserved = (self.count + 1) * self.chunk_bytes as usize;
        // SAFETY: the addresses were reserved by `reserve`, and nothing is mapped to them now.
        let _ = unsafe { sys::cuMemAddressFree(self.address, reserved) };
    }
}

/// Returns an error of a call that takes memory of the card.
fn no_room(error: DriverError, context: &Context, bytes: u64) -> JobError {
    match context.memory() {
        Ok(card) if error.code == OUT_OF_MEMORY => JobFailure::NoRoomOnCard {
            bytes,
            free_bytes: card.free_bytes,
            code: error.code,
        }
        .into(),
        _ => error.into(),
    }
}

/// Frees physical memory, which the driver keeps while it is mapped.
fn release(chunk: Chunk) {
    // SAFETY: the handle came from `cuMemCreate`, and is released once.
    let _ = unsafe { sys::cuMemRelease(chunk.handle) };
}

/// Returns the bytes of which chunks must be multiples. A context must be current.
fn granule_bytes(host_node: Option<u32>, of_host: bool) -> Result<u64, DriverError> {
    let kind = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut granule = 1;
    for is_on_device in [true, false].into_iter().take(1 + usize::from(of_host)) {
        let (mut bytes, properties) = (0, properties(is_on_device, host_node)?);
        // SAFETY: both outlive the call.
        let code = unsafe { sys::cuMemGetAllocationGranularity(&mut bytes, &properties, kind) };
        check("cuMemGetAllocationGranularity", code)?;
        // Both are powers of two.
        granule = granule.max(bytes as u64);
    }
    Ok(granule)
}

/// Returns the properties of physical memory of the device, or of a node of the host. A context must be current.
fn properties(
    is_on_device: bool,
    host_node: Option<u32>,
) -> Result<sys::CUmemAllocationProp, DriverError> {
    Ok(sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: match (is_on_device, host_node) {
            (true, _) => own_location()?,
            (false, Some(node)) => host_location(node.cast_signed()),
            (false, None) => host_location(nearest_node()?),
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    })
}

/// Returns the device of the current context.
fn own_device() -> Result<sys::CUdevice, DriverError> {
    let mut device = 0;
    // SAFETY: a context is current, and `device` outlives the call.
    check("cuCtxGetDevice", unsafe {
        sys::cuCtxGetDevice(&mut device)
    })?;
    Ok(device)
}

fn own_location() -> Result<sys::CUmemLocation, DriverError> {
    Ok(sys::CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
        id: own_device()?,
    })
}

fn host_location(node: i32) -> sys::CUmemLocation {
    sys::CUmemLocation {
        type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA,
        // A machine of one node may have no number for it.
        id: node.max(0),
    }
}

/// Returns the NUMA node that is nearest to the device of the current context; -1 if there is none.
fn nearest_node() -> Result<i32, DriverError> {
    let (mut node, which) = (0, CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID);
    // SAFETY: the handle is one of the driver, and `node` outlives the call.
    let code = unsafe { sys::cuDeviceGetAttribute(&mut node, which, own_device()?) };
    check("cuDeviceGetAttribute", code)?;
    Ok(node)
}
