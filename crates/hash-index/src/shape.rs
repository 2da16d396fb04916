//! Layouts of tables.

use std::ops::Range;

/// Minimum slots of a table with linear probing.
const SLOTS_MIN: u64 = 32;

/// Maximum slots that a row of a table with linear probing may be away from the slot of its hash. At half the slots,
/// rows with different keys are at most a few hundred slots away. The clusters of keys with many rows merge, so that
/// each of several such keys has room for fewer rows than a single one.
pub(crate) const STEPS_MAX: u64 = 4096;

/// Bytes of a bucket: a cache line of the processor, two sectors of a GPU.
pub(crate) const BUCKET_BYTES: u64 = 64;

/// First factor of the hash.
pub(crate) const HASH_FIRST: u64 = 0x9E37_79B9_7F4A_7C15;
/// Second factor of the hash.
pub(crate) const HASH_SECOND: u64 = 0xD6E8_FEB8_6659_FD93;

/// Bytes of a key, and of a payload.
///
/// Rows of [`Width::FourEight`] and [`Width::EightFour`] are narrow in columns and in runs. Slots and buckets of
/// their tables are those of [`Width::Eight`]; a table by key has only payloads, in their own width.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Width {
    /// 4-byte keys and 4-byte payloads.
    Four,
    /// 8-byte keys and 8-byte payloads.
    Eight,
    /// 4-byte keys and 8-byte payloads.
    FourEight,
    /// 8-byte keys and 4-byte payloads.
    EightFour,
    /// Composite keys and 8-byte payloads. A key is two numbers of 8 bytes, side by side in the column of keys. Two
    /// numbers of 4 bytes have room in a key of [`Width::Eight`], whose tables are half as large. Only tables with
    /// linear probing, each on one GPU or on the host, and partitions have composite keys.
    Composite,
}

impl Width {
    /// Every width.
    pub const ALL: [Width; 5] = [
        Width::Four,
        Width::Eight,
        Width::FourEight,
        Width::EightFour,
        Width::Composite,
    ];

    /// Returns the bytes of a payload.
    pub fn payload_bytes(self) -> u64 {
        match self {
            Width::Four | Width::EightFour => 4,
            Width::Eight | Width::FourEight | Width::Composite => 8,
        }
    }

    /// Returns the bytes of a key.
    pub fn key_bytes(self) -> u64 {
        match self {
            Width::Four | Width::FourEight => 4,
            Width::Eight | Width::EightFour => 8,
            Width::Composite => 16,
        }
    }

    /// Returns the bytes of a key and its payload.
    pub fn row_bytes(self) -> u64 {
        self.key_bytes() + self.payload_bytes()
    }

    /// Returns the name of the type of rows in CUDA C++.
    pub(crate) fn row_type(self) -> &'static str {
        match self {
            Width::Four => "RowOf<u32, u32>",
            Width::Eight => "RowOf<u64, u64>",
            Width::FourEight => "RowOf<u32, u64>",
            Width::EightFour => "RowOf<u64, u32>",
            Width::Composite => "RowOf<CompositeKey, u64>",
        }
    }

    /// Returns whether keys are single numbers.
    pub fn is_single(self) -> bool {
        self != Width::Composite
    }

    /// Returns whether keys are single numbers of the width of the payloads.
    pub fn is_uniform(self) -> bool {
        self.key_bytes() == self.payload_bytes()
    }

    /// Asserts that keys are single numbers.
    ///
    /// # Panics
    /// If they are composite. The message says that `what` does not support them.
    fn assert_is_single(self, what: &str) {
        assert!(self.is_single(), "{what} do not support composite keys");
    }

    /// Asserts that keys are single numbers of the width of the payloads.
    ///
    /// # Panics
    /// If they are not. The message says that `what` does not support them.
    pub fn assert_is_uniform(self, what: &str) {
        self.assert_is_single(what);
        let is_uniform = self.is_uniform();
        assert!(
            is_uniform,
            "{what} do not support keys and payloads of two widths"
        );
    }
}

/// How a table finds the slot of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TableMethod {
    /// An array by key. Keys lie between the first key and the number of slots above it, and occur once.
    Perfect {
        /// The key of the first slot.
        first_key: u64,
    },
    /// From the slot of a key's hash on, the first free slot. A key may occur several times.
    LinearProbing,
    /// From the first slot of the bucket of a key's hash on, the first free slot. A bucket is 64 bytes: the keys of its
    /// slots, then their payloads. A key may occur several times.
    Bucketed,
}

impl TableMethod {
    /// Returns whether hashes of keys give their slots.
    pub(crate) fn is_by_hash(self) -> bool {
        match self {
            TableMethod::Perfect { .. } => false,
            TableMethod::LinearProbing | TableMethod::Bucketed => true,
        }
    }
}

/// The layout of a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableShape {
    method: TableMethod,
    width: Width,
    slots: u64,
}

impl TableShape {
    /// Returns the shape of an array by key, for keys of this range.
    ///
    /// # Panics
    /// If keys are composite.
    pub fn perfect(width: Width, keys: Range<u64>) -> TableShape {
        width.assert_is_single("tables by key");
        TableShape {
            method: TableMethod::Perfect {
                first_key: keys.start,
            },
            width,
            slots: keys.end.saturating_sub(keys.start),
        }
    }

    /// Returns the shape of a table with linear probing for at most `rows` rows, which fill at most half of it.
    ///
    /// # Panics
    /// If the table would have more than 2^62 slots.
    pub fn linear_probing(width: Width, rows: u64) -> TableShape {
        let wanted = rows.checked_mul(2).expect("at most 2^62 slots");
        let slots = wanted.max(SLOTS_MIN).next_power_of_two();
        TableShape::with_slots(TableMethod::LinearProbing, width, slots)
    }

    /// Returns the shape of a table of buckets for at most `rows` rows, which fill at most two thirds of it.
    ///
    /// # Panics
    /// If the table would have more than 2^62 slots, or keys are composite.
    pub fn bucketed(width: Width, rows: u64) -> TableShape {
        let wanted = rows.checked_mul(3).expect("at most 2^62 slots").div_ceil(2);
        let slots = wanted.max(SLOTS_MIN).next_power_of_two();
        TableShape::with_slots(TableMethod::Bucketed, width, slots)
    }

    /// Returns the shape of a table of exactly this many slots. It may be filled completely; probes are slow if more
    /// than about three quarters of the slots are taken.
    ///
    /// # Panics
    /// If the number of slots is not a power of two from 32 to 2^62, the table is one by key, or it is one of buckets
    /// and keys are composite.
    pub fn with_slots(method: TableMethod, width: Width, slots: u64) -> TableShape {
        let is_valid = slots.is_power_of_two() && (SLOTS_MIN..=1 << 62).contains(&slots);
        assert!(is_valid && method.is_by_hash(), "{slots} slots");
        if method == TableMethod::Bucketed {
            width.assert_is_single("tables of buckets");
        }
        TableShape {
            method,
            width,
            slots,
        }
    }

    /// Returns how the table finds the slot of a key.
    pub fn method(&self) -> TableMethod {
        self.method
    }

    /// Returns the bytes of a key, and of a payload.
    pub fn width(&self) -> Width {
        self.width
    }

    /// Returns the number of slots: the maximum number of rows.
    pub fn slots(&self) -> u64 {
        self.slots
    }

    /// Returns the bytes of memory of a table.
    pub fn bytes(&self) -> u64 {
        self.slot_bytes() + self.taken_words() * 4
    }

    /// Returns the bytes of all slots. A slot is a payload, and the key unless the table is one by key. With a
    /// composite key, it also has a word that marks it as taken.
    pub fn slot_bytes(&self) -> u64 {
        self.slots * self.bytes_of_slot()
    }

    /// Returns the bytes of one slot.
    pub(crate) fn bytes_of_slot(&self) -> u64 {
        match (self.method, self.width) {
            (TableMethod::Perfect { .. }, width) => width.payload_bytes(),
            (_, Width::Four) => 8,
            (_, Width::Eight | Width::FourEight | Width::EightFour) => 16,
            (_, Width::Composite) => 32,
        }
    }

    /// Returns the number of 32-bit words that say which slots of a table by key are taken. In other tables, the keys
    /// say it.
    pub(crate) fn taken_words(&self) -> u64 {
        if self.method.is_by_hash() {
            return 0;
        }
        self.slots.div_ceil(32)
    }

    /// Returns the number of places where a search for a key may begin: slots, or buckets.
    pub(crate) fn homes(&self) -> u64 {
        match self.method {
            TableMethod::Perfect { .. } | TableMethod::LinearProbing => self.slots,
            TableMethod::Bucketed => self.slot_bytes() / BUCKET_BYTES,
        }
    }

    /// Returns the maximum number of slots or buckets in which a row of a table by hash may be.
    pub(crate) fn steps_max(&self) -> u64 {
        let slots_of_home = self.slots / self.homes().max(1);
        self.homes().min(STEPS_MAX / slots_of_home.max(1))
    }

    /// Returns the number of bits that a hash is shifted right to give a slot or bucket.
    pub(crate) fn shift(&self) -> u32 {
        u64::BITS - self.homes().max(2).ilog2()
    }
}

/// Returns the hash of a key; as `hash_of` in `rows.cuh`.
#[inline]
pub(crate) fn hash_of(key: u64) -> u64 {
    let hash = key.wrapping_mul(HASH_FIRST);
    (hash ^ (hash >> 32)).wrapping_mul(HASH_SECOND)
}

/// Returns the hash of a composite key, whose first number is the lower half; as `hash_of` in `rows.cuh`.
#[inline]
pub(crate) fn hash_of_composite(key: u128) -> u64 {
    let (first, second) = (key as u64, (key >> 64) as u64);
    hash_of(hash_of(first) ^ second)
}
