//! Arguments of the kernels, defined here and generated for CUDA C++.

use forebay_device::cuda::{DevicePointer, DevicePointerMut};
use forebay_device::kernel_arguments;

kernel_arguments! {
    /// Arguments of the copies.
    pub(crate) struct Copying {
        pub(crate) from: DevicePointer<u8>,
        pub(crate) to: DevicePointerMut<u8>,
        pub(crate) bytes: u64,
        /// Bytes of a stage of shared memory, a multiple of 128; used by bulk copies.
        pub(crate) piece_bytes: u32,
    }

    /// Arguments of the checksum.
    pub(crate) struct Summing {
        pub(crate) from: DevicePointer<u8>,
        pub(crate) bytes: u64,
        /// The sum, to which the kernel adds.
        pub(crate) sum: DevicePointerMut<u64>,
    }
}
