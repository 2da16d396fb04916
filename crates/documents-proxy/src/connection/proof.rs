//! Proof that the upstream lets a client read a collection, and how long the proof is valid.

use std::time::{Duration, Instant};

use bson::RawDocument;

/// Time for which the upstream's permission to read a collection is valid.
const LIFE: Duration = Duration::from_secs(60);
/// Error code `Unauthorized`.
const UNAUTHORIZED: i32 = 13;

/// Returns whether a permission that the upstream gave at time `given` is valid at time `at`.
pub fn is_valid(given: Option<Instant>, at: Instant) -> bool {
    given.is_some_and(|given| at.saturating_duration_since(given) < LIFE)
}

/// Returns whether a reply refuses a command as unauthorized: the client's rights may have changed.
pub fn is_revocation(reply: &RawDocument) -> bool {
    reply.get_i32("code").is_ok_and(|code| code == UNAUTHORIZED)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_permission_is_valid_for_a_while() {
        let given = Instant::now();
        assert!(is_valid(Some(given), given));
        assert!(is_valid(Some(given), given + LIFE / 2));
        assert!(!is_valid(Some(given), given + LIFE));
        assert!(!is_valid(None, given));
        // A permission given after the upstream was lost also counts: a server that was about to stop gave it.
        assert!(is_valid(Some(given + LIFE), given));
    }

    #[test]
    fn a_refusal_revokes_it() {
        assert!(is_revocation(&rawdoc! { "ok": 0.0, "code": 13 }));
        assert!(!is_revocation(&rawdoc! { "ok": 0.0, "code": 26 }));
        assert!(!is_revocation(&rawdoc! { "ok": 1.0 }));
    }
}
