//! Parsing: the text of a client to statements.

use std::sync::Arc;

use datafusion::error::DataFusionError;
use datafusion::sql::parser::{DFParser, DFParserBuilder, Statement};
use datafusion::sql::sqlparser::ast::{self, Ident};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::{Location, Token};

use forebay_memory::Share;

use crate::complexity;
use crate::copy::{self, CopyFrom, CopyOut};
use crate::declaration::{self, AlterTable};
use crate::dialect::Postgres;
use crate::error::{Code, Result, SqlError};
use crate::expansion;
use crate::explain;
use crate::kernels::{self, ExplainKernels};

/// Maximum bytes of a text. PostgreSQL takes a gigabyte; the tree of a statement takes many times the bytes of its
/// text.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Maximum nesting of expressions and queries.
const DEPTH_MAX: usize = 200;

/// A statement and its text.
#[derive(Debug, Clone)]
pub struct Parsed {
    /// The statement's part of the client's text.
    pub text: String,
    pub(crate) body: Body,
    /// The memory of the statement, if it is long.
    pub(crate) share: Option<Arc<Share>>,
}

impl Parsed {
    /// Returns the name of a cursor and a count of rows, if the statement is a `MOVE` that goes on by them.
    pub fn moved(&self) -> Option<(&str, u64)> {
        match &self.body {
            Body::Fetch(Fetch {
                cursor,
                step: Step::Forward(count),
                moves: true,
            }) => Some((cursor, *count)),
            _ => None,
        }
    }
}

/// A statement.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// Any statement but those below.
    Sql(Statement),
    /// `COPY` to the client.
    Copy(Box<CopyOut>),
    /// `COPY` from the client.
    CopyFrom(Box<CopyFrom>),
    /// `FETCH` or `MOVE`.
    Fetch(Fetch),
    /// `ALTER TABLE` that sets or resets options.
    AlterTable(Box<AlterTable>),
    /// `EXPLAIN (FORMAT kernel)`.
    ExplainKernels(Box<ExplainKernels>),
}

/// `FETCH`, or `MOVE` if `moves`: the rows are then not returned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fetch {
    pub(crate) cursor: String,
    pub(crate) step: Step,
    pub(crate) moves: bool,
}

/// Where a cursor goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// This many rows on; `u64::MAX` for all.
    Forward(u64),
    /// This many rows back; `u64::MAX` for all.
    Backward(u64),
    /// To the row of this number, counted from 1, or from the end if it is negative. 0 is before the first.
    Absolute(i64),
    /// To the row that is this far away.
    Relative(i64),
}

/// Parses statements, which semicolons separate.
///
/// # Errors
/// If the text is too long, or a statement cannot be parsed.
pub fn parse(text: &str) -> Result<Vec<Parsed>> {
    if text.len() > TEXT_BYTES_MAX {
        let message = format!(
            "a statement of {} bytes is longer than {TEXT_BYTES_MAX}",
            text.len()
        );
        return Err(SqlError::new(Code::StatementTooComplex, message)
            .with_hint("put long lists into a file, and join it"));
    }
    complexity::check(text)?;
    let dialect = Postgres(PostgreSqlDialect {});
    let builder = DFParserBuilder::new(text).with_dialect(&dialect);
    let mut parser = builder.with_recursion_limit(DEPTH_MAX).build()?;
    let lines = Lines::new(text);
    let mut parsed = Vec::new();
    loop {
        while parser.parser.consume_token(&Token::SemiColon) {}
        let first = parser.parser.peek_token();
        if first == Token::EOF {
            return Ok(parsed);
        }
        let statement = parse_one(&mut parser)?;
        let next = parser.parser.peek_token();
        if !matches!(next.token, Token::SemiColon | Token::EOF) {
            let found = format!(
                "Expected: end of statement, found: {next}{}",
                next.span.start
            );
            return Err(failed(ParserError::ParserError(found)));
        }
        let end = match next.token {
            Token::EOF => text.len(),
            _ => lines.offset(next.span.start),
        };
        match &statement {
            Body::Sql(statement) => expansion::check(statement)?,
            Body::Copy(copied) => expansion::check(&copied.statement)?,
            Body::ExplainKernels(explained) => expansion::check(&explained.statement)?,
            Body::AlterTable(_) | Body::CopyFrom(_) | Body::Fetch(_) => {}
        }
        parsed.push(Parsed {
            share: None,
            text: text[lines.offset(first.span.start)..end].trim().to_owned(),
            body: statement,
        });
    }
}

fn parse_one(parser: &mut DFParser<'_>) -> Result<Body> {
    if let Some(moves) = fetches(parser) {
        parser.parser.next_token();
        let fetch = parse_fetch(&mut parser.parser, moves).map_err(failed)?;
        return Ok(Body::Fetch(fetch));
    }
    if kernels::are_explained(parser) {
        let explained = kernels::parse(parser)?;
        return Ok(Body::ExplainKernels(Box::new(explained)));
    }
    if let Some(explained) = explain::parse(parser)? {
        return Ok(Body::Sql(explained));
    }
    if let Some(alter) = declaration::parse(&mut parser.parser)? {
        return Ok(Body::AlterTable(Box::new(alter)));
    }
    match copy::place(parser) {
        Some(copy::Place::Client) => {
            let copied = copy::parse(&mut parser.parser)?;
            Ok(Body::Copy(Box::new(copied)))
        }
        Some(copy::Place::FromClient) => {
            let copied = copy::parse_from(&mut parser.parser)?;
            Ok(Body::CopyFrom(Box::new(copied)))
        }
        Some(copy::Place::Refused(what)) => Err(copy::refused(what)),
        Some(copy::Place::File) | None => {
            let mut statement = parser.parse_statement()?;
            empty_unless_data(&mut parser.parser, &mut statement).map_err(failed)?;
            if is_about_transactions(&statement) {
                // sqlparser does not know this mode, which changes nothing where transactions only read.
                let _not = parser.parser.parse_keyword(Keyword::NOT);
                let _mode = parser.parser.parse_keyword(Keyword::DEFERRABLE);
            }
            Ok(Body::Sql(statement))
        }
    }
}

/// Parses `WITH NO DATA` of a `CREATE TABLE AS`, which sqlparser does not know. Its query then returns no rows.
fn empty_unless_data(
    parser: &mut Parser<'_>,
    statement: &mut Statement,
) -> Result<(), ParserError> {
    let Statement::Statement(sql) = statement else {
        return Ok(());
    };
    let ast::Statement::CreateTable(ast::CreateTable {
        query: Some(query), ..
    }) = &mut **sql
    else {
        return Ok(());
    };
    if !parser.parse_keyword(Keyword::WITH) {
        return Ok(());
    }
    let is_empty = parser.parse_keyword(Keyword::NO);
    parser.expect_keyword(Keyword::DATA)?;
    if is_empty {
        let zero = ast::Value::Number("0".to_owned(), false);
        query.limit_clause = Some(ast::LimitClause::LimitOffset {
            limit: Some(ast::Expr::value(zero)),
            offset: None,
            limit_by: Vec::new(),
        });
    }
    Ok(())
}

/// Returns whether a statement may end with modes of transactions.
fn is_about_transactions(statement: &Statement) -> bool {
    let Statement::Statement(sql) = statement else {
        return false;
    };
    matches!(
        **sql,
        ast::Statement::StartTransaction { .. }
            | ast::Statement::Set(ast::Set::SetTransaction { .. })
    )
}

pub(crate) fn failed(error: ParserError) -> SqlError {
    DataFusionError::SQL(Box::new(error), None).into()
}

/// Returns whether the next statement is a `MOVE`; `None` if it is no `FETCH` either. sqlparser has no `MOVE`, and not
/// all forms of `FETCH`.
fn fetches(parser: &DFParser<'_>) -> Option<bool> {
    match &parser.parser.peek_token().token {
        Token::Word(word) if word.quote_style.is_none() => {
            match &*word.value.to_ascii_uppercase() {
                "FETCH" => Some(false),
                "MOVE" => Some(true),
                _ => None,
            }
        }
        _ => None,
    }
}

fn parse_fetch(parser: &mut Parser<'_>, moves: bool) -> Result<Fetch, ParserError> {
    let step = parse_step(parser)?;
    let _from = parser.parse_one_of_keywords(&[Keyword::FROM, Keyword::IN]);
    let cursor = parser.parse_identifier()?;
    Ok(Fetch {
        cursor: folded(&cursor),
        step,
        moves,
    })
}

fn parse_step(parser: &mut Parser<'_>) -> Result<Step, ParserError> {
    const WORDS: &[Keyword] = &[
        Keyword::NEXT,
        Keyword::PRIOR,
        Keyword::FIRST,
        Keyword::LAST,
        Keyword::ABSOLUTE,
        Keyword::RELATIVE,
        Keyword::FORWARD,
        Keyword::BACKWARD,
        Keyword::ALL,
    ];
    let step = match parser.parse_one_of_keywords(WORDS) {
        Some(Keyword::PRIOR) => Step::Backward(1),
        Some(Keyword::FIRST) => Step::Absolute(1),
        Some(Keyword::LAST) => Step::Absolute(-1),
        Some(Keyword::ABSOLUTE) => Step::Absolute(parse_count(parser)?.unwrap_or(0)),
        Some(Keyword::RELATIVE) => Step::Relative(parse_count(parser)?.unwrap_or(0)),
        Some(Keyword::ALL) => Step::Forward(u64::MAX),
        Some(Keyword::BACKWARD) => match parser.parse_keyword(Keyword::ALL) {
            true => Step::Backward(u64::MAX),
            false => by(-parse_count(parser)?.unwrap_or(1)),
        },
        Some(Keyword::FORWARD) if parser.parse_keyword(Keyword::ALL) => Step::Forward(u64::MAX),
        _ => by(parse_count(parser)?.unwrap_or(1)),
    };
    Ok(step)
}

fn by(count: i64) -> Step {
    match count {
        0.. => Step::Forward(count.unsigned_abs()),
        _ => Step::Backward(count.unsigned_abs()),
    }
}

/// Parses a number with its sign, if there is one. Numbers of PostgreSQL's cursors have 32 bits.
fn parse_count(parser: &mut Parser<'_>) -> Result<Option<i64>, ParserError> {
    let is_negative = parser.consume_token(&Token::Minus);
    let Token::Number(text, _) = &parser.peek_token().token else {
        return Ok(None);
    };
    let number: i32 = text
        .parse()
        .map_err(|_| ParserError::ParserError(format!("{text} is not a count of rows")))?;
    parser.next_token();
    let number = i64::from(number);
    Ok(Some(if is_negative { -number } else { number }))
}

/// Maximum bytes of a name. PostgreSQL cuts longer ones, too.
const NAME_BYTES_MAX: usize = 63;

/// Returns a name as PostgreSQL stores it: in lower case unless it is quoted, and not too long.
pub(crate) fn folded(name: &Ident) -> String {
    let cut = &name.value[..name.value.floor_char_boundary(NAME_BYTES_MAX)];
    match name.quote_style {
        Some(_) => cut.to_owned(),
        None => cut.to_lowercase(),
    }
}

/// The offsets of the lines of a text.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
    /// Whether columns count bytes.
    is_ascii: bool,
}

impl Lines<'_> {
    fn new(text: &str) -> Lines<'_> {
        let breaks = text.match_indices('\n').map(|(offset, _)| offset + 1);
        Lines {
            text,
            is_ascii: text.is_ascii(),
            starts: std::iter::once(0).chain(breaks).collect(),
        }
    }

    /// Returns the offset in bytes of a place.
    fn offset(&self, place: Location) -> usize {
        if self.is_ascii {
            let line = (place.line as usize).saturating_sub(1);
            let start = self.starts.get(line).copied().unwrap_or(self.text.len());
            return (start + (place.column as usize).saturating_sub(1)).min(self.text.len());
        }
        let line = (place.line as usize).saturating_sub(1);
        let start = self.starts.get(line).copied().unwrap_or(self.text.len());
        let column = (place.column as usize).saturating_sub(1);
        let mut letters = self.text[start..].char_indices();
        letters
            .nth(column)
            .map_or(self.text.len(), |(offset, _)| start + offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        let parsed = parse(text).expect("statements");
        parsed.into_iter().map(|parsed| parsed.text).collect()
    }

    #[test]
    fn statements_keep_their_texts() {
        let text = "SELECT ';é' ;;\n-- a comment\nSELECT 2;COPY t TO STDOUT (FORMAT csv); EXPLAIN SELECT 3";
        assert_eq!(
            texts(text),
            [
                "SELECT ';é'",
                "SELECT 2",
                "COPY t TO STDOUT (FORMAT csv)",
                "EXPLAIN SELECT 3"
            ]
        );
        assert!(texts(" ;; -- nothing").is_empty());
    }

    #[test]
    fn steps_of_cursors_are_those_of_postgresql() {
        for (text, step, moves) in [
            ("FETCH c", Step::Forward(1), false),
            ("fetch forward from c", Step::Forward(1), false),
            ("FETCH 10 FROM c", Step::Forward(10), false),
            ("FETCH -3 IN c", Step::Backward(3), false),
            ("FETCH ALL c", Step::Forward(u64::MAX), false),
            ("MOVE BACKWARD ALL IN c", Step::Backward(u64::MAX), true),
            ("MOVE BACKWARD 2 c", Step::Backward(2), true),
            ("FETCH ABSOLUTE -1 c", Step::Absolute(-1), false),
            ("FETCH LAST FROM c", Step::Absolute(-1), false),
            ("FETCH RELATIVE 0 c", Step::Relative(0), false),
        ] {
            let parsed = parse(text).expect(text).remove(0);
            let Body::Fetch(fetch) = parsed.body else {
                panic!("{text}: {:?}", parsed.body);
            };
            assert_eq!(
                (fetch.step, fetch.moves, &*fetch.cursor),
                (step, moves, "c"),
                "{text}"
            );
        }
        parse("FETCH 99999999999 FROM c").expect_err("beyond 32 bits");
        let moved = parse("MOVE FORWARD 3 c").expect("valid").remove(0);
        assert_eq!(moved.moved(), Some(("c", 3)));
        let fetched = parse("FETCH 3 c").expect("valid").remove(0);
        assert_eq!(fetched.moved(), None);
    }

    #[test]
    fn transactions_may_be_deferrable() {
        for text in [
            "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE",
            "START TRANSACTION READ ONLY NOT DEFERRABLE",
            "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY NOT DEFERRABLE",
        ] {
            assert_eq!(texts(text), [text]);
        }
    }

    #[test]
    fn errors_have_a_place() {
        for (text, position) in [
            ("SELECT 1; SELEC 2", 11),
            ("SELECT 1\n  FROM )", 17),
            ("SELECT 1 2", 10),
        ] {
            let error = parse(text).expect_err(text);
            assert_eq!(error.code, Code::SyntaxError, "{error}");
            assert_eq!(error.position(text), Some(position), "{text}: {error}");
        }
    }

    #[test]
    fn calls_inside_each_other_are_parsed_once() {
        let calls = format!("SELECT {}1{}", "abs(".repeat(60), ")".repeat(60));
        assert_eq!(texts(&calls).len(), 1);
        assert_eq!(texts("SELECT f(a => 1, b := 2)").len(), 1);
    }

    #[test]
    fn deep_and_long_texts_are_refused() {
        let deep = format!("SELECT {}1{}", "(".repeat(10_000), ")".repeat(10_000));
        assert_eq!(
            parse(&deep).expect_err("deep").code,
            Code::StatementTooComplex
        );
        let long = format!("SELECT '{}'", "x".repeat(TEXT_BYTES_MAX));
        assert_eq!(
            parse(&long).expect_err("long").code,
            Code::StatementTooComplex
        );
    }
}
