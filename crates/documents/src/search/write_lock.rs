//! The lock of a collection's writers: one writes to the store while the caches follow the one before.

use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

/// Orders the writers of a collection. It has two parts, taken in this order: the store's, from reading what is to be
/// changed until it is written, and the caches', until they have followed. Whoever has the store's part waits for the
/// caches' before giving it up, so caches follow in the order of the writes.
#[derive(Clone, Debug, Default)]
pub struct WriteLock(Arc<Parts>);

#[derive(Debug, Default)]
struct Parts {
    store: Mutex<()>,
    caches: Mutex<()>,
}

/// Both parts of a [`WriteLock`]: nobody writes, and the caches have followed all that was written.
#[derive(Debug)]
pub struct Held<'a> {
    caches: MutexGuard<'a, ()>,
    store: MutexGuard<'a, ()>,
}

/// The store's part of a [`WriteLock`]: nobody else writes, but caches may still follow the write before.
#[derive(Debug)]
pub struct HeldStore<'a> {
    parts: &'a Parts,
    store: MutexGuard<'a, ()>,
}

impl WriteLock {
    /// Waits for both parts.
    pub fn lock(&self) -> Held<'_> {
        let store = self.0.store.lock();
        let caches = self.0.caches.lock();
        Held { caches, store }
    }

    /// Takes both parts if they are free.
    pub fn try_lock(&self) -> Option<Held<'_>> {
        let store = self.0.store.try_lock()?;
        let caches = self.0.caches.try_lock()?;
        Some(Held { caches, store })
    }

    /// Waits for the store's part.
    pub fn lock_store(&self) -> HeldStore<'_> {
        self.held_store(self.0.store.lock())
    }

    /// Takes the store's part if it is free.
    pub fn try_lock_store(&self) -> Option<HeldStore<'_>> {
        self.0.store.try_lock().map(|store| self.held_store(store))
    }

    fn held_store<'a>(&'a self, store: MutexGuard<'a, ()>) -> HeldStore<'a> {
        HeldStore {
            parts: &self.0,
            store,
        }
    }
}

impl Held<'_> {
    /// Gives both parts to whoever waits for them.
    pub fn unlock_fair(self) {
        MutexGuard::unlock_fair(self.caches);
        MutexGuard::unlock_fair(self.store);
    }
}

impl<'a> HeldStore<'a> {
    /// Goes on to the caches' part if it is free.
    ///
    /// # Errors
    /// The store's part, still held, if caches follow the write before.
    pub fn try_follow(self) -> Result<MutexGuard<'a, ()>, HeldStore<'a>> {
        match self.parts.caches.try_lock() {
            Some(caches) => Ok(caches),
            None => Err(self),
        }
    }

    /// Goes on to the caches' part: the next writer may have the store.
    pub fn follow(self) -> MutexGuard<'a, ()> {
        let caches = self.parts.caches.lock();
        drop(self.store);
        caches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_is_free_while_caches_follow() {
        let lock = WriteLock::default();
        let caches = lock.lock_store().follow();
        assert!(lock.try_lock().is_none(), "the caches have not followed");
        let next = lock.try_lock_store().expect("the store is free");
        assert!(lock.try_lock_store().is_none());
        drop(caches);
        drop(next.follow());
        lock.try_lock().expect("all is done").unlock_fair();
    }

    #[test]
    fn caches_follow_in_the_order_of_writes() {
        let lock = WriteLock::default();
        let (written, followed) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for writer in 0..4 {
                let (lock, written, followed) = (lock.clone(), &written, &followed);
                scope.spawn(move || {
                    for write in 0..500 {
                        let held = lock.lock_store();
                        written.lock().push((writer, write));
                        let _caches = held.follow();
                        followed.lock().push((writer, write));
                    }
                });
            }
        });
        assert_eq!(written.into_inner(), followed.into_inner());
    }
}
