//! Tests messages against their bytes on the wire.
use bson::{RawDocumentBuf, rawdoc};
use bytes::Bytes;
use forebay_wire_mongo::{
    Body, Compressor, Error, Flags, Header, Limits, Message, OpMsg, OpQuery, OpReply, ReplyFlags,
    Sequence, compress,
};

fn decode(bytes: &[u8]) -> Result<Message, Error> {
    Message::decode(Bytes::copy_from_slice(bytes), &Limits::default())
}

fn ping() -> RawDocumentBuf {
    rawdoc! { "ping": 1_i32, "$db": "admin" }
}

/// `{ping: 1, $db: "admin"}` as an `OP_MSG` with request id 7.
const PING: &[u8] = b"\
    \x33\x00\x00\x00\x07\x00\x00\x00\x00\x00\x00\x00\xdd\x07\x00\x00\
    \x00\x00\x00\x00\x00\
    \x1e\x00\x00\x00\x10ping\x00\x01\x00\x00\x00\x02$db\x00\x06\x00\x00\x00admin\x00\x00";

#[test]
fn op_msg_is_these_bytes() {
    assert_eq!(OpMsg::new(ping()).encode(7, 0), PING);
    let message = decode(PING).expect("the golden bytes are valid");
    assert_eq!(message.header.request_id, 7);
    assert_eq!(message.body, Body::Msg(OpMsg::new(ping())));
}

#[test]
fn op_query_is_these_bytes() {
    let golden = b"\
        \x3e\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\xd4\x07\x00\x00\
        \x04\x00\x00\x00admin.$cmd\x00\x00\x00\x00\x00\xff\xff\xff\xff\
        \x13\x00\x00\x00\x10isMaster\x00\x01\x00\x00\x00\x00";
    let mut golden = golden.to_vec();
    golden[0] = golden.len() as u8;
    let Body::Query(query) = decode(&golden).expect("valid").body else {
        panic!("not OP_QUERY")
    };
    assert_eq!(query.command_database(), Some("admin"));
    assert_eq!(
        (query.flags, query.skip, query.number_to_return),
        (4, 0, -1)
    );
    assert_eq!(query.query, rawdoc! { "isMaster": 1_i32 });
    assert_eq!(query.encode(1), golden);
}

#[test]
fn op_reply_is_these_bytes() {
    let reply = OpReply {
        flags: ReplyFlags::AWAIT_CAPABLE,
        document: rawdoc! { "ok": 1.0 },
    };
    let golden = b"\
        \x35\x00\x00\x00\x02\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\
        \x08\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00\
        \x11\x00\x00\x00\x01ok\x00\x00\x00\x00\x00\x00\x00\xf0\x3f\x00";
    assert_eq!(reply.encode(2, 1), golden);
    assert_eq!(decode(golden).expect("valid").body, Body::Reply(reply));
}

#[test]
fn checksum_is_crc32c_of_everything_before_it() {
    let message = OpMsg {
        flags: Flags::CHECKSUM_PRESENT,
        ..OpMsg::new(ping())
    };
    let mut bytes = message.encode(1, 0);
    let (content, checksum) = bytes.split_at(bytes.len() - 4);
    assert_eq!(checksum, crc32c::crc32c(content).to_le_bytes());
    assert_eq!(decode(&bytes).expect("valid").body, Body::Msg(message));
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    assert!(matches!(decode(&bytes), Err(Error::Checksum { .. })));
}

#[test]
fn sections_come_in_any_order() {
    let sequence = Sequence::new("documents", [&*rawdoc! { "a": 1 }, &*rawdoc! { "a": 2 }]);
    let message = OpMsg {
        sequences: vec![sequence],
        ..OpMsg::new(rawdoc! { "insert": "c", "$db": "d" })
    };
    let bytes = message.encode(1, 0);
    let body_bytes = 1 + message.body.as_bytes().len();
    let (head, sections) = bytes.split_at(20);
    let (body, sequence) = sections.split_at(body_bytes);
    let swapped = [head, sequence, body].concat();
    assert_eq!(
        decode(&bytes).expect("valid").body,
        decode(&swapped).expect("valid").body
    );
    let Body::Msg(decoded) = decode(&swapped).expect("valid").body else {
        panic!("not OP_MSG")
    };
    assert_eq!(decoded.sequences[0].count(), 2);
    assert_eq!(
        decoded.sequences[0].to_documents(),
        [rawdoc! { "a": 1 }, rawdoc! { "a": 2 }]
    );
}

#[test]
fn every_compressor_round_trips() {
    let text = "abcdefgh".repeat(1000);
    let plain = OpMsg::new(rawdoc! { "echo": text, "$db": "d" });
    for compressor in [
        Compressor::Noop,
        Compressor::Snappy,
        Compressor::Zlib,
        Compressor::Zstd,
    ] {
        let bytes = compress(&plain.encode(9, 8), compressor).expect("compresses");
        let message = decode(&bytes).expect("valid");
        assert_eq!(
            (message.header.request_id, message.header.response_to),
            (9, 8)
        );
        assert_eq!(message.compressor, Some(compressor));
        assert_eq!(message.body, Body::Msg(plain.clone()));
    }
}

#[test]
fn compressed_query_and_reply_round_trip() {
    let query = OpQuery {
        flags: 0,
        full_collection_name: "admin.$cmd".into(),
        skip: 0,
        number_to_return: -1,
        query: rawdoc! { "hello": 1 },
    };
    let bytes = compress(&query.encode(3), Compressor::Zstd).expect("compresses");
    assert_eq!(decode(&bytes).expect("valid").body, Body::Query(query));
}

/// Makes an `OP_COMPRESSED` that contains `data`.
fn compressed(op_code: i32, size: i32, compressor: u8, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let message_bytes = 16 + 9 + data.len();
    Header {
        message_bytes,
        request_id: 1,
        response_to: 0,
        op_code: 2012,
    }
    .write(&mut bytes);
    bytes.extend_from_slice(&op_code.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes.push(compressor);
    bytes.extend_from_slice(data);
    bytes
}

#[test]
fn false_sizes_of_compressed_messages_are_refused() {
    assert!(matches!(
        decode(&compressed(2012, 0, 0, b"")),
        Err(Error::NestedCompression)
    ));
    assert!(matches!(
        decode(&compressed(2013, -1, 1, b"")),
        Err(Error::UncompressedSize { size: -1, .. })
    ));
    assert!(matches!(
        decode(&compressed(2013, i32::MAX, 2, b"")),
        Err(Error::UncompressedSize { .. })
    ));
    assert!(matches!(
        decode(&compressed(2013, 0, 4, b"")),
        Err(Error::UnknownCompressor { id: 4 })
    ));
    for id in 0..=3 {
        let error = decode(&compressed(2013, 100, id, b"not compressed")).expect_err("garbage");
        assert!(
            matches!(error, Error::Decompression { size: 100, .. }),
            "{id}: {error}"
        );
    }
}

#[test]
fn a_bomb_stops_at_the_size_it_claims() {
    let zeros = vec![0_u8; 4 << 20];
    for compressor in [Compressor::Snappy, Compressor::Zlib, Compressor::Zstd] {
        let message = [&PING[..16], &zeros].concat();
        let bytes =
            compress(&patched(&message, 0, message.len() as i32), compressor).expect("compresses");
        let claims_little = patched(&bytes, 20, 64);
        assert!(matches!(
            decode(&claims_little),
            Err(Error::Decompression { size: 64, .. })
        ));
    }
}

fn patched(bytes: &[u8], at: usize, value: i32) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn bad_headers_are_refused() {
    for length in [i32::MIN, -1, 0, 15, 48_000_001, i32::MAX] {
        assert!(
            matches!(
                decode(&patched(PING, 0, length)),
                Err(Error::MessageLength { .. })
            ),
            "{length}"
        );
    }
    for (start, guess) in [
        (*b"GET ", "bytes (is this an HTTP request?)"),
        (i32::MAX.to_le_bytes(), "bytes"),
    ] {
        let other = patched(PING, 0, i32::from_le_bytes(start));
        let error = decode(&other).expect_err("is not a message").to_string();
        assert!(error.ends_with(guess), "{error}");
    }
    assert!(matches!(
        decode(&patched(PING, 0, 50)),
        Err(Error::FrameLength {
            declared: 50,
            actual: 51
        })
    ));
    for code in [0, 2001, 2002, 2005, 2006, 2007, 2010, 2011, 9999] {
        assert!(
            matches!(
                decode(&patched(PING, 12, code)),
                Err(Error::UnknownOpCode { .. })
            ),
            "{code}"
        );
    }
}

#[test]
fn unknown_required_flags_are_refused() {
    assert!(matches!(
        decode(&patched(PING, 16, 4)),
        Err(Error::UnknownFlags { bits: 4 })
    ));
    let exhaust = decode(&patched(PING, 16, 1 << 16)).expect("optional bit");
    let Body::Msg(exhaust) = exhaust.body else {
        panic!("not OP_MSG")
    };
    assert!(exhaust.flags.has(Flags::EXHAUST_ALLOWED) && !exhaust.flags.has(Flags::MORE_TO_COME));
    assert!(
        decode(&patched(PING, 16, 1 << 31)).is_ok(),
        "unknown optional bits are ignored"
    );
}

#[test]
fn bad_sections_are_refused() {
    let with_sections = |sections: &[u8]| {
        let bytes = [&PING[..20], sections].concat();
        let length = bytes.len() as i32;
        decode(&patched(&bytes, 0, length))
    };
    let body = &PING[20..];
    assert!(matches!(
        with_sections(b""),
        Err(Error::BodySections { count: 0 })
    ));
    assert!(matches!(
        with_sections(&[body, body].concat()),
        Err(Error::BodySections { count: 2 })
    ));
    assert!(matches!(
        with_sections(b"\x02"),
        Err(Error::UnknownSectionKind { kind: 2 })
    ));
    let twice = [body, &section("a"), &section("a")].concat();
    let error = with_sections(&twice).expect_err("the same name twice");
    assert!(matches!(error, Error::DuplicateSequence { .. }) && !error.is_fatal());
    let as_in_body = [body, &section("ping")].concat();
    assert!(matches!(
        with_sections(&as_in_body),
        Err(Error::DuplicateSequence { .. })
    ));
    let many: Vec<u8> = ('a'..'j')
        .flat_map(|name| section(&name.to_string()))
        .chain(body.to_vec())
        .collect();
    assert!(matches!(
        with_sections(&many),
        Err(Error::TooManySequences { max: 8 })
    ));
}

/// Makes an empty kind-1 section.
fn section(name: &str) -> Vec<u8> {
    let length = 4 + name.len() as i32 + 1;
    [&[1][..], &length.to_le_bytes(), name.as_bytes(), &[0]].concat()
}

#[test]
fn bad_bson_in_a_good_frame_is_not_fatal() {
    let mut bytes = PING.to_vec();
    bytes[25] = 0x77;
    let error = decode(&bytes).expect_err("element type 0x77");
    assert!(
        matches!(error, Error::Bson(_)) && !error.is_fatal(),
        "{error}"
    );
}
