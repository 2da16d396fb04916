//! What a kernel uses besides rows.

use std::collections::HashMap;

use crate::arguments::CONSTANTS_MAX;
use crate::domain::{Domain, Table};
use crate::reason::Reason;

type Result<T> = std::result::Result<T, Reason>;

/// Maximum number of columns of which a thread keeps in registers where it reads them.
pub(crate) const CURSORS_MAX: usize = 16;
/// Maximum number of tables of which a thread keeps in registers where they are.
pub(crate) const KEPT_TABLES_MAX: usize = 8;
/// Maximum number of columns of a list: those without room in registers are looked up for each row that is kept.
const COLUMNS_MAX: usize = 128;
/// Maximum number of tables of a list, which are looked up in the same way.
const TABLES_MAX: usize = 64;
/// Maximum words of more than [`KEPT_TABLES_MAX`] tables, which each query copies to the device.
const TABLE_WORDS_MAX: usize = 8 << 20;

/// What a kernel uses besides rows: shared by the functions of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    /// Indexes of the columns in the table.
    pub(crate) columns: Vec<usize>,
    pub(crate) tables: Vec<Table>,
    pub(crate) constants: Vec<i128>,
    /// Whether the kernel makes a list, so that it may look up columns and tables for each row that is kept.
    pub(crate) may_look_up: bool,
    /// The constants that are the first numbers of domains, by column.
    firsts: HashMap<usize, usize>,
}

impl Uses {
    /// Adds a constant. Equal ones are not shared, as they differ in another query of the shape.
    pub(crate) fn constant(&mut self, number: i128) -> Result<usize> {
        if self.constants.len() == CONSTANTS_MAX {
            let text = format!("the plan has more than {CONSTANTS_MAX} constants");
            return Err(Reason::new(text));
        }
        self.constants.push(number);
        Ok(self.constants.len() - 1)
    }

    pub(crate) fn first(&mut self, domain: &Domain) -> Result<usize> {
        if let Some(known) = self.firsts.get(&domain.column) {
            return Ok(*known);
        }
        let constant = self.constant(domain.first.into())?;
        self.firsts.insert(domain.column, constant);
        Ok(constant)
    }

    pub(crate) fn column(&mut self, column: usize) -> Result<usize> {
        if let Some(known) = self.columns.iter().position(|it| *it == column) {
            return Ok(known);
        }
        let most = if self.may_look_up {
            COLUMNS_MAX
        } else {
            CURSORS_MAX
        };
        if self.columns.len() >= most {
            let text = format!("the plan reads more than {most} columns");
            return Err(Reason::new(text));
        }
        self.columns.push(column);
        Ok(self.columns.len() - 1)
    }

    pub(crate) fn table(&mut self, table: Table) -> Result<usize> {
        if let Some(known) = self.tables.iter().position(|it| *it == table) {
            return Ok(known);
        }
        let most = if self.may_look_up {
            TABLES_MAX
        } else {
            KEPT_TABLES_MAX
        };
        if self.tables.len() >= most {
            let text = format!("the plan needs more than {most} tables over values");
            return Err(Reason::new(text));
        }
        let words: usize = self.tables.iter().chain([&table]).map(Table::len).sum();
        if self.tables.len() >= KEPT_TABLES_MAX && words > TABLE_WORDS_MAX {
            let text = "the texts of the columns have too many different values for a list";
            return Err(Reason::new(text));
        }
        self.tables.push(table);
        Ok(self.tables.len() - 1)
    }
}
