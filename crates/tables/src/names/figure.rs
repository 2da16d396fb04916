//! The names that PostgreSQL gives to columns without one (`FigureColname` of its `parse_target.c`).

use datafusion::sql::sqlparser::ast::{
    AccessExpr, ArrayElemTypeDef, DataType, Expr, Function, ObjectName, Query, SelectItem, SetExpr,
    TimezoneInfo,
};

use super::value_of;

/// The name of a column that nothing names.
const UNKNOWN: &str = "?column?";

/// A name, and whether it only stands if nothing better is found.
type Found = Option<(String, Strength)>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Strength {
    /// The name of a type or of `CASE`.
    Weak,
    Strong,
}

/// Returns the name of a column.
pub(super) fn figure(expr: &Expr) -> String {
    found(expr).map_or_else(|| UNKNOWN.to_owned(), |(name, _)| name)
}

fn found(expr: &Expr) -> Found {
    match expr {
        Expr::Identifier(name) => strong(value_of(name)),
        Expr::CompoundIdentifier(parts) => strong(value_of(parts.last()?)),
        Expr::CompoundFieldAccess { root, access_chain } => {
            let mut fields = access_chain.iter().rev();
            let field = fields.find_map(|access| match access {
                AccessExpr::Dot(field) => found(field),
                AccessExpr::Subscript(_) => None,
            });
            field.or_else(|| found(root))
        }
        Expr::Nested(inner) | Expr::Collate { expr: inner, .. } => found(inner),
        Expr::Cast {
            expr, data_type, ..
        } => or_weak(found(expr), type_name(data_type)),
        Expr::TypedString(typed) => weak(type_name(&typed.data_type)),
        Expr::Interval(_) => weak("interval".to_owned()),
        Expr::Case { else_result, .. } => {
            let otherwise = else_result.as_deref().and_then(found);
            or_weak(otherwise, "case".to_owned())
        }
        Expr::Function(function) => strong(function_name(function)?),
        Expr::Subquery(query) => of_query(query),
        other => keyword(other).and_then(|name| strong(name.to_owned())),
    }
}

/// Returns the function that an expression with keywords calls.
fn keyword(expr: &Expr) -> Option<&'static str> {
    use datafusion::sql::sqlparser::ast::TrimWhereField;
    Some(match expr {
        Expr::Array(_) => "array",
        Expr::AtTimeZone { .. } => "timezone",
        Expr::Ceil { .. } => "ceil",
        Expr::Exists { negated: false, .. } => "exists",
        Expr::Extract { .. } => "extract",
        Expr::Floor { .. } => "floor",
        Expr::Overlay { .. } => "overlay",
        Expr::Position { .. } => "position",
        Expr::Substring {
            shorthand: true, ..
        } => "substr",
        Expr::Substring { .. } => "substring",
        Expr::Trim { trim_where, .. } => match trim_where {
            Some(TrimWhereField::Leading) => "ltrim",
            Some(TrimWhereField::Trailing) => "rtrim",
            _ => "btrim",
        },
        Expr::Tuple(_) => "row",
        _ => return None,
    })
}

fn strong(name: String) -> Found {
    Some((name, Strength::Strong))
}

fn weak(name: String) -> Found {
    Some((name, Strength::Weak))
}

fn or_weak(inner: Found, name: String) -> Found {
    match inner {
        Some((_, Strength::Strong)) => inner,
        _ => weak(name),
    }
}

fn function_name(function: &Function) -> Option<String> {
    let name = function.name.0.last()?.as_ident()?;
    Some(value_of(name))
}

/// Returns the name of a query's first column.
fn of_query(query: &Query) -> Found {
    let mut body = &*query.body;
    loop {
        body = match body {
            SetExpr::Query(query) => &query.body,
            SetExpr::SetOperation { left, .. } => left,
            SetExpr::Values(_) => return strong("column1".to_owned()),
            SetExpr::Select(select) => {
                return match select.projection.first()? {
                    SelectItem::UnnamedExpr(expr) => strong(figure(expr)),
                    SelectItem::ExprWithAlias { alias, .. } => strong(value_of(alias)),
                    _ => None,
                };
            }
            _ => return None,
        }
    }
}

/// Returns PostgreSQL's own name of a type.
fn type_name(data_type: &DataType) -> String {
    let name = match data_type {
        DataType::Bool | DataType::Boolean => "bool",
        DataType::Int2(_) | DataType::SmallInt(_) => "int2",
        DataType::Int(_) | DataType::Int4(_) | DataType::Integer(_) => "int4",
        DataType::BigInt(_) | DataType::Int8(_) => "int8",
        DataType::Float4 | DataType::Real => "float4",
        DataType::DoublePrecision | DataType::Float8 | DataType::Double(_) | DataType::Float(_) => {
            "float8"
        }
        DataType::Numeric(_) | DataType::Decimal(_) | DataType::Dec(_) => "numeric",
        DataType::Char(_) | DataType::Character(_) => "bpchar",
        DataType::Varchar(_)
        | DataType::CharVarying(_)
        | DataType::CharacterVarying(_)
        | DataType::Nvarchar(_) => "varchar",
        DataType::Text => "text",
        DataType::Bytea => "bytea",
        DataType::Uuid => "uuid",
        DataType::JSON => "json",
        DataType::JSONB => "jsonb",
        DataType::Regclass => "regclass",
        DataType::Date => "date",
        DataType::Time(_, zone) => match zone {
            TimezoneInfo::WithTimeZone | TimezoneInfo::Tz => "timetz",
            _ => "time",
        },
        DataType::Timestamp(_, zone) => match zone {
            TimezoneInfo::WithTimeZone | TimezoneInfo::Tz => "timestamptz",
            _ => "timestamp",
        },
        DataType::Interval { .. } => "interval",
        DataType::Array(
            ArrayElemTypeDef::SquareBracket(item, _)
            | ArrayElemTypeDef::AngleBracket(item)
            | ArrayElemTypeDef::Parenthesis(item),
        ) => return type_name(item),
        DataType::Custom(name, _) => return last_part(name),
        other => return other.to_string().to_lowercase(),
    };
    name.to_owned()
}

fn last_part(name: &ObjectName) -> String {
    let last = name.0.last().and_then(|part| part.as_ident());
    last.map_or_else(|| name.to_string(), value_of)
}
