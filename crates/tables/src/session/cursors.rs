//! The cursors of a session.

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::scalar::ScalarValue;

use super::{Outcome, Prepared, Session, TransactionStatus, check_count};
use crate::command::Declared;
use crate::cursor::{Cursor, Scroll};
use crate::error::{Code, Result, SqlError};
use crate::parse::Fetch;
use crate::rows::Rows;

impl Session {
    pub(super) async fn declare(
        &mut self,
        prepared: &Prepared,
        declared: &Declared,
        parameters: Vec<ScalarValue>,
    ) -> Result<Outcome> {
        if !declared.holds && self.transaction_status() == TransactionStatus::Idle {
            let message = "DECLARE CURSOR can only be used in transaction blocks";
            return Err(SqlError::new(Code::NoActiveTransaction, message)
                .with_hint("use BEGIN first, or DECLARE ... CURSOR WITH HOLD"));
        }
        if self.cursors.contains_key(&declared.name) {
            let message = format!("cursor \"{}\" already exists", declared.name);
            return Err(SqlError::new(Code::DuplicateCursor, message));
        }
        check_count(self.cursors.len(), "cursors", "CLOSE")?;
        let rows = self.rows(prepared, &parameters, "SELECT").await?;
        let (query, memory) = (prepared.clone(), self.memory().clone());
        let scroll = match declared.scroll {
            Some(true) => Scroll::Always,
            Some(false) => Scroll::Never,
            None => Scroll::IfSmall,
        };
        let mut cursor = Cursor::new(query, parameters, rows, scroll, declared.holds, &memory);
        cursor.savepoints = self.transaction.savepoints.len();
        self.cursors.insert(declared.name.clone(), cursor);
        Ok(Outcome::Done("DECLARE CURSOR".to_owned()))
    }

    pub(super) async fn fetch(&mut self, fetch: &Fetch) -> Result<Outcome> {
        // The cursor is put back unless the step fails or is cancelled.
        let mut cursor = self
            .cursors
            .remove(&fetch.cursor)
            .ok_or_else(|| no_cursor(&fetch.cursor))?;
        if cursor.restarts(fetch) {
            let (query, parameters) = (cursor.query.clone(), cursor.parameters.clone());
            cursor.restart(self.rows(&query, &parameters, "SELECT").await?);
        }
        let memory = self.memory().clone();
        cursor.set_deadline(self.deadline());
        let result = cursor.step(fetch, &memory).await;
        let schema = cursor.schema().clone();
        let is_usable = match &result {
            Ok(_) => true,
            // The cursor is where it was.
            Err(error) => error.code == Code::ObjectNotInState,
        };
        if is_usable {
            self.cursors.insert(fetch.cursor.clone(), cursor);
        }
        let fetched = result?;
        Ok(match fetched.batches {
            Some(batches) => Outcome::Rows(Rows::of_batches(
                schema,
                batches,
                "FETCH",
                Some(fetched.share),
            )),
            None => Outcome::Done(format!("MOVE {}", fetched.count)),
        })
    }

    /// Returns the columns of a cursor; `None` if there is no such cursor.
    pub fn cursor_columns(&self, name: &str) -> Option<&SchemaRef> {
        self.cursors.get(name).map(Cursor::schema)
    }

    pub(super) fn cursor(&self, name: &str) -> Result<&Cursor> {
        self.cursors.get(name).ok_or_else(|| no_cursor(name))
    }

    pub(super) fn close(&mut self, name: Option<&str>) -> Result<Outcome> {
        match name {
            Some(name) => {
                self.cursors.remove(name).ok_or_else(|| no_cursor(name))?;
                Ok(Outcome::Done("CLOSE CURSOR".to_owned()))
            }
            None => {
                self.cursors.clear();
                Ok(Outcome::Done("CLOSE CURSOR ALL".to_owned()))
            }
        }
    }
}

fn no_cursor(name: &str) -> SqlError {
    SqlError::new(
        Code::InvalidCursorName,
        format!("cursor \"{name}\" does not exist"),
    )
}
