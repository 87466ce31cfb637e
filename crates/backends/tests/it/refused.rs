//! Servers that do not let one in, are not there, are not believed, or answer what they should not.

use block::ErrorKind;
use repository::{Id, Kind};
use testkit::RestServer;

use crate::{open, options};

#[test]
fn a_wrong_user_is_refused_at_once_and_no_message_shows_the_password() {
    let server = RestServer::start(1, Some("Basic bWU6cEBzcw=="));
    let name = format!("rest:http://me:wrongpass@{}/repo/", server.host());
    let storage = open(&name, &options(&[]), &[]).unwrap();
    let error = storage.names(Kind::Config).unwrap_err();
    assert_eq!((error.kind(), server.request_count()), (ErrorKind::Refused, 1), "{error}");
    let told = format!("{error} {error:?} {:?} {}", error.hint_text(), storage.place());
    assert!(told.contains("401") && !told.contains("wrongpass"), "{told}");
}

#[test]
fn nobody_there_is_told_soon() {
    // A port that was free a moment ago.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let storage = open(&format!("rest:http://127.0.0.1:{port}/"), &options(&[]), &[]).unwrap();
    let error = storage.names(Kind::Config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io, "{error}");
    assert_eq!(error.hint_text(), Some("it was tried 3 times"));
}

#[test]
fn names_that_are_no_ids_and_lists_that_are_none() {
    let server = RestServer::start(2, None);
    let storage = open(&server.repo(), &options(&[]), &[]).unwrap();
    for name in ["../../etc/passwd", "%2e%2e", &"A".repeat(64), ""] {
        server.put(&format!("snapshots/{name}"), b"x");
    }
    let id = Id::of(b"x").to_string();
    server.put(&format!("snapshots/{id}"), b"x");
    assert_eq!(storage.names(Kind::Snapshot).unwrap(), [id]);
    server.put("index/\",{]", b"x");
    let error = storage.names(Kind::Index).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
}
