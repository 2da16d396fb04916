//! The CUDA C++ header that kernels of all operators share.

/// `device.cuh` as a header of a [`ProgramSpec`](super::ProgramSpec): short names of numeric types, and functions of
/// whole warps.
pub fn device_header() -> (String, String) {
    let text = include_str!("device.cuh");
    ("device.cuh".to_owned(), text.to_owned())
}
