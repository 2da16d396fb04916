//! The memories in which the sides and the table of a join may lie.

use std::sync::Arc;

use anyhow::Result;
use forebay_device::Device;
use forebay_device::cuda::DeviceView;
use forebay_hash_index::{DeviceRows, ProbeKeys, Side, TableShape, Workload};

use super::device::{all, generate, on_gpu};
use super::pinned::pin;
use super::{Join, Session};

/// A memory, as seen from the first of some GPUs, whose kernels join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The memory of the first GPU.
    Device,
    /// Pinned host memory.
    Host,
    /// The memory of the second GPU.
    OtherGpu,
}

/// Both sides of a join, in one memory.
#[derive(Debug)]
pub(super) struct Sides {
    pub(super) place: Place,
    pub(super) build: DeviceRows,
    pub(super) probe: DeviceRows,
}

impl Place {
    /// Returns the name in cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Place::Device => "device",
            Place::Host => "host",
            Place::OtherGpu => "other-gpu",
        }
    }

    /// Returns the GPU whose work fills the memory.
    fn gpu(self, gpus: &[Arc<Device>]) -> &Arc<Device> {
        match self {
            Place::Device | Place::Host => &gpus[0],
            Place::OtherGpu => &gpus[1],
        }
    }

    /// Allocates memory for the slots of a table.
    ///
    /// # Errors
    /// If there is too little memory, or a device is lost.
    pub(super) fn slots(self, gpus: &[Arc<Device>], shape: TableShape) -> Result<DeviceView<u8>> {
        let bytes = shape.slot_bytes().max(1);
        on_gpu(self.gpu(gpus), move |cuda| match self {
            Place::Device | Place::OtherGpu => Ok(cuda.buffer::<u8>(bytes as usize)?.all()),
            Place::Host => Ok(cuda.hybrid_memory(bytes, 0)?.all()),
        })
    }

    /// Generates both sides of a join. The names of the cases of generating and pinning begin with `name`.
    ///
    /// # Errors
    /// If there is too little memory, or a device is lost.
    pub(super) fn sides(
        self,
        session: &mut Session,
        gpus: &[Arc<Device>],
        join: &Join,
        name: &str,
    ) -> Result<Sides> {
        let mut rows = |side, of_side: &str| {
            let name = format!("{name}/{of_side}");
            self.rows(session, gpus, (&join.workload, side), &name)
        };
        Ok(Sides {
            place: self,
            build: rows(Side::Build, "build-side")?,
            probe: rows(Side::Probe, "probe-side")?,
        })
    }

    /// Generates a side. The host does it if the rows shall lie there, or if only the host can.
    fn rows(
        self,
        session: &mut Session,
        gpus: &[Arc<Device>],
        (workload, side): (&Workload, Side),
        name: &str,
    ) -> Result<DeviceRows> {
        let gpu = self.gpu(gpus);
        let is_by_rank = matches!(workload.probe_keys, ProbeKeys::Zipf { .. });
        if self != Place::Host && (side == Side::Build || !is_by_rank) {
            return generate(gpu, *workload, all(workload, side));
        }
        let pinned = pin(session, gpu, (workload, side), name)?;
        match self {
            Place::Host => Ok(pinned.rows()),
            Place::Device | Place::OtherGpu => on_gpu(gpu, move |cuda| Ok(pinned.copy(cuda)?)),
        }
    }
}
