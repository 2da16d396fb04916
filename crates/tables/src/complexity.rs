//! Limits of statements that are long, checked before they are parsed.
//!
//! Chains of operators, such as `a OR b OR c`, are trees as deep as they are long, and code that visits, copies and
//! drops trees recurses. DataFusion takes a time for wide lists of columns that grows with their square.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};

use crate::error::{Code, Result, SqlError};

/// Maximum bytes of a text that cannot exceed the other limits.
const SHORT_BYTES_MAX: usize = PARENTHESES_MAX;
/// Maximum number of operators in a chain.
const CHAIN_MAX: usize = 1_000;
/// Maximum number of columns that a query returns. PostgreSQL has the same limit.
const COLUMNS_MAX: usize = 1_664;
/// Maximum number of queries in a text, subqueries and parts of a `UNION` counted.
const QUERIES_MAX: usize = 500;
/// Maximum number of parentheses that begin one after the other. sqlparser tries each in two ways.
const PARENTHESES_MAX: usize = 10;
/// Maximum number of parts of a name.
const NAME_PARTS_MAX: usize = 16;
/// Maximum depth of structures in structures. DataFusion computes the type of each twice, so of 40 about 2^40 times.
const STRUCTURES_MAX: usize = 8;
/// Functions that return structures.
const STRUCTURES: [&str; 3] = ["row", "struct", "named_struct"];
/// Maximum number of joins in a text.
const JOINS_MAX: usize = 300;

/// The counts of a text.
#[derive(Debug, Default)]
struct Counts {
    levels: Vec<Level>,
    queries: usize,
    joins: usize,
    /// Parentheses since the last other token.
    parentheses: usize,
    /// Points since the last token that is in no name.
    points: usize,
    /// Whether the last word is the name of a function that returns a structure.
    is_structure: bool,
}

/// The counts between a parenthesis and its end.
#[derive(Debug, Default)]
struct Level {
    /// Operators since the last comma.
    chain: usize,
    /// Commas since `SELECT`; `None` after its columns.
    columns: Option<usize>,
    /// Number of structures that are open.
    structures: usize,
}

/// Checks a text.
///
/// # Errors
/// If it exceeds a limit.
pub(crate) fn check(text: &str) -> Result<()> {
    if text.len() <= SHORT_BYTES_MAX {
        return Ok(());
    }
    let dialect = PostgreSqlDialect {};
    // The parser tells what is wrong with a text that has no tokens.
    let Ok(tokens) = Tokenizer::new(&dialect, text).tokenize() else {
        return Ok(());
    };
    let mut counts = Counts::new();
    for token in &tokens {
        counts.add(token)?;
    }
    Ok(())
}

impl Counts {
    fn add(&mut self, token: &Token) -> Result<()> {
        match token {
            Token::LParen => self.parentheses += 1,
            Token::Whitespace(_) => {}
            _ => self.parentheses = 0,
        }
        limit(self.parentheses, PARENTHESES_MAX, "parentheses in a row")?;
        match token {
            Token::Period => self.points += 1,
            Token::Word(_) | Token::Whitespace(_) => {}
            _ => self.points = 0,
        }
        limit(self.points, NAME_PARTS_MAX, "parts in a name")?;
        match token {
            Token::LParen | Token::LBracket => {
                let is_structure = std::mem::take(&mut self.is_structure);
                let structures = self.level().structures + usize::from(is_structure);
                limit(structures, STRUCTURES_MAX, "structures in each other")?;
                self.levels.push(Level {
                    structures,
                    ..Level::default()
                });
            }
            Token::RParen | Token::RBracket if self.levels.len() > 1 => drop(self.levels.pop()),
            Token::SemiColon => *self = Counts::new(),
            Token::Comma => {
                let level = self.level();
                level.chain = 0;
                if let Some(columns) = &mut level.columns {
                    *columns += 1;
                    limit(*columns, COLUMNS_MAX - 1, "columns")?;
                }
            }
            Token::Word(word) => {
                let is_it = |name: &&str| word.value.eq_ignore_ascii_case(name);
                self.is_structure = STRUCTURES.iter().any(is_it);
                self.add_keyword(word.keyword)?;
            }
            token if is_operand(token) => {}
            _ => self.lengthen()?,
        }
        Ok(())
    }

    fn add_keyword(&mut self, keyword: Keyword) -> Result<()> {
        match keyword {
            Keyword::SELECT => {
                self.queries += 1;
                let level = self.level();
                level.chain = 0;
                level.columns = Some(0);
                limit(self.queries, QUERIES_MAX, "queries")
            }
            Keyword::FROM => {
                self.level().columns = None;
                Ok(())
            }
            Keyword::JOIN => {
                self.joins += 1;
                limit(self.joins, JOINS_MAX, "joins")
            }
            Keyword::AND
            | Keyword::OR
            | Keyword::IS
            | Keyword::IN
            | Keyword::NOT
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::SIMILAR
            | Keyword::BETWEEN
            | Keyword::COLLATE
            | Keyword::AT
            | Keyword::OPERATOR => self.lengthen(),
            _ => Ok(()),
        }
    }

    fn new() -> Counts {
        Counts {
            levels: vec![Level::default()],
            ..Counts::default()
        }
    }

    fn level(&mut self) -> &mut Level {
        let last = self.levels.len() - 1;
        &mut self.levels[last]
    }

    fn lengthen(&mut self) -> Result<()> {
        let level = self.level();
        level.chain += 1;
        limit(level.chain, CHAIN_MAX, "operators in a row")
    }
}

/// Returns whether a token is a value or blank.
fn is_operand(token: &Token) -> bool {
    matches!(
        token,
        Token::Whitespace(_)
            | Token::Number(..)
            | Token::SingleQuotedString(_)
            | Token::NationalStringLiteral(_)
            | Token::EscapedStringLiteral(_)
            | Token::UnicodeStringLiteral(_)
            | Token::HexStringLiteral(_)
            | Token::DollarQuotedString(_)
            | Token::Placeholder(_)
            | Token::Period
            | Token::RParen
            | Token::RBracket
            | Token::EOF
    )
}

fn limit(count: usize, max: usize, what: &str) -> Result<()> {
    if count <= max {
        return Ok(());
    }
    let message = format!("the statement has too many {what}");
    Err(
        SqlError::new(Code::StatementTooComplex, message).with_hint(match what {
            "operators in a row" => "use IN with a list instead of OR, or split the statement",
            _ => "split the statement",
        }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn repeated(text: &str, count: usize, separator: &str) -> String {
        vec![text; count].join(separator)
    }

    #[test]
    fn long_chains_and_wide_lists_are_refused() {
        for (text, is_allowed) in [
            (
                format!("SELECT 1 WHERE {}", repeated("a = 1", 500, " OR ")),
                true,
            ),
            (
                format!("SELECT 1 WHERE {}", repeated("a = 1", 1_100, " OR ")),
                false,
            ),
            (format!("SELECT {}", repeated("1", 3_000, " + ")), false),
            (format!("SELECT ({})", repeated("1", 3_000, "||")), false),
            (
                format!("SELECT 1 WHERE a IN ({})", repeated("-1", 100_000, ", ")),
                true,
            ),
            (
                format!("VALUES {}", repeated("(1 + 1, -2)", 10_000, ", ")),
                true,
            ),
            (
                format!("SELECT {}1{}", "row(".repeat(9), ")".repeat(9)),
                false,
            ),
            (format!("SELECT {}", repeated("row(1)", 100, ", ")), true),
            (format!("SELECT {}", repeated("a", 40, ".")), false),
            (format!("SELECT {}", repeated("a", 1_664, ", ")), true),
            (format!("SELECT {}", repeated("a", 1_665, ", ")), false),
            (repeated("SELECT 1", 600, " UNION ALL "), false),
            (
                format!(
                    "WITH a AS {}SELECT 1{} SELECT 1",
                    "(".repeat(11),
                    ")".repeat(11)
                ),
                false,
            ),
            (repeated("SELECT 1", 1_100, "; "), true),
            (
                format!("SELECT * FROM {}", repeated("t", 400, " JOIN ")),
                false,
            ),
            (
                format!("SELECT {}", repeated("f(a, 1 + 1)", 1_000, ", ")),
                true,
            ),
        ] {
            let checked = check(&text).map_err(|error| error.code);
            let expected = if is_allowed {
                Ok(())
            } else {
                Err(Code::StatementTooComplex)
            };
            assert_eq!(checked, expected, "{}", &text[..30]);
        }
    }
}
