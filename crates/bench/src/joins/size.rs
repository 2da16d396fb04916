//! Sizes of the workloads.

use clap::ValueEnum;
use forebay_hash_index::{ProbeKeys, Width, Workload};

/// Minimum of the scale.
const SCALE_MIN: f64 = 0.000_01;
/// Maximum of the scale; workload C then has 4.1 G tuples a side, nearly all keys of 4 bytes.
const SCALE_MAX: f64 = 4.0;

/// Rows below which no build side is scaled: that of workload B, whose table lies in the caches.
const BUILD_ROWS_MIN: u64 = 1 << 18;

/// Parses a scale.
pub(super) fn scale(text: &str) -> Result<f64, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (SCALE_MIN..=SCALE_MAX).contains(number));
    number.ok_or_else(|| format!("use a number from {SCALE_MIN} to {SCALE_MAX}"))
}

/// A workload of the paper, or one like it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Tuples {
    /// 2^27 by 2^31 tuples of 8-byte keys and payloads.
    A,
    /// 2^18 by 2^31 tuples of 8-byte keys and payloads.
    B,
    /// 1,024 million by 1,024 million tuples of 4-byte keys and payloads.
    C,
    /// As `a`, with keys of 4 bytes. Only in the sections `device` and `cpu`.
    NarrowKeys,
    /// As `a`, with payloads of 4 bytes. Only in the sections `device` and `cpu`.
    NarrowPayloads,
    /// As `a`, with keys of two 8-byte numbers. Only in the sections `device` and `cpu`, with linear probing, and on
    /// the CPU in partitions.
    Composite,
}

impl Tuples {
    /// Every workload.
    pub(super) const ALL: [Tuples; 6] = [
        Tuples::A,
        Tuples::B,
        Tuples::C,
        Tuples::NarrowKeys,
        Tuples::NarrowPayloads,
        Tuples::Composite,
    ];
    /// Those of the paper.
    pub(super) const OF_PAPER: [Tuples; 3] = [Tuples::A, Tuples::B, Tuples::C];

    /// Returns the name in cases.
    pub(super) fn name(self) -> &'static str {
        match self {
            Tuples::A => "a",
            Tuples::B => "b",
            Tuples::C => "c",
            Tuples::NarrowKeys => "narrow-keys",
            Tuples::NarrowPayloads => "narrow-payloads",
            Tuples::Composite => "composite",
        }
    }

    /// Returns the workload with all tuples.
    fn full(self) -> Workload {
        let (width, build_rows, probe_rows) = match self {
            Tuples::A => (Width::Eight, 1 << 27, 1 << 31),
            Tuples::B => (Width::Eight, 1 << 18, 1 << 31),
            Tuples::C => (Width::Four, 1_024_000_000, 1_024_000_000),
            Tuples::NarrowKeys => (Width::FourEight, 1 << 27, 1 << 31),
            Tuples::NarrowPayloads => (Width::EightFour, 1 << 27, 1 << 31),
            Tuples::Composite => (Width::Composite, 1 << 27, 1 << 31),
        };
        Workload {
            width,
            build_rows,
            probe_rows,
            probe_keys: ProbeKeys::Uniform,
        }
    }

    /// Returns the workload with a fraction of its tuples.
    pub(super) fn scaled(self, scale: f64) -> Workload {
        let full = self.full();
        let scaled = |rows: u64| (rows as f64 * scale) as u64;
        Workload {
            build_rows: match self {
                Tuples::B => full.build_rows,
                _ => scaled(full.build_rows).max(BUILD_ROWS_MIN),
            },
            probe_rows: scaled(full.probe_rows).max(1),
            ..full
        }
    }

    /// Returns the workload of a smoke run.
    pub(super) fn smoke(self) -> Workload {
        let (build_rows, probe_rows) = match self {
            Tuples::B => (1 << 8, 1 << 16),
            Tuples::C => (30_000, 30_001),
            _ => (1 << 12, 1 << 16),
        };
        Workload {
            build_rows,
            probe_rows,
            ..self.full()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_are_scaled_except_small_build_sides() {
        assert_eq!(Tuples::A.scaled(1.0), Tuples::A.full());
        let rows = |tuples: Tuples, scale| {
            let scaled = tuples.scaled(scale);
            (scaled.build_rows, scaled.probe_rows)
        };
        assert_eq!(rows(Tuples::A, 0.25), (1 << 25, 1 << 29));
        assert_eq!(rows(Tuples::B, 4.0), (1 << 18, 1 << 33));
        assert_eq!(rows(Tuples::C, 0.000_01), (1 << 18, 10_240));
        assert!(rows(Tuples::C, SCALE_MAX).0 < u32::MAX.into());
    }
}
