//! The GPUs of this machine and their properties.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::fs;

use cudarc::driver::sys::{self, CUdevice, CUdevice_attribute};

use super::Arch;
use super::library::{self, CudaUnavailable, DriverError, check};

/// Properties of a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// Index of the GPU in the driver's order.
    pub ordinal: u32,
    /// Model name, as in `NVIDIA H100 80GB HBM3`.
    pub model: String,
    /// Architecture that kernels are compiled for.
    pub arch: Arch,
    /// CUDA version that the driver supports, as in `13.0`.
    pub driver_version: String,
    /// Total bytes of memory, used or not.
    pub memory_bytes: u64,
    /// Peak memory bandwidth in bytes per second, from clock and bus width; 0 if the driver does not report them.
    pub memory_bytes_per_s: u64,
    /// Number of streaming multiprocessors.
    pub multiprocessors: u32,
    /// Maximum bytes of shared memory of a block, static and dynamic together.
    pub shared_bytes_per_block_max: u32,
    /// Bytes of L2 cache.
    pub l2_bytes: u64,
    /// Address on the PCI bus, as in `0000:17:00.0`.
    pub pci_address: String,
    /// Nearest NUMA node of the host; `None` if the system does not report it.
    pub numa_node: Option<u32>,
    /// Ordinals of the GPUs whose memory this GPU can access directly.
    pub peers: Vec<u32>,
    /// Those of them whose memory kernels of this GPU also access by atomic operations of the system's scope; over
    /// PCIe, few do.
    pub atomic_peers: Vec<u32>,
    /// Number of copy engines, which run concurrently with kernels; with two or more, copies in both directions run at
    /// the same time.
    pub copy_engines: u32,
    /// Whether kernels can access host memory that is not pinned.
    pub reads_pageable_memory: bool,
    /// Whether kernels access host memory that is not pinned through the page tables of the host, and so coherently and
    /// without moving pages.
    pub uses_host_page_tables: bool,
    /// Whether the GPU has managed memory that the CPU can access while kernels run.
    pub has_concurrent_managed_access: bool,
    /// Whether the driver can pin memory that the process has allocated itself.
    pub can_register_host_memory: bool,
    /// Whether kernels' atomic operations on host memory are native, and so atomic for the CPU too.
    pub has_host_atomics: bool,
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let gib = self.memory_bytes >> 30;
        write!(
            f,
            "{}, {}, {gib} GiB, driver for CUDA {}",
            self.model, self.arch, self.driver_version
        )
    }
}

/// Lists the GPUs of this machine in the driver's order. The first call in a process initialises the driver, which
/// takes tens of milliseconds or more; no GPU is started.
///
/// # Errors
/// [`CudaUnavailable`], which names what is missing. If there is a driver but no GPU, it contains the driver's error.
pub fn gpus() -> Result<Vec<Gpu>, CudaUnavailable> {
    library::start_driver()?;
    Ok((0..count()?).map(describe).collect::<Result<_, _>>()?)
}

/// Returns the number of GPUs. The driver must be initialised.
fn count() -> Result<u32, DriverError> {
    let mut count = 0;
    // SAFETY: the driver is initialised, and `count` outlives the call.
    check("cuDeviceGetCount", unsafe {
        sys::cuDeviceGetCount(&mut count)
    })?;
    Ok(count.unsigned_abs())
}

/// Returns the driver's handle of a GPU. The driver must be initialised.
pub(super) fn handle(ordinal: u32) -> Result<CUdevice, DriverError> {
    let mut device = 0;
    // SAFETY: the driver is initialised, and `device` outlives the call. A wrong ordinal only makes the call fail.
    let code = unsafe { sys::cuDeviceGet(&mut device, ordinal as c_int) };
    check("cuDeviceGet", code)?;
    Ok(device)
}

fn describe(ordinal: u32) -> Result<Gpu, DriverError> {
    use CUdevice_attribute as Attribute;
    let device = handle(ordinal)?;
    let number = |which| attribute(device, which);
    let peers = peers(device, ordinal)?;
    Ok(Gpu {
        ordinal,
        model: model(device)?,
        arch: Arch {
            major: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            minor: number(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        },
        driver_version: library::driver_version_text()?,
        memory_bytes: memory_bytes(device)?,
        memory_bytes_per_s: memory_bytes_per_s(
            number(Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)?,
            number(Attribute::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)?,
        ),
        multiprocessors: number(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        shared_bytes_per_block_max: number(
            Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
        )?,
        l2_bytes: number(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)?.into(),
        numa_node: numa_node(&pci_address(device)?),
        pci_address: pci_address(device)?,
        atomic_peers: atomic_peers(device, &peers)?,
        peers,
        copy_engines: number(Attribute::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)?,
        reads_pageable_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS)? > 0,
        uses_host_page_tables: number(
            Attribute::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES,
        )? > 0,
        has_concurrent_managed_access: number(Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY)? > 0
            && number(Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS)? > 0,
        can_register_host_memory: number(Attribute::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED)?
            > 0,
        has_host_atomics: number(Attribute::CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED)? > 0,
    })
}

/// Returns the peak bandwidth; GPU memory makes two transfers per clock.
fn memory_bytes_per_s(clock_khz: u32, width_bits: u32) -> u64 {
    2 * 1000 * u64::from(clock_khz) * u64::from(width_bits / 8)
}

fn attribute(device: CUdevice, which: CUdevice_attribute) -> Result<u32, DriverError> {
    let mut value = 0;
    // SAFETY: `device` is a handle of the driver, and `value` outlives the call.
    let code = unsafe { sys::cuDeviceGetAttribute(&mut value, which, device) };
    check("cuDeviceGetAttribute", code)?;
    Ok(value.unsigned_abs())
}

fn model(device: CUdevice) -> Result<String, DriverError> {
    let mut name = [0; 256];
    // SAFETY: the driver writes at most the given length, including the NUL.
    let code = unsafe { sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as c_int, device) };
    check("cuDeviceGetName", code)?;
    Ok(text_of(&name))
}

fn pci_address(device: CUdevice) -> Result<String, DriverError> {
    let mut address = [0; 32];
    let length = address.len() as c_int;
    // SAFETY: the driver writes at most the given length, including the NUL.
    let code = unsafe { sys::cuDeviceGetPCIBusId(address.as_mut_ptr(), length, device) };
    check("cuDeviceGetPCIBusId", code)?;
    Ok(text_of(&address).to_lowercase())
}

/// Returns the NUMA node of a PCI device. If the node is unknown, Linux reports -1, and this returns `None`.
fn numa_node(pci_address: &str) -> Option<u32> {
    let file = format!("/sys/bus/pci/devices/{pci_address}/numa_node");
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn peers(device: CUdevice, ordinal: u32) -> Result<Vec<u32>, DriverError> {
    let mut peers = Vec::new();
    for other in (0..count()?).filter(|other| *other != ordinal) {
        let mut can_access = 0;
        // SAFETY: both are handles of the driver, and `can_access` outlives the call.
        let code = unsafe { sys::cuDeviceCanAccessPeer(&mut can_access, device, handle(other)?) };
        check("cuDeviceCanAccessPeer", code)?;
        if can_access != 0 {
            peers.push(other);
        }
    }
    Ok(peers)
}

/// Returns the peers that a GPU accesses by atomic operations.
fn atomic_peers(device: CUdevice, peers: &[u32]) -> Result<Vec<u32>, DriverError> {
    let which = sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED;
    let mut atomic = Vec::new();
    for peer in peers {
        let mut has_atomics = 0;
        // SAFETY: both are handles of the driver, and `has_atomics` outlives the call.
        let code = unsafe {
            sys::cuDeviceGetP2PAttribute(&mut has_atomics, which, device, handle(*peer)?)
        };
        check("cuDeviceGetP2PAttribute", code)?;
        if has_atomics != 0 {
            atomic.push(*peer);
        }
    }
    Ok(atomic)
}

/// Returns the text before the first NUL.
fn text_of(name: &[c_char]) -> String {
    let bytes: Vec<u8> = name.iter().map(|byte| byte.cast_unsigned()).collect();
    let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
    text.to_string_lossy().into_owned()
}

fn memory_bytes(device: CUdevice) -> Result<u64, DriverError> {
    let mut bytes = 0;
    // SAFETY: `device` is a handle of the driver, and `bytes` outlives the call.
    let code = unsafe { sys::cuDeviceTotalMem_v2(&mut bytes, device) };
    check("cuDeviceTotalMem", code)?;
    Ok(bytes as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_an_h100_delivers_3_35_terabytes_a_second() {
        let per_s = memory_bytes_per_s(2_619_000, 5_120);
        assert_eq!(per_s / 1_000_000_000, 3_352);
    }
}
