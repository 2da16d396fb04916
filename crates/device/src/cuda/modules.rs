//! The programs that are loaded on a device.

use std::collections::HashMap;
use std::sync::Arc;

use super::kernel::{Kernel, Module};
use super::{CompileError, Context, Cubin, Gpu, KernelCache, ProgramSpec};
use crate::DeviceFault;

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
    ) -> Result<(), DeviceFault> {
        let cubin = self.cache.get(spec, gpu.arch).map_err(Box::new)?;
        let loaded = Loaded {
            options: spec.options.clone(),
            kernels: load(context, &cubin, gpu.shared_bytes_per_block_max)?,
        };
        let variants = self.programs.entry(spec.name.clone()).or_default();
        variants.push(loaded);
        Ok(())
    }
}

fn load(
    context: &Arc<Context>,
    cubin: &Cubin,
    shared_bytes_per_block_max: u32,
) -> Result<Vec<Arc<Kernel>>, DeviceFault> {
    let module = Arc::new(Module::load(Arc::clone(context), cubin)?);
    let kernels = cubin.entries.iter().map(|resources| {
        let module = Arc::clone(&module);
        let kernel = Kernel::load(module, resources.clone(), shared_bytes_per_block_max)?;
        Ok(Arc::new(kernel))
    });
    kernels.collect()
}

/// The error of a kernel that its program does not have.
pub(super) fn no_entry(spec: &ProgramSpec, entry: &str) -> DeviceFault {
    DeviceFault::from(Box::new(CompileError::NoEntry {
        program: spec.name.clone(),
        entry: entry.to_owned(),
    }))
}
