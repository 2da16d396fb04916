//! `EXPLAIN` with formats that clients of PostgreSQL name: `json` and `text`.

use datafusion::common::format::ExplainStatementOptions;
use datafusion::sql::parser::{DFParser, ExplainStatement, Statement};
use datafusion::sql::sqlparser::ast::{Expr, Ident, UtilityOption};
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::ParserError;

use crate::error::Result;
use crate::parse::failed;

/// PostgreSQL's names of formats, and DataFusion's.
const FORMATS: [(&str, &str); 2] = [("json", "pgjson"), ("text", "indent")];

/// Parses the statement, if the next one is an `EXPLAIN` with a format of PostgreSQL.
///
/// # Errors
/// If another option is wrong, or what follows is no statement.
pub(crate) fn parse(parser: &mut DFParser<'_>) -> Result<Option<Statement>> {
    if !parser.parser.peek_keyword(Keyword::EXPLAIN) {
        return Ok(None);
    }
    let options = parser.parser.maybe_parse(|parser| {
        parser.expect_keyword(Keyword::EXPLAIN)?;
        let mut options = parser.parse_utility_options()?;
        let mut is_renamed = false;
        for option in &mut options {
            is_renamed |= rename(option);
        }
        match is_renamed {
            true => Ok(options),
            false => Err(ParserError::ParserError("another format".to_owned())),
        }
    });
    let Some(options) = options.map_err(failed)? else {
        return Ok(None);
    };
    let options = ExplainStatementOptions::from_utility_options(&options)?;
    let statement = Box::new(parser.parse_statement()?);
    Ok(Some(Statement::Explain(ExplainStatement {
        statement,
        options,
    })))
}

/// Replaces the name of a format by DataFusion's. Returns whether it was PostgreSQL's.
fn rename(option: &mut UtilityOption) -> bool {
    let Some(Expr::Identifier(Ident { value, .. })) = &option.arg else {
        return false;
    };
    let known = FORMATS
        .iter()
        .find(|(known, _)| known.eq_ignore_ascii_case(value));
    let (true, Some((_, name))) = (option.name.value.eq_ignore_ascii_case("format"), known) else {
        return false;
    };
    option.arg = Some(Expr::Identifier(Ident::new(*name)));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Body, parse};
    use datafusion::common::format::ExplainFormat;

    #[test]
    fn formats_have_names_of_postgresql() {
        for (text, expected) in [
            (
                "EXPLAIN (FORMAT json) SELECT 1",
                Some(ExplainFormat::PostgresJSON),
            ),
            (
                "explain (analyze, format JSON) SELECT 1",
                Some(ExplainFormat::PostgresJSON),
            ),
            (
                "EXPLAIN (FORMAT TEXT) SELECT 1",
                Some(ExplainFormat::Indent),
            ),
            ("EXPLAIN (FORMAT tree) SELECT 1", Some(ExplainFormat::Tree)),
            ("EXPLAIN (SELECT 1)", None),
        ] {
            let parsed = parse(text).expect(text).remove(0);
            let Body::Sql(Statement::Explain(explained)) = parsed.body else {
                panic!("{text}: {:?}", parsed.body);
            };
            assert_eq!(explained.options.format, expected, "{text}");
        }
    }
}
