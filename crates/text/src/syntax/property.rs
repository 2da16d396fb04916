//! Unicode properties from PCRE2's own tables.
//!
//! The characters of a property depend on the Unicode version. On the first use of a property, PCRE2 is asked about all
//! characters (tens of milliseconds), and the result is kept until the process ends. The number of properties is
//! bounded, because PCRE2 refuses unknown names.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use parking_lot::Mutex;

use super::set::CharSet;
use crate::pcre2::Code;
use crate::pcre2::option::PCRE2_CASELESS;

/// Characters per call of PCRE2, which checks the encoding of the whole subject on each call.
const CHARS_PER_CALL: usize = 1_024;

/// Maximum entries of the cache of properties. Each spelling of an escape has its own entry. Once the cache is full, a
/// pattern with another spelling gets the tier of PCRE2.
const SPELLINGS_MAX: usize = 1_024;

type Key = (String, bool);

static KNOWN: LazyLock<Mutex<HashMap<Key, Arc<CharSet>>>> = LazyLock::new(Mutex::default);

/// Returns the characters that an escape such as `\p{Lu}` matches; `None` if PCRE2 refuses the escape, or the cache of
/// properties is full.
pub(super) fn property(escape: &str, ignore_case: bool) -> Option<Arc<CharSet>> {
    let key = (escape.to_owned(), ignore_case);
    if let Some(set) = KNOWN.lock().get(&key) {
        return Some(Arc::clone(set));
    }
    let options = if ignore_case { PCRE2_CASELESS } else { 0 };
    let judge = Code::own(&format!("(?:{escape})+"), options).ok()?;
    let set = Arc::new(ask(&judge)?);
    let mut known = KNOWN.lock();
    if known.len() >= SPELLINGS_MAX {
        return None;
    }
    known.insert(key, Arc::clone(&set));
    Some(set)
}

fn ask(judge: &Code) -> Option<CharSet> {
    let mut runs = Vec::new();
    let mut chars = (char::MIN..=char::MAX).peekable();
    let mut subject = String::with_capacity(CHARS_PER_CALL * 4);
    while chars.peek().is_some() {
        subject.clear();
        subject.extend(chars.by_ref().take(CHARS_PER_CALL));
        let mut from = 0;
        while let Some((start, end)) = judge.find(subject.as_bytes(), from).ok()? {
            runs.extend(ends(&subject[start..end]));
            from = end;
        }
    }
    Some(CharSet::of_ranges(&runs))
}

/// Returns the first and the last character of `run`, whose characters are in ascending order.
fn ends(run: &str) -> Option<(char, char)> {
    Some((run.chars().next()?, run.chars().next_back()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asks_pcre2() {
        let upper = property(r"\p{Lu}", false).expect("a property");
        assert!(upper.contains('A') && upper.contains('É') && !upper.contains('a'));
        let not_upper = property(r"\P{Lu}", false).expect("a property");
        assert_eq!((*not_upper).clone().negated(), *upper);
        // The character was added in Unicode 15, so it is not a letter in PCRE2 10.42.
        let letter = property(r"\pL", false).expect("a property");
        assert!(!letter.contains('\u{1E030}'));
        assert!(property(r"\p{Nonsense}", false).is_none());
    }
}
