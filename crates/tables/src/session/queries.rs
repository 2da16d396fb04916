//! The queries of statements: how they are planned, and started.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use datafusion::arrow::datatypes::DataType;
use datafusion::scalar::ScalarValue;
use datafusion::sql::parser::Statement;
use futures_util::FutureExt;

use super::{Outcome, Prepared, Session};
use crate::error::{Code, Result, SqlError};
use crate::gpu::no_gpu;
use crate::physical::kept_parameters;
use crate::planned::{Key, Planned};
use crate::rows::{Query, Rows, Running, physical_plan, polled};
use crate::source::as_user;
use crate::{binding, kernels, plan, types};

impl Session {
    /// Plans the query of a statement on a thread of its own, or finds the plan that it had before. `returns_rows` asks
    /// for its columns too.
    pub(super) async fn planned(
        &mut self,
        text: &str,
        statement: Statement,
        declared: &[Option<DataType>],
        returns_rows: bool,
    ) -> Result<Arc<Planned>> {
        Arc::make_mut(&mut self.state).mark_start_execution();
        let state = Arc::clone(&self.state);
        let options = state.config_options();
        let key = Arc::new(Key {
            text: text.to_owned(),
            user: self.user.clone(),
            time_zone: options.execution.time_zone.clone(),
            schema: options.catalog.default_schema.clone(),
            declared: declared.to_vec(),
        });
        let shared = Arc::clone(self.tables.shared());
        let is_kept = !self.is_tuned;
        if is_kept
            && let Some(planned) = self.planned_again(&key)
            && (!returns_rows || planned.known_columns().is_some())
        {
            shared.activity.count_plan(true);
            return Ok(planned);
        }
        let work = async move {
            let changes = shared.catalogue.changes();
            let found = match is_kept {
                true => shared.plans.get(&key, changes).await,
                false => None,
            };
            shared.activity.count_plan(found.is_some());
            let planned = match found {
                Some(planned) => planned,
                None => {
                    let is_local = shared.paths == crate::Paths::Any;
                    Arc::new(Planned::new(&state, key, statement, is_local).await?)
                }
            };
            if returns_rows {
                planned.columns(&state)?;
            }
            if is_kept {
                shared.plans.put(changes, &planned);
            }
            Ok(planned)
        };
        let work = as_user(self.user.clone(), work);
        Running::start_blocking(self.tables.threads(), work)
            .end()
            .await?
    }

    /// Returns the plan of a statement whose physical plan is kept, if its tables are compared without waiting: to
    /// start a thread would take longer.
    fn planned_again(&self, key: &Key) -> Option<Arc<Planned>> {
        let shared = self.tables.shared();
        if !shared.plans.runs_again(key) {
            return None;
        }
        let found = shared.plans.get(key, shared.catalogue.changes());
        let mut found = as_user(self.user.clone(), found).boxed();
        // After a panic, the thread that looks again reports it.
        polled(self.tables.threads(), &mut found)
            .ok()
            .flatten()
            .flatten()
    }

    /// Starts the query of a statement.
    pub(super) async fn rows(
        &mut self,
        prepared: &Prepared,
        parameters: &[ScalarValue],
        verb: &'static str,
    ) -> Result<Rows> {
        let changes = self.tables.shared().catalogue.changes();
        if let Some((before, batch)) = prepared.0.constant.get()
            && *before == changes
        {
            return Ok(Rows::of_batches(
                batch.schema(),
                vec![batch.clone()],
                verb,
                None,
            ));
        }
        let query = self.query_of(prepared, parameters).await?;
        self.start();
        let state = Arc::clone(&self.state);
        let may_be_constant = parameters.is_empty() && plan::is_immutable(query.plan())?;
        let mut rows = Rows::of_query(&self.tables, &self.user, state, query, verb).await?;
        if may_be_constant
            && rows.are_literals()
            && let Some(batch) = rows.next().await?
        {
            let _ = prepared.0.constant.set((changes, batch.clone()));
            return Ok(Rows::of_batches(batch.schema(), vec![batch], verb, None));
        }
        Ok(rows)
    }

    /// Returns the kernels of the parts of a query's plan that a GPU computes.
    ///
    /// # Errors
    /// If there is no GPU, the session does not use it, or the query fails.
    pub(super) async fn kernels(
        &mut self,
        prepared: &Prepared,
        parameters: &[ScalarValue],
    ) -> Result<Outcome> {
        let rule = self.tables.shared().gpu_rules.first().cloned();
        let rule = rule.ok_or_else(|| no_gpu("EXPLAIN (FORMAT kernel) needs a GPU"))?;
        if !self.variables.lock().gpu().is_on {
            let message = "EXPLAIN (FORMAT kernel) needs a GPU, and forebay.gpu is off";
            return Err(
                SqlError::new(Code::ObjectNotInState, message).with_hint("SET forebay.gpu = on")
            );
        }
        let query = self.query_of(prepared, parameters).await?;
        self.start();
        let state = Arc::clone(&self.state);
        let work = async move {
            let plan = physical_plan(&state, &query).await?;
            Ok::<_, SqlError>(rule.kernels(&plan, state.task_ctx()).await?)
        };
        let work = as_user(self.user.clone(), work);
        let text = Running::start_blocking(self.tables.threads(), work)
            .end()
            .await??;
        Ok(Outcome::Rows(kernels::rows(&text)?))
    }

    /// Returns the query of a statement with its parameters.
    pub(super) async fn query_of(
        &mut self,
        prepared: &Prepared,
        parameters: &[ScalarValue],
    ) -> Result<Query> {
        let wanted = prepared.0.parameters.len();
        if parameters.len() < wanted {
            let message = format!(
                "bind message supplies {} parameters, but the statement requires {wanted}",
                parameters.len(),
            );
            return Err(SqlError::new(Code::ProtocolViolation, message));
        }
        let (planned, is_current) = self.current(prepared).await?;
        let bound = match parameters {
            [] => None,
            parameters => Some(binding::bound(planned.plan.clone(), parameters)?),
        };
        Ok(Query {
            planned,
            parameters: kept_parameters(parameters).filter(|_| !self.is_tuned),
            bound,
            is_current,
        })
    }

    /// Returns the query of a statement, and whether its tables were compared now. It is planned again if it ran before
    /// or the catalogue changed, unless its tables are the same.
    ///
    /// # Errors
    /// If its columns would be others.
    async fn current(&mut self, prepared: &Prepared) -> Result<(Arc<Planned>, bool)> {
        let inner = &prepared.0;
        let missing = || SqlError::new(Code::InternalError, "the statement has no query");
        let planned = inner.query.as_ref().ok_or_else(missing)?;
        let is_used = inner.is_used.swap(true, Ordering::Relaxed);
        let is_same = inner.changes == self.tables.shared().catalogue.changes();
        let statement = match inner.command.query() {
            Some(statement) if is_used || !is_same => statement.clone(),
            _ => return Ok((Arc::clone(planned), inner.is_run_at_once)),
        };
        let returns_rows = inner.command.is_query();
        let planned = self
            .planned(
                inner.query_text(),
                statement,
                &inner.parameters,
                returns_rows,
            )
            .await?;
        if returns_rows
            && let (Some(before), Some(after)) = (&inner.columns, planned.known_columns())
            && !types::are_same_columns(before, after)
        {
            let message = "cached plan must not change result type";
            return Err(SqlError::new(Code::FeatureNotSupported, message)
                .with_hint("the table changed: prepare the statement again"));
        }
        Ok((planned, true))
    }
}
