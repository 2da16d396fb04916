//! The CUDA C++ header that the kernels of all operators include.

/// Returns `device.cuh` as a header of a [`ProgramSpec`](super::ProgramSpec): short names of numeric types, and
/// warp-wide functions.
pub fn device_header() -> (String, String) {
    let text = include_str!("device.cuh");
    ("device.cuh".to_owned(), text.to_owned())
}
