//! `COPY ... TO STDOUT`: a query whose rows are sent as a file. `COPY ... FROM STDIN`: rows that the client sends.

use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast::{
    self, Expr, Ident, ObjectName, Query, SelectItem, SetExpr, TableFactor,
};
use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::parser::{IsOptional, Parser, ParserError};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::error::{Code, Result, SqlError};
use crate::parse::{failed, folded};

/// Letters that cannot be the delimiter of the text format, in which they have a meaning after a backslash.
const TEXT_LETTERS: &[u8] = b"\\.abcdefghijklmnopqrstuvwxyz0123456789";

/// `COPY ... TO STDOUT`.
#[derive(Debug, Clone)]
pub(crate) struct CopyOut {
    pub(crate) statement: Statement,
    /// The text of the query.
    pub(crate) text: String,
    pub(crate) options: CopyOptions,
}

/// `COPY ... FROM STDIN`.
#[derive(Debug, Clone)]
pub(crate) struct CopyFrom {
    pub(crate) table: ObjectName,
    /// The columns; all if there are none.
    pub(crate) columns: Vec<Ident>,
    pub(crate) options: CopyOptions,
}

/// How `COPY` writes or reads rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOptions {
    /// The format.
    pub format: CopyFormat,
    /// Whether the names of the columns come first.
    pub has_header: bool,
    /// The byte between two values.
    pub delimiter: u8,
    /// The text of a null.
    pub null: String,
    /// The byte around values that need it, of CSV.
    pub quote: u8,
    /// The byte before a quote in a value, of CSV.
    pub escape: u8,
    /// The columns whose values are quoted in any case, of CSV.
    pub quoted: QuotedColumns,
}

/// A format of `COPY`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    /// PostgreSQL's own text format.
    Text,
    /// Comma-separated values.
    Csv,
    /// PostgreSQL's binary format.
    Binary,
}

/// Columns of which `COPY` quotes all values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuotedColumns {
    /// These columns.
    Named(Vec<String>),
    /// All columns.
    All,
}

/// An option as it is written.
#[derive(Debug, PartialEq, Eq)]
enum Setting {
    Absent,
    Text(String),
    All,
    Names(Vec<String>),
}

/// Where a `COPY` goes to or comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// To the client.
    Client,
    /// From the client.
    FromClient,
    /// To a file of the server: DataFusion's own statement.
    File,
    /// To a program, or into a table.
    Refused(&'static str),
}

/// Returns where the next statement copies to; `None` if it is no `COPY`. Takes a time that grows with its length.
pub(crate) fn place(parser: &DFParser<'_>) -> Option<Place> {
    let parser = &parser.parser;
    let keyword = |token: &Token| match token {
        Token::Word(word) => word.keyword,
        _ => Keyword::NoKeyword,
    };
    if keyword(&parser.peek_token_ref().token) != Keyword::COPY {
        return None;
    }
    let (mut depth, mut direction) = (0_i64, None);
    for index in parser.index().. {
        let token = &parser.token_at(index).token;
        match (token, direction) {
            (Token::EOF | Token::SemiColon, _) => break,
            (Token::Whitespace(_), _) => {}
            (token, Some(Keyword::FROM)) => {
                return Some(match keyword(token) {
                    Keyword::STDIN | Keyword::STDOUT => Place::FromClient,
                    _ => Place::Refused("COPY FROM a file or a program"),
                });
            }
            (token, Some(_)) => {
                return Some(match keyword(token) {
                    Keyword::STDOUT | Keyword::STDIN => Place::Client,
                    Keyword::PROGRAM => Place::Refused("COPY TO PROGRAM"),
                    _ => Place::File,
                });
            }
            (Token::LParen, None) => depth += 1,
            (Token::RParen, None) => depth -= 1,
            (token, None) if depth == 0 => {
                direction = Some(keyword(token))
                    .filter(|found| matches!(found, Keyword::TO | Keyword::FROM));
            }
            _ => {}
        }
    }
    Some(Place::File)
}

/// Returns the error of a `COPY` that the server does not have.
pub(crate) fn refused(what: &str) -> SqlError {
    let hint = match what {
        "COPY FROM a file or a program" => {
            "use COPY FROM STDIN, and let the client read the file, or CREATE EXTERNAL TABLE"
        }
        _ => "use COPY TO STDOUT, and let the client write the file",
    };
    SqlError::unsupported(what).with_hint(hint)
}

/// Parses a `COPY` to the client.
///
/// # Errors
/// If it cannot be parsed, or has options that the server does not have.
pub(crate) fn parse(parser: &mut Parser<'_>) -> Result<CopyOut> {
    let query = parse_source(parser).map_err(failed)?;
    let settings = parse_settings(parser).map_err(failed)?;
    let query = ast::Statement::Query(query);
    Ok(CopyOut {
        text: query.to_string(),
        statement: Statement::Statement(Box::new(query)),
        options: CopyOptions::new(settings)?,
    })
}

/// Parses a `COPY` from the client.
///
/// # Errors
/// If it cannot be parsed, or has options that the server does not have.
pub(crate) fn parse_from(parser: &mut Parser<'_>) -> Result<CopyFrom> {
    let (table, columns) = parse_target(parser).map_err(failed)?;
    let settings = parse_settings(parser).map_err(failed)?;
    for (name, _) in &settings {
        if matches!(&**name, "freeze" | "force_null" | "force_not_null") {
            let name = name.to_ascii_uppercase();
            return Err(SqlError::unsupported(format!(
                "the option {name} of COPY FROM"
            )));
        }
        if name == "force_quote" {
            let message = "COPY force quote only available using COPY TO";
            return Err(SqlError::new(Code::FeatureNotSupported, message));
        }
    }
    Ok(CopyFrom {
        table,
        columns,
        options: CopyOptions::new(settings)?,
    })
}

fn parse_target(parser: &mut Parser<'_>) -> Result<(ObjectName, Vec<Ident>), ParserError> {
    parser.expect_keyword(Keyword::COPY)?;
    let name = parser.parse_object_name(false)?;
    let columns = parser.parse_parenthesized_column_list(IsOptional::Optional, false)?;
    parser.expect_keyword(Keyword::FROM)?;
    parser.expect_one_of_keywords(&[Keyword::STDIN, Keyword::STDOUT])?;
    Ok((name, columns))
}

fn parse_source(parser: &mut Parser<'_>) -> Result<Box<Query>, ParserError> {
    parser.expect_keyword(Keyword::COPY)?;
    let query = match parser.consume_token(&Token::LParen) {
        true => {
            let query = parser.parse_query()?;
            parser.expect_token(&Token::RParen)?;
            query
        }
        false => {
            let name = parser.parse_object_name(false)?;
            let columns = parser.parse_parenthesized_column_list(IsOptional::Optional, false)?;
            table(name, columns)?
        }
    };
    parser.expect_keyword(Keyword::TO)?;
    parser.expect_one_of_keywords(&[Keyword::STDOUT, Keyword::STDIN])?;
    Ok(query)
}

/// Returns the query that reads columns of a table, all if none are named.
fn table(name: ObjectName, columns: Vec<Ident>) -> Result<Box<Query>, ParserError> {
    let dialect = PostgreSqlDialect {};
    let mut query = Parser::new(&dialect)
        .try_with_sql("SELECT * FROM t")?
        .parse_query()?;
    if let SetExpr::Select(select) = &mut *query.body {
        let named = columns.into_iter().map(Expr::Identifier);
        let named: Vec<SelectItem> = named.map(SelectItem::UnnamedExpr).collect();
        if !named.is_empty() {
            select.projection = named;
        }
        for table in &mut select.from {
            if let TableFactor::Table { name: place, .. } = &mut table.relation {
                *place = name.clone();
            }
        }
    }
    Ok(query)
}

/// Parses options in the form of PostgreSQL 9.0 and later, or in the older one.
fn parse_settings(parser: &mut Parser<'_>) -> Result<Vec<(String, Setting)>, ParserError> {
    let _with = parser.parse_keyword(Keyword::WITH);
    if parser.consume_token(&Token::LParen) {
        let settings = parser.parse_comma_separated(parse_setting)?;
        parser.expect_token(&Token::RParen)?;
        return Ok(settings);
    }
    let mut settings = Vec::new();
    while !matches!(parser.peek_token_ref().token, Token::SemiColon | Token::EOF) {
        settings.push(parse_old_setting(parser)?);
    }
    Ok(settings)
}

fn parse_setting(parser: &mut Parser<'_>) -> Result<(String, Setting), ParserError> {
    let name = parser.parse_identifier()?.value.to_ascii_lowercase();
    let setting = match &parser.peek_token_ref().token {
        Token::Comma | Token::RParen => Setting::Absent,
        Token::Mul => {
            parser.next_token();
            Setting::All
        }
        Token::LParen => {
            parser.next_token();
            let names = parse_names(parser)?;
            parser.expect_token(&Token::RParen)?;
            names
        }
        Token::Number(number, _) => {
            let number = number.clone();
            parser.next_token();
            Setting::Text(number)
        }
        Token::Word(_) => Setting::Text(parser.parse_identifier()?.value),
        _ => Setting::Text(parser.parse_literal_string()?),
    };
    Ok((name, setting))
}

fn parse_names(parser: &mut Parser<'_>) -> Result<Setting, ParserError> {
    let names = parser.parse_comma_separated(Parser::parse_identifier)?;
    Ok(Setting::Names(names.iter().map(folded).collect()))
}

fn parse_old_setting(parser: &mut Parser<'_>) -> Result<(String, Setting), ParserError> {
    const WORDS: &[Keyword] = &[
        Keyword::BINARY,
        Keyword::CSV,
        Keyword::HEADER,
        Keyword::FREEZE,
        Keyword::FORCE,
        Keyword::DELIMITER,
        Keyword::NULL,
        Keyword::QUOTE,
        Keyword::ESCAPE,
        Keyword::ENCODING,
    ];
    let word = parser.expect_one_of_keywords(WORDS)?;
    let name = |name: &str| name.to_owned();
    Ok(match word {
        Keyword::BINARY => (name("format"), Setting::Text(name("binary"))),
        Keyword::CSV => (name("format"), Setting::Text(name("csv"))),
        Keyword::HEADER => (name("header"), Setting::Absent),
        Keyword::FREEZE => (name("freeze"), Setting::Absent),
        Keyword::FORCE => {
            let kind = match parser.expect_one_of_keywords(&[
                Keyword::QUOTE,
                Keyword::NOT,
                Keyword::NULL,
            ])? {
                Keyword::QUOTE => "force_quote",
                Keyword::NULL => "force_null",
                _ => {
                    parser.expect_keyword(Keyword::NULL)?;
                    "force_not_null"
                }
            };
            match parser.consume_token(&Token::Mul) {
                true => (name(kind), Setting::All),
                false => (name(kind), parse_names(parser)?),
            }
        }
        other => {
            let _as = parser.parse_keyword(Keyword::AS);
            let text = parser.parse_literal_string()?;
            let other = format!("{other:?}").to_ascii_lowercase();
            (other, Setting::Text(text))
        }
    })
}

/// The options that were given.
#[derive(Debug, Default)]
struct Given {
    format: Option<CopyFormat>,
    has_header: Option<bool>,
    delimiter: Option<String>,
    null: Option<String>,
    quote: Option<String>,
    escape: Option<String>,
    quoted: Option<QuotedColumns>,
    encoding: Option<()>,
}

impl CopyOptions {
    fn new(settings: Vec<(String, Setting)>) -> Result<CopyOptions> {
        let mut given = Given::default();
        for (name, setting) in settings {
            given.add(&name, setting)?;
        }
        let format = given.format.unwrap_or(CopyFormat::Text);
        given.check_format(format)?;
        let is_csv = format == CopyFormat::Csv;
        let delimiter = byte(
            "delimiter",
            given.delimiter,
            if is_csv { b',' } else { b'\t' },
        )?;
        let quote = byte("quote", given.quote, b'"')?;
        let null = given
            .null
            .unwrap_or_else(|| if is_csv { "" } else { "\\N" }.to_owned());
        let options = CopyOptions {
            format,
            has_header: given.has_header.unwrap_or(false),
            delimiter,
            null,
            quote,
            escape: byte("escape", given.escape, quote)?,
            quoted: given.quoted.unwrap_or(QuotedColumns::Named(Vec::new())),
        };
        options.check()?;
        Ok(options)
    }

    /// Refuses options with which a reader could not tell values apart.
    fn check(&self) -> Result<()> {
        let is_csv = self.format == CopyFormat::Csv;
        let is_line_end = |byte: u8| byte == b'\n' || byte == b'\r';
        let null = self.null.as_bytes();
        let message = if is_line_end(self.delimiter) {
            "COPY delimiter cannot be newline or carriage return"
        } else if null.iter().copied().any(is_line_end) {
            "COPY null representation cannot use newline or carriage return"
        } else if !is_csv && TEXT_LETTERS.contains(&self.delimiter) {
            "COPY delimiter cannot be a backslash, a point, a lower-case letter or a digit"
        } else if is_csv && self.delimiter == self.quote {
            "COPY delimiter and quote must be different"
        } else if null.contains(&self.delimiter) {
            "COPY delimiter must not appear in the NULL specification"
        } else if is_csv && null.contains(&self.quote) {
            "CSV quote character must not appear in the NULL specification"
        } else {
            return Ok(());
        };
        Err(SqlError::new(Code::InvalidParameterValue, message))
    }
}

impl Given {
    fn add(&mut self, name: &str, setting: Setting) -> Result<()> {
        match name {
            "format" => once(name, &mut self.format, format(&text(name, setting)?)?),
            "header" => once(name, &mut self.has_header, boolean(name, setting)?),
            "delimiter" => once(name, &mut self.delimiter, text(name, setting)?),
            "null" => once(name, &mut self.null, text(name, setting)?),
            "quote" => once(name, &mut self.quote, text(name, setting)?),
            "escape" => once(name, &mut self.escape, text(name, setting)?),
            "force_quote" => {
                let columns = match setting {
                    Setting::All => QuotedColumns::All,
                    Setting::Names(names) => QuotedColumns::Named(names),
                    _ => return Err(wrong(name, "a list of columns")),
                };
                once(name, &mut self.quoted, columns)
            }
            "encoding" => {
                let encoding = text(name, setting)?;
                let folded = encoding.to_ascii_lowercase().replace(['-', '_'], "");
                if !matches!(&*folded, "utf8" | "unicode") {
                    return Err(SqlError::unsupported(format!("the encoding {encoding}"))
                        .with_hint("use UTF8"));
                }
                once(name, &mut self.encoding, ())
            }
            "freeze" | "force_not_null" | "force_null" => {
                let message = format!("{name} is only available with COPY FROM");
                Err(SqlError::new(Code::FeatureNotSupported, message))
            }
            _ => {
                let message = format!("option \"{name}\" not recognized");
                Err(SqlError::new(Code::SyntaxError, message))
            }
        }
    }

    /// Refuses options that the format does not have.
    fn check_format(&self, format: CopyFormat) -> Result<()> {
        let of_texts = [
            ("DELIMITER", self.delimiter.is_some()),
            ("NULL", self.null.is_some()),
            ("HEADER", self.has_header == Some(true)),
        ];
        let of_csv = [
            ("QUOTE", self.quote.is_some()),
            ("ESCAPE", self.escape.is_some()),
            ("FORCE_QUOTE", self.quoted.is_some()),
        ];
        let given = |options: &[(&'static str, bool)]| {
            let mut given = options.iter().filter(|(_, is_given)| *is_given);
            given.next().map(|(name, _)| *name)
        };
        if format == CopyFormat::Binary
            && let Some(name) = given(&of_texts)
        {
            let message = format!("cannot specify {name} in BINARY mode");
            return Err(SqlError::new(Code::SyntaxError, message));
        }
        match given(&of_csv) {
            Some(name) if format != CopyFormat::Csv => {
                let message = format!("COPY {name} is only available with FORMAT csv");
                Err(SqlError::new(Code::FeatureNotSupported, message))
            }
            _ => Ok(()),
        }
    }
}

fn once<T>(name: &str, place: &mut Option<T>, value: T) -> Result<()> {
    if place.replace(value).is_none() {
        return Ok(());
    }
    let message = format!("conflicting or redundant options: {name}");
    Err(SqlError::new(Code::SyntaxError, message))
}

fn wrong(name: &str, wanted: &str) -> SqlError {
    let message = format!("argument to option \"{name}\" must be {wanted}");
    SqlError::new(Code::InvalidParameterValue, message)
}

fn text(name: &str, setting: Setting) -> Result<String> {
    match setting {
        Setting::Text(text) => Ok(text),
        _ => Err(wrong(name, "a text")),
    }
}

fn boolean(name: &str, setting: Setting) -> Result<bool> {
    let Setting::Text(text) = setting else {
        return match setting {
            Setting::Absent => Ok(true),
            _ => Err(wrong(name, "true or false")),
        };
    };
    match &*text.to_ascii_lowercase() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(wrong(name, "true or false")),
    }
}

fn format(name: &str) -> Result<CopyFormat> {
    match &*name.to_ascii_lowercase() {
        "text" => Ok(CopyFormat::Text),
        "csv" => Ok(CopyFormat::Csv),
        "binary" => Ok(CopyFormat::Binary),
        _ => {
            let message = format!("COPY format \"{name}\" not recognized");
            Err(SqlError::new(Code::InvalidParameterValue, message))
        }
    }
}

fn byte(name: &str, given: Option<String>, default: u8) -> Result<u8> {
    match given.as_deref().map(str::as_bytes) {
        None => Ok(default),
        Some([byte]) => Ok(*byte),
        Some(_) => {
            let message = format!("COPY {name} must be a single one-byte character");
            Err(SqlError::new(Code::FeatureNotSupported, message))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse::{Body, parse};

    fn copied(text: &str) -> Result<CopyOut> {
        match parse(text)?.remove(0).body {
            Body::Copy(copied) => Ok(*copied),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn sources_become_queries() {
        for (text, query) in [
            ("COPY t TO STDOUT", "SELECT * FROM t"),
            (
                "copy s.\"T\" (a, \"B\") to stdout csv",
                "SELECT a, \"B\" FROM s.\"T\"",
            ),
            (
                "COPY (SELECT a FROM (SELECT 1) TO) TO STDOUT; SELECT 2",
                "SELECT a FROM (SELECT 1) TO",
            ),
            ("COPY (VALUES (1)) TO STDOUT WITH BINARY", "VALUES (1)"),
        ] {
            assert_eq!(copied(text).expect(text).text, query, "{text}");
        }
    }

    #[test]
    fn options_of_both_forms_are_the_same() {
        let new = "COPY t TO STDOUT WITH (FORMAT csv, HEADER on, DELIMITER ';', NULL 'x', QUOTE '''', ESCAPE E'\\\\', \
                   FORCE_QUOTE (a, \"B\"), ENCODING 'UTF-8')";
        let old = "COPY t TO STDOUT DELIMITER AS ';' NULL 'x' CSV HEADER QUOTE '''' ESCAPE E'\\\\' \
                   FORCE QUOTE a, \"B\"";
        let expected = CopyOptions {
            format: CopyFormat::Csv,
            has_header: true,
            delimiter: b';',
            null: "x".to_owned(),
            quote: b'\'',
            escape: b'\\',
            quoted: QuotedColumns::Named(vec!["a".to_owned(), "B".to_owned()]),
        };
        for text in [new, old] {
            assert_eq!(copied(text).expect(text).options, expected, "{text}");
        }
        let all = copied("COPY t TO STDOUT (FORMAT csv, FORCE_QUOTE *)").expect("all");
        assert_eq!(all.options.quoted, QuotedColumns::All);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (text, code) in [
            (
                "COPY t FROM STDIN (FORCE_QUOTE *)",
                Code::FeatureNotSupported,
            ),
            ("COPY t FROM 'file'", Code::FeatureNotSupported),
            ("COPY t TO PROGRAM 'cat'", Code::FeatureNotSupported),
            ("COPY t TO STDOUT (FREEZE)", Code::FeatureNotSupported),
            (
                "COPY t TO STDOUT (FORCE_NULL (a))",
                Code::FeatureNotSupported,
            ),
            (
                "COPY t TO STDOUT (ENCODING 'latin1')",
                Code::FeatureNotSupported,
            ),
            ("COPY t TO STDOUT (QUOTE 'x')", Code::FeatureNotSupported),
            (
                "COPY t TO STDOUT (DELIMITER 'xy')",
                Code::FeatureNotSupported,
            ),
            (
                "COPY t TO STDOUT (DELIMITER 'x')",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (NULL E'\\n')",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (FORMAT csv, NULL ',')",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (FORMAT csv, QUOTE ',')",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (FORMAT parquet)",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (HEADER match)",
                Code::InvalidParameterValue,
            ),
            (
                "COPY t TO STDOUT (FORMAT binary, NULL '')",
                Code::SyntaxError,
            ),
            (
                "COPY t TO STDOUT (FORMAT csv, FORMAT csv)",
                Code::SyntaxError,
            ),
            ("COPY t TO STDOUT (NOTHING)", Code::SyntaxError),
            ("COPY t TO STDOUT NOTHING", Code::SyntaxError),
            ("COPY t TO STDOUT (HEADER) x", Code::SyntaxError),
        ] {
            assert_eq!(copied(text).expect_err(text).code, code, "{text}");
        }
    }
}
