//! The dialect in which statements are parsed: PostgreSQL's.

use std::any::TypeId;

use datafusion::sql::sqlparser::ast::Expr;
use datafusion::sql::sqlparser::ast::Statement;
use datafusion::sql::sqlparser::dialect::{Dialect, PostgreSqlDialect, Precedence};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};

/// PostgreSQL's dialect without names of arguments that are expressions. To find such names, sqlparser parses each
/// argument twice, so that 24 calls inside each other took longer than 25 s. `f(name => 1)` is parsed without.
#[derive(Debug)]
pub(crate) struct Postgres(pub(crate) PostgreSqlDialect);

/// Passes methods on to the dialect inside.
macro_rules! delegate {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)+) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.0.$name($($argument),*)
        })+
    };
}

impl Dialect for Postgres {
    fn dialect(&self) -> TypeId {
        self.0.dialect()
    }

    fn supports_named_fn_args_with_expr_name(&self) -> bool {
        false
    }

    /// Parses `IS [NOT] DISTINCT FROM`. sqlparser takes everything after it for its right side, `AND` too.
    fn parse_infix(
        &self,
        parser: &mut Parser<'_>,
        left: &Expr,
        _precedence: u8,
    ) -> Option<Result<Expr, ParserError>> {
        use Keyword::{DISTINCT, FROM, IS, NOT};
        let is_negated = parser.parse_keywords(&[IS, NOT, DISTINCT, FROM]);
        if !is_negated && !parser.parse_keywords(&[IS, DISTINCT, FROM]) {
            return None;
        }
        let right = parser.parse_subexpr(self.prec_value(Precedence::Is));
        Some(right.map(|right| {
            let (left, right) = (Box::new(left.clone()), Box::new(right));
            match is_negated {
                true => Expr::IsNotDistinctFrom(left, right),
                false => Expr::IsDistinctFrom(left, right),
            }
        }))
    }

    /// Parses `ABORT`, which sqlparser lacks.
    fn parse_statement(&self, parser: &mut Parser<'_>) -> Option<Result<Statement, ParserError>> {
        let is_abort = parser.parse_keyword(Keyword::ABORT);
        is_abort.then(|| parser.parse_rollback())
    }

    delegate! {
        identifier_quote_style(identifier: &str) -> Option<char>;
        is_delimited_identifier_start(ch: char) -> bool;
        is_identifier_start(ch: char) -> bool;
        is_identifier_part(ch: char) -> bool;
        supports_unicode_string_literal() -> bool;
        is_reserved_for_identifier(kw: Keyword) -> bool;
        is_custom_operator_part(ch: char) -> bool;
        get_next_precedence(parser: &Parser<'_>) -> Option<Result<u8, ParserError>>;
        supports_filter_during_aggregation() -> bool;
        supports_group_by_expr() -> bool;
        prec_value(prec: Precedence) -> u8;
        allow_extract_custom() -> bool;
        allow_extract_single_quotes() -> bool;
        supports_create_index_with_clause() -> bool;
        supports_explain_with_utility_options() -> bool;
        supports_listen_notify() -> bool;
        supports_factorial_operator() -> bool;
        supports_bitwise_shift_operators() -> bool;
        supports_comment_on() -> bool;
        supports_load_extension() -> bool;
        supports_named_fn_args_with_colon_operator() -> bool;
        supports_empty_projections() -> bool;
        supports_nested_comments() -> bool;
        supports_string_escape_constant() -> bool;
        supports_numeric_literal_underscores() -> bool;
        supports_array_typedef_with_brackets() -> bool;
        supports_geometric_types() -> bool;
        supports_set_names() -> bool;
        supports_alter_column_type_using() -> bool;
        supports_notnull_operator() -> bool;
        supports_interval_options() -> bool;
        supports_insert_table_alias() -> bool;
        supports_create_table_like_parenthesized() -> bool;
        supports_select_wildcard_with_alias() -> bool;
        supports_comma_separated_trim() -> bool;
        supports_xml_expressions() -> bool;
        supports_comment_optimizer_hint() -> bool;
    }
}
