//! Named windows, written out where they are used. DataFusion forgets the name of a window that another extends.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Expr, Ident, NamedWindowExpr, OrderBy, Query, Select, VisitMut, VisitorMut, WindowSpec,
    WindowType,
};

use super::is_name;
use crate::error::{Code, Result, SqlError};

/// Writes out the named windows of a `SELECT` whose rows `order` sorts.
///
/// # Errors
/// If a window extends one in a way that PostgreSQL refuses.
pub(super) fn write_out(select: &mut Select, order: Option<&mut OrderBy>) -> Result<()> {
    if select.named_window.is_empty() {
        return Ok(());
    }
    let mut windows = Windows::default();
    for window in &mut select.named_window {
        let mut spec = match &window.1 {
            NamedWindowExpr::WindowSpec(spec) => spec.clone(),
            NamedWindowExpr::NamedWindow(name) => windows.named(name)?.clone(),
        };
        windows.extend(&mut spec)?;
        windows.named.push((window.0.clone(), spec.clone()));
        window.1 = NamedWindowExpr::WindowSpec(spec);
    }
    let flow = select.projection.visit(&mut windows);
    let flow = match (flow, order) {
        (ControlFlow::Continue(()), Some(order)) => order.visit(&mut windows),
        (flow, _) => flow,
    };
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

/// Refuses a window that extends one without a definition.
///
/// # Errors
/// If the window has a name of another.
pub(super) fn check(over: Option<&WindowType>) -> Result<()> {
    match over {
        Some(WindowType::WindowSpec(WindowSpec {
            window_name: Some(name),
            ..
        })) => Err(missing(name)),
        _ => Ok(()),
    }
}

fn missing(name: &Ident) -> SqlError {
    let message = format!("window \"{}\" does not exist", name.value);
    SqlError::new(Code::UndefinedObject, message)
}

/// Windows with their names.
#[derive(Debug, Default)]
struct Windows {
    named: Vec<(Ident, WindowSpec)>,
    /// Number of queries around an expression.
    depth: usize,
}

impl Windows {
    fn named(&self, name: &Ident) -> Result<&WindowSpec> {
        let mut named = self.named.iter();
        let found = named.find(|(other, _)| is_name(other, name));
        found.map(|(_, spec)| spec).ok_or_else(|| missing(name))
    }

    /// Adds what the window has that another extends.
    fn extend(&self, spec: &mut WindowSpec) -> Result<()> {
        let Some(name) = spec.window_name.take() else {
            return Ok(());
        };
        let base = self.named(&name)?;
        let refused = if !spec.partition_by.is_empty() {
            Some("PARTITION BY of")
        } else if !spec.order_by.is_empty() && !base.order_by.is_empty() {
            Some("ORDER BY of")
        } else {
            base.window_frame.as_ref().map(|_| "the frame of")
        };
        if let Some(part) = refused {
            let message = format!("{part} window \"{}\" cannot be changed", name.value);
            return Err(SqlError::new(Code::SyntaxError, message));
        }
        spec.partition_by.clone_from(&base.partition_by);
        if spec.order_by.is_empty() {
            spec.order_by.clone_from(&base.order_by);
        }
        Ok(())
    }
}

impl VisitorMut for Windows {
    type Break = SqlError;

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<SqlError> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<SqlError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        let Expr::Function(function) = expr else {
            return ControlFlow::Continue(());
        };
        let extended = match &mut function.over {
            Some(WindowType::WindowSpec(spec)) if self.depth == 0 => self.extend(spec),
            Some(WindowType::NamedWindow(name)) if self.depth == 0 => match self.named(name) {
                Ok(spec) => {
                    function.over = Some(WindowType::WindowSpec(spec.clone()));
                    Ok(())
                }
                Err(error) => Err(error),
            },
            _ => Ok(()),
        };
        match extended {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => ControlFlow::Break(error),
        }
    }
}
