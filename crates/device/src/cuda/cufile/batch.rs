//! Batches: many reads and writes of one call.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{mem, ptr};

use super::handle::file_offset;
use super::sys::{
    BATCH_COMPLETE, BATCH_MODE, BATCH_PENDING, BATCH_READ, BATCH_WAITING, BATCH_WRITE, BatchEvent,
    BatchOperation,
};
use super::{CuFile, CuFileCause, CuFileCode, CuFileError, CuFileHandle, CuFileMemory};

/// Maximum time to wait for cancelled operations.
const CANCEL_TIME: Duration = Duration::from_secs(5);

/// Direction of an operation of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CuFileDirection {
    /// From the file to GPU memory.
    Read,
    /// From GPU memory to the file.
    Write,
}

/// A read or write of a batch.
#[derive(Debug, Clone)]
pub struct CuFileOperation {
    /// Direction.
    pub direction: CuFileDirection,
    /// File.
    pub handle: Arc<CuFileHandle>,
    /// Offset in the file.
    pub offset: u64,
    /// Memory to fill or to write.
    pub memory: CuFileMemory,
}

/// Rounds of operations that are submitted together.
#[derive(Debug)]
pub struct CuFileBatch {
    raw: *mut c_void,
    capacity: usize,
    /// Operations in flight, as the library reads them, in the order of `operations`.
    parameters: Vec<BatchOperation>,
    /// Operations in flight.
    operations: Vec<CuFileOperation>,
    /// Whether the library may still use the files and the memory of a failed round.
    is_abandoned: bool,
    cufile: Arc<CuFile>,
}

// SAFETY: the library allows calls on a batch from any thread, one at a time.
unsafe impl Send for CuFileBatch {}

impl CuFileBatch {
    /// Creates a batch for rounds of at most `capacity` operations.
    ///
    /// # Errors
    /// If the library refuses the capacity; its maximum is in the driver's properties.
    pub fn create(cufile: &Arc<CuFile>, capacity: usize) -> Result<CuFileBatch, CuFileError> {
        let mut raw = ptr::null_mut();
        let count = c_uint::try_from(capacity).unwrap_or(c_uint::MAX);
        // SAFETY: the driver is open, and `raw` outlives the call.
        let code = unsafe { (cufile.functions().batch_create)(&mut raw, count) };
        code.check()
            .map_err(CuFileError::call("cuFileBatchIOSetUp"))?;
        Ok(CuFileBatch {
            raw,
            capacity,
            parameters: Vec::new(),
            operations: Vec::new(),
            is_abandoned: false,
            cufile: Arc::clone(cufile),
        })
    }

    /// Runs operations and blocks until all are done. Returns the number of bytes of each, in order.
    ///
    /// # Errors
    /// The error of the first operation that failed, after all are done; a fault of the device.
    ///
    /// # Panics
    /// If there are more operations than the batch's capacity, or an earlier round was
    /// [abandoned](CuFileBatch::is_abandoned).
    pub fn run(&mut self, operations: Vec<CuFileOperation>) -> Result<Vec<usize>, CuFileError> {
        assert!(
            operations.len() <= self.capacity,
            "{} operations in a batch of {}",
            operations.len(),
            self.capacity
        );
        assert!(!self.is_abandoned, "a round on an abandoned batch");
        let Some(first) = operations.first() else {
            return Ok(Vec::new());
        };
        let memory = first.memory.clone();
        let _entered = memory.view().memory().context().enter()?;
        let parameters = operations.iter().enumerate().map(parameters_of);
        self.parameters = parameters.collect::<Result<_, CuFileError>>()?;
        self.operations = operations;
        let mut results: Vec<Option<Result<usize, CuFileError>>> = Vec::new();
        results.resize_with(self.operations.len(), || None);
        let ran = self
            .submit()
            .and_then(|()| self.collect(&mut results, None));
        if let Err(error) = ran {
            self.cancel(&mut results);
            return Err(error);
        }
        self.operations.clear();
        results.into_iter().flatten().collect()
    }

    /// Returns whether a round failed in such a way that the library may still write to its memory. The caller must
    /// never use that memory again; the batch keeps it for ever.
    pub fn is_abandoned(&self) -> bool {
        self.is_abandoned
    }

    fn submit(&mut self) -> Result<(), CuFileError> {
        let count = self.parameters.len() as c_uint;
        // SAFETY: the batch is live; parameters, files and memory are kept until all operations are done.
        let code = unsafe {
            (self.cufile.functions().batch_submit)(self.raw, count, self.parameters.as_mut_ptr(), 0)
        };
        code.check()
            .map_err(CuFileError::call("cuFileBatchIOSubmit"))
    }

    /// Waits for all operations, and puts their results in order. With an end, fails if it passes before all are done.
    fn collect(
        &self,
        results: &mut [Option<Result<usize, CuFileError>>],
        end: Option<Instant>,
    ) -> Result<(), CuFileError> {
        let mut left = results.iter().filter(|result| result.is_none()).count();
        while left > 0 {
            let limit = end.map(|end| end.saturating_duration_since(Instant::now()));
            if limit.is_some_and(|limit| limit.is_zero()) {
                return Err(CuFileError::call("cuFileBatchIOGetStatus")(
                    CuFileCode::IO_ERROR,
                ));
            }
            for event in self.wait(left, limit)? {
                let index = event.cookie.addr().wrapping_sub(1);
                let is_known = results.get(index).is_some_and(Option::is_none);
                if is_known && !matches!(event.state, BATCH_WAITING | BATCH_PENDING) {
                    results[index] = Some(self.result_of(index, &event));
                    left -= 1;
                }
            }
        }
        Ok(())
    }

    /// Waits for at least one event, at most for the limit if there is one. Returns at most `max` events.
    fn wait(&self, max: usize, limit: Option<Duration>) -> Result<Vec<BatchEvent>, CuFileError> {
        let none = BatchEvent {
            cookie: ptr::null_mut(),
            state: 0,
            result: 0,
        };
        let mut events = vec![none; max];
        let mut count = max as c_uint;
        let mut limit = limit.map(|limit| libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: limit.subsec_nanos().into(),
        });
        let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        // SAFETY: the batch is live, there is room for `count` events, and the limit outlives the call. Without a limit
        // the call waits.
        let code = unsafe {
            (self.cufile.functions().batch_status)(
                self.raw,
                1,
                &mut count,
                events.as_mut_ptr(),
                limit,
            )
        };
        code.check()
            .map_err(CuFileError::call("cuFileBatchIOGetStatus"))?;
        events.truncate(count as usize);
        Ok(events)
    }

    fn result_of(&self, index: usize, event: &BatchEvent) -> Result<usize, CuFileError> {
        let operation = &self.operations[index];
        let failed = |cause| {
            let name = match operation.direction {
                CuFileDirection::Read => "a batched read",
                CuFileDirection::Write => "a batched write",
            };
            let bytes = operation.memory.len();
            Err(operation
                .handle
                .failed(name, operation.offset, bytes, cause))
        };
        let errno = std::io::Error::from_raw_os_error(libc::EIO);
        match CuFileCause::of(event.result, errno) {
            Ok(bytes) if event.state == BATCH_COMPLETE => Ok(bytes),
            // The operation ended without moving bytes, and the library gives no reason.
            Ok(_) => failed(CuFileCause::Code(CuFileCode::IO_ERROR)),
            Err(cause) => failed(cause),
        }
    }

    /// Cancels the operations of a round that the library failed, and waits until they have ended. If they do not end,
    /// the library may still use files and memory, so they are never released.
    fn cancel(&mut self, results: &mut [Option<Result<usize, CuFileError>>]) {
        // SAFETY: the batch is live.
        let _ = unsafe { (self.cufile.functions().batch_cancel)(self.raw) };
        match self.collect(results, Some(Instant::now() + CANCEL_TIME)) {
            Ok(()) => self.operations.clear(),
            Err(_) => {
                self.is_abandoned = true;
                mem::forget(mem::take(&mut self.operations));
                mem::forget(mem::take(&mut self.parameters));
            }
        }
    }
}

/// Returns an operation as the library takes it. The cookie is the index plus one.
fn parameters_of(
    (index, operation): (usize, &CuFileOperation),
) -> Result<BatchOperation, CuFileError> {
    let place = operation.memory.place();
    let offset = file_offset(operation.offset);
    let offset = offset.map_err(|cause| {
        let bytes = operation.memory.len();
        operation
            .handle
            .failed("cuFileBatchIOSubmit", operation.offset, bytes, cause)
    })?;
    Ok(BatchOperation {
        mode: BATCH_MODE,
        base: place.base,
        file_offset: offset,
        memory_offset: place.offset,
        bytes: place.bytes,
        file: operation.handle.raw(),
        operation: match operation.direction {
            CuFileDirection::Read => BATCH_READ,
            CuFileDirection::Write => BATCH_WRITE,
        },
        cookie: ptr::without_provenance_mut(index + 1),
    })
}

impl Drop for CuFileBatch {
    fn drop(&mut self) {
        if self.is_abandoned {
            return;
        }
        // SAFETY: this was the only user of the batch, and no operation is in flight.
        unsafe { (self.cufile.functions().batch_destroy)(self.raw) };
    }
}
