//! Splits a text into statements, and tells where in a statement its end is.

use datafusion::sql::sqlparser::dialect::PostgreSqlDialect;
use datafusion::sql::sqlparser::tokenizer::{
    Location, Token, TokenWithSpan, Tokenizer, TokenizerError,
};

/// Words that are commands of the shell without a backslash, if they are the whole input.
const WORDS: [&str; 3] = ["exit", "help", "quit"];

/// A statement of a text, without the semicolon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The statement from its first token on.
    pub text: &'a str,
    /// Number of lines before the statement.
    pub lines_before: usize,
}

/// The place of the end of a text within its last statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// In a string that begins at this offset, its quote included.
    String(usize),
    /// In a quoted name that begins at this offset, its quote included.
    Name(usize),
    /// In a comment or a dollar-quoted string.
    Other,
    /// Between tokens, or in one that may end here.
    Plain,
}

/// The tokens of a text.
struct Scan<'a> {
    text: &'a str,
    /// The tokens, each with its offset.
    tokens: Vec<(usize, Token)>,
    /// Why the rest of the text is no token.
    error: Option<TokenizerError>,
    /// Offset of the rest of the text.
    rest: usize,
}

impl Scan<'_> {
    fn new(text: &str) -> Scan<'_> {
        let mut tokens: Vec<TokenWithSpan> = Vec::new();
        let dialect = PostgreSqlDialect {};
        let scanned = Tokenizer::new(&dialect, text).tokenize_with_location_into_buf(&mut tokens);
        let mut offsets = Offsets::new(text);
        let end = tokens.last().map(|token| token.span.end);
        let tokens = tokens
            .into_iter()
            .map(|token| (offsets.advance_to(token.span.start), token.token))
            .collect();
        Scan {
            text,
            tokens,
            error: scanned.err(),
            rest: end.map_or(0, |end| offsets.advance_to(end)),
        }
    }

    /// Returns the tokens that are neither space nor comments.
    fn words(&self) -> impl DoubleEndedIterator<Item = &(usize, Token)> {
        let is_word = |token: &&(usize, Token)| !matches!(token.1, Token::Whitespace(_));
        self.tokens.iter().filter(is_word)
    }

    /// Returns whether the text ends within a string, a quoted name or a comment.
    fn is_open(&self) -> bool {
        let of_end = |message: &str| {
            message.contains("Unterminated")
                || message.contains("Unexpected EOF")
                || message.contains("before EOF")
        };
        let error = self.error.as_ref();
        error.is_some_and(|error| of_end(&error.message))
    }
}

/// Converts the places of tokens to offsets in bytes. The places must ascend.
struct Offsets<'a> {
    letters: std::str::Chars<'a>,
    text_bytes: usize,
    place: Location,
}

impl Offsets<'_> {
    fn new(text: &str) -> Offsets<'_> {
        Offsets {
            letters: text.chars(),
            text_bytes: text.len(),
            place: Location { line: 1, column: 1 },
        }
    }

    fn advance_to(&mut self, place: Location) -> usize {
        while self.place < place {
            match self.letters.next() {
                None => break,
                Some('\n') => {
                    self.place.line += 1;
                    self.place.column = 1;
                }
                Some(_) => self.place.column += 1,
            }
        }
        self.text_bytes - self.letters.as_str().len()
    }
}

/// Splits a text at its semicolons. Semicolons in strings and comments separate nothing. If the text ends within a
/// string or a comment, so does the last statement.
pub fn split(text: &str) -> Vec<Piece<'_>> {
    let scan = Scan::new(text);
    let mut pieces = Vec::new();
    let mut start = None;
    for (offset, token) in scan.words() {
        match token {
            Token::SemiColon => pieces.extend(start.take().map(|start| (start, *offset))),
            _ => start = start.or(Some(*offset)),
        }
    }
    if scan.error.is_some() {
        start = start.or(Some(scan.rest));
    }
    pieces.extend(start.map(|start| (start, text.len())));
    let piece = |(start, end): (usize, usize)| Piece {
        text: text[start..end].trim_end(),
        lines_before: text[..start].matches('\n').count(),
    };
    pieces.into_iter().map(piece).collect()
}

/// Returns whether the shell can run a text: it ends with a semicolon, is a command of the shell, or has no statement.
pub fn is_complete(text: &str) -> bool {
    if text.trim().starts_with('\\') || word(text).is_some() {
        return true;
    }
    let scan = Scan::new(text);
    if scan.error.is_some() {
        return !scan.is_open();
    }
    let last = scan.words().next_back();
    last.is_none_or(|(_, token)| *token == Token::SemiColon)
}

/// Returns the command without a backslash that a text is, in upper or lower case, with or without a semicolon.
pub fn word(text: &str) -> Option<&'static str> {
    let text = text.trim().trim_end_matches(';').trim_end();
    WORDS
        .into_iter()
        .find(|word| word.eq_ignore_ascii_case(text))
}

/// Returns in what a text ends.
pub fn end_of(text: &str) -> End {
    let scan = Scan::new(text);
    if scan.error.is_none() {
        // A `--` comment goes on until the end of its line.
        let in_comment = scan.tokens.last().is_some_and(|(offset, token)| {
            matches!(token, Token::Whitespace(_)) && scan.text[*offset..].starts_with("--")
        });
        return match in_comment && !text.ends_with('\n') {
            true => End::Other,
            false => End::Plain,
        };
    }
    match scan.text[scan.rest..].chars().next() {
        Some('\'') => End::String(scan.rest),
        Some('"') => End::Name(scan.rest),
        _ => End::Other,
    }
}

/// Returns the names of a text, and its strings in quotes.
pub fn names(text: &str) -> Vec<String> {
    let scan = Scan::new(text);
    let name = |(_, token): &(usize, Token)| match token {
        Token::Word(word) => Some(word.value.clone()),
        Token::SingleQuotedString(text) => Some(format!("'{}'", text.replace('\'', "''"))),
        _ => None,
    };
    scan.words().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_split_at_semicolons() {
        let text = "-- first;\nSELECT ';é' ;;\n/* ; */ SELECT $$;$$;\n SELECT 'open;";
        let pieces: Vec<_> = split(text)
            .into_iter()
            .map(|piece| (piece.lines_before, piece.text))
            .collect();
        assert_eq!(
            pieces,
            [
                (1, "SELECT ';é'"),
                (2, "SELECT $$;$$"),
                (3, "SELECT 'open;")
            ]
        );
        assert!(split(" ; -- nothing").is_empty());
        assert_eq!(split("SELECT 1; 'open").len(), 2);
    }

    #[test]
    fn a_text_is_complete_at_its_semicolon() {
        for complete in [
            "",
            "  ",
            "\\d t",
            "quit",
            "EXIT ",
            "SELECT 1;",
            "SELECT ';'; -- done",
            "/* only */",
            "SELECT 'it''s';",
        ] {
            assert!(is_complete(complete), "{complete}");
        }
        for open in [
            "SELECT 1",
            "SELECT ';",
            "SELECT \"a;",
            "SELECT 1; /* ;",
            "SELECT $x$;",
            "SELECT 1; SELECT 2",
            "quit now",
            "SELECT 1 -- ;",
        ] {
            assert!(!is_complete(open), "{open}");
        }
    }

    #[test]
    fn the_end_is_in_a_string_or_a_name() {
        assert_eq!(end_of("SELECT * FROM 'da"), End::String(14));
        assert_eq!(end_of("é 'x' \"T"), End::Name(7));
        assert_eq!(end_of("SELECT cou"), End::Plain);
        assert_eq!(end_of("SELECT 1 -- a"), End::Other);
        assert_eq!(end_of("SELECT 1 -- a\n"), End::Plain);
        assert_eq!(end_of("SELECT $$ a"), End::Other);
    }
}
