//! Disk cache of compiled programs.

use std::collections::HashMap;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::compile::{Arch, CompileError, Cubin, ProgramSpec, compile, options};
use super::library::nvrtc_version;
use super::resources::KernelResources;

/// Version of the file format. It is part of the hash in the file name, so other versions' files are not read.
const FORMAT: &str = "forebay kernel 2";

/// A folder of compiled programs that processes share. A damaged or missing file costs a compilation and is not an
/// error.
#[derive(Debug, Clone)]
pub struct KernelCache {
    folder: Option<PathBuf>,
}

/// First line of a file, before the machine code.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    log: String,
    entries: Vec<KernelResources>,
    cubin_sha256: String,
}

impl KernelCache {
    /// Returns the cache in the folder named by `FOREBAY_KERNEL_CACHE`, otherwise in `forebay/kernels` of
    /// `$XDG_CACHE_HOME` or `~/.cache`. Without a home folder, the cache stores nothing.
    pub fn from_environment() -> KernelCache {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let own = variable("FOREBAY_KERNEL_CACHE").map(PathBuf::from);
        let user = || {
            let caches = variable("XDG_CACHE_HOME").map(PathBuf::from);
            let home = || variable("HOME").map(|home| Path::new(&home).join(".cache"));
            Some(caches.or_else(home)?.join("forebay/kernels"))
        };
        KernelCache {
            folder: own.or_else(user),
        }
    }

    /// Returns the cache in a folder, which the first write creates.
    pub fn at(folder: PathBuf) -> KernelCache {
        KernelCache {
            folder: Some(folder),
        }
    }

    /// Returns the folder; `None` if the cache stores nothing.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Returns the machine code of a program if the cache has it; never compiles.
    ///
    /// # Errors
    /// [`CompileError::NvrtcMissing`] if NVRTC is not installed: the cache key includes its version.
    pub fn find(&self, spec: &ProgramSpec, arch: Arch) -> Result<Option<Cubin>, CompileError> {
        let file = self.file(spec, arch)?;
        Ok(file.and_then(|file| read(&file)))
    }

    /// Returns the machine code of a program from its cache file; otherwise compiles the program and writes the file.
    /// In this process, one thread compiles a program while others that need it wait.
    ///
    /// # Errors
    /// As for [`compile`]. A failed write is only logged.
    pub fn get(&self, spec: &ProgramSpec, arch: Arch) -> Result<Cubin, CompileError> {
        let Some(file) = self.file(spec, arch)? else {
            return compile(spec, arch);
        };
        let lock = lock_of(&file);
        let _compiles = lock.lock();
        if let Some(cubin) = read(&file) {
            return Ok(cubin);
        }
        let cubin = compile(spec, arch)?;
        if let Err(error) = write(&file, &cubin) {
            tracing::warn!(file = %file.display(), %error, "a compiled kernel cannot be written to the cache");
        }
        Ok(cubin)
    }

    fn file(&self, spec: &ProgramSpec, arch: Arch) -> Result<Option<PathBuf>, CompileError> {
        let version = nvrtc_version()?;
        let name = || format!("{}-{arch}-{}", plain(&spec.name), key(spec, arch, version));
        Ok(self.folder.as_ref().map(|folder| folder.join(name())))
    }
}

/// Returns the lock of a cache file. Locks are never dropped; there is at most one for each program.
fn lock_of(file: &Path) -> Arc<Mutex<()>> {
    static LOCKS: LazyLock<Mutex<HashMap<PathBuf, Arc<Mutex<()>>>>> = LazyLock::new(Mutex::default);
    Arc::clone(LOCKS.lock().entry(file.to_owned()).or_default())
}

/// Returns `name` as a file name of at most 64 characters. Each character other than an ASCII letter, a digit, `-` or
/// `_` becomes `_`.
fn plain(name: &str) -> String {
    let keep = |letter: char| match letter {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => letter,
        _ => '_',
    };
    name.chars().map(keep).take(64).collect()
}

/// Returns the hash of all inputs of the compilation.
fn key(spec: &ProgramSpec, arch: Arch, nvrtc_version: (u32, u32)) -> String {
    let readable = (FORMAT, nvrtc_version, options(spec, arch), identity(spec));
    hash(format!("{readable:?}").as_bytes())
}

/// Returns the hash of a whole specification.
pub(super) fn identity(spec: &ProgramSpec) -> String {
    let ProgramSpec {
        name,
        source,
        headers,
        options,
        entries,
    } = spec;
    let readable = (name, options, entries, headers, source);
    hash(format!("{readable:?}").as_bytes())
}

fn hash(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in Sha256::digest(bytes) {
        // Writing to a string never fails.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

/// Returns the content of a cache file; `None` if the file is missing or damaged.
fn read(file: &Path) -> Option<Cubin> {
    let bytes = fs::read(file).ok()?;
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    let (line, code) = (&bytes[..end], &bytes[end + 1..]);
    let header: Header = serde_json::from_slice(line).ok()?;
    (hash(code) == header.cubin_sha256).then(|| Cubin {
        bytes: code.to_owned(),
        log: header.log,
        entries: header.entries,
    })
}

/// Writes a file under a temporary name and renames it, so that no reader sees a partial file.
fn write(file: &Path, cubin: &Cubin) -> io::Result<()> {
    let header = Header {
        log: cubin.log.clone(),
        entries: cubin.entries.clone(),
        cubin_sha256: hash(&cubin.bytes),
    };
    let mut bytes = serde_json::to_vec(&header)?;
    bytes.push(b'\n');
    bytes.extend_from_slice(&cubin.bytes);
    file.parent().map_or(Ok(()), fs::create_dir_all)?;
    let temporary = file.with_extension(format!("{}.part", process::id()));
    fs::write(&temporary, bytes)?;
    fs::rename(&temporary, file)
}
