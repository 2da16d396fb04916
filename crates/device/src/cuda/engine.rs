//! The GPU interface of jobs on a device's thread.

use std::any::Any;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUlaunchConfig};

use super::event::Clock;
use super::library::{DriverError, OUT_OF_MEMORY, check};
use super::modules::{Modules, no_entry};
use super::{
    Arch, Arena, Context, DeviceBuffer, DeviceMemory, DeviceType, DeviceView, Event, Gpu,
    HybridMemory, Kernel, KernelArguments, KernelCache, LaunchShape, Mirrored, Pinned, PinnedPool,
    Priority, Program, Stream,
};
use crate::device::Shared;
use crate::memory::COMMON;
use crate::{DeviceFault, JobError, JobFailure, OutOfMemory, Signal};

/// A value that in-flight work uses.
type Retired = Box<dyn Any + Send>;

/// The GPU of a device, for the jobs on the device's thread.
///
/// A job should return the errors of these methods. A failure ends only the job; a [`DeviceFault`] makes the device
/// lost. The driver reports a fault of a kernel or a copy only at a later call.
#[derive(Debug)]
pub struct Cuda {
    uploads: Stream,
    downloads: Stream,
    modules: Modules,
    /// Values to drop once their events have completed.
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

    /// Closes the pinned pool: threads that wait for pinned memory wake up without a buffer.
    pub(crate) fn close(&self) {
        self.pool.close();
    }

    /// Waits for all work of the device.
    pub(crate) fn settle(&self) -> Result<(), DeviceFault> {
        Ok(self.context.synchronize()?)
    }

    /// Keeps a value that in-flight work uses, such as memory, until an event has completed; returns at once.
    pub fn retire(&mut self, value: impl Send + 'static, event: Arc<Event>) {
        self.retired.push((event, Box::new(value)));
    }

    pub(crate) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Drops the values whose events have completed.
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

    /// Returns the properties of the GPU.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Returns the architecture that kernels are compiled for.
    pub fn arch(&self) -> Arch {
        self.gpu.arch
    }

    /// Returns the number of streaming multiprocessors.
    pub fn multiprocessors(&self) -> u32 {
        self.gpu.multiprocessors
    }

    /// Returns the maximum bytes of shared memory of a block, static and dynamic together.
    pub fn shared_bytes_per_block_max(&self) -> u32 {
        self.gpu.shared_bytes_per_block_max
    }

    /// Returns the number of bytes of L2 cache.
    pub fn l2_bytes(&self) -> u64 {
        self.gpu.l2_bytes
    }

    /// Loads a program without blocking; another thread compiles it or reads it from the disk cache. Returns `None`
    /// once the program is loaded. Until then, returns a signal: the job returns
    /// [`Step::wait_for`](crate::Step::wait_for) that signal, then calls this again.
    ///
    /// # Errors
    /// [`KernelError`](crate::KernelError) if the program does not compile (with the compiler's log) or the driver
    /// cannot load it; a fault of the device.
    pub fn load(&mut self, program: &Program) -> Result<Option<Signal>, JobError> {
        self.modules.advance(&self.context, &self.gpu, program)
    }

    /// Returns a kernel that is ready to launch. If its program is not loaded, blocks the device's thread for the
    /// compilation, tens of milliseconds or more; call [`Cuda::load`] first to avoid that.
    ///
    /// # Errors
    /// As for [`Cuda::load`]; also if the program has no such entry.
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
    /// fault of the device, possibly from earlier work.
    ///
    /// # Safety
    /// - The kernel takes one parameter: the struct that `A`'s header defines, by value.
    /// - With these arguments and this shape, the kernel accesses only device memory and pinned memory. Until the
    ///   kernel has finished, the device memory stays allocated, and the pinned memory stays alive and is accessed by
    ///   no other code.
    /// - The kernel does not race with other device work on that memory.
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
        assert!(kernel.is_of(&self.context), "kernel of another device");
        self.own_stream(stream);
        let blocks = kernel.checked_blocks(shape)?;
        if blocks == 0 {
            return Ok(());
        }
        if self.shared.faults.take_launch_failure() {
            return Err(DeviceFault::Injected.into());
        }
        // SAFETY: the caller promises that the arguments match the kernel's parameters, and that the kernel accesses
        // only valid memory.
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
        // SAFETY: kernel and stream are live and belong to the context that is current here. The driver copies the
        // attributes and the single parameter, whose size is that of the kernel's parameter, before the call returns.
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

    /// Queues a copy of `from` to a device address. If `from` is [`Pinned`] memory, the call returns at once, and the
    /// copy runs concurrently with other work. Otherwise the call may block, and the copy is slower.
    ///
    /// # Safety
    /// - `to` is the address of at least `from.len()` bytes of device memory. Until the copy is done, this memory stays
    ///   allocated, and `from` stays alive and unchanged.
    /// - The copy does not race with other device work.
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
        // SAFETY: the stream is live and its context is current; the caller promises that both memories stay valid.
        let code =
            unsafe { sys::cuMemcpyHtoDAsync_v2(to, from.as_ptr().cast(), from.len(), stream) };
        Ok(check("cuMemcpyHtoDAsync", code)?)
    }

    /// Copies bytes to device memory at byte `offset`, after the earlier work of the stream. Blocks until the copy is
    /// done. From [`Pinned`] memory it runs at full speed.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the bytes do not fit at that offset, or the memory belongs to another device.
    pub fn write(
        &self,
        from: &[u8],
        to: &DeviceMemory,
        offset: usize,
        stream: &Stream,
    ) -> Result<(), DeviceFault> {
        let to = self.own(to).address_of(offset, from.len());
        // SAFETY: the memory has room, as checked above; the caller's borrows outlive the wait for the stream.
        unsafe { self.copy_to_device_async(from, to, stream) }?;
        self.synchronize(stream)
    }

    /// Fills `to` with bytes of device memory at byte `offset`, after the earlier work of the stream. Blocks until the
    /// copy is done. To [`Pinned`] memory it runs at full speed.
    ///
    /// # Errors
    /// A fault of the device.
    ///
    /// # Panics
    /// If the memory ends before the copy does, or belongs to another device.
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
            // SAFETY: the stream is live and its context is current. The memory is long enough, as checked above; the
            // caller's borrows outlive the wait for the stream.
            let code = unsafe { sys::cuMemcpyDtoHAsync_v2(out, from, to.len(), raw) };
            check("cuMemcpyDtoHAsync", code)?;
        }
        self.synchronize(stream)
    }

    /// Blocks until all work queued on a stream is done.
    ///
    /// # Errors
    /// The fault of that work, or of other work on the device.
    pub fn synchronize(&self, stream: &Stream) -> Result<(), DeviceFault> {
        Ok(self.own_stream(stream).synchronize()?)
    }

    /// Creates a stream. Takes some microseconds, so an operator should keep its streams.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn stream(&self, priority: Priority) -> Result<Stream, DeviceFault> {
        Ok(Stream::create(Arc::clone(&self.context), priority)?)
    }

    /// Returns the stream on which [`TransferJob`](super::TransferJob)s copy to the device.
    pub fn uploads(&self) -> &Stream {
        &self.uploads
    }

    /// Returns the stream on which [`TransferJob`](super::TransferJob)s copy from the device.
    pub fn downloads(&self) -> &Stream {
        &self.downloads
    }

    /// Makes all work that is queued on `stream` after this call wait for an event. The device waits; this call returns
    /// at once. The event may belong to another stream or another device.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn wait(&self, stream: &Stream, event: &Event) -> Result<(), DeviceFault> {
        Ok(self.own_stream(stream).wait(event)?)
    }

    /// Creates an event that is not recorded yet.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn event(&self) -> Result<Event, DeviceFault> {
        Ok(Event::create(Arc::clone(&self.context), Clock::Timed)?)
    }

    /// Returns a new event, recorded after the work queued on a stream so far; the event is not timed. A job waits for
    /// it with [`Step::wait_for`](crate::Step::wait_for), a stream with [`Cuda::wait`].
    ///
    /// # Errors
    /// A fault of the device.
    pub fn mark(&self, stream: &Stream) -> Result<Arc<Event>, DeviceFault> {
        let event = Event::create(Arc::clone(&self.context), Clock::Untimed)?;
        self.record(&event, stream)?;
        Ok(Arc::new(event))
    }

    /// Records an event after the work queued on a stream so far; returns at once.
    ///
    /// # Errors
    /// A fault of the device.
    pub fn record(&self, event: &Event, stream: &Stream) -> Result<(), DeviceFault> {
        Ok(event.record(self.own_stream(stream))?)
    }

    /// Allocates device memory, as [`Device::allocate`](crate::Device::allocate) does.
    ///
    /// # Errors
    /// [`OutOfMemory`] if no free range is large enough.
    pub fn allocate(&self, bytes: u64) -> Result<DeviceMemory, OutOfMemory> {
        self.arena.allocate(COMMON, bytes)
    }

    /// Allocates device memory for `len` values of type `T`.
    ///
    /// # Errors
    /// [`OutOfMemory`] if no free range is large enough.
    pub fn buffer<T: DeviceType>(&self, len: usize) -> Result<DeviceBuffer<T>, OutOfMemory> {
        let bytes = (len as u64).saturating_mul(size_of::<T>() as u64);
        Ok(DeviceBuffer::new(self.allocate(bytes)?, len))
    }

    /// Allocates at least `bytes` of memory, at least `device_bytes` of it on the device, both in chunks of 2 MiB or
    /// more. Blocks: host memory is pinned at some GB/s.
    ///
    /// # Errors
    /// [`JobFailure::NoRoomOnCard`] if the card has too little memory beside the budget, [`JobFailure::CannotPin`] if
    /// the host cannot pin more; a fault of the device.
    pub fn hybrid_memory(&self, bytes: u64, device_bytes: u64) -> Result<HybridMemory, JobError> {
        if device_bytes < bytes {
            self.check_pin((bytes - device_bytes) as usize)?;
        }
        HybridMemory::create((&self.context, &self.arena), bytes, device_bytes)
    }

    /// Allocates a zeroed pinned buffer that does not come from the loaders' pool. Blocks for milliseconds, so an
    /// operator should allocate a buffer once and keep it, not allocate one per query.
    ///
    /// # Errors
    /// [`JobFailure::CannotPin`] if the host cannot pin more memory; a fault of the device.
    pub fn host_buffer(&self, bytes: usize) -> Result<Pinned, JobError> {
        self.check_pin(bytes)?;
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

    /// Returns an error if a test injected a pin failure.
    fn check_pin(&self, bytes: usize) -> Result<(), JobFailure> {
        if self.shared.faults.take_pin_failure() {
            let code = DeviceFault::Injected.to_string();
            return Err(JobFailure::CannotPin { bytes, code });
        }
        Ok(())
    }

    /// Pairs device memory with a zeroed pinned buffer of the same size; copies between the two run on `stream`.
    ///
    /// # Errors
    /// As for [`Cuda::host_buffer`].
    ///
    /// # Panics
    /// If the memory belongs to another device.
    pub fn mirrored(&self, memory: DeviceMemory, stream: &Stream) -> Result<Mirrored, JobError> {
        let host = self.host_buffer(self.own(&memory).bytes() as usize)?;
        Ok(Mirrored::new(memory, host, stream.clone(), self.event()?))
    }

    /// Asserts that the memory belongs to this device, and returns it.
    pub(super) fn own<'a>(&self, memory: &'a DeviceMemory) -> &'a DeviceMemory {
        assert!(memory.is_of(&self.arena), "memory of another device");
        memory
    }

    /// Asserts that the stream belongs to this device, and returns it.
    pub(super) fn own_stream<'a>(&self, stream: &'a Stream) -> &'a Stream {
        assert!(stream.is_of(&self.context), "stream of another device");
        stream
    }

    /// Asserts that a view is of memory of this device, as kernels need it.
    ///
    /// # Panics
    /// If it is of another device.
    pub fn assert_owns<T: DeviceType>(&self, view: &DeviceView<T>) {
        self.own(view.memory());
    }

    /// Asserts that kernels of this device may use a view: its memory is that of the device, or of another one that the
    /// device [reaches](crate::Device::reaches).
    ///
    /// # Panics
    /// If they may not.
    pub fn assert_reaches<T: DeviceType>(&self, view: &DeviceView<T>) {
        assert!(self.reaches(view.memory()), "memory of another device");
    }

    /// Returns whether kernels of this device may use the memory.
    pub(super) fn reaches(&self, memory: &DeviceMemory) -> bool {
        let is_of_peer = || memory.is_for_peers() && self.context.reaches(memory.context());
        self.owns(memory) || is_of_peer()
    }

    /// Returns whether the memory belongs to this device.
    pub(super) fn owns(&self, memory: &DeviceMemory) -> bool {
        memory.is_of(&self.arena)
    }
}
