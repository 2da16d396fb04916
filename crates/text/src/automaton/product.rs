//! Product automaton of several conditions on the same row.

use std::collections::HashMap;

use super::TooLarge;
use super::minimize::{HIT, Minimal, Raw, START};
use crate::budget::Budget;
use crate::limits::Limits;
use crate::rows::SEPARATOR;

/// Number of conditions whose states take as much memory as one row of the table.
const CONDITIONS_PER_ROW: usize = 8;

/// A condition: the row matches the automaton or, if negated, does not match it.
pub(crate) struct Condition {
    pub(crate) automaton: Minimal,
    pub(crate) negated: bool,
}

impl Condition {
    /// Returns whether the condition is met, or `None` if that depends on the rest of the row.
    fn decided(&self, state: u32) -> Option<bool> {
        match state {
            _ if state == self.automaton.matched() => Some(!self.negated),
            _ if state == self.automaton.dead() => Some(self.negated),
            _ => None,
        }
    }

    /// Returns whether the condition is met by a row that ends in this state.
    fn at_end(&self, state: u32) -> bool {
        (self.automaton.step(state, SEPARATOR) == self.automaton.hit()) != self.negated
    }
}

/// Builds the DFA of the rows that meet all conditions, within the limits.
pub(crate) fn product(
    mut conditions: Vec<Condition>,
    limits: &Limits,
    budget: &Budget,
) -> Result<Minimal, TooLarge> {
    if let [Condition { negated: false, .. }] = conditions.as_slice() {
        return Ok(conditions.remove(0).automaton);
    }
    let state_bytes = size_of::<[u32; 256]>() * conditions.len().div_ceil(CONDITIONS_PER_ROW);
    let states_max = limits.determinize_bytes_max / state_bytes;
    let start = Some(vec![0; conditions.len()]);
    let mut walk = Walk {
        conditions,
        ids: HashMap::from([(start.clone(), START)]),
        order: vec![start],
    };
    let mut raw = Raw::new();
    while let Some(from) = walk.order.get(raw.added()).cloned() {
        if walk.order.len() > states_max {
            return Err(format!(
                "more than {states_max} states for the product of the conditions"
            ));
        }
        budget.take(state_bytes)?;
        raw.push(std::array::from_fn(|byte| walk.step(&from, byte as u8)));
    }
    raw.minimize(budget)
}

/// The states of all conditions after some bytes of a row; `None` once one of the conditions cannot be met any more.
type States = Option<Vec<u32>>;

struct Walk {
    conditions: Vec<Condition>,
    ids: HashMap<States, u32>,
    order: Vec<States>,
}

impl Walk {
    fn step(&mut self, from: &States, byte: u8) -> u32 {
        if byte == SEPARATOR {
            let met = from.as_ref().is_some_and(|states| self.all_at_end(states));
            return if met { HIT } else { START };
        }
        let to = from.as_ref().and_then(|states| self.after(states, byte));
        *self.ids.entry(to).or_insert_with_key(|to| {
            self.order.push(to.clone());
            (self.order.len() - 1) as u32 + START
        })
    }

    fn all_at_end(&self, states: &[u32]) -> bool {
        self.conditions
            .iter()
            .zip(states)
            .all(|(condition, &state)| condition.at_end(state))
    }

    fn after(&self, states: &[u32], byte: u8) -> States {
        let each = self.conditions.iter().zip(states);
        let to: Vec<u32> = each
            .map(|(condition, &state)| condition.automaton.step(state, byte))
            .collect();
        let mut conditions = self.conditions.iter().zip(&to);
        conditions
            .all(|(condition, &state)| condition.decided(state) != Some(false))
            .then_some(to)
    }
}
