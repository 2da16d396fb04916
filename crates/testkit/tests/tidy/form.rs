//! Tests of the code's form: lengths of functions, files and comments, how tests wait, and unused kernel files.

use std::path::Path;

use super::{assert_none, files, files_of, read};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 720;
const COMMENT_COLUMNS_MAX: usize = 120;

/// Files of the helpers with which tests wait. Each helper checks a condition until a deadline.
const WAITING: [&str; 2] = [
    "crates/testkit/src/wait.rs",
    "tests/drivers/python/waiting.py",
];

/// Functions that pause a thread or task, in the languages of the tests. Each name is split in two, so that this file
/// does not break the rule.
const SLEEPS: [(&str, &str); 4] = [
    ("sl", "eep"),
    ("sl", "eep_until"),
    ("Sl", "eep"),
    ("setTim", "eout"),
];

/// A function of formatted Rust source: its name, first line and number of lines.
type Function<'a> = (&'a str, usize, usize);

/// Returns the functions of formatted Rust source. A function ends at the first line that has the indentation of its
/// first line and ends a block or a statement.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let found = lines.iter().enumerate().filter_map(|(first, line)| {
        let name = function_name(line)?;
        let indent = line.len() - line.trim_start().len();
        let is_end = |line: &&str| {
            let at_indent = line.len() - line.trim_start().len() == indent;
            at_indent && (line.trim() == "}" || line.ends_with([';', '}']))
        };
        let rest = lines[first..].iter().position(is_end)?;
        Some((name, first + 1, rest + 1))
    });
    found.collect()
}

/// Returns the name of the function that begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.trim_start().split_once("fn ")?;
    let is_keyword = |word: &str| {
        let keywords = ["const", "async", "extern", "\"C\"", concat!("un", "safe")];
        word.starts_with("pub") || word.starts_with("in") || keywords.contains(&word)
    };
    let name = after.split(['(', '<']).next()?;
    before.split_whitespace().all(is_keyword).then_some(name)
}

#[test]
fn functions_are_found() {
    let text = "fn one() {\n    1\n}\n\nimpl X {\n    pub(crate) async fn two<T>(\n        a: T,\n    ) -> u8 {\n        a\n    }\n\n    fn three(&self) -> u8;\n}\n// a fn here\n";
    assert_eq!(
        functions(text),
        [("one", 1, 3), ("two", 6, 5), ("three", 12, 1)]
    );
}

#[test]
fn functions_fit_on_a_page() {
    let mut complaints = Vec::new();
    for file in files_of("rs") {
        let text = read(&file);
        let long = functions(&text);
        let long = long
            .iter()
            .filter(|(.., lines)| *lines > FUNCTION_LINES_MAX);
        complaints.extend(long.map(|(name, line, lines)| {
            format!(
                "{}:{line}: `{name}` has {lines} lines: split it",
                file.display()
            )
        }));
    }
    assert_none(&complaints);
}

#[test]
fn source_files_are_of_one_subject() {
    let mut complaints = Vec::new();
    for extension in ["rs", "py", "js", "go", "cu", "cuh", "sh"] {
        for file in files_of(extension) {
            let lines = read(&file).lines().count();
            if lines > FILE_LINES_MAX {
                complaints.push(format!(
                    "{}: {lines} lines: split it by subject",
                    file.display()
                ));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn comments_fit_on_a_screen() {
    let mut complaints = Vec::new();
    for (extension, mark) in [
        ("rs", "//"),
        ("cu", "//"),
        ("cuh", "//"),
        ("go", "//"),
        ("sh", "#"),
    ] {
        for file in files_of(extension) {
            let text = read(&file);
            let lines = text.lines().zip(1..);
            // A row of a table cannot be wrapped.
            let comments = lines.filter(|(line, _)| {
                let comment = line.trim_start();
                comment.starts_with(mark) && !comment.ends_with('|')
            });
            let wide = comments.filter(|(line, _)| line.chars().count() > COMMENT_COLUMNS_MAX);
            complaints.extend(
                wide.map(|(_, number)| format!("{}:{number}: wrap the comment", file.display())),
            );
        }
    }
    assert_none(&complaints);
}

/// Returns whether a name occurs in the text as a whole word.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_part) && !after.starts_with(is_part)
    })
}

/// Returns the tests in a file: the whole file if it is in a folder of tests, otherwise the module at its end.
fn tests_in<'t>(file: &Path, text: &'t str) -> &'t str {
    if file.iter().any(|part| part == "tests") {
        return text;
    }
    text.split_once("#[cfg(test)]")
        .map_or("", |(_, tests)| tests)
}

/// Returns whether tests use a function of `SLEEPS`. An import counts too, so an alias does not hide it.
fn rests(tests: &str) -> bool {
    SLEEPS
        .iter()
        .any(|(a, b)| has_word(tests, &format!("{a}{b}")))
}

#[test]
fn sleeps_are_found_under_the_names_that_tests_import() {
    for text in [
        concat!("use std::thread::sl", "eep;"),
        concat!("use std::thread::{self, sl", "eep as rest};"),
        concat!("from time import sl", "eep"),
        concat!("await new Promise((done) => setTim", "eout(done, 5))"),
    ] {
        assert!(rests(text), "{text}");
    }
    assert!(!rests("fn sleepers_wake() { let asleep = 1; }"));
    let source = concat!("fn a() { sl", "eep() }\n#[cfg(test)]\nmod tests {}");
    assert!(!rests(tests_in(Path::new("crates/a/src/lib.rs"), source)));
    assert!(rests(tests_in(Path::new("crates/a/tests/a.rs"), source)));
}

#[test]
fn tests_wait_for_conditions() {
    let is_helper = |file: &Path| WAITING.iter().any(|helper| file == Path::new(helper));
    let mut complaints = Vec::new();
    for extension in ["rs", "py", "js", "go"] {
        let files = files_of(extension).into_iter();
        for file in files.filter(|file| !is_helper(file)) {
            if rests(tests_in(&file, &read(&file))) {
                complaints.push(format!(
                    "{}: wait for what the test needs, with one of {WAITING:?}",
                    file.display()
                ));
            }
        }
    }
    assert_none(&complaints);
}

#[test]
fn every_kernel_file_is_compiled() {
    let files = files();
    let is_kernel = |file: &&std::path::PathBuf| {
        let extension = file.extension();
        extension.is_some_and(|extension| extension == "cu" || extension == "cuh")
    };
    let source: String = files_of("rs").iter().map(|file| read(file)).collect();
    let unused = files.iter().filter(is_kernel).filter(|file| {
        let name = file.file_name().and_then(|name| name.to_str());
        let name = name.expect("file names here are UTF-8");
        let is_included = |path: &str| source.contains(&format!("include_str!(\"{path}\")"));
        let folder = file
            .parent()
            .and_then(Path::file_name)
            .and_then(|name| name.to_str());
        let nested = format!("{}/{name}", folder.unwrap_or_default());
        !is_included(name) && !is_included(&nested)
    });
    let complaints: Vec<String> = unused
        .map(|file| format!("{}: no program includes it", file.display()))
        .collect();
    assert_none(&complaints);
}
