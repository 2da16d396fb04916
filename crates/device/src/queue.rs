//! The queues of a device: one bounded queue for each class of jobs, served by weight.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::{Class, Job};

/// Numbers of unfinished jobs by class.
#[derive(Debug, Default)]
pub(crate) struct Places {
    taken: [AtomicUsize; Class::ALL.len()],
}

impl Places {
    /// Takes a queue slot for a job of `class`; returns `None` if `depth` slots are taken.
    pub(crate) fn take(self: &Arc<Self>, class: Class, depth: usize) -> Option<Place> {
        let next = |count: usize| (count < depth).then_some(count + 1);
        self.taken[class.index()]
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, next)
            .ok()?;
        Some(Place {
            places: Arc::clone(self),
            class,
        })
    }

    /// Returns the number of unfinished jobs of all classes.
    pub(crate) fn count(&self) -> usize {
        let counts = self.taken.iter().map(|count| count.load(Ordering::Acquire));
        counts.sum()
    }
}

/// Guard of one queue slot; dropping it frees the slot.
#[derive(Debug)]
pub(crate) struct Place {
    places: Arc<Places>,
    class: Class,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken[self.class.index()].fetch_sub(1, Ordering::AcqRel);
    }
}

/// A job with its queue slot.
pub(crate) struct Queued {
    pub(crate) job: Box<dyn Job>,
    pub(crate) place: Place,
}

impl Queued {
    pub(crate) fn class(&self) -> Class {
        self.place.class
    }
}

/// Runnable jobs.
///
/// The jobs of a class run in order. Among the classes with runnable jobs, the next job comes from the class whose
/// thread time divided by its weight is the smallest. A class that had no jobs for a while gets no credit for that
/// time.
#[derive(Default)]
pub(crate) struct Ready {
    classes: [ReadyClass; Class::ALL.len()],
    /// `weighted_ns` that the class of the last popped job had when the job was popped.
    served_ns: u64,
}

#[derive(Default)]
struct ReadyClass {
    jobs: VecDeque<Queued>,
    /// Thread time that the class has had, divided by its weight.
    weighted_ns: u64,
}

impl Ready {
    /// Appends a job to the queue of its class.
    pub(crate) fn push(&mut self, queued: Queued) {
        let class = &mut self.classes[queued.class().index()];
        if class.jobs.is_empty() {
            class.weighted_ns = class.weighted_ns.max(self.served_ns);
        }
        class.jobs.push_back(queued);
    }

    /// Removes and returns the next job.
    pub(crate) fn pop(&mut self) -> Option<Queued> {
        let waiting = self
            .classes
            .iter_mut()
            .filter(|class| !class.jobs.is_empty());
        let class = waiting.min_by_key(|class| class.weighted_ns)?;
        self.served_ns = class.weighted_ns;
        class.jobs.pop_front()
    }

    /// Charges a class for the time of one step.
    pub(crate) fn charge(&mut self, class: Class, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let weighted_ns = &mut self.classes[class.index()].weighted_ns;
        *weighted_ns = weighted_ns.saturating_add(took_ns / class.weight());
    }
}

impl Extend<Queued> for Ready {
    fn extend<T: IntoIterator<Item = Queued>>(&mut self, jobs: T) {
        jobs.into_iter().for_each(|queued| self.push(queued));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DeviceContext, Step};

    fn queued(places: &Arc<Places>, class: Class) -> Queued {
        Queued {
            job: Box::new(|_: &mut DeviceContext| Ok(Step::Done)),
            place: places.take(class, 1000).expect("the queue is not full"),
        }
    }

    #[test]
    fn each_class_has_a_bound_of_its_own() {
        let places = Arc::<Places>::default();
        let one = places.take(Class::Load, 1).expect("no slot is taken");
        assert!(places.take(Class::Load, 1).is_none());
        let other = places.take(Class::Interactive, 1);
        assert!(other.is_some());
        assert_eq!(places.count(), 2);
        drop(one);
        assert!(places.take(Class::Load, 1).is_some());
    }

    #[test]
    fn busy_classes_get_time_by_weight_and_no_class_starves() {
        let places = Arc::default();
        let mut ready = Ready::default();
        let mut served = [0; Class::ALL.len()];
        for class in Class::ALL {
            ready.push(queued(&places, class));
        }
        for _ in 0..2100 {
            let job = ready.pop().expect("all classes have a job");
            served[job.class().index()] += 1;
            ready.charge(job.class(), Duration::from_micros(160));
            ready.push(queued(&places, job.class()));
        }
        let expected = [1600, 400, 100];
        for (count, expected) in served.into_iter().zip(expected) {
            assert!((expected - 3..=expected + 3).contains(&count), "{served:?}");
        }
    }

    #[test]
    fn a_class_that_was_idle_does_not_catch_up() {
        let places = Arc::default();
        let mut ready = Ready::default();
        for _ in 0..100 {
            ready.push(queued(&places, Class::Interactive));
            let job = ready.pop().expect("one waits");
            ready.charge(job.class(), Duration::from_secs(1));
        }
        ready.push(queued(&places, Class::Interactive));
        ready.push(queued(&places, Class::Batch));
        ready.push(queued(&places, Class::Batch));
        let mut order = Vec::new();
        while let Some(job) = ready.pop() {
            ready.charge(job.class(), Duration::from_secs(1));
            order.push(job.class());
        }
        assert_eq!(order, [Class::Batch, Class::Interactive, Class::Batch]);
    }
}
