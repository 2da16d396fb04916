//! A cursor over the bytes of a message, which returns slices of `Bytes` without copying.

use bytes::Bytes;

use crate::error::Error;

/// Reads little-endian fields from the front of a message.
#[derive(Debug)]
pub(crate) struct Reader {
    bytes: Bytes,
}

impl Reader {
    pub(crate) fn new(bytes: Bytes) -> Reader {
        Reader { bytes }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Takes the remaining bytes.
    pub(crate) fn rest(&mut self) -> Bytes {
        std::mem::take(&mut self.bytes)
    }

    pub(crate) fn take(&mut self, count: usize, what: &'static str) -> Result<Bytes, Error> {
        if count > self.bytes.len() {
            return Err(Error::Truncated { what });
        }
        Ok(self.bytes.split_to(count))
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, Error> {
        Ok(self.take(1, what)?[0])
    }

    pub(crate) fn i32(&mut self, what: &'static str) -> Result<i32, Error> {
        Ok(i32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub(crate) fn i64(&mut self, what: &'static str) -> Result<i64, Error> {
        Ok(i64::from_le_bytes(self.array(what)?))
    }

    /// Reads a zero-terminated name.
    pub(crate) fn cstring(&mut self, what: &'static str) -> Result<String, Error> {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let end = end.ok_or(Error::Truncated { what })?;
        let name = self.take(end, what)?;
        self.take(1, what)?;
        match std::str::from_utf8(&name) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => Err(Error::NameNotUtf8 { what }),
        }
    }

    /// Reads the bytes of one document, whose length is in its first four bytes. Does not validate its content.
    pub(crate) fn document(&mut self, what: &'static str) -> Result<Bytes, Error> {
        let length = self.peek_i32(what)?;
        let length = usize::try_from(length).map_err(|_| Error::Truncated { what })?;
        self.take(length.max(4), what)
    }

    fn peek_i32(&self, what: &'static str) -> Result<i32, Error> {
        match self.bytes.first_chunk::<4>() {
            Some(length) => Ok(i32::from_le_bytes(*length)),
            None => Err(Error::Truncated { what }),
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], Error> {
        let bytes = self.take(N, what)?;
        let mut array = [0; N];
        array.copy_from_slice(&bytes);
        Ok(array)
    }
}
