//! The searches of the demonstration, as data.

use bson::{Document, doc};

use super::load::{MOVIES, NAMES, Source};

/// A search of the demonstration.
#[derive(Clone, Debug)]
pub struct Search {
    /// Collection to search.
    pub collection: &'static str,
    /// Kind of search, in the words of the documentation.
    pub kind: &'static str,
    /// The filter as text, for a shell's `find` or `countDocuments`.
    pub text: String,
    /// The filter.
    pub filter: Document,
}

/// Returns the searches that the demonstration runs on the data of `source`.
pub fn of(source: &Source) -> Vec<Search> {
    let mut searches = over_names();
    if source.has_movies() {
        searches.extend(over_movies());
    }
    searches
}

fn over_names() -> Vec<Search> {
    let regex =
        |kind, pattern: &str| names(kind, format!("/{pattern}/"), doc! { "$regex": pattern });
    vec![
        names("exact", "\"react\"", "react"),
        names(
            "exact, one of",
            "{$in: [\"vue\", \"react\", \"svelte\"]}",
            doc! { "$in": ["vue", "react", "svelte"] },
        ),
        regex("prefix", "^react-native-"),
        regex("suffix", "-loader$"),
        regex("substring", "webpack"),
        names(
            "substring, any case",
            "/postgresql/i",
            doc! { "$regex": "postgresql", "$options": "i" },
        ),
        regex("regex", "^(babel|eslint)-plugin-[a-z]+-[a-z]+$"),
        regex("regex", "(mysql|postgres|mongo).*(pool|stream)"),
        regex("regex, no literal", "[0-9]{4}-[0-9]{2}"),
        names(
            "regex, any case",
            "/^@[a-z]+\\/(api|client)$/i",
            doc! { "$regex": "^@[a-z]+/(api|client)$", "$options": "i" },
        ),
        regex("look-ahead", "^(?=.*react)(?=.*hook)(?!.*use)"),
        regex("back reference", "^([a-z]{4,})-\\1$"),
        names(
            "negation",
            "{$not: /[a-z]/}",
            doc! { "$not": { "$regex": "[a-z]" } },
        ),
        names(
            "both of two",
            "{$regex: /^vue-/, $nin: [/-cli$/, /[0-9]/]}",
            doc! { "$regex": "^vue-", "$nin": [regex_value("-cli$"), regex_value("[0-9]")] },
        ),
    ]
}

fn over_movies() -> Vec<Search> {
    vec![
        movies(
            "substring",
            "{Title: /Star/}",
            doc! { "Title": { "$regex": "Star" } },
        ),
        movies(
            "two fields",
            "{Title: /the/i, Director: /^S/}",
            doc! { "Title": { "$regex": "the", "$options": "i" }, "Director": { "$regex": "^S" } },
        ),
        movies(
            "cached and not",
            "{Title: /Love/, \"IMDB Rating\": {$gt: 7}}",
            doc! { "Title": { "$regex": "Love" }, "IMDB Rating": { "$gt": 7 } },
        ),
    ]
}

fn names(kind: &'static str, text: impl Into<String>, test: impl Into<bson::Bson>) -> Search {
    let text = format!("{{name: {}}}", text.into());
    Search {
        collection: NAMES,
        kind,
        text,
        filter: doc! { "name": test.into() },
    }
}

fn movies(kind: &'static str, text: &str, filter: Document) -> Search {
    Search {
        collection: MOVIES,
        kind,
        text: text.to_owned(),
        filter,
    }
}

fn regex_value(pattern: &str) -> bson::Regex {
    let pattern = bson::raw::CString::try_from(pattern)
        .expect("the patterns of the demonstration contain no NUL");
    let options = bson::raw::CString::try_from("").expect("the empty string contains no NUL");
    bson::Regex { pattern, options }
}
