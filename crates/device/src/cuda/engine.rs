//! A GPU as the jobs on its thread see it.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUlaunchConfig};

use super::event::Clock;
use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::modules::{Modules, no_entry};
use super::{
    Arch, Arena, Context, DeviceBuffer, DeviceMemory, DeviceType, Event, Gpu, Kernel,
    KernelArguments, KernelCache, LaunchShape, Mirrored, Pinned, PinnedPool, Priority, Program,
    Stream,
};
use crate::device::Shared;
use crate::memory::COMMON;
use crate::{DeviceFault, JobError, JobFailure, OutOfMemory, Signal};

/// Something that work in flight uses.
type Retired = Box<dyn Any + Send>;

/// The GPU of a job, on the thread that owns it.
///
/// A job returns the errors of these calls: a failure ends the job alone, a [`DeviceFault`] loses the device. Faults of
/// kernels and copies come to light at a later call.
#[derive(Debug)]
pub struct Cuda {
    uploads: Stream,
    downloads: Stream,
    modules: Modules,
    /// Values that are dropped after their events.
    retired: Vec<(Arc<Event>, Retired)>,
    pool: Arc<PinnedPool>,
    arena: Arc<Arena>,
    gpu: Gpu,
    shared: Arc<Shared>,
    context: Arc<Context>,
}

impl Cuda {
    pub(crate) fn create(
        context: Arc<Context>,
        shared: Arc<Shared>,
        gpu: Gpu,
        arena: Arc<Arena>,
        pool: Arc<PinnedPool>,
    ) -> Result<Cuda, DriverError> {
        Ok(Cuda {
            uploads: Stream::create(Arc::clone(&context), Priority::Normal)?,
            downloads: Stream::create(Arc::clone(&context), Priority::Normal)?,
            modules: Modules::new(KernelCache::from_environment()),
            retired: Vec::new(),
            pool,
            arena,
            gpu,
            shared,
            context,
        })
    }

    /// Makes the calling thread the one that runs the jobs.
    pub(crate) fn move_here(&self) -> Result<(), DriverError> {
        self.context.make_current()
    }

    /// Wakes the threads that wait for pinned memory; they get none.
    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Waits for all work of the device.
    pub(crate) fn settle(&self) -> Result<(), DeviceFault> {
        Ok(self.context.synchronize()?)
    }

    /// Keeps a value that work in flight uses, such as memory, until an event is done; returns at once.
    pub fn retire(&mut self, value: impl Send + 'static, event: Arc<Event>) {
        self.retired.push((event, Box::new(value)));
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Drops the values whose events are done.
    pub(crate) fn drop_retired(&mut self) -> Result<(), DeviceFault> {
        let mut index = 0;
        while index < self.retired.len() {
            if self.retired[index].0.is_done()? {
                self.retired.swap_remove(index);
            } else {
                index += 1;
            }
        }
        Ok(())
    }

    /// Returns the facts of the GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the architecture that kernels are compiled for.
    pub fn arch(&self) -> Arch {
        self.gpu.arch
    }

    /// Number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.gpu.multiprocessors
    }

    /// Shared memory that one block may use in bytes, static and dynamic together.
    pub fn shared_bytes_per_block_max(&self) -> u32 {
        self.gpu.shared_bytes_per_block_max
    }

    /// Second-level cache in bytes.
    pub fn l2_bytes(&self) -> u64 {
        self.gpu.l2_bytes
    }

    /// Loads a program without blocking: another thread compiles it, or takes it from the disk cache. Returns `None`
    /// once the program is loaded. Otherwise the job returns [`Step::wait_for`](crate::Step::wait_for) of the signal,
    /// and calls this again.
    ///
    /// # Errors
    /// [`KernelError`](crate::KernelError): the program does not compile, with the compiler's log, or the driver does
    /// not load it. A fault of the device.
    pub fn load(&mut self, program: &Program) -> Result<Option<Signal>, JobError> {
        self.modules.advance(&self.context, &self.gpu, program)
    }

    /// Returns a kernel, ready to launch. If its program is not loaded, this blocks the device's thread for the
    /// compilation, tens of milliseconds or more: call [`Cuda::load`] first.
    ///
    /// # Errors
    /// As [`Cuda::load`]; also if the program has no such entry.
    pub fn kernel(&mut self, program: &Program, entry: &str) -> Result<Arc<Kernel>, JobError> {
        if let Some(kernel) = self.modules.find(program, entry) {
            return Ok(kernel);
        }
        let entries = &program.spec().entries;
        if !entries.iter().any(|known| known == entry) {
            return Err(no_entry(program, entry).into());
        }
        self.modules.load(&self.context, &self.gpu, program)?;
        let found = self.modules.find(program, entry);
        found.ok_or_else(|| no_entry(program, entry).into())
    }

    /// Queues a kernel on a stream and returns before it runs. Does nothing if the shape has no blocks.
    ///
    /// # Errors
    /// [`KernelError::Shape`](crate::KernelError::Shape) if the shape exceeds a limit of the kernel or the device. A
    /// fault of the device, also one of earlier work.
    ///
    /// # Safety
    /// - The kernel takes one parameter: the struct that `A`'s header defines, by value.
    /// - With these arguments and this shape it reads and writes only device memory that stays allocated, and pinned
    ///   memory that stays alive and that no other code touches, until the stream has done it.
    /// - It does not race with other work of the device over that memory.
    ///
    /// # Panics
    /// If the kernel was loaded on another device.
    pub unsafe fn launch<A: KernelArguments>(
        &self,
        kernel: &Kernel,
        shape: &LaunchShape,
        arguments: &A,
        stream: &Stream,
    ) -> Result<(), JobError> {
        assert!(kernel.is_of(&self.context), "a kernel of another device");
        self.own_stream(stream);
        let blocks = kernel.checked_blocks(shape)?;
        if blocks == 0 {
            return Ok(());
        }
        if self.shared.faults.take_launch_failure() {
            return Err(DeviceFault::Injected.into());
        }
        // SAFETY: the caller promises what the kernel takes and touches.
        let launched = unsafe { self.queue(kernel, blocks, shape, arguments, stream) };
        launched.map_err(|error| kernel.launch_error(shape, error))
    }

    /// # Safety
    /// As for [`Cuda::launch`].
    unsafe fn queue<A: KernelArguments>(
        &self,
        kernel: &Kernel,
        blocks: u32,
        shape: &LaunchShape,
        arguments: &A,
        stream: &Stream,
    ) -> Result<(), DriverError> {
        let mut parameters = [ptr::from_ref(arguments).cast_mut().cast::<c_void>()];
        let mut attributes = shape.attributes();
        let config = CUlaunchConfig {
            gridDimX: blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: shape.threads,
            blockDimY: 1,
            blockDimZ: 1,
            sharedMemBytes: shape.shared_bytes,
            hStream: stream.raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        // SAFETY: kernel and stream are live and of this context, which is current here. The driver copies the
        // attributes and the one parameter, which is as large as the kernel's, before the call returns.
        let code = unsafe {
            sys::cuLaunchKernelEx(
                &config,
                kernel.raw(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        check("cuLaunchKernelEx", code)
    }

    /// Queues a copy of `from` to an address of the device. From [`Pinned`] memory it returns at once and runs beside
    /// other work; from other memory it is slower and may return late.
    ///
    /// # Safety
    /// - `to` and as many bytes as `from` has are device memory that stays allocated, and `from` stays alive and
    ///   unchanged, until the stream has done the copy.
    /// - The copy does not race with other work of the device.
    pub(super) unsafe fn copy_to_device_async(
        &self,
        from: &[u8],
        to: u64,
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        if from.is_empty() {
            return Ok(());
        }
        let stream = self.own_stream(stream).raw();
        // SAFETY: the stream is live and its context current; the caller promises the memory.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream) };
        Ok(check("cuMemcpyHtoDAsync", code)?)
    }

    /// Copies bytes to the device's memory, from byte `offset` of it on, after the earlier work of the stream. Blocks
    /// until the copy is done. From [`Pinned`] memory it runs at full speed.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the memory has no room for them there, or is another device's.
    pub fn write(
        &self,
        from: &[u8],
        to: &DeviceMemory,
        offset: usize,
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let to = self.own(to).address_of(offset, from.len());
        // SAFETY: the memory has room, as was seen; the caller's borrows last until the stream has been waited for.
        unsafe { self.copy_to_device_async(from, to, stream) }?;
        self.synchronize(stream)
    }

    /// Fills `to` with bytes of the device's memory, from byte `offset` of it on, after the earlier work of the stream.
    /// Blocks until the copy is done. To [`Pinned`] memory it runs at full speed.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the memory ends before, or is another device's.
    pub fn read(
        &self,
        from: &DeviceMemory,
        offset: usize,
        to: &mut [u8],
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let from = self.own(from).address_of(offset, to.len());
        if !to.is_empty() {
            let (out, raw) = (to.as_mut_ptr().cast(), self.own_stream(stream).raw());
            // SAFETY: the stream is live and its context current. The memory is as long, as was seen; the caller's
            // borrows last until the stream has been waited for.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2(out, from, to.len(), raw) };
            check("cuMemcpyDtoHAsync", code)?;
        }
        self.synchronize(stream)
    }

    /// Blocks until a stream has done all its work.
    ///
    /// # Errors
    /// The fault of that work, or of other work on the device.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), DeviceFault> {
        Ok(self.own_stream(stream).synchronize()?)
    }

    /// Makes a stream. Takes some microseconds: an operator keeps its streams.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn stream(&self, priority: Priority) -> Result<Stream, DeviceFault> {
        Ok(Stream::create(Arc::clone(&self.context), priority)?)
    }

    /// The stream on which [`TransferJob`](super::TransferJob)s copy to the device.
    pub fn uploads(&self) -> &Stream {
        &self.uploads
    }

    /// The stream on which [`TransferJob`](super::TransferJob)s copy from the device.
    pub fn downloads(&self) -> &Stream {
        &self.downloads
    }

    /// Makes the later work of `stream` wait for an event, on the device; returns at once. The event may be of another
    /// stream, and of another device.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn wait(&self, stream: &Stream, event: &Event) -> Result<(), DeviceFault> {
        Ok(self.own_stream(stream).wait(event)?)
    }

    /// A new event, not recorded yet.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn event(&self) -> Result<Event, DeviceFault> {
        Ok(Event::create(Arc::clone(&self.context), Clock::Timed)?)
    }

    /// Returns a new event, recorded after the present work of a stream; it records no time. A job waits for it by
    /// [`Step::wait_for`](crate::Step::wait_for), a stream by [`Cuda::wait`].
    ///
    /// # Errors
    /// A fault of the device.
    pub fn mark(&self, stream: &Stream) -> Result<Arc<Event>, DeviceFault> {
        let event = Event::create(Arc::clone(&self.context), Clock::Untimed)?;
        self.record(&event, stream)?;
        Ok(Arc::new(event))
    }

    /// Records an event after the present work of a stream; returns at once.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<(), DeviceFault> {
        Ok(event.record(self.own_stream(stream))?)
    }

    /// Takes memory of the device, as [`Device::allocate`](crate::Device::allocate).
    ///
    /// # Errors
    /// [`OutOfMemory`] when no free part is large enough.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        self.arena.allocate(COMMON, bytes)
    }

    /// Takes memory of the device for `len` values of a type.
    ///
    /// # Errors
    /// [`OutOfMemory`] if no free part is large enough.
    pub fn buffer<T: DeviceType>(&self, len: usize) -> Result<DeviceBuffer<T>, OutOfMemory> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        Ok(DeviceBuffer::new(self.allocate(bytes)?, len))
    }

    /// Takes a pinned buffer of zeros outside the loaders' pool, for an operator to keep. Blocks for milliseconds: take
    /// it once, not per query.
    ///
    /// # Errors
    /// [`JobFailure::CannotPin`] if the host has no memory to pin. A fault of the device.
    pub fn host_buffer(&self, bytes: usize) -> Result<Pinned, JobError> {
        let pinned = Pinned::create(Arc::clone(&self.context), bytes);
        pinned.map_err(|error| match &*error.code {
            OUT_OF_MEMORY => JobFailure::CannotPin {
                bytes,
                code: error.code,
            }
            .into(),
            _ => error.into(),
        })
    }

    /// Pairs memory with a pinned buffer of zeros of its size; copies between the two run on one stream.
    ///
    /// # Errors
    /// As [`Cuda::host_buffer`].
    ///
    /// # Panics
    /// If the memory is another device's.
    pub fn mirrored(&self, memory: DeviceMemory, stream: &Stream) -> Result<Mirrored, JobError> {
        let host = self.host_buffer(self.own(&memory).bytes() as usize)?;
        Ok(Mirrored::new(memory, host, stream.clone(), self.event()?))
    }

    /// Returns the memory after a check that it is of this device.
    pub(super) fn own<'a>(&self, memory: &'a DeviceMemory) -> &'a DeviceMemory {
        assert!(memory.is_of(&self.arena), "memory of another device");
        memory
    }

    /// Returns the stream after a check that it is of this device.
    pub(super) fn own_stream<'a>(&self, stream: &'a Stream) -> &'a Stream {
        assert!(stream.is_of(&self.context), "a stream of another device");
        stream
    }

    /// Returns whether memory is of this device.
    pub(super) fn owns(&self, memory: &DeviceMemory) -> bool {
        memory.is_of(&self.arena)
    }
}
