//! How many aggregates were computed on the device, and why others were not.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::reason::{Kind, Reason};

/// Maximum number of reasons that are counted apart, and of their characters.
const REASONS_MAX: usize = 32;
const REASON_CHARACTERS: usize = 160;
/// What further reasons are counted as.
const OTHERS: &str = "other reasons";

/// Counts since the start.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    on_device: AtomicU64,
    on_cpu: Mutex<HashMap<String, u64>>,
    /// The same by the kind of the reason, in the order of [`Kind::ALL`].
    on_cpu_kinds: [AtomicU64; Kind::ALL.len()],
}

impl Counts {
    pub(crate) fn add_on_device(&self) {
        self.on_device.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add_on_cpu(&self, reason: &Reason) {
        self.on_cpu_kinds[reason.kind() as usize].fetch_add(1, Ordering::Relaxed);
        let text: String = reason.text().chars().take(REASON_CHARACTERS).collect();
        let mut on_cpu = self.on_cpu.lock();
        let has_room = on_cpu.len() < REASONS_MAX || on_cpu.contains_key(&text);
        let text = if has_room { text } else { OTHERS.to_owned() };
        *on_cpu.entry(text).or_default() += 1;
    }

    pub(crate) fn on_device(&self) -> u64 {
        self.on_device.load(Ordering::Relaxed)
    }

    /// Returns the aggregates that the device did not compute, by the kind of the reason: of all kinds.
    pub(crate) fn on_cpu_kinds(&self) -> Vec<(&'static str, u64)> {
        let names = Kind::ALL.into_iter().map(Kind::name);
        let counts = self.on_cpu_kinds.iter();
        names
            .zip(counts.map(|count| count.load(Ordering::Relaxed)))
            .collect()
    }

    /// Returns the aggregates that the device did not compute, by the reason, the most frequent first.
    pub(crate) fn on_cpu(&self) -> Vec<(String, u64)> {
        let mut on_cpu: Vec<_> = self.on_cpu.lock().clone().into_iter().collect();
        on_cpu.sort_by(|(one, of_one), (other, of_other)| {
            of_other.cmp(of_one).then_with(|| one.cmp(other))
        });
        on_cpu
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reason::FASTER;

    #[test]
    fn reasons_are_counted_and_bounded() {
        let counts = Counts::default();
        for reason in 0..2 * REASONS_MAX {
            counts.add_on_cpu(&Reason::new(format!("reason {reason}")));
        }
        counts.add_on_cpu(&Reason::new("reason 0"));
        counts.add_on_cpu(&Reason::new("x".repeat(1 << 20)));
        let on_cpu = counts.on_cpu();
        assert_eq!(on_cpu.len(), REASONS_MAX + 1);
        assert_eq!(on_cpu[0], (OTHERS.to_owned(), REASONS_MAX as u64 + 1));
        assert_eq!(on_cpu[1], ("reason 0".to_owned(), 2));
    }

    #[test]
    fn reasons_are_counted_without_estimates() {
        let counts = Counts::default();
        for gpu_us in 0..50 {
            counts.add_on_cpu(&Reason::of_estimates(7, gpu_us));
        }
        assert_eq!(counts.on_cpu(), [(FASTER.to_owned(), 50)]);
        let printed = Reason::of_estimates(300, 1250).to_string();
        assert_eq!(
            printed,
            "the CPU is estimated at 0.30 ms, the GPU at 1.25 ms"
        );
    }

    #[test]
    fn reasons_are_counted_by_kind() {
        let counts = Counts::default();
        counts.add_on_cpu(&Reason::new("median"));
        counts.add_on_cpu(&Reason::no_room("there is no room for its columns"));
        counts.add_on_cpu(&Reason::no_room("the device has no room"));
        counts.add_on_cpu(&Reason::lost("cuda:0"));
        let kinds = counts.on_cpu_kinds();
        assert_eq!(kinds.len(), Kind::ALL.len());
        let counted = kinds.into_iter().filter(|(_, count)| *count > 0);
        assert_eq!(
            counted.collect::<Vec<_>>(),
            [("unsupported", 1), ("memory", 2), ("device_lost", 1)]
        );
    }
}
