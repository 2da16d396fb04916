//! Queries that run before clients do, so that their kernels are compiled and cached.

use std::sync::Arc;

use crate::engine::Tables;
use crate::error::{Result, SqlError};
use crate::session::Outcome;

/// User of the session.
const USER: &str = "forebay";

/// What a query of a [`Warming`] did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Warmed {
    /// It ran.
    Ran,
    /// It ran, and the CPU computed a part of it, for this reason.
    OnCpu(SqlError),
    /// It failed.
    Failed(SqlError),
}

/// Sessions whose queries wait for their columns and their kernels. They change no table.
#[derive(Debug)]
pub struct Warming {
    tables: Arc<Tables>,
}

impl Warming {
    /// Starts.
    ///
    /// # Errors
    /// If the engine has no GPU.
    pub async fn start(tables: &Arc<Tables>) -> Result<Warming> {
        let warming = Warming {
            tables: Arc::clone(tables),
        };
        warming.run_all("off", "").await?;
        Ok(warming)
    }

    /// Runs a query and drops its rows. If the GPU does not compute all that it could, the query runs again, so that
    /// the kernels of its other parts are compiled.
    pub async fn run(&self, query: &str) -> Warmed {
        let Err(reason) = self.run_all("on", query).await else {
            return Warmed::Ran;
        };
        match self.run_all("off", query).await {
            Ok(()) => Warmed::OnCpu(reason),
            Err(error) => Warmed::Failed(error),
        }
    }

    /// Runs statements up to the first that fails, in a session of their own.
    async fn run_all(&self, is_strict: &str, query: &str) -> Result<()> {
        let mut session = self.tables.session(USER);
        session.set_read_only(true);
        let settings = format!(
            "SET forebay.gpu = on; SET forebay.compile = wait; SET forebay.strict = {is_strict}"
        );
        let mut statements = self.tables.parse(&settings).await?;
        statements.extend(self.tables.parse(query).await?);
        for parsed in statements {
            match session.run(parsed).await? {
                Outcome::Rows(mut rows) => while rows.next().await?.is_some() {},
                Outcome::Done(_) => {}
                Outcome::CopyIn(_) => return Err(SqlError::unsupported("COPY FROM STDIN here")),
            }
        }
        Ok(())
    }
}
