//! `skip` and `limit`.

use forebay_cancel::Stop;

use super::{Row, Stream};
use crate::error::CommandError;

/// A stream without its first documents.
pub struct Skip<S> {
    inner: S,
    left: u64,
}

impl<S: Stream> Skip<S> {
    /// Returns a stream without the first `count` documents of `inner`.
    pub fn new(inner: S, count: u64) -> Skip<S> {
        Skip { inner, left: count }
    }
}

impl<S: Stream> Stream for Skip<S> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        while self.left > 0 {
            if self.inner.next(stop)?.is_none() {
                return Ok(None);
            }
            self.left -= 1;
        }
        self.inner.next(stop)
    }

    fn begin_batch(&mut self, size: u64) {
        self.inner.begin_batch(size.saturating_add(self.left));
    }

    fn rest(&mut self) {
        self.inner.rest();
    }

    fn is_done(&self) -> bool {
        self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short()
    }
}

/// A stream of a limited number of documents.
pub struct Limited<S> {
    inner: S,
    left: u64,
}

impl<S: Stream> Limited<S> {
    /// Returns a stream of the first `count` documents of `inner`.
    pub fn new(inner: S, count: u64) -> Limited<S> {
        Limited { inner, left: count }
    }
}

impl<S: Stream> Stream for Limited<S> {
    fn next(&mut self, stop: &Stop) -> Result<Option<Row>, CommandError> {
        if self.left == 0 {
            return Ok(None);
        }
        let row = self.inner.next(stop)?;
        self.left = if row.is_some() { self.left - 1 } else { 0 };
        Ok(row)
    }

    fn begin_batch(&mut self, size: u64) {
        self.inner.begin_batch(size.min(self.left));
    }

    fn rest(&mut self) {
        self.inner.rest();
    }

    fn is_done(&self) -> bool {
        self.left == 0 || self.inner.is_done()
    }

    fn is_short(&self) -> bool {
        self.inner.is_short()
    }
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;
    use crate::streams::List;

    fn drain(mut stream: impl Stream) -> Vec<i32> {
        let mut found = Vec::new();
        while let Some(row) = stream.next(&Stop::never()).unwrap() {
            found.push(row.get_i32("a").unwrap());
        }
        assert!(stream.next(&Stop::never()).unwrap().is_none());
        found
    }

    #[test]
    fn windows_are_cut_out() {
        let numbers = || List::built((0..10).map(|a| rawdoc! { "a": a }));
        assert_eq!(drain(Limited::new(Skip::new(numbers(), 3), 2)), [3, 4]);
        assert_eq!(drain(Skip::new(Limited::new(numbers(), 5), 3)), [3, 4]);
        assert_eq!(drain(Skip::new(numbers(), 20)), [] as [i32; 0]);
        assert_eq!(drain(Limited::new(numbers(), 20)).len(), 10);
    }
}
