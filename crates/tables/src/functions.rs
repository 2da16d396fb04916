//! Functions of PostgreSQL that DataFusion lacks or answers otherwise.

use std::sync::Arc;

use datafusion::arrow::datatypes::DataType;
use datafusion::common::cast::as_string_array;
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::SessionState;
use datafusion::logical_expr::registry::FunctionRegistry;
use datafusion::logical_expr::{ColumnarValue, ScalarUDF, Volatility, create_udf};
use datafusion::prelude::SessionContext;
use datafusion::scalar::ScalarValue;
use parking_lot::Mutex;

use crate::variables::{POSTGRES_VERSION, Variables};

/// Adds the functions that are the same in all sessions.
pub(crate) fn register(context: &SessionContext) {
    context.register_udf(crate::to_char::to_char());
    context.register_udf(crate::types::age());
    context.register_udf(crate::types::pg_typeof());
    context.register_udf(crate::semantics::timezone());
    context.register_udaf(crate::sums::sum());
    register_aliases(context);
    context.register_udf(version());
    context.register_udf(constant("pg_advisory_unlock_all", ""));
    crate::compatible::register(context);
}

/// Adds the names of aggregates that only PostgreSQL has, and the operators of dates.
fn register_aliases(context: &SessionContext) {
    use datafusion::functions_aggregate::bool_and_or::bool_and_udaf;
    use datafusion::functions_aggregate::variance::var_samp_udaf;
    for (aggregate, alias) in [(var_samp_udaf(), "variance"), (bool_and_udaf(), "every")] {
        let aggregate = Arc::unwrap_or_clone(aggregate);
        context.register_udaf(aggregate.with_aliases([alias]));
    }
    let planner = Arc::new(crate::operators::Dates);
    if let Err(error) = context.state_ref().write().register_expr_planner(planner) {
        tracing::error!(%error, "operators of dates are missing");
    }
}

/// Adds the functions of a session.
pub(crate) fn register_session(
    state: &mut SessionState,
    user: &str,
    variables: &Arc<Mutex<Variables>>,
) -> Result<()> {
    state.register_udf(Arc::new(current_setting(Arc::clone(variables))))?;
    state.register_udf(Arc::new(crate::compatible::set_config(Arc::clone(
        variables,
    ))))?;
    for name in ["session_user", "current_user", "current_role", "user"] {
        state.register_udf(Arc::new(constant(name, user)))?;
    }
    state.register_udf(Arc::new(crate::compatible::user_by_id(user)))?;
    Ok(())
}

fn version() -> ScalarUDF {
    let text = format!(
        "PostgreSQL {POSTGRES_VERSION} (Forebay {}, Apache DataFusion {})",
        env!("CARGO_PKG_VERSION"),
        datafusion::DATAFUSION_VERSION,
    );
    constant("version", text.as_str())
}

/// Returns `pg_backend_pid`, the number with which the statements of a session can be cancelled.
pub(crate) fn backend_pid(number: i32) -> ScalarUDF {
    constant("pg_backend_pid", number)
}

/// Returns a function without arguments that returns a value.
fn constant(name: &str, value: impl Into<ScalarValue>) -> ScalarUDF {
    let value = value.into();
    let data_type = value.data_type();
    let implementation = move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(value.clone()));
    create_udf(
        name,
        Vec::new(),
        data_type,
        Volatility::Stable,
        Arc::new(implementation),
    )
}

/// Returns `current_setting`, of a session's settings.
fn current_setting(variables: Arc<Mutex<Variables>>) -> ScalarUDF {
    let implementation = move |arguments: &[ColumnarValue]| {
        let rows = ColumnarValue::values_to_arrays(arguments)?;
        let names = as_string_array(&rows[0])?;
        let variables = variables.lock();
        let value = |name: Option<&str>| {
            let value = name.map(|name| variables.get(name).map(str::to_owned));
            value
                .transpose()
                .map_err(|error| DataFusionError::External(Box::new(error)))
        };
        let values: Result<Vec<Option<String>>> = names.iter().map(value).collect();
        let array = datafusion::arrow::array::StringArray::from(values?);
        Ok(ColumnarValue::Array(Arc::new(array)))
    };
    create_udf(
        "current_setting",
        vec![DataType::Utf8],
        DataType::Utf8,
        Volatility::Stable,
        Arc::new(implementation),
    )
}
