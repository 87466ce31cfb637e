//! S3 with moto's server.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use block::ErrorKind;
use repository::{Id, Kind};

use crate::conformance::conform;
use crate::{noise, open, options};

const KEYS: [(&str, &str); 3] = [
    ("AWS_ACCESS_KEY_ID", "me"),
    ("AWS_SECRET_ACCESS_KEY", "secret/key+"),
    ("AWS_SESSION_TOKEN", "a+token/="),
];

/// A server in a process of its own, which ends with this.
struct Moto {
    port: u16,
    child: Child,
}

impl Moto {
    /// `None` if there is none on this machine.
    fn start() -> Option<Self> {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let child = Command::new("moto_server")
            .env("MOTO_S3_DEFAULT_MAX_KEYS", "3")
            .args(["-H", "127.0.0.1", "-p", &port.to_string()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(child) = child else {
            println!("skipped: there is no moto_server here (pip install 'moto[server]')");
            return None;
        };
        let moto = Self { port, child };
        let up = (0..600).any(|_| {
            std::thread::sleep(Duration::from_millis(50));
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        assert!(up, "moto does not listen");
        Some(moto)
    }

    fn repo(&self, path: &str) -> String {
        format!("s3:http://127.0.0.1:{}/{path}", self.port)
    }
}

impl Drop for Moto {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

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
