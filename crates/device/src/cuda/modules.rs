//! Cache of the programs that are loaded on a device.

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::kernel::{Kernel, Module};
use super::library::DriverError;
use super::{Arch, CompileError, Context, Cubin, Gpu, KernelCache, Program};
use crate::{JobError, KernelError, Signal};

/// Maximum programs kept for a device. Loading one more unloads the least recently used one.
const PROGRAMS_MAX: usize = 256;

/// Maximum concurrent compilations in this process.
const COMPILERS_MAX: usize = 4;

/// Poll interval of the device's thread while it waits for a compilation.
const LOOK_INTERVAL: Duration = Duration::from_micros(200);

/// Loaded, failed and compiling programs of one device.
#[derive(Debug)]
pub(super) struct Modules {
    cache: KernelCache,
    /// Programs by identity.
    programs: HashMap<Arc<str>, Known>,
    /// Number of uses of all programs so far.
    uses: u64,
}

#[derive(Debug)]
struct Known {
    state: State,
    /// Value of `uses` at the program's last use.
    used: u64,
}

#[derive(Debug)]
enum State {
    Compiling(Compilation),
    Loaded(Vec<Arc<Kernel>>),
    /// The program does not compile or load; it is not retried while this entry is kept.
    Refused(KernelError),
}

/// A compilation that runs on another thread.
#[derive(Debug)]
struct Compilation {
    ended: Signal,
    compiled: Arc<Mutex<Option<Result<Cubin, CompileError>>>>,
}

impl Modules {
    pub(super) fn new(cache: KernelCache) -> Modules {
        Modules {
            cache,
            programs: HashMap::new(),
            uses: 0,
        }
    }

    /// Returns the kernel if its program is loaded.
    pub(super) fn find(&mut self, program: &Program, entry: &str) -> Option<Arc<Kernel>> {
        let known = self.programs.get_mut(program.identity())?;
        self.uses += 1;
        known.used = self.uses;
        let State::Loaded(kernels) = &known.state else {
            return None;
        };
        let is_it = |kernel: &&Arc<Kernel>| kernel.resources().name == entry;
        kernels.iter().find(is_it).cloned()
    }

    /// Advances the load of a program by one step without blocking: starts its compilation, or loads the compiled code.
    /// Returns `None` once the program is loaded. Until then, returns the signal that is set when the compilation ends.
    pub(super) fn advance(
        &mut self,
        context: &Arc<Context>,
        gpu: &Gpu,
        program: &Program,
    ) -> Result<Option<Signal>, JobError> {
        self.uses += 1;
        let Some(known) = self.programs.get_mut(program.identity()) else {
            self.make_room(context)?;
            let compilation = Compilation::start(&self.cache, program, gpu.arch)?;
            let ended = compilation.ended.clone();
            self.keep(program, State::Compiling(compilation));
            return Ok(Some(ended));
        };
        known.used = self.uses;
        let compiled = match &known.state {
            State::Loaded(_) => return Ok(None),
            State::Refused(error) => return Err(error.clone().into()),
            State::Compiling(compilation) if !compilation.ended.is_set() => {
                return Ok(Some(compilation.ended.clone()));
            }
            State::Compiling(compilation) => compilation.compiled.lock().take(),
        };
        let loaded = loaded(context, gpu, program, compiled);
        if let Err(JobError::Failed(crate::JobFailure::Kernel(error))) = &loaded {
            self.keep(program, State::Refused(error.clone()));
        }
        self.keep(program, State::Loaded(loaded?));
        Ok(None)
    }

    /// Loads a program; blocks until it is compiled.
    pub(super) fn load(
        &mut self,
        context: &Arc<Context>,
        gpu: &Gpu,
        program: &Program,
    ) -> Result<(), JobError> {
        while let Some(ended) = self.advance(context, gpu, program)? {
            while !ended.is_set() {
                thread::park_timeout(LOOK_INTERVAL);
            }
        }
        Ok(())
    }

    fn keep(&mut self, program: &Program, state: State) {
        let identity = Arc::clone(program.identity());
        let used = self.uses;
        self.programs.insert(identity, Known { state, used });
    }

    /// If [`PROGRAMS_MAX`] programs are kept, unloads the least recently used one that has no kernel in use.
    fn make_room(&mut self, context: &Context) -> Result<(), JobError> {
        if self.programs.len() < PROGRAMS_MAX {
            return Ok(());
        }
        let unused = self.programs.iter().filter(|(_, known)| known.is_unused());
        let oldest = unused.min_by_key(|(_, known)| known.used);
        if let Some(oldest) = oldest.map(|(identity, _)| Arc::clone(identity)) {
            // A kernel of the program may still be running.
            context.synchronize()?;
            self.programs.remove(&oldest);
        }
        Ok(())
    }
}

impl Known {
    fn is_unused(&self) -> bool {
        match &self.state {
            State::Compiling(_) => false,
            State::Loaded(kernels) => kernels.iter().all(|kernel| Arc::strong_count(kernel) == 1),
            State::Refused(_) => true,
        }
    }
}

impl Compilation {
    fn start(
        cache: &KernelCache,
        program: &Program,
        arch: Arch,
    ) -> Result<Compilation, KernelError> {
        let compilation = Compilation {
            ended: Signal::new(),
            compiled: Arc::default(),
        };
        let (cache, wanted) = (cache.clone(), program.clone());
        let compiled = Arc::clone(&compilation.compiled);
        let ended = SetAtEnd(compilation.ended.clone());
        let compile = move || {
            // Dropping `_ended` sets the signal, even if the compilation panics and leaves no result.
            let _ended = ended;
            let _turn = Turn::take();
            *compiled.lock() = Some(cache.get(wanted.spec(), arch));
        };
        let thread = thread::Builder::new().name("compile".to_owned());
        let started = thread.spawn(compile);
        started.map_err(|error| load_failure(program, error.to_string()))?;
        Ok(compilation)
    }
}

/// Sets a signal when it is dropped.
struct SetAtEnd(Signal);

impl Drop for SetAtEnd {
    fn drop(&mut self) {
        self.0.set();
    }
}

static COMPILERS: Mutex<usize> = Mutex::new(0);
static COMPILER_ENDED: Condvar = Condvar::new();

/// Permit to compile; dropping it lets another compilation run.
struct Turn;

impl Turn {
    fn take() -> Turn {
        let mut running = COMPILERS.lock();
        COMPILER_ENDED.wait_while(&mut running, |running| *running >= COMPILERS_MAX);
        *running += 1;
        Turn
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *COMPILERS.lock() -= 1;
        COMPILER_ENDED.notify_one();
    }
}

/// Loads all kernels of a compiled program.
fn loaded(
    context: &Arc<Context>,
    gpu: &Gpu,
    program: &Program,
    compiled: Option<Result<Cubin, CompileError>>,
) -> Result<Vec<Arc<Kernel>>, JobError> {
    let compiled =
        compiled.ok_or_else(|| load_failure(program, "its compilation panicked".to_owned()))?;
    let cubin = compiled.map_err(|error| KernelError::Compile(Box::new(error)))?;
    let module = Module::load(Arc::clone(context), &cubin);
    let module = Arc::new(module.map_err(|error| load_error(program, error))?);
    let kernels = cubin.entries.iter().map(|resources| {
        let kernel = Kernel::load(Arc::clone(&module), resources.clone(), gpu)?;
        Ok(Arc::new(kernel))
    });
    kernels.collect()
}

/// Driver errors for machine code that cannot be loaded: errors of the program, not of the device.
const PROGRAM_CODES: [&str; 5] = [
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_INVALID_PTX",
    "CUDA_ERROR_INVALID_SOURCE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND",
];

fn load_error(program: &Program, error: DriverError) -> JobError {
    if PROGRAM_CODES.contains(&error.code.as_str()) {
        load_failure(program, error.code).into()
    } else {
        error.into()
    }
}

fn load_failure(program: &Program, code: String) -> KernelError {
    KernelError::Load {
        program: program.spec().name.clone(),
        code,
    }
}

/// Returns the error that says that `program` has no kernel named `entry`.
pub(super) fn no_entry(program: &Program, entry: &str) -> KernelError {
    KernelError::NoEntry {
        program: program.spec().name.clone(),
        entry: entry.to_owned(),
    }
}
