//! The settings of a session.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, StringArray};
use datafusion::arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use datafusion::config::ConfigField;
use datafusion::execution::SessionState;
use datafusion::logical_expr::ScalarUDF;
use datafusion::logical_expr::registry::FunctionRegistry;

use super::Session;
use crate::command::Variable;
use crate::error::{Code, Result, SqlError};
use crate::rows::Rows;

impl Session {
    /// Sets a setting; to its default if there is no value.
    ///
    /// # Errors
    /// If there is no such setting, or it does not take the value.
    pub fn set(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        if name.to_ascii_lowercase().starts_with("datafusion.") {
            return self.set_datafusion(name, value);
        }
        match value {
            Some(value) => {
                let changed = self.variables.lock().set(name, value)?;
                self.changed.extend(changed);
            }
            None => self.reset(Some(name))?,
        }
        self.apply()
    }

    /// Sets a setting of DataFusion itself, for a user of this machine.
    pub(super) fn set_datafusion(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        if self.tables.shared().paths != crate::Paths::Any {
            let message = format!("clients cannot change {name}");
            return Err(SqlError::new(Code::InsufficientPrivilege, message));
        }
        self.is_tuned = true;
        let options = Arc::make_mut(&mut self.state).config_mut().options_mut();
        match value {
            Some(value) => Ok(options.set(name, value)?),
            None => Ok(ConfigField::reset(options, name)?),
        }
    }

    pub(super) fn reset(&mut self, name: Option<&str>) -> Result<()> {
        let changed = self.variables.lock().reset(name)?;
        self.changed.extend(changed);
        self.apply()
    }

    /// Tells DataFusion the settings that it knows.
    pub(super) fn apply(&mut self) -> Result<()> {
        let (zone, path, gpu) = {
            let variables = self.variables.lock();
            let zone = variables.get("timezone")?.to_owned();
            let path = search_schema(variables.get("search_path")?);
            (zone, path, variables.gpu())
        };
        let state = Arc::make_mut(&mut self.state);
        let options = state.config_mut().options_mut();
        options.execution.time_zone = Some(zone);
        options.catalog.default_schema = path;
        options.extensions.insert(gpu);
        update_functions(state);
        Ok(())
    }

    pub(super) fn show(&self, variable: Option<&Variable>) -> Result<Rows> {
        let variables = self.variables.lock();
        let schema = show_columns(variable);
        let columns: Vec<Vec<String>> = match variable {
            Some(Variable(name)) => vec![vec![variables.get(name)?.to_owned()]],
            None => {
                let (names, values) = variables
                    .all()
                    .into_iter()
                    .map(|(name, value)| (name.to_owned(), value))
                    .unzip();
                vec![names, values]
            }
        };
        let arrays = columns
            .into_iter()
            .map(|column| Arc::new(StringArray::from(column)) as _)
            .collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays);
        let batch = batch.map_err(|error| SqlError::new(Code::InternalError, error.to_string()))?;
        Ok(Rows::of_batches(schema, vec![batch], "SHOW", None))
    }

    /// Returns names and values of the settings that clients are told of.
    pub fn reported(&self) -> Vec<(&'static str, String)> {
        self.variables.lock().reported()
    }

    /// Returns the settings that changed since the last call, and that clients are told of.
    pub fn take_changed(&mut self) -> Vec<(&'static str, String)> {
        std::mem::take(&mut self.changed)
    }

    /// Returns the value of a setting; `None` if there is no such setting.
    pub fn setting(&self, name: &str) -> Option<String> {
        self.variables.lock().get(name).ok().map(str::to_owned)
    }
}

/// Makes functions such as `now` use the settings of a session.
fn update_functions(state: &mut SessionState) {
    let options = Arc::clone(state.config_options());
    let functions = state.scalar_functions().values();
    let updated = functions.filter_map(|function| function.inner().with_updated_config(&options));
    let updated: Vec<ScalarUDF> = updated.collect();
    for function in updated {
        if let Err(error) = state.register_udf(Arc::new(function)) {
            tracing::error!(%error, "a function does not know the settings of its session");
        }
    }
}

/// Returns the first schema of a search path that is not the user's own.
pub(super) fn search_schema(path: &str) -> String {
    let names = path.split(',').map(|name| name.trim().trim_matches('"'));
    let mut names = names.filter(|name| !name.is_empty() && *name != "$user");
    names.next().unwrap_or(crate::catalogue::PUBLIC).to_owned()
}

pub(super) fn show_columns(variable: Option<&Variable>) -> SchemaRef {
    let text = |name: &str| Field::new(name, DataType::Utf8, false);
    Arc::new(Schema::new(match variable {
        Some(Variable(name)) => vec![text(name)],
        None => vec![text("name"), text("setting")],
    }))
}
