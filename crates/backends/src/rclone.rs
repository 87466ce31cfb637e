//! Any storage that rclone reaches: `rclone serve restic` on an address of this host alone, spoken to as a REST server.
//!
//! Invariants: the server wants a password that nobody else knows; it ends with this process, however that ends.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use block::{Error, Result};
use repository::Kind;

use crate::address::HttpAddress;
use crate::backend::{Backend, Limits};
use crate::fault::{Attempt, shown};
use crate::http::{Authorities, Proxy};
use crate::rest::Rest;
use crate::secret::Secret;

/// Runs what is behind it until the standard input ends, which it does when the parent is gone, however that went.
const UNTIL_INPUT_ENDS: &str = r#""$@" </dev/null & server=$!; exec 2>/dev/null; while read -r _; do :; done; kill "$server" 2>/dev/null; wait "$server""#;
/// What rclone says when it serves.
const SERVES: &str = "http://127.0.0.1:";
/// What the shell answers if there is no such program.
const NOT_FOUND: i32 = 127;
/// The longest of its lines that is looked at.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines of rclone's that are kept to be told.
const LINES_MAX: usize = 5;

/// rclone, which runs until this goes.
struct Server {
    child: Child,
}

impl Server {
    /// Ends it; answers its exit status.
    fn end(&mut self) -> Option<i32> {
        drop(self.child.stdin.take());
        self.child.wait().ok()?.code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// A repository that rclone reaches.
pub(crate) struct Rclone {
    rest: Rest,
    _server: Server,
}

impl Rclone {
    /// `program` and `args` are restic's options `rclone.program` and `rclone.args`.
    pub(crate) fn start(
        remote: &str,
        program: Option<&str>,
        args: Option<&str>,
        limits: &Limits,
    ) -> Result<Self> {
        let place = format!("rclone:{remote}");
        let (user, password) = (random()?, random()?);
        let program = program.unwrap_or("rclone");
        let mut child = command(program, args, remote)
            .env("RCLONE_USER", &user)
            .env("RCLONE_PASS", &password)
            .spawn()
            .map_err(|error| Error::io("start rclone", error).path(&place))?;
        let stderr = child.stderr.take();
        let mut server = Server { child };
        let lines =
            stderr.map(lines_of).ok_or_else(|| Error::io("start rclone", ErrorKind::BrokenPipe.into()))?;
        let port = port(&lines, limits.silence, &mut server).map_err(|error| error.path(&place))?;
        let url = format!("{SERVES}{port}/");
        let address = HttpAddress { url, credentials: Some((user, Secret(password))) };
        let rest = Rest::new(&address, place, &Authorities::System, Proxy::Never, limits)?;
        Ok(Self { rest, _server: server })
    }
}

fn command(program: &str, args: Option<&str>, remote: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", UNTIL_INPUT_ENDS, "sh", program, "serve", "restic", "--addr", "127.0.0.1:0"]);
    // restic's default: files of B2 are removed, not hidden.
    command.args(args.unwrap_or("--b2-hard-delete").split_whitespace());
    command.args(["--", remote]);
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    // Who interrupts Leandisk has it remove its lock first.
    command.process_group(0);
    command
}

fn random() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::io("get random bytes", std::io::Error::other(error.to_string())))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// What rclone prints, line by line, until it ends. It is read to its end, so that rclone never waits for a reader.
fn lines_of(stderr: ChildStderr) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(stderr);
        let mut line = Vec::new();
        while reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            // Nobody may listen any more.
            let _ = sender.send(String::from_utf8_lossy(&line).into_owned());
            line.clear();
        }
    });
    receiver
}

/// The port on which it serves.
fn port(lines: &Receiver<String>, within: Duration, server: &mut Server) -> Result<u16> {
    let until = Instant::now() + within;
    let mut said: Vec<String> = Vec::new();
    loop {
        let line = lines.recv_timeout(until.saturating_duration_since(Instant::now()));
        match line {
            Ok(line) => {
                if let Some(port) = port_in(&line) {
                    return Ok(port);
                }
                said.push(shown(&line));
                said.drain(..said.len().saturating_sub(LINES_MAX));
            }
            Err(RecvTimeoutError::Timeout) => {
                return Err(Error::io("wait for rclone", ErrorKind::TimedOut.into()));
            }
            Err(RecvTimeoutError::Disconnected) => return Err(ended(server, &said)),
        }
    }
}

fn port_in(line: &str) -> Option<u16> {
    let (_, rest) = line.split_once(SERVES)?;
    let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

fn ended(server: &mut Server, said: &[String]) -> Error {
    match server.end() {
        Some(NOT_FOUND) => {
            Error::refused("rclone is not there").hint("install rclone, or name it by -o rclone.program=PATH")
        }
        _ => Error::refused(format!("rclone does not serve: {}", said.join("; "))),
    }
}

impl Backend for Rclone {
    fn place(&self) -> String {
        self.rest.place()
    }

    fn prepare(&self) -> Attempt<()> {
        self.rest.prepare()
    }

    fn names(&self, kind: Kind) -> Attempt<Vec<String>> {
        self.rest.names(kind)
    }

    fn len_bytes(&self, kind: Kind, name: &str) -> Attempt<Option<u64>> {
        self.rest.len_bytes(kind, name)
    }

    fn read(&self, kind: Kind, name: &str) -> Attempt<Vec<u8>> {
        self.rest.read(kind, name)
    }

    fn read_part(&self, kind: Kind, name: &str, offset: u64, len: usize) -> Attempt<Vec<u8>> {
        self.rest.read_part(kind, name, offset, len)
    }

    fn create(&self, kind: Kind, name: &str, contents: &[u8]) -> Attempt<()> {
        self.rest.create(kind, name, contents)
    }

    fn remove(&self, kind: Kind, name: &str) -> Attempt<()> {
        self.rest.remove(kind, name)
    }

    fn connection_count(&self) -> usize {
        self.rest.connection_count()
    }
}
