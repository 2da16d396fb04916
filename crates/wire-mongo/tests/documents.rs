//! Tests the rules for well-formed documents.
use bson::{Bson, Document, RawDocumentBuf, cstr, doc};
use forebay_wire_mongo::Limits;
use forebay_wire_mongo::validate::{InvalidBson, validate_document};

fn validate(bytes: &[u8]) -> Result<(), InvalidBson> {
    validate_document(bytes, &Limits::default())
}

/// Makes a document with an element of every BSON type.
fn all_types() -> Vec<u8> {
    let document = doc! {
        "double": 1.5, "string": "text", "document": { "a": { "b": [] } }, "array": [1, "two", [3_i64]],
        "binary": bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1, 2, 3] },
        "old binary": bson::Binary { subtype: bson::spec::BinarySubtype::BinaryOld, bytes: vec![1, 2, 3] },
        "undefined": Bson::Undefined, "id": bson::oid::ObjectId::from_bytes([7; 12]), "true": true, "false": false,
        "date": bson::DateTime::from_millis(1), "null": Bson::Null,
        "regex": bson::Regex { pattern: cstr!("a+").into(), options: cstr!("i").into() },
        "code": Bson::JavaScriptCode("f()".into()), "symbol": Bson::Symbol("s".into()),
        "scope": bson::JavaScriptCodeWithScope { code: "g()".into(), scope: doc! { "x": 1 } },
        "int": 1, "time": bson::Timestamp { time: 1, increment: 2 }, "long": 1_i64,
        "decimal": "1.5".parse::<bson::Decimal128>().expect("a number"),
        "max": Bson::MaxKey, "min": Bson::MinKey, "": "empty name", "ünï": "name beyond ASCII",
    };
    bson::serialize_to_vec(&document).expect("serialises")
}

#[test]
fn every_type_is_valid() {
    assert_eq!(validate(&all_types()), Ok(()));
    assert_eq!(validate(&[5, 0, 0, 0, 0]), Ok(()));
}

#[test]
fn no_truncation_is_valid() {
    let bytes = all_types();
    for length in 0..bytes.len() {
        let mut cut = bytes[..length].to_vec();
        assert!(validate(&cut).is_err(), "cut to {length}");
        if length >= 4 {
            cut[..4].copy_from_slice(&(length as i32).to_le_bytes());
            assert!(
                validate(&cut).is_err(),
                "cut to {length} with the length set right"
            );
        }
    }
}

/// Checks that the BSON library can traverse every valid document completely, except strings that are not UTF-8.
#[test]
fn valid_documents_can_be_walked() {
    let seed = fastrand::u64(..);
    let mut random = fastrand::Rng::with_seed(seed);
    let original = all_types();
    let mut valid = 0;
    for _ in 0..200_000 {
        let mut bytes = original.clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        if validate(&bytes).is_ok() {
            valid += 1;
            let document = RawDocumentBuf::from_bytes(bytes).expect("a valid outer length");
            for element in document.iter_elements() {
                let element = element.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
                if let Err(error) = element.value_utf8_lossy() {
                    panic!("seed {seed}: {:?}: {error}", element.key());
                }
            }
        }
    }
    assert!(
        valid > 1000,
        "only {valid} mutations were valid: too few for this test"
    );
}

fn nested(depth: usize) -> Vec<u8> {
    let mut document = Document::new();
    for _ in 1..depth {
        document = doc! { "a": document };
    }
    bson::serialize_to_vec(&document).expect("serialises")
}

#[test]
fn depth_is_limited() {
    assert_eq!(validate(&nested(200)), Ok(()));
    assert!(matches!(
        validate(&nested(201)),
        Err(InvalidBson::TooDeep { max: 200, .. })
    ));
}

/// Validating a million nested arrays uses no stack, and stops after 200 levels.
#[test]
fn nesting_bombs_are_cheap() {
    let levels = 1_000_000_usize;
    let mut bytes = Vec::new();
    for level in 0..levels {
        let length = ((levels - level) * 8) as i32;
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(b"\x04a\0");
    }
    bytes.resize(levels * 8, 0);
    assert!(matches!(validate(&bytes), Err(InvalidBson::TooDeep { .. })));
}

#[test]
fn size_is_limited() {
    let limits = Limits {
        document_bytes_max: 64,
        ..Limits::default()
    };
    let document = bson::serialize_to_vec(&doc! { "a": "x".repeat(64) }).expect("serialises");
    let error = validate_document(&document, &limits);
    assert_eq!(
        error,
        Err(InvalidBson::TooLarge {
            bytes: document.len(),
            max: 64
        })
    );
}

#[test]
fn faults_are_named() {
    let cases: &[(&[u8], &str)] = &[
        (b"", "runs past the end"),
        (b"\x04\0\0\0\0", "bad length 4"),
        (b"\x06\0\0\0\0\0", "terminator missing or too early"),
        (
            b"\x0c\0\0\0\x08a\0\x02\0\0\0\0",
            "boolean at byte 7 has the value 2, not 0 or 1",
        ),
        (b"\x08\0\0\0\x20a\0\0", "unknown element type 0x20"),
        (b"\x08\0\0\0\x0a\xff\0\0", "not valid UTF-8"),
        (b"\x0e\0\0\0\x02a\0\x00\0\0\0\0\0\0", "bad length 0"),
        (
            b"\x0e\0\0\0\x02a\0\x01\0\0\0x\0\0",
            "terminator missing or too early",
        ),
        (b"\x0c\0\0\0\x03a\0\x7f\0\0\0\0", "bad length 127"),
    ];
    for (bytes, expected) in cases {
        let mut bytes = bytes.to_vec();
        let length = bytes.len() as u8;
        if bytes.first().is_some_and(|first| *first > 5) {
            bytes[0] = length;
        }
        let error = validate(&bytes).expect_err(expected).to_string();
        assert!(
            error.contains(expected),
            "{bytes:x?}: {expected:?} is missing in {error:?}"
        );
    }
}

#[test]
fn values_need_not_be_utf8() {
    assert_eq!(validate(b"\x0e\0\0\0\x02a\0\x02\0\0\0\xff\0\0"), Ok(()));
}
