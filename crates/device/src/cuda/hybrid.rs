//! Memory that lies partly on a device and partly in host memory, at one range of addresses.
//!
//! The driver maps chunks of physical memory to the range. The chunks on the device are interleaved with those of the
//! host: every part of the range has about the same share on the device, however its bytes are used. After Lutz et al.
//! (SIGMOD 2020, section 5.2), whose hybrid table has one border instead.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdevice_attribute, CUmemLocationType};
use parking_lot::Mutex;

use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::managed::RESERVED_BYTES;
use super::{Arena, Context, Cuda, DeviceMemory, DeviceView};
use crate::error::{JobError, JobFailure};

/// Number of chunks of a large range.
const CHUNKS: u64 = 1024;
/// Bytes of a range, at most: more than any machine has.
const BYTES_MAX: u64 = 1 << 46;

/// A range of addresses and the chunks that are mapped to it, from the first on.
#[derive(Debug)]
pub(super) struct Chunks {
    context: Arc<Context>,
    address: u64,
    chunk_bytes: u64,
    /// Number of chunks of the whole range. One more is reserved behind it, through which a chunk moves.
    count: usize,
    mapped: Mutex<Vec<Chunk>>,
}

/// Physical memory of a chunk.
#[derive(Debug, Clone, Copy)]
struct Chunk {
    handle: sys::CUmemGenericAllocationHandle,
    is_on_device: bool,
}

/// Memory of a device and of its host at one range of addresses.
///
/// Kernels and copies of the device use all of it as device memory; what lies in host memory they read and write over
/// the bus, also by atomic operations. Other devices cannot use it. The bytes on the device come from what the budget
/// leaves of the card. The initial content is undefined. The memory is freed when this value and all views of it are
/// dropped, which waits for all work of the device.
#[derive(Debug, Clone)]
pub struct HybridMemory {
    memory: Arc<DeviceMemory>,
    chunks: Arc<Chunks>,
}

impl HybridMemory {
    /// Allocates the memory, as [`Cuda::hybrid_memory`] says.
    pub(super) fn create(
        (context, arena): (&Arc<Context>, &Arc<Arena>),
        bytes: u64,
        device_bytes: u64,
    ) -> Result<HybridMemory, JobError> {
        let chunks = Chunks::reserve(context, bytes)?;
        chunks.fill(device_bytes)?;
        let chunks = Arc::new(chunks);
        let memory = DeviceMemory::of_chunks(arena, Arc::clone(&chunks), bytes);
        Ok(HybridMemory {
            memory: Arc::new(memory),
            chunks,
        })
    }

    /// Returns a view of all bytes.
    pub fn all(&self) -> DeviceView<u8> {
        DeviceView::of(&self.memory, 0..self.memory.bytes() as usize)
    }

    /// Returns the bytes of the chunks on the device.
    pub fn device_bytes(&self) -> u64 {
        self.chunks.on_device() as u64 * self.chunks.chunk_bytes
    }

    /// Returns the fraction of the chunks that are on the device.
    pub fn device_share(&self) -> f64 {
        self.chunks.on_device() as f64 / self.chunks.count as f64
    }

    /// Moves chunks until at least `bytes` are on the device, and fewer than a chunk more. Their content and the
    /// addresses stay. Blocks: waits for all work of the device, then moves a chunk after the other.
    ///
    /// # Errors
    /// As for [`Cuda::hybrid_memory`]. Chunks that have moved stay where they are.
    ///
    /// # Panics
    /// If the memory belongs to another device.
    pub fn set_device_bytes(&self, cuda: &Cuda, bytes: u64) -> Result<(), JobError> {
        cuda.own(&self.memory);
        self.chunks.context.synchronize()?;
        let wanted = self.chunks.count_of(bytes);
        for (index, is_on_device) in places(self.chunks.count, wanted).enumerate() {
            self.chunks.move_chunk(index, is_on_device)?;
        }
        Ok(())
    }
}

/// Returns for each of `count` chunks whether it is one of the `on_device` that are on the device. With one more, one
/// chunk differs.
fn places(count: usize, on_device: usize) -> impl Iterator<Item = bool> {
    // Numbers with reversed bits follow each other far apart: those below any bound are spread evenly.
    let bits = count.next_power_of_two().trailing_zeros();
    let reversed = move |index: usize| match bits {
        0 => 0,
        bits => index.reverse_bits() >> (usize::BITS - bits),
    };
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by_key(|index| reversed(*index));
    let mut are_on_device = vec![false; count];
    for index in &order[..on_device.min(count)] {
        are_on_device[*index] = true;
    }
    are_on_device.into_iter()
}

impl Chunks {
    /// Reserves addresses for at least `bytes`.
    fn reserve(context: &Arc<Context>, bytes: u64) -> Result<Chunks, JobError> {
        let _entered = context.enter()?;
        if bytes > BYTES_MAX {
            let error = DriverError {
                operation: "cuMemAddressReserve",
                code: OUT_OF_MEMORY.to_owned(),
            };
            return Err(no_room(error, context, bytes));
        }
        let granule = granule_bytes(context.host_node())?;
        let bytes = bytes.max(1);
        let chunk_bytes = (bytes / CHUNKS).max(1).next_multiple_of(granule);
        let count = bytes.div_ceil(chunk_bytes) as usize;
        let (reserved, alignment) = ((count + 1) * chunk_bytes as usize, granule as usize);
        let mut address = 0;
        // SAFETY: a context is current, and `address` outlives the call. 0 leaves the address to the driver.
        let code = unsafe { sys::cuMemAddressReserve(&mut address, reserved, alignment, 0, 0) };
        let reserved = check("cuMemAddressReserve", code);
        reserved.map_err(|error| no_room(error, context, bytes))?;
        Ok(Chunks {
            context: Arc::clone(context),
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

    /// Returns the number of chunks that have at least `bytes`.
    fn count_of(&self, bytes: u64) -> usize {
        let count = bytes.div_ceil(self.chunk_bytes);
        usize::try_from(count).map_or(self.count, |it| it.min(self.count))
    }

    fn on_device(&self) -> usize {
        let mapped = self.mapped.lock();
        mapped.iter().filter(|it| it.is_on_device).count()
    }

    /// Maps all chunks.
    fn fill(&self, device_bytes: u64) -> Result<(), JobError> {
        let _entered = self.context.enter()?;
        for (index, is_on_device) in places(self.count, self.count_of(device_bytes)).enumerate() {
            let chunk = self.create(is_on_device)?;
            // The next call maps it, or fails and with it the device.
            self.mapped.lock().push(chunk);
            self.map(index, chunk)?;
        }
        Ok(())
    }

    /// Allocates the physical memory of a chunk.
    fn create(&self, is_on_device: bool) -> Result<Chunk, JobError> {
        // Managed memory relies on the free memory of the card.
        let managed = self.context.managed.lock();
        let (size, properties) = (self.chunk_bytes as usize, self.properties(is_on_device)?);
        let free_bytes = self.context.memory()?.free_bytes;
        let code = match free_bytes.saturating_sub(RESERVED_BYTES + *managed) {
            left if is_on_device && left < self.chunk_bytes => {
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
            }
            _ => {
                let mut handle = 0;
                // SAFETY: a context is current, and both outlive the call.
                let code = unsafe { sys::cuMemCreate(&mut handle, size, &properties, 0) };
                if code == sys::CUresult::CUDA_SUCCESS {
                    return Ok(Chunk {
                        handle,
                        is_on_device,
                    });
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

    /// Maps a chunk to its part of the range, for kernels and copies of the device.
    fn map(&self, index: usize, chunk: Chunk) -> Result<(), DriverError> {
        let (address, size) = (self.address_of(index), self.chunk_bytes as usize);
        // SAFETY: a context is current. These addresses are reserved and nothing is mapped to them.
        check("cuMemMap", unsafe {
            sys::cuMemMap(address, size, 0, chunk.handle, 0)
        })?;
        let access = sys::CUmemAccessDesc {
            location: own_location()?,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the chunk is mapped there, and the one description outlives the call.
        let code = unsafe { sys::cuMemSetAccess(address, size, &access, 1) };
        check("cuMemSetAccess", code)
    }

    fn unmap(&self, index: usize) -> Result<(), DriverError> {
        let (address, size) = (self.address_of(index), self.chunk_bytes as usize);
        // SAFETY: a context is current, and one whole chunk is mapped there. The caller has waited for all work.
        check("cuMemUnmap", unsafe { sys::cuMemUnmap(address, size) })
    }

    /// Moves a chunk to the device or the host, unless it is there. No work of the device may be in flight.
    fn move_chunk(&self, index: usize, to_device: bool) -> Result<(), JobError> {
        let _entered = self.context.enter()?;
        let old = self.mapped.lock()[index];
        if old.is_on_device == to_device {
            return Ok(());
        }
        let new = self.create(to_device)?;
        let copied = self.map(self.count, new).and_then(|()| {
            let (to, from) = (self.address_of(self.count), self.address_of(index));
            // SAFETY: chunks are mapped to both addresses, and they do not overlap.
            let code = unsafe { sys::cuMemcpy(to, from, self.chunk_bytes as usize) };
            check("cuMemcpy", code)?;
            self.context.synchronize()
        });
        let unmapped = self.unmap(self.count);
        let copied = copied.and(unmapped);
        let copied = copied.map_err(|error| no_room(error, &self.context, self.chunk_bytes));
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

    /// Returns the properties of the physical memory of a chunk. A context must be current.
    fn properties(&self, is_on_device: bool) -> Result<sys::CUmemAllocationProp, DriverError> {
        properties(is_on_device, self.context.host_node())
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // The driver does not wait for work before it unmaps. In a context that has failed no work runs.
        let _ = self.context.synchronize();
        let _entered = self.context.enter();
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
fn granule_bytes(host_node: Option<u32>) -> Result<u64, DriverError> {
    let kind = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED;
    let mut granule = 1;
    for is_on_device in [false, true] {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn on_device(count: usize, wanted: usize) -> Vec<bool> {
        places(count, wanted).collect()
    }

    #[test]
    fn every_part_has_about_the_same_share_on_the_device() {
        for count in [1, 2, 3, 7, 64, 100, 1000] {
            for wanted in 0..=count {
                let places = on_device(count, wanted);
                assert_eq!(places.iter().filter(|it| **it).count(), wanted);
                for part in places.chunks(count.div_ceil(4)) {
                    let found = part.iter().filter(|it| **it).count();
                    let even = wanted * part.len() / count;
                    assert!(found.abs_diff(even) <= 2, "{found} of {wanted} of {count}");
                }
            }
        }
    }

    #[test]
    fn a_larger_share_moves_no_chunk_to_the_host() {
        for wanted in 0..37 {
            let (fewer, more) = (on_device(37, wanted), on_device(37, wanted + 1));
            let moved = fewer.iter().zip(&more).filter(|(few, more)| few != more);
            assert_eq!(moved.count(), 1);
            assert!(fewer.iter().zip(&more).all(|(few, more)| *more || !few));
        }
    }
}
