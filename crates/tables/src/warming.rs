//! Queries that run before clients do, so that their kernels are compiled and cached.

use std::sync::Arc;

use crate::engine::Tables;
use crate::error::{Result, SqlError};
use crate::session::{Outcome, Session};

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

/// A session whose queries wait for their columns and their kernels. It changes no table.
#[derive(Debug)]
pub struct Warming {
    tables: Arc<Tables>,
    session: Session,
}

impl Warming {
    /// Starts a session.
    ///
    /// # Errors
    /// If the engine has no GPU.
    pub async fn start(tables: &Arc<Tables>) -> Result<Warming> {
        let mut session = tables.session(USER);
        session.set_read_only(true);
        let mut warming = Warming {
            tables: Arc::clone(tables),
            session,
        };
        let settings = "SET forebay.gpu = on; SET forebay.compile = wait";
        warming.all(settings).await?;
        Ok(warming)
    }

    /// Runs a query and drops its rows. If the GPU does not compute all that it could, the query runs again, so that
    /// the kernels of its other parts are compiled.
    pub async fn run(&mut self, query: &str) -> Warmed {
        let Err(reason) = self.with_strict("on", query).await else {
            return Warmed::Ran;
        };
        match self.with_strict("off", query).await {
            Ok(()) => Warmed::OnCpu(reason),
            Err(error) => Warmed::Failed(error),
        }
    }

    async fn with_strict(&mut self, is_strict: &str, query: &str) -> Result<()> {
        let setting = format!("SET forebay.strict = {is_strict}");
        self.all(&setting).await?;
        self.all(query).await
    }

    /// Runs statements up to the first that fails.
    async fn all(&mut self, text: &str) -> Result<()> {
        for parsed in self.tables.parse(text).await? {
            match self.session.run(parsed).await? {
                Outcome::Rows(mut rows) => while rows.next().await?.is_some() {},
                Outcome::Done(_) => {}
                Outcome::CopyIn(_) => return Err(SqlError::unsupported("COPY FROM STDIN here")),
            }
        }
        Ok(())
    }
}
