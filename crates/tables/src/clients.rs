//! Questions of clients about the catalogue, written so that DataFusion can answer them.
//!
//! `datafusion-pg-catalog` rewrites most of them. This does it for what is left, before it, and only for statements
//! that contain one of [`WORDS`]. A statement in which nothing is left keeps its text, because that crate compares
//! texts with some that it knows.

use std::ops::ControlFlow;

use datafusion::sql::parser::Statement;
use datafusion::sql::sqlparser::ast::{
    self, AccessExpr, BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr,
    FunctionArguments, Ident, ObjectName, ObjectNamePart, Query, Select, SelectItem, SetExpr,
    TableFactor, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::parser::Parser;

use crate::compatible::TYPE_NAMES;
use crate::system::ADDED;

/// What statements contain that may be rewritten here.
const WORDS: [&str; 5] = [
    "pg_",
    "information_schema",
    "to_regtype",
    "current_catalog",
    "::regtype::text",
];

/// Columns whose values are the names of functions. PostgreSQL compares them with numbers and with `regproc`, too.
const FUNCTION_COLUMNS: [&str; 6] = [
    "typinput",
    "typoutput",
    "typreceive",
    "typsend",
    "typmodin",
    "typmodout",
];

/// Tables without rows, or none that a column differs in.
/// Columns with options of what a table of `pg_catalog` lists.
const OPTION_COLUMNS: [&str; 4] = ["reloptions", "setconfig", "spcoptions", "proconfig"];
const EMPTY_TABLES: [&str; 3] = ["pg_sequence", "pg_attrdef", "pg_collation"];
/// Columns of positions, of indexes and constraints. There are none.
const POSITION_COLUMNS: [&str; 4] = ["indkey", "indclass", "conkey", "confkey"];
/// What is there in place of a position.
const NO_POSITION: &str = "CAST(NULL AS BIGINT)";

/// Rewrites a question about the catalogue. Returns its new text; `None` if there was nothing to rewrite. `schema` is
/// the one in which tables without a schema are looked up.
pub(crate) fn rewrite(statement: &mut Statement, text: &str, schema: &str) -> Option<String> {
    let folded = text.to_ascii_lowercase();
    if !WORDS.iter().any(|word| folded.contains(word)) {
        return None;
    }
    let Statement::Statement(sql) = statement else {
        return None;
    };
    let mut rewriter = Rewriter {
        schema,
        is_for_catalogue: folded.contains("pg_"),
        is_changed: false,
    };
    let _ = sql.visit(&mut rewriter);
    rewriter.is_changed.then(|| sql.to_string())
}

struct Rewriter<'a> {
    schema: &'a str,
    /// Whether subqueries and patterns are rewritten in ways that are right for the catalogue alone.
    is_for_catalogue: bool,
    is_changed: bool,
}

impl VisitorMut for Rewriter<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(expr) = item
                && is_current_catalog(expr)
            {
                self.is_changed = true;
                *item = SelectItem::ExprWithAlias {
                    expr: expr.clone(),
                    alias: Ident::new("current_catalog"),
                };
            }
            let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item
            else {
                continue;
            };
            // `datafusion-pg-catalog` makes a bare subquery NULL if it is correlated.
            if self.is_for_catalogue && matches!(expr, Expr::Subquery(_)) {
                *expr = Expr::Nested(Box::new(expr.clone()));
                self.is_changed = true;
            }
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, table: &mut TableFactor) -> ControlFlow<()> {
        match table {
            TableFactor::Table { name, args, .. } => {
                let is_function = last(name).is_some_and(|name| name == "pg_show_all_settings");
                let found = match &*name.0 {
                    _ if is_function && args.take().is_some() => Ident::new("pg_settings"),
                    [ObjectNamePart::Identifier(only)] if ADDED.contains(&&*only.value) => {
                        only.clone()
                    }
                    _ => return ControlFlow::Continue(()),
                };
                *name = ObjectName::from(vec![Ident::new("pg_catalog"), found]);
                self.is_changed = true;
            }
            TableFactor::UNNEST {
                alias, array_exprs, ..
            } => {
                if let ([array], Some(alias)) = (&**array_exprs, alias)
                    && has_positions(array, true)
                    && let Some(derived) = no_positions(&alias.name)
                {
                    *table = derived;
                    self.is_changed = true;
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if is_current_catalog(expr) {
            self.replace(expr, "current_database()");
        }
        if let Some(number) = named_type(expr) {
            let text = format!("format_type({number}, NULL)");
            self.replace(expr, &text);
        }
        if is_position(expr) {
            self.replace(expr, NO_POSITION);
        }
        if let Some(numbers) = listed_types(expr) {
            let text = format!("{TYPE_NAMES}({numbers})");
            self.replace(expr, &text);
        }
        match expr {
            Expr::BinaryOp {
                left,
                op: BinaryOperator::Eq | BinaryOperator::NotEq,
                right,
            } => {
                self.is_changed |= compare_function(left, right) || compare_function(right, left);
            }
            Expr::Function(function) => {
                if let Some(text) = self.in_place_of(function) {
                    self.replace(expr, &text);
                }
            }
            Expr::Like {
                pattern,
                escape_char,
                ..
            } if self.is_for_catalogue => {
                if let Some(escape) = escape_char.take_if(|escape| escape.to_string() == "'/'") {
                    let text = format!("replace({pattern}, {escape}, '\\')");
                    self.replace(pattern, &text);
                }
            }
            Expr::Subquery(query) if self.is_for_catalogue => {
                if reads_one_of(query, |name| EMPTY_TABLES.contains(&name)) {
                    *expr = Expr::value(Value::Null);
                    self.is_changed = true;
                } else if reads_one_of(query, |name| name.starts_with("pg_")) {
                    self.is_changed |= aggregate(query);
                }
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

impl Rewriter<'_> {
    fn replace(&mut self, expr: &mut Expr, text: &str) {
        replace(expr, text);
        self.is_changed = true;
    }

    /// Returns what is asked in place of a function that reads the catalogue.
    fn in_place_of(&self, function: &Function) -> Option<String> {
        let name = last(&function.name)?;
        if name.eq_ignore_ascii_case("current_catalog") {
            return Some("current_database()".to_owned());
        }
        let argument = first_argument(function)?;
        let schema = self.schema.replace('\'', "''");
        match &*name.to_ascii_lowercase() {
            "unnest" | "generate_subscripts" if has_positions(argument, false) => {
                Some(NO_POSITION.to_owned())
            }
            "_pg_expandarray" => Some(NO_POSITION.to_owned()),
            "array_to_string" if self.is_for_catalogue && reads_options(argument) => {
                Some("CAST(NULL AS text)".to_owned())
            }
            "to_regtype" => Some(format!(
                "((SELECT min(oid) FROM pg_catalog.pg_type WHERE typname = {argument}))"
            )),
            "pg_get_viewdef" => Some(format!(
                "((SELECT min(v.definition) FROM pg_catalog.pg_views v \
                 JOIN pg_catalog.pg_namespace vn ON vn.nspname = v.schemaname \
                 JOIN pg_catalog.pg_class vc ON vc.relname = v.viewname AND vc.relnamespace = vn.oid \
                 WHERE vc.oid = {argument}))"
            )),
            "pg_table_is_visible" => Some(format!(
                "({argument} IN (SELECT vc.oid FROM pg_catalog.pg_class vc \
                 JOIN pg_catalog.pg_namespace vn ON vc.relnamespace = vn.oid \
                 WHERE vn.nspname IN ('pg_catalog', '{schema}')))"
            )),
            _ => None,
        }
    }
}

/// Returns whether an expression begins with a column of privileges or options. All of them are null.
fn reads_options(expr: &Expr) -> bool {
    let name = match expr {
        Expr::BinaryOp { left, .. } => return reads_options(left),
        Expr::CompoundIdentifier(names) => names.last(),
        Expr::Identifier(name) => Some(name),
        _ => None,
    };
    name.is_some_and(|name| name.value.ends_with("acl") || OPTION_COLUMNS.contains(&&*name.value))
}

fn is_current_catalog(expr: &Expr) -> bool {
    let name = match expr {
        Expr::Identifier(name) if name.quote_style.is_none() => Some(&*name.value),
        Expr::Function(function) => last(&function.name),
        _ => None,
    };
    name.is_some_and(|name| name.eq_ignore_ascii_case("current_catalog"))
}

/// Returns whether an expression is one of [`POSITION_COLUMNS`], also without the name of its table if `is_bare`.
fn has_positions(expr: &Expr, is_bare: bool) -> bool {
    let name = match expr {
        Expr::CompoundIdentifier(names) => names.last(),
        Expr::Identifier(name) if is_bare => Some(name),
        _ => None,
    };
    name.is_some_and(|name| POSITION_COLUMNS.contains(&&*name.value))
}

/// Returns whether an expression is a part of what `_pg_expandarray` returns, as `(i.keys).n`.
fn is_position(expr: &Expr) -> bool {
    let Expr::CompoundFieldAccess { root, access_chain } = expr else {
        return false;
    };
    let is_part = match &**access_chain {
        [AccessExpr::Dot(Expr::Identifier(part))] => matches!(&*part.value, "n" | "x"),
        _ => false,
    };
    let Expr::Nested(whole) = &**root else {
        return false;
    };
    is_part
        && match &**whole {
            Expr::CompoundIdentifier(names) => names
                .last()
                .is_some_and(|name| name.value.eq_ignore_ascii_case("keys")),
            whole => whole.to_string() == NO_POSITION,
        }
}

/// Returns the numbers of types that are cast to `regtype[]`.
fn listed_types(expr: &Expr) -> Option<&Expr> {
    let Expr::Cast {
        expr, data_type, ..
    } = expr
    else {
        return None;
    };
    let name = data_type.to_string().to_ascii_lowercase();
    matches!(&*name, "regtype[]" | "pg_catalog.regtype[]").then_some(expr)
}

/// Returns a table without rows and with one column, both of this name.
fn no_positions(name: &Ident) -> Option<TableFactor> {
    let dialect = PostgreSqlDialect {};
    let text = format!("(SELECT {NO_POSITION} AS {name} WHERE false) AS {name}");
    let parser = Parser::new(&dialect).try_with_sql(&text);
    parser
        .and_then(|mut parser| parser.parse_table_factor())
        .ok()
}

/// Returns the number of a type whose name is asked for, as in `atttypid::regtype::text`.
fn named_type(expr: &Expr) -> Option<&Expr> {
    let inner = |expr: &'_ Expr, wanted: &str| match expr {
        Expr::Cast { data_type, .. } => data_type.to_string().eq_ignore_ascii_case(wanted),
        _ => false,
    };
    match expr {
        Expr::Cast { expr: named, .. } if inner(expr, "text") && inner(named, "regtype") => {
            match &**named {
                Expr::Cast { expr: number, .. } if !matches!(**number, Expr::Value(_)) => {
                    Some(number)
                }
                _ => None,
            }
        }
        _ => None,
    }
}

/// Replaces an expression by one that is written as a text.
fn replace(expr: &mut Expr, text: &str) {
    let dialect = PostgreSqlDialect {};
    let parser = Parser::new(&dialect).try_with_sql(text);
    if let Ok(parsed) = parser.and_then(|mut parser| parser.parse_expr()) {
        *expr = parsed;
    }
}

/// Returns the last part of a name, which is in lower case.
fn last(name: &ObjectName) -> Option<&str> {
    let ident = name.0.last()?.as_ident()?;
    Some(&ident.value)
}

fn first_argument(function: &Function) -> Option<&Expr> {
    match &function.args {
        FunctionArguments::List(list) => match list.args.first()? {
            FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
            _ => None,
        },
        _ => None,
    }
}

/// Makes the other side of a comparison a name, if `column` is a function's name. Returns whether it did.
fn compare_function(column: &Expr, other: &mut Expr) -> bool {
    let name = match column {
        Expr::Identifier(name) => name,
        Expr::CompoundIdentifier(names) => match names.last() {
            Some(name) => name,
            None => return false,
        },
        _ => return false,
    };
    if !FUNCTION_COLUMNS.contains(&&*name.value) {
        return false;
    }
    let text = match other {
        // No function.
        Expr::Value(value) if matches!(&value.value, Value::Number(number, _) if number == "0") => {
            "-".to_owned()
        }
        Expr::Cast {
            expr, data_type, ..
        } if data_type
            .to_string()
            .to_ascii_lowercase()
            .ends_with("regproc") =>
        {
            match &**expr {
                Expr::Value(value) => match &value.value {
                    Value::SingleQuotedString(text) => {
                        text.strip_prefix("pg_catalog.").unwrap_or(text).to_owned()
                    }
                    _ => return false,
                },
                _ => return false,
            }
        }
        _ => return false,
    };
    *other = Expr::value(Value::SingleQuotedString(text));
    true
}

/// Returns whether a query reads a table whose name is one of these.
fn reads_one_of(query: &Query, is_one: impl Fn(&str) -> bool) -> bool {
    let SetExpr::Select(select) = &*query.body else {
        return false;
    };
    let tables = select.from.iter().map(|table| &table.relation);
    let mut names = tables.filter_map(|table| match table {
        TableFactor::Table { name, .. } => last(name),
        _ => None,
    });
    names.any(is_one)
}

/// Makes a query that returns at most one row an aggregation, without which DataFusion does not take it as a value.
/// Returns whether it did.
fn aggregate(query: &mut Query) -> bool {
    let SetExpr::Select(select) = &mut *query.body else {
        return false;
    };
    let is_plain = query.limit_clause.is_none()
        && query.fetch.is_none()
        && select.distinct.is_none()
        && select.having.is_none()
        && !select.from.is_empty()
        && matches!(&select.group_by, ast::GroupByExpr::Expressions(keys, _) if keys.is_empty());
    if let [item] = &mut *select.projection
        && is_plain
    {
        let (SelectItem::UnnamedExpr(expr) | SelectItem::ExprWithAlias { expr, .. }) = item else {
            return false;
        };
        if !matches!(expr, Expr::Function(_)) || is_row_function(expr) {
            let text = format!("min({expr})");
            replace(expr, &text);
            return true;
        }
    }
    false
}

/// Returns whether a call is of a function of one row, and no aggregation.
pub(crate) fn is_row_function(expr: &Expr) -> bool {
    let Expr::Function(function) = expr else {
        return false;
    };
    last(&function.name).is_some_and(|name| {
        name.starts_with("pg_") || name.starts_with("json_build") || name == "format_type"
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Body, parse};

    fn rewritten(text: &str) -> Option<String> {
        match parse(text).expect(text).remove(0).body {
            Body::Sql(mut statement) => rewrite(&mut statement, text, "public"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn questions_about_the_catalogue_are_rewritten() {
        for (text, expected) in [
            ("SELECT 1 FROM pg_type", None),
            (
                "SELECT typinput = 'pg_catalog.array_in'::regproc FROM pg_type WHERE t.typreceive <> 0",
                Some("SELECT typinput = 'array_in' FROM pg_type WHERE t.typreceive <> '-'"),
            ),
            (
                "SELECT current_catalog, 1 WHERE current_catalog = 'a'",
                Some(
                    "SELECT current_database() AS current_catalog, 1 WHERE current_database() = 'a'",
                ),
            ),
            (
                "SELECT unnest(pg_index.indkey), generate_subscripts(pg_index.indkey, $1) FROM pg_index",
                Some("SELECT CAST(NULL AS BIGINT), CAST(NULL AS BIGINT) FROM pg_index"),
            ),
            (
                "SELECT pg_a NOT LIKE 'x/_' || '%' ESCAPE '/'",
                Some("SELECT pg_a NOT LIKE replace('x/_' || '%', '/', '\\')"),
            ),
            (
                "SELECT a.atttypid::regtype::text, UNNEST(con.conkey)",
                Some("SELECT format_type(a.atttypid, NULL), CAST(NULL AS BIGINT)"),
            ),
            (
                "SELECT to_regtype($1)",
                Some("SELECT ((SELECT min(oid) FROM pg_catalog.pg_type WHERE typname = $1))"),
            ),
            (
                "SELECT name FROM pg_show_all_settings() s",
                Some("SELECT name FROM pg_catalog.pg_settings s"),
            ),
            (
                "SELECT (SELECT s.a FROM pg_sequence s), (SELECT t.a FROM t), (SELECT c.a FROM pg_class c)",
                Some("SELECT (NULL), ((SELECT t.a FROM t)), ((SELECT min(c.a) FROM pg_class c))"),
            ),
            (
                "SELECT proargtypes::regtype[] FROM pg_proc, pg_user, a.pg_user",
                Some(
                    "SELECT __forebay_type_names(proargtypes) FROM pg_proc, pg_catalog.pg_user, a.pg_user",
                ),
            ),
            (
                "SELECT (information_schema._pg_expandarray(i.indkey)).n, (r.KEYS).x, (r.keys).z FROM i",
                Some("SELECT CAST(NULL AS BIGINT), CAST(NULL AS BIGINT), (r.keys).z FROM i"),
            ),
            (
                "SELECT 1 FROM pg_constraint CROSS JOIN UNNEST(conkey) AS k, UNNEST(a) AS b",
                Some(
                    "SELECT 1 FROM pg_constraint CROSS JOIN (SELECT CAST(NULL AS BIGINT) AS k WHERE false) AS k, \
                     UNNEST(a) AS b",
                ),
            ),
        ] {
            assert_eq!(rewritten(text).as_deref(), expected, "{text}");
        }
    }
}
