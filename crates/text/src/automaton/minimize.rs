//! The smallest automaton with the same answers, by refining a partition of the states.

use std::collections::HashMap;

use super::table::{Minimal, Role};

/// The states of a raw automaton: 0 is matched, 1 is hit, 2 is the start.
const START: usize = 2;

/// Merges states that no input tells apart, and puts those that are left in the order of the table.
pub(super) fn minimize(next: &[[u32; 256]], roles: &[Role]) -> Minimal {
    let classes = distinct_columns(next);
    let mut blocks = initial(roles);
    loop {
        let refined = refine(next, &classes, &blocks);
        if refined.count == blocks.count {
            break;
        }
        blocks = refined;
    }
    arrange(next, roles, &blocks)
}

/// A partition: the block of each state.
struct Blocks {
    of: Vec<u32>,
    count: usize,
}

fn initial(roles: &[Role]) -> Blocks {
    number(roles.iter().copied())
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

/// Numbers keys in the order they first appear.
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

/// One byte for each different column of the table.
fn distinct_columns(next: &[[u32; 256]]) -> Vec<u8> {
    let mut seen = HashMap::new();
    for byte in 0..=255u8 {
        let column: Vec<u32> = next.iter().map(|row| row[byte as usize]).collect();
        seen.entry(column).or_insert(byte);
    }
    let mut bytes: Vec<u8> = seen.into_values().collect();
    bytes.sort_unstable();
    bytes
}

/// Start, other states, dead, matched, hit. The dead state is made where there is none.
fn arrange(next: &[[u32; 256]], roles: &[Role], blocks: &Blocks) -> Minimal {
    let block_of_start = blocks.of[START];
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
    rows[dead_at as usize][usize::from(crate::rows::SEPARATOR)] = 0;
    for (state, row) in next.iter().enumerate() {
        let to = place[blocks.of[state] as usize] as usize;
        rows[to] = std::array::from_fn(|byte| place[blocks.of[row[byte] as usize] as usize]);
    }
    Minimal { next: rows }
}

/// Whether a plain state leads nowhere but back to the start by the separator.
fn is_dead(state: usize, next: &[[u32; 256]], roles: &[Role]) -> bool {
    let separator = usize::from(crate::rows::SEPARATOR);
    let loops = |byte: usize| byte == separator || next[state][byte] == state as u32;
    roles[state] == Role::Plain && next[state][separator] == START as u32 && (0..256).all(loops)
}
