//! Proof that the upstream lets a client read a collection: what it said, and how long that counts.

use std::time::{Duration, Instant};

use bson::RawDocument;

/// How long the upstream's permission to read a collection counts.
const LIFE: Duration = Duration::from_secs(60);
/// `Unauthorized`: the client may not do something.
const UNAUTHORIZED: i32 = 13;

/// Whether a permission that the upstream gave at `given`, if it did, still counts at `at`.
pub fn counts(given: Option<Instant>, at: Instant) -> bool {
    given.is_some_and(|given| at.saturating_duration_since(given) < LIFE)
}

/// Whether a reply is a refusal for lack of rights: those of the client may have changed.
pub fn is_taken_back(reply: &RawDocument) -> bool {
    reply.get_i32("code").is_ok_and(|code| code == UNAUTHORIZED)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_word_counts_for_a_while() {
        let given = Instant::now();
        assert!(counts(Some(given), given));
        assert!(counts(Some(given), given + LIFE / 2));
        assert!(!counts(Some(given), given + LIFE));
        assert!(!counts(None, given));
        // It was given after the upstream was lost, by one that was about to go.
        assert!(counts(Some(given + LIFE), given));
    }

    #[test]
    fn a_refusal_takes_it_back() {
        assert!(is_taken_back(&rawdoc! { "ok": 0.0, "code": 13 }));
        assert!(!is_taken_back(&rawdoc! { "ok": 0.0, "code": 26 }));
        assert!(!is_taken_back(&rawdoc! { "ok": 1.0 }));
    }
}
