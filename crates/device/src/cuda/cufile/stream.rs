//! Reads and writes that run on a stream, in order with its copies and kernels.

use std::ffi::c_long;
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::handle::file_offset;
use super::sys::{Asynchronous, STREAM_FIXED_ARGUMENTS};
use super::{CuFile, CuFileCause, CuFileError, CuFileHandle, CuFileMemory};
use crate::cuda::{Cuda, Event, Stream};

/// A stream that is registered with cuFile, for operations with less overhead. The stream may be used for other work
/// too.
#[derive(Debug)]
pub struct CuFileStream {
    stream: Stream,
    cufile: Arc<CuFile>,
}

/// The registrations of this process, by the driver's handle of the stream: the library refuses a second one.
static REGISTERED: Mutex<Vec<(usize, Weak<CuFileStream>)>> = Mutex::new(Vec::new());
/// Notified when a registration has ended.
static ENDED: Condvar = Condvar::new();

impl CuFileStream {
    /// Registers a stream. Returns the present registration if there is one.
    ///
    /// # Errors
    /// If the library refuses the stream.
    ///
    /// # Panics
    /// If the stream belongs to another device.
    pub fn register(
        cuda: &Cuda,
        cufile: &Arc<CuFile>,
        stream: Stream,
    ) -> Result<Arc<CuFileStream>, CuFileError> {
        let raw = cuda.own_stream(&stream).raw();
        let mut registered = REGISTERED.lock();
        while let Some((_, known)) = registered.iter().find(|(of, _)| *of == raw.addr()) {
            if let Some(known) = known.upgrade() {
                return Ok(known);
            }
            // Another thread is dropping it.
            ENDED.wait(&mut registered);
        }
        // SAFETY: driver and stream are live, and the stream's context is current.
        let code = unsafe { (cufile.functions().stream_register)(raw, STREAM_FIXED_ARGUMENTS) };
        code.check()
            .map_err(CuFileError::call("cuFileStreamRegister"))?;
        let new = Arc::new(CuFileStream {
            stream,
            cufile: Arc::clone(cufile),
        });
        registered.push((raw.addr(), Arc::downgrade(&new)));
        Ok(new)
    }

    /// Returns whether this is a registration of a stream.
    pub fn is_of(&self, stream: &Stream) -> bool {
        self.stream.raw() == stream.raw()
    }
}

impl Drop for CuFileStream {
    fn drop(&mut self) {
        let mut registered = REGISTERED.lock();
        // SAFETY: the stream is live, and was registered once; transfers in flight hold this value.
        let _ = unsafe { (self.cufile.functions().stream_deregister)(self.stream.raw()) };
        registered.retain(|(of, _)| *of != self.stream.raw().addr());
        ENDED.notify_all();
    }
}

/// The arguments that the library reads, and the result that it writes, while an operation runs.
#[derive(Debug)]
struct Arguments {
    bytes: usize,
    file_offset: c_long,
    memory_offset: c_long,
    result: isize,
}

/// A read or write in flight on a stream. It owns file and memory until the operation is done; dropping it waits.
#[derive(Debug)]
pub struct CuFileTransfer {
    operation: &'static str,
    offset: u64,
    /// Written by the library, so accessed only after the event.
    arguments: *mut Arguments,
    event: Arc<Event>,
    memory: CuFileMemory,
    handle: Arc<CuFileHandle>,
    _stream: Arc<CuFileStream>,
}

// SAFETY: the arguments are accessed only after the operation is done, by the owner.
unsafe impl Send for CuFileTransfer {}

impl CuFileTransfer {
    /// Queues a read of the file into GPU memory, after the earlier work of the stream.
    ///
    /// # Errors
    /// If the library refuses the operation; a fault of the device.
    ///
    /// # Panics
    /// If stream or memory belong to another device.
    pub fn read(
        cuda: &Cuda,
        handle: &Arc<CuFileHandle>,
        offset: u64,
        to: CuFileMemory,
        stream: &Arc<CuFileStream>,
    ) -> Result<CuFileTransfer, CuFileError> {
        let function = handle.cufile().functions().read_async;
        begin(
            cuda,
            ("cuFileReadAsync", function),
            handle,
            offset,
            to,
            stream,
        )
    }

    /// Queues a write of GPU memory to the file, after the earlier work of the stream.
    ///
    /// # Errors
    /// If the library refuses the operation; a fault of the device.
    ///
    /// # Panics
    /// If stream or memory belong to another device.
    pub fn write(
        cuda: &Cuda,
        handle: &Arc<CuFileHandle>,
        offset: u64,
        from: CuFileMemory,
        stream: &Arc<CuFileStream>,
    ) -> Result<CuFileTransfer, CuFileError> {
        let function = handle.cufile().functions().write_async;
        begin(
            cuda,
            ("cuFileWriteAsync", function),
            handle,
            offset,
            from,
            stream,
        )
    }

    /// Returns the event that completes when the operation is done.
    pub fn event(&self) -> &Arc<Event> {
        &self.event
    }

    /// Blocks until the operation is done, and returns the number of bytes moved.
    ///
    /// # Errors
    /// [`CuFileError::Operation`]; a fault of the device.
    pub fn finish(self) -> Result<usize, CuFileError> {
        self.event.wait()?;
        // SAFETY: the operation is done, so the library no longer accesses the arguments, which are freed on drop.
        let result = unsafe { (*self.arguments).result };
        let errno = std::io::Error::from_raw_os_error(libc::EIO);
        CuFileCause::of(result, errno).map_err(|cause| {
            self.handle
                .failed(self.operation, self.offset, self.memory.len(), cause)
        })
    }
}

fn begin(
    cuda: &Cuda,
    (operation, function): (&'static str, Asynchronous),
    handle: &Arc<CuFileHandle>,
    offset: u64,
    memory: CuFileMemory,
    stream: &Arc<CuFileStream>,
) -> Result<CuFileTransfer, CuFileError> {
    cuda.own(memory.view().memory());
    let raw = cuda.own_stream(&stream.stream).raw();
    let refused = |cause| handle.failed(operation, offset, memory.len(), cause);
    let place = memory.place();
    let event = Arc::new(cuda.event()?);
    let arguments = Box::new(Arguments {
        bytes: place.bytes,
        file_offset: file_offset(offset).map_err(refused)?,
        memory_offset: place.offset,
        result: 0,
    });
    // The transfer exists before the call, so that it frees the arguments if the call fails.
    let transfer = CuFileTransfer {
        operation,
        offset,
        arguments: Box::into_raw(arguments),
        event,
        memory: memory.clone(),
        handle: Arc::clone(handle),
        _stream: Arc::clone(stream),
    };
    let arguments = transfer.arguments;
    // SAFETY: handle, memory and stream are live, and the transfer keeps them and the arguments until the event.
    let code = unsafe {
        function(
            handle.raw(),
            place.base,
            &raw mut (*arguments).bytes,
            &raw mut (*arguments).file_offset,
            &raw mut (*arguments).memory_offset,
            &raw mut (*arguments).result,
            raw,
        )
    };
    let queued = code.check();
    let recorded = cuda.record(&transfer.event, &stream.stream);
    if recorded.is_err() {
        // Without the event, only the stream says when the operation is done.
        let _ = cuda.synchronize(&stream.stream);
    }
    queued.map_err(|code| refused(CuFileCause::Code(code)))?;
    recorded?;
    Ok(transfer)
}

impl Drop for CuFileTransfer {
    fn drop(&mut self) {
        // On a failed device the library may still use the arguments, so they are not freed.
        if self.event.wait().is_ok() {
            // SAFETY: the pointer came from `Box::into_raw`, and the operation is done.
            drop(unsafe { Box::from_raw(self.arguments) });
        }
    }
}
