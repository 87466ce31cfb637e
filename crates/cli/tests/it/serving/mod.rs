//! The program at work as a server, for tests that use it for long.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::panic)]

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A server. Killed if a test ends without it.
pub struct Serving {
    child: Child,
    /// Where it is, for clients that take an address.
    pub address: String,
    /// Its socket.
    pub socket: PathBuf,
}

impl Serving {
    pub fn start(disk: &Path) -> Self {
        Self::start_with(disk, &[])
    }

    pub fn start_with(disk: &Path, more: &[&str]) -> Self {
        let socket = disk.with_file_name("nbd.sock");
        let mut child = Command::new(env!("CARGO_BIN_EXE_leandisk"))
            .args(["serve", disk.to_str().unwrap(), "--name", "disk", "--socket", socket.to_str().unwrap()])
            .args(more)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Notes may come first.
        let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
        let is_address = |word: &&str| word.starts_with("nbd+") || word.starts_with("nbd:");
        let address = |line: String| line.split_whitespace().find(is_address).map(str::to_owned);
        let address = lines.filter_map(address).next().expect("it says where it serves");
        Self { child, address, socket }
    }

    /// Asks it to end, which it shall do well.
    pub fn stop(mut self) {
        testkit::run("kill", &["-TERM", &self.child.id().to_string()]);
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < deadline, "it does not end");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
