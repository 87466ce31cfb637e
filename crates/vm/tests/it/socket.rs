//! What speaks no QMP, says too much, or nothing.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread::JoinHandle;
use std::time::Duration;

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

/// A guest's agent that was told something before this client came, which is what it says first. It synchronises, and answers one
/// command.
fn agent(before: Vec<u8>) -> (tempfile::TempDir, std::path::PathBuf, JoinHandle<()>) {
    answering(move |mut stream| {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        stream.write_all(&before).unwrap();
        let mut asked = Vec::new();
        reader.read_until(b'\n', &mut asked).unwrap();
        assert_eq!(asked[0], 0xff, "what an earlier client left unsent ends");
        let asked: serde_json::Value = serde_json::from_slice(&asked[1..]).unwrap();
        assert_eq!(asked["execute"], "guest-sync-delimited");
        let id = &asked["arguments"]["id"];
        stream
            .write_all(&[&[0xff][..], json!({ "return": id }).to_string().as_bytes(), b"\n"].concat())
            .unwrap();
        let id = line(&mut reader)["id"].clone();
        writeln!(stream, "{}", json!({ "return": "thawed", "id": id })).unwrap();
    })
}

#[test]
fn what_an_agent_said_to_earlier_clients_is_skipped() {
    let complaint =
        "{\"error\": {\"class\": \"GenericError\", \"desc\": \"JSON parse error, invalid token\"}}\n";
    let of_another = "{\"return\": 1}\n";
    let mut of_another_sync = vec![0xff];
    of_another_sync.extend_from_slice(b"{\"return\": 4294967295000}\n");
    let cut_off = b"{\"return\": [{\"name\": \"eth".to_vec();
    for before in [
        Vec::new(),
        complaint.as_bytes().to_vec(),
        of_another.as_bytes().to_vec(),
        of_another_sync,
        [complaint.as_bytes(), of_another.as_bytes(), &cut_off].concat(),
        cut_off,
    ] {
        let (_dir, path, thread) = agent(before.clone());
        let mut socket = Socket::connect_agent(&path, Duration::from_secs(20)).unwrap();
        assert_eq!(ask(&mut socket).unwrap(), "thawed", "{before:?}");
        thread.join().unwrap();
    }
}

#[test]
fn an_agent_that_does_not_answer_in_time_or_says_no_json_is_told_so() {
    let connect = |act: fn(UnixStream)| {
        let (_dir, path, thread) = answering(act);
        let error = Socket::connect_agent(&path, Duration::from_millis(200)).unwrap_err();
        thread.join().unwrap();
        assert!(error.to_string().contains("the guest agent"), "{error}");
        error
    };
    // Nothing, until the client has gone.
    let silent = connect(|mut stream| _ = stream.read_to_end(&mut Vec::new()));
    assert_eq!(silent.io_source().unwrap().kind(), std::io::ErrorKind::TimedOut);
    // Lines without the mark, as long as the client listens: none of them is the answer.
    let endless = connect(|mut stream| while stream.write_all(b"{\"return\": 1}\n").is_ok() {});
    assert_eq!(endless.kind(), ErrorKind::Io);
    let hung_up = connect(drop);
    assert_eq!(hung_up.kind(), ErrorKind::Io);
    let garbage = connect(|mut stream| {
        stream.write_all(b"\xffnot an answer\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    assert_eq!(garbage.kind(), ErrorKind::Corrupt);
}
