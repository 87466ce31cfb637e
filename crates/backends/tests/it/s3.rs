//! S3 with moto's server.

use block::ErrorKind;
use repository::{Id, Kind};
use testkit::Moto;

use crate::conformance::conform;
use crate::{noise, open, options};

const KEYS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "me"),
    ("AWS_SECRET_ACCESS_KEY", "secret/key+"),
    ("AWS_SESSION_TOKEN", "a+token/="),
];

#[test]
fn moto_conforms_and_lists_go_over_pages() {
    let Some(moto) = Moto::start() else { return };
    let storage =
        open(&moto.repo("bucket/of a/ü+repo"), &options(&[("s3.region", "eu-west-1")]), &KEYS).unwrap();
    conform(&*storage);
    // Pages have three names here.
    for number in 0..8_u32 {
        let name = Id::of(&number.to_be_bytes()).to_string();
        storage.create(Kind::Snapshot, &name, b"x").unwrap();
    }
    assert_eq!(storage.names(Kind::Snapshot).unwrap().len(), 9);
    // Another prefix of the bucket is another repository, and the bucket is there already.
    let other = open(&moto.repo("bucket/of a"), &options(&[("s3.region", "eu-west-1")]), &KEYS).unwrap();
    assert!(other.names(Kind::Config).unwrap().is_empty());
    other.prepare().unwrap();
    let none = open(&moto.repo("nobucket"), &options(&[]), &KEYS).unwrap();
    assert!(none.names(Kind::Config).unwrap().is_empty(), "there is no repository where there is no bucket");
    assert!(none.names(Kind::Key).unwrap().is_empty());
    for error in [
        none.read_part(Kind::Key, &Id::of(b"x").to_string(), 0, 9).unwrap_err(),
        none.create(Kind::Key, &Id::of(b"x").to_string(), &noise(1, 9)).unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("there is no bucket 'nobucket'"), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[test]
fn keys_are_needed() {
    let error = open("s3:http://127.0.0.1:1/bucket", &options(&[]), &KEYS[..1]).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("AWS_SECRET_ACCESS_KEY"), "{error}");
}
