//! Columns that `USING` merges.
//!
//! DataFusion takes the left table's column for the merged one, also where only the right table has a row, and leaves
//! it at its place in `*`. So right and full joins get their condition by `ON`, and merged columns are written out.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, ExcludeSelectItem, Expr, Ident, Join, JoinConstraint, JoinOperator, ObjectName,
    ObjectNamePart, OrderBy, OrderByKind, Query, Select, SelectItem,
    SelectItemQualifiedWildcardKind, TableFactor, TableWithJoins, VisitMut, VisitorMut,
    WildcardAdditionalOptions,
};

use super::{binary, call, is_name};
use crate::error::{Code, Result, SqlError};

/// Maximum number of tables whose columns are merged and written out. Planning time doubles with each.
const MERGED_MAX: usize = 10;

/// Writes out the merged columns of a `SELECT` whose rows `order` sorts.
///
/// # Errors
/// If a merged column cannot be written out.
pub(super) fn write_out(select: &mut Select, order: Option<&mut OrderBy>) -> Result<()> {
    let mut merged = Merged::default();
    for table in &mut select.from {
        merged.join_all(table)?;
    }
    if merged.columns.is_empty() {
        return Ok(());
    }
    merged.expand(select)?;
    if merged.columns.iter().any(|column| column.is_written) {
        merged.replace(select, order);
    }
    Ok(())
}

/// A merged column.
#[derive(Debug)]
struct Column {
    name: Ident,
    value: Expr,
    /// Whether expressions must use the value, as the plan knows no column of this name.
    is_written: bool,
}

/// The merged columns of joins.
#[derive(Debug, Default)]
struct Merged {
    columns: Vec<Column>,
    /// The names of the tables in their order; `None` for those without one.
    tables: Vec<Option<Vec<Ident>>>,
    /// The columns of each `USING`, with the number of tables that it joined.
    lists: Vec<(Vec<Ident>, usize)>,
    /// Whether the order of columns in `*` is not known.
    is_unordered: bool,
}

/// How a join finds its merged columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Left,
    Right,
    Full,
}

impl Merged {
    fn join_all(&mut self, table: &mut TableWithJoins) -> Result<()> {
        let first = self.tables.len();
        self.add(&mut table.relation)?;
        for join in &mut table.joins {
            let left = match self.tables.len() - first {
                1 => self.tables[first].clone(),
                _ => None,
            };
            self.add(&mut join.relation)?;
            let right = self.tables.last().cloned().flatten();
            self.join(join, left, right, first)?;
        }
        Ok(())
    }

    fn add(&mut self, table: &mut TableFactor) -> Result<()> {
        let name = match table {
            TableFactor::Table { name, alias, .. } => match alias {
                Some(alias) => Some(vec![alias.name.clone()]),
                None => name.0.iter().map(|part| part.as_ident().cloned()).collect(),
            },
            TableFactor::Derived { alias, .. }
            | TableFactor::Function { alias, .. }
            | TableFactor::UNNEST { alias, .. } => {
                alias.as_ref().map(|alias| vec![alias.name.clone()])
            }
            TableFactor::NestedJoin {
                table_with_joins,
                alias: None,
            } => {
                self.is_unordered = true;
                self.join_all(table_with_joins)?;
                // It is not one table.
                None
            }
            _ => None,
        };
        self.tables.push(name);
        Ok(())
    }

    fn join(
        &mut self,
        join: &mut Join,
        left: Option<Vec<Ident>>,
        right: Option<Vec<Ident>>,
        first: usize,
    ) -> Result<()> {
        use JoinOperator as Sql;
        let (kind, constraint) = match &mut join.join_operator {
            Sql::Join(constraint)
            | Sql::Inner(constraint)
            | Sql::Left(constraint)
            | Sql::LeftOuter(constraint) => (Kind::Left, constraint),
            Sql::Right(constraint) | Sql::RightOuter(constraint) => (Kind::Right, constraint),
            Sql::FullOuter(constraint) => (Kind::Full, constraint),
            _ => return Ok(()),
        };
        let names = match constraint {
            JoinConstraint::On(condition) => {
                let _ = condition.visit(&mut Replacer::new(&self.columns, true));
                return Ok(());
            }
            JoinConstraint::Natural if kind != Kind::Left => {
                let error = SqlError::unsupported("NATURAL RIGHT JOIN and NATURAL FULL JOIN");
                return Err(error.with_hint("use USING or ON"));
            }
            JoinConstraint::Natural => {
                self.is_unordered = true;
                return Ok(());
            }
            JoinConstraint::Using(names) => names,
            JoinConstraint::None => return Ok(()),
        };
        let names: Option<Vec<Ident>> = names
            .iter()
            .map(|name| match &*name.0 {
                [ObjectNamePart::Identifier(name)] => Some(name.clone()),
                _ => None,
            })
            .collect();
        let Some(names) = names else { return Ok(()) };
        let is_written = kind != Kind::Left
            || names.iter().any(|name| {
                let known = self.position(name);
                known.is_some_and(|index| self.columns[index].is_written)
            });
        if is_written && self.tables.len() > MERGED_MAX {
            let message = format!(
                "RIGHT and FULL joins with USING of {} tables, more than {MERGED_MAX}",
                self.tables.len()
            );
            return Err(SqlError::new(Code::StatementTooComplex, message).with_hint("use ON"));
        }
        let mut condition: Option<Expr> = None;
        for name in &names {
            let equal = self.merge(name, kind, [left.as_deref(), right.as_deref()], is_written)?;
            condition = match (condition, equal) {
                (Some(condition), Some(equal)) => {
                    Some(binary(condition, BinaryOperator::And, equal))
                }
                (condition, equal) => condition.or(equal),
            };
        }
        if let Some(condition) = condition {
            *constraint = JoinConstraint::On(condition);
        }
        self.lists.push((names, self.tables.len() - first));
        Ok(())
    }

    /// Merges a column of two tables. Returns the condition of the join if it is written out.
    fn merge(
        &mut self,
        name: &Ident,
        kind: Kind,
        tables: [Option<&[Ident]>; 2],
        is_written: bool,
    ) -> Result<Option<Expr>> {
        let of = |table: Option<&[Ident]>| {
            table
                .map(|table| Expr::CompoundIdentifier([table, std::slice::from_ref(name)].concat()))
        };
        let known = self.position(name);
        let left = match known {
            Some(index) => Some(self.columns[index].value.clone()),
            None => of(tables[0]),
        };
        let (left, right) = match (left, of(tables[1])) {
            (Some(left), Some(right)) => (left, right),
            _ if is_written => {
                let what = format!("RIGHT or FULL JOIN USING ({name}) of several tables");
                return Err(SqlError::unsupported(what).with_hint("use ON"));
            }
            _ => {
                self.is_unordered = true;
                return Ok(None);
            }
        };
        let equal = binary(left.clone(), BinaryOperator::Eq, right.clone());
        let value = match kind {
            Kind::Left => left,
            Kind::Right => right,
            Kind::Full => call("coalesce", vec![left, right]),
        };
        let column = Column {
            name: name.clone(),
            value,
            is_written,
        };
        match known {
            Some(index) => self.columns[index] = column,
            None => self.columns.push(column),
        }
        Ok(is_written.then_some(equal))
    }

    fn position(&self, name: &Ident) -> Option<usize> {
        let mut columns = self.columns.iter();
        columns.position(|column| is_name(&column.name, name))
    }

    /// Writes out `*`, in which merged columns come first.
    fn expand(&self, select: &mut Select) -> Result<()> {
        let is_star = |item: &SelectItem| match item {
            SelectItem::Wildcard(options) => *options == WildcardAdditionalOptions::default(),
            _ => false,
        };
        if !select.projection.iter().any(is_star) {
            return Ok(());
        }
        let Some(items) = self.items(select.from.len()) else {
            if self.columns.iter().any(|column| column.is_written) {
                let what = "* of a RIGHT or FULL JOIN with USING beside other joins";
                return Err(SqlError::unsupported(what).with_hint("name the columns"));
            }
            return Ok(());
        };
        let old = std::mem::take(&mut select.projection);
        for item in old {
            match is_star(&item) {
                true => select.projection.extend(items.iter().cloned()),
                false => select.projection.push(item),
            }
        }
        Ok(())
    }

    /// Returns what `*` stands for; `None` if this is not known. All lists of `USING` must be the same.
    fn items(&self, from: usize) -> Option<Vec<SelectItem>> {
        let (names, _) = self.lists.first()?;
        let is_same = |list: &[Ident]| {
            list.len() == names.len()
                && list
                    .iter()
                    .zip(names)
                    .all(|(left, right)| is_name(left, right))
        };
        // The first tables share the columns, further ones are joined by other conditions.
        let mut lists = self.lists.iter().enumerate();
        let is_known = !self.is_unordered
            && from == 1
            && lists.all(|(index, (list, tables))| is_same(list) && *tables == index + 2);
        if !is_known {
            return None;
        }
        let merged = names.iter().map(|name| {
            let column = &self.columns[self.position(name)?];
            Some(match column.is_written {
                true => SelectItem::ExprWithAlias {
                    expr: column.value.clone(),
                    alias: name.clone(),
                },
                false => SelectItem::UnnamedExpr(column.value.clone()),
            })
        });
        let sharing = self.lists.len() + 1;
        let tables = self.tables.iter().enumerate().map(|(index, table)| {
            let table = ObjectName::from(table.clone()?);
            let kind = SelectItemQualifiedWildcardKind::ObjectName(table);
            let names = names
                .iter()
                .map(|name| ObjectName::from(vec![name.clone()]));
            let excluded = ExcludeSelectItem::Multiple(names.collect());
            let options = WildcardAdditionalOptions {
                opt_exclude: (index < sharing).then_some(excluded),
                ..WildcardAdditionalOptions::default()
            };
            Some(SelectItem::QualifiedWildcard(kind, options))
        });
        merged.chain(tables).collect()
    }

    /// Replaces the names of merged columns by their values.
    fn replace(&self, select: &mut Select, order: Option<&mut OrderBy>) {
        let mut replacer = Replacer::new(&self.columns, false);
        for item in &mut select.projection {
            if let SelectItem::UnnamedExpr(Expr::Identifier(name)) = item
                && let Some(value) = replacer.value(name)
            {
                *item = SelectItem::ExprWithAlias {
                    expr: value,
                    alias: name.clone(),
                };
            }
            let _ = item.visit(&mut replacer);
        }
        let _ = select.distinct.visit(&mut replacer);
        let _ = select.selection.visit(&mut replacer);
        let _ = select.group_by.visit(&mut replacer);
        let _ = select.having.visit(&mut replacer);
        let _ = select.qualify.visit(&mut replacer);
        let Some(OrderByKind::Expressions(orders)) = order.map(|order| &mut order.kind) else {
            return;
        };
        let is_result = |name: &Ident| {
            select.projection.iter().any(|item| match item {
                SelectItem::ExprWithAlias { alias, .. } => is_name(alias, name),
                _ => false,
            })
        };
        for order in orders {
            // A name alone means a column of the result.
            let is_kept = matches!(&order.expr, Expr::Identifier(name) if is_result(name));
            if !is_kept {
                let _ = order.expr.visit(&mut replacer);
            }
        }
    }
}

/// Replaces names of merged columns outside of subqueries.
struct Replacer<'a> {
    columns: &'a [Column],
    /// Whether columns are replaced that the plan knows by their name.
    is_for_all: bool,
    /// Number of queries around an expression.
    depth: usize,
}

impl Replacer<'_> {
    fn new(columns: &[Column], is_for_all: bool) -> Replacer<'_> {
        Replacer {
            columns,
            is_for_all,
            depth: 0,
        }
    }

    fn value(&self, name: &Ident) -> Option<Expr> {
        let mut columns = self.columns.iter();
        let found = columns.find(|column| is_name(&column.name, name))?;
        (self.is_for_all || found.is_written).then(|| found.value.clone())
    }
}

impl VisitorMut for Replacer<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &mut Query) -> ControlFlow<()> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(name) = expr
            && self.depth == 0
            && let Some(value) = self.value(name)
        {
            *expr = value;
        }
        ControlFlow::Continue(())
    }
}
