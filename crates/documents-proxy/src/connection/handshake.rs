//! Modifies the handshake that passes through the proxy. Drivers then connect only to the proxy, and use only features
//! that both servers support.

use bson::{RawBsonRef, RawDocument, RawDocumentBuf, cstr};
use forebay_wire_mongo::hello;

use super::reads::without;

/// Fields of a hello that concern only the connection between the client and the proxy.
const NOT_PASSED_ON: &[&str] = &["compression"];

/// Reply fields that would lead drivers to the upstream or other members of its replica set, and fields about the
/// proxy's connection to the upstream.
const NOT_PASSED_BACK: &[&str] = &[
    "arbiterOnly",
    "arbiters",
    "compression",
    "electionId",
    "hidden",
    "hosts",
    "isreplicaset",
    "lastWrite",
    "me",
    "msg",
    "passive",
    "passives",
    "primary",
    "secondary",
    "setName",
    "setVersion",
    "tags",
];

/// Reply fields that are not kept for later clients: those that are specific to one client or depend on the command's
/// name, and `topologyVersion`, which would make drivers poll without a pause.
const NOT_REMEMBERED: &[&str] = &[
    "connectionId",
    "isWritablePrimary",
    "ismaster",
    "saslSupportedMechs",
    "speculativeAuthenticate",
    "topologyVersion",
];

/// Returns the hello to send to the upstream.
pub fn request(asked: &RawDocument) -> RawDocumentBuf {
    without(asked, NOT_PASSED_ON)
}

/// Returns the reply to send to the client, which sent the hello `asked`.
///
/// An upstream with sessions, retryable writes and transactions (a member of a replica set, or a router) is described
/// as a router: drivers use these features with a router, and do not look for other members.
pub fn reply(received: &RawDocument, asked: &RawDocument) -> RawDocumentBuf {
    let mut reply = RawDocumentBuf::new();
    let mut routes = false;
    for (name, value) in received.into_iter().flatten() {
        match name.as_str() {
            "maxWireVersion" => reply.append(name, at_most(value, hello::WIRE_VERSION_MAX)),
            "setName" => routes = true,
            "msg" => routes |= value == RawBsonRef::String("isdbgrid"),
            other if NOT_PASSED_BACK.contains(&other) => {}
            _ => reply.append(name, value),
        }
    }
    if routes {
        reply.append(cstr!("msg"), "isdbgrid");
    }
    hello::append_compression(&mut reply, asked);
    reply
}

/// Returns whether a hello begins to authenticate the client (`speculativeAuthenticate`).
pub fn authenticates(asked: &RawDocument) -> bool {
    !matches!(asked.get("speculativeAuthenticate"), Ok(None))
}

/// Returns the part of the upstream's reply that is kept for clients that connect while the upstream is away. It
/// contains nothing about authentication.
pub fn remembered(received: &RawDocument) -> RawDocumentBuf {
    let mut remembered = RawDocumentBuf::new();
    for (name, value) in received.into_iter().flatten() {
        if !NOT_REMEMBERED.contains(&name.as_str()) {
            remembered.append(name, value);
        }
    }
    // `hello` and `isMaster` report the primary in different fields.
    remembered.append(cstr!("ismaster"), true);
    remembered.append(cstr!("isWritablePrimary"), true);
    remembered
}

fn at_most(value: RawBsonRef<'_>, limit: i32) -> i32 {
    value.as_i32().unwrap_or(0).min(limit)
}

#[cfg(test)]
mod tests {
    use bson::rawdoc;

    use super::*;

    #[test]
    fn a_hello_keeps_its_authentication_and_loses_its_compression() {
        let asked = rawdoc! { "hello": 1, "helloOk": true, "compression": ["zstd"],
        "speculativeAuthenticate": { "saslStart": 1 }, "$db": "admin" };
        let expected = rawdoc! { "hello": 1, "helloOk": true,
        "speculativeAuthenticate": { "saslStart": 1 }, "$db": "admin" };
        assert_eq!(request(&asked), expected);
    }

    #[test]
    fn a_member_of_a_replica_set_is_described_as_a_router() {
        let received = rawdoc! { "isWritablePrimary": true, "setName": "rs", "hosts": ["a:1"], "me": "a:1", "primary": "a:1",
        "topologyVersion": { "counter": 1i64 }, "minWireVersion": 0, "maxWireVersion": 27,
        "compression": ["zlib"], "ok": 1.0 };
        let asked = rawdoc! { "hello": 1, "compression": ["snappy", "frob"] };
        let expected = rawdoc! { "isWritablePrimary": true, "topologyVersion": { "counter": 1i64 }, "minWireVersion": 0,
        "maxWireVersion": 21, "ok": 1.0, "msg": "isdbgrid", "compression": ["snappy"] };
        let remembered = remembered(&received);
        let version = remembered.get("topologyVersion").expect("valid BSON");
        assert!(version.is_none(), "drivers poll then");
        assert_eq!(reply(&received, &asked), expected);
    }

    #[test]
    fn a_standalone_stays_one_and_its_wire_version_too() {
        let received = rawdoc! { "ismaster": true, "maxWireVersion": 13, "ok": 1.0 };
        assert_eq!(reply(&received, &rawdoc! { "ismaster": 1 }), received);
    }
}
