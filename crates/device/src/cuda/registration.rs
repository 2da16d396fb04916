//! Registration of this process's own memory: it stays pinned (page-locked) while it is registered.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::library::{DriverError, check};
use super::pinned::device_address;
use super::{Context, DevicePointer, DevicePointerMut, Part};
use crate::AlignedBytes;

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::AlignedBytes {}
    impl Sealed for Vec<u8> {}
    impl Sealed for Box<[u8]> {}
    impl Sealed for std::sync::Arc<[u8]> {}
    impl Sealed for std::sync::Arc<Vec<u8>> {}
    impl Sealed for super::Part<Box<[u8]>> {}
}

/// Owned memory whose bytes do not move: [`AlignedBytes`], `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>`, `Arc<Vec<u8>>` and a
/// [`Part`] of a `Box<[u8]>`. Memory that kernels read over the bus should be [`AlignedBytes`].
pub trait HostMemory: sealed::Sealed + Send + Sync + 'static {
    /// Returns the bytes.
    fn bytes(&self) -> &[u8];
}

/// [`HostMemory`] with a single owner, which may write the bytes.
pub trait HostMemoryMut: HostMemory {
    /// Returns the bytes for writing.
    fn bytes_mut(&mut self) -> &mut [u8];
}

macro_rules! host_memory {
    ($($memory:ty),+) => { $(
        impl HostMemory for $memory {
            fn bytes(&self) -> &[u8] {
                self
            }
        }
    )+ };
}

host_memory!(
    AlignedBytes,
    Vec<u8>,
    Box<[u8]>,
    Arc<[u8]>,
    Arc<Vec<u8>>,
    Part<Box<[u8]>>
);

impl HostMemoryMut for AlignedBytes {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl HostMemoryMut for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl HostMemoryMut for Part<Box<[u8]>> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl HostMemoryMut for Box<[u8]> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Why host memory could not be registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The device is not a GPU.
    #[error("device {device} is not a GPU; memory can be registered only for GPUs")]
    HostDevice {
        /// Name of the device.
        device: String,
    },
    /// The driver cannot pin the memory: one of its pages is already registered, or a limit is reached.
    #[error("the driver cannot pin {bytes} bytes ({code}); check `ulimit -l`")]
    Refused {
        /// Bytes of the request.
        bytes: usize,
        /// The driver's name of the error.
        code: String,
    },
}

/// A range of memory registered with the driver.
#[derive(Debug)]
struct Registration {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    /// Address at which kernels access the memory.
    device_address: u64,
}

// SAFETY: the pointer is only passed to the driver, which accepts it on any thread.
unsafe impl Send for Registration {}
// SAFETY: as above; concurrent calls are allowed too.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory for all contexts.
    ///
    /// # Safety
    /// The range must not be empty, and must stay allocated until the registration is dropped.
    unsafe fn create(
        context: Arc<Context>,
        pointer: NonNull<u8>,
        bytes: usize,
    ) -> Result<Registration, DriverError> {
        let entered = context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: a context is current; the caller promises that the memory is allocated.
        let code = unsafe { sys::cuMemHostRegister_v2(pointer.as_ptr().cast(), bytes, flags) };
        check("cuMemHostRegister", code)?;
        let mut registration = Registration {
            context: Arc::clone(&context),
            pointer,
            device_address: 0,
        };
        registration.device_address = device_address(pointer)?;
        drop(entered);
        Ok(registration)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.context.settle_if_panicking();
        // A context that cannot be entered has failed; destroying it ends its registrations.
        if let Ok(_entered) = self.context.enter() {
            // SAFETY: the memory was registered in this context, once.
            let _ = unsafe { sys::cuMemHostUnregister(self.pointer.as_ptr().cast()) };
        }
    }
}

/// Registered pages of this process's own mapping; see `pinned.rs`.
#[derive(Debug)]
pub(super) struct RegisteredPages {
    registration: Registration,
    // Declared after the registration, so that the pages are unmapped only after the registration has ended.
    pages: super::pages::Pages,
}

impl RegisteredPages {
    pub(super) fn create(
        context: Arc<Context>,
        pages: super::pages::Pages,
    ) -> Result<RegisteredPages, DriverError> {
        // SAFETY: there is at least one page, and the pages are kept in a field that is dropped after the registration.
        let registration = unsafe { Registration::create(context, pages.pointer(), pages.bytes()) };
        Ok(RegisteredPages {
            registration: registration?,
            pages,
        })
    }

    pub(super) fn pointer(&self) -> NonNull<u8> {
        self.pages.pointer()
    }

    pub(super) fn device_address(&self) -> u64 {
        self.registration.device_address
    }
}

/// Guard of registered memory: the memory is pinned until the guard is dropped. Copies between the memory and a GPU run
/// as fast as those of [`Pinned`](super::Pinned) memory, and kernels can access the memory without a copy. The guard
/// owns the memory; [`Device::register`](crate::Device::register) creates it.
///
/// A [`Transfer`](super::Transfer) owns the guard until the copy is done. The driver pins whole pages, so small buffers
/// that share a page cannot be registered at the same time.
pub struct HostRegistration<M: HostMemory> {
    /// `None` if the memory is empty. Dropped before `memory`.
    registration: Option<Registration>,
    memory: M,
}

impl<M: HostMemory> HostRegistration<M> {
    /// Registers memory; returns the memory with the error if the driver refuses.
    pub(crate) fn create(context: &Arc<Context>, memory: M) -> Result<Self, (M, RegisterError)> {
        let bytes = memory.bytes();
        let (pointer, count) = (NonNull::from(bytes).cast(), bytes.len());
        if count == 0 {
            let registration = None;
            return Ok(HostRegistration {
                registration,
                memory,
            });
        }
        // SAFETY: `memory` is kept beside the registration and dropped after it. Its bytes do not move, because
        // `HostMemory` is implemented only for heap memory.
        match unsafe { Registration::create(Arc::clone(context), pointer, count) } {
            Ok(registration) => Ok(HostRegistration {
                registration: Some(registration),
                memory,
            }),
            Err(error) => {
                let (bytes, code) = (count, error.code);
                Err((memory, RegisterError::Refused { bytes, code }))
            }
        }
    }

    /// Ends the registration and returns the memory.
    pub fn into_inner(self) -> M {
        let HostRegistration {
            registration,
            memory,
        } = self;
        drop(registration);
        memory
    }

    /// Returns the address at which kernels of the device read the memory over the bus, without a copy. The caller of
    /// the launch must keep the registration until the kernel has finished.
    pub fn device_pointer<T>(&self) -> DevicePointer<T> {
        DevicePointer::new(self.device_address())
    }

    pub(super) fn device_address(&self) -> u64 {
        let registration = self.registration.as_ref();
        registration.map_or(0, |registration| registration.device_address)
    }
}

impl<M: HostMemoryMut> HostRegistration<M> {
    /// Returns the address at which kernels of the device read and write the memory over the bus, without a copy. The
    /// caller of the launch must keep the registration, and must not access the memory, until the kernel has finished.
    pub fn device_pointer_mut<T>(&mut self) -> DevicePointerMut<T> {
        DevicePointerMut::new(self.device_address())
    }
}

impl<M: HostMemory> Deref for HostRegistration<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl<M: HostMemoryMut> DerefMut for HostRegistration<M> {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.memory.bytes_mut()
    }
}

impl<M: HostMemory> fmt::Debug for HostRegistration<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostRegistration")
            .field("bytes", &self.len())
            .finish_non_exhaustive()
    }
}

/// A range of registered memory, for use as the source of a copy. Each range shares ownership of the registration.
#[derive(Debug)]
pub struct RegisteredPart<M: HostMemory> {
    registration: Arc<HostRegistration<M>>,
    range: Range<usize>,
}

impl<M: HostMemory> RegisteredPart<M> {
    /// Returns a range of registered memory.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn new(registration: &Arc<HostRegistration<M>>, range: Range<usize>) -> RegisteredPart<M> {
        assert!(
            registration.get(range.clone()).is_some(),
            "{range:?} of {}",
            registration.len()
        );
        RegisteredPart {
            registration: Arc::clone(registration),
            range,
        }
    }
}

impl<M: HostMemory> Deref for RegisteredPart<M> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.registration[self.range.clone()]
    }
}
