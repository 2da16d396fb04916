//! Limits of statements that are long, checked before they are parsed.
//!
//! Chains of operators, such as `a OR b OR c`, are trees as deep as they are long, and code that visits, copies and
//! drops trees recurses. DataFusion takes a time for wide lists of columns that grows with their square.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::keywords::Keyword;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer, Word};

use crate::error::{Code, Result, SqlError};

/// Maximum bytes of a text that cannot exceed the other limits.
const SHORT_BYTES_MAX: usize = PARENTHESES_MAX;
/// Maximum number of operators in a chain.
const CHAIN_MAX: usize = 1_000;
/// Maximum number of columns that a query returns. PostgreSQL has the same limit.
const COLUMNS_MAX: usize = 1_664;
/// Maximum number of queries in a text, subqueries and parts of a `UNION` counted, and of such operators.
const QUERIES_MAX: usize = 500;
/// Maximum number of parentheses that begin one after the other. sqlparser tries each in two ways.
const PARENTHESES_MAX: usize = 10;
/// Maximum number of parts of a name.
const NAME_PARTS_MAX: usize = 16;
/// Maximum depth of structures in structures. DataFusion computes the type of each twice, so of 40 about 2^40 times.
const STRUCTURES_MAX: usize = 8;
/// Functions that return structures.
const STRUCTURES: [&str; 3] = ["row", "struct", "named_struct"];
/// Maximum number of joins in a text, commas between tables counted.
const JOINS_MAX: usize = 300;
/// Maximum sum of the cubes of the depths of parentheses and terms. The time that DataFusion takes to name a column
/// grows with the cube of the depth of its calls, and a cancellation waits for it. Arithmetic becomes calls.
const DEPTHS_MAX: usize = 400_000_000;
/// Maximum number of elements of a `CUBE`, of which each doubles its groups. PostgreSQL has the same limit.
const CUBE_MAX: usize = 12;
/// Functions that take the name of a type, which Arrow parses without a limit of its depth.
const CASTS: [&str; 2] = ["arrow_cast", "arrow_try_cast"];
/// Maximum depth of types in types.
const TYPES_MAX: usize = 100;

/// The counts of a text.
#[derive(Debug, Default)]
struct Counts {
    levels: Vec<Level>,
    queries: usize,
    unions: usize,
    joins: usize,
    /// Parentheses since the last other token.
    parentheses: usize,
    /// Points since the last token that is in no name.
    points: usize,
    /// Sum of the cubes of the depths of parentheses and terms.
    depths: usize,
    /// The last token that is not blank, if it matters to the next.
    last: Option<Last>,
}

/// A token that gives the next one its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Last {
    /// The name of a function that returns a structure.
    Structure,
    /// The name of a function of [`CASTS`].
    Cast,
    Cube,
    /// `IS` or `IS NOT`.
    Is,
    /// `IS DISTINCT`, whose `FROM` is followed by no tables.
    IsDistinct,
    /// `]`
    Bracket,
}

/// The counts between a parenthesis and its end.
#[derive(Debug, Default)]
struct Level {
    /// Operators since the last comma.
    chain: usize,
    /// Depth of the expression so far: its operators of arithmetic and `||`, and what is in parentheses before them.
    terms: usize,
    /// The greatest depth of all expressions so far.
    height: usize,
    /// Commas since `SELECT`; `None` after its columns.
    columns: Option<usize>,
    /// Number of structures that are open.
    structures: usize,
    /// Whether commas are between tables.
    has_tables: bool,
    /// Commas of a `CUBE`; `None` in other parentheses.
    elements: Option<usize>,
    /// Whether it is in the arguments of a function of [`CASTS`].
    is_cast: bool,
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
        let last = self.last.take();
        match token {
            Token::Whitespace(_) => self.last = last,
            Token::LParen => self.open(last)?,
            Token::LBracket => {
                if last == Some(Last::Bracket) {
                    self.lengthen()?;
                }
                self.open(None)?;
            }
            Token::RParen | Token::RBracket => {
                if self.levels.len() > 1 {
                    let height = self.levels.pop().map_or(0, |it| it.height);
                    self.deepen(height + 1);
                }
                self.last = (*token == Token::RBracket).then_some(Last::Bracket);
            }
            Token::SemiColon => *self = Counts::new(),
            Token::Comma => self.separate()?,
            Token::Word(word) => {
                self.add_keyword(word.keyword, last)?;
                self.last = last_of(word, last);
            }
            token => self.add_other(token)?,
        }
        Ok(())
    }

    fn add_other(&mut self, token: &Token) -> Result<()> {
        let text = match token {
            Token::SingleQuotedString(text)
            | Token::EscapedStringLiteral(text)
            | Token::UnicodeStringLiteral(text)
            | Token::NationalStringLiteral(text) => text,
            Token::DollarQuotedString(text) => &text.value,
            token if is_operand(token) => return Ok(()),
            token if is_arithmetic(token) => return self.add_term(),
            token => {
                if is_comparison(token) {
                    self.level().terms = 0;
                }
                return self.lengthen();
            }
        };
        match self.level().is_cast {
            true => limit(text.matches('(').count(), TYPES_MAX, "types in each other"),
            false => Ok(()),
        }
    }

    /// Begins what is in parentheses or brackets.
    fn open(&mut self, last: Option<Last>) -> Result<()> {
        let outer = self.level();
        let structures = outer.structures + usize::from(last == Some(Last::Structure));
        let is_cast = outer.is_cast || last == Some(Last::Cast);
        limit(structures, STRUCTURES_MAX, "structures in each other")?;
        self.levels.push(Level {
            structures,
            is_cast,
            elements: (last == Some(Last::Cube)).then_some(0),
            ..Level::default()
        });
        self.depths += self.levels.len().pow(3);
        limit(
            self.depths,
            DEPTHS_MAX,
            "operators or parentheses in each other",
        )
    }

    /// Goes on after a comma.
    fn separate(&mut self) -> Result<()> {
        let level = self.level();
        level.chain = 0;
        level.terms = 0;
        if let Some(elements) = &mut level.elements {
            *elements += 1;
            return limit(*elements, CUBE_MAX - 1, "elements in a CUBE");
        }
        if let Some(columns) = &mut level.columns {
            *columns += 1;
            return limit(*columns, COLUMNS_MAX - 1, "columns");
        }
        match level.has_tables {
            true => self.add_join(),
            false => Ok(()),
        }
    }

    fn add_keyword(&mut self, keyword: Keyword, last: Option<Last>) -> Result<()> {
        match keyword {
            Keyword::SELECT => {
                let level = self.level();
                level.chain = 0;
                level.terms = 0;
                level.columns = Some(0);
                level.has_tables = false;
                self.queries += 1;
                limit(self.queries, QUERIES_MAX, "queries")
            }
            Keyword::UNION | Keyword::EXCEPT | Keyword::INTERSECT | Keyword::MINUS => {
                self.level().has_tables = false;
                self.unions += 1;
                limit(self.unions, QUERIES_MAX, "queries")
            }
            Keyword::FROM if last != Some(Last::IsDistinct) => {
                let level = self.level();
                level.terms = 0;
                level.columns = None;
                level.has_tables = true;
                Ok(())
            }
            Keyword::WHERE
            | Keyword::GROUP
            | Keyword::HAVING
            | Keyword::WINDOW
            | Keyword::ORDER
            | Keyword::LIMIT
            | Keyword::RETURNING
            | Keyword::SET => {
                let level = self.level();
                level.terms = 0;
                level.has_tables = false;
                Ok(())
            }
            Keyword::WHEN | Keyword::THEN | Keyword::ELSE => {
                self.level().terms = 0;
                Ok(())
            }
            Keyword::JOIN => self.add_join(),
            Keyword::AND | Keyword::OR => {
                self.level().terms = 0;
                self.lengthen()
            }
            Keyword::IS
            | Keyword::IN
            | Keyword::NOT
            | Keyword::NOTNULL
            | Keyword::XOR
            | Keyword::DIV
            | Keyword::LIKE
            | Keyword::ILIKE
            | Keyword::RLIKE
            | Keyword::REGEXP
            | Keyword::SIMILAR
            | Keyword::MATCH
            | Keyword::MEMBER
            | Keyword::OVERLAPS
            | Keyword::BETWEEN
            | Keyword::COLLATE
            | Keyword::AT
            | Keyword::OPERATOR => self.lengthen(),
            _ => Ok(()),
        }
    }

    fn add_join(&mut self) -> Result<()> {
        self.joins += 1;
        limit(self.joins, JOINS_MAX, "joins")
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

    fn add_term(&mut self) -> Result<()> {
        let terms = self.level().terms + 1;
        self.deepen(terms);
        self.lengthen()?;
        self.depths = self.depths.saturating_add(terms.saturating_pow(3));
        limit(
            self.depths,
            DEPTHS_MAX,
            "operators or parentheses in each other",
        )
    }

    /// Makes the expression so far at least this deep.
    fn deepen(&mut self, depth: usize) {
        let level = self.level();
        level.terms = level.terms.max(depth);
        level.height = level.height.max(level.terms);
    }

    fn lengthen(&mut self) -> Result<()> {
        let level = self.level();
        level.chain += 1;
        limit(level.chain, CHAIN_MAX, "operators in a row")
    }
}

/// Returns what a word means to the token that follows it.
fn last_of(word: &Word, last: Option<Last>) -> Option<Last> {
    let is_one = |names: &[&str]| names.iter().any(|it| word.value.eq_ignore_ascii_case(it));
    match word.keyword {
        Keyword::CUBE => Some(Last::Cube),
        Keyword::IS => Some(Last::Is),
        Keyword::NOT if last == Some(Last::Is) => Some(Last::Is),
        Keyword::DISTINCT if last == Some(Last::Is) => Some(Last::IsDistinct),
        _ if is_one(&STRUCTURES) => Some(Last::Structure),
        _ if is_one(&CASTS) => Some(Last::Cast),
        _ => None,
    }
}

fn is_arithmetic(token: &Token) -> bool {
    matches!(
        token,
        Token::Plus | Token::Minus | Token::Mul | Token::Div | Token::Mod | Token::StringConcat
    )
}

/// Returns whether expressions on both sides of a token are beside each other.
fn is_comparison(token: &Token) -> bool {
    matches!(
        token,
        Token::Eq | Token::Neq | Token::Lt | Token::LtEq | Token::Gt | Token::GtEq
    )
}

/// Returns whether a token is a value or blank.
fn is_operand(token: &Token) -> bool {
    matches!(
        token,
        Token::Whitespace(_)
            | Token::Number(..)
            | Token::HexStringLiteral(_)
            | Token::Placeholder(_)
            | Token::Period
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

    /// Checks for each text whether it is allowed.
    fn assert_limits<const COUNT: usize>(texts: [(String, bool); COUNT]) {
        for (text, is_allowed) in texts {
            let checked = check(&text).map_err(|error| error.code);
            let expected = if is_allowed {
                Ok(())
            } else {
                Err(Code::StatementTooComplex)
            };
            assert_eq!(checked, expected, "{}", &text[..30]);
        }
    }

    #[test]
    fn long_chains_and_wide_lists_are_refused() {
        assert_limits([
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
        ]);
    }

    #[test]
    fn operators_of_other_kinds_are_counted() {
        assert_limits([
            (format!("SELECT 1{}", " NOTNULL".repeat(1_100)), false),
            (repeated("VALUES (1)", 600, " UNION "), false),
            (format!("VALUES {}", repeated("(1)", 600, ", ")), true),
            (format!("SELECT NULL::int{}", "[]".repeat(1_100)), false),
            (
                format!("SELECT 1 FROM {} WHERE b", repeated("a", 400, ", ")),
                false,
            ),
            (
                format!("SELECT 1 FROM a ORDER BY {}", repeated("b", 400, ", ")),
                true,
            ),
            (
                format!("SELECT 1 IS NOT DISTINCT FROM {}", repeated("a", 400, ", ")),
                true,
            ),
            (
                format!("SELECT 1 GROUP BY CUBE ({})", repeated("a", 13, ", ")),
                false,
            ),
            (
                format!("SELECT 1 GROUP BY CUBE ({})", repeated("f(a, b)", 12, ", ")),
                true,
            ),
        ]);
    }

    #[test]
    fn depths_are_added_up() {
        assert_limits([
            (
                format!("SELECT arrow_cast(1, '{}')", "List(".repeat(101)),
                false,
            ),
            (format!("SELECT lower('{}')", "List(".repeat(101)), true),
            (
                format!("SELECT {}1{}", "abs(".repeat(150), ")".repeat(150)),
                true,
            ),
            (
                repeated(
                    &format!("{}1{}", "abs(".repeat(150), ")".repeat(150)),
                    4,
                    ", ",
                ),
                false,
            ),
            (
                format!("VALUES {}", repeated("(f(g(1)))", 100_000, ", ")),
                true,
            ),
            (format!("SELECT {}", repeated("a", 180, " + ")), true),
            (format!("SELECT {}", repeated("a", 300, " || ")), false),
            (
                format!("SELECT 1 WHERE {}", repeated("a + 1 > -1", 200, " AND ")),
                true,
            ),
            (repeated("SELECT * FROM t", 300, " UNION ALL "), true),
            (
                format!(
                    "UPDATE t SET a = CASE {} END",
                    repeated("WHEN (b = 1) THEN -5", 300, " ")
                ),
                true,
            ),
            (format!("SELECT 1{}", " + 1::int".repeat(300)), false),
            (
                format!(
                    "SELECT {}1{}",
                    "abs(".repeat(60),
                    format!("{})", " + 1".repeat(20)).repeat(60)
                ),
                false,
            ),
            (
                format!("VALUES {}", repeated("(-1, abs(a - 1))", 10_000, ", ")),
                true,
            ),
            (
                format!("SELECT * FROM {}", repeated("t", 400, " JOIN ")),
                false,
            ),
            (
                format!("SELECT {}", repeated("f(a, 1 + 1)", 1_000, ", ")),
                true,
            ),
        ]);
    }
}
