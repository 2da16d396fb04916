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
        /// Index of the first word.
        pub(crate) first: u64,
        /// The sum, to which the kernel adds.
        pub(crate) sum: DevicePointerMut<u64>,
    }

    /// Arguments of the reads.
    pub(crate) struct Reading {
        /// The memory. Its address is a multiple of 128 and its length a power of two.
        pub(crate) words: DevicePointerMut<u32>,
        pub(crate) bytes: u64,
        /// Number of reads of the kernels that do not read all.
        pub(crate) accesses: u64,
        /// Line of the first dependent read.
        pub(crate) first_line: u64,
        /// The sum of what was read, to which the kernel adds.
        pub(crate) sum: DevicePointerMut<u64>,
        /// Bytes of a stage of shared memory, a multiple of 128; used by bulk copies.
        pub(crate) piece_bytes: u32,
    }
}
