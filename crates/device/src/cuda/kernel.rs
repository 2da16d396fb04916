//! Kernels that are loaded on a device, and launch shapes.

use std::ffi::{CString, c_int};
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{
    self, CUfunction, CUfunction_attribute, CUlaunchAttribute, CUlaunchAttributeID,
    CUlaunchAttributeValue, CUlaunchAttributeValue_union__bindgen_ty_1, CUmodule,
};

use super::library::{DriverError, check};
use super::{Context, Cubin, Gpu, KernelResources};
use crate::{DeviceFault, JobError, KernelError};

/// Maximum blocks in the first dimension of a grid.
const BLOCKS_MAX: u64 = (1 << 31) - 1;

/// Maximum blocks per cluster; every GPU that has clusters supports this size.
const CLUSTER_MAX: u32 = 8;

/// Driver errors that mean that a launch was refused. The context stays valid.
const SHAPE_CODES: [&str; 5] = [
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
    "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
    "CUDA_ERROR_INVALID_CLUSTER_SIZE",
    "CUDA_ERROR_NOT_SUPPORTED",
];

/// Numbers of blocks and threads of a launch, and the shared memory of each block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct LaunchShape {
    /// Number of blocks, in one dimension, below 2^31; 0 makes the launch a no-op.
    pub blocks: u64,
    /// Threads per block.
    pub threads: u32,
    /// Bytes of dynamic shared memory per block.
    pub shared_bytes: u32,
    /// Whether the blocks synchronise with each other (grid synchronisation). All blocks must then run at the same
    /// time, so there may be at most as many as in [`Kernel::persistent_shape`].
    pub cooperative: bool,
    /// Blocks per cluster, at most 8; the blocks of a cluster share memory. 0 and 1 mean no clusters; larger values
    /// need sm_90.
    pub cluster: u32,
}

impl fmt::Display for LaunchShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} blocks of {} threads with {} bytes of dynamic shared memory",
            self.blocks, self.threads, self.shared_bytes
        )?;
        if self.cluster > 1 {
            write!(f, ", in clusters of {}", self.cluster)?;
        }
        if self.cooperative {
            f.write_str(", cooperative")?;
        }
        Ok(())
    }
}

impl LaunchShape {
    /// Returns the launch attributes for the driver.
    pub(super) fn attributes(&self) -> Vec<CUlaunchAttribute> {
        let attribute = |id, value| CUlaunchAttribute {
            id,
            pad: [0; 4],
            value,
        };
        let mut attributes = Vec::new();
        if self.cooperative {
            let value = CUlaunchAttributeValue { cooperative: 1 };
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
            attributes.push(attribute(id, value));
        }
        if self.cluster > 1 {
            let (x, y, z) = (self.cluster, 1, 1);
            let size = CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z };
            let id = CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
            attributes.push(attribute(id, CUlaunchAttributeValue { clusterDim: size }));
        }
        attributes
    }

    /// Returns the number of blocks in the driver's type, or why the shape cannot be launched.
    fn checked_blocks(&self, limits: &Limits) -> Result<u32, String> {
        let Limits {
            threads_max,
            shared_bytes_max,
            has_clusters,
            ..
        } = *limits;
        if self.blocks > BLOCKS_MAX {
            return Err(format!("a grid has at most {BLOCKS_MAX} blocks"));
        }
        if self.threads == 0 || self.threads > threads_max {
            return Err(format!("a block has 1 to {threads_max} threads"));
        }
        if self.shared_bytes > shared_bytes_max {
            return Err(format!(
                "a block has at most {shared_bytes_max} bytes of dynamic shared memory"
            ));
        }
        if self.cluster > 1 && !has_clusters {
            return Err("clusters need sm_90".to_owned());
        }
        if self.cluster > CLUSTER_MAX || !self.blocks.is_multiple_of(self.cluster.max(1).into()) {
            return Err(format!(
                "a cluster has at most {CLUSTER_MAX} blocks, and a grid consists of whole clusters"
            ));
        }
        Ok(self.blocks as u32)
    }
}

/// Launch limits of one kernel.
#[derive(Debug, Clone, Copy)]
struct Limits {
    threads_max: u32,
    shared_bytes_max: u32,
    has_clusters: bool,
    multiprocessors: u32,
}

/// Machine code loaded on a device.
#[derive(Debug)]
pub(super) struct Module {
    context: Arc<Context>,
    raw: CUmodule,
}

// SAFETY: the driver allows calls on a module from any thread; `raw` never changes.
unsafe impl Send for Module {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for Module {}

impl Module {
    pub(super) fn load(context: Arc<Context>, cubin: &Cubin) -> Result<Module, DriverError> {
        let entered = context.enter()?;
        let mut raw = ptr::null_mut();
        // SAFETY: a context is current; the bytes are a whole ELF file, which contains its length and which the driver
        // copies.
        let code = unsafe { sys::cuModuleLoadData(&mut raw, cubin.bytes.as_ptr().cast()) };
        check("cuModuleLoadData", code)?;
        drop(entered);
        Ok(Module { context, raw })
    }

    fn function(&self, symbol: &str) -> Result<CUfunction, DriverError> {
        let missing = |_| DriverError {
            operation: "cuModuleGetFunction",
            code: "a name with a NUL byte".to_owned(),
        };
        let symbol = CString::new(symbol).map_err(missing)?;
        let mut function = ptr::null_mut();
        // SAFETY: the module is live, and the string and `function` outlive the call.
        let code = unsafe { sys::cuModuleGetFunction(&mut function, self.raw, symbol.as_ptr()) };
        check("cuModuleGetFunction", code)?;
        Ok(function)
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: this was the last owner, as each kernel holds the module.
            let _ = unsafe { sys::cuModuleUnload(self.raw) };
        }
    }
}

/// A kernel loaded on one device; see [`Cuda::kernel`](super::Cuda::kernel).
#[derive(Debug)]
pub struct Kernel {
    module: Arc<Module>,
    function: CUfunction,
    resources: KernelResources,
    limits: Limits,
}

// SAFETY: a function handle is valid on any thread, and so is its module, which the kernel holds.
unsafe impl Send for Kernel {}
// SAFETY: as above; the kernel does not change after loading.
unsafe impl Sync for Kernel {}

impl Kernel {
    /// Loads a kernel of a module and raises the limit of its dynamic shared memory to the maximum per block. The
    /// module's context must be current.
    pub(super) fn load(
        module: Arc<Module>,
        resources: KernelResources,
        gpu: &Gpu,
    ) -> Result<Kernel, DriverError> {
        use CUfunction_attribute as Attribute;
        let function = module.function(&resources.symbol)?;
        let number = |which| attribute(function, which);
        let static_bytes = number(Attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES)?;
        let limits = Limits {
            threads_max: number(Attribute::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?,
            shared_bytes_max: gpu.shared_bytes_per_block_max.saturating_sub(static_bytes),
            has_clusters: gpu.arch.major >= 9,
            multiprocessors: gpu.multiprocessors,
        };
        allow_shared_memory(function, limits.shared_bytes_max)?;
        Ok(Kernel {
            module,
            function,
            resources,
            limits,
        })
    }

    /// Returns the kernel's names and its use of registers and memory.
    pub fn resources(&self) -> &KernelResources {
        &self.resources
    }

    /// Returns the maximum threads of a block.
    pub fn threads_max(&self) -> u32 {
        self.limits.threads_max
    }

    /// Returns the maximum bytes of dynamic shared memory of a block.
    pub fn shared_bytes_max(&self) -> u32 {
        self.limits.shared_bytes_max
    }

    /// Returns how many blocks of `threads` threads and `shared_bytes` of dynamic shared memory a multiprocessor runs
    /// at the same time.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn resident_blocks(&self, threads: u32, shared_bytes: u32) -> Result<u32, DeviceFault> {
        let mut blocks: c_int = 0;
        // SAFETY: the function belongs to a live module, and `blocks` outlives the call.
        let code = unsafe {
            sys::cuOccupancyMaxActiveBlocksPerMultiprocessor(
                &mut blocks,
                self.function,
                threads as c_int,
                shared_bytes as usize,
            )
        };
        check("cuOccupancyMaxActiveBlocksPerMultiprocessor", code)?;
        Ok(blocks.unsigned_abs())
    }

    /// Returns the largest grid whose blocks all run at the same time; its size is at least one block.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn persistent_shape(
        &self,
        threads: u32,
        shared_bytes: u32,
    ) -> Result<LaunchShape, DeviceFault> {
        let resident = self.resident_blocks(threads, shared_bytes)? * self.limits.multiprocessors;
        Ok(LaunchShape {
            blocks: resident.max(1).into(),
            threads,
            shared_bytes,
            ..LaunchShape::default()
        })
    }

    pub(super) fn raw(&self) -> CUfunction {
        self.function
    }

    /// Returns whether the kernel is loaded in this context.
    pub(super) fn is_of(&self, context: &Arc<Context>) -> bool {
        Arc::ptr_eq(&self.module.context, context)
    }

    /// Returns the number of blocks in the driver's type.
    pub(super) fn checked_blocks(&self, shape: &LaunchShape) -> Result<u32, KernelError> {
        let checked = shape.checked_blocks(&self.limits);
        checked.map_err(|why| self.shape_error(shape, why))
    }

    fn shape_error(&self, shape: &LaunchShape, why: String) -> KernelError {
        KernelError::Shape {
            kernel: self.resources.name.clone(),
            shape: *shape,
            why,
        }
    }

    /// Returns the job's error for a failed launch: a shape error if the driver refused this launch, otherwise a fault
    /// of earlier work, which the driver reports only now.
    pub(super) fn launch_error(&self, shape: &LaunchShape, error: DriverError) -> JobError {
        if SHAPE_CODES.contains(&error.code.as_str()) {
            self.shape_error(shape, error.code).into()
        } else {
            error.into()
        }
    }
}

fn attribute(function: CUfunction, which: CUfunction_attribute) -> Result<u32, DriverError> {
    let mut value: c_int = 0;
    // SAFETY: the function belongs to a live module, and `value` outlives the call.
    let code = unsafe { sys::cuFuncGetAttribute(&mut value, which, function) };
    check("cuFuncGetAttribute", code)?;
    Ok(value.unsigned_abs())
}

/// Raises the limit of dynamic shared memory from the default of 48 KiB.
fn allow_shared_memory(function: CUfunction, bytes: u32) -> Result<(), DriverError> {
    let which = CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    // SAFETY: the function belongs to a live module. With a value that is too large, the call returns an error.
    let code = unsafe { sys::cuFuncSetAttribute(function, which, bytes as c_int) };
    check("cuFuncSetAttribute", code)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        threads_max: 256,
        shared_bytes_max: 1000,
        has_clusters: true,
        multiprocessors: 1,
    };

    fn checked(blocks: u64, threads: u32, shared_bytes: u32) -> Result<u32, String> {
        let shape = LaunchShape {
            blocks,
            threads,
            shared_bytes,
            ..LaunchShape::default()
        };
        shape.checked_blocks(&LIMITS)
    }

    #[test]
    fn shapes_within_the_limits_pass() {
        assert_eq!(checked(BLOCKS_MAX, 256, 1000), Ok(2_147_483_647));
        assert_eq!(checked(0, 1, 0), Ok(0));
    }

    #[test]
    fn clusters_are_whole_and_need_their_architecture() {
        let shape = |blocks, cluster| LaunchShape {
            blocks,
            threads: 32,
            cluster,
            ..LaunchShape::default()
        };
        let without = Limits {
            has_clusters: false,
            ..LIMITS
        };
        assert_eq!(shape(16, 8).checked_blocks(&LIMITS), Ok(16));
        assert_eq!(shape(7, 1).checked_blocks(&without), Ok(7));
        for (blocks, cluster, limits) in [(16, 16, LIMITS), (9, 2, LIMITS), (8, 2, without)] {
            let error = shape(blocks, cluster).checked_blocks(&limits);
            assert!(error.is_err_and(|why| why.contains("cluster")));
        }
        assert_eq!(shape(16, 8).attributes().len(), 1);
    }

    #[test]
    fn shapes_beyond_a_limit_say_which() {
        for (shape, why) in [
            ((1 << 31, 1, 0), "blocks"),
            ((1 << 32, 1, 0), "blocks"),
            ((1, 0, 0), "threads"),
            ((1, 257, 0), "threads"),
            ((1, 1, 1001), "bytes"),
        ] {
            let (blocks, threads, shared_bytes) = shape;
            let error = checked(blocks, threads, shared_bytes).expect_err("beyond a limit");
            assert!(error.contains(why), "{error}");
        }
    }
}
