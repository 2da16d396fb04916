//! Compiles CUDA C++ to machine code for one architecture with NVRTC; needs no GPU.

use std::borrow::Cow;
use std::ffi::{CString, NulError};
use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::RwLock;

use super::cache;
use super::library::{NvrtcMissing, nvrtc_version};
use super::program::{NvrtcError, Program as NvrtcProgram};
use super::resources::KernelResources;

/// A GPU architecture, by compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Arch {
    /// Major number, before the dot.
    pub major: u32,
    /// Minor number, after the dot.
    pub minor: u32,
}

impl fmt::Display for Arch {
    /// Formats the architecture as in compiler options: `sm_90`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sm_{}{}", self.major, self.minor)
    }
}

/// A text that is not an architecture name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not an architecture name; such names have the form `sm_90`")]
pub struct ArchError {
    /// The text.
    pub name: String,
}

impl FromStr for Arch {
    type Err = ArchError;

    /// Parses a name such as `sm_90`: the last digit is the minor version.
    fn from_str(name: &str) -> Result<Arch, ArchError> {
        let number = name
            .strip_prefix("sm_")
            .and_then(|digits| digits.parse().ok());
        let number: u32 = number.ok_or_else(|| ArchError {
            name: name.to_owned(),
        })?;
        Ok(Arch {
            major: number / 10,
            minor: number % 10,
        })
    }
}

/// A source file and all inputs of its compilation except the architecture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramSpec {
    /// Name for error messages and the disk cache. Programs that differ only in their options may share a name.
    pub name: String,
    /// Source in CUDA C++20; owned if it is generated at run time. If kernels of a source that has the macro
    /// `FEWER_BLOCKS` spill registers, it is compiled again with the macro defined as 1, 2 and 3: by how many blocks
    /// of a multiprocessor its launch bounds are to be less.
    pub source: Cow<'static, str>,
    /// Headers that the source may include: name as in the `#include`, and text.
    pub headers: Vec<(String, String)>,
    /// NVRTC options such as `-DITEMS=4`. The compilation adds the options for the architecture and the language.
    pub options: Vec<String>,
    /// Names of the kernels in the source, template arguments included, as in `scan<32>`.
    pub entries: Vec<String>,
}

/// A specification with its identity, a hash of the specification. Programs with equal specifications are the same
/// program.
///
/// Creating a program hashes the whole specification, so an operator should create each program once. Clones share the
/// specification.
#[derive(Debug, Clone)]
pub struct Program {
    spec: Arc<ProgramSpec>,
    identity: Arc<str>,
}

impl Program {
    /// Creates a program: hashes its specification.
    pub fn new(spec: ProgramSpec) -> Program {
        Program {
            identity: cache::identity(&spec).into(),
            spec: Arc::new(spec),
        }
    }

    /// Returns the specification.
    pub fn spec(&self) -> &ProgramSpec {
        &self.spec
    }

    /// Returns the hash of all parts of the specification.
    pub(super) fn identity(&self) -> &Arc<str> {
        &self.identity
    }
}

/// Machine code for one architecture. The same program always compiles to the same code.
#[derive(Clone, PartialEq, Eq)]
pub struct Cubin {
    /// ELF file that the driver loads.
    pub bytes: Vec<u8>,
    /// Log of the compiler and the assembler, with warnings, without timings.
    pub log: String,
    /// The kernels, in the order of the specification's entries.
    pub entries: Vec<KernelResources>,
}

impl fmt::Debug for Cubin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cubin")
            .field("bytes", &self.bytes.len())
            .field("log", &self.log)
            .field("entries", &self.entries)
            .finish()
    }
}

/// Why a program could not be compiled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CompileError {
    /// NVRTC is not installed.
    #[error(transparent)]
    NvrtcMissing(#[from] NvrtcMissing),
    /// The program does not compile.
    #[error("program {program} does not compile for {arch} ({code}):\n{log}")]
    Refused {
        /// Name of the program.
        program: String,
        /// Target architecture.
        arch: Arch,
        /// NVRTC's name of the error.
        code: String,
        /// Compiler log.
        log: String,
        /// Source, with the line numbers that the log refers to.
        numbered_source: String,
    },
    /// A name, text or option contains a NUL byte.
    #[error("program {program} has a NUL byte in a name, a text or an option")]
    Nul {
        /// Name of the program.
        program: String,
    },
}

/// Held by each thread that runs NVRTC.
static RUNNING: RwLock<()> = RwLock::new(());

/// The macro that gives the threads of a source more registers, and its greatest value.
const FEWER_BLOCKS: &str = "FEWER_BLOCKS";
const FEWER_BLOCKS_MAX: u32 = 3;

/// Time that the end of a process waits for compilations.
const END_TIME_MAX: Duration = Duration::from_secs(5);

/// Waits for the compilations of all threads, at most five seconds, and lets none begin: a thread that would waits for
/// ever. For the end of a process, whose libraries are closed while threads run; NVRTC then frees memory twice.
pub fn end_compilations() {
    if let Some(running) = RUNNING.try_write_for(END_TIME_MAX) {
        std::mem::forget(running);
    }
}

/// Compiles a program, without the disk cache. Blocks for tens of milliseconds to seconds.
///
/// # Errors
/// [`CompileError`]. If the source has errors, the returned error contains the compiler log and the numbered source.
pub fn compile(spec: &ProgramSpec, arch: Arch) -> Result<Cubin, CompileError> {
    let local_bytes = |cubin: &Cubin| cubin.entries.iter().map(|it| it.local_bytes).max();
    let mut best = compile_with(spec, None, arch)?;
    if !spec.source.contains(FEWER_BLOCKS) {
        return Ok(best);
    }
    for fewer in 1..=FEWER_BLOCKS_MAX {
        if local_bytes(&best) == Some(0) {
            break;
        }
        let option = format!("-D{FEWER_BLOCKS}={fewer}");
        match compile_with(spec, Some(option), arch) {
            Ok(other) if local_bytes(&other) < local_bytes(&best) => best = other,
            // With some more registers, a kernel may spill more than with few or with many.
            Ok(_) => {}
            Err(_) => break,
        }
    }
    Ok(best)
}

/// Compiles a program, with one more option.
fn compile_with(
    spec: &ProgramSpec,
    option: Option<String>,
    arch: Arch,
) -> Result<Cubin, CompileError> {
    let _running = RUNNING.read();
    nvrtc_version()?;
    let texts = Texts::new(spec, option, arch).map_err(|_| CompileError::Nul {
        program: spec.name.clone(),
    })?;
    let refused = |error: NvrtcError, log| CompileError::Refused {
        program: spec.name.clone(),
        arch,
        code: error.code,
        log,
        numbered_source: numbered(&spec.source),
    };
    let mut program = texts
        .program()
        .map_err(|error| refused(error, String::new()))?;
    let compiled = program.compile(&texts.options);
    let log = program.log().unwrap_or_default();
    compiled
        .and_then(|()| finish(spec, &texts, &program, &log))
        .map_err(|error| refused(error, log))
}

/// Collects the results of a successful compilation.
fn finish(
    spec: &ProgramSpec,
    texts: &Texts,
    program: &NvrtcProgram,
    log: &str,
) -> Result<Cubin, NvrtcError> {
    let entries = spec.entries.iter().zip(&texts.entries);
    let resources = entries.map(|(name, entry)| {
        let symbol = program.symbol(entry)?;
        Ok(KernelResources::read(name.clone(), symbol, log))
    });
    Ok(Cubin {
        entries: resources.collect::<Result<_, NvrtcError>>()?,
        bytes: program.cubin()?,
        log: without_times(log),
    })
}

fn without_times(log: &str) -> String {
    let lines = log.split_inclusive('\n');
    lines
        .filter(|line| !line.contains(" Compile time = "))
        .collect()
}

/// A specification as C strings.
struct Texts {
    name: CString,
    source: CString,
    headers: Vec<(CString, CString)>,
    options: Vec<CString>,
    entries: Vec<CString>,
}

impl Texts {
    fn new(spec: &ProgramSpec, option: Option<String>, arch: Arch) -> Result<Texts, NulError> {
        let string = |text: &String| CString::new(text.as_str());
        let header = |(name, text): &(String, String)| {
            Ok((CString::new(name.as_str())?, CString::new(text.as_str())?))
        };
        Ok(Texts {
            name: CString::new(spec.name.as_str())?,
            source: CString::new(&*spec.source)?,
            headers: spec.headers.iter().map(header).collect::<Result<_, _>>()?,
            options: options(spec, arch)
                .iter()
                .chain(&option)
                .map(string)
                .collect::<Result<_, _>>()?,
            entries: spec.entries.iter().map(string).collect::<Result<_, _>>()?,
        })
    }

    fn program(&self) -> Result<NvrtcProgram, NvrtcError> {
        let mut program = NvrtcProgram::create(&self.name, &self.source, &self.headers)?;
        self.entries
            .iter()
            .try_for_each(|entry| program.add_entry(entry))?;
        Ok(program)
    }
}

/// Returns all options for the compiler.
pub(super) fn options(spec: &ProgramSpec, arch: Arch) -> Vec<String> {
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++20".to_owned(),
        "--ptxas-options=-v".to_owned(),
    ];
    options.extend(spec.options.iter().cloned());
    options
}

fn numbered(source: &str) -> String {
    let mut text = String::new();
    for (index, line) in source.lines().enumerate() {
        // Writing to a string never fails.
        let _ = writeln!(text, "{:>5} | {line}", index + 1);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_the_same_each_time() {
        let log = "used 3\nptxas info    : Compile time = 3.187 ms\nwarning\n";
        assert_eq!(without_times(log), "used 3\nwarning\n");
    }

    #[test]
    fn architectures_are_read_as_they_are_written() {
        for name in ["sm_80", "sm_90", "sm_100", "sm_121"] {
            assert_eq!(
                name.parse::<Arch>().map(|arch| arch.to_string()),
                Ok(name.to_owned())
            );
        }
        for name in ["", "90", "sm_", "sm_90a", "sm_-1"] {
            assert!(name.parse::<Arch>().is_err(), "{name}");
        }
    }

    #[test]
    fn lines_are_numbered_from_one() {
        assert_eq!(numbered("a\n\nb"), "    1 | a\n    2 | \n    3 | b\n");
    }
}
