//! The bytes that one consumer holds.

use crate::{Account, Full, Share};

/// Maximum bytes that the share may have beyond the bytes held. A larger excess is released.
const EXCESS_BYTES_MAX: usize = 64 << 10;

/// Bytes that a consumer with few bytes usually holds without a charge.
pub const FREE_BYTES: usize = 64 << 10;

/// A count of the bytes that a consumer holds, and the share of an account that covers them.
///
/// The consumer takes bytes before it allocates them. The share grows in steps, so that most calls do not access the
/// account. Dropping the value releases all bytes.
#[derive(Debug, Default)]
pub struct Held {
    share: Share,
    bytes: usize,
    /// Maximum bytes that the consumer may hold without a charge. If it holds more, all bytes are charged.
    free_bytes: usize,
}

impl Held {
    /// Returns a count of no bytes. Charges `account` when more than `free_bytes` are held.
    pub fn new(account: &Account, free_bytes: usize) -> Held {
        Held {
            share: account.share(),
            bytes: 0,
            free_bytes,
        }
    }

    /// Returns the bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more bytes.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the count is unchanged.
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<(), Full> {
        let bytes = self.bytes.saturating_add(bytes);
        if bytes > self.free_bytes {
            self.share.try_cover(bytes)?;
        }
        self.bytes = bytes;
        Ok(())
    }

    /// Releases `bytes`, or all bytes if fewer are held.
    #[inline]
    pub fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.share.bytes() as usize > self.bytes + EXCESS_BYTES_MAX {
            self.share.shrink_to(self.bytes);
        }
    }

    /// Takes or releases bytes, so that exactly `bytes` are held.
    ///
    /// # Errors
    /// [`Full`] if there is no room; the count is unchanged.
    pub fn set(&mut self, bytes: usize) -> Result<(), Full> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.take(more),
            None => {
                self.give_back(self.bytes - bytes);
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_take_changes_nothing() {
        let account = Account::new(1 << 20);
        let mut held = Held::new(&account, FREE_BYTES);
        held.take(FREE_BYTES).expect("it is free");
        assert_eq!(account.figures().used_bytes, 0);
        held.take(500_000).expect("there is room");
        let used_bytes = account.figures().used_bytes;
        assert!(used_bytes >= 565_536);
        held.take(600_000).expect_err("there is no room");
        held.set(usize::MAX).expect_err("there is no room");
        assert_eq!(
            (held.bytes(), account.figures().used_bytes),
            (565_536, used_bytes)
        );
    }

    #[test]
    fn the_share_follows_the_bytes() {
        let account = Account::default();
        let mut held = Held::new(&account, FREE_BYTES);
        for bytes in [0, 65_537, 700_000, 699_000, 20, 300_000, 0] {
            held.set(bytes).expect("there is no limit");
            assert_eq!(held.bytes(), bytes);
            let charged = account.figures().used_bytes as usize;
            assert!(charged >= if bytes > FREE_BYTES { bytes } else { 0 });
            assert!(charged <= bytes + EXCESS_BYTES_MAX);
        }
        held.give_back(1);
        assert_eq!(held.bytes(), 0);
        held.take(1 << 20).expect("there is no limit");
        drop(held);
        assert_eq!(account.figures().used_bytes, 0);
    }
}
