//! What speaks no QMP, says too much, or nothing.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;

use block::ErrorKind;
use serde_json::json;
use vm::{Command, Monitor, Said, Socket};

/// Somebody who answers one client.
fn answering(
    act: impl FnOnce(UnixStream) + Send + 'static,
) -> (tempfile::TempDir, std::path::PathBuf, JoinHandle<()>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("qmp");
    let listener = UnixListener::bind(&path).unwrap();
    let thread = std::thread::spawn(move || act(listener.accept().unwrap().0));
    (dir, path, thread)
}

const GREETING: &[u8] = b"{\"QMP\": {\"version\": {}, \"capabilities\": []}}\r\n";

fn line(reader: &mut impl BufRead) -> serde_json::Value {
    let mut line = String::new();
    reader.read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

fn ask(socket: &mut Socket) -> block::Result<serde_json::Value> {
    socket.execute(Command { name: "query-status", arguments: json!({}), file: None })
}

#[test]
fn events_and_late_answers_are_skipped_and_refusals_told_in_qemus_words() {
    let (_dir, path, thread) = answering(|mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        stream.write_all(GREETING).unwrap();
        let id = line(&mut reader)["id"].clone();
        let event = json!({ "event": "STOP", "timestamp": {} });
        writeln!(stream, "{event}\r\n{}\r", json!({ "return": {}, "id": id })).unwrap();
        let id = line(&mut reader)["id"].clone();
        let late = json!({ "return": "of another", "id": 999 });
        writeln!(stream, "{event}\n{late}\n{}", json!({ "return": "this", "id": id })).unwrap();
        let id = line(&mut reader)["id"].clone();
        let error = json!({ "error": { "class": "GenericError", "desc": "Node is busy" }, "id": id });
        writeln!(stream, "{error}").unwrap();
    });
    let mut socket = Socket::connect(&path).unwrap();
    assert_eq!(ask(&mut socket).unwrap(), "this");
    let error = ask(&mut socket).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert_eq!(error.cause::<Said>().unwrap().text, "Node is busy");
    thread.join().unwrap();
    // It hung up.
    assert_eq!(ask(&mut socket).unwrap_err().kind(), ErrorKind::Io);
}

#[test]
fn who_speaks_something_else_is_told_so() {
    for said in [&b"NBDMAGICIHAVEOPT\0\n"[..], b"{\"QMP\": 1}\n", b"[]\n", b"{}\n"] {
        let said = said.to_vec();
        let (_dir, path, thread) = answering(move |mut stream| stream.write_all(&said).unwrap());
        assert_eq!(Socket::connect(&path).unwrap_err().kind(), ErrorKind::Corrupt);
        thread.join().unwrap();
    }
    let gone = Socket::connect("/nowhere/qmp".as_ref()).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::Io);
}

#[test]
fn an_answer_without_end_is_cut_short() {
    let (_dir, path, thread) = answering(|mut stream| {
        let piece = vec![b'x'; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    });
    assert_eq!(Socket::connect(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    thread.join().unwrap();
}
