//! Patterns of the count benchmarks, each with its expected count.

use bson::{Document, doc};

/// A count of the documents whose field `name` matches a pattern.
#[derive(Clone, Copy, Debug)]
pub struct CountCase {
    /// Name in the record.
    pub case: &'static str,
    /// Pattern that means the same in PCRE2 and in ripgrep. Its character classes are ASCII. `$` also means the same,
    /// because no name contains a newline.
    pub pattern: &'static str,
    /// Whether letters match in either case (option `i`).
    pub ignore_case: bool,
    /// Number of matching real names, according to `rg -c` on the pinned release and Python's `re`.
    pub expect: u64,
}

impl CountCase {
    /// Returns the filter of the command.
    pub fn filter(&self) -> Document {
        if self.ignore_case {
            doc! { "name": { "$regex": self.pattern, "$options": "i" } }
        } else {
            doc! { "name": { "$regex": self.pattern } }
        }
    }
}

const fn case(case: &'static str, pattern: &'static str, expect: u64) -> CountCase {
    CountCase {
        case,
        pattern,
        ignore_case: false,
        expect,
    }
}

/// Counts that are measured on all names. Some patterns have one required literal, some several, and some none.
pub const COUNT_CASES: [CountCase; 12] = [
    case("substring-rare", "kubernetes-dashboard", 2),
    case("substring-common", "react", 229_265),
    case("substring-short", "zx", 5_844),
    CountCase {
        ignore_case: true,
        ..case("substring-any-case", "graphql", 8_236)
    },
    case("suffix", "-loader$", 11_319),
    case("regex-literal", "webpack.*plugin", 7_548),
    case(
        "regex-literals",
        "(mysql|postgres|mongo).*(pool|stream)",
        114,
    ),
    case("regex-literal-class", "^@[a-z]+/[a-z]+-client$", 5_790),
    CountCase {
        ignore_case: true,
        ..case("regex-any-case", "angular.*(grid|table)[0-9]", 4)
    },
    case("regex-no-literal", "[0-9]{4}-[0-9]{2}", 8_169),
    case("regex-letters", "^[a-z]{3}[0-9]{3}$", 1_014),
    case("regex-vowels", "[aeiou]{5}", 1_550),
];

/// Names of the cases that are also measured with FerretDB. They are few, because FerretDB takes half a minute for each
/// count.
pub const FERRETDB_CASES: [&str; 3] = ["substring-rare", "regex-literal", "regex-no-literal"];

/// Number of names that FerretDB searches.
pub const FERRETDB_NAMES: usize = 1_000_000;
