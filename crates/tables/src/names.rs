//! Names of result columns, as PostgreSQL has them.
//!
//! DataFusion names a column after its whole expression, such as `count(*)`, and wants the names of a query to be
//! unique. So each column without a name gets the one that PostgreSQL would give it, and columns that share a name get
//! marked names, of which clients see the part before the mark.

mod figure;

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchOptions};
use datafusion::arrow::datatypes::{Schema, SchemaRef};
use datafusion::error::DataFusionError;
use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    self, Distinct, Expr, GroupByExpr, Ident, OrderBy, OrderByKind, Query, Select, SelectItem,
    SetExpr, TableFactor, Visit, VisitMut, Visitor, VisitorMut,
};

use self::figure::figure;
use crate::error::{Code, Result, SqlError};

/// Begins the part of a name that clients do not see: a character without a width.
const MARK: char = '\u{2060}';

/// Names the columns of a statement's queries.
///
/// # Errors
/// If a name in `ORDER BY` is that of several columns.
pub(crate) fn name_columns(statement: &mut Statement) -> Result<()> {
    match statement {
        Statement::Statement(sql) => Namer::default().name_statement(sql),
        Statement::Explain(explained) => name_columns(&mut explained.statement),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => Namer::default().name_all(query, Place::Result),
            CopyToSource::Relation(_) => Ok(()),
        },
        _ => Ok(()),
    }
}

/// Returns whether clients see other names than these.
fn has_marks(schema: &Schema) -> bool {
    let mut fields = schema.fields().iter();
    fields.any(|field| field.name().contains(MARK))
}

/// Returns columns with the names that clients see.
pub(crate) fn shown(schema: &SchemaRef) -> SchemaRef {
    if !has_marks(schema) {
        return Arc::clone(schema);
    }
    let fields = schema.fields().iter().map(|field| {
        let (name, _) = field.name().split_once(MARK).unwrap_or((field.name(), ""));
        field.as_ref().clone().with_name(name)
    });
    let fields: Vec<_> = fields.collect();
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Returns rows whose columns have the names that clients see.
///
/// # Errors
/// Never, as only names change.
pub(crate) fn shown_rows(rows: RecordBatch) -> Result<RecordBatch> {
    if !has_marks(rows.schema_ref()) {
        return Ok(rows);
    }
    let options = RecordBatchOptions::new().with_row_count(Some(rows.num_rows()));
    let (schema, columns, _) = rows.into_parts();
    let renamed = RecordBatch::try_new_with_options(shown(&schema), columns, &options);
    Ok(renamed.map_err(DataFusionError::from)?)
}

/// Refuses columns of the same name.
///
/// # Errors
/// If there are some.
pub(crate) fn check_unique(schema: &Schema) -> Result<()> {
    let mut seen = HashSet::new();
    for field in schema.fields() {
        let (name, _) = field.name().split_once(MARK).unwrap_or((field.name(), ""));
        if !seen.insert(name) {
            let message = format!("column \"{name}\" specified more than once");
            return Err(SqlError::new(Code::DuplicateColumn, message));
        }
    }
    Ok(())
}

/// Where a query stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its rows go to the client.
    Result,
    /// It is a table of another query, which may name its columns.
    Table,
}

/// A column of a `SELECT`.
#[derive(Debug)]
struct Item {
    expr: Expr,
    /// The name that clients see.
    name: String,
    /// Whether the statement tells the name.
    is_named: bool,
    /// The name that DataFusion gets; `None` for that of the column itself.
    alias: Option<Ident>,
}

/// Names columns.
#[derive(Debug, Default)]
struct Namer {
    /// Number of marked names.
    marked: usize,
    error: Option<SqlError>,
}

impl Namer {
    fn name_statement(&mut self, statement: &mut ast::Statement) -> Result<()> {
        match statement {
            ast::Statement::Query(query) => self.name_all(query, Place::Result),
            ast::Statement::CreateView(view) => self.name_all(&mut view.query, Place::Result),
            ast::Statement::Insert(insert) => match &mut insert.source {
                Some(query) => self.name_all(query, Place::Result),
                None => Ok(()),
            },
            ast::Statement::Explain { statement, .. } => self.name_statement(statement),
            _ => Ok(()),
        }
    }

    /// Names the columns of a query and of the queries inside it.
    fn name_all(&mut self, query: &mut Query, place: Place) -> Result<()> {
        self.name_query(query, place);
        let _ = query.visit(self);
        self.error.take().map_or(Ok(()), Err)
    }

    fn name_query(&mut self, query: &mut Query, place: Place) {
        let orders = query.order_by.iter_mut().collect();
        self.name_body(&mut query.body, orders, place);
    }

    /// Names the columns of a query. `orders` sort its rows.
    fn name_body<'a>(
        &mut self,
        body: &'a mut SetExpr,
        mut orders: Vec<&'a mut OrderBy>,
        place: Place,
    ) {
        match body {
            SetExpr::Select(select) => self.name_select(select, orders, place),
            SetExpr::Query(query) => {
                orders.extend(&mut query.order_by);
                self.name_body(&mut query.body, orders, place);
            }
            SetExpr::SetOperation { left, right, .. } => {
                self.name_body(left, orders, place);
                self.name_body(right, Vec::new(), place);
            }
            _ => {}
        }
    }

    fn name_select(&mut self, select: &mut Select, mut orders: Vec<&mut OrderBy>, place: Place) {
        let mut items: Vec<Option<Item>> = select.projection.iter().map(Item::new).collect();
        let has_wildcard = items.iter().any(Option::is_none) && place == Place::Result;
        let (taken, meant) = mentioned(select, &orders);
        let names: Vec<bool> = (0..items.len())
            .map(|index| is_shared(&items, index, place))
            .collect();
        for (item, is_shared) in items.iter_mut().zip(names) {
            let Some(item) = item else { continue };
            let is_taken = taken.contains(&item.name);
            let is_marked = match item.is_named {
                true => (is_shared || has_wildcard) && !is_taken && !meant.contains(&item.name),
                false => is_shared || has_wildcard || (is_taken && !item.is_column()),
            };
            item.alias = match is_marked {
                true => Some(self.mark(&item.name)),
                false if item.is_named || item.is_column() => None,
                false => Some(Ident::with_quote('"', &item.name)),
            };
        }
        for order in &mut orders {
            self.sort_by_aliases(order, &items);
        }
        for (column, item) in select.projection.iter_mut().zip(items) {
            if let Some(Item {
                expr,
                alias: Some(alias),
                ..
            }) = item
            {
                *column = SelectItem::ExprWithAlias { expr, alias };
            }
        }
    }

    fn mark(&mut self, name: &str) -> Ident {
        self.marked += 1;
        Ident::with_quote('"', format!("{name}{MARK}{}", self.marked))
    }

    /// Makes `ORDER BY` use the aliases of the columns that it means.
    fn sort_by_aliases(&mut self, order: &mut OrderBy, items: &[Option<Item>]) {
        let OrderByKind::Expressions(orders) = &mut order.kind else {
            return;
        };
        for order in orders {
            let meant: Vec<&Item> = match &order.expr {
                Expr::Identifier(name) => {
                    let name = value_of(name);
                    let items = items.iter().flatten();
                    items.filter(|item| item.name == name).collect()
                }
                expr => {
                    let items = items.iter().flatten();
                    items.filter(|item| item.expr == *expr).take(1).collect()
                }
            };
            let Some((first, more)) = meant.split_first() else {
                continue;
            };
            if more.iter().any(|item| item.expr != first.expr) {
                let message = format!("ORDER BY \"{}\" is ambiguous", first.name);
                self.error = Some(SqlError::new(Code::AmbiguousColumn, message));
                return;
            }
            if let Some(alias) = &first.alias {
                order.expr = Expr::Identifier(alias.clone());
            }
        }
    }
}

impl VisitorMut for Namer {
    type Break = ();

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<()> {
        for table in query.with.iter_mut().flat_map(|with| &mut with.cte_tables) {
            self.name_query(&mut table.query, Place::Table);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Derived { subquery, .. } = table {
            self.name_query(subquery, Place::Table);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Exists { subquery, .. } = expr {
            self.name_query(subquery, Place::Table);
        }
        ControlFlow::Continue(())
    }
}

impl Item {
    /// Returns a column; `None` if it stands for several.
    fn new(item: &SelectItem) -> Option<Item> {
        let (expr, name, is_named) = match item {
            SelectItem::UnnamedExpr(expr) => (expr, figure(expr), false),
            SelectItem::ExprWithAlias { expr, alias } => (expr, value_of(alias), true),
            _ => return None,
        };
        Some(Item {
            expr: expr.clone(),
            name,
            is_named,
            alias: None,
        })
    }

    /// Returns whether the expression is a column, which has its name already.
    fn is_column(&self) -> bool {
        matches!(self.expr, Expr::Identifier(_) | Expr::CompoundIdentifier(_))
    }
}

/// Returns whether another column has the same name. Columns of different tables may have it in a result.
fn is_shared(items: &[Option<Item>], index: usize, place: Place) -> bool {
    let Some(item) = &items[index] else {
        return false;
    };
    let is_qualified =
        |item: &Item| !item.is_named && matches!(item.expr, Expr::CompoundIdentifier(_));
    let mut others = items.iter().enumerate();
    others.any(|(at, other)| {
        let Some(other) = other else { return false };
        let may_share = place == Place::Result
            && is_qualified(item)
            && is_qualified(other)
            && item.expr != other.expr;
        at != index && other.name == item.name && !may_share
    })
}

/// Returns the names that expressions of a `SELECT` mention: first those that are columns of tables, but that
/// DataFusion would take for columns of the result, and then those that may be either.
fn mentioned(select: &Select, orders: &[&mut OrderBy]) -> (HashSet<String>, HashSet<String>) {
    let mut names = Names::default();
    let _ = select.having.visit(&mut names);
    let _ = select.qualify.visit(&mut names);
    let sorted = orders.iter().filter_map(|order| match &order.kind {
        OrderByKind::Expressions(orders) => Some(orders),
        OrderByKind::All(_) => None,
    });
    for order in sorted.flatten() {
        if !matches!(order.expr, Expr::Identifier(_)) {
            let _ = order.expr.visit(&mut names);
        }
    }
    let mut keys = Names::default();
    if let GroupByExpr::Expressions(grouped, _) = &select.group_by {
        let _ = grouped.visit(&mut keys);
    }
    if let Some(Distinct::On(distinct)) = &select.distinct {
        let _ = distinct.visit(&mut keys);
    }
    (names.0, keys.0)
}

/// Names of columns.
#[derive(Debug, Default)]
struct Names(HashSet<String>);

impl Visitor for Names {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr {
            self.0.insert(value_of(name));
        }
        ControlFlow::Continue(())
    }
}

/// Returns a name as DataFusion has it: in lower case unless it is quoted.
pub(crate) fn value_of(name: &Ident) -> String {
    match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    }
}
