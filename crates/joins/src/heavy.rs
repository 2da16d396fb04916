//! Keys of which the build side has many rows, found in a sample.

use forebay_cancel::{Stop, Stopped};
use forebay_hash_index::{HostRows, Width};

/// Maximum number of heavy keys of a join.
pub(crate) const HEAVY_KEYS_MAX: usize = 2048;
/// Maximum numbers of sampled rows: of the first sample, and of a second one if a table has no room for the rows of
/// keys that the first missed. A sampled row takes 8 bytes of host memory, and a candidate for a heavy key 16: at
/// most 256 MiB in all.
pub(crate) const SAMPLES: [u64; 2] = [1 << 18, 1 << 24];
/// Number of sampled rows between two checks of whether the join is stopped.
const ROWS_OF_CHECK: usize = 1 << 16;
/// Minimum number of rows of a heavy key, as estimated from the sample. A table may have many keys with fewer rows,
/// whose clusters merge. In a simulated table of 2^25 slots at half load, with 64 rows of each key, a row is at most
/// 2,645 slots away from the slot of its hash. The limit is 4,096.
const HEAVY_ROWS: u64 = 64;
/// Minimum number of sampled rows of a heavy key. With fewer, many other keys would be false positives.
const SAMPLED_ROWS: u64 = 4;

/// Returns the heavy keys of a build side in ascending order, as estimated from at most `sample` of its rows. If
/// there are more than [`HEAVY_KEYS_MAX`], it returns those with the most rows. 2^64 - 1 is never among them, because
/// a table keeps the rows of this key aside, and so has room for any number of them. Composite keys are not kept
/// apart: it returns none.
///
/// # Errors
/// If the join is stopped before the sample is complete.
pub(crate) fn heavy_keys(
    rows: HostRows<'_>,
    width: Width,
    sample: u64,
    stop: &Stop,
) -> Result<Vec<u64>, Stopped> {
    let mut keys = sampled(rows, width, sample, stop)?;
    stop.check()?;
    let (count, sampled) = (rows.count(width).max(1), keys.len() as u64);
    let of_heavy_key = (HEAVY_ROWS * sampled).div_ceil(count).max(SAMPLED_ROWS) as usize;
    keys.sort_unstable();
    let of_keys = keys.chunk_by(|one, next| one == next);
    let heavy = of_keys.filter(|rows| rows.len() >= of_heavy_key && rows[0] != u64::MAX);
    let mut heavy: Vec<(usize, u64)> = heavy.map(|rows| (rows.len(), rows[0])).collect();
    heavy.sort_unstable_by(|one, other| other.cmp(one));
    heavy.truncate(HEAVY_KEYS_MAX);
    let mut heavy: Vec<u64> = heavy.into_iter().map(|(_, key)| key).collect();
    heavy.sort_unstable();
    Ok(heavy)
}

/// Returns the keys of at most `sample` rows: the side is divided into equal parts, and a random row of each is taken.
/// Returns no key if keys are composite.
///
/// # Errors
/// If the join is stopped.
fn sampled(
    rows: HostRows<'_>,
    width: Width,
    sample: u64,
    stop: &Stop,
) -> Result<Vec<u64>, Stopped> {
    let count = rows.count(width);
    if sample == 0 || count == 0 || !width.is_single() {
        return Ok(Vec::new());
    }
    let part = count.div_ceil(sample);
    let mut keys = Vec::with_capacity(count.div_ceil(part) as usize);
    for first in (0..count).step_by(part as usize) {
        if keys.len().is_multiple_of(ROWS_OF_CHECK) {
            stop.check()?;
        }
        let random = first.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        let row = first + random % part.min(count - first);
        keys.push(key(rows.keys, width, row));
    }
    Ok(keys)
}

/// Returns the key of a row.
fn key(keys: &[u8], width: Width, row: u64) -> u64 {
    let at = (row * width.key_bytes()) as usize;
    let mut key = [0; 8];
    let bytes = width.key_bytes() as usize;
    key[..bytes].copy_from_slice(&keys[at..at + bytes]);
    u64::from_le_bytes(key)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    /// Returns the heavy keys of rows with these keys.
    fn of(keys: impl IntoIterator<Item = u64>, width: Width, sample: u64) -> Vec<u64> {
        let bytes = width.key_bytes() as usize;
        let keys = keys.into_iter();
        let keys: Vec<u8> = keys
            .flat_map(|key| key.to_le_bytes().into_iter().take(bytes))
            .collect();
        let rows = HostRows {
            keys: &keys,
            payloads: &keys,
        };
        heavy_keys(rows, width, sample, &Stop::never()).expect("it is not stopped")
    }

    /// Returns keys of which `key` has this many rows, spread over all, and others one each.
    fn with_one(key: u64, rows: u64, count: u64) -> impl Iterator<Item = u64> {
        let every = count / rows;
        (0..count).map(move |row| match row % every == 0 && row / every < rows {
            true => key,
            false => (1 << 20) + row,
        })
    }

    #[test]
    fn a_key_is_heavy_from_some_rows_on_if_all_are_sampled() {
        for width in [Width::Four, Width::Eight] {
            assert_eq!(of(with_one(7, 64, 20_000), width, 20_000), [7]);
            assert!(of(with_one(7, 63, 20_000), width, 1 << 20).is_empty());
            assert!(of([], width, 1 << 20).is_empty());
            assert!(of([7; 2000], width, 0).is_empty());
        }
        assert!(of([u64::MAX; 2000], Width::Eight, 2000).is_empty());
        let largest = u64::from(u32::MAX);
        assert_eq!(of([largest; 2000], Width::Four, 2000), [largest]);
    }

    #[test]
    fn the_most_frequent_keys_of_a_sample_are_found() {
        let keys = (0..400_000_u64).map(|row| if row % 2 == 0 { row } else { row % 5 });
        assert_eq!(of(keys, Width::Eight, 1000), [0, 1, 2, 3, 4]);
        // About four hundred rows of this key are sampled.
        assert_eq!(of(with_one(9, 4096, 100_000), Width::Four, 10_000), [9]);
        // More keys than a join keeps apart: those with the most rows are found.
        let often = (0..3000_u64).flat_map(|key| vec![key; 64 + usize::from(key > 2000)]);
        let found = of(often, Width::Four, u64::MAX);
        assert_eq!(found.len(), HEAVY_KEYS_MAX);
        assert!((2001..3000).all(|key| found.contains(&key)));
    }

    #[test]
    fn a_stopped_join_looks_for_no_heavy_keys() {
        let (stop, keys) = (Stop::never(), [7; 8000]);
        stop.cancelled.store(true, Ordering::Relaxed);
        let rows = HostRows {
            keys: &keys,
            payloads: &keys,
        };
        for sample in [0, 1000] {
            heavy_keys(rows, Width::Eight, sample, &stop).expect_err("it is cancelled");
        }
    }
}
