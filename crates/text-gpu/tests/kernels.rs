//! Compiles this crate's kernels for every supported architecture; needs no GPU.

use forebay_device::cuda::{Arch, Cubin, compile, nvrtc_version};

const ARCHS: [Arch; 3] = [
    Arch { major: 8, minor: 0 },
    Arch { major: 9, minor: 0 },
    Arch {
        major: 10,
        minor: 0,
    },
];

/// Kernels that may keep variables in local memory, each with the reason.
const MAY_SPILL: [(&str, &str); 0] = [];

fn check(arch: Arch, cubin: &Cubin) {
    for kernel in &cubin.entries {
        let listed = MAY_SPILL.iter().any(|(name, _)| *name == kernel.name);
        assert_eq!(
            kernel.local_bytes > 0,
            listed,
            "{} for {arch} uses {} bytes of local memory",
            kernel.name,
            kernel.local_bytes
        );
    }
}

#[test]
fn kernels_compile_for_every_architecture_and_do_not_spill() {
    if let Err(error) = nvrtc_version() {
        let required = std::env::var_os("FOREBAY_REQUIRE_NVRTC").is_some_and(|value| value == "1");
        assert!(!required, "{error}");
        println!("skipped: no NVRTC");
        return;
    }
    for arch in ARCHS {
        for spec in forebay_text_gpu::kernels(arch) {
            let cubin = compile(&spec, arch).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(cubin.entries.len(), spec.entries.len());
            check(arch, &cubin);
        }
    }
}
