//! Values that operators keep on a device's thread between jobs.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::convert::Infallible;
use std::fmt;

/// Values that operators keep on a device between jobs, by type and key. Each value lives on the device's thread and is
/// dropped there: when it is removed, when a job that used it panics, or when the device is lost or ends.
#[derive(Default)]
pub struct OperatorState {
    values: HashMap<(TypeId, u64), Kept>,
    /// Number of steps that jobs have run.
    step: u64,
}

struct Kept {
    value: Box<dyn Any + Send>,
    /// Number of the last step that used the value.
    step: u64,
}

impl OperatorState {
    /// Returns the value of this type under a key, such as the number of an index or a table. The first call creates
    /// the value with `init`, which usually borrows the GPU:
    ///
    /// ```
    /// # use forebay_device::{DeviceContext, JobError, Step};
    /// struct Buffers(Vec<u8>);
    ///
    /// fn run(context: &mut DeviceContext) -> Result<Step, JobError> {
    ///     let parts = context.parts();
    ///     let cuda = parts.cuda;
    ///     let buffers: &mut Buffers = parts.state.get_or_try_init(7, || match cuda {
    ///         Some(cuda) => Ok::<_, JobError>(Buffers(vec![0; cuda.l2_bytes() as usize])),
    ///         None => Ok(Buffers(Vec::new())),
    ///     })?;
    ///     buffers.0.fill(1);
    ///     Ok(Step::Done)
    /// }
    /// # let _ = run;
    /// ```
    ///
    /// # Errors
    /// The error of `init`; no value is stored.
    pub fn get_or_try_init<T: Send + 'static, E>(
        &mut self,
        key: u64,
        init: impl FnOnce() -> Result<T, E>,
    ) -> Result<&mut T, E> {
        let kept = match self.values.entry((TypeId::of::<T>(), key)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Kept {
                value: Box::new(init()?),
                step: 0,
            }),
        };
        kept.step = self.step;
        let value = kept.value.downcast_mut();
        Ok(value.expect("the key contains the type of the value"))
    }

    /// Returns the value of this type under key 0; the first call stores the type's default.
    pub fn get_or_default<T: Default + Send + 'static>(&mut self) -> &mut T {
        let made = self.get_or_try_init(0, || Ok::<_, Infallible>(T::default()));
        match made {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }

    /// Removes the value of this type under a key and returns it.
    pub fn remove<T: Send + 'static>(&mut self, key: u64) -> Option<T> {
        let kept = self.values.remove(&(TypeId::of::<T>(), key))?;
        let value = kept.value.downcast().ok();
        value.map(|value| *value)
    }

    pub(crate) fn begin_step(&mut self) {
        self.step += 1;
    }

    /// Drops the values that the last step used.
    pub(crate) fn forget_touched(&mut self) {
        let step = self.step;
        self.values.retain(|_, kept| kept.step != step);
    }
}

impl fmt::Debug for OperatorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OperatorState")
            .field("values", &self.values.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_and_key_has_one_value() {
        let mut state = OperatorState::default();
        *state.get_or_default::<u32>() += 1;
        *state.get_or_default::<u32>() += 1;
        state.get_or_default::<String>().push('a');
        let other = state.get_or_try_init(1, || Ok::<_, ()>(10_u32));
        assert_eq!(other, Ok(&mut 10));
        assert_eq!(*state.get_or_default::<u32>(), 2);
        assert_eq!(state.get_or_default::<String>(), "a");
        assert_eq!(
            (state.remove::<u32>(1), state.remove::<u32>(1)),
            (Some(10), None)
        );
    }

    #[test]
    fn a_value_that_cannot_be_made_is_made_by_a_later_call() {
        let mut state = OperatorState::default();
        assert_eq!(
            state.get_or_try_init::<u32, _>(5, || Err("no room")),
            Err("no room")
        );
        assert_eq!(state.get_or_try_init(5, || Ok::<u32, &str>(1)), Ok(&mut 1));
    }

    #[test]
    fn what_the_last_step_used_can_be_dropped_alone() {
        let mut state = OperatorState::default();
        state.begin_step();
        *state.get_or_default::<u32>() = 1;
        state.begin_step();
        *state.get_or_default::<u64>() = 1;
        state.forget_touched();
        assert_eq!(
            (
                *state.get_or_default::<u32>(),
                *state.get_or_default::<u64>()
            ),
            (1, 0)
        );
    }
}
