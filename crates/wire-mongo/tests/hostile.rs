//! Hostile bytes: truncated, mutated and random messages never cause a panic, and stay within the memory limits.

use bson::rawdoc;
use bytes::Bytes;
use forebay_wire_mongo::{
    Compressor, Flags, Limits, Message, OpMsg, OpQuery, OpReply, ReplyFlags, Sequence, compress,
};

const LIMITS: Limits = Limits {
    message_bytes_max: 1 << 20,
    document_bytes_max: 1 << 18,
    depth_max: 50,
};

/// Maximum memory of a decompressor besides its output: zstd's window and tables, zlib's window.
const DECOMPRESSOR_BYTES_MAX: usize = 1 << 20;

/// Makes valid messages of different opcodes and structures.
fn valid() -> Vec<Vec<u8>> {
    let body = rawdoc! { "insert": "c", "nested": { "a": [1, 2.5, "three", { "four": true }] }, "$db": "d" };
    let documents = [
        rawdoc! { "_id": 1, "name": "one" },
        rawdoc! { "_id": 2, "name": "two" },
    ];
    let sequence = Sequence::new("documents", documents.iter().map(|document| &**document));
    let msg = OpMsg {
        sequences: vec![sequence],
        ..OpMsg::new(body.clone())
    };
    let checked = OpMsg {
        flags: Flags::CHECKSUM_PRESENT,
        ..msg.clone()
    };
    let query = OpQuery {
        flags: 4,
        full_collection_name: "admin.$cmd".into(),
        skip: 0,
        number_to_return: -1,
        query: body.clone(),
    };
    let reply = OpReply {
        flags: ReplyFlags::AWAIT_CAPABLE,
        document: body,
    };
    let mut messages = vec![
        msg.encode(1, 0),
        checked.encode(2, 0),
        query.encode(3),
        reply.encode(4, 3),
    ];
    for compressor in [
        Compressor::Noop,
        Compressor::Snappy,
        Compressor::Zlib,
        Compressor::Zstd,
    ] {
        messages.push(compress(&msg.encode(5, 0), compressor).expect("compresses"));
    }
    messages
}

/// Decodes a message, reads the result, and checks the memory used. Returns whether the message is valid.
fn decode(bytes: Vec<u8>) -> bool {
    let frame = Bytes::from(bytes);
    // Kept until after the measurement: freeing it would hide allocations of the same size.
    let kept = frame.clone();
    let mut decoded = None;
    let cost = allocation_counter::measure(|| decoded = Some(Message::decode(frame, &LIMITS)));
    assert!(
        cost.bytes_max <= (LIMITS.message_bytes_max + DECOMPRESSOR_BYTES_MAX) as u64,
        "{} bytes at the same time",
        cost.bytes_max
    );
    drop(kept);
    match decoded.expect("the closure sets the result") {
        Ok(Message {
            body: forebay_wire_mongo::Body::Msg(msg),
            ..
        }) => {
            assert!(
                msg.sequences
                    .iter()
                    .all(|sequence| sequence.to_documents().len() == sequence.count())
            );
            true
        }
        Ok(_) => true,
        Err(error) => error.to_string().is_empty(),
    }
}

fn with_length(mut bytes: Vec<u8>) -> Vec<u8> {
    let length = bytes.len() as i32;
    if let Some(field) = bytes.first_chunk_mut::<4>() {
        *field = length.to_le_bytes();
    }
    bytes
}

#[test]
fn valid_messages_decode() {
    assert!(valid().into_iter().all(decode));
}

#[test]
fn every_truncation_is_an_error() {
    for message in valid() {
        for length in 0..message.len() {
            assert!(!decode(message[..length].to_vec()), "cut to {length}");
            // An OP_MSG that ends after a section may be valid. It must not panic.
            decode(with_length(message[..length].to_vec()));
        }
    }
}

#[test]
fn mutations_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let messages = valid();
    for _ in 0..300_000 {
        let mut bytes = messages[random.usize(..messages.len())].clone();
        for _ in 0..random.usize(1..5) {
            mutate(&mut bytes, &mut random);
        }
        decode(with_length(bytes));
    }
}

/// Changes a byte or a length field, or removes or repeats a range.
fn mutate(bytes: &mut Vec<u8>, random: &mut fastrand::Rng) {
    let at = random
        .usize(..bytes.len().max(1))
        .min(bytes.len().saturating_sub(1));
    let until = (at + random.usize(..16)).min(bytes.len());
    match random.u8(..4) {
        0 if at < bytes.len() => bytes[at] = random.u8(..),
        1 if at + 4 <= bytes.len() => {
            let odd = [
                0,
                -1,
                i32::MIN,
                i32::MAX,
                1 << 20,
                bytes.len() as i32,
                random.i32(i32::MIN..),
            ];
            let value = odd[random.usize(..odd.len())];
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        2 => drop(bytes.drain(at..until)),
        _ => {
            let piece = bytes[at..until].to_vec();
            bytes.splice(at..at, piece);
        }
    }
}

#[test]
fn random_bytes_never_panic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let op_codes = [1, 2004, 2012, 2013];
    for round in 0..200_000 {
        let mut bytes = vec![0; random.usize(16..200)];
        random.fill(&mut bytes);
        let op_code: i32 = op_codes[round % op_codes.len()];
        bytes[12..16].copy_from_slice(&op_code.to_le_bytes());
        decode(with_length(bytes));
    }
}
