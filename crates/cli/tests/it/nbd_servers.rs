//! What the tests of exports share: servers of others and our own, with a disk to serve.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testkit::run;

use crate::common::{arg, leandisk};

/// A server that runs until it is dropped.
pub(crate) struct Server {
    child: Child,
    socket: PathBuf,
}

impl Server {
    /// Starts a program that listens at `socket` once that is there.
    pub(crate) fn start(command: &mut Command, socket: &Path) -> Self {
        let _ = std::fs::remove_file(socket);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, socket: socket.to_owned() };
        let started = Instant::now();
        while !socket.exists() {
            assert!(server.child.try_wait().unwrap().is_none(), "{command:?} ended");
            assert!(started.elapsed() < Duration::from_secs(60), "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    /// The address of its only export, or the one that is called so.
    pub(crate) fn address(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.socket.display())
    }

    /// Kills it, as a crash would.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn nbdkit(socket: &Path, args: &[&str]) -> Server {
    Server::start(Command::new("nbdkit").args(["-f", "-U", arg(socket)]).args(args), socket)
}

pub(crate) fn qemu_nbd(socket: &Path, args: &[&str]) -> Server {
    Server::start(Command::new("qemu-nbd").args(["-t", "-f", "raw", "-k", arg(socket)]).args(args), socket)
}

pub(crate) fn storage_daemon(socket: &Path, disk: &Path, writable: bool) -> Server {
    let read_only = if writable { "off" } else { "on" };
    let writable = if writable { "on" } else { "off" };
    let mut command = Command::new("qemu-storage-daemon");
    let node =
        format!("driver=file,filename={},node-name=disk,discard=unmap,read-only={read_only}", arg(disk));
    command.args(["--blockdev", &node]);
    command.args(["--nbd-server", &format!("addr.type=unix,addr.path={}", arg(socket))]);
    command.args(["--export", &format!("nbd,id=e,node-name=disk,name=disk,writable={writable}")]);
    Server::start(&mut command, socket)
}

pub(crate) fn our_own(socket: &Path, args: &[&str]) -> Server {
    Server::start(leandisk().arg("serve").args(args).args(["--socket", arg(socket)]), socket)
}

/// A raw disk with an ext4 that uses little of it, whose free space holds old data.
pub(crate) fn disk(dir: &Path) -> PathBuf {
    let raw = dir.join("disk.raw");
    std::fs::write(&raw, vec![0x5a; 24 << 20]).unwrap();
    run("mkfs.ext4", &["-q", "-F", "-E", "nodiscard", arg(&raw), "20M"]);
    let file = dir.join("file");
    let contents: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).take(3_000_000).collect();
    std::fs::write(&file, contents).unwrap();
    run("debugfs", &["-w", "-R", &format!("write {} file", arg(&file)), arg(&raw)]);
    raw
}
