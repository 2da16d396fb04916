//! Random values of a row group. Each row group has its own seed, so the rows do not depend on the number of threads.

/// Characters of addresses, of which dbgen draws each with the same probability.
const ADDRESS: [u8; 64] = *b"0123456789abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ,";
/// Minimum letters of an address.
const ADDRESS_MIN: usize = 6;
/// Maximum letters of an address.
const ADDRESS_MAX: usize = 24;
/// Base of all seeds.
const SEED: u64 = 0x666f_7265_6261_7953;
/// Distance between the seeds of row groups: the golden ratio, which keeps them apart.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A source of random values.
pub struct Random(fastrand::Rng);

impl Random {
    /// Returns the source of a row group of a table.
    pub fn of_group(table: &str, group: u64) -> Random {
        let name = table.bytes().fold(SEED, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(STEP)
        });
        Random(fastrand::Rng::with_seed(
            name.wrapping_add(group.wrapping_mul(STEP)),
        ))
    }

    /// Returns an integer from `first` to `last`, both included.
    pub fn between(&mut self, first: i32, last: i32) -> i32 {
        self.0.i32(first..=last)
    }

    /// Returns an index of a list of `count` values.
    pub fn index(&mut self, count: usize) -> usize {
        self.0.usize(..count)
    }

    /// Returns one of `values`.
    pub fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.index(values.len())]
    }

    /// Returns three different indexes of a list of `count` values.
    pub fn three_of(&mut self, count: usize) -> [usize; 3] {
        let mut next = || self.0.usize(..count);
        let first = next();
        let mut other_than = |taken: &[usize]| loop {
            let index = next();
            if !taken.contains(&index) {
                return index;
            }
        };
        let second = other_than(&[first]);
        [first, second, other_than(&[first, second])]
    }

    /// Returns an address.
    pub fn address(&mut self) -> String {
        let letters = self.0.usize(ADDRESS_MIN..=ADDRESS_MAX);
        (0..letters)
            .map(|_| char::from(self.one_of(&ADDRESS)))
            .collect()
    }

    /// Returns a phone number of the nation with this index.
    pub fn phone(&mut self, nation: usize) -> String {
        let (area, exchange) = (self.between(100, 999), self.between(100, 999));
        let number = self.between(1000, 9999);
        format!("{}-{area}-{exchange}-{number}", 10 + nation)
    }
}
