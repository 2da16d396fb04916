//! Kernels as programs: compiled as C++, each thread a fibre.

use std::collections::HashMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, LazyLock, OnceLock};

use forebay_device::cuda::ProgramSpec;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::source::headers;

/// Number of blocks of a launch, and threads of a block: two warps.
pub(super) const BLOCKS: u64 = 3;
pub(super) const THREADS: u32 = 64;

/// What the compiler is given for each source.
const FLAGS: [&str; 4] = ["-std=c++20", "-O0", "-w", "-fsanitize=undefined"];
/// What undefined behaviour does: ends the program, or prints where it is first, which takes longer to compile.
const TRAPS: &str = "-fsanitize-undefined-trap-on-error";
const EXPLAINS: &str = "-fno-sanitize-recover";
/// What makes a kernel a program.
const PROGRAM: [&str; 3] = ["-include", "device.cuh", "main.o"];
const MAIN: &str = include_str!("emulated_main.cuh");
const END_OF_KERNEL: &str = include_str!("emulated_kernel.cuh");

/// A file, and the address where a kernel has it. No process has anything there.
pub(super) type Mapped<'file> = (&'file Path, u64);

/// The programs of all tests. They stay beside the program of the tests, so that a second run compiles nothing.
static PROGRAMS: LazyLock<Programs> = LazyLock::new(Programs::new);

/// Returns whether there is a compiler of C++. Without one, prints that the test is skipped, or panics if
/// `FOREBAY_REQUIRE_CXX=1`.
pub(super) fn has_compiler() -> bool {
    let found = !compiler().is_empty();
    let required = std::env::var_os("FOREBAY_REQUIRE_CXX").is_some_and(|value| value == "1");
    assert!(found || !required, "no compiler of C++ (c++)");
    if !found {
        println!("skipped: no compiler of C++");
    }
    found
}

/// Returns what the compiler says of itself.
fn compiler() -> Vec<u8> {
    let said = Command::new("c++").arg("--version").output();
    said.map(|it| it.stdout).unwrap_or_default()
}

/// A kernel that is a program.
#[derive(Debug, Clone)]
pub(super) struct Program {
    /// The program, and its source without the extension.
    file: PathBuf,
}

struct Programs {
    /// Headers, and what is the same for all kernels, compiled.
    folder: PathBuf,
    /// Whether a kernel is compiled, by its source.
    compiled: Mutex<HashMap<String, Arc<OnceLock<Program>>>>,
}

impl Programs {
    fn new() -> Programs {
        let texts: Vec<_> = headers().into_iter().map(as_cpp).collect();
        let version = compiler();
        let flags = (FLAGS, TRAPS, PROGRAM);
        let hash = hash(&(&texts, MAIN, END_OF_KERNEL, flags, version));
        let tests = std::env::current_exe().expect("the program of the tests");
        let all = tests.with_file_name("emulated");
        let folder = all.join(hash);
        if !folder.exists() {
            fs::create_dir_all(&all).expect("a folder");
            // Programs of other headers.
            let others = fs::read_dir(&all).expect("a folder").flatten();
            let others = others.filter(|it| !it.file_name().to_string_lossy().starts_with('.'));
            others.for_each(|it| drop(fs::remove_dir_all(it.path())));
            let new = TempDir::new_in(&all).expect("a folder");
            prepare(new.path(), &texts);
            // Tests that run at the same time may have made it.
            let renamed = fs::rename(new.path(), &folder);
            assert!(renamed.is_ok() || folder.exists(), "{renamed:?}");
        }
        Programs {
            folder,
            compiled: Mutex::default(),
        }
    }

    fn program(&self, spec: &ProgramSpec) -> Program {
        let threads = format!("kThreads = {}", crate::program::THREADS);
        let fewer = format!("kThreads = {THREADS}");
        let source = spec.source.replace(&threads, &fewer) + END_OF_KERNEL;
        let compiled = {
            let mut all = self.compiled.lock();
            Arc::clone(all.entry(source.clone()).or_default())
        };
        let program = compiled.get_or_init(|| {
            let file = self.folder.join(hash(&source));
            if !file.exists() {
                // Tests that run at the same time have names of their own until the program is whole.
                let own = std::process::id();
                let (text, program) = (format!("{own}.cpp"), own.to_string());
                let (text, program) = (file.with_extension(text), file.with_extension(program));
                fs::write(&text, &source).expect("room");
                compile(&self.folder, TRAPS, &PROGRAM, &text, &program);
                fs::rename(&text, file.with_extension("cpp")).expect("room");
                fs::rename(&program, &file).expect("room");
            }
            Program { file }
        });
        program.clone()
    }
}

/// Returns a header as C++.
fn as_cpp((name, text): (String, String)) -> (String, String) {
    let text = match name.as_str() {
        "device.cuh" => include_str!("emulated.cuh").to_owned(),
        // Only NVRTC knows `__INTADDR__`.
        _ => {
            let lines = text.lines().filter(|it| !it.contains("__INTADDR__"));
            lines.collect::<Vec<_>>().join("\n")
        }
    };
    (name, text)
}

fn hash(of: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Writes the headers, and compiles what is the same for all kernels: most of the time of the compiler is that of its
/// library.
fn prepare(folder: &Path, headers: &[(String, String)]) {
    for (name, text) in headers {
        fs::write(folder.join(name), text).expect("room");
    }
    let (header, main) = (folder.join("header.hpp"), folder.join("main.cpp"));
    fs::write(&header, "#include \"device.cuh\"\n").expect("room");
    fs::write(&main, MAIN).expect("room");
    let (compiled, object) = (folder.join("device.cuh.gch"), folder.join("main.o"));
    compile(folder, TRAPS, &["-c"], &header, &compiled);
    compile(
        folder,
        TRAPS,
        &["-include", "device.cuh", "-c"],
        &main,
        &object,
    );
}

/// Runs the compiler, in the folder.
fn compile(folder: &Path, undefined: &str, arguments: &[&str], from: &Path, to: &Path) {
    let compiled = Command::new("c++")
        .args(FLAGS)
        .arg(undefined)
        .arg(from)
        .args(arguments)
        .arg("-o")
        .arg(to)
        .current_dir(folder)
        .output()
        .expect("a compiler");
    let errors = String::from_utf8_lossy(&compiled.stderr);
    let source = fs::read_to_string(from).unwrap_or_default();
    assert!(compiled.status.success(), "{source}\n{errors}");
}

impl Program {
    /// Returns the program of a kernel.
    pub(super) fn of(spec: &ProgramSpec) -> Program {
        PROGRAMS.program(spec)
    }

    /// Runs the kernel over files. The second begins with its arguments. After this many looks at the flag, the query
    /// is cancelled.
    pub(super) fn run(&self, memory: Mapped, image: Mapped, looks: u64) {
        let ran = execute(&self.file, memory, image, looks);
        if ran.status.success() {
            return;
        }
        // Again, with a message.
        let (source, explains) = (
            self.file.with_extension("cpp"),
            self.file.with_extension("explained"),
        );
        compile(&PROGRAMS.folder, EXPLAINS, &PROGRAM, &source, &explains);
        let again = execute(&explains, memory, image, looks);
        let errors = String::from_utf8_lossy(&again.stderr);
        let source = fs::read_to_string(&source).unwrap_or_default();
        panic!("{}, then {}: {errors}\n{source}", ran.status, again.status);
    }
}

fn execute(program: &Path, memory: Mapped, image: Mapped, looks: u64) -> Output {
    let mut command = Command::new(program);
    for (file, address) in [memory, image] {
        command.arg(file).arg(format!("{address:x}"));
    }
    let numbers = [looks, BLOCKS, u64::from(THREADS)];
    command.args(numbers.map(|it| it.to_string()));
    command.output().expect("the kernel runs")
}
