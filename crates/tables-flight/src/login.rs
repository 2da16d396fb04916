//! Logins: passwords and tokens in the header `authorization`.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use forebay_net::random_bytes;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;
use tokio::task::block_in_place;
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use crate::door::{Access, Users};

/// Time after its last use when a token is forgotten.
const LIFETIME: Duration = Duration::from_secs(3600);
/// Maximum number of tokens of a user. The one that was not used for longest makes room.
const TOKENS_MAX: usize = 1_000;
/// Bytes of a token.
const TOKEN_BYTES: usize = 24;
/// The user of clients that name none where none is needed.
const ANONYMOUS: &str = "forebay";
/// Base64 with padding or without: the client of Go sends none.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A hash of a value of the header. Passwords are not kept.
type Key = [u8; 32];

/// The login of a connection. It lasts as long as the connection, unless the user changes.
#[derive(Debug, Default)]
pub(crate) struct Login {
    /// The value that was valid last.
    last: Option<(Key, Arc<Identity>)>,
    /// The token that the connection got last.
    token: Option<Key>,
}

/// A logged-in user.
#[derive(Debug)]
pub(crate) struct Identity {
    pub(crate) user: String,
    credentials: String,
    rights: Mutex<Rights>,
}

#[derive(Debug, Clone, Copy)]
struct Rights {
    access: Access,
    /// Number of changes of users when the rights were read.
    changes: u64,
}

impl Identity {
    fn new(user: &str, credentials: String, rights: Rights) -> Arc<Identity> {
        Arc::new(Identity {
            user: user.to_owned(),
            credentials,
            rights: Mutex::new(rights),
        })
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.rights.lock().access == Access::Read
    }
}

/// The users, and the values of the header that were valid lately.
pub(crate) struct Logins {
    users: Box<dyn Users>,
    salt: [u8; 16],
    known: Mutex<HashMap<Key, Known>>,
    /// Lets one password be verified at a time, as that takes long.
    verifying: Semaphore,
}

struct Known {
    identity: Arc<Identity>,
    used: Instant,
}

impl Logins {
    pub(crate) fn new(users: Box<dyn Users>) -> Logins {
        let mut salt = [0; 16];
        random_bytes(&mut salt);
        Logins {
            users,
            salt,
            known: Mutex::default(),
            verifying: Semaphore::new(1),
        }
    }

    /// Returns the user of a call of a connection.
    ///
    /// # Errors
    /// If there is no valid login and one is required.
    pub(crate) async fn identity(
        &self,
        headers: &HeaderMap,
        sender: IpAddr,
        login: &Mutex<Login>,
    ) -> Result<Arc<Identity>, Status> {
        let Some(value) = headers.get("authorization") else {
            return match self.users.are_required() {
                false => Ok(self.anyone(ANONYMOUS)),
                true => Err(Status::unauthenticated(
                    "log in with a user name and a password, or with a token",
                )),
            };
        };
        let key = self.key(value.as_bytes());
        let last = login.lock().last.clone();
        let known = last.filter(|(last, _)| *last == key);
        let known = known.map(|(_, identity)| identity);
        let identity = match known.or_else(|| self.find(&key)) {
            Some(identity) => identity,
            None => {
                let identity = self.log_in(value.as_bytes(), sender).await?;
                self.keep(key, &identity);
                identity
            }
        };
        self.check(&identity)?;
        login.lock().last = Some((key, Arc::clone(&identity)));
        Ok(identity)
    }

    /// Returns a value of the header that is valid for a while, also on other connections.
    pub(crate) fn token(&self, identity: &Arc<Identity>, login: &Mutex<Login>) -> String {
        let mut token = [0; TOKEN_BYTES];
        random_bytes(&mut token);
        let value = format!("Bearer {}", BASE64.encode(token));
        let key = self.key(value.as_bytes());
        self.keep(key, identity);
        login.lock().token = Some(key);
        value
    }

    /// Ends the login of a connection, and the token that it got.
    pub(crate) fn forget(&self, login: &Mutex<Login>) {
        let login = std::mem::take(&mut *login.lock());
        if let Some(key) = login.token {
            self.known.lock().remove(&key);
        }
    }

    fn key(&self, value: &[u8]) -> Key {
        let salted = Sha256::new().chain_update(self.salt).chain_update(value);
        salted.finalize().into()
    }

    fn find(&self, key: &Key) -> Option<Arc<Identity>> {
        let mut known = self.known.lock();
        let found = known.get_mut(key)?;
        if found.used.elapsed() > LIFETIME {
            known.remove(key);
            return None;
        }
        found.used = Instant::now();
        Some(Arc::clone(&found.identity))
    }

    fn keep(&self, key: Key, identity: &Arc<Identity>) {
        let mut known = self.known.lock();
        known.retain(|_, found| found.used.elapsed() <= LIFETIME);
        let of_user = known
            .iter()
            .filter(|(_, found)| found.identity.user == identity.user);
        let (count, oldest) = of_user.fold((0, None), |(count, oldest), (key, found)| {
            let oldest = oldest.filter(|(used, _)| *used < found.used);
            (count + 1, oldest.or(Some((found.used, *key))))
        });
        if let Some((_, oldest)) = oldest.filter(|_| count >= TOKENS_MAX) {
            known.remove(&oldest);
        }
        let identity = Arc::clone(identity);
        let used = Instant::now();
        known.insert(key, Known { identity, used });
    }

    fn anyone(&self, user: &str) -> Arc<Identity> {
        let rights = Rights {
            access: Access::Write,
            changes: self.users.changes(),
        };
        Identity::new(user, String::new(), rights)
    }

    async fn log_in(&self, value: &[u8], sender: IpAddr) -> Result<Arc<Identity>, Status> {
        let Some((user, password)) = name_and_password(value) else {
            return Err(Status::unauthenticated(
                "the token is not valid, or no longer: log in with a user name and a password",
            ));
        };
        if !self.users.are_required() {
            return Ok(self.anyone(&user));
        }
        let verified = {
            let _permit = self.verifying.acquire().await;
            block_in_place(|| self.users.verify(&user, &password))
        };
        let Some(credentials) = verified.map_err(Status::unauthenticated)? else {
            let delay = self.users.wrong_password(&user, sender);
            tokio::time::sleep(delay).await;
            let message = format!("password authentication failed for user \"{user}\"");
            return Err(Status::unauthenticated(message));
        };
        let rights = self.rights(&user, &credentials).ok_or_else(|| {
            Status::permission_denied(format!(
                "the user \"{user}\" has no role for tables; give it a role of all databases, such as readAnyDatabase"
            ))
        })?;
        Ok(Identity::new(&user, credentials, rights))
    }

    fn rights(&self, user: &str, credentials: &str) -> Option<Rights> {
        let changes = self.users.changes();
        let access = block_in_place(|| self.users.access(user, credentials))?;
        Some(Rights { access, changes })
    }

    /// Reads the user's rights again if users were changed.
    fn check(&self, identity: &Identity) -> Result<(), Status> {
        let changes = identity.rights.lock().changes;
        if !self.users.are_required() || changes == self.users.changes() {
            return Ok(());
        }
        let rights = self.rights(&identity.user, &identity.credentials);
        *identity.rights.lock() = rights.ok_or_else(|| {
            Status::unauthenticated("the user was removed or changed: log in again")
        })?;
        Ok(())
    }
}

/// Returns the parts of the value `Basic ...`; `None` if it is another.
fn name_and_password(value: &[u8]) -> Option<(String, String)> {
    let encoded = value.strip_prefix(b"Basic ")?;
    let text = String::from_utf8(BASE64.decode(encoded).ok()?).ok()?;
    let (user, password) = text.split_once(':')?;
    Some((user.to_owned(), password.to_owned())).filter(|(user, _)| !user.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_read_with_padding_and_without() {
        let ada = Some(("ada".to_owned(), "a:b".to_owned()));
        assert_eq!(name_and_password(b"Basic YWRhOmE6Yg=="), ada);
        assert_eq!(name_and_password(b"Basic YWRhOmE6Yg"), ada);
        for other in [
            &b"Bearer YWRhOmE6Yg"[..],
            b"Basic YWRh",
            b"Basic OmE",
            b"Basic \xff",
            b"",
        ] {
            assert_eq!(name_and_password(other), None, "{other:?}");
        }
    }

    /// Accepts any password of any user.
    struct Anyone;

    impl Users for Anyone {
        fn are_required(&self) -> bool {
            true
        }

        fn verify(&self, _user: &str, password: &str) -> Result<Option<String>, String> {
            Ok(Some(password.to_owned()))
        }

        fn wrong_password(&self, _user: &str, _sender: IpAddr) -> Duration {
            Duration::ZERO
        }

        fn changes(&self) -> u64 {
            0
        }

        fn access(&self, _user: &str, _credentials: &str) -> Option<Access> {
            Some(Access::Read)
        }
    }

    #[test]
    fn a_user_has_a_bounded_number_of_tokens() {
        let logins = Logins::new(Box::new(Anyone));
        let user = |name| logins.anyone(name);
        let (ada, alan) = (user("ada"), user("alan"));
        let connection = Mutex::new(Login::default());
        let token = |identity| logins.token(identity, &Mutex::default());
        let first = token(&ada);
        let other = token(&alan);
        let second = logins.token(&ada, &connection);
        for _ in 2..=TOKENS_MAX {
            token(&ada);
        }
        let is_known = |value: &str| logins.find(&logins.key(value.as_bytes())).is_some();
        assert!(!is_known(&first) && is_known(&second) && is_known(&other));
        logins.forget(&connection);
        assert!(!is_known(&second));
        assert_eq!(logins.known.lock().len(), TOKENS_MAX);
    }
}
