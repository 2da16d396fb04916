//! Copies to a GPU as jobs of their own.

use std::sync::Arc;

use super::{Cuda, DeviceMemory, Event, Pinned, Stream};
use crate::{Class, DeviceContext, DeviceFault, Job, JobError, Step};

/// A job that copies pinned memory to a GPU. Several are on their way at the same time, and other jobs run between them.
///
/// It owns both ends until the copy is done. Dropped before, because the device is lost, it says nothing.
pub struct Upload {
    from: Pinned,
    /// Kept while the copy is on its way.
    to: Arc<DeviceMemory>,
    /// Where it goes.
    address: u64,
    /// What is passed when the copy is done.
    begun: Option<Arc<Event>>,
    done: Option<Box<dyn FnOnce() + Send>>,
}

impl Upload {
    /// A copy of all of `from` to `offset` bytes behind the start of `to`; `done` is called on the device's thread.
    ///
    /// # Panics
    /// If the memory has no room for it there.
    pub fn new(
        from: Pinned,
        to: Arc<DeviceMemory>,
        offset: usize,
        done: impl FnOnce() + Send + 'static,
    ) -> Upload {
        Upload {
            address: to.address_of(offset, from.len()),
            from,
            to,
            begun: None,
            done: Some(Box::new(done)),
        }
    }

    fn begin(&self, cuda: &Cuda) -> Result<Arc<Event>, DeviceFault> {
        cuda.own(&self.to);
        // SAFETY: the memory has room for the buffer at the offset, as `new` has seen. This job holds both, and leaves them
        // alone until the event has passed. It is dropped before only when the device is lost, and then nobody is given
        // either any more.
        unsafe { cuda.copy_to_device_async(&self.from, self.address, Stream::Load) }?;
        let event = cuda.event()?;
        cuda.record(&event, Stream::Load)?;
        Ok(Arc::new(event))
    }
}

impl Job for Upload {
    fn class(&self) -> Class {
        Class::Load
    }

    fn run(&mut self, context: &mut DeviceContext) -> Result<Step, JobError> {
        let Some(cuda) = context.parts().cuda else {
            return Ok(Step::Done);
        };
        if self.begun.is_none() {
            let event = self.begun.insert(self.begin(cuda)?);
            return Ok(Step::wait_for(Arc::clone(event)));
        }
        if let Some(done) = self.done.take() {
            done();
        }
        Ok(Step::Done)
    }
}
