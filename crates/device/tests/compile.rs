//! Compiles kernels with NVRTC for every supported architecture; needs no GPU.

use std::env;
use std::fs;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use forebay_device::cuda::{
    Arch, CompileError, DevicePointer, DevicePointerMut, KernelArguments, KernelCache, ProgramSpec,
    compile, end_compilations, nvrtc_version,
};
use forebay_device::kernel_arguments;

kernel_arguments! {
    /// One range of rows.
    pub struct Part {
        /// First row.
        pub begin: u64,
        /// How to process the range.
        pub kind: u8,
    }

    /// Arguments of these tests' kernels.
    pub struct Arguments {
        /// The ranges.
        pub parts: DevicePointer<Part>,
        /// A nested struct.
        pub own: Part,
        /// Output buffer.
        pub out: DevicePointerMut<u32>,
        /// A small field before larger ones, which makes padding.
        pub small: u16,
        /// A two-dimensional array.
        pub words: [[u32; 3]; 2],
        /// Floating-point numbers.
        pub weights: [f64; 2],
    }
}

const SOURCE: &str = r#"
#include "arguments.h"
extern "C" __global__ void write_one(const __grid_constant__ Arguments arguments) {
    __shared__ unsigned int row[64];
    row[threadIdx.x] = arguments.words[1][threadIdx.x % 3] + arguments.parts[0].kind;
    __syncthreads();
    arguments.out[threadIdx.x] = row[63 - threadIdx.x];
}
template <int ITEMS> __global__ void shuffle(const __grid_constant__ Arguments arguments) {
    int items[ITEMS];
    for (int i = 0; i < ITEMS; i++) items[(i * 7 + arguments.small) % ITEMS] = i * SCALE;
    arguments.out[threadIdx.x] = items[arguments.small % ITEMS];
}
"#;

const ARCHS: [Arch; 3] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch {
        major: 10,
        minor: 0,
    },
];

fn spec() -> ProgramSpec {
    ProgramSpec {
        name: "test/kernels".to_owned(),
        source: SOURCE.into(),
        headers: vec![("arguments.h".to_owned(), Arguments::header())],
        options: vec!["-DSCALE=3".to_owned()],
        entries: vec!["write_one".to_owned(), "shuffle<32>".to_owned()],
    }
}

/// Returns whether kernels can be compiled on this machine. If not, panics if `FOREBAY_REQUIRE_NVRTC=1`.
fn has_nvrtc() -> bool {
    let found = nvrtc_version();
    if let Err(error) = &found {
        let required = env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no NVRTC");
    }
    found.is_ok()
}

/// Says to the next test that it is the process that ends.
const ENDS: &str = "FOREBAY_TEST_ENDS";

/// Without the wait, 12 of 20 such processes were killed by a signal.
#[test]
fn a_process_ends_well_while_its_threads_compile() {
    if !has_nvrtc() {
        return;
    }
    for _ in 0..3 {
        let mut process = Command::new(env::current_exe().expect("this program"));
        process.args(["--exact", "a_process_that_compiles_ends"]);
        let ended = process.env(ENDS, "1").output().expect("it starts");
        let printed = String::from_utf8_lossy(&ended.stdout);
        let has_run = printed.contains("1 passed");
        assert!(ended.status.success() && has_run, "{ended:?}");
    }
}

#[test]
fn a_process_that_compiles_ends() {
    if env::var_os(ENDS).is_none() {
        return;
    }
    let (sender, compiled) = channel();
    for number in 0..4 {
        let sender = sender.clone();
        thread::spawn(move || {
            loop {
                drop(compile(&spec(), ARCHS[number % 3]).expect("it compiles"));
                // The receiver is gone when the test has ended.
                let _ = sender.send(());
            }
        });
    }
    drop(sender);
    (0..4).for_each(|_| compiled.recv().expect("a thread compiles"));
    end_compilations();
}

#[test]
fn the_generated_header_compiles_for_every_architecture() {
    if !has_nvrtc() {
        return;
    }
    for arch in ARCHS {
        let cubin = compile(&spec(), arch).unwrap_or_else(|error| panic!("{error}"));
        assert!(cubin.bytes.starts_with(b"\x7fELF"), "{arch}");
        let [write_one, shuffle] = &cubin.entries[..] else {
            panic!("{:?}", cubin.entries);
        };
        assert_eq!(write_one.symbol, "write_one");
        assert_eq!((write_one.local_bytes, write_one.shared_bytes), (0, 256));
        assert!(write_one.registers > 0 && shuffle.registers > 0);
        assert_eq!((&*shuffle.name, shuffle.local_bytes), ("shuffle<32>", 128));
        assert!(shuffle.symbol.contains("shuffle"), "{}", shuffle.symbol);
    }
}

#[test]
fn a_layout_that_differs_does_not_compile() {
    if !has_nvrtc() {
        return;
    }
    let mut wrong = spec();
    let header = &mut wrong.headers[0].1;
    *header = header.replace("unsigned short small;", "unsigned long long small;");
    let error = compile(&wrong, ARCHS[1]).expect_err("a static assertion fails");
    assert!(error.to_string().contains("static assertion"), "{error}");
}

#[test]
fn an_error_has_the_log_and_the_numbered_source() {
    if !has_nvrtc() {
        return;
    }
    let wrong = ProgramSpec {
        source: "extern \"C\" __global__ void write_one() {\n    no_such_thing();\n}\n".into(),
        ..spec()
    };
    let Err(CompileError::Refused {
        log,
        numbered_source,
        code,
        ..
    }) = compile(&wrong, ARCHS[1])
    else {
        panic!("must not compile");
    };
    assert_eq!(code, "NVRTC_ERROR_COMPILATION");
    assert!(log.contains("test/kernels(2): error"), "{log}");
    assert!(
        numbered_source.contains("    2 |     no_such_thing();\n"),
        "{numbered_source}"
    );
}

#[test]
fn a_nul_byte_is_refused() {
    if !has_nvrtc() {
        return;
    }
    let wrong = ProgramSpec {
        source: "\0".into(),
        ..spec()
    };
    assert_eq!(
        compile(&wrong, ARCHS[0]),
        Err(CompileError::Nul {
            program: "test/kernels".to_owned()
        })
    );
}

#[test]
fn compiled_programs_are_kept_on_disk() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = KernelCache::at(folder.path().join("kernels"));
    let find = |spec: &ProgramSpec| cache.find(spec, ARCHS[1]).expect("NVRTC is there");
    assert_eq!(find(&spec()), None);
    let compiled = cache.get(&spec(), ARCHS[1]).expect("the program compiles");
    assert_eq!(find(&spec()).as_ref(), Some(&compiled));
    assert_eq!(cache.get(&spec(), ARCHS[1]), Ok(compiled));
    let other = ProgramSpec {
        options: vec!["-DSCALE=4".to_owned()],
        ..spec()
    };
    assert_eq!(find(&other), None, "options are part of the key");
    assert_eq!(cache.find(&spec(), ARCHS[0]), Ok(None));
}

#[test]
fn a_damaged_file_is_compiled_again() {
    if !has_nvrtc() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let cache = KernelCache::at(folder.path().to_owned());
    let compiled = cache.get(&spec(), ARCHS[1]).expect("the program compiles");
    let mut files = fs::read_dir(folder.path()).expect("the folder is there");
    let file = files.next().expect("one file").expect("readable").path();
    assert!(files.next().is_none(), "no temporary file is left");
    let whole = fs::read(&file).expect("readable");
    let mut flipped = whole.clone();
    *flipped.last_mut().expect("not empty") ^= 1;
    for damaged in [&whole[..whole.len() - 1], &flipped, b"", b"{}\n"] {
        fs::write(&file, damaged).expect("writable");
        assert_eq!(cache.find(&spec(), ARCHS[1]), Ok(None));
        assert_eq!(cache.get(&spec(), ARCHS[1]), Ok(compiled.clone()));
        assert_eq!(fs::read(&file).expect("readable"), whole);
    }
}
