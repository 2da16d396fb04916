//! Minimisation of a DFA by partition refinement.

use std::collections::HashMap;

use super::TooLarge;
use crate::budget::Budget;
use crate::rows::SEPARATOR;

/// A minimal DFA with its states in the order of [`Table`](super::table::Table): start, other states, dead, matched,
/// hit.
pub(crate) struct Minimal {
    pub(super) next: Vec<[u32; 256]>,
}

impl Minimal {
    /// Returns the state after a byte.
    pub(crate) fn step(&self, state: u32, byte: u8) -> u32 {
        self.next[state as usize][usize::from(byte)]
    }

    pub(crate) fn states_count(&self) -> usize {
        self.next.len()
    }

    pub(super) fn dead(&self) -> u32 {
        self.next.len() as u32 - 3
    }

    pub(super) fn matched(&self) -> u32 {
        self.next.len() as u32 - 2
    }

    pub(super) fn hit(&self) -> u32 {
        self.next.len() as u32 - 1
    }
}

/// Role of a state. States of different roles are never merged, even if their transitions are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Plain,
    /// Role of `hit`: the previous row matched. Without this role, minimisation would merge `hit` with `matched`.
    Hit,
    /// Role of the start state, if it must not be merged with another state.
    Start,
}

/// A DFA before minimisation: states 0 to 2 are `matched`, `hit` and the start.
pub(super) struct Raw {
    next: Vec<[u32; 256]>,
}

pub(super) const MATCHED: u32 = 0;
pub(super) const HIT: u32 = 1;
pub(super) const START: u32 = 2;

impl Raw {
    pub(super) fn new() -> Raw {
        Raw {
            next: vec![[MATCHED; 256], [MATCHED; 256]],
        }
    }

    /// Adds the transitions of the next state; the start is added first.
    pub(super) fn push(&mut self, row: [u32; 256]) {
        self.next.push(row);
    }

    /// Returns the number of states added so far.
    pub(super) fn added(&self) -> usize {
        self.next.len() - START as usize
    }

    /// Returns the minimal DFA.
    ///
    /// # Errors
    /// If the budget is too small.
    pub(super) fn minimize(mut self, budget: &Budget) -> Result<Minimal, TooLarge> {
        self.next[MATCHED as usize][usize::from(SEPARATOR)] = HIT;
        self.next[HIT as usize] = self.next[START as usize];
        let mut roles = vec![Role::Plain; self.next.len()];
        roles[HIT as usize] = Role::Hit;
        let mut blocks = partition(&self.next, &roles, budget)?;
        if blocks.of[START as usize] == blocks.of[MATCHED as usize] {
            // Every row matches, but the table needs a start state that is not `matched`.
            roles[START as usize] = Role::Start;
            blocks = partition(&self.next, &roles, budget)?;
        }
        Ok(arrange(&self.next, &roles, &blocks))
    }
}

/// Groups states that no input distinguishes.
fn partition(next: &[[u32; 256]], roles: &[Role], budget: &Budget) -> Result<Blocks, TooLarge> {
    budget.take(size_of_val(next))?;
    let classes = distinct_columns(next, budget)?;
    let mut blocks = number(roles.iter().copied());
    loop {
        budget.take(next.len() * classes.len() * size_of::<u32>())?;
        let refined = refine(next, &classes, &blocks);
        if refined.count == blocks.count {
            return Ok(blocks);
        }
        blocks = refined;
    }
}

/// A partition of the states into blocks. Stored as the number of the block that contains each state.
struct Blocks {
    of: Vec<u32>,
    count: usize,
}

fn refine(next: &[[u32; 256]], bytes: &[u8], blocks: &Blocks) -> Blocks {
    number(next.iter().zip(&blocks.of).map(|(row, &block)| {
        let targets: Vec<u32> = bytes
            .iter()
            .map(|&byte| blocks.of[row[byte as usize] as usize])
            .collect();
        (block, targets)
    }))
}

/// Assigns a number to each distinct key, in the order of first appearance.
fn number<K: std::hash::Hash + Eq>(keys: impl Iterator<Item = K>) -> Blocks {
    let mut known = HashMap::new();
    let of: Vec<u32> = keys
        .map(|key| {
            let fresh = known.len() as u32;
            *known.entry(key).or_insert(fresh)
        })
        .collect();
    Blocks {
        of,
        count: known.len(),
    }
}

/// Returns one byte for each distinct column of the table.
fn distinct_columns(next: &[[u32; 256]], budget: &Budget) -> Result<Vec<u8>, TooLarge> {
    let mut seen = HashMap::new();
    for byte in 0..=255u8 {
        budget.take(0)?;
        let column: Vec<u32> = next.iter().map(|row| row[byte as usize]).collect();
        seen.entry(column).or_insert(byte);
    }
    let mut bytes: Vec<u8> = seen.into_values().collect();
    bytes.sort_unstable();
    Ok(bytes)
}

/// Orders the states: start, other states, dead, matched, hit. Adds a dead state if there is none.
fn arrange(next: &[[u32; 256]], roles: &[Role], blocks: &Blocks) -> Minimal {
    let block_of_start = blocks.of[START as usize];
    let dead = (0..next.len())
        .find(|&state| is_dead(state, next, roles))
        .map(|state| blocks.of[state]);
    let special = [blocks.of[0], blocks.of[1], block_of_start];
    let mut order = vec![block_of_start];
    order.extend(
        (0..blocks.count as u32).filter(|block| !special.contains(block) && Some(*block) != dead),
    );
    let dead_at = order.len() as u32;
    let mut place = vec![0u32; blocks.count];
    for (index, &block) in order.iter().enumerate() {
        place[block as usize] = index as u32;
    }
    if let Some(dead) = dead.filter(|&dead| dead != block_of_start) {
        place[dead as usize] = dead_at;
    }
    place[blocks.of[0] as usize] = dead_at + 1;
    place[blocks.of[1] as usize] = dead_at + 2;
    fill(next, blocks, &place, dead_at)
}

fn fill(next: &[[u32; 256]], blocks: &Blocks, place: &[u32], dead_at: u32) -> Minimal {
    let mut rows = vec![[dead_at; 256]; dead_at as usize + 3];
    rows[dead_at as usize][usize::from(SEPARATOR)] = 0;
    for (state, row) in next.iter().enumerate() {
        let to = place[blocks.of[state] as usize] as usize;
        rows[to] = std::array::from_fn(|byte| place[blocks.of[row[byte] as usize] as usize]);
    }
    Minimal { next: rows }
}

/// Returns whether a state is dead: its role is plain, the separator leads to the start, and all other bytes lead to
/// itself.
fn is_dead(state: usize, next: &[[u32; 256]], roles: &[Role]) -> bool {
    let separator = usize::from(SEPARATOR);
    let loops = |byte: usize| byte == separator || next[state][byte] == state as u32;
    roles[state] == Role::Plain && next[state][separator] == START && (0..256).all(loops)
}
