//! A number in device memory to which kernels add.

use forebay_device::JobError;
use forebay_device::cuda::{
    Cuda, DeviceBuffer, DevicePointerMut, DeviceType, Fill, Part, Stream, Transfer,
};

/// A number in device memory to which kernels add. The caller of a launch keeps it until the kernel is done.
#[derive(Debug)]
pub struct Total {
    number: DeviceBuffer<u64>,
}

impl Total {
    /// Returns a total of zero. Blocks until the device memory is written.
    ///
    /// # Errors
    /// If device memory is too small, or the device fails.
    pub fn zero(cuda: &Cuda, stream: &Stream) -> Result<Total, JobError> {
        let number = cuda.buffer::<u64>(1)?;
        Transfer::begin(cuda, Fill(0), number.all(), stream)?.finish()?;
        Ok(Total { number })
    }

    /// Returns the address to which kernels add.
    pub fn pointer_mut(&self) -> DevicePointerMut<u64> {
        self.number.pointer_mut()
    }

    /// Returns the number after the earlier work of the stream. Blocks until it is there.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self, cuda: &Cuda, stream: &Stream) -> Result<u64, JobError> {
        let host = Part::divide(vec![0; size_of::<u64>()].into_boxed_slice(), &[]);
        let part = host.into_iter().next().expect("one part");
        let (_, part) = Transfer::begin(cuda, self.number.all(), part, stream)?.finish()?;
        Ok(u64::read(&part))
    }
}
