//! Describes the server as a replica set with one member, so that drivers retry writes.

use bson::oid::ObjectId;
use bson::{DateTime, RawArrayBuf, RawDocumentBuf, cstr, rawdoc};

use super::session::Session;

/// Election id, from which drivers learn which election is the latest. It is constant, because the only member is
/// always the primary.
const ELECTION: ObjectId = ObjectId::from_bytes([0x7F, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0, 0, 0, 1]);

/// The replica set's name and the address of its only member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaSet {
    name: String,
    /// Host and port that clients are told to connect to. If `None`, each client is told the address that it has
    /// already connected to.
    address: Option<String>,
}

impl ReplicaSet {
    /// Parses the setting, which is already validated: `NAME` or `NAME/HOST:PORT`. Returns `None` if it is empty.
    pub fn parse(setting: &str) -> Option<ReplicaSet> {
        let (name, address) = match setting.split_once('/') {
            Some((name, address)) => (name, Some(address.to_owned())),
            None => (setting, None),
        };
        (!name.is_empty()).then(|| ReplicaSet {
            name: name.to_owned(),
            address,
        })
    }

    /// Adds the fields of a replica set's primary, as drivers expect them, to the reply to a hello.
    pub fn append_to(&self, reply: &mut RawDocumentBuf, session: &Session) {
        let reached = || session.local_address.map(|address| address.to_string());
        let Some(me) = self.address.clone().or_else(reached) else {
            return;
        };
        reply.append(cstr!("secondary"), false);
        reply.append(cstr!("setName"), self.name.as_str());
        reply.append(cstr!("setVersion"), 1);
        reply.append(cstr!("electionId"), ELECTION);
        reply.append(cstr!("hosts"), RawArrayBuf::from_iter([me.as_str()]));
        reply.append(cstr!("primary"), me.as_str());
        reply.append(cstr!("me"), me.as_str());
        let last = rawdoc! { "lastWriteDate": DateTime::now() };
        reply.append(cstr!("lastWrite"), last);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_name_with_or_without_an_address() {
        let of = |name: &str, address: Option<&str>| {
            Some(ReplicaSet {
                name: name.to_owned(),
                address: address.map(str::to_owned),
            })
        };
        assert_eq!(ReplicaSet::parse(""), None);
        assert_eq!(ReplicaSet::parse("rs0"), of("rs0", None));
        assert_eq!(
            ReplicaSet::parse("rs0/db:27017"),
            of("rs0", Some("db:27017"))
        );
    }
}
