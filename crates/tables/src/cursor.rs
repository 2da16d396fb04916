//! Cursors: the rows of a query, fetched step by step.

use std::collections::VecDeque;
use std::time::Instant;

use datafusion::arrow::array::RecordBatch;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::scalar::ScalarValue;
use forebay_memory::{Account, Share};

use crate::error::{Code, Result, SqlError};
use crate::parse::{Fetch, Step};
use crate::rows::Rows;
use crate::session::Prepared;

/// Maximum bytes of rows that a cursor keeps to go back, unless it was declared with `SCROLL`.
const KEPT_BYTES_MAX: usize = 8 << 20;

/// A cursor.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) query: Prepared,
    pub(crate) parameters: Vec<ScalarValue>,
    /// Whether the cursor stays open after its transaction.
    pub(crate) holds: bool,
    /// Number of savepoints before the cursor. If it is rolled back to an earlier one, there is no cursor.
    pub(crate) savepoints: usize,
    scroll: Scroll,
    rows: Rows,
    /// Rows that the query returned and no step has passed.
    ahead: VecDeque<RecordBatch>,
    /// The rows that steps have passed. The current row is the last of them. `None` if they are not kept.
    behind: Option<Vec<RecordBatch>>,
    /// Memory of the rows behind.
    share: Share,
    /// Number of rows that steps have passed.
    passed: u64,
    /// Whether the position is after the last row.
    is_after_last: bool,
}

/// Whether a cursor goes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scroll {
    /// `SCROLL`: to any row.
    Always,
    /// Neither: while the rows are few.
    IfSmall,
    /// `NO SCROLL`.
    Never,
}

/// The rows of a step.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// `None` if rows are only counted.
    pub(crate) batches: Option<Vec<RecordBatch>>,
    pub(crate) count: u64,
    pub(crate) share: Share,
}

impl Cursor {
    pub(crate) fn new(
        query: Prepared,
        parameters: Vec<ScalarValue>,
        rows: Rows,
        scroll: Scroll,
        holds: bool,
        memory: &Account,
    ) -> Cursor {
        Cursor {
            query,
            parameters,
            holds,
            savepoints: 0,
            scroll,
            rows,
            ahead: VecDeque::new(),
            behind: (scroll != Scroll::Never).then(Vec::new),
            share: memory.share(),
            passed: 0,
            is_after_last: false,
        }
    }

    pub(crate) fn schema(&self) -> &SchemaRef {
        self.rows.schema()
    }

    /// Sets the time at which the next step fails.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.rows.set_deadline(deadline);
    }

    /// Returns whether the rows must be computed again for this step: it goes back to the first row, and the rows are
    /// no longer kept.
    pub(crate) fn restarts(&self, fetch: &Fetch) -> bool {
        let goes_back = match fetch.step {
            Step::Backward(count) => fetch.moves && count > self.passed,
            Step::Absolute(row) => row >= 0 && row.unsigned_abs() <= self.passed,
            Step::Forward(_) | Step::Relative(_) => false,
        };
        goes_back && self.behind.is_none() && self.scroll == Scroll::IfSmall
    }

    /// Begins before the first of the rows of a new run of the query.
    pub(crate) fn restart(&mut self, rows: Rows) {
        self.rows = rows;
        self.ahead.clear();
        self.share.shrink_to(0);
        self.behind = Some(Vec::new());
        self.passed = 0;
        self.is_after_last = false;
    }

    /// Makes a step. Returns the rows that it passes, or the row at which it ends.
    ///
    /// # Errors
    /// If the query fails, the cursor cannot go back, or the rows need too much memory.
    pub(crate) async fn step(&mut self, fetch: &Fetch, memory: &Account) -> Result<Fetched> {
        let mut fetched = Fetched {
            batches: (!fetch.moves).then(Vec::new),
            count: 0,
            share: memory.share(),
        };
        let out = &mut fetched;
        match fetch.step {
            Step::Forward(0) | Step::Backward(0) | Step::Relative(0) => self.current(out)?,
            Step::Forward(count) => self.forward(count, Some(out)).await?,
            Step::Backward(count) => self.backward(count, Some(out))?,
            Step::Relative(by) if by > 0 => {
                self.forward(by.unsigned_abs() - 1, None).await?;
                self.forward(1, Some(out)).await?;
            }
            Step::Relative(by) => {
                self.backward(by.unsigned_abs() - 1, None)?;
                self.backward(1, Some(out))?;
            }
            Step::Absolute(row) => self.absolute(row, out).await?,
        }
        Ok(fetched)
    }

    async fn absolute(&mut self, row: i64, out: &mut Fetched) -> Result<()> {
        if row < 0 {
            self.forward(u64::MAX, None).await?;
            self.backward(row.unsigned_abs() - 1, None)?;
            return self.backward(1, Some(out));
        }
        let before = row.unsigned_abs().saturating_sub(1);
        while self.passed > before {
            self.unpass()?;
        }
        self.is_after_last = false;
        if row > 0 {
            self.forward(before - self.passed, None).await?;
            self.forward(1, Some(out)).await?;
        }
        Ok(())
    }

    fn current(&mut self, out: &mut Fetched) -> Result<()> {
        match self.is_after_last || self.passed == 0 {
            true => Ok(()),
            false => out.add(self.last_behind()?),
        }
    }

    /// Goes on by `count` rows.
    async fn forward(&mut self, count: u64, mut out: Option<&mut Fetched>) -> Result<()> {
        let mut left = count;
        while left > 0 {
            let Some(batch) = self.next_batch().await? else {
                self.is_after_last = true;
                return Ok(());
            };
            let rows = batch.num_rows();
            let taken = usize::try_from(left).unwrap_or(usize::MAX).min(rows);
            if taken < rows {
                self.ahead.push_front(batch.slice(taken, rows - taken));
            }
            let batch = batch.slice(0, taken);
            if let Some(out) = out.as_deref_mut() {
                out.add(batch.clone())?;
            }
            self.keep(batch)?;
            self.passed += taken as u64;
            left -= taken as u64;
        }
        Ok(())
    }

    async fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.ahead.pop_front() {
            return Ok(Some(batch));
        }
        while let Some(batch) = self.rows.next().await? {
            if batch.num_rows() > 0 {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Keeps rows that were passed, for steps back.
    fn keep(&mut self, batch: RecordBatch) -> Result<()> {
        let Some(behind) = &mut self.behind else {
            return Ok(());
        };
        let bytes = sliced_bytes(&batch);
        let is_small = self.share.bytes() as usize + bytes <= KEPT_BYTES_MAX;
        let is_wanted = is_small || self.scroll == Scroll::Always;
        if is_wanted && self.share.try_grow(bytes).is_ok() {
            behind.push(batch);
            return Ok(());
        }
        if self.scroll == Scroll::Always {
            return Err(no_memory("the rows of a cursor with SCROLL"));
        }
        self.behind = None;
        self.share.shrink_to(0);
        Ok(())
    }

    /// Goes back by `count` rows. The last row comes first.
    fn backward(&mut self, count: u64, mut out: Option<&mut Fetched>) -> Result<()> {
        for _ in 0..count {
            if self.is_after_last {
                self.is_after_last = false;
            } else if self.passed > 0 {
                self.unpass()?;
            }
            if self.passed == 0 {
                return Ok(());
            }
            if let Some(out) = out.as_deref_mut() {
                out.add(self.last_behind()?)?;
            }
        }
        Ok(())
    }

    /// Returns the last row that was passed.
    fn last_behind(&self) -> Result<RecordBatch> {
        let behind = self.behind.as_ref().ok_or_else(only_forward)?;
        let last = behind.last().ok_or_else(only_forward)?;
        Ok(last.slice(last.num_rows() - 1, 1))
    }

    /// Moves the last row that was passed ahead.
    fn unpass(&mut self) -> Result<()> {
        let row = self.last_behind()?;
        let behind = self.behind.as_mut().ok_or_else(only_forward)?;
        if let Some(last) = behind.pop()
            && last.num_rows() > 1
        {
            behind.push(last.slice(0, last.num_rows() - 1));
        }
        self.share.shrink(sliced_bytes(&row));
        self.ahead.push_front(row);
        self.passed -= 1;
        Ok(())
    }
}

fn only_forward() -> SqlError {
    SqlError::new(Code::ObjectNotInState, "cursor can only scan forward")
        .with_hint("declare it with the SCROLL option to go back")
}

impl Fetched {
    fn add(&mut self, batch: RecordBatch) -> Result<()> {
        self.count += batch.num_rows() as u64;
        let Some(batches) = &mut self.batches else {
            return Ok(());
        };
        if self.share.try_grow(sliced_bytes(&batch)).is_err() {
            return Err(no_memory("the rows of a FETCH"));
        }
        batches.push(batch);
        Ok(())
    }
}

fn no_memory(what: &str) -> SqlError {
    SqlError::new(Code::OutOfMemory, format!("there is no memory for {what}"))
        .with_hint("fetch fewer rows at a time, or raise --memory-bytes-max")
}

/// Returns the bytes of a batch. A part of a batch has its part of the bytes.
fn sliced_bytes(batch: &RecordBatch) -> usize {
    let columns = batch.columns().iter();
    let bytes = columns.map(|column| {
        let sliced = column.to_data().get_slice_memory_size();
        sliced.unwrap_or_else(|_| column.get_array_memory_size())
    });
    bytes.sum()
}
