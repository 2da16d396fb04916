//! Which methods a device has.

use std::sync::Arc;

use forebay_device::Device;
use forebay_device::cuda::Arch;

use super::staged::StagedOptions;
use super::{
    Direction, HostBuffer, MoveRequest, TransferMethod, checksum_on, move_bytes, run_on_device,
};
use crate::kernels::has_bulk;
use crate::{MoveError, checksum};

/// Bytes that [`available`] moves to try a method: several chunks, and an incomplete last word.
const TRIED_BYTES: usize = (300 << 10) + 5;

/// Why a device lacks a method.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Missing {
    /// The device is not a GPU.
    #[error("it is not a GPU")]
    HostDevice,
    /// The driver cannot pin memory of the process.
    #[error("the driver cannot pin memory that the process has allocated")]
    NoRegistration,
    /// There is no unified memory that both sides can access at any time.
    #[error("it has no concurrent managed access")]
    NoManaged,
    /// Pageable memory is out of reach.
    #[error(
        "its kernels cannot access pageable memory; that needs a cache-coherent link such as NVLink-C2C"
    )]
    NotCoherent,
    /// Pageable memory can be accessed, but the driver then moves the pages.
    #[error(
        "its kernels access pageable memory by moving the pages, not over a cache-coherent link"
    )]
    MovesPages,
    /// The architecture has no bulk copy engine.
    #[error("{0} has no bulk copy engine; sm_90 is the first that has one")]
    NoBulk(Arch),
    /// A move was tried and failed.
    #[error("a trial move failed: {0}")]
    Failed(String),
    /// A move was tried, and other bytes arrived.
    #[error("a trial move ({0}) delivered wrong bytes")]
    WrongBytes(Direction),
}

/// Returns why a device lacks a method, according to its attributes; `None` if it has the method.
pub fn lacks(device: &Device, method: TransferMethod) -> Option<Missing> {
    let Some(gpu) = device.details() else {
        return Some(Missing::HostDevice);
    };
    match method {
        TransferMethod::PageableCopy
        | TransferMethod::StagedCopy
        | TransferMethod::PinnedCopy
        | TransferMethod::ZeroCopy => None,
        TransferMethod::DynamicPinning => {
            (!gpu.can_register_host_memory).then_some(Missing::NoRegistration)
        }
        TransferMethod::UnifiedPrefetch | TransferMethod::UnifiedMigration => {
            (!gpu.has_concurrent_managed_access).then_some(Missing::NoManaged)
        }
        TransferMethod::ZeroCopyBulk => (!has_bulk(gpu.arch)).then_some(Missing::NoBulk(gpu.arch)),
        TransferMethod::Coherence => match (gpu.uses_host_page_tables, gpu.reads_pageable_memory) {
            (true, _) => None,
            (false, true) => Some(Missing::MovesPages),
            (false, false) => Some(Missing::NotCoherent),
        },
    }
}

/// Returns all methods, each with the reason if the device lacks it. Methods that its attributes promise are tried once
/// in each direction, and the bytes are compared. Blocks for some milliseconds, at first for the compilation too.
pub fn available(device: &Arc<Device>) -> Vec<(TransferMethod, Result<(), Missing>)> {
    let result = |method| match lacks(device, method) {
        Some(missing) => Err(missing),
        None => attempt(device, method),
    };
    TransferMethod::ALL
        .map(|method| (method, result(method)))
        .into()
}

fn attempt(device: &Arc<Device>, method: TransferMethod) -> Result<(), Missing> {
    let failed = |error: MoveError| Missing::Failed(error.to_string());
    let device_memory =
        run_on_device(device, |cuda| Ok(cuda.buffer::<u8>(TRIED_BYTES)?)).map_err(failed)?;
    let mut host = HostBuffer::allocate(device, method, TRIED_BYTES).map_err(failed)?;
    for (index, byte) in host.iter_mut().enumerate() {
        *byte = (index % 251) as u8;
    }
    let sum = checksum(&host);
    let request = |direction, host| MoveRequest {
        method,
        direction,
        host,
        device_memory: device_memory.all(),
        chunk_bytes: 64 << 10,
        staged: StagedOptions {
            threads: 2,
            buffers: 2,
            buffer_bytes: 64 << 10,
        },
    };
    let moved = move_bytes(device, request(Direction::ToDevice, host)).map_err(failed)?;
    if checksum_on(device, device_memory.all()).map_err(failed)? != sum {
        return Err(Missing::WrongBytes(Direction::ToDevice));
    }
    let mut host = moved.host;
    host.fill(0);
    let moved = move_bytes(device, request(Direction::ToHost, host)).map_err(failed)?;
    match checksum(&moved.host) == sum {
        true => Ok(()),
        false => Err(Missing::WrongBytes(Direction::ToHost)),
    }
}
