//! The transaction of a session. It only reads.

use super::{Session, check_count};
use crate::error::{Code, Result, SqlError};

/// The state of a session's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransactionStatus {
    /// No transaction is in progress.
    Idle,
    /// In a transaction.
    Active,
    /// In a transaction of which a statement failed.
    Failed,
}

#[derive(Debug, Default)]
pub(super) struct Transaction {
    /// Whether a statement failed; `None` without a transaction.
    pub(super) status: Option<bool>,
    pub(super) savepoints: Vec<String>,
}

impl Session {
    pub(super) fn check_in_transaction(&self, what: &str) -> Result<()> {
        match self.transaction.status {
            Some(_) => Ok(()),
            None => {
                let message = format!("{what} can only be used in transaction blocks");
                Err(SqlError::new(Code::NoActiveTransaction, message))
            }
        }
    }

    pub(super) fn savepoint(&self, name: &str) -> Result<usize> {
        self.check_in_transaction("a savepoint")?;
        let mut names = self.transaction.savepoints.iter();
        names.rposition(|known| known == name).ok_or_else(|| {
            let message = format!("savepoint \"{name}\" does not exist");
            SqlError::new(Code::InvalidSavepoint, message)
        })
    }

    /// Returns the state of the transaction.
    pub fn transaction_status(&self) -> TransactionStatus {
        match self.transaction.status {
            None => TransactionStatus::Idle,
            Some(false) => TransactionStatus::Active,
            Some(true) => TransactionStatus::Failed,
        }
    }

    pub(super) fn begin(&mut self) {
        if self.transaction.status.is_some() {
            let message = "there is already a transaction in progress";
            self.notices
                .push(SqlError::new(Code::ActiveTransaction, message));
            return;
        }
        self.transaction.status = Some(false);
        self.renew_snapshots();
    }

    /// Ends the transaction. Returns the tag: a transaction of which a statement failed is rolled back.
    pub(super) fn commit(&mut self, chain: bool) -> &'static str {
        let status = self.transaction.status.take();
        self.end_transaction(status.is_some() && chain);
        match status {
            Some(true) => "ROLLBACK",
            Some(false) => "COMMIT",
            None => {
                self.warn_no_transaction();
                "COMMIT"
            }
        }
    }

    pub(super) fn rollback(&mut self, chain: bool) {
        let status = self.transaction.status.take();
        if status.is_none() {
            self.warn_no_transaction();
        }
        self.end_transaction(status.is_some() && chain);
    }

    pub(super) fn end_transaction(&mut self, chain: bool) {
        self.cursors.retain(|_, cursor| cursor.holds);
        self.renew_snapshots();
        self.limit_savepoints(0);
        self.transaction = Transaction {
            status: chain.then_some(false),
            savepoints: Vec::new(),
        };
    }

    pub(super) fn warn_no_transaction(&mut self) {
        let message = "there is no transaction in progress";
        self.notices
            .push(SqlError::new(Code::NoActiveTransaction, message));
    }

    /// Makes a savepoint.
    pub(super) fn save(&mut self, name: &str) -> Result<()> {
        self.check_in_transaction("SAVEPOINT")?;
        check_count(self.transaction.savepoints.len(), "savepoints", "RELEASE")?;
        self.transaction.savepoints.push(name.to_owned());
        Ok(())
    }

    /// Goes back to a savepoint, which stays. A transaction that failed goes on. Cursors end that were declared since.
    pub(super) fn rollback_to(&mut self, name: &str) -> Result<()> {
        let index = self.savepoint(name)?;
        self.cursors.retain(|_, cursor| cursor.savepoints <= index);
        self.transaction.savepoints.truncate(index + 1);
        self.transaction.status = Some(false);
        Ok(())
    }

    /// Forgets a savepoint, and those after it.
    pub(super) fn release(&mut self, name: &str) -> Result<()> {
        let index = self.savepoint(name)?;
        self.transaction.savepoints.truncate(index);
        self.limit_savepoints(index);
        Ok(())
    }

    /// Lets all cursors belong to at most the first `count` savepoints.
    fn limit_savepoints(&mut self, count: usize) {
        for cursor in self.cursors.values_mut() {
            cursor.savepoints = cursor.savepoints.min(count);
        }
    }
}
