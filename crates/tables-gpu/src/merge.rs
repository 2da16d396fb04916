//! The totals of several devices together: of few groups on the host, of many by a kernel of the first device.

use std::fmt::Write;

use forebay_device::cuda::{Program, ProgramSpec};

use crate::engine::{KernelLaunch, Launch, Ran};
use crate::groups::{Groups, Place};
use crate::launches::InMemory;
use crate::program::{THREADS, Total, group_words};
use crate::source::{array, headers, options};

/// Returns the launch that adds the totals of other devices to those of the first.
pub(crate) fn merging(
    layout: &[Total],
    groups: &Groups,
    first: &InMemory,
    others: &[InMemory],
    waits: bool,
) -> Launch {
    let program = Program::new(spec(layout));
    let kernels = others.iter().map(|other| KernelLaunch {
        groups: groups.count as u32,
        totals: Some(first.address),
        own_keys: first.keys,
        keys: vec![other.keys],
        words: vec![other.address],
        seen: match groups.place {
            Place::Listed => first.counter,
            _ => 0,
        },
        are_groups_read: true,
        ..KernelLaunch::new(program.clone(), Vec::new())
    });
    let all = others.iter().chain([first]);
    Launch {
        kernels: kernels.collect(),
        memory: all.map(|it| it.memory.clone()).collect(),
        ..Launch::new(waits)
    }
}

fn spec(layout: &[Total]) -> ProgramSpec {
    let mut text = String::from("#include \"arguments.cuh\"\n");
    for (name, value) in [
        ("kThreads", THREADS as usize),
        ("kSlots", layout.len()),
        ("kGroupWords", group_words(layout)),
        ("kIsSliced", 0),
    ] {
        let _ = writeln!(text, "constexpr u32 {name} = {value};");
    }
    text += &array("bool kIsMaximum", layout.iter().map(|it| it.is_maximum));
    text += &array("bool kIsWide", layout.iter().map(|it| it.is_wide));
    text += &array("u32 kSlotWord", layout.iter().map(|it| it.word));
    text += "#include \"merge.cuh\"\n";
    ProgramSpec {
        name: "tables/merge.cu".to_owned(),
        source: text.into(),
        headers: headers(),
        options: options(),
        entries: vec!["fragment".to_owned()],
    }
}

/// Returns the totals of all devices, from what the kernels of each returned: the words of the same groups.
pub(crate) fn added_up(layout: &[Total], of_devices: Vec<Ran>) -> Option<Ran> {
    let mut of_devices = of_devices.into_iter();
    let mut all = of_devices.next()?;
    for other in of_devices {
        let words: Vec<u64> = u64s(other.results()).collect();
        all.change_results(|own| {
            let groups = own.chunks_exact_mut(group_words(layout));
            for (own, other) in groups.zip(words.chunks_exact(group_words(layout))) {
                layout.iter().for_each(|total| total.add(own, other));
            }
        });
    }
    Some(all)
}

/// Returns bytes as numbers of 64 bits.
fn u64s(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let words = bytes.as_chunks::<8>().0.iter();
    words.map(|it| u64::from_le_bytes(*it))
}

impl Total {
    /// Adds the total of a group, as `merge.cuh` does.
    fn add(self, own: &mut [u64], other: &[u64]) {
        let Total {
            is_maximum,
            word,
            is_wide,
        } = self;
        if is_maximum {
            let words = word..=word + usize::from(is_wide);
            if own[words.clone()] < other[words.clone()] {
                own[words.clone()].copy_from_slice(&other[words]);
            }
            return;
        }
        let (sum, has_carry) = own[word].overflowing_add(other[word]);
        own[word] = sum;
        if is_wide {
            let high = own[word + 1].wrapping_add(other[word + 1]);
            own[word + 1] = high.wrapping_add(has_carry.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_sums_and_maxima() {
        let layout = [
            (false, 0, false),
            (false, 1, true),
            (true, 3, false),
            (true, 4, true),
            (true, 6, true),
        ];
        let layout = layout.map(|(is_maximum, word, is_wide)| Total {
            is_maximum,
            word,
            is_wide,
        });
        let minus_three = -3_i64 as u64;
        let mut own = [2, u64::MAX, 4, 7, 5, 8, 5, 8];
        for total in layout {
            total.add(&mut own, &[minus_three, 2, 1, 9, 6, 1, 5, 7]);
        }
        assert_eq!(own, [-1_i64 as u64, 1, 6, 9, 6, 1, 5, 8]);
    }
}
