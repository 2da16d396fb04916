//! The programs that are loaded on a device.

use std::collections::HashMap;
use std::sync::Arc;

use super::kernel::{Kernel, Module};
use super::library::DriverError;
use super::{Context, Cubin, Gpu, KernelCache, ProgramSpec};
use crate::{JobError, KernelError};

/// The loaded kernels of one device, by program and options.
#[derive(Debug)]
pub(super) struct Modules {
    cache: KernelCache,
    programs: HashMap<String, Vec<Loaded>>,
}

/// One program with one set of options.
#[derive(Debug)]
struct Loaded {
    options: Vec<String>,
    kernels: Vec<Arc<Kernel>>,
}

impl Modules {
    pub(super) fn new(cache: KernelCache) -> Modules {
        Modules {
            cache,
            programs: HashMap::new(),
        }
    }

    /// The kernel if its program is loaded already.
    pub(super) fn find(&self, spec: &ProgramSpec, entry: &str) -> Option<Arc<Kernel>> {
        let variants = self.programs.get(&spec.name)?;
        let loaded = variants
            .iter()
            .find(|loaded| loaded.options == spec.options)?;
        let is_it = |kernel: &&Arc<Kernel>| kernel.resources().name == entry;
        loaded.kernels.iter().find(is_it).cloned()
    }

    /// Compiles a program, or takes it from the disk cache, and loads all of its kernels.
    pub(super) fn load(
        &mut self,
        context: &Arc<Context>,
        gpu: &Gpu,
        spec: &ProgramSpec,
    ) -> Result<(), JobError> {
        let compiled = self.cache.get(spec, gpu.arch);
        let cubin = compiled.map_err(|error| KernelError::Compile(Box::new(error)))?;
        let loaded = Loaded {
            options: spec.options.clone(),
            kernels: load(context, spec, &cubin, gpu.shared_bytes_per_block_max)?,
        };
        let variants = self.programs.entry(spec.name.clone()).or_default();
        variants.push(loaded);
        Ok(())
    }
}

fn load(
    context: &Arc<Context>,
    spec: &ProgramSpec,
    cubin: &Cubin,
    shared_bytes_per_block_max: u32,
) -> Result<Vec<Arc<Kernel>>, JobError> {
    let module = Module::load(Arc::clone(context), cubin);
    let module = Arc::new(module.map_err(|error| load_error(spec, error))?);
    let kernels = cubin.entries.iter().map(|resources| {
        let module = Arc::clone(&module);
        let kernel = Kernel::load(module, resources.clone(), shared_bytes_per_block_max)?;
        Ok(Arc::new(kernel))
    });
    kernels.collect()
}

/// What the driver says of machine code that it does not load: that is the program's error.
const PROGRAM_CODES: [&str; 5] = [
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
];

fn load_error(spec: &ProgramSpec, error: DriverError) -> JobError {
    if !PROGRAM_CODES.contains(&error.code.as_str()) {
        return error.into();
    }
    let load = KernelError::Load {
        program: spec.name.clone(),
        code: error.code,
    };
    load.into()
}

/// The error of a kernel that its program does not have.
pub(super) fn no_entry(spec: &ProgramSpec, entry: &str) -> KernelError {
    KernelError::NoEntry {
        program: spec.name.clone(),
        entry: entry.to_owned(),
    }
}
