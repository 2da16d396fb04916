//! Host memory of the program that is pinned while it is used.

use std::fmt;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::sys;

use super::library::{DriverError, check};
use super::pinned::device_address;
use super::{Context, DevicePointer, DevicePointerMut};

mod sealed {
    pub trait Sealed {}
    impl Sealed for Vec<u8> {}
    impl Sealed for Box<[u8]> {}
    impl Sealed for std::sync::Arc<[u8]> {}
    impl Sealed for std::sync::Arc<Vec<u8>> {}
}

/// Memory whose bytes stay where they are while it is owned: `Vec<u8>`, `Box<[u8]>`, `Arc<[u8]>` and `Arc<Vec<u8>>`.
pub trait HostMemory: sealed::Sealed + Send + Sync + 'static {
    /// The bytes.
    fn bytes(&self) -> &[u8];
}

/// [`HostMemory`] with one owner, who may write it.
pub trait HostMemoryMut: HostMemory {
    /// The bytes, to be written.
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

host_memory!(Vec<u8>, Box<[u8]>, Arc<[u8]>, Arc<Vec<u8>>);

impl HostMemoryMut for Vec<u8> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl HostMemoryMut for Box<[u8]> {
    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }
}

/// Why host memory was not registered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// The device is no GPU.
    #[error("device {device} is no GPU; memory is registered for GPUs only")]
    HostDevice {
        /// Name of the device.
        device: String,
    },
    /// The driver does not pin the memory: a page of it is registered already, or a limit is reached.
    #[error("the driver does not pin {bytes} bytes ({code}); see `ulimit -l`")]
    Refused {
        /// Bytes that were to be pinned.
        bytes: usize,
        /// The driver's name of the error.
        code: String,
    },
}

/// The driver's registration of some memory.
#[derive(Debug)]
struct Registration {
    context: Arc<Context>,
    pointer: NonNull<u8>,
    /// Where kernels see it.
    device_address: u64,
}

// SAFETY: the pointer is only passed to the driver, which allows it from any thread.
unsafe impl Send for Registration {}
// SAFETY: as above, also at the same time.
unsafe impl Sync for Registration {}

impl Registration {
    /// Registers memory for all contexts.
    ///
    /// # Safety
    /// The bytes stay allocated until the registration is dropped. They are not empty.
    unsafe fn create(
        context: Arc<Context>,
        pointer: NonNull<u8>,
        bytes: usize,
    ) -> Result<Registration, DriverError> {
        let entered = context.enter()?;
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: a context is current; the memory is there, as the caller promises.
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

/// Pages of the program's own mapping that are registered: see `pinned.rs`.
#[derive(Debug)]
pub(super) struct RegisteredPages {
    registration: Registration,
    // Dropped after the registration.
    pages: super::pages::Pages,
}

impl RegisteredPages {
    pub(super) fn create(
        context: Arc<Context>,
        pages: super::pages::Pages,
    ) -> Result<RegisteredPages, DriverError> {
        // SAFETY: the pages are kept, in a field that is dropped after the registration; there is one at least.
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

/// Memory of the program that is pinned until this is dropped: copies between it and a GPU run as those of
/// [`Pinned`](super::Pinned) memory, and kernels can use it without a copy. It owns the memory;
/// [`Device::register`](crate::Device::register) makes it.
///
/// A [`Transfer`](super::Transfer) owns it until the copy is done. The driver pins whole pages, so small buffers that
/// share a page cannot be registered at the same time.
pub struct HostRegistration<M: HostMemory> {
    /// `None` if there are no bytes. Dropped before the memory.
    registration: Option<Registration>,
    memory: M,
}

impl<M: HostMemory> HostRegistration<M> {
    /// Registers memory; gives it back if the driver refuses.
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
        // SAFETY: the memory is kept beside the registration and dropped after it, and its bytes do not move: the trait
        // is implemented for memory on the heap alone.
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

    /// Ends the registration and gives the memory back.
    pub fn into_inner(self) -> M {
        let HostRegistration {
            registration,
            memory,
        } = self;
        drop(registration);
        memory
    }

    /// Returns the address at which kernels of the device read the memory over the bus, without a copy. The caller of
    /// the launch must keep the registration until the stream is done.
    pub fn device_pointer<T>(&self) -> DevicePointer<T> {
        DevicePointer::new(self.device_address())
    }

    fn device_address(&self) -> u64 {
        let registration = self.registration.as_ref();
        registration.map_or(0, |registration| registration.device_address)
    }
}

impl<M: HostMemoryMut> HostRegistration<M> {
    /// Returns the address at which kernels of the device read and write the memory over the bus, without a copy. The
    /// caller of the launch must keep the registration, and must not touch the memory, until the stream is done.
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

/// Some bytes of registered memory, to be copied to a device. The registration lasts while one of them lives.
#[derive(Debug)]
pub struct RegisteredPart<M: HostMemory> {
    registration: Arc<HostRegistration<M>>,
    range: Range<usize>,
}

impl<M: HostMemory> RegisteredPart<M> {
    /// Some bytes of registered memory.
    ///
    /// # Panics
    /// If the memory ends before the range does.
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
