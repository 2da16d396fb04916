//! What operators keep on the thread of a device.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;

/// One value of each type, made when it is first asked for. It lives on the device's thread and is dropped there when the
/// device is lost or ends.
#[derive(Default)]
pub struct OperatorState {
    values: HashMap<TypeId, Box<dyn Any + Send>>,
}

impl OperatorState {
    /// The value of this type.
    pub fn get_or_default<T: Default + Send + 'static>(&mut self) -> &mut T {
        let value = self
            .values
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Box::new(T::default()));
        value
            .downcast_mut()
            .expect("each value lies under its own type")
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
    fn each_type_has_one_value() {
        let mut state = OperatorState::default();
        *state.get_or_default::<u32>() += 1;
        *state.get_or_default::<u32>() += 1;
        state.get_or_default::<String>().push('a');
        assert_eq!(*state.get_or_default::<u32>(), 2);
        assert_eq!(state.get_or_default::<String>(), "a");
    }
}
