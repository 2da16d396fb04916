//! The server side of SCRAM-SHA-256.
//!
//! # Sources
//! RFC 5802 (the exchange), RFC 7677 (SHA-256). Like MongoDB, the server does not offer channel binding.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_net::random_bytes;
use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Number of hash iterations for a password; MongoDB's default.
pub const ITERATIONS: u32 = 15_000;
/// Length of a salt in bytes; the same as MongoDB's for SHA-256.
const SALT_BYTES: usize = 28;
/// Maximum bytes of a client's message.
const MESSAGE_BYTES_MAX: usize = 4096;
/// GS2 headers of clients that use no channel binding. Each is paired with its base64 form, which the client's last
/// message contains.
const NO_BINDING: [(&str, &str); 2] = [("n,,", "biws"), ("y,,", "eSws")];

type Hash = [u8; 32];

/// Stored hashes of a password, as base64.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    salt: String,
    iterations: u32,
    stored_key: String,
    server_key: String,
}

/// Why a SCRAM exchange failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ScramError {
    /// The client's message is not valid SCRAM.
    #[error("malformed SCRAM message: {0}")]
    Malformed(&'static str),
    /// The proof is wrong: the password is wrong, or the user does not exist.
    #[error("Authentication failed.")]
    WrongProof,
}

impl Credentials {
    /// Hashes a normalised password (see `prepare::password`) with a fresh salt. Takes several milliseconds of one
    /// core.
    pub fn derive(prepared_password: &str) -> Credentials {
        let mut salt = [0; SALT_BYTES];
        random_bytes(&mut salt);
        Self::derive_with(prepared_password, &salt, ITERATIONS)
    }

    fn derive_with(password: &str, salt: &[u8], iterations: u32) -> Credentials {
        let salted: Hash =
            pbkdf2::pbkdf2_hmac_array::<Sha256, 32>(password.as_bytes(), salt, iterations);
        Credentials {
            salt: BASE64.encode(salt),
            iterations,
            stored_key: BASE64.encode(Sha256::digest(mac(&salted, b"Client Key"))),
            server_key: BASE64.encode(mac(&salted, b"Server Key")),
        }
    }

    /// Returns whether these are the credentials of a normalised password. Takes several milliseconds of one core.
    #[cfg(feature = "tables")]
    pub fn are_of(&self, prepared_password: &str) -> bool {
        let Ok(salt) = BASE64.decode(&self.salt) else {
            return false;
        };
        let derived = Self::derive_with(prepared_password, &salt, self.iterations);
        match (
            decode_hash(&derived.stored_key),
            decode_hash(&self.stored_key),
        ) {
            (Ok(derived), Ok(stored)) => constant_time_eq(&derived, &stored),
            _ => false,
        }
    }

    /// Returns credentials that match no password. The same name and database always get the same credentials, so
    /// that a client cannot find out whether a user exists.
    pub fn of_missing_user(name: &str, db: &str, secret: &[u8]) -> Credentials {
        // The zero byte separates database and name unambiguously, because neither contains a zero byte.
        let salt = mac(secret, format!("{db}\0{name}").as_bytes());
        Credentials {
            salt: BASE64.encode(&salt[..SALT_BYTES]),
            iterations: ITERATIONS,
            stored_key: BASE64.encode(mac(secret, &salt)),
            server_key: BASE64.encode(mac(secret, &salt)),
        }
    }
}

/// The client's first message, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientFirst {
    /// Name of the user.
    pub user: String,
    nonce: String,
    bare: String,
    binding: &'static str,
}

impl ClientFirst {
    /// Parses the message.
    ///
    /// # Errors
    /// [`ScramError::Malformed`].
    pub fn parse(message: &[u8]) -> Result<ClientFirst, ScramError> {
        let message = text(message)?;
        let bound = NO_BINDING
            .iter()
            .find_map(|(header, form)| Some((message.strip_prefix(header)?, *form)));
        let (bare, binding) =
            bound.ok_or(ScramError::Malformed("channel binding is not supported"))?;
        let mut fields = bare.split(',');
        let user = field(fields.next(), "n=")?;
        let nonce = field(fields.next(), "r=")?;
        if nonce.is_empty() {
            return Err(ScramError::Malformed("the nonce is empty"));
        }
        Ok(ClientFirst {
            user: unescape(user)?,
            nonce: nonce.to_owned(),
            bare: bare.to_owned(),
            binding,
        })
    }
}

/// The state of an exchange after the server's first message.
#[derive(Debug)]
pub struct Exchange {
    credentials: Credentials,
    nonce: String,
    binding: &'static str,
    /// The client's first message (without its GS2 header) and the server's first message, joined by a comma.
    transcript: String,
}

impl Exchange {
    /// Answers the client's first message. Returns the exchange and the server's first message.
    pub fn start(first: &ClientFirst, credentials: Credentials) -> (Exchange, String) {
        let mut random = [0; 24];
        random_bytes(&mut random);
        Self::start_with(first, credentials, &BASE64.encode(random))
    }

    fn start_with(
        first: &ClientFirst,
        credentials: Credentials,
        server_nonce: &str,
    ) -> (Exchange, String) {
        let nonce = format!("{}{server_nonce}", first.nonce);
        let reply = format!(
            "r={nonce},s={},i={}",
            credentials.salt, credentials.iterations
        );
        let transcript = format!("{},{reply}", first.bare);
        (
            Exchange {
                credentials,
                nonce,
                binding: first.binding,
                transcript,
            },
            reply,
        )
    }

    /// Verifies the client's last message. Returns the server's last message.
    ///
    /// # Errors
    /// [`ScramError::WrongProof`] if the proof is wrong, [`ScramError::Malformed`] if it is missing.
    pub fn finish(&self, message: &[u8]) -> Result<String, ScramError> {
        let message = text(message)?;
        let (without_proof, proof) = message
            .rsplit_once(",p=")
            .ok_or(ScramError::Malformed("no proof"))?;
        let mut fields = without_proof.split(',');
        if field(fields.next(), "c=")? != self.binding {
            return Err(ScramError::Malformed("the channel binding differs"));
        }
        if field(fields.next(), "r=")? != self.nonce {
            return Err(ScramError::Malformed("the nonce differs"));
        }
        let transcript = format!("{},{without_proof}", self.transcript);
        self.verify(&transcript, &decode_hash(proof)?)?;
        let server_key = decode_hash(&self.credentials.server_key)?;
        Ok(format!(
            "v={}",
            BASE64.encode(mac(&server_key, transcript.as_bytes()))
        ))
    }

    fn verify(&self, transcript: &str, proof: &Hash) -> Result<(), ScramError> {
        let stored_key = decode_hash(&self.credentials.stored_key)?;
        let signature = mac(&stored_key, transcript.as_bytes());
        let mut client_key = *proof;
        client_key
            .iter_mut()
            .zip(signature)
            .for_each(|(byte, other)| *byte ^= other);
        let hashed: Hash = Sha256::digest(client_key).into();
        if constant_time_eq(&hashed, &stored_key) {
            Ok(())
        } else {
            Err(ScramError::WrongProof)
        }
    }
}

fn text(message: &[u8]) -> Result<&str, ScramError> {
    if message.len() > MESSAGE_BYTES_MAX {
        return Err(ScramError::Malformed("the message is too long"));
    }
    std::str::from_utf8(message).map_err(|_| ScramError::Malformed("the message is not UTF-8"))
}

fn field<'a>(field: Option<&'a str>, prefix: &'static str) -> Result<&'a str, ScramError> {
    field
        .and_then(|field| field.strip_prefix(prefix))
        .ok_or(ScramError::Malformed("a field is missing"))
}

/// Decodes `=2C` to a comma and `=3D` to an equals sign.
fn unescape(name: &str) -> Result<String, ScramError> {
    let mut parts = name.split('=');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (character, rest) = match (part.strip_prefix("2C"), part.strip_prefix("3D")) {
            (Some(rest), _) => (',', rest),
            (_, Some(rest)) => ('=', rest),
            _ => return Err(ScramError::Malformed("the user name has a bare '='")),
        };
        plain.push(character);
        plain.push_str(rest);
    }
    Ok(plain)
}

fn decode_hash(text: &str) -> Result<Hash, ScramError> {
    let bytes = BASE64.decode(text).ok();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or(ScramError::Malformed(
            "a key is not 32 bytes, encoded as base64",
        ))
}

fn mac(key: &[u8], message: &[u8]) -> Hash {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Compares two hashes in constant time.
fn constant_time_eq(left: &Hash, right: &Hash) -> bool {
    let difference = left
        .iter()
        .zip(right)
        .fold(0, |difference, (left, right)| difference | (left ^ right));
    std::hint::black_box(difference) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the example of RFC 7677, section 3.
    #[test]
    fn the_rfc_example_succeeds() {
        let salt = BASE64.decode("W22ZaJ0SNY7soEsUEjb6gQ==").expect("base64");
        let credentials = Credentials::derive_with("pencil", &salt, 4096);
        let first = ClientFirst::parse(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO").expect("valid");
        assert_eq!(first.user, "user");
        let (exchange, reply) =
            Exchange::start_with(&first, credentials, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0");
        assert_eq!(
            reply,
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let last = "c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let verdict = exchange.finish(last.as_bytes());
        assert_eq!(
            verdict.as_deref(),
            Ok("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=")
        );
    }

    #[cfg(feature = "tables")]
    #[test]
    fn credentials_are_of_one_password() {
        let credentials = Credentials::derive_with("pencil", b"salt", 10);
        assert!(credentials.are_of("pencil") && !credentials.are_of("Pencil"));
        assert!(!Credentials::of_missing_user("ada", "admin", b"secret").are_of(""));
    }

    #[test]
    fn a_wrong_proof_fails() {
        let first = ClientFirst::parse(b"n,,n=user,r=abc").expect("valid");
        let (exchange, _) = Exchange::start(&first, Credentials::derive_with("secret", b"salt", 1));
        let message = format!("c=biws,r={},p={}", exchange.nonce, BASE64.encode([0; 32]));
        assert_eq!(
            exchange.finish(message.as_bytes()),
            Err(ScramError::WrongProof)
        );
        let (missing, _) = Exchange::start(
            &first,
            Credentials::of_missing_user("user", "admin", b"secret"),
        );
        let message = format!("c=biws,r={},p={}", missing.nonce, BASE64.encode([0; 32]));
        assert_eq!(
            missing.finish(message.as_bytes()),
            Err(ScramError::WrongProof)
        );
    }

    #[test]
    fn salts_of_missing_users_are_like_those_of_users() {
        let salt = |name, db, secret: &[u8]| Credentials::of_missing_user(name, db, secret).salt;
        let first = salt("ada", "admin", b"secret");
        assert_eq!(first, salt("ada", "admin", b"secret"));
        let length = BASE64.decode(&first).expect("base64").len();
        assert_eq!(length, SALT_BYTES);
        let others = [
            salt("ada", "test", b"secret"),
            salt("eve", "admin", b"secret"),
            salt("ada", "admin", b"another"),
        ];
        assert!(
            !others.contains(&first),
            "as for users, who each have their own"
        );
    }

    #[test]
    fn malformed_messages_are_refused() {
        let messages: [&[u8]; 7] = [
            b"",
            b"n,,",
            b"p=tls-unique,,n=u,r=a",
            b"n,,n=u",
            b"n,,n=u,r=",
            b"n,,n=a=b,r=a",
            b"\xff",
        ];
        for message in messages {
            assert!(
                matches!(ClientFirst::parse(message), Err(ScramError::Malformed(_))),
                "{message:?}"
            );
        }
        let first = ClientFirst::parse(b"n,,n=user,r=abc").expect("valid");
        let (exchange, _) = Exchange::start(&first, Credentials::derive_with("secret", b"salt", 1));
        let nonce = &exchange.nonce;
        let messages = [
            "".to_owned(),
            format!("c=biws,r={nonce}"),
            "c=biws,r=abc,p=".to_owned(),
            format!("c=eSws,r={nonce},p="),
        ];
        for message in messages {
            assert!(
                matches!(
                    exchange.finish(message.as_bytes()),
                    Err(ScramError::Malformed(_))
                ),
                "{message}"
            );
        }
    }

    #[test]
    fn names_are_unescaped() {
        assert_eq!(unescape("a=2Cb=3Dc"), Ok("a,b=c".to_owned()));
        assert!(unescape("a=").is_err() && unescape("a=2").is_err());
    }
}
