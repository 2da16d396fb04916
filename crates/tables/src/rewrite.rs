//! Expressions of statements that DataFusion refuses or understands otherwise than PostgreSQL, written in another way.
//!
//! This happens before planning, so types of columns are not known yet. What depends on types is in `semantics`.

mod arrays;
mod constants;
mod joins;
mod literals;
mod numeric;
mod quantified;
mod tuples;
mod types;
mod windows;

use std::ops::ControlFlow;

use datafusion::sql::parser::{CopyToSource, Statement};
use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, BinaryOperator, CharacterLength, DataType, Expr, Function, FunctionArg,
    FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident, LimitClause, ObjectName,
    OrderBy, Query, Select, SelectItem, SetExpr, SetOperator, SetQuantifier, TableAliasColumnDef,
    TableFactor, UnaryOperator, Value, VisitMut, VisitorMut,
};

use crate::error::{Code, Result, SqlError};
use crate::names::value_of;

/// Maximum number of items of an `IN` list that are no constants.
const COMPARED_MAX: usize = 1_000;
/// Maximum number of parts of a row that is compared.
const PARTS_MAX: usize = 200;

/// Rewrites a statement.
///
/// # Errors
/// If it has an operation that the server does not have.
pub(crate) fn rewrite(statement: &mut Statement) -> Result<()> {
    let mut rewriter = Rewriter;
    let flow = match statement {
        Statement::Statement(sql) => sql.visit(&mut rewriter),
        Statement::Explain(explained) => return rewrite(&mut explained.statement),
        Statement::CopyTo(copy) => match &mut copy.source {
            CopyToSource::Query(query) => query.visit(&mut rewriter),
            CopyToSource::Relation(_) => ControlFlow::Continue(()),
        },
        _ => ControlFlow::Continue(()),
    };
    match flow {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(error) => Err(error),
    }
}

#[derive(Debug)]
struct Rewriter;

impl VisitorMut for Rewriter {
    type Break = SqlError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<SqlError> {
        let checked = check_locks(query).and_then(|()| check_set_operations(&query.body));
        let checked = checked.and_then(|()| limit_fetched(query));
        flow(checked.and_then(|()| match &mut *query.body {
            SetExpr::Select(select) => write_out(select, query.order_by.as_mut()),
            _ => Ok(()),
        }))
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<SqlError> {
        select.projection.iter_mut().for_each(unnest_sets);
        flow(write_out(select, None))
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<SqlError> {
        name_column(table);
        flow(check_sample(table))
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<SqlError> {
        if let Expr::Function(function) = expr {
            flow(windows::check(function.over.as_ref()))?;
        }
        match expr {
            Expr::InList { list, .. } => flow(check_list(list))?,
            Expr::Tuple(parts) => flow(check_row(parts))?,
            _ => {}
        }
        if let Some(other) = rewritten(expr) {
            *expr = other;
        }
        ControlFlow::Continue(())
    }
}

fn check_locks(query: &Query) -> Result<()> {
    let Some(lock) = query.locks.first() else {
        return Ok(());
    };
    Err(SqlError::unsupported(lock.to_string())
        .with_hint("leave it out: a query sees one version of its tables, and locks no rows"))
}

/// Writes `FETCH FIRST n ROWS ONLY` as the `LIMIT` that it is.
fn limit_fetched(query: &mut Query) -> Result<()> {
    let Some(fetch) = query.fetch.take() else {
        return Ok(());
    };
    if fetch.with_ties || fetch.percent {
        return Err(SqlError::unsupported(fetch));
    }
    let one = || Expr::value(Value::Number("1".to_owned(), false));
    let count = fetch.quantity.unwrap_or_else(one);
    let none = LimitClause::LimitOffset {
        limit: None,
        offset: None,
        limit_by: Vec::new(),
    };
    match query.limit_clause.get_or_insert(none) {
        LimitClause::LimitOffset {
            limit: limit @ None,
            ..
        } => {
            *limit = Some(count);
            Ok(())
        }
        _ => {
            let message = "multiple LIMIT clauses not allowed";
            Err(SqlError::new(Code::SyntaxError, message))
        }
    }
}

fn check_sample(table: &TableFactor) -> Result<()> {
    match table {
        TableFactor::Table {
            sample: Some(_), ..
        } => Err(SqlError::unsupported("TABLESAMPLE").with_hint("use WHERE random() < 0.01")),
        _ => Ok(()),
    }
}

/// Refuses long lists that become a comparison with each item. Planning takes time with the square of their number.
fn check_list(list: &[Expr]) -> Result<()> {
    if list.len() <= COMPARED_MAX || list.iter().all(is_constant) {
        return Ok(());
    }
    let message = format!(
        "an IN list with rows, columns or functions has {} items, more than {COMPARED_MAX}",
        list.len()
    );
    Err(SqlError::new(Code::StatementTooComplex, message)
        .with_hint("join with a list of values: JOIN (VALUES (1, 2), (3, 4)) v(a, b) ON ..."))
}

/// Refuses long rows, which become comparisons inside each other.
fn check_row(parts: &[Expr]) -> Result<()> {
    if parts.len() <= PARTS_MAX {
        return Ok(());
    }
    let message = format!("a row has {} parts, more than {PARTS_MAX}", parts.len());
    Err(SqlError::new(Code::StatementTooComplex, message))
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Value(_) | Expr::TypedString(_) | Expr::Interval(_) => true,
        Expr::UnaryOp { expr, .. } | Expr::Nested(expr) | Expr::Cast { expr, .. } => {
            is_constant(expr)
        }
        _ => false,
    }
}

fn flow(result: Result<()>) -> ControlFlow<SqlError> {
    match result {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => ControlFlow::Break(error),
    }
}

/// Writes out what DataFusion does not find by its name.
fn write_out(select: &mut Select, mut order: Option<&mut OrderBy>) -> Result<()> {
    joins::write_out(select, order.as_deref_mut())?;
    windows::write_out(select, order)
}

fn rewritten(expr: &mut Expr) -> Option<Expr> {
    prepare(expr);
    match expr {
        Expr::Cast { .. } => recast(expr),
        Expr::SimilarTo {
            negated,
            expr,
            pattern,
            escape_char: None,
        } => similar(expr, pattern, *negated),
        Expr::UnaryOp {
            op: UnaryOperator::BitwiseNot,
            expr,
        } => Some(bitwise_not(taken(expr))),
        Expr::AtTimeZone {
            timestamp,
            time_zone,
        } => Some(call("timezone", vec![taken(time_zone), taken(timestamp)])),
        Expr::AnyOp {
            left,
            compare_op,
            right,
            ..
        } => quantified::compared(left, compare_op, right, false),
        Expr::AllOp {
            left,
            compare_op,
            right,
        } => quantified::compared(left, compare_op, right, true),
        Expr::Function(function) => modulo(function)
            .or_else(|| age_of_today(function))
            .or_else(|| arrays::of_query(function)),
        Expr::IsNull(row) => tuples::null(row, false),
        Expr::IsNotNull(row) => tuples::null(row, true),
        Expr::InList {
            expr,
            list,
            negated,
        } => tuples::listed(expr, list, *negated),
        Expr::BinaryOp { left, op, right } if matches!(**left, Expr::Tuple(_)) => {
            tuples::compared(left, op, right)
        }
        Expr::BinaryOp {
            left,
            op: BinaryOperator::PGStartsWith,
            right,
        } => Some(call("starts_with", vec![taken(left), taken(right)])),
        _ => None,
    }
}

/// Writes the constants of an expression as DataFusion reads them.
fn prepare(expr: &mut Expr) {
    match expr {
        Expr::Value(value) => constants::plain(&mut value.value),
        Expr::Interval(interval) => literals::spell_interval(&mut interval.value),
        Expr::TypedString(typed) => literals::in_micros(&mut typed.data_type),
        Expr::BinaryOp {
            op:
                BinaryOperator::PGRegexMatch
                | BinaryOperator::PGRegexIMatch
                | BinaryOperator::PGRegexNotMatch
                | BinaryOperator::PGRegexNotIMatch,
            right,
            ..
        } => literals::match_newlines(right),
        _ => {}
    }
}

/// Returns what stands for a cast, if it is another expression.
fn recast(expr: &mut Expr) -> Option<Expr> {
    let Expr::Cast {
        expr: inner,
        data_type,
        ..
    } = expr
    else {
        return None;
    };
    constants::prepare(inner, data_type);
    if matches!(data_type, DataType::Interval { .. }) {
        literals::spell_interval(inner);
    }
    literals::in_micros(data_type);
    numeric::measure(inner, data_type);
    let limit = length(data_type);
    types::known(data_type);
    if let Some(array) = literals::array(inner, data_type) {
        return Some(array);
    }
    let (length, is_padded) = limit?;
    Some(limited(taken(expr), length, is_padded))
}

/// Returns `SIMILAR TO` a constant pattern as a match of a regular expression.
fn similar(text: &mut Expr, pattern: &Expr, negated: bool) -> Option<Expr> {
    let Expr::Value(value) = pattern else {
        return None;
    };
    let Value::SingleQuotedString(pattern) = &value.value else {
        return None;
    };
    let pattern = Expr::value(Value::SingleQuotedString(literals::regex(pattern)));
    let op = match negated {
        true => BinaryOperator::PGRegexNotMatch,
        false => BinaryOperator::PGRegexMatch,
    };
    Some(binary(taken(text), op, pattern))
}

/// Returns `~ number`.
fn bitwise_not(number: Expr) -> Expr {
    let minus_one = Expr::UnaryOp {
        op: UnaryOperator::Minus,
        expr: Box::new(Expr::value(Value::Number("1".to_owned(), false))),
    };
    let inverted = binary(number, BinaryOperator::PGBitwiseXor, minus_one);
    Expr::Nested(Box::new(inverted))
}

/// Refuses `INTERSECT ALL` and `EXCEPT ALL`, which DataFusion answers without counting how often a row occurs.
fn check_set_operations(body: &SetExpr) -> Result<()> {
    let SetExpr::SetOperation {
        op,
        set_quantifier,
        left,
        right,
    } = body
    else {
        return Ok(());
    };
    let counts = matches!(
        set_quantifier,
        SetQuantifier::All | SetQuantifier::AllByName
    );
    if counts && *op != SetOperator::Union {
        return Err(SqlError::unsupported(format!("{op} ALL")));
    }
    check_set_operations(left)?;
    check_set_operations(right)
}

/// Returns `mod(a, b)` as `a % b`.
fn modulo(function: &mut Function) -> Option<Expr> {
    if !function.name.to_string().eq_ignore_ascii_case("mod") {
        return None;
    }
    let FunctionArguments::List(list) = &mut function.args else {
        return None;
    };
    let [
        FunctionArg::Unnamed(FunctionArgExpr::Expr(left)),
        FunctionArg::Unnamed(FunctionArgExpr::Expr(right)),
    ] = &mut *list.args
    else {
        return None;
    };
    let nested = |expr: &mut Expr| Expr::Nested(Box::new(taken(expr)));
    let remainder = binary(nested(left), BinaryOperator::Modulo, nested(right));
    Some(Expr::Nested(Box::new(remainder)))
}

/// Returns `age(a)` as `age(current_date, a)`.
fn age_of_today(function: &mut Function) -> Option<Expr> {
    if !function.name.to_string().eq_ignore_ascii_case("age") {
        return None;
    }
    let FunctionArguments::List(list) = &mut function.args else {
        return None;
    };
    let [FunctionArg::Unnamed(FunctionArgExpr::Expr(time))] = &mut *list.args else {
        return None;
    };
    let time = taken(time);
    Some(call("age", vec![call("current_date", Vec::new()), time]))
}

/// Returns the text cut to a length, as casts do.
fn limited(text: Expr, length: u64, is_padded: bool) -> Expr {
    let count = Expr::value(Value::Number(length.to_string(), false));
    let cut = call("left", vec![text, count]);
    match is_padded {
        // PostgreSQL pads, but compares, measures and joins texts without what it padded.
        true => call("rtrim", vec![cut]),
        false => cut,
    }
}

/// Returns the maximum characters of a type, and whether it is padded to them; `None` if there is no maximum.
fn length(data_type: &DataType) -> Option<(u64, bool)> {
    let (length, is_padded) = match data_type {
        DataType::Varchar(length)
        | DataType::CharacterVarying(length)
        | DataType::CharVarying(length) => ((*length)?, false),
        DataType::Char(length) | DataType::Character(length) => {
            let one = CharacterLength::IntegerLength {
                length: 1,
                unit: None,
            };
            ((*length).unwrap_or(one), true)
        }
        _ => return None,
    };
    match length {
        CharacterLength::IntegerLength { length, .. } => Some((length, is_padded)),
        CharacterLength::Max => None,
    }
}

/// Returns the items of an array's text, such as `{a,NULL}`; `None` if it is malformed, or has several dimensions.
pub(crate) fn array_items(text: &str) -> Option<Vec<Option<String>>> {
    let item = Box::new(DataType::Text);
    let data_type = DataType::Array(ArrayElemTypeDef::SquareBracket(item, None));
    let text = Expr::value(Value::SingleQuotedString(text.to_owned()));
    let Expr::Cast { expr, .. } = literals::array(&text, &data_type)? else {
        return None;
    };
    let Expr::Array(array) = *expr else {
        return None;
    };
    let items = array.elem.into_iter().map(|item| match item {
        Expr::Value(value) => match value.value {
            Value::SingleQuotedString(text) => Some(Some(text)),
            Value::Null => Some(None),
            _ => None,
        },
        _ => None,
    });
    items.collect()
}

/// Names the only column of a function that returns rows after the function's alias.
fn name_column(table: &mut TableFactor) {
    let (function, alias) = match table {
        TableFactor::Table {
            name,
            alias,
            args: Some(_),
            with_ordinality: false,
            ..
        } => (name.to_string().to_lowercase(), alias),
        TableFactor::UNNEST {
            alias,
            array_exprs,
            with_ordinality: false,
            ..
        } if array_exprs.len() == 1 => ("unnest".to_owned(), alias),
        _ => return,
    };
    if !matches!(&*function, "generate_series" | "unnest") {
        return;
    }
    if let Some(alias) = alias
        && alias.columns.is_empty()
    {
        alias.columns.push(TableAliasColumnDef {
            name: alias.name.clone(),
            data_type: None,
        });
    }
}

/// Makes functions that return many rows do so in the list of columns.
fn unnest_sets(item: &mut SelectItem) {
    let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
        return;
    };
    let Expr::Function(function) = &mut *expr else {
        return;
    };
    let name = function.name.to_string().to_lowercase();
    match &*name {
        "generate_series" => {}
        "regexp_split_to_table" => rename(function, "regexp_split_to_array"),
        "string_to_table" => rename(function, "string_to_array"),
        _ => return,
    }
    *expr = call("unnest", vec![taken(expr)]);
}

fn rename(function: &mut Function, name: &str) {
    function.name = ObjectName::from(vec![Ident::new(name)]);
}

/// Returns whether two names are the same.
fn is_name(left: &Ident, right: &Ident) -> bool {
    value_of(left) == value_of(right)
}

fn taken(expr: &mut Expr) -> Expr {
    std::mem::replace(expr, Expr::value(Value::Null))
}

fn binary(left: Expr, op: BinaryOperator, right: Expr) -> Expr {
    Expr::BinaryOp {
        left: Box::new(left),
        op,
        right: Box::new(right),
    }
}

/// Returns the call of a function.
fn call(name: &str, arguments: Vec<Expr>) -> Expr {
    let arguments = arguments.into_iter().map(FunctionArgExpr::Expr);
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.map(FunctionArg::Unnamed).collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}
