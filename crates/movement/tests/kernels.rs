//! Compiles this crate's kernels for every supported architecture; needs no GPU.

use forebay_device::cuda::{Arch, compile, nvrtc_version};

const ARCHS: [Arch; 3] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch {
        major: 10,
        minor: 0,
    },
];

#[test]
fn kernels_compile_for_every_architecture_and_do_not_spill() {
    if let Err(error) = nvrtc_version() {
        let required = std::env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no NVRTC");
        return;
    }
    for arch in ARCHS {
        for spec in forebay_movement::kernels(arch) {
            let cubin = compile(&spec, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(cubin.entries.len(), spec.entries.len());
            for kernel in &cubin.entries {
                let (name, bytes) = (&kernel.name, kernel.local_bytes);
                assert_eq!(bytes, 0, "local memory of {name} for {arch}");
            }
        }
    }
}

#[test]
fn only_architectures_with_the_bulk_copy_engine_have_its_kernels() {
    let has_bulk = |arch| {
        let entries = forebay_movement::kernels(arch)
            .into_iter()
            .flat_map(|spec| spec.entries);
        entries.filter(|entry| entry.contains("bulk")).count() > 0
    };
    assert_eq!(ARCHS.map(has_bulk), [false, true, true]);
}
