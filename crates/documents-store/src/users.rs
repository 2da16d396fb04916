//! User records, opaque to the store, in its catalogue.

use crate::engine::{Batch, Entries, KeyRange};
use crate::error::Result;
use crate::store::Store;

const USER: u8 = b'u';
/// Catalogue key of the server's secret for authentication, which is stored with the users.
const SECRET: &[u8] = b"k";

/// The users of a store. Every change is synced before the call returns.
pub struct Users<'a> {
    store: &'a Store,
}

impl<'a> Users<'a> {
    pub(crate) fn new(store: &'a Store) -> Self {
        Self { store }
    }

    /// Adds or replaces a user.
    pub fn put(&self, name: &str, record: &[u8]) -> Result<()> {
        let mut batch = Batch::default();
        batch.put(self.store.catalogue(), key(name), record);
        self.store.engine().commit(batch)?;
        self.store.sync()
    }

    /// Returns the record of a user.
    pub fn get(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let record = self
            .store
            .engine()
            .get(self.store.catalogue(), &key(name))?;
        Ok(record.map(|record| record.to_vec()))
    }

    /// Returns the names of all users, in byte order.
    pub fn list(&self) -> Result<Vec<String>> {
        let name = |key: &[u8]| String::from_utf8_lossy(&key[1..]).into_owned();
        self.entries()
            .map(|entry| entry.map(|(key, _)| name(&key)))
            .collect()
    }

    /// Removes a user. Returns whether the user existed.
    pub fn remove(&self, name: &str) -> Result<bool> {
        if self.get(name)?.is_none() {
            return Ok(false);
        }
        let mut batch = Batch::default();
        batch.remove(self.store.catalogue(), key(name));
        self.store.engine().commit(batch)?;
        self.store.sync()?;
        Ok(true)
    }

    /// Returns the server's secret for authentication. If none is stored, stores `fresh` first.
    pub fn secret(&self, fresh: &[u8]) -> Result<Vec<u8>> {
        let catalogue = self.store.catalogue();
        if let Some(kept) = self.store.engine().get(catalogue, SECRET)? {
            return Ok(kept.to_vec());
        }
        let mut batch = Batch::default();
        batch.put(catalogue, SECRET.to_vec(), fresh);
        self.store.engine().commit(batch)?;
        self.store.sync()?;
        Ok(fresh.to_vec())
    }

    fn entries(&self) -> Entries {
        self.store.entries(KeyRange::prefix(&[USER]))
    }
}

fn key(name: &str) -> Vec<u8> {
    let mut key = vec![USER];
    key.extend_from_slice(name.as_bytes());
    key
}
