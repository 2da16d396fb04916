//! Tests of the wording of comments, documents and messages: finds phrases that the style rules replace.

use std::path::Path;

use super::{assert_none, files_of, read};

/// Refused phrases, and what to write instead. Each phrase is split in two, so that this file does not break the rule.
const PHRASES: &[(&[&str], &str)] = &[
    (&[concat!("an", "ew")], "again"),
    (
        &[concat!("who", "ever")],
        "name the actor: the caller, the writer, the client",
    ),
    (
        &[concat!("no", "body")],
        "name the actor: no client, no thread, no caller",
    ),
    (&[concat!("some", "body")], "name the actor"),
    (&[concat!("any", "body")], "name the actor"),
    (&["so", "many"], "at most N; N"),
    (&["so", "few"], "at least N; N"),
    (&["by", "which"], "used to; that identifies"),
    (&["none", "if"], "returns `None` if"),
    (&["stop", "sign"], "cancellation token"),
    (&["stop", "signs"], "cancellation tokens"),
    (&["behind", "us"], "upstream"),
    (&["of", "each", "of", "which"], "two sentences"),
    (&["at", "a", "time", "that"], "when"),
    (&["as", "who"], "name the actor"),
    (&["speaks", "of"], "describes; names"),
    (&["in", "vain"], "without effect"),
];

/// Folders exempt from the rule, each with the reason.
const EXEMPT: &[(&str, &str)] = &[];

/// A word with the punctuation around it, and its line number.
type Word<'t> = (&'t str, usize);

/// Returns the words of a file. A comment or string that continues on the next line yields consecutive words.
fn words(text: &str) -> Vec<Word<'_>> {
    let lines = text.lines().zip(1..);
    let words = lines.flat_map(|(line, number)| {
        let line = line.trim_start().trim_start_matches(['/', '!', '#', '*']);
        let words = line.split_whitespace().filter(|word| *word != "\\");
        words.map(move |word| (word, number))
    });
    words.collect()
}

/// Returns whether words are the phrase, ignoring punctuation before the first and after the last word. A single word
/// in quotes is a name, such as a user's, and does not count.
fn is_phrase(words: &[Word<'_>], phrase: &[&str]) -> bool {
    if let ([(word, _)], [wanted]) = (words, phrase)
        && word.contains(&format!("\"{wanted}\""))
    {
        return false;
    }
    let is_outside = |c: char| !c.is_alphanumeric() && c != '_' && c != '-';
    let last = phrase.len() - 1;
    words
        .iter()
        .zip(phrase)
        .enumerate()
        .all(|(index, ((word, _), wanted))| {
            let word = if index == 0 {
                word.trim_start_matches(is_outside)
            } else {
                word
            };
            let word = if index == last {
                word.trim_end_matches(is_outside)
            } else {
                word
            };
            // `None` is a value in Rust and Python.
            word != "None" && word.eq_ignore_ascii_case(wanted)
        })
}

/// Returns the refused phrases in a text, each with its line and what to write instead.
fn found(text: &str) -> Vec<(usize, String, &'static str)> {
    let words = words(text);
    let mut found = Vec::new();
    for (at, (_, line)) in words.iter().enumerate() {
        for (phrase, instead) in PHRASES {
            let here = words.get(at..at + phrase.len());
            if here.is_some_and(|here| is_phrase(here, phrase)) {
                found.push((*line, phrase.join(" "), *instead));
            }
        }
    }
    found
}

#[test]
fn phrases_are_found_in_comments_and_messages_only_as_whole_words() {
    let count = |text: &str| found(text).len();
    for text in [
        concat!("/// Loads it an", "ew."),
        concat!("//! Takes so\n//! ", "many of them."),
        concat!("    # Who", "ever reads it"),
        concat!("let message = \"no", "body listens\";"),
        concat!("\"so \\\n    ", "many\""),
        concat!("(none if", " there are none)"),
    ] {
        assert_eq!(count(text), 1, "{text}");
    }
    for text in [
        "/// If so, many of them.",
        concat!("fn no", "body_listens() {}"),
        "/// Returns `None` if there is none.",
        "None if is_late => 1,",
        concat!("let user = \"no", "body\";"),
        "/// Newly, a new one.",
        concat!("[0009](0009-a-store-behind", "-us.md)"),
        "None, if there is one.",
    ] {
        assert_eq!(count(text), 0, "{text}");
    }
}

#[test]
fn comments_and_messages_are_plain() {
    let is_exempt = |file: &Path| EXEMPT.iter().any(|(folder, _)| file.starts_with(folder));
    let mut complaints = Vec::new();
    for extension in [
        "rs", "cu", "cuh", "py", "js", "go", "sh", "html", "md", "toml",
    ] {
        for file in files_of(extension) {
            if is_exempt(&file) {
                continue;
            }
            let text = read(&file);
            complaints.extend(found(&text).into_iter().map(|(line, phrase, instead)| {
                format!("{}:{line}: \"{phrase}\": write {instead}", file.display())
            }));
        }
    }
    assert_none(&complaints);
}
