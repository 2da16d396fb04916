//! Searches that wait for a device, and the job that answers all of them in as few passes as it can.

use std::fmt;
use std::sync::Arc;

use forebay_device::{Device, DeviceContext, DeviceFault, Step, SubmitError};
use parking_lot::Mutex;

use super::batch::Kernel;
use super::program_spec;
use super::scanner::{ScanError, Scanner};
use super::table::ScanTable;
use crate::program::Program;

/// What is wanted of the rows that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanWant {
    /// How many.
    Count,
    /// The numbers of their documents.
    Documents,
    /// Their numbers in the table: [`ScanTable::locate`].
    Rows,
}

/// A search of a table on its device.
#[derive(Debug, Clone)]
pub struct ScanOrder {
    /// What is searched.
    pub table: Arc<ScanTable>,
    /// What is searched for; [`Program::has_device_form`] says whether a device can.
    pub program: Arc<Program>,
    /// What is wanted.
    pub want: ScanWant,
    /// Matches after which the search may end.
    pub limit: u64,
}

/// What a device found. Where the program [confirms](Program::confirms_on_host), these are rows that may match.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ScanFound {
    /// Rows that match, or at least the limit.
    pub matches: u64,
    /// Document or row numbers in no order, if they were wanted.
    pub list: Vec<u32>,
    /// Milliseconds of the device's time that the pass took, by its own clock.
    pub device_ms: f64,
    /// Searches that shared the pass, this one included.
    pub shared_by: usize,
}

/// Takes the answer of a search; it is dropped, uncalled, if the device is lost or has no room for the search.
type Answer = Box<dyn FnOnce(ScanFound) + Send>;

/// The searches that wait for one device. Those of one table that wait at the same time are answered together.
#[derive(Default)]
pub struct ScanQueue {
    waiting: Mutex<Vec<(ScanOrder, Answer)>>,
}

/// Takes the memory that searches need on a GPU, and compiles their kernels; before anything else is put there.
///
/// # Errors
/// As [`Device::submit`].
pub fn prepare(device: &Device) -> Result<(), SubmitError> {
    device.submit(Box::new(|context: &mut DeviceContext| {
        let parts = context.parts();
        if let Some(cuda) = parts.cuda {
            cuda.kernel(program_spec(), Kernel::ALL[0].entry(false))?;
            let scanner: &mut Scanner = parts.state.get_or_default();
            match scanner.prepare(cuda) {
                Ok(()) => {}
                Err(ScanError::OutOfMemory(error)) => {
                    tracing::warn!(%error, "no search will use the device")
                }
                Err(ScanError::Fault(fault)) => return Err(fault),
            }
        }
        Ok(Step::Done)
    }))
}

impl fmt::Debug for ScanQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let waiting = self.waiting.lock().len();
        f.debug_struct("ScanQueue")
            .field("waiting", &waiting)
            .finish()
    }
}

impl ScanQueue {
    /// Queues a search on the device that the queue is for and that holds the table; returns at once.
    ///
    /// # Errors
    /// As [`Device::submit`]; the answer is dropped then.
    pub fn submit(
        self: &Arc<Self>,
        device: &Device,
        order: ScanOrder,
        answer: impl FnOnce(ScanFound) + Send + 'static,
    ) -> Result<(), SubmitError> {
        self.waiting.lock().push((order, Box::new(answer)));
        let queue = Arc::clone(self);
        let submitted = device.submit(Box::new(move |context: &mut DeviceContext| {
            queue.run(context)
        }));
        if submitted.is_err() && device.is_lost() {
            self.waiting.lock().clear();
        }
        submitted
    }

    /// Answers the searches of one table that wait; the jobs of those it answered find nothing left to do.
    fn run(&self, context: &mut DeviceContext) -> Result<Step, DeviceFault> {
        let (orders, answers): (Vec<_>, Vec<_>) = self.take().into_iter().unzip();
        let parts = context.parts();
        let (Some(cuda), Some(table)) = (parts.cuda, orders.first().map(|order| &order.table))
        else {
            return Ok(Step::Done);
        };
        let scanner: &mut Scanner = parts.state.get_or_default();
        match scanner.scan(cuda, table, &orders) {
            Ok(found) => {
                let answered = answers.into_iter().zip(found);
                answered.for_each(|(answer, found)| answer(found));
            }
            Err(ScanError::OutOfMemory(error)) => tracing::warn!(%error, "searches go to the host"),
            Err(ScanError::Fault(fault)) => return Err(fault),
        }
        Ok(Step::Done)
    }

    /// Takes the oldest search, and those of the same table.
    fn take(&self) -> Vec<(ScanOrder, Answer)> {
        let mut waiting = self.waiting.lock();
        let Some(table) = waiting.first().map(|(order, _)| Arc::clone(&order.table)) else {
            return Vec::new();
        };
        let (taken, left) = waiting
            .drain(..)
            .partition(|(order, _)| Arc::ptr_eq(&order.table, &table));
        *waiting = left;
        taken
    }
}
